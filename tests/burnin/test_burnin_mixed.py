"""Two NVIDIA drivers in one job are a warning, two VBIOS, kernels or EFA drivers a note, and none is held against a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.burnin import mixed
from slurm_ext.verdict import PASS, WARN

SAME = {"driver": "570.133.20", "vbios": "96.00.A5.00.03"}


def test_what_a_node_has_installed(tmp_path):
    assert mixed.installed(str(tmp_path)) == {}
    proc = tmp_path / "proc/driver/nvidia"
    for number in range(2):
        (proc / f"gpus/0000:5{number}:00.0").mkdir(parents=True)
        (proc / f"gpus/0000:5{number}:00.0/information").write_text(
            f"Model: \t\t NVIDIA H200\nVideo BIOS: \t 96.00.A5.00.0{number}\nDevice Minor: \t {number}\n"
        )
    (proc / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (x@y)  Sun\nGCC version:\n"
    )
    assert mixed.installed(str(tmp_path)) == {"driver": "570.133.20", "vbios": "96.00.A5.00.00 96.00.A5.00.01"}
    (proc / "gpus/0000:51:00.0/information").write_text("Video BIOS: \t ??.??.??.??.??\n\xff")
    assert mixed.installed(str(tmp_path))["vbios"] == "96.00.A5.00.00"


def test_the_kernel_and_the_efa_driver_as_the_kernel_tells_them(tmp_path):
    for name, text in (("proc/sys/kernel/osrelease", "6.8.0-1031-aws\n"), ("sys/module/efa/version", "2.17.2g\n")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert mixed.installed(str(tmp_path)) == {"kernel": "6.8.0-1031-aws", "efa_driver": "2.17.2g"}


@pytest.mark.parametrize(("key", "id_"), [("kernel", "burnin.mixed-kernel"), ("efa_driver", "burnin.mixed-efa-driver")])
def test_another_kernel_or_efa_driver_is_a_note(key, id_):
    nodes = {"a": {key: "1"}, "b": {key: "1"}, "c": {key: "2"}}
    (found,) = mixed.findings(nodes)
    assert (found.verdict, found.finding.id, found.finding.action) == (PASS, id_, "none")
    assert found.finding.evidence[0].endswith("1 on a and b; 2 on c")


def test_equal_nodes_and_silent_ones_have_nothing_to_tell():
    assert mixed.findings({"a": SAME, "b": SAME, "c": {}}) == []
    assert mixed.findings({}) == []


def test_another_driver_is_a_warning_that_names_the_smaller_cohort():
    (found,) = mixed.findings({"a": SAME, "b": SAME, "c": SAME, "d": SAME | {"driver": "580.1"}})
    assert (found.verdict, found.finding.id, found.finding.action) == (WARN, "burnin.mixed-driver", "warn")
    assert found.finding.evidence[0].endswith("570.133.20 on 3 nodes; 580.1 on d")


def test_another_vbios_is_a_note():
    (found,) = mixed.findings({"a": SAME, "b": SAME | {"vbios": "97"}})
    assert (found.verdict, found.finding.action, found.finding.target) == (PASS, "none", "node")


@pytest.mark.parametrize("odd", [None, 3, [], {}, "", True])
def test_an_odd_value_differs_from_nobody(odd):
    assert mixed.findings({"a": SAME, "b": {"driver": odd, "vbios": odd}}) == []


@given(st.dictionaries(st.text(max_size=3), st.dictionaries(st.sampled_from(["driver", "vbios"]), st.text(max_size=4))))
def test_nothing_of_it_ever_fails(facts):
    assert all(item.verdict in (PASS, WARN) for item in mixed.findings(facts))

"""An instance type that no table has: told as a warning, on EC2 and where the site names it, and never waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpu_answers import answer
from hypothesis import given
from hypothesis import strategies as st
from test_gate_local_gpu import Node

from slurm_ext.aws import catalogue
from slurm_ext.gate import probes, type_rules
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

DMI = "sys/class/dmi/id"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.settings = made.settings._replace(site=made.settings.site._replace(instance_type="auto"))
    (made.root / DMI).mkdir(parents=True)
    return made


def dmi(node: Node, product: str | None, vendor: str = type_rules.EC2_VENDOR) -> None:
    (node.root / DMI / "sys_vendor").write_text(f"{vendor}\n")
    if product is not None:
        (node.root / DMI / "product_name").write_text(product)


def found(node: Node, phase: str = "prolog") -> tuple[str, list[tuple[str, str, str]]]:
    seen = node.look(phase)
    about = [one.finding for one in seen.items if one.finding.id in ("node.type-unknown", "gpu.smi-absent")]
    return seen.verdict.verdict, [(one.id, one.target, one.action) for one in about]


TOLD = [("node.type-unknown", "node", "none")]


@pytest.mark.parametrize("name", [*catalogue.CATALOGUE, "m5.large", "hpc7a.96xlarge", "g5.xlarge", "trn2.48xlarge"])
def test_a_known_type_is_told_of_nowhere(name: str) -> None:
    assert type_rules.is_known(name)
    assert type_rules.judge(name, has_smi=False) == []


@pytest.mark.parametrize(
    "name", ["p9.96xlarge", "p5.foo", "g9.xlarge", "", "p5", "Some Server 9", "p5.48xlarge\x1b", "x" * 999]
)
def test_a_type_that_no_table_has(name: str) -> None:
    (item,) = type_rules.judge(name, has_smi=True)
    assert (item.verdict, item.finding.id, item.finding.action) == (WARN, "node.type-unknown", "none")
    assert item.finding.evidence[0].isprintable()
    assert [item.verdict for item in type_rules.judge(name, has_smi=False)] == [WARN, UNKNOWN]


def test_a_type_with_gpus_of_another_maker_needs_no_nvidia_smi() -> None:
    assert type_rules.judge("g4ad.xlarge", has_smi=False) == []


@given(st.text(max_size=80), st.booleans())
def test_no_name_convicts(name: str, has_smi: bool) -> None:
    assert {item.verdict for item in type_rules.judge(name, has_smi=has_smi)} <= {WARN, UNKNOWN}


@pytest.mark.parametrize("phase", ["prolog", "epilog", "health"])
def test_a_new_type_on_ec2_is_a_warning_in_every_phase(node: Node, phase: str) -> None:
    dmi(node, "p9.96xlarge\n")
    assert found(node, phase) == (WARN, TOLD)
    # What is wrong with what it has is found as ever.
    node.say("cards", answer(change={3: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    assert found(node, phase) == (FAIL, TOLD)


def test_without_nvidia_smi_it_is_unknown(node: Node) -> None:
    dmi(node, "p9.96xlarge\n")
    node.tool.unlink()
    verdict, told = found(node)
    assert (verdict, sorted(told)) == (UNKNOWN, [("gpu.smi-absent", "node", "none"), *TOLD])


@pytest.mark.parametrize("product", ["", "\n", "\x00\xff garbage\n", "no type\n", None, "folder", "link", "fifo"])
def test_a_name_that_cannot_be_read_is_told_and_costs_no_other_answer(node: Node, product: str | None) -> None:
    path = node.root / DMI / "product_name"
    dmi(node, None if product in ("folder", "link", "fifo") else product)
    if product == "folder":
        path.mkdir()
    elif product == "link":
        path.symlink_to("product_name")
    elif product == "fifo":
        os.mkfifo(path)
    seen = node.look()
    assert [one.finding.id for one in seen.items if one.verdict != PASS] == ["node.type-unknown"]
    assert seen.facts.unread == ()
    assert probes.Here(str(node.root), "n0", "prolog", node.settings).instance_type() in ("", (product or "").strip())


@pytest.mark.parametrize("vendor", ["", "Xen", "Dell Inc.", "QEMU", "Amazon"])
@pytest.mark.parametrize("product", ["PowerEdge XE9680\n", "HVM domU\n", "p9.96xlarge\n", None])
def test_a_machine_that_is_not_ec2s_is_told_nothing(node: Node, vendor: str, product: str | None) -> None:
    dmi(node, product, vendor)
    assert found(node) == (PASS, [])


def test_a_machine_without_dmi_is_told_nothing(node: Node) -> None:
    assert found(node) == (PASS, [])


@pytest.mark.parametrize(
    ("told", "wanted"), [("p9.96xlarge", TOLD), ("p5.48xlrage", TOLD), ("m5.large", []), ("p5.48xlarge", [])]
)
def test_what_the_site_names_is_looked_up_whatever_the_machine_is(node: Node, told: str, wanted: object) -> None:
    node.settings = node.settings._replace(site=node.settings.site._replace(instance_type=told))
    assert found(node)[1] == wanted


def test_it_can_be_switched_off(node: Node) -> None:
    dmi(node, "p9.96xlarge\n")
    off = (*node.settings.gate.disabled, "node.type-unknown")
    node.settings = node.settings._replace(gate=node.settings.gate._replace(disabled=off))
    assert found(node) == (PASS, [])

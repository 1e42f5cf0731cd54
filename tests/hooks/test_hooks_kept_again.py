"""What a job's epilog compares with is read after its burn-in: the burn-in's own traffic, errors and heat are not the job's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from simulated_node import Node, csv, uuid
from test_hooks_burnin import Gated

from slurm_ext.gate import efa_live_quick, kept_again, local, smi
from slurm_ext.gate.probes import PROLOG

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root, and trust only what root owns")

CORRECTED = "ecc.errors.corrected.volatile.total"

#: Until the counters alone are asked for, which is done after a burn-in, none was corrected; from then on seven were.
COUNTING = """#!/bin/sh
here={folder}
echo "$*" >> $here/asked
case "$*" in
    *query-compute-apps*) exit 0 ;;
    *persistence_mode*) ;;
    *query-gpu*) touch $here/after ;;
    *) exit 1 ;;
esac
many=0
[ -e $here/after ] && many=7
echo "index, count, pci.bus_id, uuid, driver_version, persistence_mode, {corrected}"
echo "0, 1, 00000000:53:00.0, GPU-00000000-0000-0000-0000-000000000000, 570.133.20, Enabled, $many"
"""


class Counting(Gated):
    """A node whose GPU has errors during the burn-in, and none later."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        super().__init__(folder, libraries)
        self.smi(COUNTING.format(folder=folder, corrected=CORRECTED))

    def asked(self) -> list[str]:
        """Return the questions about GPUs so far."""
        return [line for line in (self.folder / "asked").read_text().splitlines() if "query-gpu" in line]

    def baseline(self, job: str) -> dict[str, object]:
        return json.loads((self.folder / f"run/baselines/{job}.json").read_text())

    def attributed(self, job: str) -> list[dict[str, object]]:
        self.end(job)
        (event,) = [one for one in self.events() if one.get("job") == job and one["event"] == "gate.epilog"]
        return event["data"]["attributed"]


@pytest.fixture
def site(tmp_path: Path, libraries: Path) -> Counting:
    (tmp_path / "site").mkdir()
    return Counting(tmp_path / "site", libraries / "lib")


def test_what_a_burn_in_did_is_not_the_jobs(site: Counting) -> None:
    assert site.ran("1")
    assert len(site.asked()) == 2
    (kept,) = site.baseline("1")["kept"]["gpu"]["gpus"].values()
    assert kept["ecc_corrected"] == 7
    assert site.attributed("1") == []


def test_a_prolog_without_a_run_asks_nothing_twice(site: Counting) -> None:
    assert site.ran("1")
    before = len(site.asked())
    assert not site.ran("2")  # an earlier pass counts again: no traffic
    assert len(site.asked()) == before + 1
    site.set(min_nodes=2)
    site.gate("3")
    assert len(site.asked()) == before + 2
    (site.folder / "after").unlink()
    site.push(site.settings._replace(mode=site.settings.mode._replace(burnin="off")))
    assert site.run("prolog", timeout=60, SLURM_JOB_ID="4", SLURM_JOB_GPUS="0")[0] == 0
    assert len(site.asked()) == before + 3
    (site.folder / "after").touch()
    assert [one["delta"] for one in site.attributed("4")] == [{"ecc_corrected": 7}]


def test_what_the_kernel_says_until_the_burn_in_has_ended_is_not_of_the_jobs_time(site: Counting) -> None:
    assert site.ran("1")
    began = json.loads((site.folder / "run/jobs/1.json").read_text())["began_s"]
    assert began > site.baseline("1")["began_s"]


def test_counters_that_cannot_be_read_again_are_no_baseline_and_the_event_says_so(site: Counting) -> None:
    broken = COUNTING.format(folder=site.folder, corrected=CORRECTED).replace("touch $here/after", "exit 9")
    site.smi(broken)
    assert site.ran("1")
    assert "gpu" not in site.baseline("1")["kept"]
    (event,) = [one for one in site.events() if one["event"] == "gate.prolog"]
    assert event["data"]["not_kept"] == ["gpu"]
    (site.folder / "after").touch()
    assert site.attributed("1") == []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def _counter(node: Node, device: str, name: str) -> Path:
    return Path(os.path.realpath(node.root / "sys/class/infiniband" / device), "ports/1/hw_counters", name)


def test_both_are_taken_in_the_form_that_the_probes_keep(node: Node) -> None:
    kept = local.look(
        node.settings, "n0", phase=PROLOG, job_window=None, deadline_s=10.0, job=local.Job("77", 61001)
    ).kept
    again, lost = kept_again.take(node.settings, "n0", kept)
    assert lost == ()
    assert set(again) == set(kept)
    assert again["system"] == kept["system"]
    for name in ("efa", "gpu"):
        assert again[name]["at_s"] >= kept[name]["at_s"]
        assert {**again[name], "at_s": 0} == {**kept[name], "at_s": 0}
    assert len(again["efa"]["devices"]) == 32
    assert set(again["gpu"]["gpus"]) == {uuid(number) for number in range(8)}


def test_what_grew_meanwhile_is_seen(node: Node) -> None:
    kept = local.look(
        node.settings, "n0", phase=PROLOG, job_window=None, deadline_s=10.0, job=local.Job("77", 61001)
    ).kept
    first, second = sorted(kept["efa"]["devices"])[:2]
    for device, name, text in ((first, "rx_drops", "812\n"), (second, "retrans_pkts", "")):
        path = _counter(node, device, name)
        path.unlink()  # many files of the tree are one
        if text:
            path.write_text(text)
    node.smi(csv({(3, CORRECTED): "5"}))
    again, _ = kept_again.take(node.settings, "n0", kept)
    names = list(efa_live_quick.COUNTERS)
    assert again["efa"]["devices"][first][names.index("rx_drops")] == 812
    assert again["efa"]["devices"][second][names.index("retrans_pkts")] is None  # this driver has it no more
    assert again["gpu"]["gpus"][uuid(3)]["ecc_corrected"] == 5


def test_a_device_that_is_gone_leaves_no_half_baseline(node: Node) -> None:
    kept = {"efa": {"at_s": 1.0, "counters": list(efa_live_quick.COUNTERS), "devices": {"rdmap0s0": [0] * 10}}}
    assert kept_again.take(node.settings, "n0", kept) == ({}, ("efa",))
    assert kept_again.take(node.settings, "n0", {"system": {"boot_s": 1}}) == ({"system": {"boot_s": 1}}, ())
    assert kept_again.take(node.settings, "n0", {"efa": {}}) == ({"efa": {}}, ())


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ("", {}),
        ("nothing at all\n", {}),
        ("/r/sys/class/infiniband/a/hw_counters/cmds_err:x\n", {}),
        ("/r/sys/class/infiniband/a/hw_counters/cmds_err:-3\n", {}),
        ("/r/sys/class/infiniband/a/hw_counters/cmds_err:3\n", {"a": (3, *[None] * 9)}),
        ("/r/sys/class/infiniband/b/hw_counters/cmds_err:3\n", {}),
        ("/r/sys/class/infiniband/a/ports/1/hw_counters/rx_drops:4\n\n", {"a": (None, None, 4, *[None] * 7)}),
    ],
)
def test_lines_of_counters(said: str, values: dict[str, tuple[int | None, ...]]) -> None:
    assert efa_live_quick.counters_in(said, "/r", ["a"]) == values


def test_the_question_holds_no_field_that_a_driver_has_refused() -> None:
    assert set(smi.counted(("counters",))) < set(smi.counted()) <= set(smi.fields())

"""What proves a finding gone: this very target was there, and this very value was read and is good. All else leaves a node out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import finding_ids
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gate import checks, meanings, proof, prove, smi
from slurm_ext.gate.meanings_model import NO, UNKNOWN
from slurm_ext.gate.model import Facts, KernelLine, Smi
from slurm_ext.gate.probes import HEALTH, Probed
from slurm_ext.gate.proof import Case
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.lab import hardware
from slurm_ext.verdict import FAIL

ROW = catalogue.CATALOGUE["p5.48xlarge"]


def build(root: Path, row: InstanceType, mounts: Mapping[str, str]) -> None:
    hardware.build_root(root, row, "n0", "i-0proof", mounts)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("proof"), build)
    made.begin()
    return made


@pytest.fixture(scope="module")
def healthy(bench: Bench) -> Facts:
    return bench.look(HEALTH).facts


def drains() -> list[str]:
    """Return every id that the source can produce and that may convict a node, families included."""
    found = finding_ids.collect()
    listed = []
    for id_ in sorted({*found.whole, *found.begins}):
        meaning = meanings.find(id_)
        if meaning is not None and meaning.convicts not in (NO, UNKNOWN):
            listed.append(id_)
    return listed


#: Warnings by their meaning: which nodes they concern only a person can tell, and none is drained for them.
WARNINGS = ("kernel.log-incomplete",)


@pytest.mark.parametrize("id_", [one for one in drains() if one not in WARNINGS])
def test_every_finding_that_can_drain_has_a_rule_or_says_what_else_it_needs(id_: str) -> None:
    rule = proof.rule_of(id_)
    assert rule is not None, f"proof.RULES: nothing says what must be read to prove {id_} gone"
    assert bool(rule.reads) != bool(rule.needs)


@pytest.mark.parametrize("row", [one for one in checks.every() if "fail" in one.means and one.id != "disk."])
def test_every_check_that_can_fail_has_a_rule(row: checks.Check) -> None:
    assert proof.rule_of(row.id) or [one for one in proof.RULES if one.id.startswith(row.id)]


def test_each_rule_is_there_once_and_is_about_ids_that_exist() -> None:
    ids = [rule.id for rule in proof.RULES]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("id_", ["gpu.new-trouble", "gpu.lost-again", "", "x", "gpu.", "disk.unheard-of", "unheard.of"])
def test_an_id_that_no_rule_knows_is_never_proven_gone(healthy: Facts, id_: str) -> None:
    assert proof.missing(Case(id_, "node", healthy, ROW))


def failing() -> list[prove.Fixture]:
    return [one for one in prove.FIXTURES if one.phase == HEALTH]


@pytest.mark.parametrize("one", failing(), ids=lambda one: one.finding)
def test_what_a_broken_node_is_drained_for_is_proven_gone_by_the_healthy_one(
    bench: Bench, healthy: Facts, one: prove.Fixture
) -> None:
    """Each fault that is simulated: its very target, read again on the mended node, is proof; nothing of it, is none."""
    try:
        one.apply(bench)
        broken = bench.look(HEALTH)
    finally:
        bench.undo()
    for item in broken.items:
        if item.verdict != FAIL or not item.finding.id.startswith(one.finding):
            continue
        rule = proof.rule_of(item.finding.id)
        assert rule is not None
        case = Case(item.finding.id, item.finding.target, healthy, ROW)
        if not rule.needs and not item.finding.id.startswith("disk.scratch-missing"):
            assert proof.missing(case) == "", item
        assert proof.missing(case._replace(facts=Facts())), "nothing was read at all"
        kind = next((word for word in ("gpu:", "disk:", "fs:", "ost:") if case.target.startswith(word)), "")
        if kind and not rule.needs:
            assert proof.missing(case._replace(target=f"{kind}99")), "what is not listed was not read"


def gpus(change: Callable[[list[dict[str, str]]], object], without: tuple[str, ...] = ()) -> Smi:
    """Return what a node with eight GPUs would say, some of it changed."""
    names = smi.fields(without)
    rows = [
        {
            **dict.fromkeys(names, "0"),
            "index": str(number),
            "pci.bus_id": f"00000000:{0x53 + number:02X}:00.0",
            "uuid": f"GPU-{number}",
            "count": "8",
            "memory.used": "1 MiB",
            "mig.mode.current": "Disabled",
            "gpu_recovery_action": "None",
            "fabric.state": "Completed",
            "fabric.status": "Success",
            "remapped_rows.pending": "No",
            "remapped_rows.failure": "No",
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
        }
        for number in range(8)
    ]
    change(rows)
    lines = [", ".join(names), *(", ".join(row.get(name, "") for name in names) for row in rows)]
    return smi.parse_csv("\n".join(lines) + "\n")


#: Finding -> the field of nvidia-smi that tells of it, and the group of a driver that may not know it.
VALUES = {
    "gpu.ecc-uncorrected": ("ecc.errors.uncorrected.volatile.total", ""),
    "gpu.row-remap-failure": ("remapped_rows.failure", ""),
    "gpu.row-remap-pending": ("remapped_rows.pending", ""),
    "gpu.sram-threshold": ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "sram"),
    "gpu.recovery-action": ("gpu_recovery_action", "recovery"),
    "gpu.fabric-failed": ("fabric.status", "fabric"),
    "gpu.fabric-not-ready": ("fabric.state", "fabric"),
    "gpu.memory-leak": ("memory.used", ""),
    "gpu.leftover-processes": ("memory.used", ""),
}


@pytest.mark.parametrize("word", ["[N/A]", "[Unknown Error]", "ERR!", "[ERR!]", "", "[Not Supported]", "[GPU is lost]"])
@pytest.mark.parametrize("id_", VALUES)
def test_a_value_that_cannot_be_read_is_no_proof(id_: str, word: str) -> None:
    field = VALUES[id_][0]
    well = Facts(smi=gpus(lambda rows: None), holders=())
    blind = well._replace(smi=gpus(lambda rows: rows[3].update({field: word})))
    assert proof.missing(Case(id_, "gpu:3", well, ROW)) == ""
    said = proof.missing(Case(id_, "gpu:3", blind, ROW))
    assert "gpu:3" in said
    assert proof.missing(Case(id_, "gpu@0000:56:00", blind, ROW)), "by its address as well"
    assert proof.missing(Case(id_, "node", blind, ROW)), "and of the node all are read"
    if word != "[GPU is lost]":
        assert proof.missing(Case(id_, "gpu:4", blind, ROW)) == "", "another one was read"


@pytest.mark.parametrize("id_", [id_ for id_, (_, group) in VALUES.items() if group])
def test_a_field_that_the_driver_refused_is_no_proof(id_: str) -> None:
    facts = Facts(smi=gpus(lambda rows: None, (VALUES[id_][1],)), holders=())
    assert "could not be read" in proof.missing(Case(id_, "gpu:3", facts, ROW))


GONE: list[tuple[str, Facts, InstanceType | None]] = [
    ("it is not listed", Facts(smi=gpus(lambda rows: rows.pop(3))), ROW),
    ("it is not listed, and the type is not known", Facts(smi=gpus(lambda rows: rows.pop(3))), None),
    ("all are listed, and how many belong here is not known", Facts(smi=gpus(lambda rows: None)), None),
    ("another has its number", Facts(smi=gpus(lambda rows: (rows.pop(7), rows[3].update(index="7")))), ROW),
    ("the tool ended in an error", Facts(smi=gpus(lambda rows: None)._replace(exit_code=255)), ROW),
    ("the tool was killed", Facts(smi=gpus(lambda rows: None)._replace(exit_code=None)), ROW),
    ("the answer was cut", Facts(smi=gpus(lambda rows: None)._replace(complete=False)), ROW),
    ("there was no answer in time", Facts(smi=Smi(timed_out=True)), ROW),
    ("there is no tool", Facts(), ROW),
    ("it has no address", Facts(smi=gpus(lambda rows: rows[3].update({"pci.bus_id": "[N/A]"}))), ROW),
]


@pytest.mark.parametrize(("facts", "row"), [case[1:] for case in GONE], ids=[case[0] for case in GONE])
@pytest.mark.parametrize("id_", [*VALUES, "gpu.lost", "gpu.missing", "gpu.requires-reset", "gpu.driver-mismatch"])
def test_a_gpu_that_is_not_surely_listed_is_no_proof(id_: str, facts: Facts, row: InstanceType | None) -> None:
    assert proof.missing(Case(id_, "node" if id_ == "gpu.missing" else "gpu:3", facts._replace(holders=()), row))


KEPT = "0000:56:00 GPU-3"  # as the record of the drain has gpu:3

#: What a node of an unknown type shows later: whether that proves a value of gpu:3 gone, and whether of gpu@0000:56:00.
LATER: list[tuple[str, Facts, bool, bool]] = [
    ("all are listed", Facts(smi=gpus(lambda rows: None)), True, True),
    (
        "it has another number, another is gone",
        Facts(smi=gpus(lambda rows: (rows.pop(0), rows[2].update(index="2")))),
        True,
        True,
    ),
    ("it is not listed", Facts(smi=gpus(lambda rows: rows.pop(3))), False, False),
    ("another has its number", Facts(smi=gpus(lambda rows: (rows.pop(3), rows[3].update(index="3")))), False, False),
    ("another sits at its address", Facts(smi=gpus(lambda rows: rows[3].update(uuid="GPU-9"))), False, True),
    ("it is lost", Facts(smi=gpus(lambda rows: rows[3].update({"memory.used": "[GPU is lost]"}))), False, False),
    ("the answer was cut", Facts(smi=gpus(lambda rows: None)._replace(complete=False)), False, False),
]


@pytest.mark.parametrize(
    ("facts", "by_record", "by_address"), [case[1:] for case in LATER], ids=[case[0] for case in LATER]
)
@pytest.mark.parametrize("id_", ["gpu.ecc-uncorrected", "gpu.lost", "gpu.requires-reset"])
def test_on_an_unknown_type_the_very_gpu_is_known_by_its_address(
    id_: str, facts: Facts, by_record: bool, by_address: bool
) -> None:
    assert (proof.missing(Case(id_, "gpu:3", facts, None, KEPT)) == "") == by_record
    assert (proof.missing(Case(id_, "gpu@0000:56:00", facts, None)) == "") == by_address
    said = proof.missing(Case(id_, "gpu:3", facts, None))
    assert "it needs a person's word" in said or "whole answer" in said, "which one it was nobody knows"


def test_which_gpu_a_target_numbers_is_kept_at_the_drain() -> None:
    eight = Facts(smi=gpus(lambda rows: None))
    assert proof.gpu_of(eight, "gpu:3") == KEPT
    assert proof.gpu_of(eight, "gpu:9") == proof.gpu_of(eight, "node") == proof.gpu_of(Facts(), "gpu:3") == ""
    assert proof.gpu_of(Facts(smi=gpus(lambda rows: rows[3].update({"pci.bus_id": "[N/A]"}))), "gpu:3") == ""


LOGGED = ("gpu.xid-79", "gpu.off-bus", "gpu.init-failed", "gpu.memory-manager-failed", "nvswitch.sxid-12028")


@pytest.mark.parametrize("id_", LOGGED)
def test_a_kernel_log_that_lost_its_beginning_is_no_proof(id_: str) -> None:
    well = Facts(smi=gpus(lambda rows: None), kernel=())
    case = Case(id_, "gpu@0000:56:00", well, ROW)
    assert proof.missing(case) == ""
    assert "lost its older lines" in proof.missing(case._replace(facts=well._replace(kernel_lost=True)))
    assert "could not be read" in proof.missing(case._replace(facts=well._replace(kernel=None)))
    assert proof.missing(case._replace(facts=well._replace(smi=gpus(lambda rows: rows.pop(3)))))


def kernel(*lines: tuple[float | None, str]) -> tuple[KernelLine, ...]:
    return tuple(KernelLine(text, at_s, since_boot=at_s is not None) for at_s, text in lines)


LOAD = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15"

#: A ring whose oldest lines are gone: what is left, whether some between are gone, too, and whether it is proof.
WRAPPED: list[tuple[str, tuple[KernelLine, ...], bool, bool]] = [
    ("the driver was loaded after them", kernel((12.0, "nvme nvme0: x"), (25.0, LOAD), (26.0, "NVRM: y")), False, True),
    ("some between are gone, too", kernel((25.0, LOAD)), True, False),
    ("it speaks before that", kernel((20.0, "NVRM: z"), (25.0, LOAD)), False, False),
    (
        "a switch speaks before that",
        kernel((20.0, "nvidia-nvswitch0: SXid (PCI:0:0.0): 1"), (25.0, LOAD)),
        False,
        False,
    ),
    ("its being loaded is gone", kernel((90.0, "NVRM: y")), False, False),
    ("nothing of it is left", kernel((90.0, "nvme nvme0: x")), False, False),
    ("it was loaded anew hours later", kernel((9_000.0, LOAD)), False, False),
    ("when that was is not known", kernel((None, LOAD)), False, False),
    ("nothing is left", (), False, False),
]


@pytest.mark.parametrize(("lines", "cut", "proves"), [case[1:] for case in WRAPPED], ids=[case[0] for case in WRAPPED])
@pytest.mark.parametrize("id_", LOGGED)
def test_a_log_is_whole_for_gpus_whose_driver_came_after_what_is_gone(
    id_: str, lines: tuple[KernelLine, ...], cut: bool, proves: bool
) -> None:
    facts = Facts(smi=gpus(lambda rows: None), kernel=lines, kernel_lost=True, kernel_cut=cut)
    assert (proof.missing(Case(id_, "gpu@0000:56:00", facts, ROW)) == "") == proves
    assert proof.missing(Case("pcie.aer-fatal", "gpu@0000:56:00", facts, ROW)), "a bus speaks before any driver"


@pytest.mark.parametrize(
    "name",
    ["proc/mdstat", "proc/meminfo", "proc/self/mountinfo", "sys/class/nvme/nvme3/state", "sys/block/nvme3n1/size"],
)
@pytest.mark.parametrize("kind", ["a folder", "absent"])
def test_a_file_that_is_gone_or_cannot_be_read_proves_nothing(bench: Bench, name: str, kind: str) -> None:
    found = {
        "proc/mdstat": ("raid.inactive", "disk:md0"),
        "proc/meminfo": ("host.memory-missing", "node"),
        "proc/self/mountinfo": ("fs.read-only", "fs:/"),
        "sys/class/nvme/nvme3/state": ("disk.dead", "disk:nvme3n1"),
        "sys/block/nvme3n1/size": ("disk.dead", "disk:nvme3n1"),
    }[name]
    try:
        bench.remove(name)
        if kind == "a folder":
            bench.write(f"{name}/in-its-place", "")
        facts = bench.look(HEALTH).facts
    finally:
        bench.undo()
    assert proof.missing(Case(*found, facts, ROW))


def test_a_probe_that_did_not_answer_proves_nothing(healthy: Facts) -> None:
    for id_, target in (("raid.inactive", "disk:md0"), ("efa.missing", "node"), ("lustre.lbug", "node")):
        assert proof.missing(Case(id_, target, healthy, ROW)) == ""
        assert proof.missing(Case(id_, target, healthy._replace(probed={}), ROW))
        assert proof.missing(Case(id_, target, healthy._replace(probed=dict.fromkeys(healthy.probed, Probed())), ROW))


_PLAIN = st.none() | st.integers() | st.text(max_size=8)
_KEPT = st.recursive(_PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.sampled_from(proof.RULES), st.text(max_size=12), _KEPT)
def test_noise_proves_nothing_and_breaks_nothing(rule: proof.Rule, target: str, kept: object) -> None:
    probed = {name: Probed((), {"read": kept}) for name in ("system", "efa", "lustre")}
    assert proof.missing(Case(rule.id, target, Facts(probed=probed), None))


def test_the_folder_of_the_tests_is_left_as_it_was(bench: Bench) -> None:
    assert os.path.isfile(bench.root / "proc/mdstat")

"""Every check of the live gate has a fixture, and is shown to pass on a healthy node and to find the broken one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.cli.main import main
from slurm_ext.errors import UsageError
from slurm_ext.gate import checks, local, prove, prove_bench
from slurm_ext.gate.probes import PHASES
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.lab import hardware
from slurm_ext.verdict import FAIL, PASS, VERDICTS, WARN


def build(root: Path, row: InstanceType, mounts: Mapping[str, str]) -> None:
    hardware.build_root(root, row, "n0", "i-0proof", mounts)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, build)
    made.begin()
    return made


def test_every_check_is_proven_and_every_finding_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that matters: a check that cannot fail, or cannot pass, is no check; and none may find what no list names."""
    seen: set[tuple[str, str]] = set()
    plain = Bench.look

    def look(bench: Bench, phase: str) -> local.Look:
        found = plain(bench, phase)
        seen.update((item.finding.id, phase) for item in found.items)
        return found

    monkeypatch.setattr(Bench, "look", look)
    assert {proof.check: proof.why for proof in prove.run(build) if proof.result != prove.PROVEN} == {}
    rows = [(row.id, row.phases) for row in checks.every()]
    unannounced = {
        (id_, phase) for id_, phase in seen if not any(id_.startswith(row) and phase in phases for row, phases in rows)
    }
    assert unannounced == set()


def test_every_fixture_is_of_a_check_that_exists() -> None:
    ids = {row.id for row in checks.every()}
    assert sorted({one.check for one in prove.FIXTURES} - ids) == []
    for one in prove.FIXTURES:
        assert one.phase in PHASES
        assert one.verdict in ("", *VERDICTS)
        assert one.finding.startswith(one.check)


@pytest.mark.parametrize("type_", sorted(catalogue.CATALOGUE))
def test_a_healthy_node_of_any_type_is_healthy(tmp_path: Path, type_: str) -> None:
    bench = Bench(tmp_path, build, type_)
    bench.begin()
    for phase in PHASES:
        assert [item for item in bench.look(phase).items if item.verdict != PASS] == []


@pytest.mark.parametrize(
    ("fixture", "why"),
    [
        (Fixture("gpu.missing", "gpu.missing", lambda bench: None), "the broken node does not show gpu.missing"),
        (
            Fixture("gpu.missing", "gpu.missing", lambda bench: bench.without_gpu(0), WARN),
            "shows fail node reboot, not warn",
        ),
        (
            Fixture("gpu.missing", "gpu.missing", lambda bench: bench.without_gpu(0), FAIL, action="replace"),
            "not fail replace",
        ),
    ],
)
def test_a_check_that_does_not_find_it_is_not_proven(fixture: Fixture, why: str) -> None:
    (proof,) = prove.run(build, ["gpu.missing"], [fixture])
    assert (proof.result, proof.good, proof.bad) == (prove.NOT_PROVEN, True, False)
    assert why in proof.why


def test_a_check_that_finds_the_healthy_node_bad_is_not_proven() -> None:
    def sick(root: Path, row: InstanceType, mounts: Mapping[str, str]) -> None:
        build(root, row, mounts)
        hardware.kernel_says(root, "NVRM: GPU 0000:53:00.0: GPU has fallen off the bus.")

    (proof,) = prove.run(sick, ["gpu.off-bus"])
    assert (proof.result, proof.good) == (prove.NOT_PROVEN, False)
    assert proof.why == "the healthy node shows gpu.off-bus"


def test_a_check_without_a_fixture_is_not_proven() -> None:
    (proof,) = prove.run(build, ["gpu.missing"], [])
    assert proof.why == "no fixture breaks a node for it"


def test_nothing_of_a_fixture_is_left(bench: Bench) -> None:
    def tree() -> dict[str, object]:
        paths = [path for path in bench.root.rglob("*") if not path.is_dir()]
        return {str(path): (path.read_text(), path.stat().st_mode) for path in paths}

    before, folders = tree(), sorted(str(path) for path in bench.root.rglob("*") if path.is_dir())
    for one in prove.FIXTURES:
        one.apply(bench)
        bench.undo()
    assert tree() == before
    assert sorted(str(path) for path in bench.root.rglob("*") if path.is_dir()) == folders
    assert bench.settings == bench.healthy
    assert prove_bench.local.__name__ == "slurm_ext.gate.local"


def test_a_fixture_that_is_out_of_date_says_so(bench: Bench) -> None:
    with pytest.raises(ValueError, match="holds no"):
        bench.edit("proc/meminfo", "NoSuchLine", "x")


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["gpu.missing"], {"gpu.missing"}), (["gpu.xid-79"], {"gpu.xid-"}), (["lnet."], None), ([], None)],
)
def test_what_is_meant(names: list[str], expected: set[str] | None) -> None:
    found = {row.id for row in prove.chosen(names)}
    if expected is None:
        expected = {row.id for row in checks.every() if row.id.startswith(tuple(names) or ("",))}
    assert found == expected


@pytest.mark.parametrize("name", ["", "gpu.losst", "zz"])
def test_a_check_that_does_not_exist(name: str) -> None:
    with pytest.raises(UsageError, match="no check is called"):
        prove.chosen([name])


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    assert main(["gate", "prove", "--check", "gpu.missing", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["proven"]) == (1, 1)
    assert data["checks"][0]["good"] is data["checks"][0]["bad"] is True
    assert main(["gate", "prove", "--check", "gpu.mis", "-o", "check,result", "--noheader"]) == 0
    said = capsys.readouterr()
    assert said.out == "gpu.missing  proven\n"
    assert "1 of 1 checks can both pass and fail" in said.err
    assert main(["gate", "prove", "--check", "gpu.losst"]) == 2
    monkeypatch.setattr(prove, "FIXTURES", ())
    monkeypatch.setattr(prove.run, "__defaults__", ((), ()))
    assert main(["gate", "prove", "--check", "gpu.missing"]) == 1
    assert "not proven" in capsys.readouterr().out


def test_no_folder_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prove.tempfile, "tempdir", str(tmp_path))
    prove.run(build, ["gpu.missing"])
    assert os.listdir(tmp_path) == []

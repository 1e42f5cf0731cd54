"""A full scratch folder: left over where no other job is, and perhaps in use where one is."""

from __future__ import annotations

import threading
from pathlib import Path

import live_node
import pytest

from slurm_ext.gate import local, probes, rules, scratch_full
from slurm_ext.gate.local import Job
from slurm_ext.gate.model import Facts, Judged, Probe, judged
from slurm_ext.gate.probes import Here
from slurm_ext.verdict import FAIL, WARN

FULL = Probe("/nvme", "ENOSPC", 0.0)


def stat(pid: int, comm: str) -> str:
    """Return a line of /proc/PID/stat."""
    return f"{pid} ({comm}) S 1 1 1 0 -1 4194560 {'0 ' * 10}1 0 4711 0 0"


def here(folder: Path, phase: str, *, step: str = "", files: tuple[str, ...] = (), job: str = "7") -> Here:
    tree = {"proc/1/stat": stat(1, "init")}
    if step:
        tree |= {"proc/40/stat": stat(40, "slurmstepd"), "proc/40/cmdline": f"slurmstepd: [{step}.0]"}
        tree |= {"proc/40/status": "Name:\tslurmstepd\nUid:\t0\t1000\t0\t1000\n"}
    told = live_node.here(folder, tree, phase=phase, job_id=job)
    run_dir = folder / "run"
    (run_dir / "jobs").mkdir(parents=True, exist_ok=True)
    for name in files:
        (run_dir / "jobs" / name).write_text("{}")
    settings = told.settings._replace(site=told.settings.site._replace(run_dir=str(run_dir)))
    return told._replace(settings=settings)


def of(told: Here) -> Judged:
    facts = Facts(kernel=(), scratch=(FULL,))
    job = Job(told.job_id, 1000)
    (item,) = [one for one in local._judged(facts, told.settings, told, job, 0.0) if one.finding.id == scratch_full.ID]
    return item


@pytest.mark.parametrize("phase", probes.PHASES)
def test_where_no_other_job_is_it_is_left_over(tmp_path: Path, phase: str) -> None:
    job = "" if phase == "health" else "7"
    found = of(here(tmp_path, phase, files=("7.json",) if job else (), job=job))
    assert (found.verdict, found.finding.action) == (FAIL, "drain")


@pytest.mark.parametrize("phase", probes.PHASES)
@pytest.mark.parametrize("seen", ["step", "file"])
def test_where_another_job_is_it_is_told_and_no_more(tmp_path: Path, phase: str, seen: str) -> None:
    job = "" if phase == "health" else "7"
    told = here(
        tmp_path, phase, step="12" if seen == "step" else "", files=("12.json",) if seen == "file" else (), job=job
    )
    found = of(told)
    assert (found.verdict, found.finding.action) == (WARN, "warn")
    assert found.finding.evidence[-1] == "job 12 is here: the space may be in use, so the node is not taken out for it"


def test_its_own_step_is_no_other_job(tmp_path: Path) -> None:
    assert scratch_full.others(here(tmp_path, "epilog", step="7", files=("7.json",))) == ""
    assert scratch_full.others(here(tmp_path, "health", step="7")) == "job 7 is here"


def test_processes_that_cannot_be_read_in_time_take_no_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_full, "LOOK_S", 0.2)
    monkeypatch.setattr(scratch_full, "_others", lambda _: threading.Event().wait())
    assert of(here(tmp_path, "prolog")).verdict == WARN


def test_other_findings_are_as_they_were(tmp_path: Path) -> None:
    told = here(tmp_path, "prolog", step="12")
    items = [judged(FAIL, "disk.scratch-missing", "fs:/nvme", "drain"), *rules.scratch(Probe("/s", "", 50.0), 1.0)]
    assert scratch_full.narrow(items, told) == items

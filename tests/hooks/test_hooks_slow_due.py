"""When a slow check is due, which level it has, how long it says something, and what it proves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_ext.config.model import Settings
from slurm_ext.errors import SlurmError
from slurm_ext.gate import probe_dcgm, probes, slow_result
from slurm_ext.gate.model import judged
from slurm_ext.gate.slow_result import BROKE, DONE, ENDED, LATE, Last
from slurm_ext.hooks import leftovers, passes, slow_due, slow_jobs
from slurm_ext.hooks.slow_due import Now
from slurm_ext.slurm.model import Job
from slurm_ext.verdict import FAIL, PASS

NOW = 1_900_000_000.0
HOUR_S = 3_600.0
NODE = f"a-node-of-{os.getpid()}"  # whose prologs no other test's are
ITEM = judged(FAIL, "dcgm.memory", "gpu:3", "reset-gpu", "dbe")


def settings(slow_check: str = "dcgm-r1", every_h: float = 24.0) -> Settings:
    return Settings()._replace(gate=Settings().gate._replace(slow_check=slow_check, slow_every_h=every_h))


def ended(hours_ago: float, outcome: str = DONE, *, level: str = "r1", boot: str = "b1", took_s: float = 30.0) -> Last:
    end = NOW - hours_ago * HOUR_S
    return Last(level, outcome, end - took_s, end, boot, (ITEM,) if outcome == DONE else ())


IN_USE = Now(NOW, "b1", NOW - 100 * HOUR_S)
OUT = IN_USE._replace(out_since=NOW - 2 * HOUR_S)

DUE: list[tuple[str, str, Last | None, float | None, Now, str]] = [
    ("off", "off", None, None, IN_USE, ""),
    ("off, though the node is out", "off", None, None, OUT, ""),
    ("never yet", "dcgm-r1", None, None, IN_USE, "r1"),
    ("r2 loads the GPUs: not where jobs may start", "dcgm-r2", None, None, IN_USE, "r1"),
    ("r2 on a node that is out", "dcgm-r2", None, None, OUT, "r2"),
    ("an hour ago", "dcgm-r1", ended(1), NOW - HOUR_S, IN_USE, ""),
    ("a day ago", "dcgm-r1", ended(24.1), NOW - 24.1 * HOUR_S, IN_USE, "r1"),
    ("on another boot", "dcgm-r1", ended(1, boot="b0"), NOW - 101 * HOUR_S, IN_USE, "r1"),
    ("it runs", "dcgm-r1", None, NOW - 60, IN_USE, ""),
    ("it could not keep a word, on a full disk", "dcgm-r1", None, NOW - 600, IN_USE, ""),
    ("it could not, long ago", "dcgm-r1", None, NOW - 1.1 * HOUR_S, IN_USE, "r1"),
    ("a newer one runs", "dcgm-r1", ended(30), NOW - 60, IN_USE, ""),
    ("ended for a job just now", "dcgm-r1", ended(0.1, ENDED), NOW - 400, IN_USE, ""),
    ("ended for a job", "dcgm-r1", ended(0.2, ENDED), NOW - 750, IN_USE, "r1"),
    ("broke just now", "dcgm-r1", ended(0.5, BROKE), NOW - 0.51 * HOUR_S, IN_USE, ""),
    ("broke", "dcgm-r1", ended(1.1, BROKE), NOW - 1.2 * HOUR_S, IN_USE, "r1"),
    ("late", "dcgm-r1", ended(1.1, LATE), NOW - 1.2 * HOUR_S, IN_USE, "r1"),
    ("out since: a result from before proves nothing", "dcgm-r1", ended(3), NOW - 3.1 * HOUR_S, OUT, "r1"),
    ("out: proof is an hour old", "dcgm-r1", ended(1), NOW - 1.1 * HOUR_S, OUT, "r1"),
    ("out: proof is fresh", "dcgm-r1", ended(0.2), NOW - 0.3 * HOUR_S, OUT, ""),
    ("out: r1 is no proof where r2 is asked for", "dcgm-r2", ended(0.2), NOW - 0.3 * HOUR_S, OUT, "r2"),
    ("the clock was turned back", "dcgm-r1", None, NOW + HOUR_S, IN_USE, "r1"),
    ("when it booted is not known", "dcgm-r1", ended(1), NOW - HOUR_S, IN_USE._replace(booted_s=None), ""),
]


@pytest.mark.parametrize(
    ("chosen", "last", "begun_s", "now", "level"), [case[1:] for case in DUE], ids=[case[0] for case in DUE]
)
def test_which_level_is_due(chosen: str, last: Last | None, begun_s: float | None, now: Now, level: str) -> None:
    assert slow_due.level(settings(chosen), last, begun_s, now) == level


def counts(last: Last | None, *, chosen: str = "dcgm-r1", boot_id: str = "b1") -> bool:
    return slow_result.counts(settings(chosen).gate, last, now=NOW, boot_id=boot_id)


def test_how_long_a_result_says_something() -> None:
    assert counts(ended(1))
    assert counts(ended(48))
    assert counts(ended(1, LATE))
    assert not counts(ended(50))
    assert not counts(ended(1, ENDED)), "it was ended for a job: it says nothing of the node"
    assert not counts(ended(1, boot="b0")), "another boot"
    assert not counts(ended(1, boot=""), boot_id=""), "which boot is not known"
    assert not counts(ended(1), chosen="off")
    assert not counts(None)


@pytest.mark.parametrize("outcome", [DONE, LATE, BROKE])
def test_a_try_that_was_ended_for_a_job_leaves_what_was_found_before_it(tmp_path: Path, outcome: str) -> None:
    whole = ended(1, outcome)
    ended_try = ended(0.3, ENDED)._replace(said="ended for a job")
    kept = slow_result.after(ended_try, whole)
    assert kept._replace(waits_since_s=0.0, tried_s=0.0, tried_said="") == whole
    assert slow_result.ended_try(kept) == (ended_try.ended_s, "ended for a job")
    assert counts(kept)
    assert not counts(kept, boot_id="b2")
    again = slow_result.after(ended(0.1, ENDED)._replace(said="a job is here: 7"), kept)
    assert slow_result.ended_try(again) == (ended(0.1).ended_s, "a job is here: 7")
    assert again.waits_since_s == kept.waits_since_s == ended_try.began_s
    slow_result.write(str(tmp_path), again)
    assert slow_result.read(str(tmp_path)) == again
    assert slow_result.ended_try(slow_result.after(ended(0.05), again)) is None
    assert slow_result.after(ended(0.3, ENDED, boot="b2"), whole).outcome == ENDED, "of another boot it says nothing"


def test_a_try_that_was_ended_takes_no_proof_away_and_is_made_again_soon() -> None:
    kept = slow_result.after(ended(0.2, ENDED)._replace(said="ended for a job"), ended(1))
    assert slow_due.is_proof(kept, OUT)
    begun_s = NOW - 750
    assert slow_due.level(settings("dcgm-r1"), kept, begun_s, IN_USE) == "r1"
    assert slow_due.level(settings("dcgm-r1"), kept, NOW - 400, IN_USE) == "", "it runs"
    fresh = slow_result.after(ended(0.1, ENDED), ended(1))
    assert slow_due.level(settings("dcgm-r1"), fresh, NOW - 400, IN_USE) == "", "not sooner than after ten minutes"


def test_a_result_is_read_as_it_was_written_and_what_has_another_form_is_none(tmp_path: Path) -> None:
    last = ended(1)
    slow_result.write(str(tmp_path), last)
    assert slow_result.read(str(tmp_path)) == last
    for text in ("", "{", "[]", "null", '{"schema": 1}', '{"schema": 2}', "[" * 100_000):
        (tmp_path / slow_result.FILE).write_text(text)
        assert slow_result.read(str(tmp_path)) is None
    slow_result.write(str(tmp_path), last)
    (tmp_path / slow_result.FILE).chmod(0o666)
    assert slow_result.read(str(tmp_path)) is None, "others may write it"


def test_what_a_result_proves() -> None:
    assert slow_due.is_proof(ended(1), OUT)
    assert slow_due.is_proof(ended(1, level="r2"), OUT, level="r2")
    assert not slow_due.is_proof(ended(1), OUT, level="r2")
    assert not slow_due.is_proof(ended(3), OUT)
    assert not slow_due.is_proof(ended(1, LATE), OUT)
    assert not slow_due.is_proof(ended(1, boot="b0"), OUT)
    assert not slow_due.is_proof(ended(1), IN_USE)
    assert not slow_due.is_proof(None, OUT)


def smi(root: Path, script: str) -> None:
    path = root / "usr/bin/nvidia-smi"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_whether_a_node_is_idle_is_looked_at_where_jobs_programs_and_prologs_are(tmp_path: Path) -> None:
    run_dir, root = tmp_path / "run", tmp_path / "root"
    (run_dir / "jobs").mkdir(parents=True)
    smi(root, "exit 0")
    assert slow_due.not_idle(str(run_dir), str(root), NODE) == ""
    (run_dir / "jobs" / "7.json").write_text("{}")
    assert slow_due.not_idle(str(run_dir), str(root), NODE) == "a job is here: 7"
    (run_dir / "jobs" / "7.json").unlink()
    smi(root, "echo 4711; echo 4712")
    assert slow_due.not_idle(str(run_dir), str(root), NODE) == "programs use the GPUs: pid 4711, 4712"
    smi(root, "echo 'No devices were found' >&2; exit 6")
    assert slow_due.not_idle(str(run_dir), str(root), NODE).startswith("which programs use the GPUs is not known")


def idle_by_slurm(run_dir: Path, root: Path, over: tuple[str, ...]) -> str:
    asked: list[str] = []

    def ask(job_ids: Sequence[str]) -> tuple[str, ...]:
        asked.extend(job_ids)
        return over

    return slow_due.not_idle(str(run_dir), str(root), NODE, over=ask) + f" ({' '.join(asked)})"


def test_a_job_whose_epilog_was_killed_keeps_no_slow_check_away(tmp_path: Path) -> None:
    run_dir, root = tmp_path / "run", tmp_path / "root"
    (run_dir / "jobs").mkdir(parents=True)
    smi(root, "exit 0")
    assert idle_by_slurm(run_dir, root, ()) == " ()", "without a file nobody is asked"
    (run_dir / "jobs" / "990007.json").write_text("{}")
    (run_dir / "jobs" / "990008.json").write_text("{}")
    assert idle_by_slurm(run_dir, root, ("990007", "990008")) == " (990007 990008)"
    assert idle_by_slurm(run_dir, root, ("990007",)) == "a job is here: 990008 (990007 990008)"

    def silent(_: Sequence[str]) -> tuple[str, ...]:
        raise SlurmError("squeue: no answer")

    assert (
        slow_due.not_idle(str(run_dir), str(root), NODE, over=silent) == "a job may be here: 990007; squeue: no answer"
    )


def test_a_job_with_a_step_here_is_asked_about_nowhere(tmp_path: Path, stepd: Path) -> None:
    run_dir, root = tmp_path / "run", tmp_path / "root"
    (run_dir / "jobs").mkdir(parents=True)
    (run_dir / "jobs" / "990777.json").write_text("{}")
    smi(root, "exit 0")
    with subprocess.Popen(["slurmstepd: [990777.0]"], executable=stepd, stdin=subprocess.PIPE) as step:
        until(lambda: "990777" in slow_due._steps())
        assert idle_by_slurm(run_dir, root, ("990777",)) == "a job is here: 990777 ()"
        step.communicate(b"")
    assert idle_by_slurm(run_dir, root, ("990777",)) == " (990777)"


def until(true: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def stepd(tmp_path: Path) -> Path:
    """A program of slurmstepd's name that waits for the end of its input."""
    path = tmp_path / "slurmstepd"
    shutil.copy2("/bin/cat", path)
    return path


@pytest.mark.parametrize(
    ("job", "here"),
    [
        (Job("7", state="RUNNING", nodes="n[1-4]"), True),
        (Job("7", state="RUNNING", nodes="n[5-8]"), False),  # requeued, and elsewhere by now
        (Job("7", state="RUNNING", nodes="n[1"), True),
        (Job("7", state="SUSPENDED", nodes="n2"), True),
        (Job("7", state="A_NEW_WORD", nodes="n2"), True),
        (Job("7", state="COMPLETED", nodes="n2"), False),
        (Job("7", state="COMPLETED", flags=("COMPLETING",), nodes="n2"), True),
        (Job("7", state="COMPLETING", flags=("COMPLETING",), nodes="n2"), True),
        (Job("7", state="PENDING"), False),
        (Job("7", state="PENDING", flags=("COMPLETING",), nodes="n2"), True),
    ],
)
def test_whether_a_job_is_on_a_node_by_what_slurm_says(job: Job, here: bool) -> None:
    assert slow_jobs.is_on(job, "n2") is here


def burnin_file(run_dir: Path, name: str, processes: list[list[int]]) -> None:
    (run_dir / "burnin").mkdir(parents=True, exist_ok=True)
    path = run_dir / "burnin" / name
    path.write_text(json.dumps({"job_id": "7", "processes": processes}))
    path.chmod(0o644)


def test_what_a_burn_in_left_behind_keeps_no_slow_check_away(tmp_path: Path) -> None:
    run_dir, root = tmp_path / "run", tmp_path / "root"
    smi(root, "exit 0")
    (run_dir / "burnin").mkdir(parents=True)
    one = passes.Pass(passes.of_nodes([NODE]), passes.boottime(), "b1", "stack", strict=False, attempt="7-0")
    assert passes.remember(str(run_dir), one) == ""
    passes.forget(str(run_dir), boot_id="b1", why="job 7 ended with 1:0")
    burnin_file(run_dir, "cut.json", [])
    (run_dir / "burnin" / "cut.json").write_text('{"job_id": "7", "proc')
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        start = leftovers.start_ticks(process.pid)
        assert start is not None
        burnin_file(run_dir, "7-0.json", [[process.pid, start]])
        assert slow_due.not_idle(str(run_dir), str(root), NODE) == f"a burn-in is here: pid {process.pid}"
        burnin_file(run_dir, "7-0.json", [[process.pid, start + 1]])
        assert slow_due.not_idle(str(run_dir), str(root), NODE) == "", "another process has the number"
        burnin_file(run_dir, "7-0.json", [[process.pid, start]])
        process.communicate(b"")
    assert sorted(path.name for path in (run_dir / "burnin").iterdir()) == [
        "7-0.json",
        "cut.json",
        "passed.json",
        "void.json",
    ]
    assert slow_due.not_idle(str(run_dir), str(root), NODE) == ""


def test_a_check_that_is_kept_away_for_long_is_told_of(tmp_path: Path) -> None:
    gate = settings(every_h=24).gate

    def waits(hours: float, last: Last | None) -> str:
        item = slow_result.overdue(gate, last, now=NOW + hours * HOUR_S, boot_id="b1")
        assert item is None or (item.verdict, item.finding.action) == (PASS, "none")
        return item.finding.evidence[0] if item is not None else ""

    first = slow_result.after(ended(0, ENDED)._replace(said="a job is here: 7"), None)
    later = slow_result.after(ended(-40, ENDED)._replace(said="a job is here: 8"), first)
    assert later.waits_since_s == first.waits_since_s == first.began_s
    assert waits(47, later) == ""
    assert waits(49, later) == "no slow check came to its end for 49 h, and one is due every 24 h: a job is here: 8"
    slow_result.write(str(tmp_path), later)
    assert slow_result.read(str(tmp_path)) == later
    done = slow_result.after(ended(-41), later)
    assert waits(1000, done) == waits(1000, None) == ""
    assert waits(49, later._replace(boot_id="b0")) == ""
    assert waits(49, later._replace(waits_since_s=0.0)) == "", "of an older release"
    assert slow_result.after(ended(-42, ENDED), done).waits_since_s > done.began_s
    kept = slow_result.after(ended(-82, ENDED)._replace(said="a job is here: 9"), done)
    assert kept.outcome == DONE
    assert waits(120, kept) == ""
    assert waits(131, kept) == "no slow check came to its end for 49 h, and one is due every 24 h: a job is here: 9"
    assert slow_result.after(ended(-1000, ENDED, boot="b2"), later).waits_since_s > later.waits_since_s
    assert slow_result.overdue(settings("off").gate, later, now=NOW + 99 * HOUR_S, boot_id="b1") is None


def test_the_health_look_has_the_note_and_no_look_of_a_job(tmp_path: Path) -> None:
    root, run_dir = tmp_path / "root", tmp_path / "run"
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("b1\n")
    run_dir.mkdir()
    chosen = settings()._replace(site=Settings().site._replace(run_dir=str(run_dir)))
    began_s = time.time() - 49 * HOUR_S
    slow_result.write(str(run_dir), Last("r1", ENDED, began_s, began_s + 1, "b1", said="why", waits_since_s=began_s))
    probed = probe_dcgm.look(probes.Here(str(root), NODE, "health", chosen))
    assert [(item.verdict, item.finding.id) for item in probed.items] == [(PASS, "dcgm.overdue")]
    assert probes.PROBES["dcgm"] == ("health",)
    item = judged(FAIL, "dcgm.memory", "gpu:3", "reset-gpu", "it says so")
    done = Last("r1", DONE, time.time() - 60, time.time() - 30, "b1", (item,), tried_s=time.time(), tried_said="why")
    slow_result.write(str(run_dir), done._replace(waits_since_s=began_s))
    probed = probe_dcgm.look(probes.Here(str(root), NODE, "health", chosen))
    assert [(item.verdict, item.finding.id) for item in probed.items] == [(FAIL, "dcgm.memory"), (PASS, "dcgm.overdue")]


def test_a_prolog_that_runs_is_seen(tmp_path: Path) -> None:
    root, hook = tmp_path / "root", tmp_path / "fmslurm-hook"
    smi(root, "exit 0")
    hook.write_text("import sys, time\nprint(1, flush=True)\nsys.stdin.read()\n")
    with subprocess.Popen(
        [sys.executable, "-IS", str(hook), "prolog", "--share", "/x"],
        env={"SLURMD_NODENAME": NODE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as prolog:
        assert prolog.stdout is not None
        assert prolog.stdout.readline() == b"1\n"
        assert slow_due.not_idle(str(tmp_path), str(root), NODE).startswith("a prolog runs: pid ")
        assert slow_due.not_idle(str(tmp_path), str(root), "another-node") == ""
        prolog.communicate(b"")


def test_dcgmi_is_looked_for_where_the_machine_has_it(tmp_path: Path) -> None:
    assert slow_due.dcgmi_path(str(tmp_path)) == ""
    path = tmp_path / "usr/bin/dcgmi"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    assert slow_due.dcgmi_path(str(tmp_path)) == ""
    path.chmod(0o755)
    assert slow_due.dcgmi_path(str(tmp_path)) == str(path)
    assert slow_due.argv(str(path), "r2") == (str(path), "diag", "-r", "2", "-j")
    assert os.path.isabs(slow_due.dcgmi_path("/") or "/")


def test_when_efas_loopback_is_due() -> None:
    chosen = settings("off")
    on = chosen._replace(gate=chosen.gate._replace(efa_loopback=True))
    done = ended(1, level="efa")
    assert not slow_due.efa(chosen, None, None, IN_USE)
    assert slow_due.efa(on, None, None, IN_USE)
    assert not slow_due.efa(on, done, NOW - HOUR_S, IN_USE)
    assert slow_due.efa(on, ended(25, level="efa"), NOW - 25 * HOUR_S, IN_USE)
    assert slow_due.efa(on, done, NOW - 1.1 * HOUR_S, OUT), "out: proof is an hour old"
    assert not slow_due.efa(on, ended(0.2, level="efa"), NOW - 0.3 * HOUR_S, OUT), "out: proof is fresh"
    assert slow_result.counts(on.gate, done, now=NOW, boot_id="b1")
    assert not slow_result.counts(chosen.gate, done, now=NOW, boot_id="b1")


def test_each_kind_of_slow_check_keeps_its_own_result(tmp_path: Path) -> None:
    dcgm, efa = ended(1), ended(2, level="efa")._replace(passed=("efa:a",))
    slow_result.write(str(tmp_path), dcgm)
    slow_result.write(str(tmp_path), efa)
    assert slow_result.read(str(tmp_path)) == dcgm
    assert slow_result.read(str(tmp_path), slow_result.EFA) == efa
    (tmp_path / "slow.json").write_text((tmp_path / "slow-efa.json").read_text())
    assert slow_result.read(str(tmp_path)) is None, "it is another kind's"
    assert [slow_result.kind_of(id_) for id_ in ("dcgm.memory", "efa.loopback-failed", "efa.missing")] == [
        "dcgm",
        "efa",
        "",
    ]

"""When a slow check is due, which level it has, how long it says something, and what it proves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_ext.config.model import Settings
from slurm_ext.gate import slow_result
from slurm_ext.gate.model import judged
from slurm_ext.gate.slow_result import BROKE, DONE, ENDED, LATE, Last
from slurm_ext.hooks import slow_due
from slurm_ext.hooks.slow_due import Now
from slurm_ext.verdict import FAIL

NOW = 1_900_000_000.0
HOUR_S = 3_600.0
NODE = "a-node-of-this-test"
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
    assert slow_due.not_idle(str(run_dir), str(root), NODE) == "a job is here: 7.json"
    (run_dir / "jobs" / "7.json").unlink()
    smi(root, "echo 4711; echo 4712")
    assert slow_due.not_idle(str(run_dir), str(root), NODE) == "programs use the GPUs: pid 4711, 4712"
    smi(root, "echo 'No devices were found' >&2; exit 6")
    assert slow_due.not_idle(str(run_dir), str(root), NODE).startswith("which programs use the GPUs is not known")


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

"""The demo as a newcomer runs it: every promise kept; interrupted, it leaves nothing; and its job runs under plain sbatch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_ext.lab import clean
from slurm_ext.lab.cluster import Lab

pytestmark = pytest.mark.cluster

SOURCE = Path(__file__).resolve().parents[2]


def demo(folder: Path, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "slurm_ext.cli", "lab", "demo", "--dir", str(folder), *more]
    return subprocess.Popen(
        argv, cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def is_gone(folder: Path) -> bool:
    return not folder.exists() and not clean.leftovers(str(folder))


def test_every_promise_is_kept_and_nothing_stays(new_lab: type[Lab], short_dir: Path) -> None:
    playing = demo(short_dir / "lab", "--json")
    out, _ = playing.communicate(timeout=300)
    told = json.loads(out.strip().splitlines()[-1])
    assert [promise for promise in told["promises"] if not promise["kept"]] == [], out
    assert playing.returncode == 0
    assert len(told["promises"]) == 18
    assert "hardware is simulated" in out
    assert "\x1b" not in out  # no terminal: plain lines
    assert is_gone(short_dir / "lab")


@pytest.mark.parametrize(
    ("line", "number"),
    [
        pytest.param("1. A cluster", signal.SIGINT, marks=pytest.mark.soak),
        pytest.param("2. Install", signal.SIGTERM, marks=pytest.mark.soak),
        ("is queued", signal.SIGINT),  # when there is most to take away
    ],
)
def test_interrupted_it_leaves_nothing(new_lab: type[Lab], short_dir: Path, line: str, number: signal.Signals) -> None:
    playing = demo(short_dir / "lab")
    assert playing.stdout is not None
    for said in playing.stdout:
        if line in said:
            break
    else:
        pytest.fail(f"the demo ended before {line!r}")
    os.kill(playing.pid, number)
    playing.communicate(timeout=240)
    assert playing.returncode in (128 + number, -number)
    assert is_gone(short_dir / "lab")


def test_the_job_runs_under_plain_sbatch(lab: Lab, tmp_path: Path) -> None:
    # Submitted with nothing of ours: no token, no hooks, no checkpoint folder but the one it is given.
    folder = lab.path("lustre", "plain")
    folder.mkdir()
    env = {
        **lab.env(),
        "PYTHON": sys.executable,
        "TRAIN": str(SOURCE / "examples/train.py"),
        "STEPS": "20",
        "CHECKPOINT_EVERY": "10",
        "STEP_MS": "0",
        "OUT": str(folder / "weights.npy"),
        "FMSLURM_CKPT_DIR": str(folder / "checkpoints"),
        "LD_LIBRARY_PATH": str(lab.path("lib")),
    }
    argv = [
        "sbatch",
        "--wait",
        "-N2",
        f"--output={folder}/train.log",
        f"--chdir={folder}",
        str(SOURCE / "examples/train.sbatch"),
    ]
    began = time.monotonic()
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    log = (folder / "train.log").read_text() if (folder / "train.log").exists() else ""
    assert result.returncode == 0, f"{result.stderr} after {time.monotonic() - began:.0f} s: {log}"
    assert (folder / "weights.npy").exists()
    assert "finished: step 20" in log


def test_it_lets_a_lab_be_that_is_there_already(lab: Lab) -> None:
    refused = demo(Path(lab.dir))
    out, _ = refused.communicate(timeout=240)
    assert refused.returncode == 2, out
    assert lab.run(["scontrol", "ping"]).ok

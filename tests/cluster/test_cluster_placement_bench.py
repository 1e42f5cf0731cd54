"""bench/placement as people call it, small: real daemons, a few jobs, and figures that say what Slurm was told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from slurm_ext.lab import daemons

BENCH = str(Path(__file__).parents[2] / "bench" / "placement")


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BENCH, *options], capture_output=True, text=True, timeout=300, check=False)


def test_jobs_run_closer_together_where_slurm_knows_the_fabric() -> None:
    if lacking := daemons.missing():
        pytest.skip(f"no Slurm here: it needs {', '.join(lacking)}")
    options = ("--nodes=64", "--loads=50", "--window-s=6", "--mean-s=2")
    done = bench("--arms=flat,tree-3,block", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    figures = last["figures"]
    assert last["bench"] == "placement"
    assert 1 <= figures["leaves_over_ideal_tree-3"] < figures["leaves_over_ideal_flat"]
    has_blocks = daemons.slurm_version()[0] >= (23, 11)
    assert ("leaves_over_ideal_block" in figures) == has_blocks
    assert ("block: not possible here" in done.stdout) == (not has_blocks)
    assert {f"wait_p95_{arm}" for arm in ("flat", "tree-3")} <= figures.keys()


@pytest.mark.parametrize(
    ("options", "word"), [(["--arms=tree-9"], "tree-9"), (["--nodes=8"], "--nodes"), (["--loads=0"], "--loads")]
)
def test_an_option_that_makes_no_sense_is_refused(options: list[str], word: str) -> None:
    done = bench("--inside=/nowhere", *options)
    assert done.returncode == 2
    assert word in done.stderr

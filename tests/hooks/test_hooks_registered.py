"""A run folder that takes no mark: the age of slurmd has to do, and the health check goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_ext.hooks import registered
from slurm_ext.hooks.registered import Slurmd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of two pages on a file system of its own."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    argv = ["mount", "-t", "tmpfs", "-o", "size=8k,mode=755", "none", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def slurmd(age_s: float) -> Slurmd:
    now = registered.age_s(Slurmd(1, 0))
    return Slurmd(1, int((now - age_s) * os.sysconf("SC_CLK_TCK")))


@pytest.mark.parametrize("old_mark", ["", '{"pid": 2, "start": 3}', "{"])
def test_where_no_mark_can_be_written_an_old_slurmd_counts_as_registered(run_dir: Path, old_mark: str) -> None:
    old, young = slurmd(registered.OLD_S + 60), slurmd(registered.OLD_S - 60)
    if old_mark:
        (run_dir / registered.MARK).write_text(old_mark)
    assert not registered.may_ask(str(run_dir), old), "it can be written: the next run knows better"
    (run_dir / "fill").write_bytes(b"x" * (4096 if old_mark else 8192))
    registered.note(str(run_dir), old)
    assert registered.may_ask(str(run_dir), old)
    assert not registered.may_ask(str(run_dir), young)
    assert {path.name for path in run_dir.iterdir()} <= {"fill", registered.MARK, f"{registered.MARK}~"}
    (run_dir / "fill").unlink()
    assert not registered.may_ask(str(run_dir), old)
    registered.note(str(run_dir), old)
    assert registered.may_ask(str(run_dir), old)


def test_the_age_is_the_kernels_word() -> None:
    from slurm_ext.hooks.leftovers import start_ticks

    start = start_ticks(os.getpid())
    assert start is not None
    assert 0 <= registered.age_s(Slurmd(os.getpid(), start)) < registered.age_s(Slurmd(1, 0))

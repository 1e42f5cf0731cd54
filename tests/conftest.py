"""What holds for all tests, and what many of them need."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from slurm_ext.errors import LackingError
from slurm_ext.lab import frozen, standins

# A loaded machine makes any example slow: how long one takes says nothing here. CI tries the same examples each time, so that a
# change is held to what it changed; every other run looks for new ones.
settings.register_profile("fmslurm", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("fmslurm")

# Below nohup, or in a shell's background, programs are born deaf to these, and so would be all that tests start and stop.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


#: Time limits (seconds) of ours on disks and on children, which hooks need: a machine that is busy with other tests needs more.
_LIMITS = {
    "slurm_ext.burnin.history": ("LOCK_S",),
    "slurm_ext.burnin.surroundings": ("READ_S",),
    "slurm_ext.doctor.collect": ("PROBE_S",),
    "slurm_ext.hooks.acked": ("SHARE_S",),
    "slurm_ext.hooks.dcgm_mapping": ("TIMEOUT_S",),
    "slurm_ext.hooks.job_memory": ("TIMEOUT_S",),
    "slurm_ext.hooks.job_processes": ("TIMEOUT_S",),
    "slurm_ext.hooks.passes": ("LOOK_S",),
    "slurm_ext.hooks.restore": ("LOOK_S",),
    "slurm_ext.hooks.trouble": ("WRITE_S",),
    "slurm_ext.resume.observe": ("TRAIL_TIMEOUT_S",),
    "slurm_ext.resume.serve": ("CALLER_TIMEOUT_S",),
}

#: What takes such a limit as `timeout_s`, with a default of a few seconds.
_CALLS = (
    "slurm_ext.aws.imds",
    "slurm_ext.burnin.history",
    "slurm_ext.config.snapshot",
    "slurm_ext.gate.versions",
    "slurm_ext.resume.logs",
    "slurm_ext.resume.serve",
    "slurm_ext.shared",
    "slurm_ext.slurm.acks",
    "slurm_ext.slurm.drain_record",
    "slurm_ext.slurm.ledger",
    "slurm_ext.slurm.suppressed",
    "slurm_ext.staging.find",
    "slurm_ext.staging.nvme",
)

#: Enough on any machine.
PATIENT_S = 60.0


@functools.cache
def _limits(loaded: frozenset[str]) -> list[tuple[dict[str, Any], str]]:
    """Return where such limits stand in the modules that tests have imported."""
    found: list[tuple[dict[str, Any], str]] = []
    for name, limits in _LIMITS.items():
        if name in loaded:
            found += [(vars(sys.modules[name]), limit) for limit in limits]
    for name in _CALLS:
        for call in list(vars(sys.modules[name]).values()) if name in loaded else ():
            usual = getattr(call, "__kwdefaults__", None) or {}
            if getattr(call, "__module__", "") == name and "timeout_s" in usual:
                found.append((usual, "timeout_s"))
    return found


@pytest.fixture(autouse=True)
def disks_take_their_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give our own calls time, but for tests in which something hangs: there what hooks wait is tried."""
    if not {"hang", "hangs", "silent", "stopped"}.intersection(request.node.originalname.split("_")):
        for where, name in _limits(frozenset({*_LIMITS, *_CALLS}.intersection(sys.modules))):
            monkeypatch.setitem(where, name, max(PATIENT_S, where[name]))


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-ins once for all tests of a run; return the folder above `lib` and `bin`."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "standins"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        standins.build(str(folder / "lib"), str(folder / "bin"))
    return folder


#: Folders of frozen file systems, named by the process that made them. Not below the temporary folder of the tests: a run that
#: is killed leaves one behind, and whoever then clears away old folders would sleep in the kernel.
_FROZEN = "fmslurm-frozen-"


def pytest_sessionstart() -> None:
    """Thaw and unmount what runs that were killed have left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FROZEN}*"):
        owner = folder.name.removeprefix(_FROZEN).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists() and folder.stat().st_uid == os.geteuid():
            _unfreeze(folder)


def _unfreeze(folder: Path) -> None:
    frozen.remove(folder / frozen.FOLDER)
    with contextlib.suppress(OSError):
        folder.rmdir()


@pytest.fixture
def stuck() -> Iterator[Path]:
    """A file that whoever writes to sleeps in the kernel; thawed, unmounted and detached in any case."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_FROZEN}{os.getpid()}-"))
    try:
        yield frozen.make(folder / frozen.FOLDER)
    except LackingError as exc:
        pytest.skip(f"no D state here: {exc}")
    finally:
        _unfreeze(folder)

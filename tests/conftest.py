"""What holds for all tests, and what many of them need."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from slurm_ext.errors import LackingError
from slurm_ext.lab import frozen, standins

# A loaded machine makes any example slow: how long one takes says nothing here.
settings.register_profile("fmslurm", deadline=None)
settings.load_profile("fmslurm")

# Below nohup, or in a shell's background, programs are born deaf to these, and so would be all that tests start and stop.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-ins once for all tests of a run; return the folder above `lib` and `bin`."""
    folder = tmp_path_factory.mktemp("standins")
    standins.build(str(folder / "lib"), str(folder / "bin"))
    return folder


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Path]:
    """A file that whoever writes to sleeps in the kernel; thawed, unmounted and detached in any case."""
    folder = tmp_path / "frozen"
    try:
        yield frozen.make(folder)
    except LackingError as exc:
        pytest.skip(f"no D state here: {exc}")
    finally:
        frozen.remove(folder)

"""Has this slurmd registered? Its first HealthCheckProgram runs before that, when every Slurm command hangs and slurmd with it.

slurmd runs the program once while it starts, waits for it, and registers then (slurmd.c, `main`); the next run comes an interval
later. So a run may ask Slurm only where an earlier run of the very same slurmd, by process id and start time, has come to its
end. The age of slurmd would not do: one without a configuration file waits for the controller before that first run, as long
as it takes. Only where the run folder takes no mark (it is full) it has to do: after OLD_S a registered slurmd is by far the
likelier, and a wrong guess costs that run its bounded calls. Whoever runs the program by hand is below no slurmd and may ask.
Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.typed import NamedTuple

MARK = "health-slurmd.json"
SLURMD = "slurmd"

#: The program, a shell or two, our supervisor and its worker lie between: so far up a slurmd is looked for.
GENERATIONS = 12

#: A slurmd that is older (seconds) counts as registered where the run folder takes no mark.
OLD_S = 900.0


class Slurmd(NamedTuple):
    """The slurmd above us: process id, and when it began (clock ticks since boot)."""

    pid: int
    start: int


def above(pid: int | None = None) -> Slurmd | None:
    """Return the slurmd that we are a descendant of, None where there is none."""
    pid = os.getppid() if pid is None else pid
    for _ in range(GENERATIONS):
        if pid <= 1:
            return None
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
                before, _, after = stream.read(4096).rpartition(")")
            fields = after.split()
            if before.partition("(")[2] == SLURMD:
                return Slurmd(pid, int(fields[19]))
            pid = int(fields[1])
        except (OSError, IndexError, ValueError):
            return None
    return None


def may_ask(run_dir: str, slurmd: Slurmd | None) -> bool:
    """Say whether Slurm may be asked in this run."""
    if slurmd is None:
        return True
    try:
        said = json.loads(read_trusted(os.path.join(run_dir, MARK), max_bytes=4096))
        if (said["pid"], said["start"]) == tuple(slurmd):
            return True
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UntrustedFileError):
        pass
    return age_s(slurmd) > OLD_S and not _takes_marks(run_dir)


def age_s(slurmd: Slurmd) -> float:
    """Return how long ago a slurmd began (seconds)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - slurmd.start / os.sysconf("SC_CLK_TCK")


def _takes_marks(run_dir: str) -> bool:
    """Say whether a mark can be written, under a name that means nothing."""
    path = os.path.join(run_dir, f"{MARK}.try")
    try:
        write_passing(path, json.dumps(Slurmd(0, 0)._asdict()))
    except OSError:
        return False
    finally:
        for name in (path, path + "~"):
            with contextlib.suppress(OSError):
                os.unlink(name)
    return True


def note(run_dir: str, slurmd: Slurmd | None) -> None:
    """Write down that a run of this slurmd has come to its end."""
    if slurmd is None:
        return
    try:
        write_passing(os.path.join(run_dir, MARK), json.dumps(slurmd._asdict()))
    except OSError:
        return  # a later run goes by the age of this slurmd

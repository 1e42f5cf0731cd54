"""Has this slurmd registered? Its first HealthCheckProgram runs before that, when every Slurm command hangs and slurmd with it.

slurmd runs the program once while it starts, waits for it, and registers then (slurmd.c, `main`); the next run comes an interval
later. So a run may ask Slurm only where an earlier run of the very same slurmd, by process id and start time, has come to its
end. The age of slurmd would not do: one without a configuration file waits for the controller before that first run, as long
as it takes. Whoever runs the program by hand is below no slurmd and may ask. Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os

from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.typed import NamedTuple

MARK = "health-slurmd.json"
SLURMD = "slurmd"

#: The program, a shell or two, our supervisor and its worker lie between: so far up a slurmd is looked for.
GENERATIONS = 12


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
        return (said["pid"], said["start"]) == tuple(slurmd)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UntrustedFileError):
        return False


def note(run_dir: str, slurmd: Slurmd | None) -> None:
    """Write down that a run of this slurmd has come to its end."""
    if slurmd is None:
        return
    try:
        write_passing(os.path.join(run_dir, MARK), json.dumps(slurmd._asdict()))
    except OSError:
        return  # then no run of this slurmd asks Slurm: nothing is drained or undone between jobs

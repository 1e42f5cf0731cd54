"""The only room that speaks to Slurm. `connect` picks the backend."""

from __future__ import annotations

from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError
from slurm_ext.typed import TYPE_CHECKING

if TYPE_CHECKING:  # a hook that only reads a hostlist must not import a backend
    from slurm_ext.slurm.protocol import Slurm

#: How long (seconds) one call may take: a healthy controller answers in milliseconds; a dead one makes commands retry for minutes.
TIMEOUT_S = 10.0


def connect(settings: Settings, *, timeout_s: float = TIMEOUT_S) -> Slurm:
    """Return the backend that `site.backend` names; `auto` is the command line. `timeout_s` bounds every single call.

    Raise LackingError where the named backend is not there. Nothing is asked of Slurm yet.
    """
    wanted = settings.site.backend
    if wanted == "pyslurm":
        # GPL-2.0-only, locked to one release, and its import may end a process: only where it is asked for by name.
        from slurm_ext.slurm.pyslurm_backend import PyslurmBackend

        return PyslurmBackend(settings, timeout_s=timeout_s)
    if wanted == "slurmrestd":
        raise LackingError("the slurmrestd backend is not built yet", remedy="Set site.backend to cli or auto")
    from slurm_ext.slurm.cli_backend import CliBackend

    return CliBackend(settings, timeout_s=timeout_s)

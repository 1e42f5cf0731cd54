"""Daemons under systemd: the units that install wrote are enabled and started, and stopped before they are taken out."""

from __future__ import annotations

import os

from slurm_ext import command
from slurm_ext.errors import FmslurmError

#: systemctl waits for a unit to stop; the agent may finish a checkpoint first (TimeoutStopSec in its unit).
TIMEOUT_S = 150.0


def runs() -> bool:
    """Say whether systemd is the service manager here (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


class Units:
    """The daemons of this machine as units, by name without `.service`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def start(self, *, anew: bool) -> list[str]:
        """Enable the units, start them (or start them `anew`), and return their names. Raise FmslurmError where that fails."""
        if self.names:
            self._call("daemon-reload")
            self._call("enable", *self._units())
            self._call("restart" if anew else "start", *self._units())
        return list(self.names)

    def stop(self) -> list[str]:
        """Stop and disable the units and return their names. Raise FmslurmError where that fails."""
        if self.names:
            self._call("disable", "--now", *self._units())
        return list(self.names)

    def _units(self) -> list[str]:
        return [f"{name}.service" for name in self.names]

    def _call(self, *words: str) -> None:
        result = command.run(["systemctl", *words], timeout_s=TIMEOUT_S)
        if not result.ok:
            raise FmslurmError(f"systemctl {' '.join(words)}: {result.words()}", remedy="See `systemctl status`")

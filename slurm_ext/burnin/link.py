"""One node's way to who leads: knocks at the candidates of `succession`, port after port, until one answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_ext.burnin.succession import Succession
from slurm_ext.channel import Hub

#: How soon (seconds) a candidate that refused is knocked at again: its prolog may start later than ours.
RETRY_S, RETRY_MAX_S = 0.1, 1.0


class _Door:
    def __init__(self) -> None:
        self.tries = 0
        self.retry_s = RETRY_S
        self.next_try = 0.0
        self.open = False  # a connection is being made


class Link:
    """Attempts to reach candidates. `why` says how the last one at each of them ended."""

    def __init__(
        self, hub: Hub, succession: Succession, addresses: Mapping[str, str], ports: Sequence[int], source: str
    ) -> None:
        """`source` is our own address, or empty: whichever the way there has."""
        self._hub, self._succession = hub, succession
        self._addresses, self._ports, self._source = addresses, ports, source
        self._doors: dict[str, _Door] = {}
        self.why: dict[str, str] = {}

    def knock(self, names: Iterable[str], now: float) -> None:
        """Begin an attempt at each that is due for one."""
        for name in names:
            door = self._doors.setdefault(name, _Door())
            if door.open or now < door.next_try or name in self._hub.peers():
                continue
            if name not in self._addresses:
                self.why[name] = "no address is known for it"
                self._succession.refused(name)
                continue
            port = self._ports[door.tries % len(self._ports)]
            door.tries += 1
            door.open = True
            self._hub.connect(name, self._addresses[name], port, source=self._source)

    def knocked(self, name: str) -> bool:
        """Say whether it was us who tried to reach it, and take that this has succeeded."""
        door = self._doors.get(name)
        if door is None or not door.open:
            return False
        door.open = False
        return True

    def failed(self, name: str, why: str, now: float) -> None:
        """Take that an attempt came to nothing; once all ports are tried, nobody leads there."""
        door = self._doors.get(name)
        if door is None or not door.open:
            return
        door.open = False
        self.why[name] = why
        if door.tries % len(self._ports):
            door.next_try = now
            return
        self._succession.refused(name)
        door.next_try = now + door.retry_s
        door.retry_s = min(door.retry_s * 1.5, RETRY_MAX_S)

    def forget(self, names: Iterable[str]) -> None:
        """Give up attempts, and begin anew with those names when they are next due."""
        for name in names:
            door = self._doors.pop(name, None)
            if door is not None and door.open:
                self._hub.forget(name)

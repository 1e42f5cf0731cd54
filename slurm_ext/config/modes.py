"""What may a room do here and now? Mode ladder, partitions, canary and the `fmslurm off` switch, decided purely.

Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from slurm_ext.config.hostlist import HostlistError, contains
from slurm_ext.config.model import ROOMS, Mode, Settings
from slurm_ext.typed import Any, NamedTuple

#: Stands for every room in an off file.
ALL = "all"

#: A heartbeat older than this (seconds) is a dead controller's.
HEARTBEAT_FRESH_S = 30.0


class Off(NamedTuple):
    """One switch thrown by `fmslurm off`: room (or `all`), until when (seconds since the epoch), why and by whom."""

    room: str
    until: float
    reason: str = ""
    by: str = ""


class Heartbeat(NamedTuple):
    """The controller daemon's sign of life: when (seconds since the epoch), its resume mode, its process id."""

    time: float
    mode: str = ""
    pid: int = 0


def effective_mode(
    settings: Settings, room: str, *, node: str = "", partition: str = "", off: Iterable[Off] = (), now: float
) -> tuple[str, str]:
    """Return the rung of MODES that holds for a room on a node in a partition at `now` (epoch seconds), and why in words.

    An off switch wins over everything. `partitions` and `canary` narrow `enforce` alone: outside them the room
    observes (shadow). Where the node or the partition is not known (empty), a narrowed room does not enforce.
    Raise ValueError for a room that does not exist.
    """
    if room not in ROOMS:
        raise ValueError(f"no room is called {room!r}; there are {', '.join(ROOMS)}")
    for switch in off:
        if switch.room in (room, ALL) and now < switch.until:
            who = f" by {switch.by}" if switch.by else ""
            return (
                "off",
                f"switched off{who} for another {_span(switch.until - now)}: {switch.reason or 'no reason given'}",
            )
    mode = str(getattr(settings.mode, room))
    if mode != "enforce":
        return mode, f"mode.{room} is {mode}"
    if settings.mode.partitions and partition not in settings.mode.partitions:
        return "shadow", f"mode.{room} is enforce, but partition {partition or '(unknown)'} is not in mode.partitions"
    if settings.mode.canary:
        try:
            inside = bool(node) and contains(settings.mode.canary, node)
        except HostlistError as exc:
            return "shadow", f"mode.{room} is enforce, but mode.canary is no hostlist ({exc})"
        if not inside:
            return "shadow", f"mode.{room} is enforce, but node {node or '(unknown)'} is not in mode.canary"
    return "enforce", f"mode.{room} is enforce"


def all_off(settings: Settings) -> Settings:
    """Return the settings with every room off: what holds where nobody ever pushed a configuration."""
    return settings._replace(mode=_with_off(settings.mode, ROOMS))


def switch_off(settings: Settings, off: Iterable[Off], *, now: float) -> Settings:
    """Return the settings with the rooms off that a switch has off at `now`, for readers that do not ask about switches."""
    mode = settings.mode
    for switch in off:
        if now < switch.until:
            mode = _with_off(mode, ROOMS if switch.room == ALL else (switch.room,))
    return settings._replace(mode=mode)


def _with_off(mode: Mode, rooms: Iterable[str]) -> Mode:
    changes: dict[str, Any] = dict.fromkeys(rooms, "off")
    return mode._replace(**changes)


def heartbeat_is_fresh(heartbeat: Heartbeat | None, *, now: float, max_age_s: float = HEARTBEAT_FRESH_S) -> bool:
    """Say whether the controller was alive within `max_age_s`; a time in the future (clocks differ) counts up to as far."""
    return heartbeat is not None and abs(now - heartbeat.time) <= max_age_s


def off_to_json(switch: Off) -> bytes:
    """Return the content of an off file."""
    return (json.dumps({"schema": 1, "until": switch.until, "reason": switch.reason, "by": switch.by}) + "\n").encode()


def off_from_json(room: str, content: bytes | str) -> Off | None:
    """Return the switch in the off file of a room, or None where it is no such file."""
    data = _object(content)
    until = data.get("until") if data is not None else None
    if data is None or room not in (*ROOMS, ALL) or not _is_time(until):
        return None
    assert isinstance(until, (int, float))
    return Off(room, float(until), str(data.get("reason", ""))[:500], str(data.get("by", ""))[:100])


def heartbeat_to_json(heartbeat: Heartbeat) -> bytes:
    """Return the content of the heartbeat file."""
    return (json.dumps({"schema": 1, **heartbeat._asdict()}) + "\n").encode()


def heartbeat_from_json(content: bytes | str) -> Heartbeat | None:
    """Return the heartbeat in the file, or None where it holds none."""
    data = _object(content)
    if data is None or not _is_time(data.get("time")):
        return None
    pid = data.get("pid", 0)
    return Heartbeat(float(str(data["time"])), str(data.get("mode", "")), pid if type(pid) is int else 0)


def _object(content: bytes | str) -> dict[str, object] | None:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(float(str(value)))


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"

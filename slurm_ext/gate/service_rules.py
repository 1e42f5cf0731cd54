"""What systemctl says of the services that a job needs, by instance type. Pure.

The fabric manager is needed where there are NVSwitches (NVIDIA: without it no CUDA program starts, error 802), IMEX where
one NVLink domain spans instances; elsewhere both end by themselves. Sources: systemctl(1), NVIDIA Fabric Manager and
IMEX guides. A unit that is only starting decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.aws import catalogue
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import listed, words_of
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

_MARKS = "●○×x*↻⚪ "
_SUFFIXES = (
    ".service",
    ".mount",
    ".socket",
    ".timer",
    ".target",
    ".path",
    ".device",
    ".swap",
    ".scope",
    ".slice",
    ".automount",
)
_HEAD = pattern(r"^[●○×x*↻\s]{0,3}(\S+\.(?:service|mount|socket|timer|target|path|swap|automount))(?: - .*)?$")
_LOADED = pattern(r"^\s*Loaded:\s+(\S+)(.*)")
_ACTIVE = pattern(r"^\s*Active:\s+(\S+)(?:\s+\(([^)]*)\))?(.*)")
_ABSENT = pattern(
    r"Unit (\S+?)(?:\.service)? could not be found|unit (\S+?)(?:\.service)? (?:does not exist|not found)"
)
_UNIT_LINE = pattern(
    r"^[●○×x*↻\s]{0,6}(\S+\.[a-z]+)\s+(loaded|not-found|masked|bad-setting|error|merged|stub)\s+"
    r"(active|inactive|failed|activating|deactivating|reloading|maintenance|refreshing)\s+(\S+)"
)
_NAMED = pattern(r"([\w@.-]+)(?:\s*[:=]\s*|\s+)(active|inactive|failed|activating|deactivating|not-found|unknown)")
_STATES = words_of("active inactive failed activating deactivating reloading unknown maintenance not-found")
_SYSTEM = words_of("running degraded starting stopping maintenance offline initializing")
_ESCAPED = pattern(r"\\x([0-9a-f]{2})")


class Unit(NamedTuple):
    """One unit: systemd's own words, empty where not told."""

    name: str
    load: str = ""
    active: str = ""
    sub: str = ""
    said: str = ""
    wanted: bool | None = None  # enabled at boot, where that is told


#: Without these no job of Slurm's starts, on every type.
_NEEDED = words_of("munge munged slurmd")
_CLOCK = words_of("chronyd chrony systemd-timesyncd ntpd ntp ntpsec")
_FABRIC = words_of("nvidia-fabricmanager fabricmanager nv-fabricmanager")
_IMEX = words_of("nvidia-imex")
_WATCH = words_of("nvidia-dcgm dcgm nv-hostengine dcgm-exporter nvidia-persistenced node_exporter")


def parse(text: str, command: str = "") -> list[Unit] | None:
    """Return the units of list-units (text, JSON), --failed, status, show and is-active (names from `command`)."""
    stripped = text.strip()
    if stripped.startswith("["):
        return _json(stripped)
    if "ActiveState=" in text or "LoadState=" in text or "SubState=" in text:
        return _show(text, command)
    units = [
        Unit(found[1], found[2], found[3], found[4]) for line in text.splitlines() if (found := _UNIT_LINE.match(line))
    ]
    if units or "loaded units listed" in text:
        return units
    if "Active:" in text or "Loaded:" in text or _ABSENT.search(text):
        names = _names(command)
        return _status(text) or (_status(f"{names[0]}.service\n{text}") if len(names) == 1 else None)
    named = [_NAMED.fullmatch(line.strip()) for line in stripped.splitlines()]
    if named and all(named):
        return [Unit(found[1], "", found[2]) for found in named if found is not None]
    words = stripped.split("\n")
    if stripped and all(word.strip() in _STATES for word in words):
        names = _names(command)
        return (
            [Unit(name, "", word.strip()) for name, word in zip(names, words, strict=True)]
            if (len(names) == len(words))
            else None
        )
    return None


def _names(command: str) -> list[str]:
    """Return the units that a command line names."""
    words = [word for word in command.split() if not word.startswith("-")]
    verbs = ("is-active", "is-failed", "is-enabled", "status", "show")
    at = next((position for position, word in enumerate(words) if word in verbs), None)
    return [] if at is None else words[at + 1 :]


def _json(text: str) -> list[Unit] | None:
    import json  # only where a text is JSON: hooks import this

    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.get("unit") for row in rows):
        return None
    cells = [[str(row.get(key) or "") for key in ("unit", "load", "active", "sub")] for row in rows]
    return [Unit(name, load, active, sub) for name, load, active, sub in cells]


def _show(text: str, command: str) -> list[Unit]:
    units, names = [], _names(command)
    for position, block in enumerate(part for part in text.split("\n\n") if part.strip()):
        row = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        name = row.get("Id") or (names[position] if position < len(names) else "")
        units.append(
            Unit(
                name,
                row.get("LoadState", ""),
                row.get("ActiveState", ""),
                row.get("SubState", ""),
                row.get("Result", ""),
            )
        )
    return units


def _status(text: str) -> list[Unit]:
    units: list[Unit] = []
    for line in text.splitlines():
        if found := _ABSENT.search(line):
            units.append(Unit(found[1] or found[2], "not-found", "inactive"))
        elif found := _HEAD.match(line):
            units.append(Unit(found[1]))
        elif units and (found := _LOADED.match(line)) and not units[-1].load:
            word = found[2].split(";")[1].strip() if found[2].count(";") else ""
            wanted = True if word.startswith("enabled") else False if word.startswith("disabled") else None
            units[-1] = units[-1]._replace(load=found[1], wanted=wanted)
        elif units and (found := _ACTIVE.match(line)) and not units[-1].active:
            units[-1] = units[-1]._replace(active=found[1], sub=found[2] or "", said=line.strip())
    return units


def judge_system(text: str) -> list[Judged] | None:
    """Return what is-system-running, or the head of `systemctl status`, says of the whole; None where it is neither."""
    word = text.strip()
    if word not in _SYSTEM:
        return None
    if word in ("running",):
        return []
    if word == "degraded":
        return [judged(WARN, "service.some-failed", "node", "warn", "some unit has failed")]
    return [judged(UNKNOWN, "service.system-state", "node", "none", f"systemd says {word}")]


def judge(units: Sequence[Unit], instance_type: str) -> list[Judged]:
    """Return what the units say for an instance type (nothing: not known)."""
    items: list[Judged] = []
    others: list[str] = []
    for unit in units:
        name = unit.name.removesuffix(".service").lower()
        state, line = _state(unit)
        if name in _FABRIC:
            items += _needed(unit, state, line, catalogue.has_nvswitch(instance_type), "service.fabricmanager-down")
        elif name in _IMEX:
            items += _needed(unit, state, line, catalogue.has_shared_nvlink(instance_type), "service.imex-down")
        elif name in _NEEDED:
            # A cluster may authenticate by other means (PCS has no munge): a unit that is not installed proves nothing.
            sure = True if unit.load not in ("not-found", "") or state != "absent" else None
            items += _needed(unit, state, line, sure, f"service.{name}-down")
        elif unit.name.endswith(".mount"):
            if state == "down" and unit.active == "failed":
                items.append(judged(FAIL, "fs.mount-failed", f"fs:{_path(unit.name)}", "drain", line))
        elif name in _CLOCK or name in _WATCH:
            idle = name in _WATCH and unit.active == "inactive" and unit.wanted is False  # nobody wants it here
            if state == "down" and not idle:
                items.append(judged(WARN, f"service.{name}-down", "node", "warn", line))
        elif unit.active == "failed":
            others.append(unit.name)
    if any(item.finding.id == f"service.{name}-down" for item in items for name in _CLOCK):
        items = _without_idle_clocks(items, units)
    if others:
        items.append(judged(WARN, "service.failed", "node", "warn", f"failed: {listed(others)}"))
    return items


def _without_idle_clocks(items: Sequence[Judged], units: Sequence[Unit]) -> list[Judged]:
    """Return the findings without those of time daemons that rest because another one runs."""
    runs = any(unit.name.removesuffix(".service") in _CLOCK and unit.active == "active" for unit in units)
    ids = {f"service.{name}-down" for name in _CLOCK}
    return [item for item in items if not (runs and item.finding.id in ids)]


def _state(unit: Unit) -> tuple[str, str]:
    """Return up, down, absent, moving or unclear, and what systemd said."""
    told = " ".join(word for word in (unit.load, unit.active, unit.sub, unit.said) if word)
    line = unit.said if unit.said.startswith("Active:") else told
    line = f"{unit.name}: {line}"
    if unit.load == "masked":
        return "down", line
    if unit.active in ("active", "reloading", "refreshing"):
        return "up", line
    if unit.load == "not-found" or unit.active == "not-found":
        return "absent", line
    if unit.active in ("failed", "inactive", "maintenance"):
        return "down", line
    if unit.active == "activating":
        return ("down" if "auto-restart" in f"{unit.sub} {unit.said}" else "moving"), line
    return ("moving" if unit.active == "deactivating" else "unclear"), line


def _needed(unit: Unit, state: str, line: str, sure: bool | None, id_: str) -> list[Judged]:
    """Return the finding of a unit that this type needs (`sure`), does not need (False), or may need (None)."""
    if state == "up" or sure is False:
        return []
    if sure is None or state in ("moving", "unclear"):
        return [judged(UNKNOWN, id_, "node", "none", line)]
    return [judged(FAIL, id_, "node", "drain", line)]


def _path(unit: str) -> str:
    """Return the mount point of a mount unit (systemd.unit(5): `-` is `/`, and \\x2d is `-`)."""
    inner = unit.removesuffix(".mount")
    if inner == "-":
        return "/"
    return "/" + _ESCAPED.sub(lambda found: chr(int(found[1], 16)), inner.replace("-", "/"))

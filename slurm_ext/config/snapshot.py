"""The pushed configuration: settings as JSON that root wrote, with generation and hash, read by hooks without YAML.

A node keeps the last good one in its own state folder, so neither a bad push nor a dead share changes what hooks do.
No snapshot ever seen means every room is off and every job passes. Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Mapping, Sequence

from slurm_ext.command import call_bounded
from slurm_ext.config import model
from slurm_ext.config.model import ROOMS, Settings
from slurm_ext.config.modes import (
    ALL,
    Heartbeat,
    Off,
    all_off,
    heartbeat_from_json,
    off_from_json,
    switch_off,
)
from slurm_ext.config.rules import ITEMS, SECTIONS, Key, check_number, check_together, check_word, keys
from slurm_ext.digest import sha256_hex
from slurm_ext.errors import ConfigError, UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.typed import Any, NamedTuple

SCHEMA = 1

#: Where the parts lie below the share; the state folder of a node holds the last good ones under one name.
SNAPSHOT_FILE = "config/snapshot.json"
OFF_FOLDER = "config/off"
HEARTBEAT_FILE = "controller/heartbeat.json"
TYPES_FILE = "config/instance_types.json"
LAST_GOOD_FILE = "last-good-config.json"

#: What install or a push leaves on every share, and nothing else makes. An empty mount point has neither.
LEDGER_FOLDER = "ledger"
MARKERS = (LEDGER_FOLDER, SNAPSHOT_FILE)


class View(NamedTuple):
    """What a hook or daemon of a node goes by: settings (rooms switched off are off in them), why these, and the rest.

    `types`: instance types that the site fetched (aws/site_types.py), as they lie on the share.
    """

    settings: Settings
    why: str
    off: tuple[Off, ...] = ()
    heartbeat: Heartbeat | None = None
    types: str = ""


def to_plain(settings: Settings) -> dict[str, Any]:
    """Return the sections as plain data: dictionaries, lists, text, numbers."""
    return {name: _plain(getattr(settings, name)) for name in SECTIONS}


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(settings: Settings, *, pushed: float) -> bytes:
    """Return the content of a snapshot: settings, their hash, generation, hash of the YAML, time of the push (epoch).

    Without what notify says of targets and words: every user may read it, some of it is secret, and nobody but the
    controller sends, out of its own file.
    """
    sections = to_plain(settings._replace(notify=model.Notify(users=settings.notify.users)))
    data = {
        "schema": SCHEMA,
        "generation": settings.generation,
        "source_hash": settings.source_hash,
        "hash": _hash(sections),
        "pushed": pushed,
        "settings": sections,
    }
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def _hash(sections: Mapping[str, Any]) -> str:
    return sha256_hex(json.dumps(sections, sort_keys=True).encode())


def from_json(content: bytes | str, *, name: str = SNAPSHOT_FILE) -> Settings:
    """Return the settings in a snapshot. Raise ConfigError where it is none, was altered, or holds what is not allowed.

    Keys that this version does not know are ignored: during an upgrade the head node may be newer than a node.
    """
    try:
        data = json.loads(content)
        sections = data["settings"]
        if data["schema"] != SCHEMA:
            raise ConfigError(f"{name}: schema {data['schema']!r} instead of {SCHEMA}", remedy="Upgrade fmslurm here")
        generation, source_hash = data["generation"], data["source_hash"]
        if type(generation) is not int or not isinstance(source_hash, str) or data["hash"] != _hash(sections):
            raise ConfigError(f"{name}: the content does not fit its hash", remedy="Run `fmslurm config push`")
        settings = Settings(**{s: _section(s, kind, sections.get(s, {})) for s, kind in SECTIONS.items()})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ConfigError(f"{name}: no snapshot of ours: {exc}", remedy="Run `fmslurm config push`") from exc
    for key, what in check_together(settings):
        raise ConfigError(f"{name}: {key}: {what}", remedy="Correct fmslurm.yaml and push again")
    return settings._replace(source_hash=source_hash, generation=generation)


def _section(section: str, kind: type[Any], data: Mapping[str, Any]) -> Any:
    known = keys(section)
    return kind(**{name: _value(known[name], value) for name, value in data.items() if name in known})


def _value(key: Key, value: Any) -> Any:
    at = f"{key.section}.{key.name}"
    if not key.many:
        return _scalar(key, value, at)
    if not isinstance(value, list):
        raise ValueError(f"{at}: expected {key.expected}")
    for section, (shape, kind) in ITEMS.items():
        if key.kind == kind:
            return tuple(_section(section, shape, item) for item in value)
    return tuple(_scalar(key, item, at) for item in value)


def _scalar(key: Key, value: Any, at: str) -> Any:
    if key.kind == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != key.kind:
        raise ValueError(f"{at}: expected {key.one}")
    what = ""
    if key.kind in ("int", "float"):
        what = check_number(key, value)
    elif key.kind == "str":
        what = check_word(key, value)
    if what:
        raise ValueError(f"{at}: {what}")
    return value


def write(path: str, settings: Settings, *, pushed: float | None = None) -> None:
    """Write a snapshot so that readers see the old one or the new one. Raise OSError where that cannot be done."""
    write_atomic(path, to_json(settings, pushed=time.time() if pushed is None else pushed))


def read(path: str) -> Settings:
    """Return the settings in a snapshot that root wrote.

    Raise UntrustedFileError where others could have written it, ConfigError where it is missing or cannot be used.
    """
    try:
        return from_json(read_trusted(path), name=path)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}", remedy="Run `fmslurm config push`") from exc


def push(settings: Settings, share: str, *, pushed: float | None = None) -> Settings:
    """Write settings to the share with the next generation, and return them as written.

    Raise ConfigError where there is no share, OSError where it cannot be written. A snapshot that cannot be read counts
    as none: pushing again is how it is repaired.
    """
    if not share:
        raise ConfigError("site.share is empty, so there is no place to push to", remedy="Set site.share")
    path = os.path.join(share, SNAPSHOT_FILE)
    try:
        previous = read(path).generation
    except (ConfigError, UntrustedFileError):
        previous = 0
    stamped = settings._replace(generation=previous + 1)
    write(path, stamped, pushed=pushed)
    return stamped


def is_marked(share: str) -> bool:
    """Say whether a folder is a share of ours, and not the empty folder that one is to be mounted on; for children only."""
    return any(os.path.lexists(os.path.join(share, name)) for name in MARKERS)


#: How long (epoch seconds, the year 2100) a switch holds that cannot be read.
UNTIL_MENDED_S = 4_102_444_800.0

#: What opening something in the place of a switch may say: a link, a folder, a pipe.
_UNUSABLE = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EINVAL, errno.EACCES, errno.EPERM)


def read_off(share: str) -> tuple[Off, ...]:
    """Return the switches on the share, past ones too.

    A file that is there and cannot be used, a cut one or one that others may write, keeps its room off until it is mended or
    `fmslurm on` takes it away: whoever put it there wanted less to be done, not more.
    For short-lived children and the controller: reads the share itself. Raise OSError where the folder cannot be read.
    """
    switches = []
    for room in (ALL, *ROOMS):
        path = os.path.join(share, OFF_FOLDER, f"{room}.json")
        try:
            switch = off_from_json(room, read_trusted(path))
            why = "it holds no switch"
        except FileNotFoundError:
            continue
        except UntrustedFileError as exc:
            switch, why = None, exc.message
        except OSError as exc:
            if exc.errno not in _UNUSABLE:
                raise
            switch, why = None, exc.strerror or str(exc)
        if switch is None:
            switch = Off(
                room, UNTIL_MENDED_S, f"{path} is there and cannot be used ({why}): `fmslurm on {room}` removes it"
            )
        switches.append(switch)
    return tuple(switches)


def view(share: str, local_dir: str, *, timeout_s: float = 2.0, now: float | None = None) -> View:
    """Return what this node goes by: the pushed snapshot, else the last good one in `local_dir`, else every room off.

    A child reads the share and is given up after `timeout_s` (seconds): a dead file server never holds a hook. Nothing is
    raised.
    """
    moment = time.time() if now is None else now
    found = _look(share, timeout_s)
    last = _last_good(local_dir)
    settings, trouble = None, str(found.get("error", ""))
    if not trouble:
        try:
            settings = from_json(str(found["snapshot"]))
        except ConfigError as exc:
            trouble = str(exc)
    off = _switches(found["off"]) if "off" in found else _switches(last.get("off"))
    types = str(found["types"] if "types" in found else last.get("types", ""))
    kept = {"types": types} if types else {}
    heartbeat = heartbeat_from_json(str(found.get("heartbeat", "")))
    if settings is not None:
        why = f"generation {settings.generation} as pushed"
        _keep(local_dir, last, {"snapshot": found["snapshot"], "off": found.get("off", last.get("off", [])), **kept})
    else:
        try:
            settings = from_json(str(last.get("snapshot", "")), name=LAST_GOOD_FILE)
            why = f"generation {settings.generation}, the last good one, since {trouble}"
            if "off" in found:
                _keep(local_dir, last, {"snapshot": last["snapshot"], "off": found["off"], **kept})
        except ConfigError:
            settings = all_off(Settings())
            why = f"defaults with every room off, since {trouble} and this node has no last good one"
    return View(switch_off(settings, off, now=moment), why, off, heartbeat, types)


def hook_settings(share: str, local_dir: str, *, timeout_s: float = 2.0) -> tuple[Settings, str]:
    """Return the settings of `view` and why these: what a hook needs that asks nothing about the controller."""
    seen = view(share, local_dir, timeout_s=timeout_s)
    return seen.settings, seen.why


def _look(share: str, timeout_s: float) -> dict[str, Any]:
    """Read snapshot, switches and heartbeat in a bounded child; `error` where there is no snapshot to go by."""
    if not share:
        return {"error": "no share is configured"}
    answer = call_bounded(lambda: json.dumps(_look_at(share)).encode(), timeout_s=timeout_s)
    if answer is None:
        return {"error": f"{share} gave no answer within {timeout_s:g} s"}
    try:
        data = json.loads(answer)
    except ValueError:
        return {"error": f"{share} gave no whole answer"}
    return data if isinstance(data, dict) else {"error": f"{share} gave no whole answer"}


def _look_at(share: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        found["snapshot"] = read_trusted(os.path.join(share, SNAPSHOT_FILE)).decode("utf-8", "replace")
    except (UntrustedFileError, OSError) as exc:
        found["error"] = f"{os.path.join(share, SNAPSHOT_FILE)}: {getattr(exc, 'strerror', None) or exc}"
    with contextlib.suppress(OSError):
        if is_marked(share):  # an unmounted share says nothing about switches: the last known ones hold
            found["off"] = [list(switch) for switch in read_off(share)]
    with contextlib.suppress(UntrustedFileError, OSError):
        found["heartbeat"] = read_trusted(os.path.join(share, HEARTBEAT_FILE)).decode("utf-8", "replace")
    if "error" not in found:
        found["types"] = ""
        with contextlib.suppress(UntrustedFileError, OSError):
            found["types"] = read_trusted(os.path.join(share, TYPES_FILE), max_bytes=1 << 20).decode("utf-8", "replace")
    return found


def _switches(data: Sequence[Any] | None) -> tuple[Off, ...]:
    return tuple(Off(*item) for item in data or ())


def _last_good(local_dir: str) -> dict[str, Any]:
    try:
        data = json.loads(read_trusted(os.path.join(local_dir, LAST_GOOD_FILE)))
    except (UntrustedFileError, OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    # Written by us as root, yet an older version may have written another shape.
    switches = data.get("off")
    data["off"] = [item for item in switches if _is_switch(item)] if isinstance(switches, list) else []
    return data


def _is_switch(item: Any) -> bool:
    return isinstance(item, list) and [type(part) for part in item] in ([str, float, str, str], [str, int, str, str])


def _keep(local_dir: str, last: Mapping[str, Any], good: Mapping[str, Any]) -> None:
    """Remember what was good, only where it differs: passing hooks write nothing."""
    if not local_dir or last == good:
        return
    try:
        write_atomic(os.path.join(local_dir, LAST_GOOD_FILE), json.dumps(good).encode())
    except OSError:
        return  # a full or read-only disk must not fail a job; the next hook tries again

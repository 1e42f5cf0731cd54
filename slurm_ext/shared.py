"""The root-owned shared folder: node events, attempts, the controller's heartbeat, switches, addresses.

It may hang, be full or not be there at all: every call works in a child that is given up in time, never raises for that,
and says by its answer whether it was done. A hook that met a silent share does not ask it again for a while (ask_seldom).
An empty `share` (site.share not set) makes each call a quiet no. What lies there and was not written by root is refused.
Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping

from slurm_ext import events
from slurm_ext.command import call_bounded
from slurm_ext.config.model import ROOMS
from slurm_ext.config.modes import ALL, Heartbeat, Off, heartbeat_from_json, heartbeat_to_json, off_to_json
from slurm_ext.config.snapshot import HEARTBEAT_FILE, OFF_FOLDER, is_marked, read_off
from slurm_ext.errors import FmslurmError
from slurm_ext.events import Event
from slurm_ext.files import owner_is_trusted, read_trusted, write_atomic, write_exclusive
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any, NamedTuple

#: How long (seconds) a child may take before its work counts as not done.
TIMEOUT_S = 2.0

#: How long (seconds) a process that asks seldom takes a share for silent that gave no answer: a dozen calls that wait for
#: it one after the other would use up a hook's own deadline. Not for ever, since a burn-in takes longer than a file server.
SILENT_S = 15.0

ADDRESS_FILE = "addresses"
LEAVES_FILE = "topology/leaves"

#: How files in an attempt's folder begin that name, each, a node that the job is to come back without.
SUSPECT_PREFIX = "suspect-"

#: How files in an attempt's folder begin that name a convicted node on which the job runs all the same.
BAD_PREFIX = "bad-"

#: How files in an attempt's folder begin that say what its gate does now, and how many of them are looked at.
GATE_PREFIX, GATE_FILES_MAX = "gate-", 16

NODE_NAME = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ATTEMPT = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[0-9]{1,12}(_[0-9]{1,12})?-[0-9]{1,9}")
_FILE = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ATTEMPT_PATH = pattern(rf"(/.*)/jobs/{_ATTEMPT.pattern}/[^/]+")
_PHASE = pattern(r"[a-z][a-z-]{0,19}")
_ADDRESS = pattern(r"[0-9A-Fa-f.:]{2,45}")


#: What lies in an attempt's folder: that it ended before it started, what its burn-in showed, where it starts from, and
#: what was decided after its end. Hooks, burn-in and controller meet in these files.
STOPPED_FILE, BURNIN_FILE, RESTORE_FILE, DECISION_FILE = "stopped.json", "burnin.json", "restore.json", "decision.json"

#: Who wrote a mark of an end that Slurm shows and that no hook brought about, so that nobody takes it for a hook's.
BY_CONTROLLER = "controller"


#: Whether this process asks a silent share seldom, and until when (monotonic seconds) it is not asked. Forked children inherit.
_seldom = False
_silent_until = 0.0


def ask_seldom() -> None:
    """Let every call return at once for SILENT_S after one that ran into its time, in this process: for hooks, not for daemons."""
    global _seldom
    _seldom = True


def is_silent() -> bool:
    """Say whether the share gave no answer just now and is not to be asked again yet."""
    return time.monotonic() < _silent_until


def bounded(work: Callable[[], Any], timeout_s: float) -> Any:
    """Run work on the share in a child and return what it returned as plain data, or None where it failed or took too long."""
    global _silent_until
    if is_silent():
        return None
    started = time.monotonic()
    found = in_child(work, timeout_s)
    # A call with less time than is usual says little: a share may be slow for once.
    if found is None and _seldom and TIMEOUT_S <= timeout_s <= time.monotonic() - started:
        _silent_until = time.monotonic() + SILENT_S
    return found


def in_child(work: Callable[[], Any], timeout_s: float) -> Any:
    """Run any work in a child and return what it returned as plain data, or None where it failed or took too long."""

    def guarded() -> bytes:
        try:
            return json.dumps([work()]).encode()
        except (OSError, FmslurmError, ValueError):
            return b"[null]"

    answer = call_bounded(guarded, timeout_s=timeout_s)
    try:
        return json.loads(answer)[0] if answer else None
    except ValueError:
        return None


def is_share(share: str) -> bool:
    """Say whether there is a share here that root may read and write; to be asked in a child (`bounded`)."""
    # Made by install; a share that is not mounted must neither be made anew on the disk below it nor be taken for the empty
    # folder that it is mounted on: what is written there is hidden later, and gone with the instance. One that others may
    # write holds nothing that root may decide by, and what root writes there could land anywhere.
    try:
        state = os.stat(share)
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and owner_is_trusted(state) and is_marked(share)


def _is_below_share(path: str) -> bool:
    found = _ATTEMPT_PATH.fullmatch(path)
    return is_share(found.group(1) if found else os.path.dirname(path))


def attempt_key(cluster: str, job_id: str, restarts: int) -> str:
    """Return the text that names one attempt everywhere: `<cluster>/<jobid>-<restarts>`."""
    return f"{cluster}/{job_id}-{restarts}"


def attempt_path(share: str, attempt: str, name: str) -> str:
    """Return the path of one file of an attempt, e.g. `restore.json`. Raise ValueError for a key or a name that is none."""
    if not _ATTEMPT.fullmatch(attempt) or not _FILE.fullmatch(name):
        raise ValueError(f"no attempt or no file name: {attempt!r}, {name!r}")
    return os.path.join(share, "jobs", attempt, name) if share else ""


def append_event(share: str, node: str, event: Event, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Append an event to the node's trail on the share; say whether it is there."""
    if not share or not NODE_NAME.fullmatch(node):
        return False
    path = os.path.join(share, "nodes", node, "events.jsonl")
    event = event if event.time else event._replace(time=events.stamp())
    return bounded(lambda: is_share(share) and events.append(path, event, durable=True) is not None, timeout_s) is True


def decide_once(path: str, data: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Write `data` as JSON unless another writer was first, and return the data that won: ours or theirs.

    None where the share did not answer, is not set (`path` empty), or holds something root did not write: nothing is
    decided then, and nobody may act as if it were.
    """
    if not path:
        return None
    content = json.dumps(dict(data)) + "\n"

    def work() -> dict[str, Any] | None:
        if not _is_below_share(path):
            return None
        if write_exclusive(path, content):
            return dict(data)
        return _object(read_trusted(path))

    won = bounded(work, timeout_s)
    return won if isinstance(won, dict) else None


def write_json(path: str, data: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> bool:
    """Write `data` as JSON over what is there; say whether it is done. An empty path is a quiet no."""
    content = json.dumps(dict(data)) + "\n"

    def work() -> bool:
        if not _is_below_share(path):
            return False
        write_atomic(path, content)
        return True

    return bool(path) and bounded(work, timeout_s) is True


def read_json(path: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Return the object in a file that root wrote, or None where there is none or the share does not answer."""
    found = bounded(lambda: _object(read_trusted(path)), timeout_s) if path else None
    return found if isinstance(found, dict) else None


def attempt_names(share: str, attempt: str, *, timeout_s: float = TIMEOUT_S) -> frozenset[str] | None:
    """Return the names of an attempt's files, none where it has none yet; None where the share does not answer."""
    folder = os.path.dirname(attempt_path(share, attempt, STOPPED_FILE))

    def work() -> list[str] | None:
        if not is_share(share):
            return None
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []

    found = bounded(work, timeout_s) if share else None
    return frozenset(found) if isinstance(found, list) else None


def suspects_in(names: Iterable[str], prefix: str = SUSPECT_PREFIX) -> tuple[str, ...]:
    """Return the nodes that the files of an attempt say its job is to come back without (or, with BAD_PREFIX, runs on). Pure."""
    found = (name[len(prefix) : -5] for name in names if name.startswith(prefix) and name[-5:] == ".json")
    return tuple(sorted(node for node in found if NODE_NAME.fullmatch(node)))


class GateState(NamedTuple):
    """What the burn-in of an attempt does now, as one node tells: `phase` is `waiting`, or the kind of the round that
    runs (burnin.model.Round); `waiting` names nodes that have not come (the first few of `absent`); times: epoch seconds."""

    node: str
    phase: str
    since: float
    waiting: tuple[str, ...] = ()
    absent: int = 0
    began: float = 0.0


def gate_file(node: str) -> str:
    """Return the name of the file in an attempt's folder that holds what `node` tells of its gate."""
    return f"{GATE_PREFIX}{node}.json"


def gate_state(share: str, attempt: str, *, timeout_s: float = TIMEOUT_S) -> GateState | None:
    """Return the newest word on an attempt's burn-in, None where there is none: it has not begun, or took no second."""

    def work() -> list[dict[str, Any]]:
        folder = os.path.dirname(attempt_path(share, attempt, STOPPED_FILE))
        names = [name for name in os.listdir(folder) if name.startswith(GATE_PREFIX)][:GATE_FILES_MAX]
        found = (_object(read_trusted(os.path.join(folder, name))) for name in names)
        return [data for data in found if data is not None]

    told = bounded(work, timeout_s) if share else None
    states = [state for data in told or () if (state := gate_state_from(data)) is not None]
    return max(states, key=lambda state: state.since, default=None)


def gate_state_from(data: Mapping[str, Any]) -> GateState | None:
    """Return the state in plain data, or None where it has another form. Pure."""
    try:
        waiting = tuple(str(name) for name in data["waiting"])
        numbers = float(data["since"]), int(data["absent"]), float(data["began"])
        state = GateState(str(data["node"]), str(data["phase"]), numbers[0], waiting, *numbers[1:])
    except (KeyError, TypeError, ValueError):
        return None
    names = (state.node, *state.waiting)
    return state if _PHASE.fullmatch(state.phase) and all(NODE_NAME.fullmatch(name) for name in names) else None


#: What the phases of a burn-in are to people; a round that is not listed is told by its own word.
_PHASES: Mapping[str, str] = {
    "all": "all nodes together",
    "groups": "in groups",
    "across": "one node of each group together",
    "again": "all nodes together once more, since they failed",
    "isolate": "finding the culprit: suspects alone",
    "alone": "finding the culprit: each node alone",
    "pairs": "finding the culprit: in pairs",
    "confirm": "finding the culprit: suspects with nodes that passed",
    "rails": "finding the culprit: one GPU of each node",
}


def gate_words(state: GateState, *, now: float) -> str:
    """Return one line on what a burn-in does now (`now` in seconds since the epoch). Pure."""
    since = f"for {max(now - state.since, 0):.0f} s"
    if state.phase == "waiting":
        more = f" and {state.absent - len(state.waiting)} more" if state.absent > len(state.waiting) else ""
        return f"burn-in: waiting for {', '.join(state.waiting) or 'nobody'}{more} {since}"
    return f"burn-in: {_PHASES.get(state.phase, state.phase)} {since}"


def _object(content: bytes) -> dict[str, Any] | None:
    data = json.loads(content)
    return data if isinstance(data, dict) else None


def beat(share: str, heartbeat: Heartbeat, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Write the controller's sign of life; say whether it is there."""

    def work() -> bool:
        if not is_share(share):
            return False
        write_atomic(os.path.join(share, HEARTBEAT_FILE), heartbeat_to_json(heartbeat))
        return True

    return bool(share) and bounded(work, timeout_s) is True


def heartbeat(share: str, *, timeout_s: float = TIMEOUT_S) -> Heartbeat | None:
    """Return the controller's last sign of life, or None where there is none; modes.heartbeat_is_fresh judges its age."""
    if not share:
        return None
    text = bounded(lambda: read_trusted(os.path.join(share, HEARTBEAT_FILE)).decode("utf-8", "replace"), timeout_s)
    return heartbeat_from_json(text) if isinstance(text, str) else None


def throw_switch(share: str, switch: Off, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Write the off file of a room (or of `all`); say whether it is there. Raise ValueError for a room that is none."""
    if switch.room not in (*ROOMS, ALL):
        raise ValueError(f"no room is called {switch.room!r}; there are {', '.join((*ROOMS, ALL))}")

    def work() -> bool:
        if not is_share(share):
            return False
        write_atomic(os.path.join(share, OFF_FOLDER, f"{switch.room}.json"), off_to_json(switch))
        return True

    return bool(share) and bounded(work, timeout_s) is True


def clear_switch(share: str, room: str, *, timeout_s: float = TIMEOUT_S) -> bool | None:
    """Remove the off file of a room (or of `all`); say whether there was one, None where the share does not answer."""
    if room not in (*ROOMS, ALL):
        raise ValueError(f"no room is called {room!r}; there are {', '.join((*ROOMS, ALL))}")

    def work() -> bool | None:
        if not is_share(share):
            return None
        try:
            os.unlink(os.path.join(share, OFF_FOLDER, f"{room}.json"))
        except FileNotFoundError:
            return False
        return True

    done = bounded(work, timeout_s) if share else None
    return done if isinstance(done, bool) else None


def switches(share: str, *, timeout_s: float = TIMEOUT_S) -> tuple[Off, ...] | None:
    """Return the off files, past ones too, or None where the share does not answer."""

    def work() -> list[list[Any]] | None:
        return [list(switch) for switch in read_off(share)] if is_share(share) else None

    listed = bounded(work, timeout_s) if share else None
    return tuple(Off(*item) for item in listed) if isinstance(listed, list) else None


def write_addresses(share: str, addresses: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> bool:
    """Write the `name address` lines that nodes find each other by; say whether it is done."""
    for name, address in addresses.items():
        if not NODE_NAME.fullmatch(name) or not _ADDRESS.fullmatch(address):
            raise ValueError(f"no node name or no address: {name!r}, {address!r}")
    return _write_pairs(share, ADDRESS_FILE, addresses, timeout_s)


def addresses(share: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return node name -> address as pushed; empty where nothing is known."""
    return _pairs(share, ADDRESS_FILE, _ADDRESS, timeout_s)


def write_leaves(share: str, leaves: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> bool:
    """Write the `node leaf` lines that tell below which leaf switch each node sits; say whether it is done.

    Raise ValueError for a name that is none.
    """
    for name, leaf in leaves.items():
        if not NODE_NAME.fullmatch(name) or not NODE_NAME.fullmatch(leaf):
            raise ValueError(f"no node name or no switch name: {name!r}, {leaf!r}")
    return _write_pairs(share, LEAVES_FILE, leaves, timeout_s)


def leaves(share: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return node name -> name of its leaf switch as pushed; empty where nothing is known."""
    return _pairs(share, LEAVES_FILE, NODE_NAME, timeout_s)


def _write_pairs(share: str, name: str, pairs: Mapping[str, str], timeout_s: float) -> bool:
    text = "".join(f"{left} {right}\n" for left, right in sorted(pairs.items()))

    def work() -> bool:
        if not is_share(share):
            return False
        path = os.path.join(share, name)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_atomic(path, text)
        return True

    return bool(share) and bounded(work, timeout_s) is True


def _pairs(share: str, name: str, right: re.Pattern[str], timeout_s: float) -> dict[str, str]:
    text = bounded(lambda: read_trusted(os.path.join(share, name)).decode(), timeout_s) if share else None
    if not isinstance(text, str):
        return {}
    pairs = (line.split() for line in text.splitlines())
    return {
        pair[0]: pair[1]
        for pair in pairs
        if len(pair) == 2 and NODE_NAME.fullmatch(pair[0]) and right.fullmatch(pair[1])
    }

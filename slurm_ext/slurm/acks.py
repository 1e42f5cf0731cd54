"""What a person has said about a finding: "known, keep the node in use until then". Looked at only where a drain is due.

One file a node on the share, `acks/<node>.json`, whole or not at all. An acknowledgement that has expired stays in the file,
since it counts for the false-alarm rate of its check; one taken back is gone. Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator

from slurm_ext import shared
from slurm_ext.files import open_regular, read_trusted, write_atomic
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any, NamedTuple

FOLDER = "acks"

#: The target of an acknowledgement that holds for every target of its finding.
ANY = "*"

#: How many acknowledgements of a node are kept, and how large its file may be.
KEPT, MAX_BYTES = 100, 256 << 10

#: No time of ours lies behind this (seconds since the epoch: the year 2255).
FAR_S = 9e9

_FINDING = pattern(r"[a-z0-9][a-z0-9._-]{0,99}")
_TARGET = pattern(r"[!-~]{1,200}")


class Ack(NamedTuple):
    """One acknowledgement: of which finding on which target of which node, until when, why, by whom, since when.

    Times are seconds since the epoch. `actor` is a name, with the user behind sudo: `root (sudo by alice)`.
    """

    node: str
    finding: str
    target: str
    until_s: float
    reason: str
    actor: str
    at_s: float


def holds(acks: Iterable[Ack], finding: str, now: float, *, target: str = "") -> Ack | None:
    """Return the acknowledgement that holds now for a finding on a target, the one that lasts longest, or None. Pure.

    `target` empty: whatever the target is.
    """
    found = [
        ack
        for ack in acks
        if ack.finding == finding and now < ack.until_s and (not target or ack.target in (ANY, target))
    ]
    return max(found, key=lambda ack: ack.until_s, default=None)


def words(ack: Ack, stamp: Callable[[float], str]) -> str:
    """Return one line that says who acknowledged what, until when and why; `stamp` writes a time. Pure."""
    what = ack.finding if ack.target == ANY else f"{ack.finding} on {ack.target}"
    return f"{what} is acknowledged by {ack.actor} until {stamp(ack.until_s)}: {ack.reason}"


def added(acks: Iterable[Ack], ack: Ack) -> tuple[Ack, ...]:
    """Return the acknowledgements with one more, oldest first; one of the same finding and target is replaced. Pure."""
    kept = [one for one in acks if (one.finding, one.target) != (ack.finding, ack.target) or one.until_s <= ack.at_s]
    return (*kept, ack)[-KEPT:]


def from_data(data: Any, node: str) -> tuple[Ack, ...]:
    """Return the acknowledgements in plain data; what has another form is left out. Pure, never raises."""
    listed = data.get("acks") if isinstance(data, dict) else None
    found = (_ack(item, node) for item in listed) if isinstance(listed, list) else ()
    return tuple(ack for ack in found if ack is not None)


def _ack(item: Any, node: str) -> Ack | None:
    texts = ("finding", "target", "reason", "actor")
    if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in texts):
        return None
    until_s, at_s = _seconds(item.get("until_s")), _seconds(item.get("at_s"))
    if until_s is None or at_s is None:
        return None
    if not _FINDING.fullmatch(item["finding"]) or not _TARGET.fullmatch(item["target"]):
        return None
    return Ack(node, item["finding"], item["target"], until_s, item["reason"], item["actor"], at_s)


def _seconds(value: Any) -> float | None:
    """Return a time that can be compared and printed, else None: an acknowledgement without an end would hold for ever."""
    if type(value) not in (int, float) or not 0 <= value < FAR_S:
        return None
    return float(value)


def is_writable(ack: Ack) -> bool:
    """Say whether an acknowledgement has names that can be stored and an end. Pure."""
    names = shared.NODE_NAME.fullmatch(ack.node) and _FINDING.fullmatch(ack.finding) and _TARGET.fullmatch(ack.target)
    return bool(names) and _seconds(ack.until_s) is not None and _seconds(ack.at_s) is not None


def read(share: str, node: str, *, timeout_s: float = shared.TIMEOUT_S) -> tuple[Ack, ...]:
    """Return what was acknowledged on a node, past ones too; nothing where the share does not answer: then none holds."""
    if not share or not shared.NODE_NAME.fullmatch(node):
        return ()
    return from_data(shared.bounded(lambda: _load(_path(share, node)), timeout_s), node)


def read_all(share: str, *, timeout_s: float = shared.TIMEOUT_S) -> dict[str, tuple[Ack, ...]] | None:
    """Return node name -> its acknowledgements, past ones too; None where the share does not answer."""

    def work() -> dict[str, Any] | None:
        if not shared.is_share(share):
            return None
        try:
            names = sorted(os.listdir(os.path.join(share, FOLDER)))
        except FileNotFoundError:
            return {}
        nodes = [name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")]
        return {node: _load(_path(share, node)) for node in nodes if shared.NODE_NAME.fullmatch(node)}

    found = shared.bounded(work, timeout_s) if share else None
    return {node: from_data(data, node) for node, data in found.items()} if isinstance(found, dict) else None


def write(share: str, ack: Ack, *, timeout_s: float = shared.TIMEOUT_S) -> bool:
    """Add one acknowledgement to its node's file; say whether it is there, on disk."""
    if not share or not is_writable(ack):
        return False
    return _change(share, ack.node, lambda before: added(before, ack), lambda after: ack in after, timeout_s)


def remove(
    share: str, node: str, finding: str, target: str = "", *, timeout_s: float = shared.TIMEOUT_S
) -> bool | None:
    """Take back what was acknowledged of a finding (`target` empty: on every target), past ones too.

    Say whether there was one; None where the share does not answer or may not be written.
    """
    if not share or not shared.NODE_NAME.fullmatch(node):
        return None

    def is_meant(ack: Ack) -> bool:
        return ack.finding == finding and target in ("", ack.target)

    before = shared.bounded(lambda: _load(_path(share, node)) if shared.is_share(share) else None, timeout_s)
    if before is None:
        return None
    if not any(is_meant(ack) for ack in from_data(before, node)):
        return False
    done = _change(
        share,
        node,
        lambda acks: tuple(ack for ack in acks if not is_meant(ack)),
        lambda acks: not any(is_meant(ack) for ack in acks),
        timeout_s,
    )
    return True if done else None


def _change(
    share: str,
    node: str,
    change: Callable[[tuple[Ack, ...]], tuple[Ack, ...]],
    is_there: Callable[[tuple[Ack, ...]], bool],
    timeout_s: float,
) -> bool:
    """Change a node's file, one writer at a time, and look whether it took hold."""

    def work() -> bool:
        if not shared.is_share(share):
            return False
        path = _path(share, node)
        with _alone(os.path.join(share, FOLDER)):
            after = change(from_data(_load(path), node))
            listed = [{name: value for name, value in ack._asdict().items() if name != "node"} for ack in after]
            write_atomic(path, json.dumps({"schema": 1, "node": node, "acks": listed}) + "\n")
            return is_there(from_data(_load(path), node))

    return shared.bounded(work, timeout_s) is True


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Keep other writers out, as far as the file system has locks; whoever waits too long is given up with its child."""
    os.makedirs(folder, mode=0o755, exist_ok=True)
    descriptor = open_regular(os.path.join(folder, ".lock"), os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):  # a Lustre that is mounted without flock: two people at once are rare
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _path(share: str, node: str) -> str:
    return os.path.join(share, FOLDER, f"{node}.json")


def _load(path: str) -> dict[str, Any]:
    """Return what the file says: empty where there is none or it is torn. Runs in the child."""
    try:
        data = json.loads(read_trusted(path, max_bytes=MAX_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}

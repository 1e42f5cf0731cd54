"""What fmslurm remembers of each drain of its own: for which finding, on which boot and instance, and what is needed to return.

`<share>/drained/<node>.json` lies there while the node is out, `<share>/drained/history/<node>.jsonl` holds what came of
earlier ones: the memory of the severity ladder (gate/ladder.py). Like all of the share it may hang or be gone: every call
works in a child that is given up in time. Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping

from slurm_ext import shared
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.typed import Any, NamedTuple

SCHEMA = 1
FOLDER, HISTORY, TOLD = "drained", "history", "told"

DAY_S = 86_400.0

#: Two records within so long (seconds) for one finding on one boot are one drain: two hooks met the same at once.
SAME_S = 120.0

#: So often (seconds) it is told that a drain stands for too long.
TELL_EVERY_S = DAY_S

#: What the ladder may ask for; any other action of a finding only takes the node out.
STEPS = ("drain", "reset-gpu", "reboot", "replace")

#: A record is a kilobyte or two; a longer file is none of ours. So many earlier drains of a node are remembered.
RECORD_BYTES, HISTORY_BYTES, HISTORY_LINES = 64 << 10, 512 << 10, 50

#: How a drain ended whose record still lay there when the node was drained again: who resumed it did not tell us.
SUPERSEDED = "superseded by another drain"

#: How many nodes at most are read at once: more than may ever be drained.
RECORDS_MAX = 10_000


class DrainRecord(NamedTuple):
    """One drain that fmslurm did, and what is needed to undo it. Times are seconds since the epoch, 0 where none is set."""

    node: str
    finding: str
    target: str
    action: str
    reason: str  # the very text that was set in Slurm
    since_s: float
    expires_s: float = 0.0
    boot_id: str = ""
    instance_id: str = ""
    owner: str = ""  # "fmslurm gate", "fmslurm burnin" or "user NAME"
    step: str = "drain"  # what the ladder asks for now: drain, reset-gpu, reboot, replace
    tries: int = 1  # how often this finding drained this node, this time included
    bundle: str = ""  # the folder on the share with the evidence
    needs: str = ""  # what must happen to come back, in words
    gpu: str = ""  # address and UUID of the GPU that the target numbers, as far as they were listed then
    stays: str = ""  # why its own health check left it out when it looked last, in words


class Remedy(NamedTuple):
    """What whoever drains knows of the way back (gate/ladder.py): see the fields of DrainRecord. Empty: as the finding says."""

    step: str = ""
    needs: str = ""
    tries: int = 1
    bundle: str = ""
    gpu: str = ""


class PastDrain(NamedTuple):
    """A drain that is over: what it was, when it ended, and how (resumed, replaced, ...), in words."""

    record: DrainRecord
    ended_s: float
    outcome: str


def record_path(share: str, node: str) -> str:
    """Return the path of a node's record."""
    return os.path.join(share, FOLDER, f"{node}.json")


def history_path(share: str, node: str) -> str:
    """Return the path of a node's earlier drains."""
    return os.path.join(share, FOLDER, HISTORY, f"{node}.jsonl")


def to_data(record: DrainRecord) -> dict[str, Any]:
    """Return the record as plain data."""
    return {"schema": SCHEMA, **record._asdict()}


def from_data(data: object) -> DrainRecord | None:
    """Return the record in plain data, or None where it has another form. Pure; unknown fields are let be."""
    if not isinstance(data, Mapping) or type(data.get("schema")) is not int or data["schema"] != SCHEMA:
        return None
    told = {name: data[name] for name in DrainRecord._fields if name in data}
    for name, value in told.items():
        if name in ("since_s", "expires_s"):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                return None
        elif name == "tries":
            if type(value) is not int or value < 0:
                return None
        elif not isinstance(value, str):
            return None
    try:
        record = DrainRecord(**told)
    except TypeError:  # a field without a default is missing
        return None
    return record if shared.NODE_NAME.fullmatch(record.node) and record.finding and record.reason else None


def write(share: str, record: DrainRecord, *, timeout_s: float = shared.TIMEOUT_S) -> bool:
    """Write the record of a drain; say whether it is there. One that is still there ends as superseded.

    Unless both are of one drain (`is_same`): that has not ended, and is not counted twice.
    """
    if not share or not shared.NODE_NAME.fullmatch(record.node):
        return False

    def work() -> bool:
        if not shared.is_share(share):
            return False
        before = _read(share, record.node)
        if before is not None and before.since_s != record.since_s and not is_same(before, record):
            _remember(share, PastDrain(before, record.since_s, SUPERSEDED))
        write_atomic(record_path(share, record.node), json.dumps(to_data(record)) + "\n")
        return True

    return shared.bounded(work, timeout_s) is True


def read(share: str, node: str, *, timeout_s: float = shared.TIMEOUT_S) -> DrainRecord | None:
    """Return a node's record, or None where there is none, it cannot be read, or it has another form: nothing is undone then."""
    if not share or not shared.NODE_NAME.fullmatch(node):
        return None
    found = shared.bounded(lambda: _data(_read(share, node)), timeout_s)
    return from_data(found)


def read_all(share: str, *, timeout_s: float = shared.TIMEOUT_S) -> dict[str, DrainRecord] | None:
    """Return the record of every node that is out, by node; None where the share does not answer."""

    def work() -> list[dict[str, Any]] | None:
        if not shared.is_share(share):
            return None
        try:
            names = sorted(os.listdir(os.path.join(share, FOLDER)))
        except FileNotFoundError:
            return []
        nodes = [name[:-5] for name in names if name.endswith(".json") and not name.startswith(".")]
        found = (_read(share, node) for node in nodes[:RECORDS_MAX])
        return [to_data(record) for record in found if record is not None]

    listed = shared.bounded(work, timeout_s) if share else None
    if not isinstance(listed, list):
        return None
    records = (from_data(data) for data in listed)
    return {record.node: record for record in records if record is not None}


def remove(
    share: str, node: str, *, outcome: str = "", now: float | None = None, timeout_s: float = shared.TIMEOUT_S
) -> bool:
    """Remove a node's record; say whether none is there any more. With `outcome` (and `now`) it enters the node's history."""
    if not share or not shared.NODE_NAME.fullmatch(node):
        return False

    def work() -> bool:
        if not shared.is_share(share):
            return False
        record = _read(share, node) if outcome else None
        if record is not None:
            _remember(share, PastDrain(record, record.since_s if now is None else now, outcome))
        try:
            os.unlink(record_path(share, node))
        except FileNotFoundError:
            return True
        return True

    return shared.bounded(work, timeout_s) is True


def history(share: str, node: str, *, timeout_s: float = shared.TIMEOUT_S) -> tuple[PastDrain, ...] | None:
    """Return a node's earlier drains, oldest first, none where it has none; None where the share does not answer."""
    if not share or not shared.NODE_NAME.fullmatch(node):
        return None
    found = shared.bounded(
        lambda: [_past_data(past) for past in _history(share, node)] if shared.is_share(share) else None, timeout_s
    )
    return _pasts(found) if isinstance(found, list) else None


def first_to_tell(share: str, record: DrainRecord, *, now: float, timeout_s: float = shared.TIMEOUT_S) -> bool:
    """Say whether nobody has told within a day that this drain stands for too long; who asks tells it now.

    `now` in seconds since the epoch. Without a share nobody could know, and nobody tells.
    """
    path = os.path.join(share, FOLDER, TOLD, f"{record.node}.json")

    def work() -> bool:
        if not shared.is_share(share):
            return False
        try:
            before = json.loads(read_trusted(path, max_bytes=4096))
            if before["since_s"] == record.since_s and 0 <= now - before["at_s"] < TELL_EVERY_S:
                return False
        except (OSError, ValueError, KeyError, TypeError, RecursionError, UntrustedFileError):
            pass  # nobody yet
        write_atomic(path, json.dumps({"since_s": record.since_s, "at_s": now}))
        return True

    return bool(share) and bool(shared.NODE_NAME.fullmatch(record.node)) and shared.bounded(work, timeout_s) is True


def is_same(before: DrainRecord, record: DrainRecord) -> bool:
    """Say whether two records tell of one drain: two hooks of a node that met the same finding at once. Pure."""
    if not 0 <= record.since_s - before.since_s < SAME_S:
        return False
    return all(
        getattr(before, name) == getattr(record, name)
        for name in ("node", "finding", "target", "boot_id", "instance_id")
    )


def overdue(record: DrainRecord, *, now: float) -> str:
    """Return, in words, that a drain of ours stands longer than drain.expires_d; empty where it does not. Pure."""
    if not record.expires_s or now < record.expires_s:
        return ""
    days = (now - record.since_s) / DAY_S
    needs = f"; it needs {record.needs}" if record.needs else ""
    return (
        f"{record.node} has been drained by {record.owner or 'fmslurm'} for {days:.1f} days for {record.finding} on"
        f" {record.target}, longer than drain.expires_d{needs}"
    )


def _read(share: str, node: str) -> DrainRecord | None:
    """Read a record in the child that asks."""
    try:
        record = from_data(json.loads(read_trusted(record_path(share, node), max_bytes=RECORD_BYTES)))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return None
    return record if record is not None and record.node == node else None


def _data(record: DrainRecord | None) -> dict[str, Any] | None:
    return None if record is None else to_data(record)


def _past_data(past: PastDrain) -> dict[str, Any]:
    return {**to_data(past.record), "ended_s": past.ended_s, "outcome": past.outcome}


def _pasts(listed: Iterable[object]) -> tuple[PastDrain, ...]:
    """Return the earlier drains in plain data; what has another form is left out. Pure."""
    pasts = []
    for data in listed:
        record = from_data(data)
        if record is None or not isinstance(data, Mapping):
            continue
        ended, outcome = data.get("ended_s"), data.get("outcome")
        if isinstance(ended, (int, float)) and math.isfinite(ended) and isinstance(outcome, str):
            pasts.append(PastDrain(record, float(ended), outcome))
    return tuple(pasts)


def _history(share: str, node: str) -> tuple[PastDrain, ...]:
    try:
        text = read_trusted(history_path(share, node), max_bytes=HISTORY_BYTES).decode("utf-8", "replace")
    except (OSError, UntrustedFileError):
        return ()
    listed = []
    for line in text.splitlines():
        try:
            listed.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return _pasts(listed)


def _remember(share: str, past: PastDrain) -> None:
    """Enter one more drain into the node's history, of which the last HISTORY_LINES stay."""
    node = past.record.node
    kept = [*_history(share, node), past][-HISTORY_LINES:]
    write_atomic(history_path(share, node), "".join(json.dumps(_past_data(one)) + "\n" for one in kept))

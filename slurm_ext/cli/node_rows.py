"""What is told of a node: Slurm's word, our own record of the drain, and what was acknowledged. Pure but for `gather`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slurm_ext import events
from slurm_ext.cli.times import local
from slurm_ext.slurm import acks, drain_record
from slurm_ext.slurm.acks import Ack
from slurm_ext.slurm.drain_record import DrainRecord
from slurm_ext.slurm.model import Node
from slurm_ext.verdict import REASON_PREFIX, is_ours

#: The columns of `node list`; the first ones are shown unless others are chosen.
COLUMNS = (
    *("node", "state", "by", "since", "finding", "step", "reason"),
    *("target", "owner", "expires", "needs", "bundle", "tries", "acks", "partitions"),
)
SHOWN = ("node", "state", "by", "since", "finding", "step", "reason")


class Known(NamedTuple):
    """What the share holds, by node; None where it does not answer: then only Slurm's word is told."""

    records: Mapping[str, DrainRecord] | None
    acks: Mapping[str, tuple[Ack, ...]] | None

    def trouble(self, share: str) -> str:
        """Return in words what is not known since the share is not there, or nothing."""
        if self.records is not None and self.acks is not None:
            return ""
        where = f"{share} does not answer, or a file there is refused" if share else "site.share is empty"
        return f"{where}: what is needed to come back and what was acknowledged is not known here"


def gather(share: str) -> Known:
    """Read records and acknowledgements of all nodes from the share."""
    return Known(drain_record.read_all(share), acks.read_all(share))


def state_words(one: Node) -> str:
    """Return a node's state as Slurm writes it: IDLE+DRAIN."""
    return "+".join((one.state, *one.flags))


def whose(one: Node) -> str:
    """Return who set the reason: fmslurm, a user's name, or nothing."""
    if not one.reason:
        return ""
    return "fmslurm" if is_ours(one.reason) else one.reason_user or "somebody"


def in_reason(reason: str) -> tuple[str, str]:
    """Return (finding, target) in a drain reason of ours, empty where it is none."""
    if not is_ours(reason):
        return "", ""
    front = reason[len(REASON_PREFIX) :].split(": ", 1)[0]
    finding, _, target = front.partition(" ")
    return finding, target


def record_for(one: Node, known: Known) -> DrainRecord | None:
    """Return our record where it is about this very drain: Slurm shows its reason, or its own for a prolog that failed."""
    record = (known.records or {}).get(one.name)
    if record is None or not one.drained:
        return None
    return record if is_ours(one.reason) or one.reason == "Prolog error" else None


def drained_for(one: Node, known: Known) -> tuple[str, str]:
    """Return (finding, target) that we drained a node for, empty where we did not."""
    record = record_for(one, known)
    return (record.finding, record.target) if record is not None else in_reason(one.reason)


def holding(node: str, known: Known, now: float) -> list[Ack]:
    """Return the acknowledgements of a node that hold now."""
    return [ack for ack in (known.acks or {}).get(node, ()) if now < ack.until_s]


def row(one: Node, known: Known, now: float) -> dict[str, str]:
    """Return one line of the table."""
    record = record_for(one, known)
    finding, target = drained_for(one, known)
    return {
        "node": one.name,
        "state": state_words(one),
        "by": whose(one) if record is None else "fmslurm",
        "since": local(one.reason_time),
        "finding": finding,
        "target": target,
        "step": record.step if record else "",
        "reason": one.reason,
        "owner": record.owner if record else "",
        "expires": local(record.expires_s) if record else "",
        "needs": record.needs if record else "",
        "bundle": record.bundle if record else "",
        "tries": str(record.tries) if record else "",
        "acks": ", ".join(ack.finding for ack in holding(one.name, known, now)),
        "partitions": ",".join(one.partitions),
    }


def as_data(one: Node, known: Known | None = None, now: float = 0.0) -> dict[str, Any]:
    """Return a node as plain data for --json; times in UTC, empty where there is none."""
    told = known or Known({}, {})
    record = record_for(one, told)
    finding, target = drained_for(one, told)
    return {
        "node": one.name,
        "state": one.state,
        "flags": list(one.flags),
        "drained": one.drained,
        "reason": one.reason,
        "reason_by": whose(one),
        "reason_time": stamp(one.reason_time),
        "finding": finding,
        "target": target,
        "address": one.address,
        "partitions": list(one.partitions),
        "gres": one.gres,
        "cpus": one.cpus,
        "boot_time": stamp(one.boot_time),
        "slurmd_start_time": stamp(one.slurmd_start_time),
        "drain": record_data(record) if record is not None else None,
        "acks": [ack_data(ack) for ack in holding(one.name, told, now)],
    }


def record_data(record: DrainRecord) -> dict[str, Any]:
    """Return a record as plain data, times as text."""
    plain = {name: value for name, value in record._asdict().items() if name not in ("since_s", "expires_s")}
    return {**plain, "since": stamp(record.since_s), "expires": stamp(record.expires_s)}


def ack_data(ack: Ack) -> dict[str, Any]:
    """Return an acknowledgement as plain data, times as text."""
    plain = {name: value for name, value in ack._asdict().items() if name not in ("until_s", "at_s")}
    return {**plain, "until": stamp(ack.until_s), "at": stamp(ack.at_s)}


def stamp(seconds: float) -> str:
    """Return a time in UTC, nothing for 0."""
    return events.stamp(seconds) if seconds else ""


def told(one: Node, known: Known, now: float) -> Iterable[str]:
    """Yield the lines of `node show` for one node."""
    yield one.name
    for name, value in as_data(one, known, now).items():
        if name not in ("node", "drain", "acks", "finding", "target") and value not in ("", 0, [], None):
            yield f"  {name:18} {', '.join(value) if isinstance(value, list) else value}"
    finding, target = drained_for(one, known)
    record = record_for(one, known)
    if finding and one.drained:
        yield f"  drained for        {finding} on {target}"
    if record is not None:
        yield f"    by               {record.owner}, since {local(record.since_s)}, time {record.tries} for this finding"
        yield f"    asks for         {record.step}"
        if record.needs:
            yield f"    to come back     {record.needs}"
        if record.stays:
            yield f"    it stays out     {record.stays}"
        if record.expires_s:
            yield f"    look at it by    {local(record.expires_s)}"
        if record.boot_id or record.instance_id:
            yield f"    on               instance {record.instance_id or '?'}, boot {record.boot_id or '?'}"
        if record.bundle:
            yield f"    evidence         {record.bundle}"
    elif finding and one.drained:
        yield "    to come back     `fmslurm node resume` by a person: there is no record of this drain"
    for ack in holding(one.name, known, now):
        yield f"  acknowledged       {acks.words(ack, local)}"

"""Tell of drains of ours that stand for too long, also of nodes that cannot tell it themselves any more. Nothing is undone."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.config.model import Settings
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.breaker import MANUAL_PREFIX
from slurm_ext.slurm.drain_record import DrainRecord
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.outcome import Context, event_for
from slurm_ext.verdict import REASON_PREFIX

#: How often (seconds) the controller looks.
LOOK_EVERY_S = 1_800.0

#: A record is written before its drain; what Slurm shows for longer (seconds) without one has none.
SETTLED_S = 600.0


def remind(settings: Settings, events_path: str, *, now: float) -> tuple[str, ...]:
    """Write an event for each drain that stands too long and of which nobody told within a day; return these nodes."""
    share = settings.site.share
    told = []
    for node, record in sorted((drain_record.read_all(share) or {}).items()):
        words = drain_record.overdue(record, now=now)
        if words and drain_record.first_to_tell(share, record, now=now):
            event = event_for("node.drain-expired", settings, Context("gate", now, events_path, node=node))
            event = event._replace(
                rule=record.finding, reason=words, decision="report", data={"record": record._asdict()}
            )
            Journal(events_path, share, node).write(event)
            told.append(node)
    return tuple(told)


def unrecorded(settings: Settings, nodes: Iterable[Node], events_path: str, *, now: float) -> tuple[str, ...]:
    """Write an event, once a day, for each node that shows a drain of ours and has no record; return these nodes.

    Nothing looks for its proof: such a node would stay out for ever, and nobody be told. What a person asked for is a person's.
    """
    share = settings.site.share
    records = drain_record.read_all(share)
    if records is None:
        return ()
    told = []
    for node in nodes:
        is_ours = node.drained and node.reason.startswith(REASON_PREFIX) and not node.reason.startswith(MANUAL_PREFIX)
        if not is_ours or node.name in records or now - node.reason_time < SETTLED_S:
            continue
        finding, _, rest = node.reason[len(REASON_PREFIX) :].partition(" ")
        since_s = float(node.reason_time)
        record = DrainRecord(node.name, finding or "?", rest.partition(": ")[0], "", node.reason, since_s)
        if drain_record.first_to_tell(share, record, now=now):
            event = event_for("node.drain-unrecorded", settings, Context("gate", now, events_path, node=node.name))
            words = f"drained by us and nobody has a record of it: it comes back by hand only (fmslurm node resume): {node.reason}"
            event = event._replace(rule=finding, reason=words, decision="report")
            Journal(events_path, share, node.name).write(event)
            told.append(node.name)
    return tuple(told)

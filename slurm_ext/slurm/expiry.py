"""Tell of drains of ours that stand for too long, also of nodes that cannot tell it themselves any more. Nothing is undone."""

from __future__ import annotations

from slurm_ext.config.model import Settings
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.outcome import Context, event_for

#: How often (seconds) the controller looks.
LOOK_EVERY_S = 1_800.0


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

"""Who acts and what came of it: shared by what fmslurm does to nodes (act.py) and to jobs (act_job.py).

Standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext import shared
from slurm_ext.config.model import Settings
from slurm_ext.config.modes import effective_mode
from slurm_ext.events import Event
from slurm_ext.slurm.journal import Journal
from slurm_ext.typed import NamedTuple

#: What an Outcome's `result` may be.
RESULTS = (
    "done",
    "already",
    "foreign",
    "in-hand",
    "acked",
    "observed",
    "dry-run",
    "breaker-open",
    "no-ledger",
    "passed",
    "failed",
)


class Outcome(NamedTuple):
    """What became of an act. `done` is True where the world is now as wanted; `result` is one of RESULTS."""

    done: bool
    result: str
    reason: str
    mode: str = ""


class Context(NamedTuple):
    """Who acts, for whom, where it is written. `mode` empty: decided from settings and off switches for `room`."""

    room: str
    now: float  # seconds since the epoch
    events_path: str = ""
    node: str = ""  # whose trail on the share gets the events; drain_node fills it in
    partition: str = ""
    job: str = ""
    attempt: str = ""
    mode: str = ""
    dry_run: bool = False
    instance_id: str = ""
    boot_id: str = ""
    actor: Mapping[str, object] = {}  # the person who asked for it (cli/actor.py), empty where nobody did


def rung_for(settings: Settings, context: Context, node: str) -> tuple[str, str]:
    if context.mode:
        return context.mode, f"the mode is {context.mode}"
    off = shared.switches(settings.site.share) or ()
    return effective_mode(settings, context.room, node=node, partition=context.partition, off=off, now=context.now)


def observe(journal: Journal, event: Event, context: Context, rung: str, why: str) -> Outcome | None:
    """Write the same line and do nothing where the mode is not enforce, or for a dry run; else return None."""
    if rung == "enforce" and not context.dry_run:
        return None
    result = "dry-run" if context.dry_run else "observed"
    if rung != "off" or context.dry_run:
        journal.write(event._replace(phase="intent", dry_run=True, data={**event.data, "why_not": why}))
    return Outcome(False, result, f"would {event.decision}: {event.reason} ({why})", rung)


def event_for(name: str, settings: Settings, context: Context) -> Event:
    return Event(
        name,
        room=context.room,
        node=context.node,
        job=context.job,
        attempt=context.attempt,
        instance_id=context.instance_id,
        boot_id=context.boot_id,
        config=settings.source_hash[:12],
        data={"actor": dict(context.actor)} if context.actor else {},
    )

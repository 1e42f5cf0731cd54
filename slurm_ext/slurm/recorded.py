"""A drain and its record (drain_record.py) belong together: written before the drain, gone where the drain was not done.

Standard library only: hooks import this.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.config.model import Settings
from slurm_ext.events import Event
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.drain_record import STEPS, DrainRecord, Remedy
from slurm_ext.slurm.outcome import Context
from slurm_ext.verdict import Finding, one_line

DAY_S = 86_400.0

#: How the record of a person's drain says what it needs.
BY_HAND = Remedy(STEPS[0], "a person drained it, and a person resumes it: fmslurm node resume")


def record_of(
    settings: Settings, told: Context, finding: Finding, reason: str, *, owner: str, remedy: Remedy
) -> DrainRecord:
    """Return the record of a drain that is about to be done."""
    days = settings.drain.expires_d
    return DrainRecord(
        node=told.node,
        finding=finding.id,
        target=finding.target,
        action=finding.action,
        reason=reason,
        since_s=told.now,
        expires_s=told.now + days * DAY_S if days > 0 else 0.0,
        boot_id=told.boot_id,
        instance_id=told.instance_id,
        owner=owner,
        step=remedy.step or (finding.action if finding.action in STEPS else STEPS[0]),
        tries=remedy.tries,
        bundle=remedy.bundle,
        needs=remedy.needs,
        gpu=remedy.gpu,
    )


def owner_of(actor: str) -> str:
    """Return the owner of a drain that a person asked for."""
    return f"user {one_line(actor, 64)}" if actor else "user"


def around(
    share: str,
    record: DrainRecord,
    event: Event,
    drain: Callable[[Event], tuple[bool, str]],
    is_without: Callable[[], bool],
) -> tuple[bool, str]:
    """Write the record, drain (`drain` gets the event to journal), and return (done, why not).

    Where it was not done and `is_without` says that the node shows no drain of ours, the record is taken back. Where Slurm
    does not say, it stays: a record without a drain is found out by the node itself, a drain without a record by nobody. A
    share that takes no record stops no drain; such a node comes back by hand.
    """
    before = drain_record.read(share, record.node)
    written = drain_record.write(share, record)
    if not written and share:
        event = event._replace(data={**event.data, "record": "not written: this node comes back by hand only"})
    done, wrong = drain(event)
    if not done and written and is_without():
        drain_record.remove(share, record.node)
        if before is not None:
            drain_record.write(share, before)
    return done, wrong

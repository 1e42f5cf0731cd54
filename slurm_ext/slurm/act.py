"""What fmslurm does to nodes and jobs (act_job.py): mode, breaker, event first, act, confirm by reading Slurm again.

Everything automatic goes through here. Standard library only: hooks import this.
"""

from __future__ import annotations

from slurm_ext import events
from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError, SlurmError
from slurm_ext.events import Event
from slurm_ext.slurm import acks, drain_record, ledger, recorded, repair, site_policy
from slurm_ext.slurm.act_job import cancel_job, exclude_nodes, release_job, requeue_job, stop_job
from slurm_ext.slurm.breaker import MANUAL, MANUAL_PREFIX, drained_lately, fleet_size, is_slurms_own
from slurm_ext.slurm.breaker_events import hold_back
from slurm_ext.slurm.drain_record import DrainRecord, Remedy
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.outcome import RESULTS, Context, Outcome, event_for, observe, rung_for
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.verdict import Finding, drain_reason, is_ours, one_line

__all__ = [
    "MANUAL",
    "RESULTS",
    "Context",
    "Outcome",
    "cancel_job",
    "drain_by_hand",
    "drain_node",
    "exclude_nodes",
    "release_job",
    "requeue_job",
    "stop_job",
    "undrain_node",
]

#: The reason of Slurm's own drain after a prolog that exited with 1. Only a record of ours makes such a drain ours.
PROLOG_ERROR = "Prolog error"


def drain_node(
    slurm: Slurm,
    settings: Settings,
    node: str,
    finding: Finding,
    *,
    job: str = "",
    now: float,
    dry_run: bool = False,
    events_path: str = "",
    room: str = "gate",
    mode: str = "",
    first_boot: bool = False,
    context: Context | None = None,
    remedy: Remedy = Remedy(),  # noqa: B008 - a NamedTuple
) -> Outcome:
    """Drain one node for a finding, within mode and breaker, and never over somebody else's reason.

    `mode` is the rung the caller found; empty: found here. `context` overrides the loose arguments. The ledger on the
    share is written before the drain, so a crash counts it. No ledger, no drain. So is the record by which it is undone
    (drain_record.py): `remedy` says what the way back is. What a person acknowledged is not drained for.
    """
    told = context or Context(room, now, events_path, node=node, job=job, mode=mode, dry_run=dry_run)
    told = told._replace(node=told.node or node)
    reason = drain_reason(finding)
    event = event_for("node.drain", settings, told)._replace(
        node=node, rule=finding.id, reason=reason, evidence=finding.evidence, decision="drain"
    )
    journal = Journal(told.events_path, settings.site.share, node)
    rung, why = rung_for(settings, told, node)
    if (observed := observe(journal, event, told, rung, why)) is not None:
        return observed
    known = acks.holds(acks.read(settings.site.share, node), finding.id, now, target=finding.target)
    if known is not None:
        words = acks.words(known, events.stamp)
        journal.write(
            event._replace(phase="fact", decision="acked", reason=words, data={**event.data, "ack": known._asdict()})
        )
        return Outcome(False, "acked", words, rung)
    try:
        every = slurm.nodes()
    except FmslurmError as exc:
        journal.write(event._replace(phase="failed", evidence=(*finding.evidence, str(exc))))
        return Outcome(False, "failed", str(exc), rung)
    found = next((one for one in every if one.name == node), None)
    if (left := _leave_alone(found, node, settings)) is not None:
        journal.write(event._replace(phase="fact", decision="leave alone", reason=left.reason))
        return left._replace(mode=rung)
    ruling = ledger.claim(
        settings.site.share,
        node,
        drain=settings.drain,
        nodes=fleet_size(every),
        first_boot=first_boot,
        also=drained_lately(every, now=now),
        data={"finding": finding.id, "target": finding.target, "job": told.job},
    )
    if not ruling.allowed:
        return hold_back(settings, journal, event, finding, ruling, now=now)._replace(mode=rung)
    afterwards = site_policy.after_drain(site_policy.kind(settings, node), finding.action)
    event = event._replace(data={**event.data, "budget": ruling.budget, "afterwards": afterwards.words})
    record = recorded.record_of(settings, told, finding, reason, owner=f"fmslurm {told.room}", remedy=remedy)
    return _drain_recorded(slurm, settings, journal, event, record)._replace(mode=rung)


def drain_by_hand(
    slurm: Slurm, settings: Settings, node: str, why: str, context: Context, *, actor: str = ""
) -> Outcome:
    """Drain a node because a person wants it: no mode, no breaker, but never over another's reason, and an event first.

    `actor` is that person's name, for the record of the drain.
    """
    finding = Finding(MANUAL, "node", "drain", (why,))
    reason = drain_reason(finding)
    told = context._replace(node=node)
    event = event_for("node.drain", settings, told)._replace(rule=MANUAL, reason=reason, decision="drain by hand")
    journal = Journal(told.events_path, settings.site.share, node)
    if (left := _leave_alone(_node(slurm, node), node, settings)) is not None:
        return left
    if context.dry_run:
        return Outcome(False, "dry-run", f"would drain {node}: {reason}")
    owner = recorded.owner_of(actor)
    record = recorded.record_of(settings, told, finding, reason, owner=owner, remedy=recorded.BY_HAND)
    return _drain_recorded(slurm, settings, journal, event, record)


def _drain_recorded(slurm: Slurm, settings: Settings, journal: Journal, event: Event, record: DrainRecord) -> Outcome:
    """Write the record and the intent, look once more whether the node is still nobody's, and drain it."""
    node, reason = record.node, record.reason
    late: list[Outcome] = []

    def act() -> None:
        # Entry and intent took a moment, in which a person may have drained it.
        if (left := _leave_alone(_node(slurm, node), node, settings)) is not None:
            late.append(left)
            raise SlurmError(left.reason)
        slurm.drain(node, reason)

    done, wrong = recorded.around(
        settings.site.share,
        record,
        event,
        lambda intent: journal.do(intent, act, lambda: _is_drained_by_us(slurm, node)),
        lambda: _is_without(slurm, node, reason),
    )
    if late:
        return late[0]
    return Outcome(done, "done" if done else "failed", reason if done else wrong)


def undrain_node(
    slurm: Slurm,
    settings: Settings,
    node: str,
    why: str,
    context: Context,
    *,
    by_hand: bool = False,
    expected: str | None = None,
    set_s: int | None = None,
) -> Outcome:
    """Resume a node that we drained, on proof that `why` words; a node with another's reason is left alone.

    `by_hand`: a person asks, so no mode stands in the way, and a drain that a person asked for may be undone. `expected` is
    the whole reason that the proof is about: a node that has another one meanwhile is left alone, whoever set it. So is one
    whose reason was not set at `set_s` (seconds since the epoch): the same text may have been set anew.
    """
    told = context._replace(node=context.node or node)
    event = event_for("node.resume", settings, told)._replace(node=node, reason=one_line(why), decision="resume")
    journal = Journal(told.events_path, settings.site.share, node)
    rung, reason = ("enforce", "") if by_hand else rung_for(settings, told, node)
    if not by_hand and (observed := observe(journal, event, told, rung, reason)) is not None:
        return observed
    try:
        found = _node(slurm, node)
    except FmslurmError as exc:
        return Outcome(False, "failed", str(exc), rung)
    if found is None:
        return Outcome(False, "failed", f"Slurm knows no node {node}", rung)
    if not found.drained:
        return Outcome(True, "already", f"{node} is not drained", rung)
    if not _is_for_us_to_resume(found, by_hand, expected, set_s):
        return Outcome(False, "foreign", f"{node} was drained by {found.reason_user}: {one_line(found.reason)}", rung)
    if context.dry_run:
        return Outcome(False, "dry-run", f"would resume {node}, drained for: {found.reason}", rung)

    def act() -> None:
        # The intent took a moment, in which a person may have taken the drain over.
        now = _node(slurm, node)
        if now is not None and now.drained and not _is_for_us_to_resume(now, by_hand, expected, set_s):
            raise SlurmError(f"{node} was drained by {now.reason_user} meanwhile: {one_line(now.reason)}")
        slurm.resume_node(node)

    def confirm() -> str:
        after = _node(slurm, node)
        return "" if after is not None and not after.drained else f"{node} is still drained"

    done, wrong = journal.do(event, act, confirm)
    if done:
        outcome = f"resumed {'by hand' if by_hand else 'on proof'}: {one_line(why)}"
        drain_record.remove(settings.site.share, node, outcome=outcome, now=told.now)
    return Outcome(done, "done" if done else "failed", one_line(why) if done else wrong, rung)


def _is_for_us_to_resume(found: Node, by_hand: bool, expected: str | None, set_s: int | None) -> bool:
    """Say whether a drain is ours to undo: what a person asked for is undone by a person only."""
    if expected is not None and found.reason != expected:
        return False
    if set_s is not None and found.reason_time != set_s:
        return False
    ours = is_ours(found.reason) or (expected is not None and found.reason == PROLOG_ERROR)
    return ours and (by_hand or not found.reason.startswith(MANUAL_PREFIX))


def _node(slurm: Slurm, name: str) -> Node | None:
    return next((node for node in slurm.nodes([name]) if node.name == name), None)


def _is_without(slurm: Slurm, name: str, reason: str) -> bool:
    """Say whether Slurm shows the node without our drain; no answer is a no."""
    try:
        found = _node(slurm, name)
    except FmslurmError:
        return False
    return found is not None and not (found.drained and found.reason == reason)


def _is_drained_by_us(slurm: Slurm, name: str) -> str:
    found = _node(slurm, name)
    if found is not None and found.drained and is_ours(found.reason):
        return ""
    return f"{name} is {found.state} {' '.join(found.flags)}, reason {found.reason!r}" if found else f"no node {name}"


def _leave_alone(found: Node | None, name: str, settings: Settings) -> Outcome | None:
    """Return why a node must not be touched, or None where it may be drained."""
    if found is None:
        return Outcome(False, "failed", f"Slurm knows no node {name}")
    if found.drained and is_ours(found.reason):
        return Outcome(True, "already", f"already drained by us: {found.reason}")
    if found.drained:
        return Outcome(
            False, "foreign", f"already drained by {found.reason_user or 'somebody'}: {one_line(found.reason)}"
        )
    if words := repair.by_others(found, site_policy.kind(settings, name)):
        return Outcome(False, "in-hand", f"somebody else has it in hand: {words}")
    if found.state == "DOWN" and not is_ours(found.reason) and not is_slurms_own(found.reason):
        return Outcome(False, "in-hand", f"set down by {found.reason_user or 'somebody'}: {one_line(found.reason)}")
    return None

"""What fmslurm does to nodes and jobs (act_job.py): mode, breaker, event first, act, confirm by reading Slurm again.

Everything automatic goes through here. Standard library only: hooks import this.
"""

from __future__ import annotations

from slurm_ext import events, shared
from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError
from slurm_ext.slurm import acks
from slurm_ext.slurm.act_job import exclude_nodes, release_job, requeue_job, stop_job
from slurm_ext.slurm.breaker import is_slurms_own, judge_drain
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.outcome import RESULTS, Context, Outcome, event_for, observe, rung_for
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.verdict import REASON_PREFIX, Finding, drain_reason, is_ours, one_line

__all__ = [
    "MANUAL",
    "RESULTS",
    "Context",
    "Outcome",
    "drain_by_hand",
    "drain_node",
    "exclude_nodes",
    "release_job",
    "requeue_job",
    "stop_job",
    "undrain_node",
]

#: The finding of a drain that a person asked for: no proof of health undoes it, only a person.
MANUAL = "node.manual"


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
) -> Outcome:
    """Drain one node for a finding, within mode and breaker, and never over somebody else's reason.

    `mode` is the rung the caller found; empty: found here. `context` overrides the loose arguments. The ledger on the
    share is written before the drain, so a crash counts it. No ledger, no drain. What a person acknowledged is not drained for.
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
        journal.write(event._replace(phase="fact", decision="acked", reason=words, data={"ack": known._asdict()}))
        return Outcome(False, "acked", words, rung)
    try:
        every = slurm.nodes()
    except FmslurmError as exc:
        journal.write(event._replace(phase="failed", evidence=(*finding.evidence, str(exc))))
        return Outcome(False, "failed", str(exc), rung)
    found = next((one for one in every if one.name == node), None)
    if (left := _leave_alone(found, node)) is not None:
        journal.write(event._replace(phase="fact", decision="leave alone", reason=left.reason))
        return left._replace(mode=rung)
    share, limits = settings.site.share, settings.drain
    ruling = judge_drain(shared.drains(share, now=now), node, drain=limits, nodes=len(every), first_boot=first_boot)
    if ruling.allowed:
        data = {"finding": finding.id, "target": finding.target, "job": told.job, "first_boot": first_boot}
        if not shared.record_drain(share, node, now=now, data=data):
            ruling = ruling._replace(
                allowed=False, reason="the ledger of drains cannot be written, so nothing is drained"
            )
        else:
            # Others may have entered theirs meanwhile: the first few in the ledger's own order win.
            upto = int(now * 1000) / 1000
            again = shared.drains(share, now=now)
            ruling = judge_drain(again, node, drain=limits, nodes=len(every), first_boot=first_boot, upto=upto)
    if not ruling.allowed:
        journal.write(event._replace(phase="fact", decision="suppressed", reason=ruling.reason))
        result = "no-ledger" if "ledger" in ruling.reason else "breaker-open"
        return Outcome(False, result, ruling.reason, rung)
    done, wrong = journal.do(event, lambda: slurm.drain(node, reason), lambda: _is_drained_by_us(slurm, node))
    return Outcome(done, "done" if done else "failed", reason if done else wrong, rung)


def drain_by_hand(slurm: Slurm, settings: Settings, node: str, why: str, context: Context) -> Outcome:
    """Drain a node because a person wants it: no mode, no breaker, but never over another's reason, and an event first."""
    finding = Finding(MANUAL, "node", "drain", (why,))
    reason = drain_reason(finding)
    told = context._replace(node=node)
    event = event_for("node.drain", settings, told)._replace(rule=MANUAL, reason=reason, decision="drain by hand")
    journal = Journal(told.events_path, settings.site.share, node)
    if (left := _leave_alone(_node(slurm, node), node)) is not None:
        return left
    if context.dry_run:
        return Outcome(False, "dry-run", f"would drain {node}: {reason}")
    done, wrong = journal.do(event, lambda: slurm.drain(node, reason), lambda: _is_drained_by_us(slurm, node))
    return Outcome(done, "done" if done else "failed", reason if done else wrong)


def undrain_node(
    slurm: Slurm, settings: Settings, node: str, why: str, context: Context, *, by_hand: bool = False
) -> Outcome:
    """Resume a node that we drained, on proof that `why` words; a node with another's reason is left alone.

    `by_hand`: a person asks, so no mode stands in the way, and a drain that a person asked for may be undone.
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
    if not is_ours(found.reason) or (not by_hand and found.reason.startswith(f"{REASON_PREFIX}{MANUAL} ")):
        return Outcome(False, "foreign", f"{node} was drained by {found.reason_user}: {one_line(found.reason)}", rung)
    if context.dry_run:
        return Outcome(False, "dry-run", f"would resume {node}, drained for: {found.reason}", rung)

    def confirm() -> str:
        after = _node(slurm, node)
        return "" if after is not None and not after.drained else f"{node} is still drained"

    done, wrong = journal.do(event, lambda: slurm.resume_node(node), confirm)
    return Outcome(done, "done" if done else "failed", one_line(why) if done else wrong, rung)


def _node(slurm: Slurm, name: str) -> Node | None:
    return next((node for node in slurm.nodes([name]) if node.name == name), None)


def _is_drained_by_us(slurm: Slurm, name: str) -> str:
    found = _node(slurm, name)
    if found is not None and found.drained and is_ours(found.reason):
        return ""
    return f"{name} is {found.state} {' '.join(found.flags)}, reason {found.reason!r}" if found else f"no node {name}"


def _leave_alone(found: Node | None, name: str) -> Outcome | None:
    """Return why a node must not be touched, or None where it may be drained."""
    if found is None:
        return Outcome(False, "failed", f"Slurm knows no node {name}")
    if found.drained and is_ours(found.reason):
        return Outcome(True, "already", f"already drained by us: {found.reason}")
    if found.drained:
        return Outcome(
            False, "foreign", f"already drained by {found.reason_user or 'somebody'}: {one_line(found.reason)}"
        )
    if found.state == "DOWN" and not is_ours(found.reason) and not is_slurms_own(found.reason):
        return Outcome(False, "foreign", f"set down by {found.reason_user or 'somebody'}: {one_line(found.reason)}")
    return None

"""`fmslurm node ack|unack`: a finding is known, and the node stays in use until then. It counts for the check's false-alarm rate."""

from __future__ import annotations

from collections.abc import Sequence

import click

from slurm_ext.cli import node_rows
from slurm_ext.cli.actor import Actor, actor
from slurm_ext.cli.node_options import AS_JSON, DRY_RUN, HOSTS, NODES, context_of, each, nodes_of, target_of, wanted
from slurm_ext.cli.output import say_text
from slurm_ext.cli.reasons import said
from slurm_ext.cli.times import local, until_s
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError, UsageError
from slurm_ext.events import Event
from slurm_ext.slurm import acks, connect
from slurm_ext.slurm.acks import ANY, Ack
from slurm_ext.slurm.act import Context, Outcome
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.outcome import event_for
from slurm_ext.verdict import one_line

__all__ = ["ack", "given", "local", "take_back", "unack", "until", "write"]


@click.command()
@click.argument("finding", metavar="FINDING")
@NODES
@HOSTS
@click.option(
    "--until", "when", required=True, metavar="TIME", help="Until when: 2h, 3d, 2w, 2026-12-24, 2026-12-24T18:00."
)
@click.option("--reason", required=True, help="Why it is known and the node is good enough.")
@click.option(
    "--target", default="", help="Only on this target (gpu:3). Without: what the node is drained for, else any."
)
@DRY_RUN
@AS_JSON
def ack(
    finding: str,
    names: Sequence[str],
    nodelist: str,
    when: str,
    reason: str,
    target: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Acknowledge a finding, so that it does not drain these nodes until then. It does not resume them: `node resume`.

    The job starts and its event says who acknowledged what. Another finding, or the same on another target, drains as ever.
    """
    nodes, reason, target = wanted(names, nodelist, needed=True), said(reason), target_of(target)
    known_finding(finding)
    settings, who = located_settings(), actor()
    told = context_of(settings, who, dry_run=dry_run)
    end_s = until(when, told.now)
    known = node_rows.gather(settings.site.share)
    # Slurm is asked also to catch a name that is none.
    drained = {one.name: node_rows.drained_for(one, known) for one in nodes_of(connect(settings), nodes, "")}

    def act(name: str) -> Outcome:
        of_drain = drained.get(name, ("", ""))
        where = target or (of_drain[1] if of_drain[0] == finding else "") or ANY
        one = given(name, finding, where, end_s, reason, who, told.now)
        words = acks.words(one, local)
        if dry_run:
            return Outcome(False, "dry-run", f"would acknowledge: {words}")
        write(settings, one, told)
        return Outcome(True, "done", words)

    each(nodes, act, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("finding", metavar="FINDING")
@NODES
@HOSTS
@click.option("--target", default="", help="Only on this target; without: on every target.")
@DRY_RUN
@AS_JSON
def unack(finding: str, names: Sequence[str], nodelist: str, target: str, dry_run: bool, as_json: bool) -> None:
    """Take an acknowledgement back, as if it had never been: the finding drains again, and no false alarm is counted."""
    nodes, target = wanted(names, nodelist, needed=True), target_of(target)
    settings, who = located_settings(), actor()
    share = settings.site.share
    told = context_of(settings, who, dry_run=dry_run)

    def act(name: str) -> Outcome:
        if dry_run:
            return Outcome(False, "dry-run", f"would take back what was acknowledged of {finding}")
        done = acks.remove(share, name, finding, target)
        if done is None:
            raise _unreachable(share)
        if not done:
            return Outcome(False, "failed", f"nothing of {finding} is acknowledged here")
        event = event_for("node.unack", settings, told._replace(node=name))
        _tell(
            settings,
            event._replace(rule=finding, reason=f"{finding} drains again", decision="unack", phase="done"),
            told,
        )
        return Outcome(True, "done", f"{finding} is not acknowledged any more")

    each(nodes, act, dry_run=dry_run, as_json=as_json)


def known_finding(finding: str) -> None:
    """Raise UsageError for a finding that nothing can produce, or for the beginning of several."""
    from slurm_ext.gate import meanings

    meaning = meanings.find(finding)
    if meaning is None or finding.endswith(("-", ".")):
        near = meanings.closest(finding)
        words = "is the beginning of several findings" if meaning is not None else "is no finding"
        raise UsageError(
            f"{finding[:100]!r} {words}", remedy=f"Nearest: {', '.join(near)}" if near else "See `fmslurm gate list`"
        )


def until(text: str, now: float) -> float:
    """Return the end of an acknowledgement in seconds since the epoch. Raise UsageError for other text and for the past."""
    return until_s(text, now)


def given(name: str, finding: str, target: str, end_s: float, reason: str, who: Actor, now: float) -> Ack:
    """Return an acknowledgement of one node; its words are made harmless, since reasons and logs quote them."""
    return Ack(name, finding, target, end_s, one_line(reason, 200), one_line(who.words(), 80), now)


def write(settings: Settings, one: Ack, told: Context) -> None:
    """Write an acknowledgement and its event. Raise LackingError where the share takes none: then it would not hold."""
    if not acks.is_writable(one):
        raise UsageError(
            f"{one.target!r} is no target", remedy="Write it as `fmslurm node show` does: gpu:3, node, efa:rdmap79s0"
        )
    if not acks.write(settings.site.share, one):
        raise _unreachable(settings.site.share)
    event = event_for("node.ack", settings, told._replace(node=one.node))
    data = {**event.data, "ack": one._asdict()}
    _tell(
        settings,
        event._replace(
            rule=one.finding, reason=acks.words(one, node_rows.stamp), decision="ack", phase="done", data=data
        ),
        told,
    )


def take_back(settings: Settings, one: Ack) -> None:
    """Remove an acknowledgement that came to nothing."""
    acks.remove(settings.site.share, one.node, one.finding, one.target)


def _tell(settings: Settings, event: Event, told: Context) -> None:
    if not Journal(told.events_path, settings.site.share, event.node).write(event):
        say_text("done, but written to no trail", err=True)


def _unreachable(share: str) -> LackingError:
    if not share:
        return LackingError("site.share is empty, so the nodes' hooks would not see it", remedy="Set site.share")
    return LackingError(f"{share} does not answer or may not be written", remedy="Run it as root where it is mounted")

"""`fmslurm node drain|resume`: take nodes out and bring them back by hand, with who did it and why."""

from __future__ import annotations

from collections.abc import Sequence

import click

from slurm_ext.cli import node_ack, node_rows
from slurm_ext.cli.actor import actor
from slurm_ext.cli.node_options import AS_JSON, DRY_RUN, HOSTS, NODES, context_of, each, wanted
from slurm_ext.cli.reasons import said
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.errors import UsageError
from slurm_ext.slurm import connect
from slurm_ext.slurm.act import MANUAL, PROLOG_ERROR, Outcome, drain_by_hand, undrain_node


@click.command()
@NODES
@HOSTS
@click.option("--reason", required=True, help="Why; it goes into the node's reason.")
@DRY_RUN
@AS_JSON
def drain(names: Sequence[str], nodelist: str, reason: str, dry_run: bool, as_json: bool) -> None:
    """Drain nodes by hand. A node that somebody else drained keeps that reason; no proof of health undoes yours."""
    nodes, reason = wanted(names, nodelist, needed=True), said(reason)
    settings, who = located_settings(), actor()
    slurm = connect(settings)
    told = context_of(settings, who, dry_run=dry_run)
    words = f"{reason} (by {who.words()})"
    each(
        nodes,
        lambda one: drain_by_hand(slurm, settings, one, words, told, actor=who.words()),
        dry_run=dry_run,
        as_json=as_json,
    )


@click.command()
@NODES
@HOSTS
@click.option("--reason", default="", help="Why, for the trail.")
@click.option(
    "--ack", "acks_it", is_flag=True, help="Acknowledge the finding, too, so that it does not drain again at once."
)
@click.option(
    "--until", default="1d", show_default=True, metavar="TIME", help="With --ack: until when (2h, 3d, a date)."
)
@DRY_RUN
@AS_JSON
def resume(
    names: Sequence[str], nodelist: str, reason: str, acks_it: bool, until: str, dry_run: bool, as_json: bool
) -> None:
    """Resume nodes that fmslurm drained. A reason that is not ours is for its owner to clear, with scontrol.

    The gate drains a node again for the same finding unless it is mended, or acknowledged (--ack, or `fmslurm node ack`).
    """
    nodes = wanted(names, nodelist, needed=True)
    reason = reason.strip()
    if acks_it and not reason:
        raise UsageError("--ack needs --reason", remedy="Say why the finding is known and the node is good enough")
    settings, who = located_settings(), actor()
    slurm = connect(settings)
    share = settings.site.share
    told = context_of(settings, who, dry_run=dry_run)
    until_s = node_ack.until(until, told.now) if acks_it else 0.0
    known = node_rows.gather(share)
    words = f"{reason or 'no reason given'} (by {who.words()})"

    def act(name: str) -> Outcome:
        found = next((one for one in slurm.nodes([name]) if one.name == name), None)
        record = node_rows.record_for(found, known) if found is not None else None
        # Slurm's own reason for a prolog that failed is ours to clear where our record says that it was our prolog.
        expected = PROLOG_ERROR if record is not None and found is not None and found.reason == PROLOG_ERROR else None
        finding, target = node_rows.drained_for(found, known) if found is not None and found.drained else ("", "")
        given = None
        if acks_it and not dry_run and finding and finding != MANUAL:
            # First: a hook between the two would drain it again.
            given = node_ack.given(name, finding, target, until_s, reason, who, told.now)
            node_ack.write(settings, given, told)
        outcome = undrain_node(slurm, settings, name, words, told, by_hand=True, expected=expected)
        if given is not None and not outcome.done:
            node_ack.take_back(settings, given)
        if given is not None and outcome.done:
            return outcome._replace(
                reason=f"{outcome.reason}; {finding} is acknowledged until {node_ack.local(until_s)}"
            )
        return outcome

    each(nodes, act, dry_run=dry_run, as_json=as_json)

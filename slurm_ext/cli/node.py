"""`fmslurm node`: which nodes are out and why; drain and resume them by hand, with a reason that says who and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click

from slurm_ext import events
from slurm_ext.cli.mode import caller
from slurm_ext.cli.node_versions import node_versions
from slurm_ext.cli.output import say_json, say_table
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.config.locate import trail_path
from slurm_ext.config.model import Settings
from slurm_ext.errors import FindingError, PartlyDoneError, UsageError
from slurm_ext.slurm import connect
from slurm_ext.slurm.act import Context, Outcome, drain_by_hand, undrain_node
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.verdict import REASON_PREFIX, is_ours

NODES = click.argument("names", nargs=-1, metavar="[NODES]...")
HOSTS = click.option("-w", "--nodelist", default="", metavar="HOSTLIST", help="Nodes as Slurm writes them: n[0-3,7].")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done.")


@click.group(invoke_without_command=True)
@click.pass_context
def node(context: click.Context) -> None:
    """Nodes: who is out, for what, by whom. Without a command: list."""
    if context.invoked_subcommand is None:
        context.invoke(list_nodes)


node.add_command(node_versions)


@node.command("list")
@NODES
@HOSTS
@click.option("--drained", is_flag=True, help="Only those that somebody drained.")
@click.option("--noheader", is_flag=True, help="No line of column names.")
@AS_JSON
def list_nodes(
    names: tuple[str, ...] = (),
    nodelist: str = "",
    drained: bool = False,
    noheader: bool = False,
    as_json: bool = False,
) -> None:
    """List nodes with their state, and whose reason it is."""
    found = _nodes(connect(located_settings()), names, nodelist)
    chosen = [one for one in found if one.drained or not drained]
    if as_json:
        say_json({"nodes": [as_data(one) for one in chosen]})
        return
    rows = [(one.name, state_words(one), whose(one), _since(one.reason_time), one.reason) for one in chosen]
    say_table(("NODE", "STATE", "BY", "SINCE", "REASON"), rows, header=not noheader)


@node.command()
@NODES
@HOSTS
@AS_JSON
def show(names: tuple[str, ...], nodelist: str, as_json: bool) -> None:
    """Show everything Slurm says of a node."""
    if not names and not nodelist:
        raise UsageError("which node?", remedy="fmslurm node show n3, or -w 'n[0-3]'")
    found = _nodes(connect(located_settings()), names, nodelist)
    if as_json:
        say_json({"nodes": [as_data(one) for one in found]})
        return
    for one in found:
        click.echo(one.name)
        for name, value in as_data(one).items():
            if name != "node" and value not in ("", 0, []):
                click.echo(f"  {name:18} {', '.join(value) if isinstance(value, list) else value}")


@node.command()
@NODES
@HOSTS
@click.option("--reason", required=True, help="Why; it goes into the node's reason.")
@DRY_RUN
@AS_JSON
def drain(names: tuple[str, ...], nodelist: str, reason: str, dry_run: bool, as_json: bool) -> None:
    """Drain nodes by hand. A node that somebody else drained keeps that reason; no proof of health undoes yours."""
    words = f"{reason} (by {caller()})"
    _each(
        names,
        nodelist,
        dry_run,
        as_json,
        lambda slurm, settings, one, told: drain_by_hand(slurm, settings, one, words, told),
    )


@node.command()
@NODES
@HOSTS
@click.option("--reason", default="", help="Why, for the trail.")
@DRY_RUN
@AS_JSON
def resume(names: tuple[str, ...], nodelist: str, reason: str, dry_run: bool, as_json: bool) -> None:
    """Resume nodes that fmslurm drained. A reason that is not ours is for its owner to clear, with scontrol."""
    words = f"{reason or 'no reason given'} (by {caller()})"
    _each(
        names,
        nodelist,
        dry_run,
        as_json,
        lambda slurm, settings, one, told: undrain_node(slurm, settings, one, words, told, by_hand=True),
    )


def _each(
    names: Sequence[str],
    nodelist: str,
    dry_run: bool,
    as_json: bool,
    act: Callable[[Slurm, Settings, str, Context], Outcome],
) -> None:
    """Act on each node and say what became of it. Raise FindingError where nothing was done, PartlyDoneError for some."""
    wanted = _wanted(names, nodelist)
    if not wanted:
        raise UsageError("which node?", remedy="Name nodes, or -w 'n[0-3]'")
    settings = located_settings()
    slurm = connect(settings)
    told = Context("gate", time.time(), trail_path(settings), mode="enforce", dry_run=dry_run)
    outcomes = [(one, act(slurm, settings, one, told)) for one in wanted]
    if as_json:
        rows = [{"node": one, "done": it.done, "result": it.result, "reason": it.reason} for one, it in outcomes]
        say_json({"nodes": rows, "dry_run": dry_run})
    else:
        for one, it in outcomes:
            click.echo(f"{one}: {it.result}: {it.reason}")
    undone = [one for one, it in outcomes if not it.done and it.result != "dry-run"]
    if undone and len(undone) < len(outcomes):
        raise PartlyDoneError(f"not done: {', '.join(undone)}")
    if undone:
        raise FindingError(f"nothing was done to {', '.join(undone)}")


def _wanted(names: Sequence[str], nodelist: str) -> list[str]:
    try:
        return expand(",".join([*names, nodelist]))
    except HostlistError as exc:
        raise UsageError(f"no hostlist: {exc}") from exc


def _nodes(slurm: Slurm, names: Sequence[str], nodelist: str) -> list[Node]:
    wanted = _wanted(names, nodelist)
    found = slurm.nodes(wanted or None)
    if missing := [one for one in wanted if one not in {node.name for node in found}]:
        raise UsageError(f"Slurm knows no node {', '.join(missing)}")
    return found


def state_words(one: Node) -> str:
    """Return a node's state as Slurm writes it: IDLE+DRAIN."""
    return "+".join((one.state, *one.flags))


def whose(one: Node) -> str:
    """Return who set the reason: fmslurm, a user's name, or nothing."""
    if not one.reason:
        return ""
    return "fmslurm" if is_ours(one.reason) else one.reason_user or "somebody"


def as_data(one: Node) -> dict[str, object]:
    """Return a node as plain data for --json; times in UTC, empty where there is none."""
    finding = one.reason[len(REASON_PREFIX) :].split(" ", 1)[0] if is_ours(one.reason) else ""
    return {
        "node": one.name,
        "state": one.state,
        "flags": list(one.flags),
        "drained": one.drained,
        "reason": one.reason,
        "reason_by": whose(one),
        "reason_time": events.stamp(one.reason_time) if one.reason_time else "",
        "finding": finding,
        "address": one.address,
        "partitions": list(one.partitions),
        "gres": one.gres,
        "cpus": one.cpus,
        "boot_time": events.stamp(one.boot_time) if one.boot_time else "",
        "slurmd_start_time": events.stamp(one.slurmd_start_time) if one.slurmd_start_time else "",
    }


def _since(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""

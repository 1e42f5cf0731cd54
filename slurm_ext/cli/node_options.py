"""What the commands of `fmslurm node` share: their options, which nodes are meant, and how an act on each is told."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

import click

from slurm_ext.cli.actor import Actor
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.config.locate import trail_path
from slurm_ext.config.model import Settings
from slurm_ext.errors import FindingError, PartlyDoneError, UsageError
from slurm_ext.slurm.act import Context, Outcome
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.protocol import Slurm

#: What findings are about (the targets of `fmslurm gate replay`); no instance has more than sixteen GPUs.
_TARGET = re.compile(
    r"node|(?:gpu|nvswitch|rank):[0-9]{1,2}|gpu@[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}|job:[0-9]{1,10}|fs:/[^\x00-\x1f\x7f]{0,400}"
    r"|(?:node|efa|nic|ost|mdt|disk):[A-Za-z0-9][\w.:@+-]{0,120}"
)

NODES = click.argument("names", nargs=-1, metavar="[NODES]...")
HOSTS = click.option("-w", "--nodelist", default="", metavar="HOSTLIST", help="Nodes as Slurm writes them: n[0-3,7].")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done.")


def wanted(names: Sequence[str], nodelist: str, *, needed: bool = False) -> list[str]:
    """Return the nodes that are meant. Raise UsageError for text that is no hostlist, and for none where one is needed."""
    try:
        found = expand(",".join([*names, nodelist]))
    except HostlistError as exc:
        raise UsageError(f"no hostlist: {exc}") from exc
    if needed and not found:
        raise UsageError("which node?", remedy="Name nodes, or -w 'n[0-3]'")
    return found


def target_of(text: str) -> str:
    """Return a target as findings have it, or nothing. Raise UsageError for what no finding is ever about."""
    if text and not _TARGET.fullmatch(text):
        raise UsageError(
            f"--target: {text[:100]!r} is no target",
            remedy="Write it as `fmslurm node show` does: gpu:3, gpu@0000:53:00, node, efa:rdmap79s0, fs:/fsx",
        )
    return text


def nodes_of(slurm: Slurm, names: Sequence[str], nodelist: str) -> list[Node]:
    """Return Slurm's word on the nodes that are meant, all where none is named. Raise UsageError for one it does not know."""
    chosen = wanted(names, nodelist)
    found = slurm.nodes(chosen or None)
    if missing := [one for one in chosen if one not in {node.name for node in found}]:
        raise UsageError(f"Slurm knows no node {', '.join(missing)}")
    return found


def context_of(settings: Settings, who: Actor, *, dry_run: bool) -> Context:
    """Return who acts and where it is written: a person, whom no mode stops."""
    path = trail_path(settings)
    return Context("gate", time.time(), path, mode="enforce", dry_run=dry_run, actor=who.data())


def each(nodes: Sequence[str], act: Callable[[str], Outcome], *, dry_run: bool, as_json: bool) -> None:
    """Act on each node and say what became of it. Raise FindingError where nothing was done, PartlyDoneError for some."""
    outcomes = [(one, act(one)) for one in nodes]
    if as_json:
        rows = [{"node": one, "done": it.done, "result": it.result, "reason": it.reason} for one, it in outcomes]
        say_json({"nodes": rows, "dry_run": dry_run})
    else:
        for one, it in outcomes:
            say_text(f"{one}: {it.result}: {it.reason}")
    undone = [one for one, it in outcomes if not it.done and it.result != "dry-run"]
    if undone and len(undone) < len(outcomes):
        raise PartlyDoneError(f"not done: {', '.join(undone)}")
    if undone:
        raise FindingError(f"nothing was done to {', '.join(undone)}")

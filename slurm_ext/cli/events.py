"""`fmslurm events`: the trail of everything fmslurm noticed or did, of all nodes in one stream."""

from __future__ import annotations

import time

import click

from slurm_ext import events as trail
from slurm_ext.cli.output import say_table, say_text
from slurm_ext.config.hostlist import HostlistError, split_hostlist
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.errors import UsageError
from slurm_ext.report.trail import Trails, Wanted, since_text, takes
from slurm_ext.verdict import one_line

#: How often (seconds) `-f` looks for more.
POLL_S = 0.5

HEAD = ("TIME", "NODE", "JOB", "EVENT", "PHASE", "REASON")


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until interrupted.")
@click.option("-j", "--job", default="", help="Only of this job.")
@click.option("-w", "--nodelist", default="", metavar="HOSTLIST", help="Only of these nodes.")
@click.option("--since", default="", metavar="TIME", help="10m, 2h, 1d, 2031-05-01T12:00 (local) or ...Z (UTC).")
@click.option("--event", "name", default="", metavar="NAME", help="Only events of this name; * is a wildcard.")
@click.option("--json", "as_json", is_flag=True, help="The lines of the trail, one JSON object each.")
@click.option("--noheader", is_flag=True, help="No line of column names.")
def events(follow: bool, job: str, nodelist: str, since: str, name: str, as_json: bool, noheader: bool) -> None:
    """Show the trail: controller's and nodes' events merged by time."""
    try:
        split_hostlist(nodelist)
        begin = since_text(since, now=time.time()) if since else ""
    except (HostlistError, ValueError) as exc:
        raise UsageError(str(exc)) from exc
    wanted = Wanted(job, nodelist, name, begin)
    trails = Trails(site_settings())
    found = [event for event in trails.fresh() if takes(wanted, event)]
    if as_json:
        for event in found:
            say_text(trail.to_line(event))
    else:
        say_table(HEAD, [row(event) for event in found], header=not noheader)
    while follow:
        time.sleep(POLL_S)
        for event in (event for event in trails.fresh() if takes(wanted, event)):
            say_text(trail.to_line(event) if as_json else "  ".join(cell for cell in row(event) if cell))


def row(event: trail.Event) -> tuple[str, ...]:
    """Return an event as cells of one line, harmless on a terminal whatever a node wrote."""
    phase = f"{event.phase} (dry run)" if event.dry_run else event.phase
    cells = (event.time, event.node, event.job or event.attempt, event.event, phase, event.reason)
    return tuple(one_line(cell, 500) for cell in cells)

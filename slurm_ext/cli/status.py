"""`fmslurm status`: the cluster on one screen. What happened to one job: `fmslurm why`."""

from __future__ import annotations

import time
from collections import Counter

import click

from slurm_ext import request, shared
from slurm_ext.cli import breaker
from slurm_ext.cli.node import as_data, state_words, whose
from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.config.model import ROOMS, Settings
from slurm_ext.config.modes import Heartbeat, effective_mode, heartbeat_is_fresh
from slurm_ext.slurm import connect
from slurm_ext.slurm.hostlist import fold
from slurm_ext.slurm.model import Job, Node
from slurm_ext.slurm.versions import is_supported
from slurm_ext.verdict import one_line


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(as_json: bool) -> None:
    """Show the cluster at a glance: Slurm, nodes by state, who is drained, what each room may do, jobs by state."""
    settings = located_settings()
    slurm = connect(settings)
    version = slurm.version()
    nodes, jobs = slurm.nodes(), slurm.jobs()
    now = time.time()
    beat = shared.heartbeat(settings.site.share)
    alive = heartbeat_is_fresh(beat, now=now)
    cluster = settings.site.cluster or slurm.cluster_name()
    modes = _modes(settings, now)
    drained = [one for one in nodes if one.drained]
    states = _by_state(nodes)
    held = breaker.look(settings, nodes, now=now)
    watched = [job for job in jobs if (wish := request.parse(job.comment)) is not None and not wish.off]
    if as_json:
        say_json(
            {
                "cluster": cluster,
                "slurm": version.text,
                "slurm_supported": is_supported(version),
                "backend": slurm.name,
                "controller": {"alive": alive, "time": beat.time if beat else 0, "mode": beat.mode if beat else ""},
                "modes": modes,
                "nodes": {"total": len(nodes), "by_state": {state: len(names) for state, names in states.items()}},
                "drained": [as_data(one) for one in drained],
                "breaker": breaker.as_data(held),
                "jobs": {"by_state": dict(_jobs(jobs)), "with_wishes": [job.job_id for job in watched]},
            }
        )
        return
    untried = "" if is_supported(version) else ", not tried with fmslurm"
    say_text(f"{cluster}: Slurm {version.text} ({slurm.name}{untried}), controller daemon {_beat(beat, alive, now)}")
    say_text("rooms: " + ", ".join(f"{room} {mode}" for room, mode in modes.items()))
    for switch in shared.switches(settings.site.share) or ():
        if switch.until > now:
            until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(switch.until))
            why = f"{switch.room} is switched off by {switch.by or 'somebody'} until {until}: {switch.reason or 'no reason given'}"
            undo = "fmslurm on" if switch.room == "all" else f"fmslurm on {switch.room}"
            say_text(f"{one_line(why)}; `{undo}` undoes it")
    say_table(("NODES", "STATE", ""), [(str(len(names)), state, fold(names)) for state, names in states.items()])
    if drained:
        say_text()
        say_table(("DRAINED", "BY", "REASON"), [(one.name, whose(one), one.reason) for one in drained])
    for line in breaker.words(held, settings.site.share):
        say_text(line)
    say_text()
    counts = ", ".join(f"{count} {state}" for state, count in _jobs(jobs)) or "none"
    say_text(f"jobs: {counts}; {len(watched)} with wishes for fmslurm (`fmslurm job`, `fmslurm why JOB`)")


def _modes(settings: Settings, now: float) -> dict[str, str]:
    switches = shared.switches(settings.site.share) or ()
    found = {}
    for room in ROOMS:
        mode, _ = effective_mode(settings, room, off=switches, now=now)
        configured = getattr(settings.mode, room)
        # Partitions and canary narrow `enforce`; here, where no node is meant, the room's own word is the truth.
        found[room] = configured if mode == "shadow" and configured == "enforce" else mode
    return found


def _by_state(nodes: list[Node]) -> dict[str, list[str]]:
    states: dict[str, list[str]] = {}
    for one in nodes:
        states.setdefault(state_words(one), []).append(one.name)
    return dict(sorted(states.items(), key=lambda item: (-len(item[1]), item[0])))


def _jobs(jobs: list[Job]) -> list[tuple[str, int]]:
    return sorted(Counter(job.state for job in jobs).items())


def _beat(beat: Heartbeat | None, alive: bool, now: float) -> str:
    if beat is None:
        return "has never been seen"
    return "alive" if alive else f"silent for {max(now - beat.time, 0) / 60:.0f} min"

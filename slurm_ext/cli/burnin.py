"""`fmslurm burnin run`: the all-reduce over nodes by hand. `history` and `thresholds` are in burnin_history."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from slurm_ext import command
from slurm_ext.burnin import floors
from slurm_ext.burnin.gate import run_burnin, work_s
from slurm_ext.burnin.model import BurninJob, Outcome, outcome_from_json, outcome_to_json
from slurm_ext.burnin.step import job_of_step
from slurm_ext.burnin.succession import LEADERS
from slurm_ext.cli.burnin_history import history_, thresholds_
from slurm_ext.cli.instance import instance_type
from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.config.locate import config_path
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import Settings
from slurm_ext.errors import EXIT_FINDING, EXIT_LACKING, EXIT_OK, CommandNotFoundError, LackingError, UsageError
from slurm_ext.slurm import connect
from slurm_ext.slurm.hostlist import HostlistError, expand, fold
from slurm_ext.verdict import FAIL, UNKNOWN, one_line

#: Beyond the burn-in's own deadline: srun waits for nodes, starts the step, and collects it.
STEP_EXTRA_S = 90.0

#: Above what any configuration comes to by itself.
DEADLINE_MAX_S = 14_400

#: How long (seconds) Slurm may take to tell of a job of ours that did not answer, and to cancel it.
CANCEL_S = 10.0


@click.group(invoke_without_command=True)
@click.pass_context
def burnin(context: click.Context) -> None:
    """Can these nodes train together? Without a command: the history."""
    if context.invoked_subcommand is None:
        context.invoke(history_)


class Figure(click.FloatRange):
    """A number within bounds; click itself lets nan through, which is within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or end with what is wrong."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{found} is not in the range {self.min:g}<=x<={self.max:g}.", param, ctx)
        return found


@burnin.command()
@click.argument("nodes", default="", required=False)
@click.option("-w", "--nodelist", default="", help="the same as NODES")
@click.option("-p", "--partition", default="", help="partition of that job")
@click.option("--gpus", default=0, type=click.IntRange(0, 64), help="GPUs of each node (default: what the job has; 8)")
@click.option("--deadline", type=Figure(1, DEADLINE_MAX_S), help="seconds (default: by burnin.deadline_s and nodes)")
@click.option("--strict", is_flag=True, help="a minute of traffic, with clocks, heat and retransmits looked at")
@click.option("--survey", is_flag=True, help="measure all nodes and pairs, judge nothing, and print floors")
@click.option(
    "--gap", default=floors.LAB_GAP, type=Figure(1, 100), help="floors are what was measured, divided by this"
)
@click.option("--in-job", is_flag=True, help="be one node's part, inside a step with one task on each node")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def run(
    nodes: str,
    nodelist: str,
    partition: str,
    gpus: int,
    deadline: float | None,
    strict: bool,
    survey: bool,
    gap: float,
    in_job: bool,
    as_json: bool,
) -> int:
    """Run the burn-in over NODES and say what it showed. Nothing is drained. Exit 1 where it fails, 3 where unknown.

    NODES is a hostlist. It submits an exclusive job and waits; inside a job: srun --ntasks-per-node=1 fmslurm burnin run
    --in-job.
    """
    if sum(map(bool, (nodes, nodelist, in_job))) != 1:
        raise UsageError("say which NODES, or --in-job", remedy="fmslurm burnin run n[0-3]")
    settings = site_settings()
    if in_job:
        return _in_job(settings, gpus=gpus, deadline_s=deadline, strict=strict, survey=survey, gap=gap, as_json=as_json)
    names = _known(settings, nodes or nodelist)
    deadline_s = deadline or work_s(settings.burnin, nodes=len(names), strict=strict)
    more = [f"--gap={gap}", f"--gpus={gpus or 8}", f"--deadline={deadline_s}"]
    more += [flag for flag, wanted in (("--survey", survey), ("--strict", strict)) if wanted]
    outcome = _through_srun(settings, names, partition, gpus or 8, deadline_s, more)
    return _say(outcome, gap=gap, survey=survey, as_json=as_json)


def _known(settings: Settings, text: str) -> dict[str, bool]:
    """Return the nodes that a person named, and whether Slurm knows of GPUs there. Raise UsageError for one it does not know."""
    try:
        names = expand(text)
    except HostlistError as exc:
        raise UsageError(f"{one_line(text, 80)}: not a hostlist: {exc}") from exc
    if not names:
        raise UsageError("no node is named", remedy="fmslurm burnin run n[0-3]")
    found = {node.name: "gpu" in node.gres for node in connect(settings).nodes(names)}
    if strange := [name for name in names if name not in found]:
        some = fold(strange) if len(strange) <= 5 else f"{fold(strange[:5])} and {len(strange) - 5} more"
        raise UsageError(f"Slurm knows no node {some}", remedy="fmslurm node list")
    return {name: found[name] for name in names}


def _in_job(
    settings: Settings, *, gpus: int, deadline_s: float | None, strict: bool, survey: bool, gap: float, as_json: bool
) -> int:
    """Be one node's part; one node speaks for all (see `speaks`)."""
    if os.geteuid() != 0:
        raise LackingError("the burn-in needs root on the nodes", remedy="Run it as root, or let the prolog run it")
    job = job_of_step(
        os.environ,
        settings,
        gpus=gpus,
        instance_type=instance_type(settings, os.environ.get("SLURMD_NODENAME", "")),
        uid=os.getuid(),
    )
    job = job._replace(strict=strict)
    deadline_s = deadline_s or work_s(settings.burnin, nodes=len(job.nodes), strict=strict)
    settings = settings._replace(burnin=settings.burnin._replace(deadline_s=deadline_s))
    outcome = run_burnin(job, settings, deadline_s=deadline_s, survey=survey, cgroups=False)
    if not speaks(job, outcome, as_json=as_json):
        return EXIT_OK
    return _say(outcome, gap=gap, survey=survey, as_json=as_json)


def speaks(job: BurninJob, outcome: Outcome, *, as_json: bool) -> bool:
    """Say whether this node tells the outcome: the one that acts for the job, since the first may be what failed.

    Of what nodes came to without a leader the first one tells, and to a program that takes its pick (JSON) all who may lead.
    """
    acts = outcome.measured.get("acts")
    return job.node == acts if acts else job.node in job.nodes[: LEADERS if as_json else 1]


def _through_srun(
    settings: Settings, nodes: Mapping[str, bool], partition: str, gpus: int, deadline_s: float, more: list[str]
) -> Outcome:
    """Run the same command as a step of a new exclusive job on the nodes, and return its outcome."""
    name = f"fmslurm-burnin-{secrets.token_hex(4)}"
    argv = [_program(settings, "srun"), "--quiet", "--exclusive", f"--nodelist={fold(nodes)}", f"--nodes={len(nodes)}"]
    argv += ["--ntasks-per-node=1", f"--job-name={name}", "--kill-on-bad-exit=0", "--chdir=/"]
    # Nodes whose GPUs Slurm does not know (yet) refuse a request for them; the job has whole nodes in any case.
    if all(nodes.values()):
        argv += [f"--gpus-per-node={gpus}"]
    argv += [
        f"--time={int((deadline_s + STEP_EXTRA_S) // 60) + 1}",
        *([f"--partition={partition}"] if partition else []),
    ]
    argv += [*_ourselves(), "burnin", "run", "--in-job", "--json", *more]
    env = command.clean_env(**({"SLURM_CONF": settings.site.slurm_conf} if settings.site.slurm_conf else {}))
    if path := config_path():
        env["FMSLURM_CONFIG"] = path
    with _nothing_left(settings, name, env) as left:
        result = command.run(argv, timeout_s=deadline_s + STEP_EXTRA_S, env=env)
        left.ended = not result.timed_out
    if told := _told(result.stdout):
        return told
    if left.state == "PENDING":
        raise LackingError(
            f"the nodes did not come free within {result.seconds:.0f} s, and the job is cancelled",
            remedy=f"See who has them: squeue -w {fold(nodes)}",
        )
    said = one_line(result.stderr.strip().splitlines()[-1] if result.stderr.strip() else result.words())
    raise LackingError(f"no outcome from the nodes: {said}", remedy="Are all of them idle? sinfo -N")


def _told(text: str) -> Outcome | None:
    """Return the outcome that nodes told, that of a leader before what one came to without it."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(outcome_from_json(json.loads(line)))
    return next((outcome for outcome in found if outcome.measured.get("acts")), found[0] if found else None)


class _Left:
    """Whether the job of ours has ended by itself, and what Slurm says of it where it has not."""

    ended = False
    state = ""


@contextlib.contextmanager
def _nothing_left(settings: Settings, name: str, env: Mapping[str, str]) -> Iterator[_Left]:
    """Cancel the job of that name unless it has ended, whatever ends us (a signal comes as an exception, see main): it would
    take its nodes with nobody listening."""
    left = _Left()
    try:
        yield left
    finally:
        if not left.ended:
            with contextlib.suppress(CommandNotFoundError):
                asked = [_program(settings, "squeue"), "-h", f"--name={name}", "-o", "%T"]
                left.state = command.run(asked, timeout_s=CANCEL_S, env=env).stdout.strip()
                command.run([_program(settings, "scancel"), f"--name={name}"], timeout_s=CANCEL_S, env=env)


def _program(settings: Settings, name: str) -> str:
    return os.path.join(settings.site.slurm_bin, name) if settings.site.slurm_bin else name


def _ourselves() -> list[str]:
    """Return how this very installation is started on a node, which has it at the same path."""
    root = str(Path(__file__).resolve().parents[2])
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); from slurm_ext.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-I", "-c", start, root]


def _say(outcome: Outcome, *, gap: float, survey: bool, as_json: bool) -> int:
    found = _floors(outcome, gap) if survey else {}
    if as_json:
        say_json({**outcome_to_json(outcome), **({"floors": found} if survey else {})})
    else:
        say_text(f"{outcome.verdict.verdict}: {outcome.verdict.reason} ({outcome.seconds:.1f} s)")
        rows = [
            (done["kind"], ",".join(group["nodes"]), group["outcome"], _speed(group), "; ".join(group["evidence"]))
            for done in outcome.measured.get("rounds", [])
            for group in done["groups"]
        ]
        if rows:
            say_table(("ROUND", "NODES", "OUTCOME", "BUSBW_GBS", "EVIDENCE"), rows)
        for name, figure in found.items():
            say_text(f"floor {name}: {figure:g}")
    if outcome.verdict.verdict == UNKNOWN:
        return EXIT_LACKING
    return EXIT_FINDING if outcome.verdict.verdict == FAIL else EXIT_OK


def _floors(outcome: Outcome, gap: float) -> dict[str, float]:
    try:
        return floors.from_survey(outcome.measured, gap=gap)
    except ValueError as exc:
        say_text(f"no floors: {exc}", err=True)
        return {}


def _speed(group: dict[str, Any]) -> str:
    return f"{group['busbw_gbs']:.3g}" if group["busbw_gbs"] else ""


burnin.add_command(history_)
burnin.add_command(thresholds_)

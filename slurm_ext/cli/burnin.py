"""`fmslurm burnin run|history`: the all-reduce over nodes by hand, and what it measured before."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from slurm_ext import command
from slurm_ext.burnin import floors, history
from slurm_ext.burnin.gate import run_burnin
from slurm_ext.burnin.model import Outcome, outcome_from_json, outcome_to_json
from slurm_ext.burnin.step import job_of_step
from slurm_ext.cli.output import say_json, say_table
from slurm_ext.config.locate import config_path
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.errors import EXIT_FINDING, EXIT_LACKING, EXIT_OK, LackingError, UsageError
from slurm_ext.slurm import connect
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.verdict import FAIL, UNKNOWN, one_line

#: Beyond the burn-in's own deadline: srun waits for nodes, starts the step, and collects it.
STEP_EXTRA_S = 90.0


@click.group(invoke_without_command=True)
@click.pass_context
def burnin(context: click.Context) -> None:
    """Can these nodes train together? Without a command: the history."""
    if context.invoked_subcommand is None:
        context.invoke(history_)


@burnin.command()
@click.option("-w", "--nodelist", default="", help="hostlist of the nodes to run on, through a job of its own")
@click.option("-p", "--partition", default="", help="partition of that job")
@click.option("--gpus", default=0, type=click.IntRange(0, 64), help="GPUs of each node (default: what the job has; 8)")
@click.option("--deadline", default=0.0, type=click.FloatRange(0, 3600), help="seconds (default: burnin.deadline_s)")
@click.option("--survey", is_flag=True, help="measure all nodes and pairs, judge nothing, and print floors")
@click.option(
    "--gap", default=floors.LAB_GAP, type=click.FloatRange(1, 100), help="floors are what was measured, divided by this"
)
@click.option("--in-job", is_flag=True, help="be one node's part, inside a step with one task on each node")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def run(
    nodelist: str, partition: str, gpus: int, deadline: float, survey: bool, gap: float, in_job: bool, as_json: bool
) -> int:
    """Run the burn-in over nodes and say what it showed. Nothing is drained. Exit 1 where it fails, 3 where unknown.

    With -w it submits an exclusive job and waits; inside a job: srun --ntasks-per-node=1 fmslurm burnin run --in-job.
    """
    if in_job == bool(nodelist):
        raise UsageError("say either -w NODES or --in-job", remedy="fmslurm burnin run -w n[0-3]")
    settings = site_settings()
    deadline_s = deadline or settings.burnin.deadline_s
    if in_job:
        return _in_job(settings, gpus=gpus, deadline_s=deadline_s, survey=survey, gap=gap, as_json=as_json)
    more = [f"--gap={gap}", *(["--survey"] if survey else []), f"--gpus={gpus or 8}", f"--deadline={deadline_s}"]
    outcome = _through_srun(settings, nodelist, partition, gpus or 8, deadline_s, more)
    return _say(outcome, gap=gap, survey=survey, as_json=as_json)


def _in_job(settings: Settings, *, gpus: int, deadline_s: float, survey: bool, gap: float, as_json: bool) -> int:
    """Be one node's part; the first node speaks for all."""
    if os.geteuid() != 0:
        raise LackingError("the burn-in needs root on the nodes", remedy="Run it as root, or let the prolog run it")
    job = job_of_step(os.environ, settings, gpus=gpus, instance_type=_instance_type(settings), uid=os.getuid())
    settings = settings._replace(burnin=settings.burnin._replace(deadline_s=deadline_s))
    outcome = run_burnin(job, settings, deadline_s=deadline_s, survey=survey, cgroups=False)
    if job.node != job.nodes[0]:
        return EXIT_OK
    return _say(outcome, gap=gap, survey=survey, as_json=as_json)


def _instance_type(settings: Settings) -> str:
    if settings.site.instance_type != "auto":
        return settings.site.instance_type
    root = Path(at_node(settings.site.root, os.environ.get("SLURMD_NODENAME", "")))
    try:
        return (root / "sys/class/dmi/id/product_name").read_text().strip()
    except OSError:
        return ""


def _through_srun(
    settings: Settings, nodelist: str, partition: str, gpus: int, deadline_s: float, more: list[str]
) -> Outcome:
    """Run the same command as a step of a new exclusive job on the nodes, and return its outcome."""
    try:
        count = len(expand(nodelist))
    except HostlistError as exc:
        raise UsageError(f"{nodelist}: not a hostlist: {exc}") from exc
    srun = os.path.join(settings.site.slurm_bin, "srun") if settings.site.slurm_bin else "srun"
    argv = [srun, "--quiet", "--exclusive", f"--nodelist={nodelist}", f"--nodes={count}", "--ntasks-per-node=1"]
    argv += ["--job-name=fmslurm-burnin", "--kill-on-bad-exit=0", "--chdir=/"]
    # Nodes whose GPUs Slurm does not know (yet) refuse a request for them; the job has whole nodes in any case.
    if all("gpu" in node.gres for node in connect(settings).nodes(expand(nodelist))):
        argv += [f"--gpus-per-node={gpus}"]
    argv += [
        f"--time={int((deadline_s + STEP_EXTRA_S) // 60) + 1}",
        *([f"--partition={partition}"] if partition else []),
    ]
    argv += [*_ourselves(), "burnin", "run", "--in-job", "--json", *more]
    env = command.clean_env(**({"SLURM_CONF": settings.site.slurm_conf} if settings.site.slurm_conf else {}))
    if path := config_path():
        env["FMSLURM_CONFIG"] = path
    result = command.run(argv, timeout_s=deadline_s + STEP_EXTRA_S, env=env)
    for line in result.stdout.splitlines():
        try:
            return outcome_from_json(json.loads(line))
        except ValueError:
            continue
    said = one_line(result.stderr.strip().splitlines()[-1] if result.stderr.strip() else result.words())
    raise LackingError(f"no outcome from the nodes: {said}", remedy="Are all of them idle? sinfo -N")


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
        click.echo(f"{outcome.verdict.verdict}: {outcome.verdict.reason} ({outcome.seconds:.1f} s)")
        rows = [
            (done["kind"], ",".join(group["nodes"]), group["outcome"], _speed(group), "; ".join(group["evidence"]))
            for done in outcome.measured.get("rounds", [])
            for group in done["groups"]
        ]
        if rows:
            say_table(("ROUND", "NODES", "OUTCOME", "BUSBW_GBS", "EVIDENCE"), rows)
        for name, figure in found.items():
            click.echo(f"floor {name}: {figure:g}")
    if outcome.verdict.verdict == UNKNOWN:
        return EXIT_LACKING
    return EXIT_FINDING if outcome.verdict.verdict == FAIL else EXIT_OK


def _floors(outcome: Outcome, gap: float) -> dict[str, float]:
    try:
        return floors.from_survey(outcome.measured, gap=gap)
    except ValueError as exc:
        click.echo(f"no floors: {exc}", err=True)
        return {}


def _speed(group: dict[str, Any]) -> str:
    return f"{group['busbw_gbs']:.3g}" if group["busbw_gbs"] else ""


@burnin.command("history")
@click.option("--node", default="", help="only burn-ins in which this node took part")
@click.option("--last", default=50, type=click.IntRange(1, 100_000), help="at most so many, newest last")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@click.option("--noheader", is_flag=True, help="no line of column names")
def history_(node: str, last: int, as_json: bool, noheader: bool) -> None:
    """What burn-ins measured: of all jobs where there is a shared folder, else of this node."""
    settings = site_settings()
    lines = [line for line in _lines(settings) if not node or node in line.get("nodes", [])]
    lines = sorted(lines, key=lambda line: float(line.get("time", 0.0)))[-last:]
    if as_json:
        say_json({"burnins": lines})
        return
    rows = [
        (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(float(line.get("time", 0.0)))),
            str(line.get("job", "")),
            str(len(line.get("nodes", []))),
            str(line.get("verdict", "")),
            f"{line['busbw_gbs']:.3g}" if line.get("busbw_gbs") else "",
            ",".join(line.get("culprits", [])),
            one_line(str(line.get("reason", "")), 80),
        )
        for line in lines
    ]
    if rows:
        say_table(("TIME", "JOB", "NODES", "VERDICT", "BUSBW_GBS", "CULPRITS", "REASON"), rows, header=not noheader)
    else:
        click.echo("no burn-in has been recorded yet", err=True)


def _lines(settings: Settings) -> list[dict[str, Any]]:
    if settings.site.share:
        below = Path(settings.site.share) / "jobs"
        return [line for path in sorted(below.glob("*/*/burnin.json")) for line in history.read(str(path))]
    name = os.environ.get("SLURMD_NODENAME") or machine_name()
    return list(history.read(os.path.join(at_node(settings.site.state_dir, name), history.NAME)))

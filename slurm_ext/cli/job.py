"""`fmslurm job`: the jobs that are watched, what is left of their budgets, and how to make them whole again."""

from __future__ import annotations

import os

import click

from slurm_ext.cli import why as story
from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.config import locate
from slurm_ext.errors import FindingError, LackingError, UsageError
from slurm_ext.resume.daemon import journal_path
from slurm_ext.resume.journal import Journal
from slurm_ext.verdict import one_line

HEAD = ("JOB", "NAME", "RUNS", "PHASE", "LAST CAUSE", "LAST ACTION", "LEFT")


@click.group(invoke_without_command=True)
@click.pass_context
def job(context: click.Context) -> None:
    """Jobs that are watched, and their budgets."""
    if context.invoked_subcommand is None:
        context.invoke(list_jobs)


@job.command("list")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@click.option("--noheader", is_flag=True, help="no line of column names")
def list_jobs(as_json: bool = False, noheader: bool = False) -> None:
    """List the watched jobs (root: everybody's), oldest first."""
    told = story.ask({"ask": "jobs"}, locate.settings())
    if "error" in told:
        raise FindingError(str(told["error"]))
    if as_json:
        say_json(told)
        return
    rows = []
    for row in told["jobs"]:
        left = ",".join(f"{name}:{budget['left']}" for name, budget in row["budgets"].items())
        cells = (
            row["job"],
            one_line(row["name"], 20),
            str(row["runs"]),
            row["phase"],
            row["last_cause"],
            row["last_action"],
        )
        rows.append((*cells, left))
    say_table(HEAD, rows, header=not noheader)


@job.command()
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def show(job_id: str, as_json: bool) -> None:
    """Show one job: the same story as `fmslurm why`."""
    told = story.ask({"ask": "why", "job": _checked(job_id)}, locate.settings())
    if "error" in told:
        raise FindingError(str(told["error"]))
    if as_json:
        say_json(told)
        return
    for line in story.lines(told):
        say_text(line)


@job.command()
@click.argument("job_id")
@click.option("--dry-run", is_flag=True, help="say what would be forgotten")
def forget(job_id: str, dry_run: bool) -> None:
    """Make earlier ends of a job count no longer, so that its budgets are whole again (root only)."""
    if os.geteuid() != 0:
        raise LackingError("only root may change budgets", remedy="Ask an administrator, or submit the job anew")
    path = journal_path(locate.settings())
    if not os.path.exists(path):
        raise LackingError(f"there is no journal at {path}", remedy="Has fmslurm-controller ever run here?")
    journal = Journal(path, readonly=dry_run)
    try:
        if dry_run:
            count = sum(1 for run in journal.runs(_checked(job_id)) if run.phase == "closed")
            say_text(f"would forget up to {count} runs of job {job_id}")
            return
        say_text(f"forgot {journal.forget(_checked(job_id))} runs of job {job_id}")
    finally:
        journal.close()


def _checked(job_id: str) -> str:
    if not job_id.isdigit():
        raise UsageError(f"{job_id!r} is no job id")
    return job_id

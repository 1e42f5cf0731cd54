"""`fmslurm why`: what happened to a job and why; or the same judgement about recorded evidence."""

from __future__ import annotations

import json
import os
import textwrap
import time
from typing import Any

import click

from slurm_ext.cli.output import say_json, say_text
from slurm_ext.config import locate
from slurm_ext.config.model import Settings
from slurm_ext.errors import EXIT_OK, FindingError, LackingError, UsageError
from slurm_ext.resume import hyperpod, serve, story
from slurm_ext.resume.daemon import journal_path, socket_path
from slurm_ext.resume.journal import Journal
from slurm_ext.resume.replay import judge
from slurm_ext.slurm import connect
from slurm_ext.verdict import one_line

WIDTH = 80


@click.command()
@click.argument("job", required=False)
@click.option(
    "--replay", "folders", multiple=True, metavar="DIR", help="judge the evidence in a folder; may be repeated"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object on one line (for --replay: a line per folder)")
def why(job: str | None, folders: tuple[str, ...], as_json: bool) -> int:
    """Say what happened to JOB, and why: pending, in the gate, running, held, requeued or done."""
    if folders:
        if job:
            raise UsageError("JOB and --replay do not go together")
        for folder in folders:
            answer = judge(folder, locate.settings())
            say_text(json.dumps(answer) if as_json else _replayed(answer))
        return EXIT_OK
    if not job or not job.isdigit():
        raise UsageError("which job?", remedy="fmslurm why 1234, or fmslurm why --replay DIR")
    told = ask({"ask": "why", "job": job}, locate.settings())
    if "error" in told:
        raise FindingError(str(told["error"]))
    if as_json:
        say_json(told)
    else:
        for line in lines(told):
            say_text(line)
    return EXIT_OK


def ask(question: dict[str, str], settings: Settings) -> dict[str, Any]:
    """Return the controller's answer; root reads the journal itself, so that it works with the daemon down, too.

    Raise LackingError where neither can be had.
    """
    if os.geteuid() != 0:
        path = socket_path(settings)
        try:
            return serve.ask(path, question)
        except (OSError, ValueError) as exc:
            raise LackingError(f"fmslurm-controller does not answer at {path}: {exc}") from exc
    journal = Journal(journal_path(settings), readonly=True)
    try:
        if question["ask"] == "jobs":
            return {"jobs": story.jobs_table(journal, settings, None)}
        known = {one.job_id: one for one in connect(settings).jobs([question["job"]])}
        return story.why(journal, question["job"], known, time.time(), settings, None)
    finally:
        journal.close()


def _replayed(answer: dict[str, Any]) -> str:
    culprits = ", ".join(answer["culprit_nodes"]) or "nobody"
    words = answer.get("error") or answer.get("reason", "")
    return f"{answer['case']}: {answer['class']}, {answer['action']}, convicts {culprits} ({answer['rule']}): {words}"


def lines(told: dict[str, Any]) -> list[str]:
    """Return the story as lines of at most 80 columns, newest run last; what jobs printed is made harmless for a terminal."""
    name = one_line(str(told["name"]), 40)
    out = _wrapped(f"Job {told['job']} ({name}): {told['now']}", "")
    if gate := told.get("gate"):
        out += _wrapped(f"{gate['words']}; it ends at {_clock(gate['deadline'])} at the latest", "  ")
    for bad in told.get("bad_nodes") or ():
        words = f"it has {bad['node']}, which is convicted and stays in use: {bad['reason']}; {bad['why']}"
        out += _wrapped(one_line(words, 400), "  ")
    if told.get("held_until"):
        held = told["held"]
        out += _wrapped(f"fmslurm holds it until {_clock(told['held_until'])}, then it starts again by itself:", "  ")
        out += _wrapped(one_line(held["reason"], 300), "    ")
        for line in held["how"]:
            out += _wrapped(f"- {line}", "    ")
    elif stop := told.get("stopped"):
        out += _wrapped(
            f"The gate stopped it before it started, {stop['times']} times in a row: {one_line(stop['reason'])}", "  "
        )
        out += _wrapped(
            f"The controller lets it start again, or, beyond its budget, scontrol release {told['job']}", "  "
        )
    if not told["resume"]:
        out += _wrapped("It did not ask to be brought back (fmslurm submit --fm-resume).", "  ")
    for run in told["runs"]:
        out += _run(run)
    if told["budgets"]:
        left = ", ".join(f"{name} {row['left']} of {row['limit']}" for name, row in told["budgets"].items())
        out += _wrapped(f"Requeues left: {left}", "")
    return out


def _run(run: dict[str, Any]) -> list[str]:
    began = _clock(run["started"])
    out = ["", *_wrapped(f"Run {run['restarts']} on {run['nodes'] or 'no nodes yet'}, started {began}", "")]
    if run["ended"]:
        code = run["exit_code"]
        how = run["end_state"] or "requeued by Slurm"
        out += _wrapped(f"ended {_clock(run['ended'])}: {how}" + (f", exit code {code}" if code != "0:0" else ""), "  ")
    cause = run.get("cause")
    if cause:
        out += _wrapped(f"why: {cause['reason']}", "  ")
        convicted = ", ".join(cause["culprit_nodes"]) or "none"
        sure = f"{cause['confidence']:.0%}"
        text = f"cause {cause['class']} (rule {cause['rule']}, {sure} sure); nodes convicted: {convicted}"
        if suspects := ", ".join(cause.get("suspects", [])):
            text += f"; suspects: {suspects}"
        out += _wrapped(text, "  ")
        for line in cause["evidence"][:5]:
            out += _wrapped(f"| {line}", "    ")
    decision = run.get("decision")
    if decision:
        why_not = "HyperPod's auto-resume acts" if decision["rule"] == hyperpod.RULE else "resume does not enforce here"
        mode = f" (not done: {why_not})" if run["dry_run"] else ""
        text = f"decided: {decision['action']}{mode}"
        if decision["exclude"]:
            text += f", without {', '.join(decision['exclude'])}"
        if decision["wait_s"]:
            text += f", after {decision['wait_s']:.0f} s"
        out += _wrapped(text, "  ")
        if cause and decision["reason"] != cause["reason"]:
            out += _wrapped(f"because: {decision['reason']}", "  ")
    for step in run["steps"]:
        detail = f": {step['detail']}" if step["detail"] else ""
        out += _wrapped(f"{_clock(step['time'])} {step['step']}: {step['phase']}{detail}", "  ")
    return out


def _clock(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "not yet"


def _wrapped(text: str, indent: str) -> list[str]:
    clean = one_line(text, 600)
    return textwrap.wrap(
        clean, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=True
    ) or [indent]

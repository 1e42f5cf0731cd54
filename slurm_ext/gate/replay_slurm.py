"""Captures of group `slurm`: what Slurm itself says of the node or of the job. Pure.

An answer that did not come, or not whole, is unknown: no node in it does not mean that no node is down.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slurm_ext.captured import Case
from slurm_ext.gate import slurm_job_rules, slurm_json, slurm_node_rules, slurm_table, slurm_text
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.slurm_views import JobView, NodeView, Trouble, View, duration, seconds, something
from slurm_ext.slurm import states
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.verdict import FAIL, UNKNOWN

_CONTROLLER = re.compile(
    r"unable to contact slurm controller|slurm_load_\w+ error|unable to (?:establish|contact)|connection refused"
    r"|zero bytes were transmitted|socket timed out|connect failure|communication connection failure|rate limit exceeded"
    r"|slurm backup controller in standby|could not establish a configuration source",
    re.I,
)
_NO_NODE = re.compile(r"\bNode (\S+) not found|Invalid node name(?: specified)?(?: (\S+))?", re.I)
_NO_JOB = re.compile(r"Invalid job id specified", re.I)
_ROLES = ("scontrol_node", "scontrol_job", "sinfo", "squeue")


def judge(case: Case) -> list[Judged]:
    """Return what all views in a capture say together."""
    command = str(case.context.get("command") or "")
    views = {role: _read(role, case.texts[role], command) for role in _ROLES if role in case.texts}
    if "stdout" in case.texts and case.texts["stdout"].strip():
        role = _role(case.texts["stdout"], command)
        views.setdefault(role, _read(role, case.texts["stdout"], command))
    troubles = [trouble for view in views.values() for trouble in view.troubles] + _run(case, command, views)
    items = _nodes(case, views)
    items += _jobs(case, views, {item.finding.target for item in items if item.verdict == FAIL})
    items += [judged(UNKNOWN, f"slurm.{one.kind}", one.target, "none", one.text) for one in troubles]
    # A node's own record and that of the job which it ended say the same thing twice.
    kept: dict[tuple[str, str, str], Judged] = {}
    for item in items:
        kept.setdefault((item.verdict, item.finding.target, item.finding.action), item)
    return list(kept.values())


def _nodes(case: Case, views: dict[str, View]) -> list[Judged]:
    """Return what is told of nodes; scontrol tells more than sinfo, so a node in both is judged by the former."""
    told: dict[str, NodeView] = {}
    for role in ("scontrol_node", "sinfo"):
        for node in views[role].nodes if role in views else ():
            told.setdefault(node.name, node)
    prefix = case.context.get("own_prefix")
    return slurm_node_rules.judge(told.values(), own_prefix=prefix if isinstance(prefix, str) else None)


def _jobs(case: Case, views: dict[str, View], failed: set[str]) -> list[Judged]:
    """Return what is told of jobs; `failed` are the targets of nodes that other views show as failed."""
    told: dict[str, JobView] = {}
    for role in ("scontrol_job", "squeue"):
        for job in views[role].jobs if role in views else ():
            told.setdefault(job.job_id, job)
    now = case.context.get("now")
    now_s = seconds(str(now)) if now is not None else None
    if now_s is None:  # the controller's last change lies before the view: no age comes out too large
        now_s = max((view.told_at_s for view in views.values() if view.told_at_s is not None), default=None)
    items = slurm_job_rules.judge(told.values(), now_s=now_s)
    # A node that its own record shows as failed is already named: the job need not name it again.
    return [item for item in items if not (item.finding.id.endswith("-unnamed") and _names_one(told, item, failed))]


def _names_one(jobs: dict[str, JobView], item: Judged, shown: set[str]) -> bool:
    job = jobs[item.finding.target.removeprefix("job:")]
    return any(f"node:{name}" in shown for name in _expand(job.nodes))


def _role(text: str, command: str) -> str:
    """Return what a text is that the case gives no role."""
    for role, key in (
        ("squeue", "squeue"),
        ("sinfo", "sinfo"),
        ("scontrol_job", "show job"),
        ("scontrol_node", "node"),
    ):
        if key in command:
            return role
    if re.search(r"^\s*JobId=", text, re.M) or '"job_state"' in text:
        return "scontrol_job"
    if re.search(r"^\s*NodeName=", text, re.M) or slurm_json.is_json(text):
        return "scontrol_node"
    return "squeue" if re.search(r"\bJOBID\b", text) else "sinfo"


def _read(role: str, text: str, command: str) -> View:
    if slurm_json.is_json(text):
        return slurm_json.read(text)
    readers: dict[str, Callable[[str], View]] = {
        "scontrol_node": slurm_text.nodes,
        "scontrol_job": slurm_text.jobs,
        "sinfo": lambda told: _sinfo(told, command),
        "squeue": lambda told: _squeue(told, command),
    }
    said = _said(text, command)
    if said and not re.search(r"^\s*(?:NodeName|JobId)=", text, re.M):
        return View(troubles=tuple(said))
    return readers[role](text)


def _run(case: Case, command: str, views: dict[str, View]) -> list[Trouble]:
    """Return what the way the command ended says."""
    context = case.context
    silent = not any(view.nodes or view.jobs or view.troubles or view.answered for view in views.values())
    if context.get("timed_out"):
        return [Trouble("no-answer", "the command was ended before it had said everything")]
    said = _said(case.texts.get("stderr", ""), command)
    if said:
        return said
    code = context.get("exit_code")
    if code not in (0, None):
        return [Trouble("command-failed", f"the command ended with {code}")]
    # An empty squeue is a queue without jobs; nodes there always are.
    if silent and not _no_jobs(case, command):
        return [Trouble("no-answer", "the answer names no node and no job")]
    return []


def _no_jobs(case: Case, command: str) -> bool:
    texts = {role: case.texts[role] for role in ("squeue", "scontrol_job") if role in case.texts}
    if "squeue" in texts or ("squeue" in command and "stdout" in case.texts):
        return True
    text = texts.get("scontrol_job", case.texts.get("stdout", ""))
    return "No jobs in the system" in text or slurm_json.is_json(text)


def _said(text: str, command: str) -> list[Trouble]:
    """Return what an error message says."""
    line = next((line.strip() for line in text.splitlines() if _CONTROLLER.search(line)), "")
    if found := _NO_NODE.search(text):
        name = (found[1] or found[2] or "").strip("'\".:,")
        return [Trouble("node-not-found", found[0], f"node:{name}" if name else "node")]
    if _NO_JOB.search(text):
        named = re.search(r"show jobs?(?:id)?[ =](\d\S*)|-j ?(\d\S*)", command)
        return [Trouble("job-not-found", text.strip()[:200], f"job:{named[1] or named[2]}" if named else "node")]
    return [Trouble("controller-unreachable", line)] if line else []


def _expand(text: str) -> list[str]:
    try:
        return expand(text)
    except HostlistError:
        return []


def _sinfo(text: str, command: str) -> View:
    table = slurm_table.read(text, command=command, is_state=states.is_node_word)
    troubles = [Trouble("output-cut", f"no row of sinfo: {line[:200]}") for line in table.unread[:1]]
    # It prints its header after the controller has answered, and with -R no node that takes jobs.
    answered = "REASON" in table.names and "STATE" not in table.names
    nodes: dict[str, NodeView] = {}
    for row in table.rows:
        names = _expand(row.get("NODELIST") or row.get("HOSTNAMES") or row.get("NODE") or "")
        if not {"STATE", "ST", "REASON"} & {*row}:
            return View(troubles=(Trouble("no-answer", "sinfo was not asked for states"),))
        # sinfo -R lists only nodes that are down, drained or failing, and not which.
        word = row.get("STATE") or row.get("ST") or ("drain" if "REASON" in row else "")
        if word.strip().lower() == "n/a":  # a partition without nodes
            continue
        state = states.node((word,), cut=True)
        reason = something(row.get("REASON", ""))
        seen = [NodeView(name, state, reason, something(row.get("USER", "")), table.narrow) for name in names]
        for node in seen:
            nodes.setdefault(node.name, node)
        if not seen and slurm_node_rules.judge([NodeView("?", state, reason)]):
            troubles.append(Trouble("nodes-unnamed", f"nodes are {word}, and the answer does not name them"))
    return View(nodes=tuple(nodes.values()), troubles=tuple(troubles), answered=answered)


def _squeue(text: str, command: str) -> View:
    table = slurm_table.read(text, command=command, is_state=states.is_job_word)
    troubles = [Trouble("output-cut", f"no row of squeue: {line[:200]}") for line in table.unread[:1]]
    jobs: dict[str, JobView] = {}
    for row in table.rows:
        nodes, reason = row.get("NODELIST", ""), row.get("REASON", "")
        both = row.get("NODELIST(REASON)", "").strip()
        if both.startswith("("):
            reason = reason or both[1:].removesuffix(")")
        nodes = nodes or ("" if both.startswith("(") else both)
        restarts = row.get("RESTARTS", "0").strip()
        job = JobView(
            job_id=row.get("JOBID", "").strip() or "?",
            states=frozenset((states.job(row.get("STATE") or row.get("ST") or ""),)),
            reason=something(reason.replace("_", " ")),
            nodes=something(nodes),
            start_s=seconds(row.get("START_TIME", "")),
            end_s=seconds(row.get("END_TIME", "")),
            ran_s=duration(row.get("TIME", "")),
            restarts=int(restarts) if restarts.isdecimal() else 0,
        )
        jobs.setdefault(job.job_id, job)
    return View(jobs=tuple(jobs.values()), troubles=tuple(troubles))

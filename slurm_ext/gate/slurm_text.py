"""scontrol's text: node and job records, on many lines or on one, with what users and administrators wrote in them.

Names, comments and reasons are free text and may hold look-alikes of other fields. So a field is read only from where
scontrol prints it (src/api/node_info.c, src/scontrol/info_job.c), and two different answers are no answer. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from slurm_ext.gate.slurm_views import JobView, NodeView, Trouble, View, duration, seconds, something
from slurm_ext.slurm import states

#: The next field may follow without a space where a printer forgot it.
_STATE = re.compile(r"(?<![A-Za-z])State=([A-Za-z0-9_+*~#!%$@^-]*?)(?=ThreadsPerCore=|\s|$)")
#: Free text starts here; scontrol prints nothing that we need behind it, but for the reason.
_FREE = re.compile(r"(?:^|\s)(?:Reason|Comment|Extra)=", re.M)
#: So many beginnings of a reason are looked at on one line.
_LOOKALIKES_MAX = 8
_STAMP = re.compile(
    r"\s\[([^\[\]@\s]+)@([^\[\]@]*)\](?=\s*$|\s+(?:Comment|Extra|InstanceId|ReservationName|Topology)=)"
)

_JOB_STATE = re.compile(r"(?:^|\s)JobState=(\S*) Reason=(.*?) (?:FailedNode=(\S*) )?Dependency=", re.M)
#: What the user wrote stands before and behind the part between these two.
_JOB_BEGIN = re.compile(r"(?:^|\s)UserId=[^\n=]{1,256} GroupId=\S+\s", re.M)
_JOB_END = re.compile(r"(?:^|\s)(?:Command|Comment|AdminComment|SystemComment|Extra|WorkDir)=", re.M)


def nodes(text: str) -> View:
    """Return the nodes of `scontrol show node`, on one line each or on several."""
    found: dict[str, NodeView] = {}
    troubles: list[Trouble] = []
    records = list(_records(text, "NodeName="))
    for number, record in enumerate(records):
        name = something(record.split(None, 1)[0]) if record.strip() else ""
        free = _FREE.search(record)
        head = record[: free.start()] if free else record
        told = _STATE.search(head)
        if told is None or not told[1] or not name:
            # Somebody's comment may hold a look-alike of a record; a record that ends early is the last one.
            if number == len(records) - 1 or free is None:
                troubles.append(Trouble("output-cut", f"the record of {name or 'a node'} has no state"))
            continue
        if name not in found:
            reason, user = _reason(record)
            found[name] = NodeView(name, states.node((told[1],)), reason, user)
    return View(nodes=tuple(found.values()), troubles=tuple(troubles))


def _records(text: str, key: str) -> Iterator[str]:
    """Yield what follows the key in each record."""
    pieces = re.split(rf"^[ \t]*{key}", text, flags=re.M)
    yield from pieces[1:]


def _reason(record: str) -> tuple[str, str]:
    """Return (reason, who set it) of one record."""
    lines = record.strip().splitlines()
    many = [number for number, line in enumerate(lines) if re.match(r"\s*Reason=", line)]
    if many:
        # A reason of several lines has its stamp behind the first one.
        return _stamped(lines[many[0]].strip()[len("Reason=") :])
    starts = [found.end() for found in islice(re.finditer(r"\sReason=", record), _LOOKALIKES_MAX)]
    if not starts:
        return "", ""
    told = [_stamped(record[start:].split("\n", 1)[0]) for start in starts]
    # A comment that stands before it may hold a look-alike, without the stamp that only Slurm prints.
    return next((one for one in told if one[1]), told[0])


def _stamped(text: str) -> tuple[str, str]:
    stamp = _STAMP.search(text)
    if stamp is not None:
        return something(text[: stamp.start()]), stamp[1]
    return something(re.split(r"\s(?:Comment|Extra|InstanceId)=", text)[0].rstrip(" #")), ""


def jobs(text: str) -> View:
    """Return the jobs of `scontrol show job`, on one line each or on several."""
    found: dict[str, JobView] = {}
    troubles: list[Trouble] = []
    for record in _records(text, "JobId="):
        job_id = record.split(None, 1)[0] if record.strip() else ""
        begin = _JOB_BEGIN.search(record)
        if begin is None or not job_id:
            troubles.append(Trouble("output-cut", f"the record of job {job_id or '?'} ends early"))
            continue
        body = record[begin.end() :]
        end = _JOB_END.search(body)
        body = body[: end.start()] if end else body
        told = {match.groups() for match in _JOB_STATE.finditer(body)}
        if len(told) != 1:
            # None: cut. Several: the job's name holds a whole record, and nobody can say which one is Slurm's.
            kind = "job-ambiguous" if told else "output-cut"
            troubles.append(Trouble(kind, f"the record of job {job_id} tells {len(told)} states", f"job:{job_id}"))
            continue
        word, reason, failed = told.pop()
        failed = failed or _field(body, "FailedNode")
        found.setdefault(
            job_id,
            JobView(
                job_id=job_id,
                states=frozenset((states.job(word),)),
                reason=something(reason.replace("_", " ")),
                nodes=something(_field(body, "NodeList")),
                failed=something(failed),
                start_s=seconds(_field(body, "StartTime")),
                end_s=seconds(_field(body, "EndTime")),
                ran_s=duration(_field(body, "RunTime")),
                restarts=int(_field(body, "Restarts") or 0) if _field(body, "Restarts").isdecimal() else 0,
            ),
        )
    return View(jobs=tuple(found.values()), troubles=tuple(troubles))


def _field(body: str, key: str) -> str:
    told = re.search(rf"(?:^|\s){key}=(\S*)", body)
    return told[1] if told else ""

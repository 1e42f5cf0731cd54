"""slurmctld's own log -> when each job was submitted, began and ended, and where. Pure text.

The log has milliseconds (LogTimeFormat=iso8601_ms); what squeue and sacct say has whole seconds, which is too coarse for jobs
that last some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import NamedTuple

from slurm_ext.slurm.hostlist import expand

_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})\S*\] (.*)")
_SUBMITTED = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) ")
_BEGAN = (
    re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+)"),
    re.compile(r"sched/backfill: _start_job: (?:HETJOB: )?Started JobId=(\d+) in \S+ on (\S+)"),
)
_ENDED = re.compile(r"_job_complete: JobId=(\d+) done")


class Run(NamedTuple):
    """What became of one job, in seconds since the epoch; `nodes` are those that it was given."""

    submitted: float
    began: float
    ended: float
    nodes: tuple[str, ...]
    backfilled: bool


def runs(lines: Iterable[str]) -> dict[int, Run]:
    """Return job id -> what became of it, for jobs that have ended. Raise ValueError for one that began twice."""
    submitted: dict[int, float] = {}
    began: dict[int, tuple[float, tuple[str, ...], bool]] = {}
    ended: dict[int, float] = {}
    for line in lines:
        found = _LINE.match(line)
        if not found:
            continue
        at, said = found[1], found[2]
        if match := _SUBMITTED.match(said):
            submitted[int(match[1])] = _seconds(at)
        elif match := _ENDED.match(said):
            ended[int(match[1])] = _seconds(at)
        else:
            for backfilled, form in enumerate(_BEGAN):
                if match := form.match(said):
                    if int(match[1]) in began:
                        raise ValueError(f"job {match[1]} began twice: something else than the bench is at work")
                    began[int(match[1])] = (_seconds(at), tuple(expand(match[2])), bool(backfilled))
    return {
        number: Run(submitted[number], began[number][0], end, *began[number][1:])
        for number, end in ended.items()
        if number in submitted and number in began
    }


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()

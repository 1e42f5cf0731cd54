"""What Slurm's views tell of nodes and jobs, whatever form they came in: the shapes that parsers give and rules read."""

from __future__ import annotations

import re

from slurm_ext.captured import parse_time
from slurm_ext.slurm.states import NodeState
from slurm_ext.typed import NamedTuple

#: Words of Slurm for nothing, beside the empty text.
NOTHING = frozenset(("(null)", "N/A", "n/a", "None", "none", "NONE", "Unknown", "UNKNOWN", "NOT_SET", "(none)"))


class NodeView(NamedTuple):
    """One node as one view tells it. `reason_cut` is true where a narrow column may have shortened the reason."""

    name: str
    state: NodeState
    reason: str = ""
    user: str = ""
    reason_cut: bool = False


class JobView(NamedTuple):
    """One job as one view tells it. `nodes` and `failed` are hostlists, times are seconds since the epoch or None."""

    job_id: str
    states: frozenset[str] = frozenset()
    reason: str = ""
    nodes: str = ""
    failed: str = ""
    start_s: float | None = None
    end_s: float | None = None
    ran_s: float | None = None
    restarts: int = 0


class Trouble(NamedTuple):
    """Why a view, or a part of one, tells nothing: `kind` ends the id of the finding."""

    kind: str
    text: str
    target: str = "node"


class View(NamedTuple):
    """All that one view tells."""

    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    told_at_s: float | None = None
    answered: bool = False  # the controller answered, though nothing is told: `sinfo -R` of a cluster without faults


def something(text: str) -> str:
    """Return the text without blanks around it, empty where Slurm has a word for nothing."""
    told = text.strip()
    return "" if told in NOTHING else told


def duration(text: str) -> float | None:
    """Return `days-hours:minutes:seconds` in seconds, None where it is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def seconds(text: str) -> float | None:
    """Return a time of Slurm (ISO or seconds since the epoch), None where it is none."""
    told = text.strip()
    if re.fullmatch(r"\d{9,11}", told):
        return float(told)
    return parse_time(told) if re.match(r"\d{4}-", told) else None

"""What the burn-in talks about: the job, what each rank reports, what a group of nodes showed, and the outcome.

Standard library only, NamedTuples: hooks import this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext import verdict
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import Verdict

#: How a group of nodes did: as it should; right but below its floor; a wrong sum; no end; an error.
OK, SLOW, WRONG, HANG, ERROR = "ok", "slow", "wrong", "hang", "error"

#: What a rank's trouble shows: a fault of its own node (no partner needed), of the software there, or only that it had one.
LOCAL, ENVIRONMENT, REMOTE = "local", "environment", "remote"

#: Phases of a rank, in order. `calling` phases: it is inside the library and has not come back.
PHASES = ("start", "library", "context", "ready", "id", "init-calling", "init", "call", "run", "done")


class BurninJob(NamedTuple):
    """One attempt of a job as the prolog sees it. `nodes` are in Slurm's order, `gpus` are per node."""

    cluster: str
    job_id: str
    restarts: int
    nodes: tuple[str, ...]
    node: str
    gpus: int
    instance_type: str = ""
    uid: int = 0
    partition: str = ""
    strict: bool = False
    reusable: bool = False  # this node passed with the same others lately; nothing runs where all of them say so

    @property
    def key(self) -> str:
        """Return the text that names this attempt everywhere."""
        return f"{self.cluster}/{self.job_id}-{self.restarts}"


class RankReport(NamedTuple):
    """What one rank (one GPU) did in one round. Times are milliseconds of one all-reduce by the GPU's own clock."""

    rank: int
    node: str
    gpu: int
    state: str = OK
    cause: str = ""  # LOCAL, ENVIRONMENT or REMOTE where state is ERROR
    phase: str = "start"
    step: int = 0  # collectives finished in this round
    text: str = ""
    pci: str = ""
    min_ms: float = 0.0
    median_ms: float = 0.0
    max_ms: float = 0.0
    slowest_ms: float = 0.0  # at least so long took a collective that was given up
    pace_ms: float = 0.0  # and so long each that ended before
    mismatches: int = 0
    first_bad: int = -1
    checksums: tuple[str, ...] = ()
    sustain_ms: float = 0.0  # one all-reduce in the sustained traffic: median, or its last quarter's if more; 0: none
    sustain_steps: int = 0
    drift: float = 1.0  # its last quarter's median by its first's
    onset_s: float = 0.0  # trouble, or slower, in it, after so much traffic in all (seconds); 0: before it began
    nics: tuple[str, ...] = ()  # in a round of rails: the network devices nearest to the GPU, where sysfs tells


#: What a report is on the way: its fields in this order, without those at the end that are as usual. Its node the leader knows.
_SENT = tuple(name for name in RankReport._fields if name != "node")
_USUAL = tuple(RankReport._field_defaults.get(name) for name in _SENT)
_LISTS = tuple(_SENT.index(name) for name in ("checksums", "nics"))


def shortened(rank: Mapping[str, Any]) -> list[Any]:
    """Return a RankReport in plain data, as short as it can be: thousands of them go to one leader."""
    row = [rank.get(name, usual) for name, usual in zip(_SENT, _USUAL, strict=True)]
    while row and row[-1] == _USUAL[len(row) - 1]:
        row.pop()
    return row


def rank_from(rank: Mapping[str, Any] | Sequence[Any], node: str) -> RankReport:
    """Return the RankReport that `node` sent, shortened or whole, whatever name it gave itself. Raise TypeError where it is none."""
    if isinstance(rank, Mapping):
        lists = {_SENT[place]: tuple(rank.get(_SENT[place], ())) for place in _LISTS}
        return RankReport(**{**rank, "node": node, **lists})
    if not isinstance(rank, list) or not rank:
        raise TypeError("not a report of a rank")
    first, *more = rank
    for place in _LISTS:
        if len(more) >= place:
            more[place - 1] = tuple(more[place - 1])
    return RankReport(first, node, *more)


class Suspect(NamedTuple):
    """A node that the evidence points at, and why in words. `local`: it showed so without any partner."""

    node: str
    why: str
    local: bool = False


class RailResult(NamedTuple):
    """What one rail (the GPU of one index on each node of a group) showed by itself."""

    gpu: int
    outcome: str
    busbw_gbs: float | None = None


class GroupResult(NamedTuple):
    """What one group of nodes showed in one round. `suspects` are hints, never convictions."""

    nodes: tuple[str, ...]
    outcome: str
    busbw_gbs: float | None = None
    ranks: int = 0
    suspects: tuple[Suspect, ...] = ()
    environment: tuple[Suspect, ...] = ()  # nodes whose software, not hardware, was in the way
    evidence: tuple[str, ...] = ()
    judged: bool = True  # False: no floor is known, so the speed was not judged
    rails: tuple[RailResult, ...] = ()  # of a round of rails only
    onset_s: float = 0.0  # it showed in sustained traffic only, after so much traffic in all (seconds); 0: before


class Round(NamedTuple):
    """What runs at the same time: disjoint groups of nodes. `kind`: all, isolate, alone, pairs, confirm, again; groups
    (instead of all where the job is large), across (one node of each group), rails (a communicator for each GPU index)."""

    kind: str
    groups: tuple[tuple[str, ...], ...]


class RoundResult(NamedTuple):
    """A round and what its groups showed, in the same order."""

    kind: str
    groups: tuple[GroupResult, ...]


class Past(NamedTuple):
    """An earlier burn-in, as history tells it: what one node, or a group of them, showed. `time` is seconds since 1970."""

    time: float
    job: str
    nodes: tuple[str, ...]
    verdict: str
    rule: str = ""
    suspects: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()
    busbw_gbs: float | None = None


class Decision(NamedTuple):
    """The end of a burn-in. Only `culprits` may be drained; `suspects` are to be left out of the next attempt."""

    verdict: Verdict
    culprits: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """What a hook gets.

    FAIL with culprits: these drain. FAIL without: the job must not start on these nodes (`measured["suspects"]` are to be
    excluded), and nobody drains. UNKNOWN: nothing was learned, `on_unknown` decides. `seconds` is this node's own wait.
    """

    verdict: Verdict
    culprits: tuple[str, ...] = ()
    busbw_gbs: float | None = None
    ranks: int = 0
    seconds: float = 0.0
    measured: Mapping[str, Any] = {}


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as plain data, `schema` 1."""
    return {
        "schema": 1,
        **verdict.to_json(outcome.verdict),
        "culprits": list(outcome.culprits),
        "busbw_gbs": outcome.busbw_gbs,
        "ranks": outcome.ranks,
        "seconds": round(outcome.seconds, 3),
        "measured": dict(outcome.measured),
    }


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """Return the outcome that `outcome_to_json` wrote. Raise ValueError where the shape is another one."""
    try:
        busbw = data.get("busbw_gbs")
        return Outcome(
            verdict.from_json(dict(data)),
            tuple(str(name) for name in data.get("culprits", [])),
            None if busbw is None else float(busbw),
            int(data.get("ranks", 0)),
            float(data.get("seconds", 0.0)),
            dict(data.get("measured", {})),
        )
    except (TypeError, AttributeError) as exc:
        raise ValueError(f"not an outcome: {exc!r}") from exc


def unknown(rule: str, reason: str, *, measured: Mapping[str, Any] | None = None) -> Outcome:
    """Return the outcome of a burn-in that learned nothing."""
    return Outcome(Verdict(verdict.UNKNOWN, (), reason, rule), measured=measured or {})

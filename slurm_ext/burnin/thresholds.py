"""The fleet's own median of like burn-ins, and what a run far below it means. Pure.

A figure is compared only with figures of the same key: instance type, node-count bucket, message size, versions of NCCL,
plugin and driver. Old runs fade (half of their weight each half-life), no set of nodes counts more than a few times, and
below RUNS_MIN runs there is no median: then the table's floors are all there is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext.burnin import rules
from slurm_ext.burnin.model import OK, SLOW, Decision, GroupResult
from slurm_ext.verdict import FAIL, PASS, WARN, Finding, Verdict

#: Fewer runs say nothing of a fleet.
RUNS_MIN = 20
#: The newest runs of one and the same set of nodes that count: a job that is requeued all night is no fleet.
RUNS_PER_SET = 5
#: A run's weight halves in this share of `history_d`, at whose end it counts no more.
HALF_LIFE_SHARE = 1 / 3
#: Clocks of nodes differ a little; a run dated further in the future than this (seconds) counts not at all.
FUTURE_S = 3_600.0

DAY_S = 86_400.0

FLAG, DRAIN = "flag", "drain"

#: The rule of a run that was right and whose speed nobody could judge.
NO_FLOOR = "burnin.no-floor"


class Key(NamedTuple):
    """What must be equal for two figures to be comparable. An empty version is one that nobody could read; `sustained`
    says that traffic without a pause belongs to the run, for which the GPUs warm up longer first."""

    instance_type: str
    bucket: str
    message_bytes: int
    nccl: str = ""
    plugin: str = ""
    driver: str = ""
    sustained: bool = False


class Run(NamedTuple):
    """One burn-in that passed: when (seconds since 1970), on which nodes, its busbw (GB/s) over all of them."""

    time: float
    nodes: tuple[str, ...]
    busbw_gbs: float
    key: Key


class Fleet(NamedTuple):
    """What like runs of the fleet show (GB/s), of how many runs over how many sets of nodes."""

    median_gbs: float
    floor_gbs: float
    runs: int
    sets: int


class Relative(NamedTuple):
    """What a leader judges a run by beside the floors: the site's keys, the fleet's runs as history tells them, `now`
    (seconds since 1970) when they were read, the driver's version, and whether the run sustains traffic."""

    percent: float = 15.0
    act: str = FLAG
    history_d: float = 30.0
    runs: tuple[Run, ...] = ()
    now: float = 0.0
    driver: str = ""
    sustained: bool = False


def key_of(
    instance_type: str,
    nodes: int,
    message_bytes: int,
    *,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    driver: str = "",
    sustained: bool = False,
) -> Key:
    """Return the key of a run over so many nodes. `facts` by node are what stations report (`efa_look`): versions of NCCL
    and the plugin; nodes that differ make it `mixed`, and such runs are compared with one another alone."""
    nccl: set[str] = set()
    plugin: set[str] = set()
    for fact in (facts or {}).values():
        nccl.update(str(version) for version in _list(fact.get("versions")))
        for process in _list(fact.get("processes")):
            if isinstance(process, Mapping) and (parts := _list(process.get("plugin"))):
                plugin.add(".".join(str(part) for part in parts))
    return Key(instance_type, rules.bucket(nodes), message_bytes, _one(nccl), _one(plugin), driver, sustained)


def key_for(
    relative: Relative,
    instance_type: str,
    nodes: int,
    message_bytes: int,
    *,
    facts: Mapping[str, Mapping[str, Any]],
) -> Key:
    """Return the key under which a run by these terms is judged, and recorded."""
    return key_of(
        instance_type, nodes, message_bytes, facts=facts, driver=relative.driver, sustained=relative.sustained
    )


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _one(versions: set[str]) -> str:
    return "mixed" if len(versions) > 1 else next(iter(versions), "")


def relative_floor(
    runs: Iterable[Run], *, key: Key, now: float, percent: float, history_d: float, runs_min: int = RUNS_MIN
) -> Fleet | None:
    """Return the fleet's weighted median of passed runs like `key`, and the floor `percent` below it; None where too few
    runs are younger than `history_d` days. `percent` 0 switches it off."""
    if percent <= 0:
        return None
    counted = _counted(runs, key, now, history_d)
    if len(counted) < runs_min:
        return None
    half_life_s = history_d * DAY_S * HALF_LIFE_SHARE
    weighted = sorted((run.busbw_gbs, 0.5 ** (max(0.0, now - run.time) / half_life_s)) for run in counted)
    median = _weighted_median(weighted)
    return Fleet(median, median * max(0.0, 1 - percent / 100), len(counted), len({frozenset(r.nodes) for r in counted}))


def _counted(runs: Iterable[Run], key: Key, now: float, history_d: float) -> list[Run]:
    """Return the runs that count, newest first."""
    fresh = [
        run
        for run in runs
        if run.key == key
        and math.isfinite(run.busbw_gbs)
        and run.busbw_gbs > 0
        and -FUTURE_S <= now - run.time < history_d * DAY_S
    ]
    per_set: dict[frozenset[str], int] = {}
    kept = []
    for run in sorted(fresh, key=lambda run: -run.time):
        nodes = frozenset(run.nodes)
        per_set[nodes] = per_set.get(nodes, 0) + 1
        if per_set[nodes] <= RUNS_PER_SET:
            kept.append(run)
    return kept


def _weighted_median(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the least value at or below which at least half of the weight lies; `weighted` is sorted, not empty."""
    half = math.fsum(weight for _, weight in weighted) / 2
    passed = 0.0
    for value, weight in weighted:
        passed += weight
        if passed >= half:
            return value
    return weighted[-1][0]


def judge_relative(busbw: float | None, fleet: Fleet | None) -> Finding | None:
    """Return the finding `burnin.below-fleet` where a run (GB/s) is below the fleet's floor, or None. It is advice only."""
    if fleet is None or busbw is None or busbw >= fleet.floor_gbs:
        return None
    return Finding("burnin.below-fleet", "node", "warn", (_words(busbw, fleet), f"over {fleet.sets} sets of nodes"))


def _words(busbw: float, fleet: Fleet) -> str:
    below = 100 * (1 - busbw / fleet.median_gbs)
    return f"{busbw:.3g} GB/s, {below:.0f} % below the median {fleet.median_gbs:.3g} of {fleet.runs} like runs"


def fleet_of(
    relative: Relative | None,
    *,
    instance_type: str,
    nodes: int,
    message_bytes: int,
    facts: Mapping[str, Mapping[str, Any]],
) -> Fleet | None:
    """Return what the fleet shows for a group of so many nodes, or None. `facts` by node are those of the first run."""
    if relative is None:
        return None
    key = key_for(relative, instance_type, nodes, message_bytes, facts=facts)
    return relative_floor(
        relative.runs, key=key, now=relative.now, percent=relative.percent, history_d=relative.history_d
    )


def by_fleet(
    result: GroupResult,
    relative: Relative | None,
    *,
    instance_type: str,
    message_bytes: int,
    facts: Mapping[str, Mapping[str, Any]],
) -> GroupResult:
    """Return a group's result as slow where it is below the fleet's floor and the site turned `drain` on, else as it is.

    So a node that is slow beside the fleet is looked for, and convicted, by the same rounds as one below the hard floor.
    """
    if relative is None or relative.act != DRAIN or result.outcome != OK or result.busbw_gbs is None:
        return result
    fleet = fleet_of(
        relative, instance_type=instance_type, nodes=len(result.nodes), message_bytes=message_bytes, facts=facts
    )
    if fleet is None or result.busbw_gbs >= fleet.floor_gbs:
        return result
    return result._replace(outcome=SLOW, evidence=(_words(result.busbw_gbs, fleet), *result.evidence), judged=True)


def after_pass(
    decision: Decision,
    relative: Relative | None,
    *,
    instance_type: str,
    nodes: int,
    message_bytes: int,
    busbw_gbs: float | None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    over_efa: bool = False,
    site_floor: float = 0.0,
) -> Decision:
    """Return the decision with what the TCP alarm and the fleet's median make of the first run's busbw (GB/s).

    The alarm fails and convicts nobody: it is the network of the whole job. Below the fleet's floor warns, or fails where
    the site turned `drain` on (see `by_fleet`, which comes first there). Where nobody knows a hard floor, a run that the
    fleet's median bears out passes. A decision that failed or is unknown only gains the alarm's finding.
    """
    alarm = None
    if over_efa:
        alarm = rules.tcp_alarm(
            instance_type, nodes, message_bytes=message_bytes, busbw=busbw_gbs, site_floor=site_floor
        )
    verdict = decision.verdict
    if verdict.verdict not in (PASS, WARN):
        return decision if alarm is None else _with(decision, alarm, verdict.verdict)
    if alarm is not None:
        return _with(decision, alarm, FAIL)
    fleet = fleet_of(relative, instance_type=instance_type, nodes=nodes, message_bytes=message_bytes, facts=facts or {})
    if fleet is None or relative is None:
        return decision
    if (finding := judge_relative(busbw_gbs, fleet)) is not None:
        return _with(decision, finding, FAIL if relative.act == DRAIN else WARN)
    if verdict.rule == NO_FLOOR and busbw_gbs is not None:
        words = f"{busbw_gbs:.3g} GB/s, the median of {fleet.runs} like runs is {fleet.median_gbs:.3g}"
        return decision._replace(verdict=Verdict(PASS, (), f"right results, {words}", "burnin.fleet"))
    return decision


def _with(decision: Decision, finding: Finding, verdict: str) -> Decision:
    before = decision.verdict
    if verdict == before.verdict:
        return decision._replace(verdict=before._replace(findings=(*before.findings, finding)))
    reason = f"{finding.id}: {finding.evidence[0]}"
    return decision._replace(verdict=Verdict(verdict, (finding, *before.findings), reason, finding.id))

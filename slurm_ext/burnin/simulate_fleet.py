"""A simulated fleet: what ails its nodes, and a noise that is no node's fault. Pure and seeded; used by `simulate`.

Every group run goes through the real judge as reports of ranks. Its speed is the healthy one, times what each of these takes:

- the fault: a slow node's factor (0.2 to 0.72), a bad pair's, a slow leaf switch's (0.2 to 0.7, towards others or inside, too);
- jitter: log-normal, sigma 3 % a run; every fiftieth run six times that (a heavy tail, on the slow side);
- dips for no reason: 3 % of all runs by themselves, and for each leaf switch a bad moment in 5 % of the rounds, in which half
  of the runs that touch it dip, to 0.2 .. 0.84 of their speed. The floor is at 0.85 of the healthy speed, so a run of all that
  touches eight switches dips in every fifth burn-in;
- a slowdown of one leaf switch in 6 % of the burn-ins: from one of the first rounds on, for three rounds on average and up to
  ten, to 0.3 .. 0.95 (so that some hover at the floor), for what crosses it or, as often, for all that touches it;
- a flapping link of a healthy node in 3 % of the burn-ins, for two rounds;
- false reports that do not come from any node's fault: 0.25 % of the runs hang (half of them with one node that seems behind),
  0.1 % have a wrong result at one node, 0.15 % an error that one node calls its own.

A fleet's own healthy speed differs by 5 % either way from what the floors were made for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_ext.burnin import judge, rules
from slurm_ext.burnin.model import ERROR, HANG, LOCAL, OK, REMOTE, SLOW, WRONG, GroupResult, RankReport, Round

MESSAGE_BYTES = 1 << 30

#: Healthy busbw (GB/s) of all nodes, of a pair and of one node, and the floors at 0.85 of it.
_HEALTHY = {"one": 470.0, "pair": 447.0, "more": 365.0}
FLOOR_SHARE = 0.85

JITTER, TAIL_SHARE, TAIL_TIMES = 0.03, 0.02, 6.0
DIP_SHARE, MOMENT_SHARE, MOMENT_DIPS, DIP_TO = 0.03, 0.05, 0.5, (0.2, 0.84)
SLOWDOWN_SHARE, SLOWDOWN_ROUNDS, SLOWDOWN_MOST, SLOWDOWN_TO = 0.06, 3.0, 10, (0.3, 0.95)
FLAP_SHARE, FLAP_ROUNDS = 0.03, 2
FALSE_HANG, FALSE_WRONG, FALSE_ERROR = 0.0025, 0.001, 0.0015


#: Traffic (seconds) before the sustained: checks, warm-up, timed all-reduces.
HEATED_S = 1.5


class Fault(NamedTuple):
    """What ails a node. `share` is how often it shows (1 always); `by_itself` without a partner, too; `rail` -1: all of them."""

    kind: str  # slow, sender, receiver, hang, error
    factor: float = 1.0
    by_itself: bool = False
    phase: str = "run"  # where a hanging node stands: others wait in the same phase, or got further
    rail: int = -1
    share: float = 1.0
    onset_s: float = 0.0  # slow only after so much (seconds) traffic, as a card that gets hot; 0: from the start


class Fleet(NamedTuple):
    """The hidden truth of one burn-in. `switch` is where each node really sits; `leaves` what is known of it."""

    nodes: tuple[str, ...]
    gpus: int
    switch: Mapping[str, str]
    leaves: Mapping[str, str]
    faults: Mapping[str, Fault]
    speed: float = 1.0  # this fleet's healthy speed by the one that floors were made for
    bad_pair: tuple[str, str, Fault] | None = None
    slow_leaf: tuple[str, float, bool] | None = None  # switch, factor, inside as well


class Weather(NamedTuple):
    """The noise of one burn-in that outlasts a round."""

    slowdown: tuple[str, int, int, float, bool] | None  # switch, from round, to round, factor, inside as well
    flap: tuple[str, int, float] | None  # node, from round, factor
    still: bool = False  # nothing but jitter


def weather(fleet: Fleet, chance: random.Random) -> Weather:
    """Draw the lasting noise of one burn-in."""
    slowdown = flap = None
    if chance.random() < SLOWDOWN_SHARE:
        begin = chance.randint(0, 3)
        lasts = min(SLOWDOWN_MOST, 1 + int(chance.expovariate(1 / SLOWDOWN_ROUNDS)))
        leaf = fleet.switch[chance.choice(fleet.nodes)]
        slowdown = (leaf, begin, begin + lasts, chance.uniform(*SLOWDOWN_TO), chance.random() < 0.5)
    healthy = [name for name in fleet.nodes if name not in fleet.faults]
    if healthy and chance.random() < FLAP_SHARE:
        flap = (chance.choice(healthy), chance.randint(0, 3), chance.uniform(*DIP_TO))
    return Weather(slowdown, flap)


def run(
    fleet: Fleet, sky: Weather, number: int, step: Round, chance: random.Random, *, sustain_s: float = 0.0
) -> tuple[GroupResult, ...]:
    """Return what the groups of a round show, as the real judge sees their ranks' reports. `number` counts rounds from 0;
    `sustain_s` of traffic without a pause (seconds) are in it, behind HEATED_S of others."""
    moments = {leaf: chance.random() < MOMENT_SHARE for leaf in dict.fromkeys(fleet.switch[n] for n in fleet.nodes)}
    results = (_group(fleet, sky, number, step, nodes, moments, chance, sustain_s) for nodes in step.groups)
    return tuple(results)


def _group(
    fleet: Fleet,
    sky: Weather,
    number: int,
    step: Round,
    nodes: tuple[str, ...],
    moments: Mapping[str, bool],
    chance: random.Random,
    sustain_s: float,
) -> GroupResult:
    size = "one" if len(nodes) == 1 else "pair" if len(nodes) == 2 else "more"
    healthy = _HEALTHY[size] * fleet.speed
    floor = _HEALTHY[size] * FLOOR_SHARE
    factor = _common(fleet, sky, number, nodes, moments, chance)
    shown = [name for name in nodes if (f := fleet.faults.get(name)) and _shows(f, len(nodes), chance)]
    pair = fleet.bad_pair
    broken = pair[2] if pair and pair[0] in nodes and pair[1] in nodes else None
    if step.kind == "rails":
        return _rails(fleet, nodes, healthy, floor, factor, shown, chance)
    hot = [fault for name in shown if (fault := fleet.faults[name]).onset_s]
    for fault in [fleet.faults[name] for name in shown] + ([broken] if broken else []):
        if fault.onset_s:
            continue
        factor = min(factor, fault.factor * _jitter(chance, sky.still))
    trouble = next((n for n in shown if fleet.faults[n].kind != "slow"), "")
    if trouble:
        reports = _hard(fleet, nodes, trouble, fleet.faults[trouble])
    elif broken and broken.kind == "hang":
        reports = _hang(fleet, nodes, "", "run")
    else:
        reports = (None if sky.still else _false(fleet, nodes, chance)) or _well(fleet, nodes, healthy * factor, floor)
        if sustain_s and reports[0].state == OK:
            reports = _sustained(reports, hot, sustain_s, chance)
    return judge.judge_group(nodes, reports, message_bytes=MESSAGE_BYTES, floor_gbs=floor)


def _shows(fault: Fault, size: int, chance: random.Random) -> bool:
    return (size > 1 or fault.by_itself) and (fault.share >= 1.0 or chance.random() < fault.share)


def _jitter(chance: random.Random, still: bool = False) -> float:
    if not still and chance.random() < TAIL_SHARE:
        return math.exp(-abs(chance.gauss(0, JITTER * TAIL_TIMES)))
    return math.exp(chance.gauss(0, JITTER))


def _common(
    fleet: Fleet,
    sky: Weather,
    number: int,
    nodes: Sequence[str],
    moments: Mapping[str, bool],
    chance: random.Random,
) -> float:
    """Return the factor of all that is no node's fault, and of a slow switch."""
    factor = _jitter(chance, sky.still)
    touched = {fleet.switch[name] for name in nodes}
    crossing = len(touched) > 1
    if not sky.still and chance.random() < DIP_SHARE:
        factor *= chance.uniform(*DIP_TO)
    for leaf in sorted(touched):
        if not sky.still and moments[leaf] and chance.random() < MOMENT_DIPS:
            factor *= chance.uniform(*DIP_TO)
    if sky.slowdown:
        leaf, begin, end, amount, inside = sky.slowdown
        if leaf in touched and begin <= number < end and (crossing or (inside and len(nodes) > 1)):
            factor *= amount
    if sky.flap:
        name, begin, amount = sky.flap
        if name in nodes and len(nodes) > 1 and begin <= number < begin + FLAP_ROUNDS:
            factor *= amount
    if fleet.slow_leaf:
        leaf, amount, inside = fleet.slow_leaf
        if leaf in touched and (crossing or (inside and len(nodes) > 1)):
            factor *= amount
    return factor


def _well(fleet: Fleet, nodes: Sequence[str], busbw_gbs: float, floor: float) -> list[RankReport]:
    """Reports of a run that came to its end, or was given up as far too slow."""
    ranks = len(nodes) * fleet.gpus
    took_ms = rules.seconds_at(busbw_gbs, MESSAGE_BYTES, ranks) * 1e3
    places = ((node, gpu) for node in nodes for gpu in range(fleet.gpus))
    if busbw_gbs < floor / 3:
        return [
            RankReport(rank, node, gpu, SLOW, "", "run", 5, slowest_ms=took_ms * 1.3, pace_ms=took_ms)
            for rank, (node, gpu) in enumerate(places)
        ]
    return [
        RankReport(rank, node, gpu, OK, "", "done", 25, "", "", took_ms * 0.97, took_ms, took_ms * 1.1)
        for rank, (node, gpu) in enumerate(places)
    ]


def _sustained(
    reports: Sequence[RankReport], hot: Sequence[Fault], sustain_s: float, chance: random.Random
) -> list[RankReport]:
    """The same reports with sustained traffic in them: as fast as before, but where a node at fault got hot in time."""
    took_ms = max(report.median_ms for report in reports) / _jitter(chance)
    late = [fault for fault in hot if fault.onset_s < HEATED_S + 0.75 * sustain_s]
    for fault in late:
        took_ms = max(took_ms, max(report.median_ms for report in reports) / (fault.factor * _jitter(chance)))
    onset_s = max(HEATED_S + 0.01, min((fault.onset_s for fault in late), default=HEATED_S + sustain_s))
    return [r._replace(sustain_ms=took_ms, sustain_steps=99, onset_s=onset_s) for r in reports]


def _hang(fleet: Fleet, nodes: Sequence[str], behind: str, phase: str) -> list[RankReport]:
    """Reports of a run that did not end: `behind` stands in `phase`, all others wait where that leaves them."""
    waits = {"context": "init", "init-calling": "init", "call": "run"}.get(phase, phase)
    step = 1 if phase in ("call", "run") else 0
    return [
        RankReport(rank, node, gpu, HANG, "", phase if node == behind else waits, step, "killed")
        for rank, (node, gpu) in enumerate((n, g) for n in nodes for g in range(fleet.gpus))
    ]


def _hard(fleet: Fleet, nodes: Sequence[str], culprit: str, fault: Fault) -> list[RankReport]:
    """Reports of a run that a node spoils otherwise than by slowness."""
    if fault.kind == "hang":
        return _hang(fleet, nodes, culprit, fault.phase)
    places = [(node, gpu) for node in nodes for gpu in range(fleet.gpus)]
    reports = []
    for rank, (node, gpu) in enumerate(places):
        mine = node == culprit
        if fault.kind == "error":
            cause = LOCAL if mine and gpu == 0 and fault.phase != "remote" else REMOTE
            words = "CUDA_ERROR_ECC_UNCORRECTABLE (214)" if cause == LOCAL else "remote process exited"
            reports.append(RankReport(rank, node, gpu, ERROR, cause, "run", 1, words))
        elif fault.kind == "sender" or mine:
            reports.append(
                RankReport(rank, node, gpu, WRONG, "", "done", 25, mismatches=8, first_bad=64, checksums=("bad",))
            )
        else:
            reports.append(RankReport(rank, node, gpu, OK, "", "done", 25, median_ms=9.0, checksums=("good",)))
    return reports


def _false(fleet: Fleet, nodes: Sequence[str], chance: random.Random) -> list[RankReport] | None:
    """Reports of a run that fails for nobody's fault, or None: mostly there is nothing of the kind."""
    drawn = chance.random()
    if drawn >= FALSE_HANG + FALSE_WRONG + FALSE_ERROR:
        return None
    node = chance.choice(nodes)
    if drawn < FALSE_HANG:
        return _hang(fleet, nodes, node if chance.random() < 0.5 else "", chance.choice(("context", "call", "run")))
    return _hard(fleet, nodes, node, Fault("receiver" if drawn < FALSE_HANG + FALSE_WRONG else "error"))


def _rails(
    fleet: Fleet,
    nodes: tuple[str, ...],
    healthy: float,
    floor: float,
    factor: float,
    shown: Sequence[str],
    chance: random.Random,
) -> GroupResult:
    """A round in which every GPU index is a communicator of its own."""
    reports = []
    for gpu in range(fleet.gpus):
        speed = healthy / fleet.gpus * factor * _jitter(chance)
        for name in shown:
            fault = fleet.faults[name]
            if fault.rail in (-1, gpu):
                speed *= fault.factor if fault.kind == "slow" else 0.5
        took_ms = rules.seconds_at(speed, MESSAGE_BYTES, len(nodes)) * 1e3
        reports += [
            RankReport(place, node, gpu, OK, "", "done", 25, "", "", took_ms, took_ms, took_ms)
            for place, node in enumerate(nodes)
        ]
    return judge.judge_rails(nodes, reports, message_bytes=MESSAGE_BYTES, floor_gbs=floor)

"""From what the ranks of a group reported to what the group showed, and whom it points at. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_ext.burnin import rules
from slurm_ext.burnin.model import (
    ENVIRONMENT,
    ERROR,
    HANG,
    LOCAL,
    OK,
    PHASES,
    REMOTE,
    SLOW,
    WRONG,
    GroupResult,
    RailResult,
    RankReport,
    Suspect,
)
from slurm_ext.patterns import pattern

#: Sustained traffic below this share of the speed before it, or whose last quarter takes so much longer than its first, is
#: worth a word: something heats up, or fills up.
FALLEN, DRIFT_MOST = 0.9, 1.15

_DEVICE = pattern(r"[A-Za-z0-9_.-]{1,32}")


def judge_group(
    nodes: Sequence[str], reports: Sequence[RankReport], *, message_bytes: int, floor_gbs: float
) -> GroupResult:
    """Return what a group showed. The worst rank decides; suspects are nodes that evidence of their own points at.

    `floor_gbs` 0 means that nobody knows a floor: the speed is then reported and not judged. The speed is that of the timed
    all-reduces, or of the sustained traffic behind them where that was slower.
    """
    result = _judged(nodes, reports, message_bytes, floor_gbs)
    trouble = [report.onset_s for report in reports if report.state != OK]
    # Whoever got as far as the sustained traffic tells when it went wrong; who died or was killed cannot.
    return result._replace(onset_s=max(trouble)) if trouble else result


def _judged(nodes: Sequence[str], reports: Sequence[RankReport], message_bytes: int, floor_gbs: float) -> GroupResult:
    states = Counter(report.state for report in reports)
    ranks = len(reports)
    busbw = _busbw([report.median_ms for report in reports], message_bytes, ranks)
    lasting = _busbw([report.sustain_ms for report in reports], message_bytes, ranks)
    if states[WRONG]:
        return GroupResult(tuple(nodes), WRONG, busbw, ranks, *_wrong(reports))
    own = any(report.state == ERROR and report.cause != REMOTE for report in reports)
    if own or (states[ERROR] and not states[SLOW]):
        return GroupResult(tuple(nodes), ERROR, busbw, ranks, *_errors(reports))
    unfinished = [report for report in reports if report.state in (SLOW, HANG)]
    if states[SLOW] or (unfinished and all(r.step >= 2 for r in unfinished)):
        # Every rank went on and did not come to its end: that is slow, not stuck.
        return GroupResult(tuple(nodes), SLOW, *_estimate(unfinished, message_bytes, ranks, floor_gbs))
    if unfinished or busbw is None:
        return GroupResult(tuple(nodes), HANG, None, ranks, *_laggards(reports))
    if floor_gbs > 0 and busbw < floor_gbs:
        word = f"busbw {busbw:.3g} GB/s, floor {floor_gbs:.3g}"
        return GroupResult(tuple(nodes), SLOW, busbw, ranks, evidence=(word,))
    judged = GroupResult(tuple(nodes), OK, busbw, ranks, evidence=_jitter(reports), judged=floor_gbs > 0)
    return judged if lasting is None else _sustained(judged, reports, lasting, floor_gbs)


def _sustained(judged: GroupResult, reports: Sequence[RankReport], lasting: float, floor_gbs: float) -> GroupResult:
    """Return the result of a group that did well at first with what its sustained traffic showed (busbw in GB/s)."""
    before = judged.busbw_gbs or 0.0
    drift = max(report.drift for report in reports)
    words = []
    slow, fallen = lasting < floor_gbs, lasting < FALLEN * before
    if slow:
        words.append(f"busbw {lasting:.3g} GB/s in sustained traffic, floor {floor_gbs:.3g}, {before:.3g} before")
    elif fallen:
        words.append(f"busbw {lasting:.3g} GB/s in sustained traffic, {before:.3g} before")
    if drift > DRIFT_MOST:
        words.append(f"the last quarter of the sustained traffic took {drift:.2f} times as long as the first")
    return judged._replace(
        outcome=SLOW if slow else OK,
        busbw_gbs=min(before, lasting),
        evidence=tuple(words) if slow else (*judged.evidence, *words),
        onset_s=max(report.onset_s for report in reports) if slow or fallen else 0.0,
    )


def _busbw(times_ms: Sequence[float], message_bytes: int, ranks: int) -> float | None:
    """Return busbw by the slowest rank's time; None where no rank has one."""
    slowest_ms = max(times_ms, default=0.0)
    return rules.busbw_gbs(message_bytes, slowest_ms / 1e3, ranks) if slowest_ms > 0 else None


def _estimate(
    unfinished: Sequence[RankReport], message_bytes: int, ranks: int, floor_gbs: float
) -> tuple[float | None, int, tuple[Suspect, ...], tuple[Suspect, ...], tuple[str, ...]]:
    """What a run was doing when it was given up: by the pace of what ended, else by how long the last took at least."""
    paces = [r.pace_ms for r in unfinished if r.pace_ms > 0]
    bounds = [r.slowest_ms for r in unfinished if r.slowest_ms > 0]
    took_ms = max(paces) if paces else min(bounds, default=0.0)
    if not took_ms:
        return None, ranks, (), (), ("given up as too slow",)
    busbw = rules.busbw_gbs(message_bytes, took_ms / 1e3, ranks)
    word = f"busbw {'' if paces else 'below '}{busbw:.3g} GB/s, floor {floor_gbs:.3g}, given up"
    return busbw, ranks, (), (), (word,)


def _jitter(reports: Sequence[RankReport]) -> tuple[str, ...]:
    spread = max((r.max_ms / r.min_ms for r in reports if r.min_ms > 0), default=1.0)
    return (f"slowest all-reduce {spread:.2f} times the fastest",) if spread > 1.25 else ()


def relative(results: Sequence[GroupResult]) -> tuple[GroupResult, ...]:
    """Return the results of groups of equal size with the unjudged ones judged against each other: a third of the median
    is slow. For pairs of a fabric whose floor nobody knows; with fewer than three groups there is no median to speak of."""
    speeds = sorted(r.busbw_gbs for r in results if r.busbw_gbs is not None and r.outcome == OK)
    if len(speeds) < 3:
        return tuple(results)
    third = speeds[len(speeds) // 2] / 3
    return tuple(
        r._replace(outcome=SLOW, evidence=(f"busbw {r.busbw_gbs:.3g} GB/s, a third of the others' is {third:.3g}",))
        if r.outcome == OK and not r.judged and r.busbw_gbs is not None and r.busbw_gbs < third
        else r
        for r in results
    )


def _by_node(reports: Sequence[RankReport]) -> dict[str, list[RankReport]]:
    found: dict[str, list[RankReport]] = {}
    for report in reports:
        found.setdefault(report.node, []).append(report)
    return found


def _wrong(reports: Sequence[RankReport]) -> tuple[tuple[Suspect, ...], tuple[Suspect, ...], tuple[str, ...]]:
    """One odd result among right ones is that rank's own receiving or memory; all wrong alike came from a sender."""
    bad = [r for r in reports if r.state == WRONG]
    evidence = tuple(
        f"gpu {r.gpu} of {r.node}: {r.mismatches} wrong values, the first at {r.first_bad}" for r in bad[:4]
    )
    nodes = {r.node for r in bad}
    all_nodes = {r.node for r in reports}
    if nodes != all_nodes:
        word = "its result is wrong where the other nodes hold the right one: receiving or memory"
        return tuple(Suspect(name, word) for name in sorted(nodes)), (), evidence
    sums = Counter(r.checksums for r in bad)
    common, count = sums.most_common(1)[0]
    odd = {r.node for r in bad if r.checksums != common}
    if odd and odd != all_nodes and count > len(bad) // 2:
        return tuple(Suspect(name, "its result differs from the others'") for name in sorted(odd)), (), evidence
    return (), (), (*evidence, "all ranks hold the same wrong result: a sender or a reducer")


def _errors(reports: Sequence[RankReport]) -> tuple[tuple[Suspect, ...], tuple[Suspect, ...], tuple[str, ...]]:
    bad = [r for r in reports if r.state == ERROR]
    local = [r for r in bad if r.cause == LOCAL]
    software = [r for r in bad if r.cause == ENVIRONMENT]
    own = local or software or bad
    evidence = tuple(f"gpu {r.gpu} of {r.node} in {r.phase}: {r.text}" for r in own[:4])
    return (
        tuple(
            Suspect(name, f"gpu {found[0].gpu} in {found[0].phase}: {found[0].text}", True)
            for name, found in _by_node(local).items()
        ),
        tuple(Suspect(name, found[0].text) for name, found in _by_node(software).items()),
        evidence,
    )


def _progress(report: RankReport) -> tuple[int, int, int]:
    if report.state == OK:
        return (len(PHASES), 0, 0)
    place = PHASES.index(report.phase) if report.phase in PHASES else 0
    # Inside a collective the number of finished ones goes first, then whether the call has come back.
    return (min(place, PHASES.index("call")), report.step, place)


def _laggards(reports: Sequence[RankReport]) -> tuple[tuple[Suspect, ...], tuple[Suspect, ...], tuple[str, ...]]:
    """Nodes that stayed behind all others: a hang shows everywhere, only the phases tell where it began."""
    slowest = {name: min(map(_progress, found)) for name, found in _by_node(reports).items()}
    least = min(slowest.values(), default=(0, 0, 0))
    behind = sorted(name for name, progress in slowest.items() if progress == least)
    where = Counter(
        f"{r.phase} after {r.step} all-reduces" if r.step else r.phase for r in reports if r.state == HANG
    ).most_common(3)
    evidence = tuple(f"{count} ranks stuck in {phase}" for phase, count in where)
    if len(behind) == len(slowest):
        return (), (), evidence
    local = least[0] <= PHASES.index("context")
    stuck = {r.node: r for r in reports if _progress(r) == least}
    return (
        tuple(Suspect(n, f"stuck in {stuck[n].phase} (gpu {stuck[n].gpu}), others got further", local) for n in behind),
        (),
        evidence,
    )


#: A rail below this share of the others' median is the odd one.
ODD_RAIL = 0.7


def judge_rails(
    nodes: Sequence[str], reports: Sequence[RankReport], *, message_bytes: int, floor_gbs: float
) -> GroupResult:
    """Return what each rail (the GPU of one index on every node, a communicator of its own) showed, the odd ones named.

    A rail's NICs are told as the first node, which is the convicted one, knows them. `floor_gbs` is the group's own, of
    which each rail carries its part; 0 where nobody knows it: then rails are judged by
    their own median alone.
    """
    found: dict[int, list[RankReport]] = {}
    for report in reports:
        found.setdefault(report.gpu, []).append(report)
    results = {
        gpu: judge_group(nodes, of_gpu, message_bytes=message_bytes, floor_gbs=floor_gbs / len(found))
        for gpu, of_gpu in sorted(found.items())
    }
    speeds = sorted(r.busbw_gbs for r in results.values() if r.outcome in (OK, SLOW) and r.busbw_gbs is not None)
    usual = speeds[len(speeds) // 2] if speeds else 0.0
    rails = tuple(RailResult(gpu, _rail(result, usual), result.busbw_gbs) for gpu, result in results.items())
    bad = [rail for rail in rails if rail.outcome != OK]
    worst = min((rail.outcome for rail in bad), key=(WRONG, ERROR, HANG, SLOW).index, default=OK)
    suspects = tuple(dict.fromkeys(s for r in results.values() for s in r.suspects))
    environment = tuple(dict.fromkeys(s for r in results.values() for s in r.environment))
    busbw = min(speeds, default=None)
    return GroupResult(
        tuple(nodes),
        worst,
        busbw,
        len(reports),
        suspects,
        environment,
        (_rail_words(rails, bad, usual, {r.gpu: r.nics for r in reports if r.node == nodes[0]}),) if rails else (),
        floor_gbs > 0,
        rails,
    )


def _rail(result: GroupResult, usual: float) -> str:
    """Return the outcome of a rail beside the usual speed of the others."""
    below = result.busbw_gbs is not None and result.busbw_gbs < ODD_RAIL * usual
    return SLOW if result.outcome == OK and below else result.outcome


def _rail_words(
    rails: Sequence[RailResult], bad: Sequence[RailResult], usual: float, nics: Mapping[int, Sequence[str]]
) -> str:
    others = f"others {usual:.3g}" if usual else "no rail has a speed"
    if not bad:
        return f"no rail stands out: all {len(rails)} about {usual:.3g} GB/s"
    if len(bad) == len(rails):
        shown = f"{usual:.3g} GB/s" if usual else "/".join(sorted({rail.outcome for rail in bad}))
        return f"all {len(rails)} rails alike: {shown}"
    words = [
        f"rail {rail.gpu} (gpu {rail.gpu} and {_nic_words(nics.get(rail.gpu, ()))}) "
        + (f"{rail.busbw_gbs:.3g} GB/s" if rail.outcome == SLOW and rail.busbw_gbs is not None else rail.outcome)
        for rail in bad[:4]
    ]
    return f"{'; '.join(words)}, {others}"


#: So many NICs of a GPU are named: four are P5's share.
_NICS_NAMED = 4


def _nic_words(names: Sequence[str]) -> str:
    """Return a GPU's NICs by name; another node's message may hold anything."""
    known = [name for name in names if _DEVICE.fullmatch(str(name))]
    more = f" and {len(known) - _NICS_NAMED} more" if len(known) > _NICS_NAMED else ""
    return f"{', '.join(known[:_NICS_NAMED])}{more} beside it" if known else "its NICs"

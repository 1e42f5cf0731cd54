"""What a look at the nodes (look.py) means: facts to tell, and what to keep in mind until the next look. Pure.

The breaker is open from the first node that it held back until fewer drains count than are allowed: told once for each such
time, by the name of the opening, and so is its end.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slurm_ext import events, verdict
from slurm_ext.config.model import Settings
from slurm_ext.events import Event
from slurm_ext.notices.model import Fact
from slurm_ext.slurm import suppressed
from slurm_ext.slurm.breaker import WINDOW_S, Entry, drain_limit
from slurm_ext.slurm.drain_record import DAY_S, DrainRecord, overdue
from slurm_ext.slurm.drain_record import from_data as record_from_data
from slurm_ext.slurm.suppressed import STEPS, Suppressed

#: A ledger that cannot be read is worth a page after so long (seconds): a share may be slow for once.
UNREADABLE_S = 30.0

#: An edit that nobody pushed is told after so long (seconds): a person may be at it.
STALE_S = 600.0

#: A drain that stands too long is told again so often (seconds).
EXPIRED_AGAIN_S = 7 * DAY_S

#: What hooks decide where the mode does not enforce (hooks/decide.py), and how their reasons begin then.
WOULD_DRAIN = "would-drain"
_NOT_DONE = re.compile(r"mode [a-z]+: would [a-z]+: ")

#: How a line of a node's health check names a slow check (gate/slow_result.py) that is overdue.
OVERDUE = 'overdue"'

#: What the topology's watch writes where it may not mend a difference, and where Slurm did not take a change.
DRIFT, ROLLED_BACK = "topology.drift", "topology.rolled-back"

#: Whoever cannot count in the ledger names an opening so (suppressed.py).
_NO_LEDGER = "no-ledger"


class Mind(NamedTuple):
    """What is kept from look to look, as plain data."""

    opening: str = ""  # the breaker's opening that was told last and not yet as closed
    step: int = 0  # of STEPS, told of it
    closed: str = ""  # the opening that was told last as closed, and when
    closed_s: float = 0.0
    again: int = 0  # how often an opening of that name opened anew
    unreadable_s: float = 0.0  # since when the ledger cannot be read; 0: it can
    drained: Mapping[str, float] = {}  # node -> since when it is drained by fmslurm
    would: Mapping[str, float] = {}  # node -> when it would have been drained, within the last hour
    would_open_s: float = 0.0  # since when the breaker would be open, 0: it would not
    stale: str = ""  # hash of a file that differs from what was pushed
    stale_s: float = 0.0
    fleet: int = 0  # how many nodes have a trail


def mind_from(data: object) -> Mind:
    """Return what was kept, from plain data; what has another form is as good as nothing."""
    if not isinstance(data, dict):
        return Mind()
    shapes: dict[str, Any] = Mind()._asdict()
    kept: dict[str, Any] = {}
    for name, value in data.items():
        if name not in shapes:
            continue
        if isinstance(shapes[name], dict) and isinstance(value, dict):
            kept[name] = {key: at_s for key, at_s in value.items() if _is_number(at_s)}
        elif (
            _is_number(value) if _is_number(shapes[name]) else isinstance(value, str) and isinstance(shapes[name], str)
        ):
            kept[name] = value
    return Mind(**kept)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def judge(found: Mapping[str, Any], mind: Mind, settings: Settings, *, now: float) -> tuple[list[Fact], Mind]:
    """Return what there is to tell, and what to keep. `now`: seconds since the epoch."""
    facts: list[Fact] = []
    entries = None if found["ledger"] is None else [Entry(*row) for row in found["ledger"]]
    mind = _ledger(entries is not None, mind, settings, now, facts)
    if found["held_back"] is not None:
        held_back = [Suppressed(**row) for row in found["held_back"]]
        mind = _breaker(entries, held_back, mind, now, facts)
    if found["drained"] is not None:
        records = [record for row in found["drained"] if (record := record_from_data({"schema": 1, **row})) is not None]
        mind = _drains(records, found["over"], mind, now, facts)
    mind = mind._replace(fleet=int(found["nodes"]) or mind.fleet)
    mind = _lines(found["lines"], mind, settings, now, facts)
    mind = _stale(str(found["file"]), str(found["pushed"]), mind, now, facts)
    return facts, mind


def _drains_at_all(settings: Settings) -> bool:
    return settings.mode.gate == "enforce" or settings.mode.burnin == "enforce"


def _ledger(readable: bool, mind: Mind, settings: Settings, now: float, facts: list[Fact]) -> Mind:
    if settings.mode.gate == settings.mode.burnin == "off":
        return mind._replace(unreadable_s=0.0)
    since_s = mind.unreadable_s
    if readable:
        if since_s and now - since_s >= UNREADABLE_S:
            facts.append(
                Fact("ledger.readable", f"ledger.readable:{since_s:.0f}", since_s=now, why=_span(now - since_s))
            )
        return mind._replace(unreadable_s=0.0)
    since_s = since_s or now
    if now - since_s >= UNREADABLE_S:
        why = f"no answer, or not root's, for {_span(now - since_s)}: {settings.site.share}/ledger"
        key = f"ledger.unreadable:{since_s:.0f}"
        dry = not _drains_at_all(settings)
        facts.append(Fact("ledger.unreadable", key, since_s=since_s, why=why, dry_run=dry))
    return mind._replace(unreadable_s=since_s)


def _breaker(
    entries: list[Entry] | None, held_back: list[Suppressed], mind: Mind, now: float, facts: list[Fact]
) -> Mind:
    is_open = suppressed.is_open(entries, held_back, now=now)
    openings: dict[str, list[Suppressed]] = {}
    for one in held_back:
        openings.setdefault(one.opening, []).append(one)
    for opening, some in sorted(openings.items(), key=lambda item: min(one.at_s for one in item[1])):
        if opening.startswith(_NO_LEDGER):
            if entries is not None:  # else we see it ourselves
                facts.append(_of_nodes("ledger.unreadable", f"ledger.unreadable:{opening}", some))
            continue
        step = max(step for step in STEPS if len(some) >= step)
        latest = _latest(some)
        # Where no drain lies between, the next time has the name of the one that was closed: it is told apart by a number.
        number = mind.again if opening in (mind.opening, mind.closed) else 0
        is_current = is_open and now - latest < WINDOW_S and (opening != mind.closed or latest > mind.closed_s)
        is_current = is_current and latest >= _latest(openings.get(mind.opening))
        if is_current and not mind.opening and opening == mind.closed:
            number += 1
            some = [one for one in some if one.at_s > mind.closed_s]
        name = f"{opening}:{number}" if number else opening
        facts.append(_of_nodes("breaker.open", f"breaker.open:{name}", some))
        if opening == mind.opening and step > mind.step:
            facts.append(_of_nodes("breaker.more", f"breaker.more:{name}:{step}", some))
        if is_current:
            mind = mind._replace(opening=opening, step=step, again=number)
    if mind.opening and entries is not None and not is_open:
        count = len({entry.node for entry in entries})
        why = f"{count} drain{'' if count == 1 else 's'} of the last hour still count{'s' if count == 1 else ''}"
        name = f"{mind.opening}:{mind.again}" if mind.again else mind.opening
        facts.append(Fact("breaker.closed", f"breaker.closed:{name}", since_s=now, why=why))
        mind = mind._replace(opening="", step=0, closed=mind.opening, closed_s=now)
    return mind


def _latest(some: list[Suppressed] | None) -> float:
    return max((one.at_s for one in some or ()), default=0.0)


def _of_nodes(kind: str, key: str, some: list[Suppressed]) -> Fact:
    from slurm_ext.slurm.hostlist import fold

    lines = tuple(f"{one.node}: {one.finding} {one.target}: {one.evidence or 'no further evidence'}" for one in some)
    first = min(some, key=lambda one: one.at_s)
    return Fact(kind, key, fold([one.node for one in some]), first.at_s, first.why, lines=lines, size=len(some))


def _drains(
    records: Iterable[DrainRecord], over: Mapping[str, list[Any]], mind: Mind, now: float, facts: list[Fact]
) -> Mind:
    drained: dict[str, float] = {}
    for record in records:
        if not record.owner.startswith("fmslurm"):
            continue  # a person did it, and knows
        node, since_s = record.node, record.since_s
        drained[node] = since_s
        why = record.reason.removeprefix("fmslurm: ")
        facts.append(
            Fact("node.drained", f"node.drained:{node}:{since_s:.0f}", node, since_s, why, lines=(f"{node}: {why}",))
        )
        if words := overdue(record, now=now):
            again = int((now - record.expires_s) // EXPIRED_AGAIN_S)
            key = f"node.drain-expired:{node}:{since_s:.0f}:{again}"
            facts.append(Fact("node.drain-expired", key, node, since_s, words, lines=(words,)))
    for node, (finding, ended_s, outcome) in over.items():
        how = outcome or "its record is gone"
        since_s = ended_s or now
        line = f"{node}: {how}" + (f" (it was drained for {finding})" if finding else "")
        key = f"node.back:{node}:{mind.drained.get(node, ended_s):.0f}"
        facts.append(Fact("node.back", key, node, since_s, how, lines=(line,)))
    return mind._replace(drained=drained)


def _of_topology(event: Event, at_s: float) -> Fact | None:
    """Return what people are told of a topology: where it may not be mended (in shadow nobody is), and where Slurm refused it."""
    if event.event == DRIFT:
        if event.data.get("mode") not in ("warn", "enforce"):
            return None
        return Fact("topology.drift", f"topology.drift:{event.time[:10]}", since_s=at_s, why=event.reason)
    kind = "topology.refused" if event.phase == "done" else "topology.stuck"
    return Fact(kind, f"{kind}:{at_s:.0f}", since_s=at_s, why=event.reason)


def _lines(lines: Iterable[str], mind: Mind, settings: Settings, now: float, facts: list[Fact]) -> Mind:
    """Judge lines of the nodes' trails: what would have been done there, and what is overdue."""
    would = {node: at_s for node, at_s in mind.would.items() if now - at_s < WINDOW_S}
    for line in lines:
        event = events.from_line(line)
        at_s = _seconds(event.time) if event is not None else None
        if event is None or at_s is None or not event.node:
            continue
        day = event.time[:10]
        if event.dry_run and (event.event == "node.drain" or event.decision == WOULD_DRAIN):
            finding, why = _finding(event)
            key = f"node.drained:dry:{event.node}:{finding}:{day}"
            facts.append(
                Fact("node.drained", key, event.node, at_s, why, dry_run=True, lines=(f"{event.node}: {why}",))
            )
            if now - at_s < WINDOW_S:
                would[event.node] = at_s
        if event.event in (DRIFT, ROLLED_BACK) and (fact := _of_topology(event, at_s)) is not None:
            facts.append(fact)
        if event.event == "gate.health" and OVERDUE in line:
            key = f"node.slow-check-overdue:{event.node}:{day}"
            why = _overdue_words(event)
            facts.append(Fact("node.slow-check-overdue", key, event.node, at_s, why, lines=(f"{event.node}: {why}",)))
    open_s = mind.would_open_s
    limit = drain_limit(settings.drain, max(mind.fleet, len(would)))
    if len(would) > limit:
        from slurm_ext.slurm.hostlist import fold

        open_s = open_s or now
        why = f"{len(would)} nodes, {limit} are allowed an hour"
        facts.append(
            Fact(
                "breaker.open",
                f"breaker.open:dry:{open_s:.0f}",
                fold(would),
                open_s,
                why,
                dry_run=True,
                size=len(would),
            )
        )
    else:
        open_s = 0.0
    return mind._replace(would=would, would_open_s=open_s)


def _finding(event: Event) -> tuple[str, str]:
    """Return the id and the words of the finding for which a node would have been drained."""
    found = _gate(event)
    worst = verdict.strongest(found.findings) if found is not None and found.verdict == verdict.FAIL else None
    if worst is not None:
        return worst.id, f"{worst.id} {worst.target}: {worst.evidence[0] if worst.evidence else 'no further evidence'}"
    return event.rule, _NOT_DONE.sub("", event.reason.removeprefix(verdict.REASON_PREFIX))


def _overdue_words(event: Event) -> str:
    """Return what a health check says of a slow check that is overdue."""
    found = _gate(event)
    for finding in found.findings if found is not None else ():
        if finding.id.endswith("overdue") and finding.evidence:
            return finding.evidence[0]
    return event.reason


def _gate(event: Event) -> verdict.Verdict | None:
    """Return the verdict of the local look that an event of a hook carries."""
    gate = event.data.get("gate")
    try:
        return verdict.from_json(gate) if isinstance(gate, dict) else None
    except ValueError:
        return None


def _stale(file: str, pushed: str, mind: Mind, now: float, facts: list[Fact]) -> Mind:
    if not file or not pushed:
        return mind  # not known
    if file == pushed:
        return mind._replace(stale="", stale_s=0.0)
    if file != mind.stale:
        return mind._replace(stale=file, stale_s=now)
    if now - mind.stale_s >= STALE_S:
        why = f"it was edited and not pushed: {file[:12]} here, {pushed[:12]} on the nodes"
        facts.append(Fact("config.stale", f"config.stale:{file}", since_s=mind.stale_s, why=why))
    return mind


def _seconds(text: str) -> float | None:
    """Return the time of an event (seconds since the epoch), None where it is none."""
    try:
        return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) + float(text[19:].rstrip("Z") or 0)
    except ValueError:
        return None


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

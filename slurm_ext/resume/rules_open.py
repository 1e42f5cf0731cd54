"""Rules for what the first line does not tell: contained errors, stalls, peers, bad numbers, and what stays ambiguous."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from slurm_ext.resume import collective
from slurm_ext.resume.facts import Facts, died_before, root_of
from slurm_ext.resume.model import REQUEUE, STOP, Cause
from slurm_ext.resume.rules_log import convict
from slurm_ext.resume.rules_slurm import everybody

_STEP = re.compile(r"(?:iteration|step|iter)\D{0,3}(\d+)", re.IGNORECASE)


def contained(facts: Facts) -> Cause | None:
    """A contained memory error: the process died, the GPU stays usable; the second time on the same GPU it goes."""
    signs = [sign for sign in facts.signs if sign.severity == "contained"]
    if not signs:
        return None
    node = signs[0].node
    root = f"gpu.xid-94 {node}"
    line = (f"{node}: {signs[0].text}",)
    if any(past.root == root for past in facts.earlier) or len({sign.time for sign in signs}) > 2:
        return convict(
            facts,
            "infra-node",
            "kernel.contained-again",
            0.8,
            (node,),
            line,
            f"contained memory errors again on {node}",
            root,
        )
    return Cause(
        "infra-node",
        REQUEUE,
        "kernel.contained",
        0.85,
        (node,),
        everybody(facts, (node,)),
        line,
        f"a contained memory error on {node} killed one process; the row is retired",
        root,
    )


def stalled(facts: Facts) -> Cause | None:
    """A collective timed out: the ranks that had not launched it hold it up."""
    stall = collective.read(facts.last, facts.locator)
    if stall is None or stall.kind == "equal":
        return None
    ranks = ", ".join(str(rank) for rank in stall.ranks[:8])
    if stall.kind == "mismatch":
        return Cause(
            "user-code",
            STOP,
            "collective.mismatch",
            0.7,
            (),
            everybody(facts),
            stall.evidence,
            f"ranks {ranks} called another collective than the rest",
            "collective.mismatch",
        )
    word = "infra-node" if stall.kind == "lagging" else "hang"
    verb = "had launched less work than the others" if stall.kind == "lagging" else "had stopped launching work"
    if len(stall.nodes) == 1 and facts.several:
        return convict(
            facts,
            word,
            f"collective.{stall.kind}",
            0.7,
            stall.nodes,
            stall.evidence,
            f"ranks {ranks} on {stall.nodes[0]} {verb}",
            f"collective.{stall.kind} {stall.nodes[0]}",
        )
    return Cause(
        "hang",
        REQUEUE,
        f"collective.{stall.kind}",
        0.5,
        (),
        (),
        stall.evidence,
        f"ranks {ranks} {verb}",
        f"collective.{stall.kind}",
    )


def peers(facts: Facts) -> Cause | None:
    """Several hosts complain of one peer, or one host of several peers."""
    votes: dict[str, set[str]] = defaultdict(set)
    lines: dict[str, list[str]] = defaultdict(list)
    for one in facts.last:
        if not (reporter := _reporter(facts, one.text) or one.node):
            continue
        peer = _peer(facts, one.text)
        if peer and peer != reporter:
            votes[peer].add(reporter)
            lines[peer].append(one.text.strip())
    if not votes:
        return None
    ranked = Counter({peer: len(reporters) for peer, reporters in votes.items()}).most_common()
    top, count = ranked[0]
    if count >= 2 and (len(ranked) == 1 or ranked[1][1] < count):
        return convict(
            facts,
            "infra-fabric",
            "fabric.peer",
            0.8,
            (top,),
            tuple(lines[top][:3]),
            f"{count} hosts complain of {top}",
            f"fabric.peer {top}",
        )
    reporters = {reporter for named in votes.values() for reporter in named}
    if len(reporters) == 1 and len(votes) >= 2:
        host = next(iter(reporters))
        return convict(
            facts,
            "infra-fabric",
            "fabric.reporter",
            0.7,
            (host,),
            tuple(line for named in lines.values() for line in named)[:3],
            f"{host} alone complains of {len(votes)} peers",
            f"fabric.reporter {host}",
        )
    pair = {top, *votes[top]}
    return Cause(
        "infra-fabric",
        REQUEUE,
        "fabric.pair",
        0.5,
        (),
        everybody(facts, tuple(pair)),
        tuple(lines[top][:3]),
        f"the link between {' and '.join(sorted(pair))} failed; either end may be at fault",
        f"fabric.pair {' '.join(sorted(pair))}",
    )


_PEER_ID = re.compile(r"Peer host id: (i-[0-9a-f]+)")
_MY_ID = re.compile(r"My host id: (i-[0-9a-f]+)")
_PEER_NAME = re.compile(
    r"completion from peer (\S+?)<\d+> with|[Cc]onnect(?:ion)? to (\S+?)[<:]\d+>? (?:failed|"
    r"timed out).*(?:timed out|No route|unreachable)"
)


def _reporter(facts: Facts, text: str) -> str:
    found = _MY_ID.search(text)
    return facts.instances.get(found.group(1), "") if found else ""


def _peer(facts: Facts, text: str) -> str:
    if found := _PEER_ID.search(text):
        return facts.instances.get(found.group(1), "")
    if found := _PEER_NAME.search(text):
        name = found.group(1) or found.group(2)
        return name if name in facts.slurm.nodes else facts.addresses.get(name, "")
    return ""


def numbers(facts: Facts) -> Cause | None:
    """NaN or Inf ended the run: one replay tells data from hardware."""
    hits = [hit for hit in facts.hits if hit.signature.name == "numeric.nan"]
    if not hits:
        return None
    line = next((hit for hit in hits if "rror" in hit.said.text), hits[0])
    step = _step(line.said.text)
    lines = (line.said.text.strip(),)
    earlier = [hit for _, old in facts.before for hit in old if hit.signature.name == "numeric.nan"]
    told = [past.text for past in facts.earlier if past.cause == "numeric"]
    steps = {_step(hit.said.text) for hit in earlier} | {_step(text) for text in told}
    if not earlier and not told:
        return Cause(
            "numeric",
            REQUEUE,
            "numeric.first",
            0.8,
            (),
            everybody(facts),
            lines,
            "the numbers went bad; one replay from the last checkpoint tells data from hardware",
            "numeric",
        )
    places = {hit.said.node for hit in earlier} & {line.said.node} - {""}
    if step and steps and step not in steps and len(places) == 1 and facts.several:
        node = next(iter(places))
        return convict(
            facts,
            "infra-node",
            "numeric.same-node",
            0.6,
            (node,),
            lines,
            f"bad numbers at different steps, both times on {node}",
            f"numeric {node}",
        )
    return Cause(
        "numeric",
        STOP,
        "numeric.again",
        0.8,
        (),
        everybody(facts),
        lines,
        "the replay went bad as well, so data or program is the reason",
        "numeric",
    )


def _step(text: str) -> str:
    found = _STEP.search(text)
    return found.group(1) if found else ""


def ambiguous(facts: Facts) -> Cause | None:
    """Nothing points at a cause; a line that may mean several things is all there is. The same again elsewhere is the program's."""
    open_hits = [hit for hit in facts.hits if hit.signature.role == "A" and hit.signature.name != "numeric.nan"]
    if not open_hits:
        return None
    hit = open_hits[0]
    row = hit.signature
    lines = tuple(dict.fromkeys(other.said.text.strip() for other in open_hits if other.signature.name == row.name))[:3]
    root = root_of(row.name, hit, facts.last)
    if row.spread == "again" and died_before(facts, root) and _elsewhere(facts):
        return Cause(
            "user-code",
            STOP,
            f"{row.name}-again",
            0.75,
            (),
            everybody(facts),
            lines,
            f"the same failure at the same place on other nodes: {hit.said.text.strip()[:140]}",
            root,
        )
    if row.spread == "port":
        holders = [
            (node, event)
            for node, event in facts.events
            if re.search(r"(?:port|listen).*pid|stale process|pid=\d+.*port", event.text)
        ]
        if holders and holders[0][0] in facts.slurm.nodes:
            node, event = holders[0]
            return convict(
                facts,
                "infra-node",
                "port.held",
                0.75,
                (node,),
                (*lines[:1], f"{node}: {event.source}: {event.text}"),
                f"a left-over process on {node} holds the port",
                f"port.held {node}",
            )
    return Cause(
        "unknown", REQUEUE, row.name, 0.5, (), (), lines, f"several causes fit: {hit.said.text.strip()[:160]}", root
    )


def _elsewhere(facts: Facts) -> bool:
    """Say whether the earlier run was on other nodes, so that no node is in both."""
    old = set(facts.slurm.previous_nodes) or {node for past in facts.earlier for node in past.nodes}
    return bool(old) and not old & set(facts.slurm.nodes)

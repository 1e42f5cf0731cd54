"""Rules on what the nodes recorded: their kernel, their services, our own findings, the out-of-memory killer."""

from __future__ import annotations

import re

from slurm_ext.resume.facts import MAINTENANCE, NODE_FAULT, PROLOG, SERVICE, Facts, first_cause
from slurm_ext.resume.kernel import XID_CERTAIN, Sign
from slurm_ext.resume.model import HOLD, REQUEUE, REQUEUE_EXCLUDE, STOP, WAIT_REQUEUE, Cause
from slurm_ext.resume.rules_slurm import everybody
from slurm_ext.resume.signatures import Hit


def kernel_hardware(facts: Facts) -> Cause | None:
    """A GPU, link or switch reported a fault in its node's kernel log during the run."""
    hard = [sign for sign in facts.signs if sign.severity in ("node", "fabric") and sign.kind != "oom"]
    if not hard:
        soft = [sign for sign in facts.signs if sign.severity == "fabric-soft"]
        said = {hit.signature.name for hit in facts.hits}
        hard = soft if "gpu.nvlink" in said else []
    if not hard:
        return None
    first = hard[0]
    if _program_was_first(facts, first):
        return None
    culprits = [first.node]
    for sign in hard[1:]:
        same_moment = sign.time is None or first.time is None or sign.time - first.time < 2
        if sign.node not in culprits and (
            sign.number in XID_CERTAIN or (same_moment and first.number not in XID_CERTAIN)
        ):
            culprits.append(sign.node)
    word = "infra-fabric" if first.severity.startswith("fabric") else "infra-node"
    name = {"xid": f"gpu.xid-{first.number}", "sxid": f"nvswitch.sxid-{first.number}"}.get(
        first.kind, "kernel.hardware"
    )
    lines = tuple(f"{sign.node}: {sign.text}" for sign in hard if sign.node in culprits)[:5]
    reason = f"{name.split('.')[1]} on {', '.join(culprits)}"
    target = f"gpu:{first.target}" if first.kind == "xid" else first.target or "node"
    return Cause(
        word,
        REQUEUE_EXCLUDE,
        "kernel.hardware",
        0.95,
        tuple(culprits),
        everybody(facts, tuple(culprits)),
        lines,
        reason,
        f"{name} {','.join(sorted(culprits))}",
        True,
        (name, target),
    )


def _program_was_first(facts: Facts, sign: Sign) -> bool:
    """Say whether the program had clearly failed by itself before the kernel line was written."""
    hit = first_cause(facts)
    if hit is None or sign.time is None or hit.said.time is None or not hit.signature.cause.startswith("user-"):
        return False
    return hit.said.time < sign.time - 5


def node_service(facts: Facts) -> Cause | None:
    """A node's own record speaks against it: a service the GPUs need, a health check, Slurm's reason for draining it, our findings."""
    for pattern, rule, confidence, hard in (
        (NODE_FAULT, "node.fault", 0.85, False),
        (PROLOG, "node.prolog", 0.8, False),
        (SERVICE, "node.service", 0.8, False),
    ):
        found: dict[str, str] = {}
        for node, event in facts.events:
            if node in facts.slurm.nodes and pattern.search(event.text) and not MAINTENANCE.search(event.text):
                found.setdefault(node, f"{node}: {event.source}: {event.text}")
        if not found:
            continue
        culprits = tuple(found)
        if len(culprits) >= 3 and rule == "node.prolog":
            return Cause(
                "user-config",
                HOLD,
                "node.prolog-everywhere",
                0.6,
                (),
                (),
                tuple(found.values())[:4],
                "the prolog failed on three nodes, so one node is not the reason",
                "prolog-everywhere",
            )
        if facts.several and len(culprits) == len(facts.slurm.nodes):
            continue
        hit = first_cause(facts)
        if hit is not None and not _bears_out(hit, culprits, [event.time for _, event in facts.events], rule):
            continue
        return Cause(
            "infra-node",
            REQUEUE_EXCLUDE,
            rule,
            confidence,
            culprits,
            everybody(facts, culprits),
            tuple(found.values())[:4],
            f"{culprits[0]}: {next(iter(found.values())).split(': ', 1)[1]}"[:200],
            f"{rule} {','.join(sorted(culprits))}",
            hard,
        )
    return None


def convicted_together(facts: Facts) -> Cause | None:
    """The burn-in of this very run convicted a node: it never started, so what else befell its nodes is not its cause."""
    if any(event.source == "fmslurm" and event.type.startswith("burnin.") for _, event in facts.events):
        return our_finding(facts)
    return None


def our_finding(facts: Facts) -> Cause | None:
    """Our own hooks found something on a node of the job that asks for a drain."""
    ours = [(node, event) for node, event in facts.events if event.source == "fmslurm" and node in facts.slurm.nodes]
    hit = first_cause(facts)
    if hit is not None and hit.signature.cause.startswith("user-") and not hit.signature.spread:
        # The program failed by itself; only a broken GPU makes programs print all sorts of things.
        ours = [
            (node, event) for node, event in ours if event.type.startswith(("gpu.", "nvlink.", "nvswitch.", "kernel."))
        ]
    if ours:
        culprits = tuple(dict.fromkeys(node for node, _ in ours))
        node, event = ours[0]
        word = (
            "infra-fabric"
            if event.type.startswith(("nccl.", "efa.", "burnin.", "perf.", "nvswitch."))
            else "storage"
            if event.type.startswith(("lustre.", "disk."))
            else "infra-node"
        )
        lines = tuple(f"{name}: {one.type}: {one.text}" for name, one in ours[:4])
        named = event.text.split(" ", 1)[0] or "node"
        if facts.several and len(culprits) == len(facts.slurm.nodes):
            # What all nodes show is not theirs.
            reason = f"{event.type} on all nodes alike"
            return Cause(word, WAIT_REQUEUE, "node.finding-everywhere", 0.6, (), (), lines, reason, event.type)
        return Cause(
            word,
            REQUEUE_EXCLUDE,
            "node.finding",
            0.95,
            culprits,
            everybody(facts, culprits),
            lines,
            f"{event.type} on {node}",
            f"{event.type} {node}",
            True,
            (event.type, named),
        )
    return None


def stopped_by_gate(facts: Facts) -> Cause | None:
    """Our gate sent the job back without convicting a node."""
    said = [(node, event) for node, event in facts.events if event.source.startswith("fmslurm-stop")]
    if not said:
        return None
    lines = tuple(f"{node}: {event.type}: {event.text}" for node, event in said[:3])
    # Where the burn-in failed the nodes or their links are at fault, though not which; where it learned nothing, nobody is.
    word = "infra-fabric" if said[0][1].source == "fmslurm-stop" else "scheduler"
    return Cause(word, REQUEUE, "gate.stopped", 0.6, (), (), lines, said[0][1].text[:200], "gate.stopped")


def _bears_out(hit: Hit, culprits: tuple[str, ...], times: list[float | None], rule: str) -> bool:
    """Say whether a node's record may overrule what the program said first: on that node, or recorded before it."""
    if hit.said.node in culprits:
        return hit.signature.spread != "" or not hit.signature.cause.startswith("user-")
    if rule == "node.service":
        return False
    if not hit.signature.cause.startswith("user-"):
        return True
    known = [when for when in times if when is not None]
    return bool(known) and hit.said.time is not None and min(known) < hit.said.time


def out_of_memory(facts: Facts) -> Cause | None:
    """The host's memory ran out: Slurm or the kernel killed a process of the job."""
    kills = [sign for sign in facts.signs if sign.kind == "oom" and _ours(facts, sign)]
    if facts.slurm.state != "OUT_OF_MEMORY" and not kills:
        return None
    lines = tuple(f"{sign.node}: {sign.text}" for sign in kills[:2]) or ("Slurm: OUT_OF_MEMORY",)
    return oom_verdict(facts, lines)


def oom_verdict(facts: Facts, lines: tuple[str, ...]) -> Cause:
    """Return what running out of host memory calls for: one retry where the run had made progress, else the user's turn."""
    again = facts.slurm.restarts > 0 or any(past.cause == "user-oom" for past in facts.earlier)
    advice = REQUEUE if facts.progressed and not again else STOP
    reason = "the job ran out of host memory" + (
        " again" if again else "" if facts.progressed else " before its first step"
    )
    return Cause("user-oom", advice, "host.oom", 0.9, (), everybody(facts), lines, reason, "host-oom")


def _ours(facts: Facts, sign: Sign) -> bool:
    """Say whether the process the kernel killed belongs to this job, as far as its control group or the log tells."""
    job = facts.slurm.job_id
    if job and f"job_{job}" in sign.text:
        return True
    if re.search(r"job_\d+", sign.text):
        return False
    return any(str(sign.number) in one.text for one in facts.last) or (
        sign.severity == "" and facts.slurm.state != "COMPLETED"
    )

"""Why did the run end? Ordered rules over evidence; the first that answers decides. Pure: no clock, file, process or network."""

from __future__ import annotations

import re
from collections.abc import Callable

from slurm_ext.resume import rules_log, rules_node, rules_open, rules_slurm
from slurm_ext.resume.facts import Facts, put_in_order
from slurm_ext.resume.model import REQUEUE, STOP, Cause, Evidence
from slurm_ext.resume.rules_slurm import everybody

#: Silence of a running job from which we call it a hang. ByteRobust (arXiv 2509.16293) uses ten minutes without traffic.
HANG_S = 600.0

_LOADER = re.compile(r"^\S+?:?\s.*(?:dataloader|_try_get_data|queue\.py|data_loader)")
_STACK = re.compile(r"Thread \d+ \((?:active|idle)|^\S+:\s+\w+ \(\S+:\d+\)|File \".*\", line \d+ in ")


def time_limit(facts: Facts) -> Cause | None:
    """The wall clock ran out."""
    line = next((one.text for one in facts.last if "DUE TO TIME LIMIT" in one.text), "")
    if facts.slurm.state not in ("TIMEOUT", "DEADLINE") and not line:
        return None
    said = (line or f"Slurm: {facts.slurm.state}",)
    if facts.slurm.last_output_age_s > HANG_S:
        return Cause(
            "hang",
            REQUEUE,
            "slurm.time-limit-silent",
            0.6,
            (),
            (),
            said,
            "the job printed nothing for a long time before its time limit",
            "hang",
        )
    if not facts.progressed:
        return Cause(
            "time-limit",
            STOP,
            "slurm.time-limit-no-progress",
            0.7,
            (),
            everybody(facts),
            said,
            "the time limit passed without a training step; the same would happen again",
            "time-limit",
        )
    return Cause(
        "time-limit",
        REQUEUE,
        "slurm.time-limit",
        0.9,
        (),
        everybody(facts),
        said,
        "the time limit passed while the job made progress",
        "time-limit",
    )


def hang(facts: Facts) -> Cause | None:
    """The job runs and says nothing."""
    if facts.slurm.state != "RUNNING" or facts.slurm.last_output_age_s < HANG_S:
        return None
    stacks = [one for one in facts.last if _STACK.search(one.text)]
    waiting = [one.text.strip() for one in stacks if _LOADER.search(one.text)]
    age = f"no output for {facts.slurm.last_output_age_s / 60:.0f} min"
    storage = [sign for sign in facts.signs if sign.kind == "storage"]
    if storage and len({sign.node for sign in storage}) == 1 and facts.several:
        node = storage[0].node
        return Cause(
            "infra-node",
            "requeue-exclude",
            "hang.storage-one-host",
            0.7,
            (node,),
            everybody(facts, (node,)),
            (f"{node}: {storage[0].text}",),
            f"{node} lost its file system and the job hangs",
            f"hang {node}",
        )
    if waiting:
        return Cause(
            "hang",
            REQUEUE,
            "hang.data-loader",
            0.6,
            (),
            everybody(facts),
            (age, *waiting[:2]),
            "the job hangs; one process waits for its data loader",
            "hang",
        )
    return Cause("hang", REQUEUE, "hang.silent", 0.5, (), (), (age,), "the job hangs and nothing tells where", "hang")


def kernel_storage(facts: Facts) -> Cause | None:
    """One node of several lost the shared file system, and nothing else explains the end."""
    nodes = {sign.node for sign in facts.signs if sign.kind == "storage"}
    if not nodes or facts.slurm.state in ("TIMEOUT", "RUNNING"):
        return None
    lines = tuple(f"{sign.node}: {sign.text}" for sign in facts.signs if sign.kind == "storage")[:3]
    if len(nodes) == 1 and facts.several:
        node = next(iter(nodes))
        return Cause(
            "infra-node",
            "requeue-exclude",
            "kernel.storage-one-host",
            0.7,
            (node,),
            everybody(facts, (node,)),
            lines,
            f"{node} lost the shared file system",
            f"storage {node}",
        )
    return Cause(
        "storage",
        "wait-requeue",
        "kernel.storage",
        0.7,
        (),
        everybody(facts),
        lines,
        "the nodes lost the shared file system",
        "storage",
    )


def exit_code(facts: Facts) -> Cause | None:
    """No line tells; some exit codes do: 2 with a usage text, 126, 127; Megatron's and NVRx's own."""
    code = _code(facts.slurm.derived_exit_code) or _code(facts.slurm.exit_code)
    said = (f"Slurm: exit code {facts.slurm.exit_code}, derived {facts.slurm.derived_exit_code}",)
    if code in (126, 127) or (code == 2 and any(one.text.lstrip().lower().startswith("usage:") for one in facts.last)):
        return Cause(
            "user-config",
            STOP,
            f"exit.{code}",
            0.7,
            (),
            everybody(facts),
            said,
            f"exit code {code}: the command could not be run as written",
            f"exit {code}",
        )
    if code == 93 and not facts.progressed:
        return Cause(
            "user-code",
            STOP,
            "exit.93",
            0.6,
            (),
            everybody(facts),
            said,
            "the restart agent inside the job said that a restart will not help",
            "exit 93",
        )
    return None


def _code(text: str) -> int:
    head = text.partition(":")[0]
    return int(head) if head.isdigit() else 0


RULES: tuple[Callable[[Facts], Cause | None], ...] = (
    rules_slurm.held,
    rules_slurm.cancelled,
    rules_slurm.preempted,
    rules_slurm.no_machine,
    rules_node.convicted_together,
    rules_slurm.node_lost,
    rules_node.kernel_hardware,
    rules_node.our_finding,
    rules_node.stopped_by_gate,
    rules_node.node_service,
    rules_node.out_of_memory,
    rules_log.pointing,
    rules_open.contained,
    rules_open.stalled,
    rules_open.peers,
    rules_open.numbers,
    time_limit,
    hang,
    kernel_storage,
    rules_open.ambiguous,
    exit_code,
)


def attribute(evidence: Evidence) -> Cause:
    """Return why the last run of a job ended. Where the evidence does not decide, the class is `unknown` and nobody is blamed."""
    facts = put_in_order(evidence)
    for rule in RULES:
        if (cause := rule(facts)) is not None:
            return cause
    last = facts.last[-1].text.strip() if facts.last else "nothing was printed"
    said = (f"Slurm: {facts.slurm.state or 'no state'}, exit code {facts.slurm.exit_code}", last[:300])
    return Cause("unknown", REQUEUE, "unknown", 0.3, (), (), said, "nothing in the evidence tells why", "unknown")

"""May a node that fmslurm drained come back by itself? Only on proof, and only what is wholly ours. Pure.

Proof is: the very finding (id and target) looked for again and not found, on the boot or instance that the ladder's step asked
for. Whatever is not known leaves the node where it is. Standard library only: hooks import this.
"""

from __future__ import annotations

from slurm_ext.config.model import Settings
from slurm_ext.gate import ladder
from slurm_ext.slurm import repair
from slurm_ext.slurm.act import PROLOG_ERROR
from slurm_ext.slurm.drain_record import DrainRecord
from slurm_ext.slurm.model import Node
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: What is to be done: resume the node; forget the record (nothing of ours is on the node any more); nothing.
RESUME, FORGET, LEAVE = "resume", "forget", "leave"

MANUAL = "node.manual"

#: A record lies there a moment before its drain does (seconds): so old it must be to be called left over.
SETTLED_S = 120.0

#: Slurm's own drain comes so soon after our exit (seconds): slurmd tells slurmctld at once, and while that is silent tries for a
#: time that its SlurmctldTimeout (120 s by default) bounds. What is set later, or before, is for another prolog's exit.
PROLOG_DRAIN_S = 180.0

#: slurmctld sets reasons as SlurmUser, slurmd as root (slurmctld, `drain_nodes` after a failed prolog); people have other names.
_DAEMONS = ("root", "slurm")

#: So often within a day one finding may come and go by itself; then somebody is to look.
RETURNS_A_DAY = 3


class Seen(NamedTuple):
    """What the node shows now. `verdict` is that of the whole local look; `still`: this finding is in it and not passed.

    `check` is what became of the very check, one of the verdicts or another word: it was not made. `missing`: which reading
    of the proof is missing, in words (proof.py). `recovery`: what the driver asks for, for any GPU; empty: nothing.
    `slow`: what is missing of a slow check's proof, in words; empty: nothing. `returns`: how often within a day this finding
    drained this node and it came back.
    """

    verdict: str
    boot_id: str
    instance_id: str
    still: bool
    check: str
    missing: str = ""
    recovery: str = ""
    slow: str = ""
    returns: int = 0


class Ruling(NamedTuple):
    """What is to be done (RESUME, FORGET, LEAVE), and why in words."""

    act: str
    why: str


def is_another_instance(record: DrainRecord, instance_id: str) -> bool:
    """Say whether the node's name belongs to another instance than the one that was drained; not known is a no."""
    return bool(record.instance_id) and bool(instance_id) and record.instance_id != instance_id


def judge(
    record: DrainRecord | None, node: Node | None, seen: Seen, settings: Settings, *, mode: str, now: float
) -> Ruling:
    """Say what is to be done about a node, given its record, what Slurm says of it and what it shows itself.

    `settings.site.type` is no more `auto` here (site_policy.kind).
    """
    if record is None:
        return Ruling(LEAVE, "there is no record of a drain of ours")
    if node is None or node.name != record.node:
        return Ruling(LEAVE, "Slurm does not say what state it is in")
    if not node.drained:
        if node.state == "DOWN" or now - record.since_s < SETTLED_S:
            return Ruling(LEAVE, f"it is {node.state} and not drained (yet)")
        replaced = is_another_instance(record, seen.instance_id)
        return Ruling(FORGET, "another instance has its name" if replaced else "somebody resumed it")
    if node.reason != record.reason:
        return Ruling(LEAVE, "the reason is not the one we set")
    if why := _not_of_our_exit(record, node):
        return Ruling(LEAVE, why)
    if why := _by_policy(record, node, settings, mode):
        return Ruling(LEAVE, why)
    if seen.verdict not in (PASS, WARN):
        what = {FAIL: "the gate fails here", UNKNOWN: "the gate does not know"}.get(seen.verdict, "there is no verdict")
        return Ruling(LEAVE, what)
    if seen.still:
        return Ruling(LEAVE, f"{record.finding} is still to be seen")
    if is_another_instance(record, seen.instance_id):
        return Ruling(RESUME, f"another instance ({seen.instance_id}) has its name, and passes the gate")
    if why := _unproven(record, seen):
        return Ruling(LEAVE, why)
    boot = "the same boot" if record.boot_id == seen.boot_id else "another boot"
    return Ruling(RESUME, f"{record.finding} on {record.target} looked for again on {boot} and not found")


def _not_of_our_exit(record: DrainRecord, node: Node) -> str:
    """Return in words why Slurm's drain after a failed prolog is not the one that our exit caused; empty where it is, or is none.

    Any prolog that fails is told of by the same two words: a site's own, or ours of another time.
    """
    if record.reason != PROLOG_ERROR:
        return ""
    if not node.reason_time:
        return "Slurm does not say when its Prolog error was: it may be another prolog's"
    if node.reason_user not in _DAEMONS:
        return f"{node.reason_user or 'nobody known'} set the reason, not Slurm"
    # Slurm counts whole seconds, and cuts them.
    late_s = node.reason_time - record.since_s
    if not -1.0 <= late_s <= PROLOG_DRAIN_S:
        when = "before" if late_s < 0 else "after"
        return f"its Prolog error is of {abs(late_s):.0f} s {when} our exit: another prolog's"
    return ""


def _by_policy(record: DrainRecord, node: Node, settings: Settings, mode: str) -> str:
    """Return in words what else than the node's health speaks against it, empty where nothing does."""
    if record.finding == MANUAL or record.owner.startswith("user"):
        return "a person drained it, and a person resumes it"
    if settings.drain.undrain != "on_proof":
        return f"drain.undrain is {settings.drain.undrain}"
    if mode != "enforce":
        return f"mode.gate is {mode} here"
    return repair.not_to_resume(node, settings.site.type)


def _unproven(record: DrainRecord, seen: Seen) -> str:
    """Return in words what is missing of the proof on this same instance, empty where nothing is."""
    needs = f"it needs {record.needs or ladder.needs(record.finding, record.target, record.step)}"
    if record.finding.startswith(ladder.BURNIN):
        return needs
    if record.step == ladder.REPLACE:
        return needs
    other_boot = bool(record.boot_id) and bool(seen.boot_id) and record.boot_id != seen.boot_id
    if record.step == ladder.REBOOT and not other_boot:
        return needs
    if not seen.boot_id or not record.boot_id:
        return "it is not known on which boot it was drained, or which this is"
    if seen.check not in (PASS, WARN):
        return f"the check itself was not made ({seen.check or 'nothing looks at it between jobs'})"
    if seen.missing:
        return f"no proof that {record.finding} on {record.target} has gone: {seen.missing}"
    if seen.recovery:
        return f"the driver asks for {seen.recovery}"
    if seen.slow:
        return seen.slow
    if seen.returns >= RETURNS_A_DAY:
        return f"it came and went {seen.returns} times within a day: somebody is to look"
    return ""

"""What Slurm's word on a node means for a job that wants to start there. Pure.

The state decides, never the reason: a reason stays where a node was resumed. The reason decides whose a drain is: ours,
Slurm's own (a fault to look at), the platform's order, or somebody else's, which is left alone. Sources: sinfo(1),
scontrol(1), and the texts that slurmctld, slurmd and slurmstepd set themselves (node_mgr.c, agent.c, proc_req.c,
job_mgr.c, ping_nodes.c, power_save.c, read_config.c, gres.c, cred_context.c, step_terminate_monitor.c), 20.11 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.slurm_views import NodeView
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, PASS, REASON_PREFIX, UNKNOWN, WARN

#: Reasons that Slurm itself sets, each whole: (finding id, expression). What a person types seldom is one of them.
_SLURM: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (id_, pattern(text, re.I))
    for id_, text in (
        ("not-responding", r"Not responding"),
        ("unexpected-reboot", r"Node unexpectedly rebooted"),
        ("prolog-error", r"Prolog error|Prolog/Epilog failure"),
        ("epilog-error", r"Epilog error"),
        ("job-env-error", r"Job env setup error"),
        ("kill-task-failed", r"Kill task failed(?: \(JobId=.*\))?"),
        ("step-not-running", r"Job step not running(?: \(JobId=.*\))?"),
        ("batch-failure", r"(?:batch )?job complete failure"),
        ("duplicate-job", r"Duplicate jobid"),
        ("spool-full", r"SlurmdSpoolDir is full"),
        ("switch-error", r"switch_g_job_postfini failed"),
        ("gres-count-low", r"\S+ count reported lower than configured(?: \(\d+ < \d+\))?"),
        ("gres-count-low", r"\S+ count too low(?: \(\d+ < \d+\))?"),
        (
            "gres-changed",
            r"\S+ count changed and jobs are using them(?: \(.*\))?|\S+ type changed and jobs are using them",
        ),
        ("gres-type", r"\S+ type \(.*\) reported but not configured|Could not unpack gres data"),
        (
            "low-resources",
            r"Low (?:RealMemory|TmpDisk|CPUs|socket\S*(?: count)?|CPU count)(?: \(.*\))?|CoreSpec differ",
        ),
        ("low-resources", r"Bad core count|RestrictedCoresPerGPU.*"),
        (
            "features-differ",
            r"Reported active features \(.*\) are not a superset of .*|Failed to set node feature\(s\):.*",
        ),
        ("features-differ", r"Invalid KNL modes|Failed to parse dynamic_conf nodeline|Failed to set topology.*"),
        ("no-address", r"NO NETWORK ADDRESS FOUND"),
        ("resume-timeout", r"ResumeTimeout reached"),
        ("reboot-timeout", r"reboot timed out"),
        ("version-differs", r"(?:slurmd|slurm) version .*|Incompatible versions? of client and server code"),
    )
)
#: The fixed ones, for a narrow column that cut them.
_STARTS: tuple[tuple[str, str], ...] = (
    ("not-responding", "not responding"),
    ("unexpected-reboot", "node unexpectedly rebooted"),
    ("prolog-error", "prolog error"),
    ("epilog-error", "epilog error"),
    ("kill-task-failed", "kill task failed"),
    ("batch-failure", "batch job complete failure"),
    ("spool-full", "slurmdspooldir is full"),
    ("low-resources", "low realmemory"),
    ("low-resources", "low socket*core*thread count"),
    ("resume-timeout", "resumetimeout reached"),
    ("gres-count-low", "gres/gpu count reported lower than configured"),
)
#: HyperPod acts on these itself: a change of state now would break its repair off (its guide on manual replacement).
_PLATFORM = pattern(r"Action:\s*(Reboot|Replace)\b.*", re.I | re.S)
#: Reasons that go with a reboot or a power-down that somebody asked Slurm for.
_ASKED = pattern(r"Reboot ASAP|reboot requested|reboot issued|reboot complete|POWER_DOWN_ASAP", re.I)
#: slurmctld sets reasons as SlurmUser, slurmd and slurmstepd as root; a person's name says that a person typed it.
_DAEMON = pattern(r"(?:root|slurm\w*|0|Unknown|\(?null\)?)(?:\(\d+\))?", re.I)

#: Words that carry the daemon's own figures, which nobody types, whatever SlurmUser is called.
_FIGURES = pattern(r"\((?:reported:)?\d+ < [\d.]+%?.*\)|\(JobId=\d+")

#: Flags of a node that is not expected to answer.
_ELSEWHERE = frozenset(("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_UP", "REBOOT_ISSUED"))
_AWAY = frozenset(("POWERED_DOWN", "POWERING_DOWN"))


@lru_cache(maxsize=1024)  # a large cluster has few reasons
def slurms_own(reason: str, *, user: str = "", cut: bool = False) -> str:
    """Return which fault of its own Slurm names with this reason, empty where the words are somebody else's.

    `cut` where a column may have shortened it. Slurm joins several faults by a comma, and adds to a reason by ` : `.
    """
    if user and not _DAEMON.fullmatch(user) and not _FIGURES.search(reason):
        return ""
    parts = [part for part in re.split(r"(?<=[\w)]), (?=[A-Za-z])| : ", reason.strip()) if part]
    first = "asked" if parts else ""
    for part in parts:
        id_ = _one(part, cut)
        if not id_:
            return ""
        first = id_ if first == "asked" else first
    return first


def _one(text: str, cut: bool) -> str:
    if _ASKED.fullmatch(text):
        return "asked"
    for id_, whole in _SLURM:
        if whole.fullmatch(text):
            return id_
    told = text.lower()
    if cut and len(told) >= 12:
        return next((id_ for id_, start in _STARTS if start.startswith(told) or told.startswith(f"{start} (")), "")
    return ""


def judge(nodes: Iterable[NodeView], *, own_prefix: str | None = None) -> list[Judged]:
    """Return what the states of nodes say. `own_prefix` begins our own drain reasons; None where the case has none."""
    return [item for node in nodes for item in _judge(node, own_prefix)]


def _judge(node: NodeView, own_prefix: str | None) -> list[Judged]:
    target = f"node:{node.name}"
    state = node.state
    words = "+".join(filter(None, (state.base, *sorted(state.flags))))
    line = f"{words}: {node.reason}" if node.reason else words
    items = []
    if state.unknown or not (state.base or state.flags):
        told = ", ".join(state.unknown) or "no state"
        items.append(judged(UNKNOWN, "slurm.state-unknown", target, "none", f"no known release says {told}", line))
    means = _out_of_use(node, own_prefix) or _in_use(node, own_prefix)
    if means is not None:
        verdict, id_, action = means
        items.append(judged(verdict, f"slurm.{id_}", target, action, line))
    return items


def _whose(node: NodeView, own_prefix: str | None) -> str:
    """Return `ours`, the id of Slurm's own fault, `asked`, or nothing for somebody else's reason and for none."""
    prefix = own_prefix if own_prefix else REASON_PREFIX.strip()
    if node.reason.startswith(prefix):
        return "ours"
    return slurms_own(node.reason, user=node.user, cut=node.reason_cut) if node.reason else ""


def _out_of_use(node: NodeView, own_prefix: str | None) -> tuple[str, str, str] | None:
    """Return (verdict, id, action) for a node that takes no job, None for one that does."""
    base, flags = node.state.base, node.state.flags
    down = base in ("DOWN", "ERROR")
    taken = down or bool({"DRAIN", "FAIL"} & flags)
    if taken and (order := _PLATFORM.fullmatch(node.reason)):
        return FAIL, f"platform-{order[1].lower()}", order[1].lower()
    whose = _whose(node, own_prefix) if taken or "INVALID_REG" in flags else ""
    fault = "" if whose in ("ours", "asked") else whose
    if "INVALID_REG" in flags:
        return FAIL, fault or "invalid-registration", "drain"
    if "MAINTENANCE" in flags and (down or not whose or whose == "asked"):
        # People are at work on it: that it does not answer or reboots is to be expected.
        return FAIL, "node-maintenance", "none"
    if taken and whose == "ours":
        return FAIL, "drained-by-us", "drain"
    if taken and {"REBOOT_ISSUED", "REBOOT_REQUESTED"} & flags:
        return FAIL, "node-rebooting", "none"
    if down:
        if fault and not _AWAY & flags:
            return FAIL, fault, "drain"
        # A powered-down instance is nobody's to look at; a reason that Slurm does not set is a person's or a tool's.
        mute = not node.reason and not _ELSEWHERE & flags
        not_responding = not node.reason and "NOT_RESPONDING" in flags
        return FAIL, "not-responding" if not_responding else fault or "node-down", "drain" if mute else "none"
    if taken:
        return (FAIL, fault, "drain") if fault else (FAIL, "drain-foreign", "none")
    # After a start of the controller every node is UNKNOWN until it has answered: that is no silence yet.
    if "NOT_RESPONDING" in flags and base != "UNKNOWN" and not _ELSEWHERE & flags:
        return FAIL, "not-responding", "drain"
    if "REBOOT_ISSUED" in flags:
        return FAIL, "node-rebooting", "none"
    return None


def _in_use(node: NodeView, own_prefix: str | None) -> tuple[str, str, str] | None:
    """Return (verdict, id, action) where something is to be told of a node that takes jobs."""
    base, flags = node.state.base, node.state.flags
    if base == "UNKNOWN":  # the controller has just started
        return UNKNOWN, "state-undetermined", "none"
    if "REBOOT_REQUESTED" in flags:
        return WARN, "reboot-requested", "none"
    # Whose an old reason is can be told from its words where Slurm set it, else only with our own prefix at hand.
    if node.reason and (own_prefix is not None or _whose(node, own_prefix)):
        return PASS, "reason-old", "none"
    return None

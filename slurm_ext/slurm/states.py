"""The words for node and job states of every Slurm release from 20.11 to 26.05, in full, short and suffixed form. Pure.

Sources: sinfo(1) and squeue(1), node_state_string and node_state_flags in slurm_protocol_defs.c, the state tables of
data_parser v0.0.39 to v0.0.45. A word that is in none of them is told as unknown and never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from slurm_ext.typed import NamedTuple

#: Checked on 2026-11-30, against 26.05.3.
CHECKED = "2026-11-30"

NODE_BASES = frozenset(("UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"))

NODE_FLAGS = frozenset(
    (
        "BLOCKED",
        "CLOUD",
        "COMPLETING",
        "DRAIN",
        "DYNAMIC_FUTURE",
        "DYNAMIC_NORM",
        "EXTERNAL",
        "FAIL",
        "INVALID_REG",
        "MAINTENANCE",
        "NOT_RESPONDING",
        "PERFCTRS",
        "PLANNED",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWERING_UP",
        "POWER_DOWN",
        "POWER_DRAIN",
        "POWER_UP",
        "REBOOT_CANCELED",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "RESERVED",
        "RESUME",
        "UNDRAIN",
    )
)

#: One character behind a state (sinfo(1), NODE STATE CODES). All releases agree on them.
NODE_MARKS: Mapping[str, str] = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}

#: sinfo's own words, older releases' names and REST's combinations -> the base and flags that they stand for.
_NODE_WORDS: Mapping[str, tuple[str, ...]] = {
    "ALLOC": ("ALLOCATED",),
    "BLOCK": ("IDLE", "BLOCKED"),
    "BOOT": ("REBOOT_REQUESTED",),
    "CANCEL_REBOOT": ("REBOOT_CANCELED",),
    "CANC_R": ("REBOOT_CANCELED",),
    "COMP": ("COMPLETING",),
    "DRAINED": ("IDLE", "DRAIN"),
    "DRAINING": ("ALLOCATED", "DRAIN"),
    "DRNG": ("ALLOCATED", "DRAIN"),
    "DYNAMIC": ("DYNAMIC_NORM",),
    "ERR": ("ERROR",),
    "EXT": ("EXTERNAL",),
    "FAILED": ("FAIL",),
    "FAILG": ("ALLOCATED", "FAIL"),
    "FAILING": ("ALLOCATED", "FAIL"),
    "FUTR": ("FUTURE",),
    "INVAL": ("INVALID_REG",),
    "MAINT": ("MAINTENANCE",),
    "MIX": ("MIXED",),
    "NO_RESPOND": ("NOT_RESPONDING",),
    "NPC": ("PERFCTRS",),
    "PLND": ("PLANNED",),
    "POWER": ("POWERED_DOWN",),
    "POWERED_DN": ("POWERED_DOWN",),
    "POWER_DOWN_ASAP": ("POWER_DOWN", "POWER_DRAIN"),
    "POWER_DOWN_FORCE": ("POWER_DOWN", "POWERED_DOWN"),
    "POWRING_DN": ("POWERING_DOWN",),
    "POWRNG_DN": ("POWERING_DOWN",),
    "POW_DN": ("POWER_DOWN",),
    "POW_UP": ("POWER_UP",),
    "REBOOT": ("REBOOT_REQUESTED",),
    "REBOOT_CANCEL": ("REBOOT_CANCELED",),
    "RES": ("RESERVED",),
    "RESM": ("RESUME",),
    "RESV": ("RESERVED",),
    "UNK": ("UNKNOWN",),
}

JOB_STATES: Mapping[str, str] = {
    "PD": "PENDING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "PR": "PREEMPTED",
    "BF": "BOOT_FAIL",
    "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
}

#: Flags that squeue has no short word for; REST lists them beside the base state.
_JOB_MORE = frozenset(("EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE", "RECONFIG_FAIL", "UPDATE_DB", "UPDATING"))
JOB_WORDS = frozenset(JOB_STATES.values()) | _JOB_MORE


class NodeState(NamedTuple):
    """A node's state: `base` (empty where the words told flags only), its flags, and words that no release has."""

    base: str = ""
    flags: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()


def node(words: Iterable[str], *, cut: bool = False) -> NodeState:
    """Return the state in one word or in several (`IDLE+DRAIN`, `drng@`, a list of REST).

    With `cut` a column may have shortened a word: its beginning is enough where only one word begins so.
    """
    base, flags, unknown = "", set[str](), []
    for word in words:
        told = word.strip().upper()
        if told.endswith("+"):  # ALLOCATED+: jobs run and others are completing
            flags.add("COMPLETING")
        for part in filter(None, told.split("+")):
            bare = part.rstrip("".join(NODE_MARKS))
            flags |= {NODE_MARKS[mark] for mark in part[len(bare) :]}
            for known in _known(bare, cut):
                if known in NODE_BASES:
                    # A drained node's short form names one base, and DOWN may stand behind it: the worse one holds.
                    base = known if known in ("DOWN", "ERROR") else base or known
                elif known in NODE_FLAGS:
                    flags.add(known)
                else:
                    unknown.append(known)
    return NodeState(base, frozenset(flags), tuple(unknown))


def _known(word: str, cut: bool) -> tuple[str, ...]:
    if word in NODE_BASES or word in NODE_FLAGS:
        return (word,)
    if word in _NODE_WORDS:
        return _NODE_WORDS[word]
    if cut and len(word) >= 5:
        begun = {full for full in (*NODE_BASES, *NODE_FLAGS, *_NODE_WORDS) if full.startswith(word)}
        if len(begun) == 1:
            return _known(begun.pop(), False)
    return (word,) if word else ()


@lru_cache(maxsize=1024)  # a view of a large cluster says the same few words again and again
def is_node_word(text: str) -> bool:
    """Say whether a text is a node state that some release prints."""
    told = node((text,), cut=True)
    return bool(text.strip()) and not told.unknown and bool(told.base or told.flags)


def job(word: str) -> str:
    """Return a job state in full, upper case; the word as it stands where no release has it."""
    told = word.strip().upper().split(" ")[0].rstrip("+")  # sacct's `CANCELLED by 1000`, and `CANCELLED+`
    if told in JOB_STATES or told in JOB_WORDS:
        return JOB_STATES.get(told, told)
    begun = [full for full in JOB_WORDS if len(told) >= 7 and full.startswith(told)]  # squeue -l has eight letters
    return begun[0] if len(begun) == 1 else told


@lru_cache(maxsize=1024)
def is_job_word(text: str) -> bool:
    """Say whether a text is a job state that some release prints."""
    return job(text) in JOB_WORDS

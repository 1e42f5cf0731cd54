"""Every way in which a node can go wrong in a burn-in, what must come of it, and what may be left of it. Not a test by itself.

The tests try each, and `bench/burnin` measures over all of them how long a hook outlives its deadline.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_ext.verdict import FAIL, PASS

#: A floor far below any healthy run on a busy machine, and far above what each slow kind below leaves of it.
FLOOR_GBS = 0.01

#: Keys that name a file on a frozen file system: whoever writes there is in D state.
FROZEN = "frozen"


class FaultKind(NamedTuple):
    """One fault of one node of `nodes`, whom it must convict (nobody: empty), and by which findings one may know it."""

    name: str
    culprit: str
    keys: Mapping[str, object]
    findings: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = (FAIL,)
    nodes: int = 4
    transport: str = "socket"
    deadline_s: float = 15.0  # who hangs costs every round its limit, a share of this

    @property
    def convicted(self) -> tuple[str, ...]:
        """Return the nodes that must drain."""
        return (self.culprit,) if self.findings else ()


def _harmless(name: str, culprit: str, keys: Mapping[str, object], **more: object) -> FaultKind:
    return FaultKind(name, culprit, keys, (), (PASS, "warn"), **more)  # type: ignore[arg-type]


#: A link that is slow enough looks stuck in the rounds of pairs, which are shorter; and who hangs after some all-reduces looks
#: slow, since what the ranks did is measured, and not how long it would go on.
_SLOW = ("burnin.slow", "burnin.hang")

#: Slow rounds take the same time under every deadline, and it takes more of them to convict.
_LONG_S = 40.0


def _slow(name: str, culprit: str, keys: Mapping[str, object]) -> FaultKind:
    return FaultKind(name, culprit, keys, _SLOW, deadline_s=_LONG_S)


KINDS: tuple[FaultKind, ...] = (
    _slow("delay", "n2", {"nccl.delay_ms": 500}),
    _slow("rate", "n0", {"nccl.rate_mbit": 8}),
    _slow("rail", "n2", {"gpu.1.nccl.rate_mbit": 4}),
    FaultKind("flip-sent", "n1", {"nccl.wrong_result": "send", "nccl.flip_offset": 4321}, ("burnin.wrong",)),
    FaultKind("flip-received", "n3", {"nccl.wrong_result": "recv", "nccl.flip_offset": 77}, ("burnin.wrong",)),
    FaultKind("hang-init", "n0", {"nccl.hang": "init"}, ("burnin.hang",)),
    _slow("hang-iteration", "n1", {"nccl.hang": "allreduce:3"}),
    _slow("hang-one-gpu", "n2", {"gpu.1.nccl.hang": "allreduce:6"}),
    FaultKind("hang-abort", "n3", {"nccl.hang": "allreduce,abort"}, ("burnin.hang",)),
    FaultKind("crash-init", "n2", {"nccl.crash": "init"}, ("burnin.error",)),
    FaultKind("crash-iteration", "n0", {"nccl.crash": "allreduce:3"}, ("burnin.error",)),
    FaultKind("stop-init", "n1", {"nccl.stop": "init"}, ("burnin.hang",)),
    _slow("stop-iteration", "n3", {"gpu.0.nccl.stop": "allreduce:2"}),
    FaultKind("error-code", "n2", {"nccl.error": 3, "nccl.error_at": "allreduce:2"}, ("burnin.error",)),
    FaultKind("missing-rank", "n1", {"gpu.1.nccl.absent": 1}, ("burnin.error",)),
    FaultKind("lost-gpu", "n3", {"gpu.1.lost": 1}, ("burnin.error",)),
    FaultKind("driver-hangs", "n2", {"cuda.hang": "init"}, ("burnin.hang",)),
    _slow("dstate-iteration", "n1", {"nccl.dstate_file": FROZEN, "nccl.dstate": "allreduce:2"}),
    FaultKind("dstate-init", "n2", {"nccl.dstate_file": FROZEN, "nccl.dstate": "init"}, ("burnin.hang",)),
    FaultKind("dstate-driver", "n3", {"cuda.dstate_file": FROZEN}, ("burnin.hang",)),
    FaultKind(
        "socket",
        "n1",
        {"nccl.claims": "socket"},
        ("nccl-socket-fallback", "efa-counters-still"),
        nodes=3,
        transport="efa",
    ),
    FaultKind("nic-count", "n2", {"nccl.nics": 31}, ("nccl-nic-count",), nodes=3, transport="efa"),
    FaultKind("no-plugin", "n0", {"nccl.net": "socket"}, ("burnin.error",), nodes=3, transport="efa"),
    _harmless("late-rank", "n2", {"nccl.join_delay_ms": 1000}),
    _harmless("retransmits", "n1", {"efa.retransmits_per_gb": 1_000_000}, nodes=3, transport="efa"),
)


def keys_on(kind: FaultKind, stuck: Path | None) -> dict[str, object]:
    """Return the hardware keys of the bad node, with the file to sleep on in place of FROZEN."""
    return {key: stuck if value == FROZEN else value for key, value in kind.keys.items()}


def needs_frozen(kind: FaultKind) -> bool:
    """Say whether the kind needs a frozen file system."""
    return FROZEN in kind.keys.values()


def left_behind(folder: Path) -> dict[int, str]:
    """Return the agents and workers of the nodes below `folder` that live: pid -> states of their threads.

    All of them write their last words to a log there, and that is how they are known.
    """
    found = {}
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/fd/2").startswith(f"{folder}/"):
                found[int(entry)] = states(int(entry))
        except OSError:
            continue
    return found


def states(pid: int) -> str:
    """Return the states of a process's threads (proc(5)), empty where it is gone."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ""
    found = ""
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/stat", encoding="utf-8", errors="replace") as stream:
                found += stream.read().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
    return found

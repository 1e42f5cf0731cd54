"""Run a slow check detached from the hook that starts it: slurmd kills a HealthCheckProgram after 60 s.

One at a time on a node, of whichever kind (slow_dcgm, slow_efa), by a lock that its leader holds as long as it lives. It can be
ended for a job at any moment (slow.end_running); what it came to lies in the run folder for the next HealthCheckProgram
(gate/slow_result.py).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping

from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import open_regular
from slurm_ext.gate import slow_result
from slurm_ext.gate.model import Judged
from slurm_ext.gate.slow_result import DONE, EFA, ENDED, Last
from slurm_ext.hooks import slow_end, slow_place, slow_state
from slurm_ext.hooks.slow_state import Running
from slurm_ext.typed import NamedTuple

#: How long (seconds) a level may take. Nominal r1 is seconds, r2 two minutes; ten and more were measured on eight GPUs. EFA's
#: loopback takes some three seconds a device where all is well; a site's own trouble ends it after four devices.
LIMITS_S: Mapping[str, float] = {"r1": 300.0, "r2": 1_800.0, EFA: 600.0}


class Order(NamedTuple):
    """What is to be run, for which level, on which boot (below site.root) of which node.

    `argv`: dcgmi with its arguments; for EFA's loopback fi_info and fi_pingpong.
    """

    node: str
    run_dir: str
    argv: tuple[str, ...]
    level: str
    boot_id: str
    limit_s: float

    @property
    def kind(self) -> str:
        """Which result it writes (slow_result.FILES)."""
        return slow_result.kind_of_level(self.level)


class Result(NamedTuple):
    """What it came to: how it ended (slow_result), what it found, what went wrong in words, what passed."""

    outcome: str
    items: tuple[Judged, ...] = ()
    said: str = ""
    passed: tuple[str, ...] = ()


def start(order: Order, *, idle: Callable[[], str], tell: Callable[[Last], None] | None = None) -> bool:
    """Start a slow check and return at once; say whether a process for it was started.

    `idle` says in words, in the new process and after all can see it, why the node is not idle (empty: it is); `tell` is
    called with what came of it. Both may take their time.
    """
    try:
        lock = open_regular(os.path.join(order.run_dir, slow_state.LOCK), os.O_WRONLY | os.O_CREAT)
    except (OSError, UntrustedFileError):
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # one runs
        os.close(lock)
        return False
    # The lock belongs to the open file, which the leader inherits: there is no moment in which nobody holds it.
    pid = os.fork()
    if pid:
        os.close(lock)
        os.waitpid(pid, 0)
        return True
    try:
        os.setsid()
        if os.fork() == 0:
            os.setsid()  # leader of a session of its own, and nobody's child
            _lead(order, lock, idle, tell)
    finally:
        os._exit(0)


def _lead(order: Order, lock: int, idle: Callable[[], str], tell: Callable[[Last], None] | None) -> None:
    # Nothing of slurmd's but the lock is kept: it waits for whoever holds its pipes.
    kept = 3
    if lock != kept:
        os.dup2(lock, kept)
    os.set_inheritable(kept, False)
    os.closerange(kept + 1, 1 << 16)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    slow_state.mark_begun(order.run_dir, order.kind, kept)
    earlier = slow_result.read(order.run_dir, order.kind)
    before = slow_state.running(order.run_dir)
    began = time.time()
    if before is not None and before.boot_id == slow_state.machine_boot_id() and (stay := slow_end.alive(before)):
        # Its leader is dead, and what it started will not end: a prolog finds that file, and says so.
        said = f"something of an earlier slow check is here: pid {stay[0].pid} ({stay[0].name})"
        _keep(order, _last(order, Result(ENDED, said=said), began), earlier)
        return
    where = slow_place.leave(order.node)
    mine = slow_end.read(os.getpid())
    token = os.urandom(16).hex()
    assert mine is not None, "there is a /proc here"
    who = Running(mine.pid, mine.start, token, slow_state.machine_boot_id(), order.level, began, order.node)
    slow_state.write_running(order.run_dir, who)
    # Only now: a prolog that began meanwhile either sees this file, or is seen here.
    result = Result(ENDED, said=why) if (why := idle()) else _run(order, token)
    last = _last(order, result, began)
    if last.outcome == DONE:
        last = last._replace(said=where)
    told = _keep(order, last, earlier)
    slow_place.forget(order.node, leave=True)
    if not [process for process in slow_end.alive(who) if process.pid != who.pid]:
        slow_state.remove_running(order.run_dir)
    if tell is not None and last.outcome != ENDED:  # a job waits for this process to be gone
        tell(told)


def _keep(order: Order, last: Last, earlier: Last | None) -> Last:
    last = slow_result.after(last, earlier)
    try:
        slow_result.write(order.run_dir, last)
    except OSError as exc:
        return last._replace(said=f"{last.said}; not kept: {exc}")
    return last


def _last(order: Order, result: Result, began: float) -> Last:
    outcome, items, said, passed = result
    return Last(order.level, outcome, began, time.time(), order.boot_id, items, said, passed=passed)


def _run(order: Order, token: str) -> Result:
    # Here: the hook that starts one needs neither.
    if order.kind == EFA:
        from slurm_ext.hooks import slow_efa

        return slow_efa.run(order, token)
    from slurm_ext.hooks import slow_dcgm

    return slow_dcgm.run(order, token)

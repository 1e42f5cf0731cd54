"""Run a slow check (DCGM's diagnostic) detached from the hook that starts it: slurmd kills a HealthCheckProgram after 60 s.

One at a time on a node, by a lock that its leader holds as long as it lives. It can be ended for a job at any moment
(slow.end_running); what it came to lies in the run folder for the next HealthCheckProgram (gate/slow_result.py).
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping

from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import open_regular
from slurm_ext.gate import slow_result
from slurm_ext.gate.slow_result import BROKE, DONE, ENDED, LATE, Last
from slurm_ext.hooks import slow_end, slow_place, slow_state
from slurm_ext.hooks.slow_state import Running
from slurm_ext.typed import NamedTuple

#: How long (seconds) a level may take. Nominal r1 is seconds, r2 two minutes; ten and more were measured on eight GPUs.
LIMITS_S: Mapping[str, float] = {"r1": 300.0, "r2": 1_800.0}

#: How long dcgmi gets to stop the diagnostic when there is no more time, and to end after SIGKILL (seconds).
STOP_S, KILL_S = 30.0, 5.0

#: What it may write into one file (bytes): its answer is far smaller.
OUTPUT_BYTES = 8 << 20


class Order(NamedTuple):
    """What is to be run: the program with its arguments, for which level, on which boot (below site.root) of which node."""

    node: str
    run_dir: str
    argv: tuple[str, ...]
    level: str
    boot_id: str
    limit_s: float


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
    slow_state.mark_begun(kept)
    earlier = slow_result.read(order.run_dir)
    before = slow_state.running(order.run_dir)
    began = time.time()
    if before is not None and before.boot_id == slow_state.machine_boot_id() and (stay := slow_end.alive(before)):
        # Its leader is dead, and what it started will not end: a prolog finds that file, and says so.
        said = f"something of an earlier slow check is here: pid {stay[0].pid} ({stay[0].name})"
        _keep(order, _last(order, ENDED, "", said, began), earlier)
        return
    where = slow_place.leave(order.node)
    mine = slow_end.read(os.getpid())
    token = os.urandom(16).hex()
    assert mine is not None, "there is a /proc here"
    who = Running(mine.pid, mine.start, token, slow_state.machine_boot_id(), order.level, began, order.node)
    slow_state.write_running(order.run_dir, who)
    # Only now: a prolog that began meanwhile either sees this file, or is seen here.
    if why := idle():
        outcome, output, said = ENDED, "", why
    else:
        outcome, output, said = _run(order, token)
    last = _last(order, outcome, output, said, began)
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


def _last(order: Order, outcome: str, output: str, said: str, began: float) -> Last:
    from slurm_ext.gate import dcgm_diag
    from slurm_ext.verdict import UNKNOWN

    items = tuple(dcgm_diag.judge(dcgm_diag.parse(output))) if outcome == DONE else ()
    if outcome == DONE and any(item.finding.id == "dcgm.no-answer" for item in items):
        outcome, said = BROKE, next(line for item in items for line in item.finding.evidence)
    if outcome in (LATE, BROKE):
        from slurm_ext.gate.model import judged

        items = (judged(UNKNOWN, "dcgm.no-answer", "node", "none", f"dcgmi diag {order.level}: {said}"),)
    return Last(order.level, outcome, began, time.time(), order.boot_id, items, said)


def _run(order: Order, token: str) -> tuple[str, str, str]:
    """Run the program; return how it ended, what it printed, and what went wrong in words."""
    from slurm_ext.command import clean_env

    waited = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    out, err = os.memfd_create("out"), os.memfd_create("err")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, limits[1]))
    try:
        pid = os.posix_spawn(
            order.argv[0],
            list(order.argv),
            clean_env(FMSLURM_SLOW=token),
            file_actions=[(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)],
            setsigmask=[],
            setsigdef=[signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE],
        )
    except OSError as exc:
        return BROKE, "", f"{order.argv[0]} cannot be started: {exc.strerror}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    why = _wait(pid, time.monotonic() + order.limit_s)
    if why:
        os.kill(pid, signal.SIGTERM)  # dcgmi then has DCGM stop the diagnostic
        if _wait(pid, time.monotonic() + STOP_S, heed=False):
            os.kill(pid, signal.SIGKILL)
            _wait(pid, time.monotonic() + KILL_S, heed=False)
        return (ENDED, "", "ended for a job") if why == ENDED else (LATE, "", f"no answer within {order.limit_s:.0f} s")
    output = _content(out)
    # Its exit code says only that a test failed, or that DCGM broke; the output says which.
    return DONE, output, _content(err)[:300]


def _wait(pid: int, deadline: float, *, heed: bool = True) -> str:
    """Wait for the program; return why it was not waited for to its end, empty where it has ended. `heed`: end on SIGTERM."""
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return ""
        except ChildProcessError:
            return ""
        left = deadline - time.monotonic()
        if left <= 0:
            return LATE
        woken = signal.sigtimedwait({signal.SIGCHLD, *({signal.SIGTERM} if heed else ())}, min(left, 5.0))
        if woken is not None and woken.si_signo == signal.SIGTERM:
            return ENDED


def _content(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(size, OUTPUT_BYTES), 0).decode("utf-8", "replace")

"""Acting as the user whose files these are: no path that a user can change is ever walked with root's rights.

Standard library only: hooks import this.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slurm_ext import command

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2


def groups_of(uid: int, fallback_gid: int) -> tuple[int, list[int]]:
    """Return primary and all groups of a user; a user this machine does not know has `fallback_gid` alone."""
    try:
        known = pwd.getpwuid(uid)
    except KeyError:
        return fallback_gid, [fallback_gid]
    return known.pw_gid, os.getgrouplist(known.pw_name, known.pw_gid)


def become(uid: int, gid: int) -> None:
    """Turn this process into one of user `uid`, for good; only for a child that was made for it.

    Does nothing where it already is that user. Raise PermissionError where it is neither root nor that user.
    """
    if os.geteuid() == uid:
        return
    primary, groups = groups_of(uid, gid)
    with _death_signal_kept():
        os.setgroups(groups)
        os.setresgid(primary, primary, primary)
        os.setresuid(uid, uid, uid)
    os.umask(0o022)


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Walk paths as the user for the time of a `with`, then be root again. Only in a process with a single thread.

    Opening a file this way follows nothing that the user could not follow, and an NFS or Lustre root_squash is met.
    """
    if os.geteuid() == uid:
        yield
        return
    primary, groups = groups_of(uid, gid)
    before = os.getgroups()
    with _death_signal_kept():
        os.setgroups(groups)
        os.setegid(primary)
        os.seteuid(uid)
    try:
        yield
    finally:
        with _death_signal_kept():
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(before)


def call_as(uid: int, gid: int, work: Callable[[], bytes], *, timeout_s: float) -> bytes | None:
    """Return what `work` returns, run as the user in a child with a deadline; None where it failed or took too long."""

    def child() -> bytes:
        become(uid, gid)
        return work()

    return command.call_bounded(child, timeout_s=timeout_s)


@contextmanager
def _death_signal_kept() -> Iterator[None]:
    """Keep what `die_with_parent` set: the kernel forgets it whenever a process changes its user."""
    signal_number = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(signal_number), 0, 0, 0)
    parent = os.getppid()
    yield
    if signal_number.value:
        die_with_parent(parent)


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends."""
    # An agent that is killed must not leave movers behind that its successor knows nothing of.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def be_nice() -> None:
    """Step back behind the trainer: lowest CPU priority but one, best-effort I/O at its lowest level."""
    os.nice(15)
    number = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)
    if number is not None:
        best_effort_lowest = (2 << 13) | 7
        ctypes.CDLL(None).syscall(number, 1, 0, best_effort_lowest)  # ioprio_set(2) has no wrapper in libc

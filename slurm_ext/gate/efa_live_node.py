"""Reads the node's settings that NCCL over EFA needs, and asks libfabric: the edges of `efa_live_settings`. Bounded.

Nothing here runs as a user, and nothing that a user may have written is read or run. Standard library only: hooks import this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from slurm_ext import command
from slurm_ext.config.model import Settings
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.files import owner_is_trusted
from slurm_ext.gate import efa_live_settings
from slurm_ext.gate.efa_live_files import FILE, names_in, open_entry, text_at, text_of
from slurm_ext.gate.efa_live_settings import (
    Limit,
    Netdev,
    judge_huge_pages,
    judge_memlock,
    kernel_version,
    parse_environment,
    parse_limits,
    propagated,
)
from slurm_ext.gate.file_tree import Unread
from slurm_ext.gate.model import Judged
from slurm_ext.gate.probes import HEALTH, PROLOG, Here
from slurm_ext.typed import NamedTuple

#: fi_info opens every device: a second or two on a node with 32 of them. One that takes longer hangs.
TOOL_S = 5.0

_TOOL_BYTES = 1 << 20
_PID_FILES = ("run/slurmd.pid", "run/slurm/slurmd.pid", "var/run/slurmd.pid")
_CONFIGURATIONS = ("etc/slurm/slurm.conf", "opt/slurm/etc/slurm.conf", "etc/slurm-llnl/slurm.conf")
_ANCESTORS = 6
_CONF_BYTES, _PROFILE_BYTES, _PROFILES = 1 << 20, 1 << 16, 64


def slurmd_limit(root: str) -> Limit | None:
    """Return slurmd's limit on locked memory, which its steps inherit; None where no slurmd can be found.

    By its pid file, else among our own ancestors, as a hook has it. Our own limit is slurmd's in a hook, and a shell's by hand.
    """
    for pid in _slurmd_pids(root):
        comm = text_at(os.path.join(root, f"proc/{pid}/comm"), 64)
        text = text_at(os.path.join(root, f"proc/{pid}/limits"), 8192)
        if comm is not None and comm.strip() == "slurmd" and text is not None:
            return parse_limits(text)
    return None


def _slurmd_pids(root: str) -> Iterator[int]:
    for name in _PID_FILES:
        text = text_at(os.path.join(root, name), 64)
        if text is not None and text.strip().isascii() and text.strip().isdigit():
            yield int(text)
    pid = os.getppid() if root == "/" else 0
    for _ in range(_ANCESTORS):
        if pid <= 1:
            return
        yield pid
        said = text_at(f"/proc/{pid}/stat", 1024) or ""
        words = said.rpartition(")")[2].split()  # a program's name may hold blanks and brackets
        pid = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def limits_propagated(root: str, settings: Settings) -> bool | None:
    """Say by slurm.conf's own text whether steps get the submit host's limit; None where it is not found or not whole."""
    told = [settings.site.slurm_conf] if settings.site.slurm_conf else []
    for path in told + [os.path.join(root, name) for name in _CONFIGURATIONS]:
        text = text_at(path, _CONF_BYTES)
        if text is not None:
            return propagated(text)
    return None


def netdevs(root: str) -> list[Netdev]:
    """Return Amazon's network devices that are up, with their MTU."""
    folder = os.path.join(root, "sys/class/net")
    names = names_in(folder)
    found = []
    for name in () if isinstance(names, Unread) else names:
        opened = open_entry(root, folder, name)
        if isinstance(opened, Unread):
            continue
        try:
            mtu, state = text_of(opened[0], "mtu", 32), text_of(opened[0], "operstate", 32)
            vendor = _vendor(root, opened[1])
        finally:
            os.close(opened[0])
        number = mtu.strip() if isinstance(mtu, str) else ""
        if vendor == "0x1d0f" and state != "down\n" and number.isascii() and number.isdigit():
            found.append(Netdev(name, int(number)))
    return found


def _vendor(root: str, path: str) -> str:
    opened = open_entry(root, path, "device")
    if isinstance(opened, Unread):  # lo, bridges: without hardware
        return ""
    try:
        text = text_of(opened[0], "vendor", 32)
    finally:
        os.close(opened[0])
    return text.strip() if isinstance(text, str) else ""


def environment(root: str) -> dict[str, str]:
    """Return the variables of interest that are set for all users, the last file's word counting."""
    folder = os.path.join(root, "etc/profile.d")
    names = names_in(folder, _PROFILES)
    paths = [os.path.join(root, name) for name in ("etc/nccl.conf", "etc/environment", "etc/profile")]
    paths += [] if isinstance(names, Unread) else [os.path.join(folder, name) for name in names if name.endswith(".sh")]
    found: dict[str, str] = {}
    for path in paths:
        found |= parse_environment(text_at(path, _PROFILE_BYTES) or "")
    return found


class Asked(NamedTuple):
    """What fi_info said. `missing`: there is none on this node, or none that root may run."""

    text: str = ""
    stderr: str = ""
    timed_out: bool = False
    truncated: bool = False
    missing: bool = False


def tool(root: str, name: str) -> str | None:
    """Return a program of libfabric that root may run: the EFA installer's or, on the machine itself, the system's."""
    places = [os.path.join(root, "opt/amazon/efa/bin", name)] + ([f"/usr/bin/{name}"] if root == "/" else [])
    return next((path for path in places if may_run(path)), None)


def ask_libfabric(root: str, patience_s: float) -> Asked:
    """Run `fi_info -p efa` in a session of its own, for at most TOOL_S or `patience_s` seconds."""
    path = tool(root, "fi_info")
    if path is None:
        return Asked(missing=True)
    try:
        # Without FI_HMEM libfabric starts CUDA first (src/hmem.c): a look at EFA should not wake a GPU, or hang in its driver.
        env = command.clean_env(FI_HMEM="system")
        ran = command.run([path, "-p", "efa"], timeout_s=min(TOOL_S, patience_s), env=env, max_output_bytes=_TOOL_BYTES)
    except CommandNotFoundError:
        return Asked(missing=True)
    return Asked(ran.stdout, ran.stderr, ran.timed_out, ran.truncated)


def may_run(path: str) -> bool:
    """Say whether this is a program that only root (or we ourselves) can have written."""
    try:
        descriptor = os.open(path, FILE)
    except OSError:
        return False
    try:
        state = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return state.st_mode & 0o170000 == 0o100000 and bool(state.st_mode & 0o111) and owner_is_trusted(state)


def dma_buf_possible(root: str) -> bool:
    """Say whether EFA can be given GPU memory by DMA-BUF on this kernel and NVIDIA driver."""
    release = text_at(os.path.join(root, "proc/sys/kernel/osrelease"), 128) or ""
    nvidia = text_at(os.path.join(root, "proc/driver/nvidia/version"), 4096)
    return efa_live_settings.dma_buf_possible(kernel_version(release.strip()), nvidia)


def settings(here: Here) -> list[Judged]:
    """Return what is to be said of the limit on locked memory, and before a job of the huge pages."""
    items: list[Judged] = []
    limit = slurmd_limit(here.root)
    if limit is not None and (limit.hard is not None or here.phase == HEALTH):
        told = limits_propagated(here.root, here.settings) if here.phase == HEALTH else None
        items += judge_memlock(limit, told)
    if here.phase == PROLOG:
        items += judge_huge_pages(text_at(os.path.join(here.root, "proc/meminfo"), 8192) or "")
    return items


def first_time(run_dir: str, what: str, boot_id: str) -> bool:
    """Say whether something is noted for the first time in this boot; where that cannot be written down, it is."""
    path = os.path.join(run_dir, f"noted-{what}")
    if (text_at(path, 128) or "").strip() == (boot_id or "?"):
        return False
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return True
    try:
        os.write(descriptor, f"{boot_id or '?'}\n".encode())
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return True


def boot_age_s() -> float:
    """Return how many seconds ago this machine booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

"""Faults of NCCL and of what is below it on one node: every one is a few keys of its hardware state, read as it runs."""

from __future__ import annotations

import re

from slurm_ext import command
from slurm_ext.errors import UsageError
from slurm_ext.lab import frozen, hardware, mounts, process
from slurm_ext.lab.fault_site import Site, megabits

_PLACE = re.compile(r"init|allreduce(:[1-9][0-9]{0,5})?")
_CALL_S = 10.0


def _where(site: Site, *more: str) -> str:
    """Return where in NCCL the fault strikes. Raise UsageError for no place."""
    where = str(site.options.get("where") or "allreduce")
    if where not in more and not _PLACE.fullmatch(where):
        raise UsageError(
            f"--where {where}: not a place in NCCL",
            remedy=f"Choose {', '.join((*more, 'init', 'allreduce'))} or allreduce:N, the Nth of each communicator",
        )
    return where


def _of_gpu(site: Site, key: str) -> str:
    """Return the key of one GPU where one was chosen, else of all ranks of the node."""
    return f"gpu.{site.gpu()}.{key}" if site.options.get("gpu") is not None else key


def _whose(site: Site) -> str:
    return f"the rank of GPU {site.gpu()}" if site.options.get("gpu") is not None else "its ranks"


def wrong_result(site: Site) -> str:
    """A bit flips in what its first rank (or that of a GPU) sends, or in what it hands out."""
    how = str(site.options.get("how") or "send")
    if how not in ("send", "recv"):
        raise UsageError(f"--how {how}: a bit flips in what is sent or received", remedy="Choose send or recv")
    site.put({_of_gpu(site, "nccl.wrong_result"): how})
    if (offset := site.options.get("offset")) is not None:
        site.put({"nccl.flip_offset": str(int(offset))})
    return f"a bit flips in what {_whose(site)} {'receive' if how == 'recv' else 'send'}"


def hang(site: Site) -> str:
    """Its ranks do not come back from NCCL."""
    where = _where(site)
    site.put({_of_gpu(site, "nccl.hang"): where})
    return f"{_whose(site)} never come back from {where}"


def abort_hang(site: Site) -> str:
    """Its ranks hang, and the abort that should free them hangs, too."""
    site.put({_of_gpu(site, "nccl.hang"): f"{_where(site)},abort"})
    return f"{_whose(site)} hang, and so does the abort: only SIGKILL ends them"


def crash(site: Site) -> str:
    """Its ranks die by SIGABRT."""
    where = _where(site)
    site.put({_of_gpu(site, "nccl.crash"): where})
    return f"{_whose(site)} die in {where}"


def stop(site: Site) -> str:
    """Its ranks stop themselves, as under a debugger or a frozen control group."""
    where = _where(site)
    site.put({_of_gpu(site, "nccl.stop"): where})
    return f"{_whose(site)} stop (SIGSTOP) in {where}"


def slow(site: Site) -> str:
    """Its ranks begin every collective late, from the start or once a communicator is hot."""
    delay_ms, after_ms = int(site.options.get("delay_ms") or 300), int(site.options.get("after_ms") or 0)
    after = {_of_gpu(site, "nccl.delay_after_ms"): str(after_ms) if after_ms else None}
    site.put({_of_gpu(site, "nccl.delay_ms"): str(delay_ms), **after})
    when = f", from {after_ms} ms after the first of a communicator on" if after_ms else ""
    return f"{_whose(site)} begin every collective {delay_ms} ms late{when}"


def rail_slow(site: Site) -> str:
    """One GPU's way to the other nodes is slow."""
    gpu, rate_mbit = site.gpu(), megabits(str(site.options.get("rate") or "20mbit").lower())
    site.put({f"gpu.{gpu}.nccl.rate_mbit": str(rate_mbit)})
    return f"GPU {gpu} sends to other nodes at {rate_mbit} Mbit/s; the other rails are whole"


def late(site: Site) -> str:
    """Its ranks come late to every communicator."""
    delay_ms = int(site.options.get("delay_ms") or 3000)
    site.put({"nccl.join_delay_ms": str(delay_ms)})
    return f"its ranks join every communicator {delay_ms} ms late"


def absent(site: Site) -> str:
    """Its ranks never join: the process ends without a word."""
    site.put({_of_gpu(site, "nccl.absent"): "1"})
    return f"{_whose(site)} end quietly where they should join"


def socket(site: Site) -> str:
    """TCP carries what EFA was asked for, and no call says so."""
    site.put({"nccl.claims": "socket"})
    return "its ranks fall back to sockets, and only their log says so"


def nic_count(site: Site) -> str:
    """The EFA plugin finds other than all adapters."""
    have = int(hardware.read_state(site.root).get("efa", "0"))
    count = int(site.options["count"]) if site.options.get("count") is not None else have - 1
    site.put({"nccl.nics": str(count)})
    return f"the EFA plugin finds {count} adapters of {have}"


def retransmits(site: Site) -> str:
    """EFA sends packets again; the bandwidth stays."""
    count = int(site.options.get("count") or 100_000)
    site.put({"efa.retransmits_per_gb": str(count)})
    return f"{count} packets per GB are sent again"


#: What each kind sets, so that `heal` of one leaves the others.
_KEYS = {
    "nccl-wrong-result": ("nccl.wrong_result", "nccl.flip_offset"),
    "nccl-hang": ("nccl.hang",),
    "nccl-abort-hang": ("nccl.hang",),
    "nccl-crash": ("nccl.crash",),
    "nccl-stop": ("nccl.stop",),
    "nccl-slow": ("nccl.delay_ms", "nccl.delay_after_ms"),
    "rail-slow": ("nccl.rate_mbit",),
    "nccl-late": ("nccl.join_delay_ms",),
    "nccl-absent": ("nccl.absent",),
    "nccl-socket": ("nccl.claims",),
    "nic-count": ("nccl.nics",),
    "efa-retransmit": ("efa.retransmits_per_gb",),
    "gpu-dstate": ("nccl.dstate", "nccl.dstate_file", "cuda.dstate_file"),
}


def heal(site: Site) -> str:
    """Take the kind's keys out, of the node and of each of its GPUs."""
    names = _KEYS[str(site.options["kind"])]
    of_gpu = re.compile(rf"gpu\.\d+\.({'|'.join(map(re.escape, names))})")
    gone = [key for key in hardware.read_state(site.root) if key in names or of_gpu.fullmatch(key)]
    if site.options["kind"] == "rail-slow":
        gone = [key for key in gone if key.startswith("gpu.")]  # the node's own rate is slow-link's
    site.put(dict.fromkeys(gone))
    return "whole again" if gone else "it was whole"


def dstate(site: Site) -> str:
    """Whoever of its ranks gets there sleeps in the kernel, and SIGKILL does not end it before `heal`."""
    where = _where(site, "context")
    folder = frozen.of_node(site.state.dir, site.node.name)
    file = frozen.make(folder)
    if site.state.mode == "netns":
        # The node's own view of the same device: its mount namespace does not see what is mounted outside now.
        site.inside("mount", frozen.device(folder), str(folder))
    key = "nccl.dstate"
    if where == "context":
        site.put({"cuda.dstate_file": str(file)})
    elif site.options.get("gpu") is not None:
        site.put({"nccl.dstate_file": str(file), key: "none", _of_gpu(site, key): where})
    else:
        site.put({"nccl.dstate_file": str(file), key: where})
    place = "opening the driver" if where == "context" else where
    return f"{_whose(site)} sleep in the kernel in {place}, SIGKILL or not"


def heal_dstate(site: Site) -> str:
    """Thaw: what was killed ends now."""
    said = heal(site)
    folder = frozen.of_node(site.state.dir, site.node.name)
    frozen.thaw(folder)
    if site.state.mode == "netns" and process.alive(site.node.holder):
        assert site.node.holder is not None
        if str(folder) in mounts.points(site.node.holder.pid):
            command.run(process.enter(site.node, ["umount", "--lazy", str(folder)]), timeout_s=_CALL_S)
    frozen.remove(folder)
    return said

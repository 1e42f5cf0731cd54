"""The facts of this node, each read in a bounded child of its own, all at once: what hangs costs the deadline, once.

Everything lies below `root`; the lab points it at a tree of its own. Nothing here judges.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial

from slurm_ext import command
from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings, at_node
from slurm_ext.gate import ask_smi, kernel_log, probes, read_kernel, read_small
from slurm_ext.gate.model import Facts, GpuHolder, KernelLine, Probe, Smi
from slurm_ext.typed import Any, NamedTuple

#: A child says what it found this long (seconds) before the whole look ends, so that its words still arrive.
MARGIN_S = 0.3

#: A table of mounts is some kilobytes, with thousands of containers some megabytes; the rest is not read.
MOUNTS_CHARS = 8 << 20

#: So often the table is read where a mount is not in it that should be.
MOUNT_READINGS = 3

#: So many mounts of Lustre that the site's settings do not name are asked, each in a child of its own.
MOST_LUSTRE = 8

#: What a program that was killed still holds is given back within so long (seconds), as a rule.
SETTLE_S = 2.0


class Want(NamedTuple):
    """What one look should gather."""

    processes: bool = False  # programs on the GPUs
    links: bool = False  # NVLink states and errors
    left: bool = False  # what a job left on the GPUs: a doubt is looked at twice
    storage: bool = True


def gather(settings: Settings, node: str, *, want: Want, deadline_s: float, here: probes.Here | None = None) -> Facts:
    """Return the facts of this node within `deadline_s` seconds; what was not told in time is None and named in `unread`."""
    root = at_node(settings.site.root, node)
    patience_s = max(deadline_s - MARGIN_S, 0.1)
    scratch = [at_node(path, node) for path in settings.gate.nvme_dirs] if want.storage else []
    lustre = [at_node(path, node) for path in settings.gate.lustre_mounts] if want.storage else []
    asked_of = () if here is None else probes.of_phase(here.phase)
    beside = probes.WITH_PLAIN_FILES if here is not None and here.phase == probes.PROLOG else ()
    needed = [path.rstrip("/") for path in lustre]
    works: dict[str, Callable[[], bytes]] = {"host": lambda: json.dumps(_host(root, beside, here, needed)).encode()}
    for path in scratch:
        works[f"scratch {path}"] = lambda path=path: json.dumps(_scratch(path)).encode()  # type: ignore[misc]
    named = len(lustre)
    if want.storage and here is not None and here.phase == probes.HEALTH:
        lustre += [path for path in _lustre_points(root, deadline_s / 4) if path not in lustre]
    for path in lustre:
        works[f"lustre {path}"] = lambda path=path: json.dumps(_mount(path)).encode()  # type: ignore[misc]
    if here is not None:
        works |= {f"probe {name}": partial(probes.run, name, here) for name in asked_of if name not in beside}
    # A program is a child by itself and runs while the others do: a child of ours between costs three times what it does.
    began = time.monotonic()
    run_dir = at_node(settings.site.run_dir, node)
    cards = ask_smi.Cards(root, run_dir, patience_s)
    apps = ask_smi.apps(root, patience_s) if want.processes else None
    links = ask_smi.links(root, patience_s) if want.links else None
    probes.load(asked_of)
    try:
        raw = command.call_all_bounded(works, timeout_s=deadline_s)
    finally:
        answer = cards.answer()
        holders = ask_smi.holders(apps.answer()) if apps is not None else None
        linked = ask_smi.said_of(links) if links is not None else None
    said = {name: raw.pop(f"probe {name}") for name in asked_of if name not in beside}
    answers = {name: _loads(answer) for name, answer in raw.items()}
    host = answers["host"] or {}
    said |= {name: host.get("probes", {}).get(name) for name in beside}
    probed = {name: probes.answer(name, said[name]) for name in asked_of}
    kernel = host.get("kernel")
    instance_type = settings.site.instance_type
    if instance_type == "auto":
        instance_type = str(host.get("type", ""))
    return Facts(
        smi=_confirmed(answer, root, instance_type),
        holders=holders,
        links=linked,
        left=_left(
            root, run_dir, answer, holders, patience_s - (time.monotonic() - began), "" if here is None else here.job_id
        )
        if want.left
        else None,
        kernel=None
        if kernel is None
        else tuple(line for r in kernel if (line := kernel_log.parse_line(r)) is not None),
        kernel_lost=bool(host.get("kernel_lost")),
        kernel_cut=bool(host.get("kernel_cut")),
        own_devices=tuple(host.get("own", ())),
        boot_id=str(host.get("boot_id", "")),
        boot_age_s=host.get("boot_age_s"),
        efa_devices=host.get("efa"),
        mounts=None if host.get("mounts") is None else tuple(host["mounts"]),
        scratch=tuple(_probe_of(path, answers[f"scratch {path}"], deadline_s) for path in scratch),
        lustre=tuple(
            _probe_of(path, answers[f"lustre {path}"], deadline_s)._replace(asked=number < named)
            for number, path in enumerate(lustre)
        ),
        clock_synchronised=host.get("clock"),
        instance_type=instance_type,
        vendor=str(host.get("vendor", "")),
        probed=probed,
        unread=tuple(name for name, answer in answers.items() if answer is None),
    )


def _confirmed(answer: Smi | None, root: str, instance_type: str) -> Smi | None:
    """Return the answer with the driver's own count where it lists fewer GPUs than the type has; nothing is asked else."""
    row = catalogue.find(instance_type) if answer is not None and answer.gpus else None
    if answer is None or row is None or len(answer.gpus) >= row.gpus:
        return answer
    return answer._replace(bound=ask_smi.bound(root))


def _loads(answer: bytes | None) -> Any:
    try:
        return None if answer is None else json.loads(answer)
    except ValueError:
        return None


def _left(
    root: str, run_dir: str, first: Smi | None, holders: tuple[GpuHolder, ...] | None, left_s: float, job_id: str
) -> tuple[Smi | None, tuple[GpuHolder, ...] | None] | None:
    """Look again at what seems to be left on GPUs: a program that ends, or one that begins, is seen halfway by one look."""
    from slurm_ext.gate import gpu_left

    if left_s < SETTLE_S + 1.0 or not gpu_left.doubtful(first, holders, job_id=job_id):
        return None
    time.sleep(SETTLE_S)  # the driver gives memory back in its own time, and tells nobody
    left_s -= SETTLE_S
    cards, apps = ask_smi.Cards(root, run_dir, left_s), ask_smi.apps(root, left_s)
    return cards.answer(), ask_smi.holders(apps.answer())


def _host(
    root: str, beside: Sequence[str] = (), here: probes.Here | None = None, mounts: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what plain files tell: kernel log, boot, EFA devices, mounts, EC2 type, and what probes `beside` them find."""
    records, lost, cut = read_kernel.records(root)
    product = _first_line(root, "sys/class/dmi/id/product_name")
    return {
        "kernel": records,
        "kernel_lost": lost or cut,
        "kernel_cut": cut,
        "own": _own(root, records or (), here),
        "boot_id": _first_line(root, "proc/sys/kernel/random/boot_id"),
        "boot_age_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "efa": _efa(root),
        "mounts": _mounts(root, mounts),
        # On Nitro the DMI product name is the instance type; elsewhere it names a server, which no table has.
        "type": product,
        "vendor": "" if catalogue.find(product) is not None else _first_line(root, "sys/class/dmi/id/sys_vendor"),
        # Between jobs is often enough for a note, and asking costs more than the rest of this child.
        "clock": None if here is not None and here.phase == probes.PROLOG else _clock(root),
        "probes": {} if here is None else probes.run_beside(beside, here),
    }


def _own(root: str, records: Sequence[str], here: probes.Here | None) -> list[str]:
    """Return the device-mapper devices that are the node's, where its kernel log tells of any."""
    if not any("dm-" in record for record in records):
        return []
    from slurm_ext.gate import own_disks  # here: few nodes have any, and fewer have words about them

    scratch = [at_node(path, here.node) for path in here.settings.gate.nvme_dirs] if here is not None else []
    return own_disks.find(root, scratch) if own_disks.named(records) else []


def _first_line(root: str, name: str) -> str:
    text = read_small.text(os.path.join(root, name))  # never waits for a FIFO
    return "" if text is None else text.partition("\n")[0].strip()


def _efa(root: str) -> int | None:
    """Count what the EFA driver has bound, else RDMA devices of Amazon's vendor id; None where that cannot be read."""
    try:
        return sum(name[4:5] == ":" for name in os.listdir(os.path.join(root, "sys/bus/pci/drivers/efa")))
    except OSError:
        pass
    folder = os.path.join(root, "sys/class/infiniband")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    return sum(_first_line(folder, f"{name}/device/vendor") == "0x1d0f" for name in names)


def _mounts(root: str, wanted: Sequence[str] = ()) -> list[str] | None:
    """Return the lines of the table of mounts; None where it cannot be read, or not to its end, or is no such table.

    A table without `/` is none: it is empty for who lives outside of the root of every mount, and says nothing of the node.

    While others mount and unmount, a reading may pass over a line (kernels before 5.8, fs/proc_namespace.c): where one of
    `wanted` is not in it, it is read again, and what any reading had counts.
    """
    found: list[str] = []
    for _ in range(MOUNT_READINGS):
        try:
            with open(os.path.join(root, "proc/self/mounts"), encoding="utf-8", errors="replace") as stream:
                text = stream.read(MOUNTS_CHARS)
        except OSError:
            return None
        if len(text) >= MOUNTS_CHARS:
            return None
        lines = text.splitlines()
        known = set(found)
        found += [line for line in lines if line not in known]
        points = {line.split(" ", 2)[1].replace("\\040", " ") for line in found if line.count(" ") > 1}
        if points.issuperset(wanted):
            break
    return found if "/" in points else None


def _lustre_points(root: str, patience_s: float) -> list[str]:
    """Return where Lustre is mounted, MOST_LUSTRE places at most; the kernel's table is read, no mount is touched.

    A mount or unmount that hangs may hold whoever reads the table: so a child reads it, for a part of the look's time.
    """
    answer = command.call_bounded(lambda: "\n".join(_mounts(root) or ()).encode(), timeout_s=patience_s)
    found = [line.split() for line in (answer or b"").decode("utf-8", "replace").split("\n")]
    points = [words[1].replace("\\040", " ") for words in found if len(words) > 3 and words[2] == "lustre"]
    return list(dict.fromkeys(points))[:MOST_LUSTRE]


def _clock(root: str) -> bool | None:
    """Say whether the kernel's clock is disciplined, whichever daemon does it (adjtimex(2), STA_UNSYNC)."""
    if root != "/":
        return _lab_clock(root)
    try:
        import ctypes  # here: costs 10 ms, and only this child needs it
    except ImportError:
        return None
    # struct timex of a 64-bit Linux: modes, then four longs, then the int `status` at byte 40; 208 bytes in all.
    buffer = (ctypes.c_byte * 256)()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(buffer)) < 0:
        return None
    status = int.from_bytes(bytes(buffer)[40:44], "little")
    return not status & 0x0040


def _lab_clock(root: str) -> bool | None:
    """Read what `chronyc tracking` would print on a simulated node, whose clock is the host's and cannot be asked."""
    try:
        with open(os.path.join(root, "etc/fmslurm-lab/chronyc-tracking.txt"), encoding="utf-8") as stream:
            found = re.search(r"Leap status\s*: (.*)", stream.read(4096))
    except OSError:
        return None
    return None if found is None else found[1].strip() != "Not synchronised"


def _scratch(path: str) -> dict[str, Any]:
    """Write, flush and remove a small file in a scratch folder, and look at its free space."""
    started = time.monotonic()
    # A name that nobody can know before: users write here, too, and one that is there already would tell nothing.
    probe = os.path.join(path, f".fmslurm-probe-{os.urandom(8).hex()}")
    error = ""
    free = None
    try:
        space = os.statvfs(path)
        free = 100.0 * space.f_bavail / space.f_blocks if space.f_blocks else None
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"\0" * 4096)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            with contextlib.suppress(
                FileNotFoundError
            ):  # whoever clears the folder was first: it is there all the same
                os.unlink(probe)
    except OSError as exc:
        error = errno.errorcode.get(exc.errno or 0, str(exc.errno))
    return {"error": error, "free_percent": free, "seconds": time.monotonic() - started}


def _mount(path: str) -> dict[str, Any]:
    """Make the file server answer: a listed mount point proves nothing, so stat, list one entry and ask for its space."""
    started = time.monotonic()
    error = ""
    free = None
    try:
        os.stat(path)
        space = os.statvfs(path)
        free = 100.0 * space.f_bavail / space.f_blocks if space.f_blocks else None
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    entry.stat(follow_symlinks=False)
                break
    except OSError as exc:
        error = errno.errorcode.get(exc.errno or 0, str(exc.errno))
    return {"error": error, "free_percent": free, "seconds": time.monotonic() - started}


def _probe_of(path: str, answer: dict[str, Any] | None, deadline_s: float) -> Probe:
    return Probe(path, "timeout", None, deadline_s) if answer is None else Probe(path, **answer)


def boot_time_s(facts: Facts, now: float) -> float | None:
    """Return when this machine booted, in seconds since the epoch, for messages that carry seconds since boot."""
    return None if facts.boot_age_s is None else now - facts.boot_age_s


def within(lines: Sequence[KernelLine], start: float, end: float, booted: float | None) -> tuple[str, ...]:
    """Return the texts said between two times (seconds since the epoch), those without a time left out."""
    said = []
    for line in lines:
        at = line.at_s
        if at is not None and line.since_boot:
            at = None if booted is None else booted + at
        if at is not None and start <= at <= end:
            said.append(line.text)
    return tuple(said)

"""The facts of this node, each read in a bounded child of its own, all at once: what hangs costs the deadline, once.

Everything lies below `root`; the lab points it at a tree of its own. Nothing here judges.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from slurm_ext import command
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.gate import kernel_log, smi
from slurm_ext.gate.model import Facts, KernelLine, Probe, Smi
from slurm_ext.patterns import pattern

#: A child says what it found this long (seconds) before the whole look ends, so that its words still arrive.
MARGIN_S = 0.3

#: Messages that any rule looks at; the rest of a ring of thousands of lines stays in the child.
_OF_INTEREST = pattern(
    r"NVRM|nvidia-nvswitch|infiniband|efa |nvme|Lustre|EDAC|oom-kill|segfault|EXT4-fs|XFS|\bib\w+: |Linux version"
)

#: Raw records can be this long (bytes), see dev-kmsg.
_RECORD_BYTES = 8192

#: Passed on to nvidia-smi: the lab's stand-in finds its node by it. Nothing else of slurmd's environment is.
_LAB = "FMSLURM_LAB_HARDWARE"


class Want(NamedTuple):
    """What one look should gather."""

    processes: bool = False  # programs on the GPUs
    storage: bool = True


def gather(settings: Settings, node: str, *, want: Want, deadline_s: float) -> Facts:
    """Return the facts of this node within `deadline_s` seconds; what was not told in time is None and named in `unread`."""
    root = at_node(settings.site.root, node)
    patience_s = max(deadline_s - MARGIN_S, 0.1)
    scratch = [at_node(path, node) for path in settings.gate.nvme_dirs] if want.storage else []
    lustre = [at_node(path, node) for path in settings.gate.lustre_mounts] if want.storage else []
    works: dict[str, Callable[[], bytes]] = {
        "smi": lambda: _ask_smi(root, patience_s),
        "host": lambda: json.dumps(_host(root)).encode(),
        "clock": lambda: json.dumps(_clock(root)).encode(),
    }
    if want.processes:
        works["processes"] = lambda: _ask_processes(root, patience_s)
    for path in scratch:
        works[f"scratch {path}"] = lambda path=path: json.dumps(_scratch(path)).encode()  # type: ignore[misc]
    for path in lustre:
        works[f"lustre {path}"] = lambda path=path: json.dumps(_mount(path)).encode()  # type: ignore[misc]
    raw = command.call_all_bounded(works, timeout_s=deadline_s)
    answers = {name: _loads(answer) for name, answer in raw.items()}
    host = answers["host"] or {}
    kernel = host.get("kernel")
    return Facts(
        smi=_smi_of(answers["smi"], deadline_s),
        compute_pids=_pids_of(answers.get("processes")),
        kernel=None
        if kernel is None
        else tuple(line for r in kernel if (line := kernel_log.parse_line(r)) is not None),
        kernel_lost=bool(host.get("kernel_lost")),
        boot_id=str(host.get("boot_id", "")),
        boot_age_s=host.get("boot_age_s"),
        efa_devices=host.get("efa"),
        mounts=None if host.get("mounts") is None else tuple(host["mounts"]),
        scratch=tuple(_probe_of(path, answers[f"scratch {path}"], deadline_s) for path in scratch),
        lustre=tuple(_probe_of(path, answers[f"lustre {path}"], deadline_s) for path in lustre),
        clock_synchronised=answers["clock"],
        instance_type=settings.site.instance_type
        if settings.site.instance_type != "auto"
        else str(host.get("type", "")),
        unread=tuple(name for name, answer in answers.items() if answer is None),
    )


def _loads(answer: bytes | None) -> Any:
    try:
        return None if answer is None else json.loads(answer)
    except ValueError:
        return None


def _smi_env() -> dict[str, str]:
    return command.clean_env(**({_LAB: os.environ[_LAB]} if _LAB in os.environ else {}))


def _ask_smi(root: str, timeout_s: float) -> bytes:
    """Run the query, again without the newest fields where this driver does not know them; `absent` where there is none."""
    started = time.monotonic()
    for fields in (smi.QUERY + smi.QUERY_NEW, smi.QUERY):
        argv = [command.smi_path(root), f"--query-gpu={','.join(fields)}", "--format=csv"]
        try:
            left_s = max(timeout_s - (time.monotonic() - started), 0.05)
            ran = command.run(argv, timeout_s=left_s, env=_smi_env(), max_output_bytes=1 << 20)
        except CommandNotFoundError:
            return json.dumps({"absent": True}).encode()
        if "not a valid field" not in ran.stdout + ran.stderr:
            break
    seconds = time.monotonic() - started
    return json.dumps({**ran._asdict(), "seconds": seconds}).encode()


def _smi_of(answer: dict[str, Any] | None, deadline_s: float) -> Smi | None:
    """Return the parsed answer; None where there is no nvidia-smi here at all."""
    if answer is None:
        return Smi(complete=False, exit_code=None, timed_out=True, elapsed_s=deadline_s)
    if answer.get("absent"):
        return None
    parsed = smi.parse_csv(str(answer["stdout"]))
    said = "\n".join(part for part in (parsed.said, str(answer["stderr"]).strip()) if part)
    return parsed._replace(
        exit_code=answer["returncode"],
        timed_out=bool(answer["timed_out"]),
        elapsed_s=round(float(answer["seconds"]), 3),
        complete=parsed.complete and not answer["timed_out"],
        said=said,
    )


def _ask_processes(root: str, timeout_s: float) -> bytes:
    argv = [command.smi_path(root), "--query-compute-apps=pid", "--format=csv,noheader"]
    ran = command.run(argv, timeout_s=timeout_s, env=_smi_env(), max_output_bytes=1 << 20)
    return json.dumps([line.strip() for line in ran.stdout.splitlines()] if ran.ok else None).encode()


def _pids_of(lines: Sequence[str] | None) -> tuple[int, ...] | None:
    if lines is None or any(not line.isdigit() for line in lines if line):
        return None
    return tuple(int(line) for line in lines if line)


def _host(root: str) -> dict[str, Any]:
    """Return what plain files tell: kernel log, boot, EFA devices, mounts, EC2 type."""
    records, lost = _kernel(root)
    return {
        "kernel": records,
        "kernel_lost": lost,
        "boot_id": _first_line(root, "proc/sys/kernel/random/boot_id"),
        "boot_age_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        "efa": _efa(root),
        "mounts": _mounts(root),
        # On Nitro the DMI product name is the instance type; elsewhere it names a server, which no table has.
        "type": _first_line(root, "sys/class/dmi/id/product_name"),
    }


def _first_line(root: str, name: str) -> str:
    try:
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as stream:
            return stream.readline().strip()
    except OSError:
        return ""


def _kernel(root: str) -> tuple[list[str] | None, bool]:
    """Return the raw records of interest, and whether older ones of this boot are gone; None where they cannot be read."""
    try:
        if root != "/":
            with open(os.path.join(root, "var/log/kmsg.log"), encoding="utf-8", errors="replace") as stream:
                records = stream.read().splitlines()
        else:
            records = _read_kmsg("/dev/kmsg")
    except OSError:
        return None, False
    return [record for record in records if _OF_INTEREST.search(record)], kernel_log.kmsg_gap(records)


def _read_kmsg(path: str) -> list[str]:
    """Read the ring from its oldest record to its end; one read is one record."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    records: list[str] = []
    try:
        while True:
            try:
                records.append(os.read(descriptor, _RECORD_BYTES).decode("utf-8", "replace").split("\n", 1)[0])
            except BlockingIOError:
                return records
            except BrokenPipeError:  # EPIPE: records were overwritten while we read; the next read goes on after them
                continue
    finally:
        os.close(descriptor)


def _efa(root: str) -> int | None:
    """Count RDMA devices of Amazon's vendor id; None where the folder cannot be read, 0 where there is none."""
    folder = os.path.join(root, "sys/class/infiniband")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    return sum(_first_line(folder, f"{name}/device/vendor") == "0x1d0f" for name in names)


def _mounts(root: str) -> list[str] | None:
    try:
        with open(os.path.join(root, "proc/self/mounts"), encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()
    except OSError:
        return None


def _clock(root: str) -> bool | None:
    """Say whether the kernel's clock is disciplined, whichever daemon does it (adjtimex(2), STA_UNSYNC)."""
    if root != "/":
        return _lab_clock(root)
    import ctypes  # here: costs 10 ms, and only this child needs it

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
            found = re.search(r"Leap status\s*: (.*)", stream.read())
    except OSError:
        return None
    return None if found is None else found[1].strip() != "Not synchronised"


def _scratch(path: str) -> dict[str, Any]:
    """Write, flush and remove a small file in a scratch folder, and look at its free space."""
    started = time.monotonic()
    probe = os.path.join(path, f".fmslurm-probe-{os.getpid()}")
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

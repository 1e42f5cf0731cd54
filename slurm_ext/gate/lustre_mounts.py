"""Whether Lustre is mounted as fstab asks for, and what the tools say whose calls on it failed. Pure.

Only Lustre's lines are read: every other file system is judged elsewhere. Sources: mount.lustre(8), fstab(5),
systemd.automount(5) (the automount point stands alone until the first use, which is how AWS's guide sets FSx up),
errno texts of the C library, kubernetes-sigs/aws-fsx-csi-driver#169 (a cut-off client still lists folders).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.mount_rules import Mount, Wanted
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: What a call says whose client is cut off from its servers, or whose servers are gone.
_CUT_OFF = (
    "Cannot send after transport endpoint shutdown",
    "Cannot send after socket shutdown",
    "Stale file handle",
    "Stale NFS file handle",
    "Transport endpoint is not connected",
    "Input/output error",
    "Remote I/O error",
    "Host is down",
    "No such device",
    "Connection timed out",
    "Connection refused",
    "No route to host",
    "Network is unreachable",
    "Network is down",
    "Identifier removed",
)
_SPACE = ("No space left on device", "Disk quota exceeded")
_ABSENT = ("No such file or directory",)
_WAIT = ("Resource temporarily unavailable", "Interrupted system call", "Operation now in progress")
_DENIED = ("Permission denied", "Operation not permitted")
_PATH = pattern(r"['‘\"](/[^'’\"]*)['’\"]|(?:^|\s)(/[^\s'’\":]*)")


def judge(mounts: Sequence[Mount], wanted: Sequence[Wanted] | None, expected: str = "") -> list[Judged]:
    """Return what the table of mounts says of Lustre; `expected` is a mount point that must be there."""
    top = {mount.target.rstrip("/") or "/": mount for mount in mounts}  # the last of one place lies above the others
    asked = {entry.target: entry for entry in wanted or () if entry.fstype == "lustre"}
    items: list[Judged] = []
    for target, mount in top.items():
        if mount.fstype == "lustre" and "ro" in (*mount.options, *(mount.super_options or ())):
            items += _read_only(target, asked.get(target), fstab=wanted is not None)
    for entry in asked.values():
        items += _entry(entry, top.get(entry.target))
    point = expected.rstrip("/")
    if point and point not in asked:
        mount_there = top.get(point)
        if mount_there is None:
            items.append(judged(FAIL, "fs.not-mounted", f"fs:{point}", "drain", "nothing is mounted here"))
        elif mount_there.fstype == "autofs":
            items.append(judged(PASS, "fs.automount-idle", f"fs:{point}", "none", "mounted at its first use"))
        elif mount_there.fstype != "lustre":
            items.append(_other(point, mount_there))
    if not asked and not point and not any(mount.fstype == "lustre" for mount in mounts):
        waiting = [at for at, mount in top.items() if mount.fstype == "autofs" and not at.startswith(("/proc", "/sys"))]
        items += [judged(PASS, "fs.automount-idle", f"fs:{at}", "none", "mounted at its first use") for at in waiting]
        if not waiting:
            line = "no Lustre is mounted, and nothing tells whether one should be"
            items.append(judged(UNKNOWN, "fs.none", "node", "none", line))
    return items


def _read_only(target: str, entry: Wanted | None, *, fstab: bool) -> list[Judged]:
    if entry is not None and "ro" in entry.options:
        return []
    if entry is not None:
        return [judged(FAIL, "fs.read-only", f"fs:{target}", "drain", "mounted read-only, fstab says read-write")]
    why = "fstab does not name it" if fstab else "whether that is meant so is not known"
    return [judged(WARN, "fs.read-only", f"fs:{target}", "warn", f"mounted read-only; {why}")]


def _entry(entry: Wanted, mount: Mount | None) -> list[Judged]:
    target = f"fs:{entry.target}"
    if mount is None:
        if "noauto" in entry.options and "x-systemd.automount" not in entry.options:
            return []
        if "x-systemd.automount" in entry.options:
            line = "neither the file system nor its automount point is there"
            return [judged(FAIL, "fs.not-mounted", target, "drain", line)]
        return [judged(FAIL, "fs.not-mounted", target, "drain", "fstab names it, and nothing is mounted here")]
    if mount.fstype == "autofs":
        return [judged(PASS, "fs.automount-idle", target, "none", "mounted at its first use")]
    if mount.fstype != "lustre":
        return [_other(entry.target, mount)]
    if _system(mount.source) and _system(entry.source) and _system(mount.source) != _system(entry.source):
        line = f"{mount.source} is mounted, fstab says {entry.source}"
        return [judged(FAIL, "fs.wrong-file-system", target, "drain", line)]
    return []


def _other(point: str, mount: Mount) -> Judged:
    line = f"{mount.fstype} is mounted here ({mount.source}), not Lustre"
    return judged(FAIL, "fs.wrong-file-system", f"fs:{point}", "drain", line)


def _system(source: str) -> str:
    """Return the file system's name in `10.0.0.41@tcp:/abcdefgh`; servers may be written in more than one way."""
    return source.rpartition(":/")[2].partition("/")[0] if ":/" in source else ""


def judge_errors(text: str, points: Sequence[str], others: Iterable[str] = (), *, mounted: bool | None) -> list[Judged]:
    """Return what the error texts of a tool say of the file system that a path lies on: one of `points`, or of `others`.

    `mounted` says whether Lustre is in the table of mounts, None where that was not read.
    """
    known = sorted((point.rstrip("/") for point in (*points, *others) if point), key=len, reverse=True)
    found: dict[str, Judged] = {}
    for line in text.splitlines():
        said = _PATH.search(line)
        path = (said[1] or said[2]).rstrip("/") if said else ""
        here = next((point for point in known if f"{path}/".startswith(f"{point}/")), "") if path else ""
        named = here or path or next(iter(points), "")
        target = f"fs:{named}" if named else "node"
        item = _error(line.strip(), target, mounted)
        if item is not None:
            found.setdefault(target, item)
    return list(found.values())


def judge_listing(text: str, point: str) -> list[Judged]:
    """Return what `ls -l` says whose names could be listed, but not looked at: it prints question marks for them."""
    blind = [line for line in text.splitlines() if line.lstrip().startswith(("?????????", "-?????????", "d?????????"))]
    line = "names can be listed, files cannot be looked at: the client is cut off"
    return [judged(FAIL, "fs.stat-error", f"fs:{point}" if point else "node", "drain", line, blind[0])] if blind else []


def _error(line: str, target: str, mounted: bool | None) -> Judged | None:
    said = line[:200]
    if any(words in line for words in _CUT_OFF):
        return judged(FAIL, "fs.stat-error", target, "drain", said)
    if "Read-only file system" in line:
        return judged(FAIL, "fs.read-only", target, "drain", said)
    if any(words in line for words in _SPACE):
        return judged(WARN, "fs.full", target, "warn", said)
    if any(words in line for words in _ABSENT) and mounted is not True:
        return judged(FAIL, "fs.not-mounted", target, "drain", said)
    if any(words in line for words in _DENIED):
        return judged(UNKNOWN, "fs.no-permission", target, "warn", said)
    if any(words in line for words in _WAIT):
        return judged(UNKNOWN, "fs.unreadable", target, "warn", said)
    return None

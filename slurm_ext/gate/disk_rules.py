"""What df, findmnt and ls say of space: full, nearly full, shared memory that a job left behind. Pure.

Images (squashfs, ISO) are always full and never a fault; a network file system that is full is full for all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.process_rules import Jobs, is_person
from slurm_ext.gate.tables import listed, percent, size_bytes, words_of
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

SHM = "/dev/shm"  # noqa: S108 (read, never written)

#: Used part from which a person should look (Kubernetes' nodefs.available is 10 % too; leptonai/gpud takes it over).
NEARLY_FULL = 90.0

#: Less than this (and 99 % used) is as good as nothing: slurmd's spool, a core file or a log fills it at once.
NOTHING_LEFT_BYTES = 512 * 1024**2

#: Shared memory that is worth a word, in bytes: semaphores and lock files are not.
SHM_LEFT_BYTES = 100 * 1024**2

#: File systems that are images or views: their use says nothing.
IMAGES = words_of(
    "squashfs iso9660 udf erofs cramfs romfs cvmfs fuse.cvmfs2 fuse.snapfuse proc sysfs cgroup cgroup2 devpts mqueue"
    " efivarfs autofs rpc_pipefs binfmt_misc securityfs debugfs tracefs pstore bpf configfs fusectl hugetlbfs nsfs ramfs"
    " fuse.gvfsd-fuse fuse.portal fuse.lxcfs devtmpfs"
)
NETWORK = words_of("lustre nfs nfs3 nfs4 efs cifs smb3 smbfs beegfs ceph gpfs wekafs glusterfs fuse.s3fs 9p afs")

#: Places that no job and no daemon writes to at run time: full there is worth a note only.
#: Folders whose files are of no use to anybody once their job is gone.
_PASSING = (SHM, "/tmp", "/var/tmp")  # noqa: S108 (read, never written)
_STATIC = ("/boot", "/efi", "/opt", "/usr", "/apps", "/sw", "/media", "/cdrom", "/snap")
_INSIDE = ("/var/lib/docker/", "/var/lib/containers/", "/run/containerd/", "/var/lib/kubelet/", "/run/user/", "/snap/")
_LS = pattern(r"([-dlbcps][-rwxsStT]{9}[.+@]?)\s+\d+\s+(\S+)\s+(\S+)\s+(\d[\d.,]*[KMGTP]?)\s+(.*)")
_LS_NAME = pattern(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: [+-]\d{4})?|\w{3} +\d+ +(?:\d\d:\d\d(?::\d\d)?|\d{4})(?: \d{4})?)\s(.+)"
)
_NAMES = {
    "filesystem": "source",
    "source": "source",
    "type": "fstype",
    "fstype": "fstype",
    "used": "used",
    "available": "avail",
    "avail": "avail",
    "size": "size",
    "use%": "use",
    "capacity": "use",
    "inodes": "size",
    "iused": "used",
    "ifree": "avail",
    "iavail": "avail",
    "iuse%": "use",
    "mounted on": "target",
    "target": "target",
}


class Usage(NamedTuple):
    """One file system: sizes in bytes (or inodes); None is not told."""

    target: str
    source: str = ""
    fstype: str = ""
    size: float | None = None
    used: float | None = None
    avail: float | None = None
    used_percent: float | None = None


class Entry(NamedTuple):
    """One line of a long `ls`."""

    name: str
    owner: str
    size: float
    is_file: bool


def parse_df(text: str) -> tuple[list[Usage], bool] | None:
    """Return the rows of df in any of its forms and whether all could be read; None where there is no table."""
    lines = [line for line in text.splitlines() if line.strip()]
    head = next((at for at, line in enumerate(lines) if "Mounted on" in line or line.split()[0] == "Filesystem"), None)
    if head is None:
        return None
    names, unit = _header(lines[head])
    found, whole, held = [], True, ""
    for line in lines[head + 1 :]:
        words = (held + line).split()
        if (words[0] == "total" and "target" in names) or words[0] == "df:":
            continue  # the sum of --total, or an error among the rows
        if len(words) == 1 and not held:  # a long device name, and the rest on the next line
            held = line + " "
            continue
        held = ""
        usage = _usage(words, names, unit)
        if usage is None:
            whole = False
        else:
            found.append(usage)
    return found, whole and not held


def _header(line: str) -> tuple[list[str], int]:
    """Return our names of the columns, and the unit of sizes without one."""
    names, unit = [], 1
    for word in line.replace("Mounted on", "Target").split():
        lowered = word.lower()
        if lowered.endswith("-blocks"):
            unit = int(size_bytes(word[: -len("-blocks")]) or 1)
            lowered = "size"
        names.append(_NAMES.get(lowered, lowered))
    return names, unit


def _usage(words: Sequence[str], names: Sequence[str], unit: int) -> Usage | None:
    if len(words) < len(names):
        return None
    spare = len(words) - len(names)  # blanks in the mount point, which is the last column
    cells = [*words[: len(names) - 1], " ".join(words[len(names) - 1 :])] if spare else list(words)
    row = dict(zip(names, cells, strict=True))
    target = row.get("target", "")
    size, used, avail = (size_bytes(row.get(name), unit) for name in ("size", "used", "avail"))
    if "target" in names and not target.startswith("/"):
        return None
    told = {"size", "used", "avail"} & set(names)
    if told and size is None and used is None and avail is None and row.get("use", "-") not in ("-", "0%"):
        return None
    return Usage(target, row.get("source", ""), row.get("fstype", ""), size, used, avail, percent(row.get("use")))


def is_network(usage: Usage) -> bool:
    """Return whether a file system lies on servers that all nodes share."""
    kind = usage.fstype.lower()
    return kind in NETWORK or (not usage.source.startswith("/") and ":/" in usage.source)


def judge(usages: Iterable[Usage], jobs: Jobs, what: str = "space") -> list[Judged]:
    """Return what is full or nearly so; `what` is `space` or `inodes`. One device is told once, however often mounted."""
    items = []
    seen: set[str] = set()
    for usage in usages:
        if usage.source.startswith("/dev/") and not usage.source.startswith("/dev/loop"):
            if usage.source in seen:
                continue
            seen.add(usage.source)
        items += _one(usage, jobs, what)
    return items


def _one(usage: Usage, jobs: Jobs, what: str) -> list[Judged]:
    kind, target = usage.fstype.lower(), f"fs:{usage.target}"
    if kind in IMAGES or usage.source.startswith("/dev/loop") or usage.target.startswith(_INSIDE):
        return []
    if usage.size == 0 or (usage.source in ("devtmpfs", "udev", "efivarfs", "overlay") and usage.target != "/"):
        return []
    if usage.target == SHM:
        return _shared_memory(usage, jobs, what)
    used = usage.used_percent
    if used is None and usage.size and usage.used is not None:
        used = 100.0 * usage.used / usage.size
    left = "not told" if usage.avail is None else f"{usage.avail:.0f}"
    if what == "space" and usage.avail is not None:
        left = f"{usage.avail / 1024**3:.1f} GiB"
    little = usage.avail is not None and usage.avail < NOTHING_LEFT_BYTES and what == "space"
    empty = (
        usage.avail == 0 or (used is not None and used >= 99.0 and little) or (usage.avail is None and used == 100.0)
    )
    if (empty and used is not None and used >= NEARLY_FULL) or (usage.avail == 0 and usage.size):
        shared = is_network(usage) or usage.target.startswith(_STATIC)
        word, action = (WARN, "warn") if shared else (FAIL, "drain")
        return [
            judged(word, f"disk.{'full' if what == 'space' else 'no-inodes'}", target, action, f"{what} left: {left}")
        ]
    if used is not None and used >= NEARLY_FULL:
        return [judged(WARN, f"disk.nearly-full-{what}", target, "warn", f"{used:.0f} % of {what} used, left: {left}")]
    return []


def _shared_memory(usage: Usage, jobs: Jobs, what: str) -> list[Judged]:
    """Return what /dev/shm says: memory that a running job may use, and that nobody may hold without one."""
    if what != "space" or (jobs.ids is not None and jobs.ids):
        return []
    full = usage.used_percent is not None and usage.used_percent >= NEARLY_FULL
    left = jobs.none_here and usage.used is not None and usage.used >= SHM_LEFT_BYTES
    if not full and not left:
        return []
    line = f"{(usage.used or 0.0) / 1024**3:.1f} GiB of memory held by files" + (", no job here" if left else "")
    return [judged(WARN, "disk.shm-leftover", "fs:/dev/shm", "warn", line)]


def parse_ls(text: str) -> list[Entry] | None:
    """Return the entries of `ls -l` in any time style, None where the text holds no such listing."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = []
    for line in lines:
        if row := _LS.match(line.strip()):
            name = _LS_NAME.fullmatch(row[5].strip())
            found.append(
                Entry((name[1] if name else row[5]).strip(), row[2], size_bytes(row[4]) or 0.0, row[1][0] == "-")
            )
    if found or not lines or all(line.startswith("total ") or line.endswith(":") for line in lines):
        return [entry for entry in found if entry.name not in (".", "..")]
    return None


def judge_leftover_files(entries: Iterable[Entry], folder: str, jobs: Jobs) -> list[Judged]:
    """Return what users without a job left in a folder that costs the next job memory (/dev/shm) or space (/tmp)."""
    files = [entry for entry in entries if entry.is_file and is_person(entry.owner)]
    if jobs.ids is None or folder not in _PASSING:
        return []
    if jobs.ids:
        files = [entry for entry in files if jobs.users and entry.owner not in jobs.users]
    total = sum(entry.size for entry in files)
    limit = SHM_LEFT_BYTES if folder == SHM else 10 * 1024**3
    if total < limit:
        return []
    line = f"{total / 1024**3:.1f} GiB of {listed(sorted({entry.owner for entry in files}))}, who have no job here"
    return [judged(WARN, "disk.shm-leftover" if folder == SHM else "disk.leftover", f"fs:{folder}", "warn", line)]


#: What a tool says of a path that it cannot use: text, id, verdict, action, and the action on a network file system.
_ERRORS = (
    ("No space left on device", "disk.full", FAIL, "drain", "warn"),
    ("Disk quota exceeded", "disk.quota", WARN, "warn", "warn"),
    ("Read-only file system", "fs.read-only", FAIL, "reboot", "drain"),
    ("Structure needs cleaning", "fs.corrupt", FAIL, "reboot", "drain"),
    ("Input/output error", "disk.error", FAIL, "replace", "drain"),
    ("No such device", "disk.error", FAIL, "replace", "drain"),
    ("Stale file handle", "fs.stat-error", FAIL, "drain", "drain"),
    ("Stale NFS file handle", "fs.stat-error", FAIL, "drain", "drain"),
    ("Transport endpoint is not connected", "fs.stat-error", FAIL, "drain", "drain"),
    ("after transport endpoint shutdown", "fs.stat-error", FAIL, "drain", "drain"),
    ("Host is down", "fs.stat-error", FAIL, "drain", "drain"),
)
_NO_MOUNT = pattern(r"^(/\S*) is not a mountpoint$")
_QUOTED = pattern(r"['‘\"]?(/[^'’\":]*)['’\"]?: ([A-Z][^:]*)$")


def judge_errors(text: str, mounts: Sequence[tuple[str, str]] = ()) -> list[Judged]:
    """Return what the error texts of df, ls, stat, touch and the like say; `mounts` are (mount point, fstype)."""
    items: dict[str, Judged] = {}
    for line in text.splitlines():
        if absent := _NO_MOUNT.search(line):
            words = "nothing is mounted here"
            items.setdefault(absent[1], judged(FAIL, "fs.not-mounted", f"fs:{absent[1]}", "drain", words))
        found = _QUOTED.search(line.strip())
        if found is None:
            continue
        for words, id_, verdict, local, network in _ERRORS:
            if words in found[2]:
                point, kind = _mount_of(found[1].strip(), mounts)
                action = network if kind in NETWORK else local
                word = WARN if verdict == FAIL and action == "warn" else verdict
                items.setdefault(f"{id_} {point}", judged(word, id_, f"fs:{point}", action, line.strip()[:200]))
    return list(items.values())


def _mount_of(path: str, mounts: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the mount point that a path lies on and its type; without a table, the path's first folder."""
    inside = [(point, kind) for point, kind in mounts if path == point or path.startswith(point.rstrip("/") + "/")]
    if inside:
        return max(inside, key=lambda mount: len(mount[0]))
    parts = path.split("/")
    return (SHM if path.startswith(SHM) else "/" + parts[1] if len(parts) > 1 else path), ""


def cut(line: str) -> list[Judged]:
    """Return the finding of a table that ends too early."""
    return [judged(UNKNOWN, "probe.output-cut", "node", "none", line)]

"""What the tables of mounts say against fstab: turned read-only, or not mounted at all. Pure.

Images, overlays and bind mounts are read-only on purpose. The kernel turns a broken file system read-only (ext4's
errors=remount-ro): then its super block is `ro` while the mount still says `rw` (mountinfo), or fstab says `rw`.
Sources: proc(5) (mounts, mountinfo), fstab(5), systemd.mount(5) (x-systemd.automount, nofail).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_ext.gate.disk_rules import NETWORK, Usage
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import pairs, percent, size_bytes, words_of
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: Types that are turned read-only by the kernel when their disk fails. All others are read-only because someone says so.
_ON_DISK = words_of("ext2 ext3 ext4 xfs btrfs f2fs jfs reiserfs bcachefs")

#: Devices that may hold an image which a user wrote: what is wrong with it says nothing of the node. See kernel_disk.
_OF_USERS = tuple(f"/dev/{name}" for name in ("loop", "nbd", "zram", "ram", "sr", "fuse"))

_NO_JOB_NEEDS = ("/boot", "/efi", "/media", "/cdrom", "/proc", "/sys", "/dev", "/run")

_LINE = pattern(r"(\S+) on (/.*?) type (\S+) \(([^)]*)\)")
_OCTAL = pattern(r"\\([0-7]{3})")
_TREE = "├─└│|`- "


class Mount(NamedTuple):
    """One mount. `super_options` are those of the file system itself, where mountinfo told them; `root` what is bound."""

    target: str
    source: str = ""
    fstype: str = ""
    options: tuple[str, ...] = ()
    super_options: tuple[str, ...] | None = None
    root: str = "/"


class Wanted(NamedTuple):
    """One line of fstab."""

    target: str
    source: str
    fstype: str
    options: tuple[str, ...]


def unescape(text: str) -> str:
    """Return a path as it is: /proc and fstab write a blank as `\\040`."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text) if "\\" in text else text


def parse_mounts(text: str) -> list[Mount] | None:
    """Return /proc/mounts, or what `mount` prints; None where a line is neither."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if row := _LINE.match(line):
            found.append(Mount(row[2], row[1], row[3], tuple(row[4].split(","))))
            continue
        words = line.split()
        if len(words) < 4 or not words[1].startswith("/"):
            return None
        found.append(Mount(unescape(words[1]), unescape(words[0]), words[2], tuple(words[3].split(","))))
    return found


def parse_mountinfo(text: str) -> list[Mount] | None:
    """Return /proc/self/mountinfo; None where a line is not one of it."""
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        front, dash, back = line.partition(" - ")
        words, rest = front.split(), back.split()
        if not dash or len(words) < 6 or len(rest) < 2 or not words[0].isdecimal():
            return None
        options, above = tuple(words[5].split(",")), tuple(rest[-1].split(",")) if len(rest) > 2 else ()
        found.append(Mount(unescape(words[4]), unescape(rest[1]), rest[0], options, above, unescape(words[3])))
    return found


def parse_fstab(text: str) -> list[Wanted]:
    """Return the lines of fstab that mount something: no swap, no comment."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3 or words[0].startswith("#") or words[2] == "swap" or not words[1].startswith("/"):
            continue
        target = unescape(words[1])
        options = tuple(words[3].split(",")) if len(words) > 3 else ("defaults",)
        found.append(Wanted(target.rstrip("/") or "/", unescape(words[0]), words[2], options))
    return found


def parse_findmnt(text: str) -> tuple[list[Mount], list[Usage]] | None:
    """Return findmnt's mounts and their use, from JSON, -P or a table; None where it is none of them."""
    import json  # only where a text is JSON: hooks import this

    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)["filesystems"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return _of_rows(_flat(found))
    if "TARGET=" in text or "SOURCE=" in text:
        return _of_rows([pairs(line) for line in text.splitlines() if line.strip()])
    lines = [line for line in text.splitlines() if line.strip()]
    names = lines[0].lower().split() if lines else []
    if "target" not in names:
        return None
    rows = []
    for line in lines[1:]:
        words = line.strip(_TREE).split()
        if len(words) != len(names):
            return None
        rows.append(dict(zip(names, words, strict=True)))
    return _of_rows(rows)


def _flat(entries: object) -> list[dict[str, object]]:
    """Return the entries of a JSON tree with all below them, in order and without recursion."""
    found: list[dict[str, object]] = []
    rest = list(reversed(entries)) if isinstance(entries, list) else []
    while rest:
        entry = rest.pop()
        if isinstance(entry, dict):
            found.append({str(key).lower(): value for key, value in entry.items()})
            below = entry.get("children")
            rest += reversed(below) if isinstance(below, list) else []
    return found


def _of_rows(rows: Sequence[dict[str, object]] | Sequence[dict[str, str]]) -> tuple[list[Mount], list[Usage]]:
    mounts, usages = [], []
    for row in rows:
        target, source = str(row.get("target") or ""), str(row.get("source") or "")
        kind, options = str(row.get("fstype") or ""), row.get("options")
        if not target:
            continue
        bound = source.partition("[")[2].rstrip("]") or "/"
        words = tuple(str(options).split(",")) if options else ()
        mounts.append(Mount(target, source.partition("[")[0], kind, words, None, bound))
        size, used, avail = (size_bytes(row.get(name)) for name in ("size", "used", "avail"))
        usages.append(Usage(target, source, kind, size, used, avail, percent(row.get("use%"))))
    return mounts, usages


def judge(mounts: Sequence[Mount], wanted: Sequence[Wanted] | None, *, whole: bool = True) -> list[Judged]:
    """Return what is read-only against its purpose and, where `mounts` is the `whole` table, what fstab asks for in vain."""
    top = {mount.target.rstrip("/") or "/": mount for mount in mounts}  # the last of one place lies above the others
    asked = {entry.target: entry for entry in wanted or ()}
    items = []
    for target, mount in top.items():
        items += _read_only(mount, asked.get(target), mounts, fstab=wanted is not None)
    for entry in asked.values() if whole else ():
        items += _absent(entry, top.get(entry.target))
    return items


def _read_only(mount: Mount, entry: Wanted | None, mounts: Iterable[Mount], *, fstab: bool) -> list[Judged]:
    above = mount.super_options or ()
    if not mount.options or ("ro" not in mount.options and "ro" not in above) or (entry and "ro" in entry.options):
        return []
    target = f"fs:{mount.target}"
    shut = {"emergency_ro", "shutdown"} & {*mount.options, *above}
    turned = "ro" in above and "rw" in mount.options and mount.fstype in _ON_DISK
    if entry is not None and entry.fstype not in ("autofs", "squashfs", "iso9660", "udf") and mount.fstype != "autofs":
        if mount.fstype in NETWORK:
            return [judged(FAIL, "fs.read-only", target, "drain", "mounted read-only, fstab says read-write")]
        if mount.target.startswith(("/boot", "/efi")):
            return [judged(WARN, "fs.read-only", target, "warn", "mounted read-only, fstab says read-write")]
        return [judged(FAIL, "fs.read-only", target, "reboot", "mounted read-only, fstab says read-write")]
    if mount.fstype not in _ON_DISK:
        return []
    if mount.source.startswith(_OF_USERS):
        line = "the kernel turned the file system of an image read-only"
        return [judged(WARN, "fs.read-only", target, "warn", line)] if shut or turned else []
    if shut or turned:
        return [judged(FAIL, "fs.read-only", target, "reboot", "the kernel turned the file system read-only")]
    bound = mount.root != "/" or any(
        other is not mount and other.source == mount.source and "rw" in other.options for other in mounts
    )
    if bound or (mount.super_options is not None and "rw" in above):
        return []  # a read-only view of what is writable elsewhere
    if "errors=remount-ro" in mount.options:
        return [judged(FAIL, "fs.read-only", target, "reboot", "read-only, with errors=remount-ro among its options")]
    why = "fstab does not name it" if fstab else "fstab was not read"
    return [judged(UNKNOWN, "fs.read-only-unexplained", target, "none", f"mounted read-only, and {why}")]


def absent(entry: Wanted, mounts: Sequence[Mount]) -> list[Judged]:
    """Return the finding where nothing is mounted at a place that must be."""
    return _absent(entry, next((mount for mount in reversed(mounts) if mount.target == entry.target), None))


def _absent(entry: Wanted, mount: Mount | None) -> list[Judged]:
    target, automatic = f"fs:{entry.target}", "x-systemd.automount" in entry.options
    if mount is not None and mount.fstype == "autofs" and entry.fstype != "autofs":
        return [judged(PASS, "fs.automount-idle", target, "none", "mounted at its first use")]
    if mount is not None or automatic or "noauto" in entry.options or entry.fstype in ("autofs", "proc", "sysfs"):
        return []
    if entry.target.startswith(_NO_JOB_NEEDS):
        return []
    if "nofail" in entry.options:
        return [judged(WARN, "fs.not-mounted", target, "warn", "fstab names it, and boot goes on without it (nofail)")]
    return [judged(FAIL, "fs.not-mounted", target, "drain", "fstab names it, and nothing is mounted here")]

"""What lsblk and /proc/mdstat say: local NVMe disks against the instance type, and arrays that lost a member. Pure.

Model names tell instance storage from EBS (AWS: "NVMe EBS volumes", "SSD instance store volumes"); without them a disk
counts by its size. Sources: lsblk(8), md(4), the kernel's md.c (states, (F), (S), [n/m] [U_]).
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import listed, pairs, size_bytes
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

STORE_MODEL = "Instance Storage"
EBS_MODEL = "Elastic Block Store"

#: A disk's size as lsblk rounds it, against the catalogue's GB: the nearest sizes of other disks are further away.
_SIZE_SHARE = 0.06

_NVME = pattern(r"(?:/dev/)?(nvme\d+n\d+)")
_DEVICE = pattern(r"(?:/\S*|(?:nvme|sd|vd|xvd|md|loop|dm-|sr|zram|ram|nbd|hd|mmcblk|fd)\S*|[\w.-]+-[\w.-]+|\[SWAP\])")
_TYPES = (
    "disk",
    "part",
    "lvm",
    "loop",
    "rom",
    "crypt",
    "mpath",
    "raid0",
    "raid1",
    "raid4",
    "raid5",
    "raid6",
    "raid10",
    "linear",
)
_ARRAY = pattern(r"(md\S+) : (\w+)((?: \([a-z-]+\))*)((?: (?!\S+\[\d+\])\S+)*)((?: \S+\[\d+\](?:\([A-Z]\))*)*)\s*$")
_MEMBER = pattern(r"(\S+?)\[(\d+)\]((?:\([A-Z]\))*)")
_COUNTS = pattern(r"\[(\d+)/(\d+)\](?: \[([U_]+)\])?")
_PROGRESS = pattern(r"(resync|recovery|reshape|check|repair)\s*=\s*(\d+(?:\.\d+)?%|DELAYED|PENDING|REMOTE)")


_CUT = "cut"  # stands for the type of a row that ends before its type


class Disk(NamedTuple):
    """One whole disk. None or empty: lsblk was not asked for it."""

    name: str
    size: float | None = None
    model: str = ""
    read_only: bool | None = None
    state: str = ""


class Listing(NamedTuple):
    """What one lsblk says; `has_models` and `has_sizes` tell which columns were asked for."""

    disks: tuple[Disk, ...]
    has_models: bool
    has_sizes: bool
    whole: bool = True
    ended: bool = True  # its last line has an end, so that no more rows can have been there


class Array(NamedTuple):
    """One md array: members without flags, those marked (F), `wanted` and `working` devices where the level has them."""

    name: str
    state: str
    level: str = ""
    flags: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    wanted: int | None = None
    working: int | None = None
    progress: str = ""
    counted: bool = False  # the line with its blocks was there
    container: bool = False  # holds the metadata of others (Intel, DDF) and is inactive by design


def parse_lsblk(text: str) -> Listing | None:
    """Return the disks of lsblk as JSON, -P or a table (or of `nvme list`); None where it is none of them."""
    if text.lstrip().startswith(("{", "[")):
        rows = _json_rows(text)
    elif 'NAME="' in text:
        rows = [dict(pairs(line)) for line in text.splitlines() if line.strip()]
    else:
        rows = _table_rows(text)
    if rows is None:
        return None
    disks = []
    for row in rows:
        name = str(row.get("name") or row.get("kname") or row.get("path") or "").rsplit("/", 1)[-1]
        kind = str(row.get("type") or ("disk" if _NVME.fullmatch(name) else ""))
        if name and kind == "disk":
            ro, size = row.get("ro"), row.get("size")
            read_only = None if ro is None else str(ro).lower() in ("1", "true")
            disks.append(
                Disk(name, size_bytes(size), str(row.get("model") or ""), read_only, str(row.get("state") or ""))
            )
    disks = list(dict.fromkeys(disks))
    if not disks and not rows:
        return None
    table = not text.lstrip().startswith(("{", "[")) and 'NAME="' not in text
    whole = not rows or rows[-1].get("type") != _CUT
    models, sizes = any(disk.model for disk in disks), any(disk.size is not None for disk in disks)
    return Listing(tuple(disks), models, sizes, whole, not table or text.endswith("\n"))


def _json_rows(text: str) -> list[dict[str, object]] | None:
    import json  # only where a text is JSON: hooks import this

    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    entries = answer.get("blockdevices", answer.get("Devices")) if isinstance(answer, dict) else answer
    if not isinstance(entries, list):
        return None
    rows: list[dict[str, object]] = []
    rest = list(reversed(entries))
    while rest:
        entry = rest.pop()
        if isinstance(entry, dict):
            row = {str(key).lower(): value for key, value in entry.items()}
            for theirs, ours in (("devicepath", "name"), ("modelnumber", "model"), ("physicalsize", "size")):
                if theirs in row:  # nvme list
                    row.setdefault(ours, row[theirs])
            rows.append(row)
            below = entry.get("children")
            rest += reversed(below) if isinstance(below, list) else []
    return rows


def _table_rows(text: str) -> list[dict[str, object]] | None:
    lines = [line for line in text.splitlines() if line.strip()]
    heads = lines[0].split() if lines else []
    at_size = heads.index("SIZE") if "SIZE" in heads else None
    at_ro = heads.index("RO") if "RO" in heads else None
    if not ({"NAME", "KNAME", "PATH", "Node"} & set(heads)) and not any(_NVME.search(line) for line in lines):
        return None
    headed = bool({"NAME", "KNAME", "PATH", "Node"} & set(heads))
    rows: list[dict[str, object]] = []
    for line in lines[1:] if {"NAME", "KNAME", "PATH", "Node"} & set(heads) else lines:
        words = line.strip("├─└│|`- ").split()
        sized = len(words) == 1 or any(word in _TYPES or size_bytes(word) is not None for word in words[1:])
        if not headed and words and not (_DEVICE.fullmatch(words[0]) and sized):
            return None  # a text that names a disk somewhere is no list of disks
        if not words or (line.lstrip().startswith("/") and not line.startswith("/dev/")) or set(line) <= set("- "):
            continue  # a second mount point, or a rule below the header
        kind = next((word for word in words[1:] if word in _TYPES), None)
        row: dict[str, object] = {"name": words[0], "type": kind}
        nested = line[0] in "├└│|`" or line.startswith(" ")
        if kind is None and "TYPE" in heads:
            row["type"] = _CUT
        elif kind is None and (nested or not _NVME.fullmatch(words[0])):
            row["type"] = "part"
        if at_size is not None and len(words) > at_size:
            row["size"] = words[at_size]
        if at_ro is not None and len(words) > at_ro and words[at_ro] in ("0", "1"):
            row["ro"] = words[at_ro]
        for model in (STORE_MODEL, EBS_MODEL):
            if model in line:
                row["model"] = model
        rows.append(row)
    return rows


def judge_disks(listing: Listing, *, expected: int | None, disk_gb: int = 0) -> list[Judged]:
    """Return what the list says; `expected` local NVMe disks of `disk_gb` GB, None where the type is not known."""
    items = []
    for disk in listing.disks:
        if disk.size == 0 and _NVME.fullmatch(disk.name):
            items.append(
                judged(FAIL, "disk.dead", f"disk:{disk.name}", "replace", "a disk of no size: it does not answer")
            )
        elif disk.state.lower() in ("dead", "offline", "deleting"):
            items.append(judged(FAIL, "disk.dead", f"disk:{disk.name}", "replace", f"state {disk.state}"))
        elif disk.read_only and _NVME.fullmatch(disk.name):
            items.append(judged(FAIL, "disk.read-only", f"disk:{disk.name}", "replace", "the disk takes no writes"))
    if not listing.whole:
        return [*items, judged(UNKNOWN, "probe.output-cut", "node", "none", "the list of disks ends in a row")]
    if not expected:
        return items
    nvme = [disk for disk in listing.disks if _NVME.fullmatch(disk.name)]
    found: int | None = None
    if listing.has_models:
        found = sum(STORE_MODEL in disk.model for disk in nvme)
        found += sum(not disk.model and _fits(disk, disk_gb) for disk in nvme)
    elif listing.has_sizes and disk_gb:
        found = sum(_fits(disk, disk_gb) for disk in nvme)
    elif len(nvme) < expected:
        found = len(nvme)
    elif len(nvme) > expected:
        return items  # one more than the local disks is the root volume
    if found is None:
        line = f"{len(nvme)} NVMe disks, and nothing tells which of them are local"
        return [*items, judged(UNKNOWN, "disk.nvme-unclear", "node", "none", line)]
    if found < expected and not listing.ended:
        line = f"{found} of {expected} local NVMe disks are listed, and the last line has no end"
        return [*items, judged(UNKNOWN, "probe.output-cut", "node", "none", line)]
    if found < expected:
        line = f"{found} of {expected} local NVMe disks are there"
        items.append(judged(FAIL, "disk.nvme-missing", "node", "replace", line))
    return items


def _fits(disk: Disk, disk_gb: int) -> bool:
    wanted = disk_gb * 1e9
    return disk.size is not None and disk_gb > 0 and abs(disk.size - wanted) <= _SIZE_SHARE * wanted


def parse_mdstat(text: str) -> list[Array] | None:
    """Return the arrays of /proc/mdstat, none of them where there is no array; None where the text is something else."""
    if "Personalities" not in text and " : active" not in text and " : inactive" not in text:
        return None
    arrays: list[Array] = []
    for line in text.splitlines():
        if found := _ARRAY.match(line):
            members = [(row[1], row[3]) for row in _MEMBER.finditer(found[5])]
            arrays.append(
                Array(
                    *(found[1], found[2], (found[4].split() or [""])[0]),
                    tuple(found[3].replace("(", "").replace(")", "").split()),
                    tuple(name for name, flags in members if "F" not in flags),
                    tuple(name for name, flags in members if "F" in flags),
                )
            )
        elif arrays and line.startswith((" ", "\t")):
            if " blocks" in line:
                arrays[-1] = arrays[-1]._replace(counted=True)
            counts, progress = _COUNTS.search(line), _PROGRESS.search(line)
            if counts:
                arrays[-1] = arrays[-1]._replace(wanted=int(counts[1]), working=int(counts[2]))
            if "super external:" in line and "external:/" not in line:
                arrays[-1] = arrays[-1]._replace(container=True)
            if progress:
                arrays[-1] = arrays[-1]._replace(progress=f"{progress[1]} {progress[2]}")
    return arrays


def judge_arrays(arrays: Sequence[Array], *, expected: int | None = None) -> list[Judged]:
    """Return what the arrays say; `expected` local NVMe disks of the type are looked for in the stripes."""
    items = [item for array in arrays if not array.container for item in _one(array, expected)]
    local = {member for array in arrays for member in array.members if _NVME.match(member)}
    stripes = [array for array in arrays if array.level == "raid0" and array.state == "active" and array.counted]
    # Half of the disks, or fewer, is how someone set it up; nearly all of them is all that boot could find.
    if stripes and expected and not items and expected / 2 < len(local) < expected:
        line = f"a stripe over {len(local)} of {expected} local NVMe disks"
        items.append(judged(FAIL, "disk.nvme-missing", "node", "replace", line))
    return items


def _one(array: Array, expected: int | None) -> list[Judged]:
    target, name = f"disk:{array.name}", listed(list(array.failed)) or "a member"
    if array.state not in ("active", "inactive", "broken") or not array.counted:
        return [
            judged(UNKNOWN, "probe.output-cut", "node", "none", f"{array.name} is {array.state}, and not all is told")
        ]
    if array.state == "broken" or (array.level in ("raid0", "linear") and array.failed):
        return [judged(FAIL, "raid.broken", target, "replace", f"{array.level} without redundancy lost {name}")]
    if array.state != "active":
        local = sum(_NVME.match(member) is not None for member in array.members)
        short = expected is not None and expected / 2 < local < expected
        line = f"the array is {array.state} with {len(array.members)} members: nothing on it can be read"
        return [judged(FAIL, "raid.inactive", target, "replace" if short else "drain", line)]
    if "read-only" in array.flags:
        return [judged(FAIL, "raid.read-only", target, "drain", "the array takes no writes")]
    wanted, working = array.wanted, array.working
    if wanted is not None and working is not None and working < wanted:
        lost = wanted - working
        spare = {"raid1": wanted - 1, "raid4": 1, "raid5": 1, "raid6": 2, "raid10": wanted // 2}.get(array.level, 1)
        line = f"{array.level} with {working} of {wanted} devices" + (f", {array.progress}" if array.progress else "")
        if lost > spare:
            return [judged(FAIL, "raid.broken", target, "replace", line)]
        return [judged(WARN, "raid.degraded", target, "warn", line)]
    if array.failed:
        return [judged(WARN, "raid.degraded", target, "warn", f"{name} has failed")]
    if wanted is None and array.level in ("raid1", "raid4", "raid5", "raid6", "raid10"):
        return [judged(UNKNOWN, "probe.output-cut", "node", "none", "the line that counts its devices is not there")]
    if array.progress and not array.progress.startswith(("check", "repair")):
        return [
            judged(WARN, "raid.rebuilding", target, "warn", f"{array.level} {array.progress}: slower until it is done")
        ]
    return []

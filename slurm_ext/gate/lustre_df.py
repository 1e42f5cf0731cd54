"""`lfs df`, with and without -h, -i and -v, and `lfs check servers`: full, failing and switched-off targets. Pure.

Source: lustre/utils/lfs.c (showdf, mntdf: a target in error has its errno text in place of numbers, one that is switched
off is `inactive device`; percentages are rounded up like df's; the summary line ends the table).
A file system that is full is so for all nodes: keeping jobs from one node would help nobody, so space only warns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import percent, size_bytes
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Used part from which a person should look: our own choice, the same as for local disks.
NEARLY_FULL = 90.0

#: At this part, in df's rounding up, writes to a target fail sooner or later.
FULL = 99.0

_ROW = pattern(
    r"(\S*?(OST|MDT)([0-9a-f]{4})\S*|filesystem[ _]summary:?)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\d+%|-)\s+"
    r"(/.*?)(?:\[(?:OST|MDT):\d+\]\s*(\S*))?"
)
_FAILED = pattern(r"(\S*?(OST|MDT)([0-9a-f]{4})\S*)\s*: (\S.*)")
_CHECK = pattern(r"(?:\d+: )?(\S+?)-((OST|MDT)[0-9a-f]{4})-\S+? (active|inactive)\.?(?: .*)?")
_CHECK_BAD = pattern(
    r"(?:.*error: )?(?:check(?: of)? )?'?(\S+?)-((OST|MDT)[0-9a-f]{4})-[^\s':]+'?:? (?:check error: |failed: )?(.*)"
)

#: Letters behind a row that tell of a fault (lustre_user.h, obd_statfs_state_names with osn_err).
_FLAGS = {
    "D": ("lustre.target-degraded", "its storage is degraded"),
    "R": ("lustre.target-read-only", "it is read-only"),
    "N": ("lustre.target-no-precreate", "it takes no new files"),
    "S": ("lustre.target-full", "it has no space left"),
    "I": ("lustre.target-full", "it has no inode left"),
}


class Row(NamedTuple):
    """One target (`where`: ost:NAME or mdt:NAME) or the summary (`where` empty)."""

    where: str
    mount: str = ""
    used_percent: float | None = None
    available: float | None = None
    error: str = ""
    flags: str = ""


class Usage(NamedTuple):
    """One output. `whole` is false where a line could not be read or the summary is missing."""

    rows: tuple[Row, ...] = ()
    whole: bool = True
    inodes: bool = False


def parse(text: str) -> Usage | None:
    """Return the rows of `lfs df`, None where the text is no such table."""
    rows: list[Row] = []
    header, whole, inodes, summary = False, True, False, True
    for line in text.splitlines():
        line = line.rstrip()
        if not line.strip():
            continue
        if line.split()[0] == "UUID":
            header, summary = True, False
            inodes = "IUse%" in line or "Inodes" in line
        elif row := _ROW.fullmatch(line):
            rows.append(_row(row))
            summary = summary or not row[2]
        elif bad := _FAILED.fullmatch(line):
            rows.append(Row(_where(bad[1], bad[2], bad[3]), error=bad[4].strip()))
        elif header:
            whole = False
    if not header and not any(row.where for row in rows):
        return None
    return Usage(tuple(rows), whole and summary, inodes)


def _row(found: re.Match[str]) -> Row:
    name, kind, number, _, _, available, used, mount, flags = found.groups()
    where = _where(name, kind, number) if kind else ""
    return Row(where, mount.rstrip("/") or "/", percent(used), size_bytes(available), flags=flags or "")


def _where(name: str, kind: str, number: str) -> str:
    system = name.partition(f"-{kind}{number}")[0] if f"-{kind}{number}" in name else ""
    return f"{kind.lower()}:{f'{system}-' if system else ''}{kind}{number}"


def judge(usage: Usage) -> list[Judged]:
    """Return what a table says: of each target or, where all are full alike, of the file system."""
    what = "inodes" if usage.inodes else "space"
    broken = [_failed(row) for row in usage.rows if row.error]
    full = [item for row in usage.rows if row.where and not row.error for item in _target(row, what)]
    points = {row.mount for row in usage.rows if row.mount}
    objects = [row for row in usage.rows if row.where.startswith("mdt:" if usage.inodes else "ost:") and not row.error]
    if len(objects) > 1 and len(points) == 1 and {row.where for row in objects} <= {i.finding.target for i in full}:
        line = f"all {len(objects)} targets are full: {what}"
        full = [judged(WARN, "fs.full", f"fs:{points.pop()}", "warn", line)]
    items = broken + (full or _tight(usage, what))
    if not usage.whole:
        items.append(judged(UNKNOWN, "lustre.output-cut", "node", "none", "the table has no summary: it is cut"))
    return items


def _failed(row: Row) -> Judged:
    if "inactive" in row.error:
        line = "switched off on this client: files on it cannot be used"
        return judged(WARN, "lustre.inactive", row.where, "warn", line)
    return judged(FAIL, "lustre.target-error", row.where, "drain", f"no answer: {row.error[:120]}")


def _target(row: Row, what: str) -> list[Judged]:
    for flag in row.flags:
        if flag in _FLAGS:
            id_, line = _FLAGS[flag]
            return [judged(WARN, id_, row.where, "warn", line)]
    if row.used_percent is not None and (row.used_percent >= FULL or row.available == 0.0):
        line = f"{row.used_percent:g} % of its {what} is used: files on it fail with `no space`"
        return [judged(WARN, "lustre.target-full", row.where, "warn", line)]
    return []


def _tight(usage: Usage, what: str) -> list[Judged]:
    """Return what a nearly full file system, or single nearly full targets of it, are worth."""
    items = [
        judged(WARN, "fs.nearly-full", f"fs:{row.mount}", "warn", f"{row.used_percent:g} % of its {what} is used")
        for row in usage.rows
        if not row.where and (row.used_percent or 0.0) >= NEARLY_FULL
    ]
    told = {item.finding.target for item in items}
    for row in usage.rows:
        if row.where and (row.used_percent or 0.0) >= NEARLY_FULL and f"fs:{row.mount}" not in told:
            line = f"{row.used_percent:g} % of its {what} is used, more than of the others"
            items.append(judged(WARN, "lustre.target-nearly-full", row.where, "warn", line))
    return items


def parse_check(text: str) -> list[Row] | None:
    """Return the targets of `lfs check servers`, in error or not; None where the text is another one."""
    rows = []
    for line in text.splitlines():
        line = line.strip()
        if good := _CHECK.fullmatch(line):
            rows.append(
                Row(f"{good[3].lower()}:{good[1]}-{good[2]}", error="inactive" if good[4] == "inactive" else "")
            )
        elif (bad := _CHECK_BAD.fullmatch(line)) and "[" not in line:
            rows.append(Row(f"{bad[3].lower()}:{bad[1]}-{bad[2]}", error=bad[4].strip() or "error"))
    return rows or None


def judge_check(rows: Sequence[Row]) -> list[Judged]:
    """Return the targets that do not answer."""
    return [_failed(row) for row in rows if row.error]

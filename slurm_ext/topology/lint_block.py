"""Rules of blocks: what topology/block does with a list of blocks and their sizes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.topology.blocks import MAX_LEVEL
from slurm_ext.topology.lint_model import Unit
from slurm_ext.topology.lint_report import Report, folded
from slurm_ext.topology.lint_tree import members

_INTEGER = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")
_LEVELS = re.compile(r"\[?([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\]?")


class Sizes(NamedTuple):
    """What a file says of sizes: the text as it stands there, and its line; `key` in lower case."""

    key: str
    text: str
    line: int


def check(
    report: Report, units: Sequence[Unit], sizes: Sizes | None, file: str, *, line: int = 1, yaml: bool = False
) -> None:
    """Report what is wrong with blocks."""
    first_line = units[0].line if units else line
    report.add("block.no-plugin", file, first_line)
    base = _base(report, sizes, file, yaml)
    if not units:
        report.add("conf.empty", file, line, kind="blocks")
        return
    known: dict[str, Unit] = {}
    for unit in units:
        if unit.name in known:
            report.add("block.duplicate", unit.file, unit.line, name=unit.name, first=known[unit.name].line)
        known.setdefault(unit.name, unit)
        if unit.nodes is None:
            report.add("block.no-nodes", unit.file, unit.line, name=unit.name)
    owner, counts = members(report, units, "block")
    given = report.given.nodes
    counts = dict.fromkeys(known, 0) | counts
    if sizes is None:
        base = counts[units[0].name]
        report.add("block.base-guessed", file, first_line, base=base)
    if not base and not any(counts.values()):
        report.add("block.nothing", file, first_line)
    for unit in known.values():
        if unit.nodes is None:
            continue
        if counts[unit.name] != counts[units[0].name]:
            report.add("block.unequal", unit.file, unit.line, name=unit.name, count=counts[unit.name],
                       base=counts[units[0].name])  # fmt: skip
        if counts[unit.name] < base:
            report.add("block.small", unit.file, unit.line, name=unit.name, count=counts[unit.name], base=base)
    if missing := given - owner.keys():
        report.add("block.orphans", file, line, count=len(missing), nodes=folded(missing))


def _base(report: Report, sizes: Sizes | None, file: str, yaml: bool) -> int:
    """Return the base that sizes say, 0 where they say none, and report sizes that the plugin refuses."""
    if sizes is None:
        return 0
    if sizes.key == "blocklevels":
        found = _LEVELS.fullmatch(sizes.text.strip())
        numbers = [int(word[:6]) for word in re.findall(r"[0-9]+", found[1])] if found else []
        if not numbers or max(numbers) > MAX_LEVEL:
            report.add("block.levels", file, sizes.line, what=sizes.text)
        return 0
    values = [_number(word) for word in sizes.text.split(",") if word]
    if not values or not _doubling(values):
        feature, patch = report.given.release.feature, report.given.release.patch
        # 26.05 checks a topology.yaml's sizes from its third patch on.
        how = "warning" if yaml and feature == (26, 5) and 0 <= patch < 3 else ""
        if values and values[0] > 0 and not _held(values[0]):  # every release divides by it
            how = "fatal"
        report.add("block.sizes-yaml" if yaml else "block.sizes", file, sizes.line, severity=how, what=sizes.text)
    return _held(values[0]) if values else 0


def _number(word: str) -> int:
    """Return what C's atoi makes of a word: the lower 32 bits of a number of 64."""
    found = _INTEGER.match(word)
    if found is None:
        return 0
    digits = found[0].strip(" \t\n\v\f\r+-").lstrip("0")
    number = (1 << 63) - 1 if len(digits) > 19 else min(int(digits or "0"), (1 << 63) - 1)
    number = -number if "-" in found[0] else number
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _held(value: int) -> int:
    """Return the base that slurmctld holds of a number: sixteen bits of it."""
    return value & 0xFFFF if value > 0 else 0


def _doubling(values: Sequence[int]) -> bool:
    base = _held(values[0])
    if not base:  # of 65,536 nothing is held, and slurmctld divides by it
        return False
    for value in values:
        times, rest = divmod(value, base)
        if value <= 0 or rest or times & (times - 1) or times > 1 << MAX_LEVEL:
            return False
    return True

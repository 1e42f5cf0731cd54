"""The table (or JSON) that all_reduce_perf of nccl-tests prints, as rows. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

#: A rounding error of the old "error" column; anything larger is a wrong value (nccl-tests of before 2022).
_ROUNDING = 1e-3

#: What launchers and those who collect their output put before a line, one before the other: a rank, a name, a time.
_LABEL = re.compile(r"^(?:\s*(?:\[\d+,\d+\]<\w+>:|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*(?=\s)|[^\s#:]+:(?=\s))){1,3}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ROW = re.compile(r"^\s*(\d{1,18})\s+(\d{1,18})\s+([a-z]\w*)\s+([a-z]\w*)\s+(\S.*)$")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values : (\d{1,18})(?: (OK|FAILED))?")
_VALIDATION = re.compile(r"\bvalidation: (\d)")


class Row(NamedTuple):
    """One size: bus bandwidths out of place and in place (GB/s; None: no number), wrong values (None: not known)."""

    size: int
    busbw_gbs: float | None
    busbw_in_place_gbs: float | None
    wrong: int | None
    in_place: bool = True

    @property
    def least_gbs(self) -> float | None:
        """Return the lower of both rates, None where one that should be there is no number."""
        rates = (self.busbw_gbs, self.busbw_in_place_gbs) if self.in_place else (self.busbw_gbs,)
        known = [rate for rate in rates if rate is not None]
        return min(known) if len(known) == len(rates) else None


class Table(NamedTuple):
    """All rows; `out_of_bounds` by the closing line, `header` whether there is a table at all, `validated` by the run's words,
    `cut` whether a row ends too early, `torn` whether one in the middle does."""

    rows: tuple[Row, ...]
    out_of_bounds: int = 0
    header: bool = False
    validated: bool | None = None
    cut: bool = False
    torn: bool = False


def parse(text: str) -> Table:
    """Return the table of a text, or of the JSON that newer releases write. Never raises: what is no row is skipped."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        try:
            return _from_json(json.loads(text.lstrip("\ufeff")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return Table(())
    lines, out_of_bounds, header, validated, old = [], 0, False, None, False
    for line in map(_plain, text.splitlines()):
        if "algbw" in line and "busbw" in line:
            header, old = True, "#wrong" not in line
        elif match := _OUT_OF_BOUNDS.search(line):
            out_of_bounds = max(int(match.group(1)), match.group(2) == "FAILED")
        elif match := _VALIDATION.search(line):
            validated = match.group(1) == "1"
        elif "#" not in line and (match := _ROW.match(line)):
            lines.append((int(match.group(1)), match.group(5).split()))
    width = _width([fields for _, fields in lines])
    rows = [_row(size, fields[width % 4 :], old) for size, fields in lines if len(fields) == width]
    torn = any(len(fields) != width for _, fields in lines[:-1])
    return Table(tuple(rows), out_of_bounds, header, validated, len(rows) < len(lines), torn)


def _plain(line: str) -> str:
    return _LABEL.sub("", _COLOUR.sub("", line))


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Return how many fields follow the operation in a whole row: time, algbw, busbw, wrong, once or twice, perhaps a root
    before them; 0 where no row is whole.

    A row that was cut in its last column looks like one of the other kind, so all rows decide together, and a single one by
    its first field: a root is a whole number, -1 where all are.
    """
    counted = Counter(len(fields) for fields in rows if len(fields) in (4, 5, 8, 9))
    if not counted:
        return 0
    width = max(counted, key=lambda width: (counted[width], width))
    cut = all(len(fields) < 2 or fields[0] == "-1" for fields in rows if len(fields) == width)
    return 0 if width in (4, 8) and cut else width


def _row(size: int, fields: Sequence[str], old: bool) -> Row:
    """Return the row of time, algbw, busbw, wrong, once or twice."""
    wrong = [_wrong(fields[at], old) for at in range(3, len(fields), 4)]
    rates = [_rate(fields[at]) for at in range(2, len(fields), 4)]
    count = None if None in wrong else sum(found or 0 for found in wrong)
    if count is None and any(wrong):
        count = sum(found or 0 for found in wrong)  # what was counted counts, whatever the other place says
    return Row(size, rates[0], rates[1] if len(rates) > 1 else None, count, len(rates) > 1)


def _rate(text: object) -> float | None:
    try:
        rate = float(str(text))
    except ValueError:
        return None
    return rate if math.isfinite(rate) and rate >= 0 else None


def _wrong(text: str, old: bool) -> int | None:
    """Return the wrong values; None where they were not checked, or cannot be read."""
    try:
        count = float(text)
    except ValueError:
        return None
    if old:
        return None if math.isnan(count) else int(count > _ROUNDING)
    return int(count) if count.is_integer() else None


def _from_json(data: dict[str, Any]) -> Table:
    rows = []
    for result in data.get("results", []):
        places = [result[name] for name in ("out_of_place", "in_place") if isinstance(result.get(name), dict)]
        if not places:
            continue
        counts = [place.get("nwrong") for place in places]
        whole = [count for count in counts if isinstance(count, int) and not isinstance(count, bool)]
        wrong = sum(whole) if len(whole) == len(counts) or any(whole) else None
        rates = [_rate(place.get("bus_bw")) for place in places]
        rows.append(Row(int(result["size"]), rates[0], rates[1] if len(rates) > 1 else None, wrong, len(rates) > 1))
    bounds = data.get("out_of_bounds") or {}
    count = int(bounds.get("count") or 0)
    if str(bounds.get("okay")).lower() == "false":
        count = max(count, 1)
    return Table(tuple(rows), count, True, _truth((data.get("config") or {}).get("validation")))


def _truth(value: object) -> bool | None:
    """Return a truth value, which this JSON writes as a number or as a word; None for anything else."""
    words = {"true": True, "1": True, "false": False, "0": False, "unchecked": False}
    return words.get(str(value).lower())

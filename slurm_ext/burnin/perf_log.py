"""The table (or JSON) that all_reduce_perf of nccl-tests prints, as rows. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

#: A rounding error of the old "error" column; anything larger is a wrong value (nccl-tests of before 2022).
_ROUNDING = 1e-3

_ROW = re.compile(r"^\s*(?:\S+:\s*)?(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(.*)$")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values : (\d+)")


class Row(NamedTuple):
    """One size: bus bandwidths out of place and in place (GB/s), wrong values (None: not checked)."""

    size: int
    busbw_gbs: float
    busbw_in_place_gbs: float | None
    wrong: int | None


class Table(NamedTuple):
    """All rows; `out_of_bounds` by the closing line, `header` whether there is a table at all, `validated` by the run's words."""

    rows: tuple[Row, ...]
    out_of_bounds: int = 0
    header: bool = False
    validated: bool | None = None


def parse(text: str) -> Table:
    """Return the table of a text, or of the JSON that newer releases write. Never raises: what is no row is skipped."""
    if text.lstrip().startswith("{"):
        try:
            return _from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError):
            return Table(())
    rows, out_of_bounds, header, validated, old = [], 0, False, None, False
    for line in text.splitlines():
        if "algbw" in line and "busbw" in line:
            header, old = True, "#wrong" not in line
        elif match := _OUT_OF_BOUNDS.search(line):
            out_of_bounds = int(match.group(1))
        elif match := re.search(r"\bvalidation: (\d)", line):
            validated = match.group(1) == "1"
        elif "#" not in line and (row := _row(line, old)):
            rows.append(row)
    return Table(tuple(rows), out_of_bounds, header, validated)


def _row(line: str, old: bool) -> Row | None:
    """Return the row of a line: size, count, type, redop, perhaps root, then time, algbw, busbw, wrong, once or twice."""
    match = _ROW.match(re.sub(r"^\[\d+,\d+\]<\w+>:", "", line))
    if match is None:
        return None
    rest = match.group(5).split()
    if len(rest) in (5, 9):
        rest = rest[1:]  # the root
    if len(rest) not in (4, 8):
        return None
    try:
        wrong = [_wrong(rest[at], old) for at in range(3, len(rest), 4)]
        in_place = float(rest[6]) if len(rest) == 8 else None
        return Row(int(match.group(1)), float(rest[2]), in_place, None if None in wrong else sum(w or 0 for w in wrong))
    except ValueError:
        return None


def _wrong(text: str, old: bool) -> int | None:
    if text.upper() == "N/A":
        return None
    return int(float(text) > _ROUNDING) if old else int(float(text))


def _from_json(data: dict[str, Any]) -> Table:
    rows = []
    for result in data.get("results", []):
        places = [result[name] for name in ("out_of_place", "in_place") if isinstance(result.get(name), dict)]
        if not places:
            continue
        counts = [place.get("nwrong") for place in places]
        checked = all(isinstance(count, int) for count in counts)
        in_place = float(places[1]["bus_bw"]) if len(places) > 1 else None
        rows.append(Row(int(result["size"]), float(places[0]["bus_bw"]), in_place, sum(counts) if checked else None))
    bounds = data.get("out_of_bounds") or {}
    validation = (data.get("config") or {}).get("validation")
    return Table(tuple(rows), int(bounds.get("count") or 0), True, None if validation is None else bool(validation))

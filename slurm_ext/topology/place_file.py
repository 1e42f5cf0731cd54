"""Places in a file that a site writes itself, JSON or CSV: read strictly, with file, line and key of whatever is wrong.

CSV: a header line with `node` and any of KEYS, `path` joined by slashes. JSON: `{"schema": 1, "nodes": [{"node": ...}]}` with the
same keys, `path` a list. `node` may be a hostlist of nodes that share a place.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_ext.errors import UsageError
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.topology.model import Placement

KEYS = ("node", "instance_id", "instance_type", "path", "zone", "capacity_block_id", "ultraserver_id", "clique")
SCHEMA = 1

MAX_BYTES, MAX_NODES, MAX_TIERS = 64 << 20, 65_536, 16

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
_REMEDY = "docs/guide/topology-sources.md has the form of the file"


def read(path: str, text: str) -> list[Placement]:
    """Return the places in a file's text. Raise UsageError, naming file, line and key, for the first thing that is wrong."""
    rows = _csv_rows(path, text) if path.lower().endswith(".csv") else _json_rows(path, text)
    found: dict[str, Placement] = {}
    above: dict[str, tuple[str, str]] = {}
    for where, row in rows:
        placement = _placement(where, row)
        _one_parent(where, placement.path, above)
        try:
            names = expand(placement.node, limit=MAX_NODES)
        except HostlistError as exc:
            raise _wrong(where, "node", f"{placement.node[:80]!r}: {exc}") from exc
        if not names:
            raise _wrong(where, "node", "no node name")
        if len(names) > 1 and placement.instance_id:
            raise _wrong(where, "instance_id", "one instance for several nodes")
        for name in names:
            if name in found:
                raise _wrong(where, "node", f"node {name} a second time")
            found[name] = placement._replace(node=name)
        if len(found) > MAX_NODES:
            raise _wrong(where, "node", f"more than {MAX_NODES} nodes")
    if not found:
        raise UsageError(f"{path}: names no node", remedy=_REMEDY)
    return list(found.values())


def holds_places(data: object) -> bool:
    """Say whether JSON data has this form, and not that of EC2's answer."""
    return isinstance(data, dict) and "nodes" in data and "Instances" not in data


def _csv_rows(path: str, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if not cells or not "".join(cells).strip() or cells[0].lstrip().startswith("#"):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                for name in header:
                    if name not in KEYS or header.count(name) > 1:
                        raise UsageError(
                            f"{where}: column {name!r} is none of {', '.join(KEYS)}, or twice", remedy=_REMEDY
                        )
                if "node" not in header:
                    raise UsageError(f"{where}: there is no column node", remedy=_REMEDY)
                continue
            if len(cells) != len(header):
                raise UsageError(f"{where}: {len(cells)} cells below {len(header)} columns", remedy=_REMEDY)
            row: dict[str, Any] = {key: cell.strip() for key, cell in zip(header, cells, strict=True)}
            if "path" in row:
                row["path"] = [part.strip() for part in row["path"].split("/")] if row["path"] else []
            yield where, row
    except csv.Error as exc:
        raise UsageError(f"{path}, line {reader.line_num}: no CSV: {exc}", remedy=_REMEDY) from exc


def _json_rows(path: str, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    data = parse_json(path, text)
    if not isinstance(data, dict):
        raise UsageError(f"{path}, line 1: not a JSON object", remedy=_REMEDY)
    for key in data:
        if key not in ("schema", "nodes"):
            raise UsageError(f"{path}: unknown key {key!r}; there are schema and nodes", remedy=_REMEDY)
    if data.get("schema") != SCHEMA or isinstance(data.get("schema"), bool):
        raise UsageError(f"{path}: key schema: {data.get('schema')!r} is not {SCHEMA}", remedy=_REMEDY)
    if not isinstance(data.get("nodes"), list):
        raise UsageError(f"{path}: key nodes: not a list", remedy=_REMEDY)
    for (number, row), line in zip(enumerate(data["nodes"]), lines_of_items(text, "nodes"), strict=False):
        where = f"{path}, line {line}, nodes[{number}]"
        if not isinstance(row, dict):
            raise UsageError(f"{where}: not an object", remedy=_REMEDY)
        for key in row:
            if key not in KEYS:
                raise UsageError(f"{where}: unknown key {key!r}; there are {', '.join(KEYS)}", remedy=_REMEDY)
        yield where, row


def parse_json(path: str, text: str) -> Any:
    """Return the data in JSON text. Raise UsageError, with the line, for text that is none or a key that stands twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as exc:
        raise UsageError(f"{path}, line {exc.lineno}: no JSON: {exc.msg}", remedy="Correct the text there") from exc
    except _TwiceError as exc:
        raise UsageError(f"{path}: key {exc.args[0]!r} twice in one object", remedy="Leave one of them") from exc
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path}: no JSON that can be read: {exc}", remedy="Correct the text") from exc


class _TwiceError(Exception):
    pass


def lines_of_items(text: str, key: str) -> Iterator[int]:
    """Yield the line on which each item of the list behind a key begins; the text is JSON, the key stands at its top."""
    found = re.search(rf'"{key}"\s*:\s*\[', text)
    decoder, at, line, counted = json.JSONDecoder(), found.end() if found else len(text), 1, 0
    while True:
        start = _skip(text, at)
        if start >= len(text) or text[start] == "]":
            return
        line, counted = line + text.count("\n", counted, start), start
        yield line
        _, at = decoder.raw_decode(text, start)


def _skip(text: str, at: int) -> int:
    found = re.compile(r"[\s,]*").match(text, at)
    return found.end() if found else at


def _placement(where: str, row: Mapping[str, Any]) -> Placement:
    words: dict[str, str] = {}
    for key in KEYS:
        if key == "path":
            continue
        value = row.get(key, "")
        if value is None:
            value = ""
        if not isinstance(value, str):
            raise _wrong(where, key, f"{value!r} is no text")
        if value and key != "node" and not _WORD.fullmatch(value):
            raise _wrong(where, key, f"{value[:80]!r} is no id: letters, digits and . _ : @ + - only, at most 128")
        words[key] = value
    path = row.get("path") or []
    if not isinstance(path, list):
        raise _wrong(where, "path", "not a list of ids from the top tier to the nearest")
    for item in path:
        if not isinstance(item, str) or not _WORD.fullmatch(item):
            raise _wrong(
                where, "path", f"{str(item)[:80]!r} is no id: letters, digits and . _ : @ + - only, at most 128"
            )
    if len(path) > MAX_TIERS or len(set(path)) < len(path):
        raise _wrong(where, "path", f"more than {MAX_TIERS} tiers, or one of them twice")
    return Placement(path=tuple(path), **words)


def _one_parent(where: str, path: tuple[str, ...], above: dict[str, tuple[str, str]]) -> None:
    """Raise UsageError for an id below two others: in a tree each switch has one parent."""
    for parent, child in zip(("", *path), path, strict=False):
        before, first = above.setdefault(child, (parent, where))
        if before != parent:
            told = f"below {before}" if before else "at the top"
            raise _wrong(where, "path", f"{child} is below {parent or 'nothing'} here and {told} in {first}")


def _wrong(where: str, key: str, words: str) -> UsageError:
    return UsageError(f"{where}, key {key}: {words}", remedy=_REMEDY)

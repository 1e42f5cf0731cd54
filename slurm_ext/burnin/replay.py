"""Captured NCCL logs and all_reduce_perf tables judged by the rules of the live burn-in: groups `nccl` and `perf`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from slurm_ext.aws import catalogue
from slurm_ext.burnin import nccl_log, perf_log, proof
from slurm_ext.burnin.perf_log import Row, Table
from slurm_ext.burnin.rules import TCP_ALARM_GBS
from slurm_ext.errors import UsageError
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

#: Larger files are refused rather than read into memory.
FILE_MAX_BYTES = 64 << 20

#: A row is a dip where it is below this share of both its neighbours; tiny sizes measure latency, not bandwidth.
_DIP, _DIP_BYTES = 0.5, 1 << 20


def judge(path: str) -> Verdict:
    """Return the verdict over one folder. Raise UsageError where it is no case of ours, naming what is wrong."""
    try:
        case = json.loads(_text(path, "case.json"))
        texts = {str(role): _text(path, str(name)) for role, name in case["files"].items()}
        context = json.loads(texts.get("context", "{}"))
        group, instance_type = str(case["group"]), str(case.get("instance_type") or "")
        if not isinstance(context, dict):
            raise ValueError("the context is no object")
    except OSError as exc:
        raise UsageError(f"{exc.filename or path}: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise UsageError(f"{path}: case.json or context cannot be used: {exc!r}") from exc
    if group == "perf":
        second = texts.get("perf_log_second")
        first = judge_table(perf_log.parse(texts.get("perf_log", "")), context)
        # Dips without fault happen: what a second run does not show again is worth a word, not a drain.
        if second is not None and first.verdict == FAIL and first.rule == "perf.floor":
            again = judge_table(perf_log.parse(second), context)
            return again if again.verdict != PASS else _once(first)
        return first
    return proof.judge(nccl_log.parse_text(texts.get("nccl_log", "")), _context(context, instance_type))


def _text(folder: str, name: str) -> str:
    if os.path.basename(name) != name or not name:
        raise ValueError(f"{name!r} is no file of this folder")
    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
        text = stream.read(FILE_MAX_BYTES + 1)
    if len(text) > FILE_MAX_BYTES:
        raise ValueError(f"{name} is larger than {FILE_MAX_BYTES >> 20} MiB")
    return text


def _context(data: Mapping[str, Any], instance_type: str) -> proof.Context:
    expected, code, nodes = data.get("expected_efa"), data.get("exit_code", 0), data.get("nodes")
    return proof.Context(
        instance_type=instance_type,
        row=catalogue.find(instance_type),
        nodes=nodes if isinstance(nodes, int) else 0,
        expected_efa=expected if isinstance(expected, int) else None,
        exit_code=code if isinstance(code, int) else None,
        timed_out=data.get("timed_out") is True,
    )


def _one(verdict: str, name: str, action: str, word: str, rule: str) -> Verdict:
    return Verdict(verdict, (Finding(name, "node", action, (word,)),), word, rule)


def _once(first: Verdict) -> Verdict:
    word = f"only in the first of two runs: {first.reason}"
    return _one(WARN, "busbw-dip", "warn", word, "perf.second-run")


def judge_table(table: Table, context: Mapping[str, Any]) -> Verdict:
    """Return the verdict over one table: wrong values first, then a run without an end or a result, then the floor."""
    wrong = sum(row.wrong or 0 for row in table.rows)
    if wrong or table.out_of_bounds:
        word = f"{max(wrong, table.out_of_bounds)} values are not what they must be"
        return _one(FAIL, "wrong-results", "drain", word, "perf.wrong")
    if context.get("timed_out") is True and (table.rows or table.header):
        last = f"after {table.rows[-1].size} bytes" if table.rows else "before the first row"
        return _one(FAIL, "run-hung", "drain", f"the run stopped {last} and was ended by its time limit", "perf.hung")
    if not table.rows:
        return _one(UNKNOWN, "no-result", "none", "there is not one row: nothing was measured", "perf.no-rows")
    if (code := context.get("exit_code", 0)) not in (0, None):
        return _one(UNKNOWN, "run-failed", "none", f"the run ended with exit code {code}", "perf.exit-code")
    floor = context.get("floor")
    if not isinstance(floor, Mapping) or not isinstance(floor.get("busbw"), (int, float)):
        return _one(UNKNOWN, "no-floor", "none", "no floor is known for this run", "perf.no-floor")
    row = _row_at(table, int(floor.get("size") or 0))
    if row is None:
        return _one(UNKNOWN, "no-result", "none", f"no row of {floor.get('size')} bytes or more", "perf.no-size")
    if row.busbw_gbs < floor["busbw"]:
        return _below(row, float(floor["busbw"]), context)
    if table.validated is False or any(r.wrong is None for r in table.rows):
        return _one(UNKNOWN, "not-validated", "none", "fast enough, but no value was checked", "perf.not-validated")
    if dip := _dip(table):
        word = f"{dip.busbw_gbs:.4g} GB/s at {dip.size} bytes, less than half of both neighbours"
        return _one(WARN, "busbw-dip", "warn", word, "perf.dip")
    return Verdict(PASS, (), f"{row.busbw_gbs:.4g} GB/s at {row.size} bytes, floor {floor['busbw']}", "perf.floor")


def _row_at(table: Table, size: int) -> Row | None:
    return min((row for row in table.rows if row.size >= size), key=lambda row: row.size, default=None)


def _below(row: Row, floor: float, context: Mapping[str, Any]) -> Verdict:
    word = f"{row.busbw_gbs:.4g} GB/s at {row.size} bytes, floor {floor:g}"
    nodes = context.get("nodes")
    if isinstance(nodes, int) and nodes > 1 and row.busbw_gbs <= TCP_ALARM_GBS and floor >= 3 * TCP_ALARM_GBS:
        return _one(FAIL, "busbw-tcp-level", "drain", f"{word}: the level of TCP, not of EFA", "perf.floor")
    return _one(FAIL, "busbw-below-floor", "drain", word, "perf.floor")


def _dip(table: Table) -> Row | None:
    rows = sorted((row for row in table.rows if row.size >= _DIP_BYTES), key=lambda row: row.size)
    for before, row, after in zip(rows, rows[1:], rows[2:], strict=False):
        if row.busbw_gbs < _DIP * min(before.busbw_gbs, after.busbw_gbs):
            return row
    return None

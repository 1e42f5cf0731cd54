"""Captured NCCL logs and all_reduce_perf tables judged by the rules of the live burn-in: groups `nccl` and `perf`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_ext import captured
from slurm_ext.aws import catalogue
from slurm_ext.burnin import mnnvl, nccl_log, perf_log, proof, transport
from slurm_ext.burnin.nccl_log import Log
from slurm_ext.burnin.perf_log import Table
from slurm_ext.burnin.proof import Judged
from slurm_ext.burnin.rules import TCP_ALARM_GBS
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

#: A row is a dip where it is below this share of both its neighbours; tiny sizes measure latency, not bandwidth.
_DIP, _DIP_BYTES = 0.5, 1 << 20


def judge(path: str) -> Verdict:
    """Return the verdict over one folder. Raise UsageError where it is no case of ours, naming what is wrong."""
    return judge_case(captured.load(path))


def judge_case(case: captured.Case) -> Verdict:
    """Return the verdict over a folder that was read."""
    texts, context = case.texts, case.context
    if case.group == "perf":
        first = judge_table(perf_log.parse(texts.get("perf_log", "")), context)
        if "perf_log_second" not in texts:
            return first
        return _twice(first, judge_table(perf_log.parse(texts["perf_log_second"]), context))
    log = nccl_log.parse_text(texts.get("nccl_log", ""))
    if transport.spans_nodes(case.instance_type) and any(p.mnnvl or p.mnnvl_count for p in log.processes):
        return _over_nvlink(log, _context(context, case.instance_type))
    told = _context(context, case.instance_type)
    verdict = proof.judge(log, told)
    inside = any(p.p2p_count for p in log.processes) and not any(p.net_count for p in log.processes)
    whole = all(p.complete for p in log.processes) and len(log.processes) >= told.ranks
    if told.nodes == 1 and inside and whole and {f.id for f in verdict.findings} == {"provider-not-named"}:
        # An excerpt of one node's run: what it leaves out would have carried nothing.
        return Verdict(PASS, (), "one node, whose ranks talk over NVLink: nothing had to go over EFA", "burnin.proof")
    return verdict


def _over_nvlink(log: Log, context: proof.Context) -> Verdict:
    """Return the verdict over a run with NVLink between nodes in use. What the IMEX service says is in no log."""
    hosts = tuple(dict.fromkeys(process.node for process in log.processes))
    found = [j for j in mnnvl.findings(log, {}, hosts) if j.finding.id != "imex-unread"]
    open_ = [f"node:{h}" for h in hosts if not any(p.complete for p in log.processes if p.node == h)]
    if not context.partial and len(hosts) < context.nodes:
        open_.append("node")
    word = "its log does not come to the end of the set-up, or is not there"
    found += [Judged(Finding("log-incomplete", target, "none", (word,)), UNKNOWN) for target in open_]
    if not found and (context.timed_out or context.exit_code not in (0, None)):
        word = f"the run did not end well (exit code {context.exit_code})"
        found.append(Judged(Finding("run-failed", "node", "none", (word,)), UNKNOWN))
    return proof.verdict_of(found, "NVLink between nodes carried the traffic")


def _context(data: Mapping[str, Any], instance_type: str) -> proof.Context:
    expected = _number(data.get("expected_efa"))
    return proof.Context(
        instance_type=instance_type,
        row=catalogue.find(instance_type),
        nodes=_number(data.get("nodes")) or 0,
        ranks=_number(data.get("ranks")) or 0,
        partial="log_of_ranks" in data,
        expected_efa=expected,
        exit_code=_exit_code(data),
        timed_out=_timed_out(data),
    )


def _number(value: object) -> int | None:
    """Return a whole number that stands there as such, or as text; None for anything else."""
    text = str(value).strip()
    plain = isinstance(value, (int, str)) and not isinstance(value, bool) and text.removeprefix("-").isdecimal()
    return int(text) if plain and len(text) < 19 else None


def _exit_code(context: Mapping[str, Any]) -> int | None:
    """Return how the run ended: 0 where nothing is said of it, None where it did not end by itself."""
    return _number(context.get("exit_code", 0))


def _timed_out(context: Mapping[str, Any]) -> bool:
    return str(context.get("timed_out")).lower() == "true"


def _one(verdict: str, name: str, action: str, word: str, rule: str) -> Verdict:
    return Verdict(verdict, (Finding(name, "node", action, (word,)),), word, rule)


def _twice(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict over two runs: dips without fault happen, wrong values and hangs do not.

    A run below the floor beside a good one is worth a word, not a drain; a second run without a result takes nothing back.
    """
    for one in (first, second):
        if one.verdict == FAIL and one.rule != "perf.floor":
            return one
    if second.verdict in (UNKNOWN, first.verdict) or first.verdict == UNKNOWN:
        return first if second.verdict == UNKNOWN else second
    if FAIL in (first.verdict, second.verdict):
        which, reason = ("first", first.reason) if first.verdict == FAIL else ("second", second.reason)
        return _one(WARN, "busbw-dip", "warn", f"only in the {which} of two runs: {reason}", "perf.second-run")
    return second  # a dip that a second run does not show has passed; one that only the second shows has come


def judge_table(table: Table, context: Mapping[str, Any]) -> Verdict:
    """Return the verdict over one table: wrong values first, then a run without an end or a result, then the floor."""
    wrong = sum(row.wrong or 0 for row in table.rows)
    if wrong or table.out_of_bounds:
        word = f"{max(wrong, table.out_of_bounds)} values are not what they must be"
        return _one(FAIL, "wrong-results", "drain", word, "perf.wrong")
    if _timed_out(context) and (table.rows or table.header):
        last = f"after {table.rows[-1].size} bytes" if table.rows else "before the first row"
        return _one(FAIL, "run-hung", "drain", f"the run stopped {last} and was ended by its time limit", "perf.hung")
    if not table.rows:
        word = "the only row is cut" if table.cut else "there is not one row: nothing was measured"
        return _one(UNKNOWN, "no-result", "none", word, "perf.no-rows")
    if (code := _exit_code(context)) not in (0, None):
        return _one(UNKNOWN, "run-failed", "none", f"the run ended with exit code {code}", "perf.exit-code")
    return _judge_speed(table, context)


def _judge_speed(table: Table, context: Mapping[str, Any]) -> Verdict:
    """Return the verdict over a table in which no value is known to be wrong."""
    floor = context.get("floor")
    asked = floor.get("busbw") if isinstance(floor, Mapping) else None
    if (
        not isinstance(floor, Mapping)
        or not isinstance(asked, (int, float))
        or isinstance(asked, bool)
        or not asked > 0
    ):
        return _one(UNKNOWN, "no-floor", "none", "no floor is known for this run", "perf.no-floor")
    # A floor without a size is one of large messages: small ones measure latency.
    size = _number(floor["size"]) if "size" in floor else max(row.size for row in table.rows)
    if size is None:
        return _one(UNKNOWN, "no-floor", "none", f"the floor's size is no number: {floor['size']!r}", "perf.no-floor")
    row = min((row for row in table.rows if row.size >= size), key=lambda row: row.size, default=None)
    if row is None:
        word = f"no row of {size} bytes or more" + (", and the last one is cut" if table.cut else "")
        return _one(UNKNOWN, "no-result", "none", word, "perf.no-size")
    if row.least_gbs is not None and row.least_gbs < asked:
        return _below(row.size, row.least_gbs, float(asked), context)
    if unreadable := next((r for r in table.rows if r.size >= _DIP_BYTES and r.least_gbs is None), None):
        word = f"the bandwidth at {unreadable.size} bytes is no number"
        return _one(UNKNOWN, "no-result", "none", word, "perf.no-number")
    if table.torn:
        return _one(UNKNOWN, "no-result", "none", "a row in the middle of the table is cut", "perf.torn")
    if table.validated is False or any(r.wrong is None for r in table.rows):
        return _one(UNKNOWN, "not-validated", "none", "fast enough, but no value was checked", "perf.not-validated")
    if dip := _dip(table, size, float(asked)):
        return _one(WARN, "busbw-dip", "warn", dip, "perf.dip")
    return Verdict(PASS, (), f"{row.least_gbs:.4g} GB/s at {row.size} bytes, floor {asked}", "perf.floor")


def _below(size: int, rate: float, floor: float, context: Mapping[str, Any]) -> Verdict:
    word = f"{rate:.4g} GB/s at {size} bytes, floor {floor:g}"
    nodes = _number(context.get("nodes"))
    if nodes is not None and nodes > 1 and rate <= TCP_ALARM_GBS and floor >= 3 * TCP_ALARM_GBS:
        return _one(FAIL, "busbw-tcp-level", "drain", f"{word}: the level of TCP, not of EFA", "perf.floor")
    return _one(FAIL, "busbw-below-floor", "drain", word, "perf.floor")


def _dip(table: Table, size: int, floor: float) -> str:
    """Return in words which row is out of line: far below both its neighbours, or below the floor of a smaller size."""
    rows = sorted((row for row in table.rows if row.size >= _DIP_BYTES), key=lambda row: row.size)
    rates = [row.least_gbs or 0.0 for row in rows]
    for before, row, rate, after in zip(rates, rows[1:], rates[1:], rates[2:], strict=False):
        if rate < _DIP * min(before, after):
            return f"{rate:.4g} GB/s at {row.size} bytes, less than half of both neighbours"
    for row, rate in zip(rows, rates, strict=True):
        if row.size > size and rate < floor:
            return f"{rate:.4g} GB/s at {row.size} bytes, below the floor {floor:g} that {size} bytes keep"
    return ""

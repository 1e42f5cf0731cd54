"""A node that has a record of a drain of ours: is it still out, may it come back, has it been out for too long?

Imported only by a health check of such a node, and only where Slurm may be asked: nodes without a record never ask Slurm.
"""

from __future__ import annotations

import json
import os

from slurm_ext import events
from slurm_ext.config import modes
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FmslurmError, UntrustedFileError
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.gate import ladder, undrain
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import conclude
from slurm_ext.gate.slow_result import Last
from slurm_ext.gate.undrain import FORGET, RESUME, Seen
from slurm_ext.hooks import slow_due, trail, way_back
from slurm_ext.slurm import act, connect, drain_record
from slurm_ext.slurm.act import Context
from slurm_ext.slurm.drain_record import DrainRecord
from slurm_ext.slurm.model import Node
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import PASS, UNKNOWN

#: One answer of Slurm may take so long (seconds).
SLURM_S = 5.0

#: What was said last of a node that stays out, so that it is said again only when it changes.
SAID = "undrain.json"

DAY_S = 86_400.0

#: Ids whose proof is a slow check where r2 is configured: what the GPUs and their links are.
_LOADED = ("gpu.", "nvswitch.", "dcgm.")


class Now(NamedTuple):
    """What a health check has found out so far. `at_s` is in seconds since the epoch; `has_dcgm`: there is a dcgmi here."""

    at_s: float
    look: Look
    last: Last | None
    off: tuple[modes.Off, ...] = ()
    has_dcgm: bool = False


def tend(settings: Settings, node: str, share: str, record: DrainRecord, now: Now) -> float | None:
    """Do what is due for a node that we drained; return since when it is out by us and idle, None where it is not."""
    try:
        slurm = connect(settings, timeout_s=SLURM_S)
        found = next((one for one in slurm.nodes([node]) if one.name == node), None)
    except FmslurmError as exc:
        _say(settings, node, share, record, now, "leave", f"Slurm does not answer: {exc}")
        return None
    is_out = found is not None and found.drained and found.reason == record.reason and found.state in ("IDLE", "DOWN")
    record = _stamped(settings, node, share, record, now)
    _remind(settings, node, share, record, now)
    seen = _seen(settings, node, share, record, now, is_out)
    ruling = undrain.judge(record, found, seen, settings, mode=_mode(settings, node, found, now), now=now.at_s)
    if ruling.act == RESUME:
        context = Context(
            "gate",
            now.at_s,
            trail.local_path(settings, node),
            node=node,
            mode="enforce",
            instance_id=seen.instance_id,
            boot_id=seen.boot_id,
        )
        done = act.undrain_node(slurm, settings, node, ruling.why, context, expected=record.reason)
        if done.done:
            _forget_said(settings, node)
            return None
        ruling = ruling._replace(act="leave", why=f"{ruling.why}, but it could not be resumed: {done.reason}")
    if ruling.act == FORGET:
        drain_record.remove(share, node, outcome=ruling.why, now=now.at_s)
        _forget_said(settings, node)
        _emit(settings, node, share, record, now, "node.drain-over", "forget", ruling.why)
        return None
    _say(settings, node, share, record, now, ruling.act, ruling.why)
    return record.since_s if is_out else None


def _mode(settings: Settings, node: str, found: Node | None, now: Now) -> str:
    """Return the rung that holds here: that of any partition the node is in, since each may have drained it."""
    rungs = [
        modes.effective_mode(settings, "gate", node=node, partition=name, off=now.off, now=now.at_s)[0]
        for name in (found.partitions if found is not None and found.partitions else ("",))
    ]
    return "enforce" if "enforce" in rungs else rungs[0]


def _stamped(settings: Settings, node: str, share: str, record: DrainRecord, now: Now) -> DrainRecord:
    """Return the record with this boot and instance, where another node wrote it and this boot is the one it was drained on."""
    facts = now.look.facts
    if (record.boot_id and record.instance_id) or not facts.boot_id or facts.boot_age_s is None:
        return record
    if now.at_s - facts.boot_age_s > record.since_s:
        return record  # it has been booted since: which boot and instance it was then, nobody knows any more
    root = at_node(settings.site.root, node)
    more = record._replace(
        boot_id=record.boot_id or facts.boot_id,
        instance_id=record.instance_id or way_back.instance_id(root),
        needs=record.needs or ladder.needs(record.finding, record.target, record.step),
    )
    if more != record:
        drain_record.write(share, more)
    return more


def _seen(settings: Settings, node: str, share: str, record: DrainRecord, now: Now, is_out: bool) -> Seen:
    facts, items = now.look.facts, now.look.items
    still = any(
        (item.finding.id, item.finding.target) == (record.finding, record.target) and item.verdict != PASS
        for item in items
    )
    # That DCGM could not be asked speaks against a node only where DCGM is to prove something.
    local = [item for item in items if not (item.finding.id.startswith("dcgm.") and item.verdict == UNKNOWN)]
    gpus = facts.smi.gpus if facts.smi is not None else ()
    asked = sorted({gpu.recovery for gpu in gpus if gpu.recovery and gpu.recovery.lower() != "none"})
    check, reads_log = _check(settings, record, now, is_out)
    return Seen(
        conclude(local).verdict,
        facts.boot_id,
        way_back.instance_id(at_node(settings.site.root, node)),
        still,
        check,
        reads_log and facts.kernel_lost,
        ", ".join(asked),
        _slow(settings, record, now, is_out),
        _returns(share, node, record, now.at_s),
    )


def _check(settings: Settings, record: DrainRecord, now: Now, is_out: bool) -> tuple[str, bool]:
    """Return what became of the check that this drain is for (see gate/results.py), and whether it reads the kernel log."""
    if record.finding.startswith("dcgm."):
        return (PASS if slow_due.is_proof(now.last, _due_now(record, now, is_out)) else UNKNOWN), False
    from slurm_ext.gate import checks, results

    rows = [row for row in results.of_look(now.look, settings, "health") if record.finding.startswith(row.check)]
    if not rows:
        return "", False
    row = max(rows, key=lambda one: len(one.check))
    reads_log = any(checks.reads_log(one) for one in checks.every() if one.id == row.check)
    # What the row says of another target is in the verdict already; `still` is about this one.
    return (PASS if row.result in ("pass", "warn", "fail") else row.result), reads_log


def _due_now(record: DrainRecord, now: Now, is_out: bool) -> slow_due.Now:
    return slow_due.Now(now.at_s, now.look.facts.boot_id, out_since=record.since_s if is_out else None)


def _slow(settings: Settings, record: DrainRecord, now: Now, is_out: bool) -> str:
    """Return what is missing of a slow check's proof, empty where none is asked for or nothing is missing."""
    is_dcgm = record.finding.startswith("dcgm.")
    by_load = settings.gate.slow_check == "dcgm-r2" and now.has_dcgm and record.finding.startswith(_LOADED)
    if not is_dcgm and not by_load:
        return ""
    level = slow_due.R2 if settings.gate.slow_check == "dcgm-r2" else ""
    if slow_due.is_proof(now.last, _due_now(record, now, is_out), level=level):
        return ""
    return f"DCGM's diagnostic {level or slow_due.R1} has not run to its end here since the drain"


def _returns(share: str, node: str, record: DrainRecord, at_s: float) -> int:
    past = drain_record.history(share, node) or ()
    return sum(
        1
        for one in past
        if one.record.finding == record.finding and at_s - one.ended_s < DAY_S and one.outcome.startswith("resumed on")
    )


def _remind(settings: Settings, node: str, share: str, record: DrainRecord, now: Now) -> None:
    """Say once a day that a drain has stood for too long. It is never undone for that."""
    words = ladder.expired(record, now=now.at_s)
    said = _said(settings, node)
    if not words or now.at_s - float(said.get("reminded_s", 0.0)) < DAY_S:
        return
    _emit(settings, node, share, record, now, "node.drain-expired", "report", words)
    _keep(settings, node, {**said, "reminded_s": now.at_s})


def _say(settings: Settings, node: str, share: str, record: DrainRecord, now: Now, decision: str, why: str) -> None:
    """Say why a node stays out, where that was not said before."""
    said = _said(settings, node)
    known = {"since_s": record.since_s, "why": why}
    if {name: said.get(name) for name in known} == known:
        return
    _emit(settings, node, share, record, now, "node.stays-out", decision, why)
    _keep(settings, node, {**said, **known})


def _emit(
    settings: Settings, node: str, share: str, record: DrainRecord, now: Now, name: str, decision: str, why: str
) -> None:
    event = events.Event(
        name,
        room="gate",
        rule=record.finding,
        reason=why,
        decision=decision,
        boot_id=now.look.facts.boot_id,
        data={"record": record._asdict()},
    )
    trail.emit(settings, node, event, share=share)


def _path(settings: Settings, node: str) -> str:
    return os.path.join(at_node(settings.site.run_dir, node), SAID)


def _said(settings: Settings, node: str) -> dict[str, Any]:
    try:
        data = json.loads(read_trusted(_path(settings, node), max_bytes=64 << 10))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return {}
    return data if isinstance(data, dict) and isinstance(data.get("reminded_s", 0.0), (int, float)) else {}


def _keep(settings: Settings, node: str, data: dict[str, Any]) -> None:
    try:
        write_passing(_path(settings, node), json.dumps(data))
    except OSError:
        return  # said again next time


def _forget_said(settings: Settings, node: str) -> None:
    try:
        os.unlink(_path(settings, node))
    except OSError:
        return

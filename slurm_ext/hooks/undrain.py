"""A node that has a record of a drain of ours: is it still out, may it come back, has it been out for too long?

Imported only by a health check of such a node, and only where Slurm may be asked: nodes without a record never ask Slurm.
"""

from __future__ import annotations

import json
import os

from slurm_ext import events
from slurm_ext.aws import catalogue
from slurm_ext.config import modes
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FmslurmError, UntrustedFileError
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.gate import ladder, proof, undrain
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import Judged, conclude
from slurm_ext.gate.slow_result import DCGM, EFA, Last, kind_of
from slurm_ext.gate.undrain import FORGET, LEAVE, RESUME, Seen
from slurm_ext.hooks import slow_due, trail, way_back
from slurm_ext.slurm import act, connect, drain_record, site_policy
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

#: Findings of DCGM that say that a test was not made: its silence is no proof then.
_UNTESTED = ("dcgm.skipped", "dcgm.not-tested", "dcgm.no-answer")

#: What a node needs whose finding only a job's own time can show.
BY_A_PERSON = (
    "a person's word (fmslurm node resume): only a job's time shows this finding, and nothing looks at it between jobs"
)


class Case(NamedTuple):
    """A drained node, and what its health check has found out so far. `at_s`: seconds since the epoch; `last`: DCGM's last slow
    check; `off`: switches thrown by `fmslurm off`; `has_dcgm`: there is a dcgmi here; `last_efa`: EFA's last loopback."""

    settings: Settings
    node: str
    share: str
    record: DrainRecord
    look: Look
    at_s: float
    last: Last | None = None
    off: tuple[modes.Off, ...] = ()
    has_dcgm: bool = False
    last_efa: Last | None = None

    @property
    def root(self) -> str:
        return at_node(self.settings.site.root, self.node)


def tend(case: Case) -> float | None:
    """Do what is due for a node that we drained; return since when it is out by us and idle, None where it is not."""
    try:
        slurm = connect(case.settings, timeout_s=SLURM_S)
        found = next((one for one in slurm.nodes([case.node]) if one.name == case.node), None)
    except FmslurmError as exc:
        _say(case, LEAVE, "Slurm does not answer", said=str(exc))
        return None
    since_s = case.record.since_s
    is_out = found is not None and found.drained and found.reason == case.record.reason
    is_out = is_out and found is not None and found.state in ("IDLE", "DOWN")
    case = _completed(case)
    seen = _seen(case, slow_due.Now(case.at_s, case.look.facts.boot_id, out_since=since_s if is_out else None))
    if not seen.check and case.record.step == ladder.DRAIN and case.record.needs != BY_A_PERSON:
        case = _rewritten(case, needs=BY_A_PERSON)
    _remind(case)
    site = case.settings.site._replace(type=site_policy.kind(case.settings, case.node))
    settings = case.settings._replace(site=site)
    ruling = undrain.judge(case.record, found, seen, settings, mode=_mode(case, found), now=case.at_s)
    if ruling.act == RESUME:
        told = Context("gate", case.at_s, trail.local_path(case.settings, case.node), node=case.node, mode="enforce")
        told = told._replace(instance_id=seen.instance_id, boot_id=seen.boot_id)
        set_s = None if found is None else found.reason_time
        done = act.undrain_node(
            slurm, case.settings, case.node, ruling.why, told, expected=case.record.reason, set_s=set_s
        )
        if done.done:
            _forget_said(case)
            return None
        ruling = ruling._replace(act=LEAVE, why=f"{ruling.why}, but it could not be resumed: {done.reason}")
    if ruling.act == FORGET:
        drain_record.remove(case.share, case.node, outcome=ruling.why, now=case.at_s)
        _forget_said(case)
        _emit(case, "node.drain-over", ruling.act, ruling.why)
        return None
    _say(case, ruling.act, ruling.why)
    return since_s if is_out else None


def _mode(case: Case, found: Node | None) -> str:
    """Return the rung that holds here: that of any partition the node is in, since each may have drained it."""
    rungs = [
        modes.effective_mode(case.settings, "gate", node=case.node, partition=name, off=case.off, now=case.at_s)[0]
        for name in (found.partitions if found is not None and found.partitions else ("",))
    ]
    return "enforce" if "enforce" in rungs else rungs[0]


def _completed(case: Case) -> Case:
    """Return the case with this boot and instance on record, where another node wrote it on this very boot."""
    record, facts = case.record, case.look.facts
    if (record.boot_id and record.instance_id) or not facts.boot_id or facts.boot_age_s is None:
        return case
    if case.at_s - facts.boot_age_s > record.since_s:
        return case  # booted since: which boot and instance it was then, nobody knows any more
    return _rewritten(
        case,
        boot_id=record.boot_id or facts.boot_id,
        instance_id=record.instance_id or way_back.instance_id(case.root),
        needs=record.needs or ladder.needs(record.finding, record.target, record.step),
    )


def _rewritten(case: Case, **fields: str) -> Case:
    record = case.record._replace(**fields)  # type: ignore[arg-type]
    if record != case.record:
        drain_record.write(case.share, record)
    return case._replace(record=record)


def _seen(case: Case, due: slow_due.Now) -> Seen:
    facts, items = case.look.facts, case.look.items
    mine = (case.record.finding, case.record.target)
    # That a slow check could not be made speaks against a node only where it is to prove something.
    local = [item for item in items if not (_is_slow(item.finding.id) and item.verdict == UNKNOWN)]
    gpus = facts.smi.gpus if facts.smi is not None else ()
    return Seen(
        verdict=conclude(local).verdict,
        boot_id=facts.boot_id,
        instance_id=way_back.instance_id(case.root),
        still=any((one.finding.id, one.finding.target) == mine and one.verdict != PASS for one in items),
        check=_check(case, due),
        missing=_missing(case),
        recovery=", ".join(sorted({gpu.recovery for gpu in gpus if gpu.recovery and gpu.recovery.lower() != "none"})),
        slow=_slow(case, due),
        returns=_returns(case),
    )


def _is_slow(finding: str) -> bool:
    return bool(kind_of(finding)) or finding.startswith("dcgm-health.")


def _check(case: Case, due: slow_due.Now) -> str:
    """Return what became of the check that this drain is for (see gate/results.py)."""
    finding = case.record.finding
    if kind := kind_of(finding):
        return PASS if slow_due.is_proof(case.last_efa if kind == EFA else case.last, due) else UNKNOWN
    from slurm_ext.gate import results

    rows = [row for row in results.of_look(case.look, case.settings, "health") if finding.startswith(row.check)]
    if not rows:
        return ""
    row = max(rows, key=lambda one: len(one.check))
    # What the row says of another target is in the verdict already; `still` is about this one.
    return PASS if row.result in ("pass", "warn", "fail") else row.result


def _missing(case: Case) -> str:
    """Return which reading is missing of the proof that this finding has gone, in words; empty: none is."""
    finding, target = case.record.finding, case.record.target
    kind = kind_of(finding)
    if kind == EFA:
        is_well = case.last_efa is not None and target in case.last_efa.passed
        return "" if is_well else f"EFA's loopback did not pass over {target}"
    if kind != DCGM:
        row = catalogue.find(case.look.facts.instance_type)
        return proof.missing(proof.Case(finding, target, case.look.facts, row, case.record.gpu))
    untested = next((one.finding.id for one in _items(case.last) if one.finding.id in _UNTESTED), "")
    return f"DCGM did not make every test ({untested})" if untested else ""


def _items(last: Last | None) -> tuple[Judged, ...]:
    return last.items if last is not None else ()


def _slow(case: Case, due: slow_due.Now) -> str:
    """Return what is missing of a slow check's proof, empty where none is asked for or nothing is missing."""
    if kind_of(case.record.finding) == EFA:
        is_made = slow_due.is_proof(case.last_efa, due)
        return "" if is_made else "EFA's loopback has not run to its end here since the drain"
    by_load = case.settings.gate.slow_check == "dcgm-r2" and case.has_dcgm and case.record.finding.startswith(_LOADED)
    if not case.record.finding.startswith("dcgm.") and not by_load:
        return ""
    level = slow_due.R2 if case.settings.gate.slow_check == "dcgm-r2" else ""
    if slow_due.is_proof(case.last, due, level=level):
        return ""
    return f"DCGM's diagnostic {level or slow_due.R1} has not run to its end here since the drain"


def _returns(case: Case) -> int:
    past = drain_record.history(case.share, case.node) or ()
    return sum(
        1
        for one in past
        if one.record.finding == case.record.finding
        and case.at_s - one.ended_s < DAY_S
        and one.outcome.startswith("resumed on proof")
    )


def _remind(case: Case) -> None:
    """Say once a day that a drain has stood for too long. It is never undone for that."""
    words = ladder.expired(case.record, now=case.at_s)
    if words and drain_record.first_to_tell(case.share, case.record, now=case.at_s):
        _emit(case, "node.drain-expired", "report", words)


def _say(case: Case, decision: str, why: str, *, said: str = "") -> None:
    """Say why a node stays out, where that was not said before. `said`: what else is to be told, which may change each time."""
    known = {"since_s": case.record.since_s, "why": why}
    if _said(case) == known:
        return
    case = _rewritten(case, stays=why)
    _emit(case, "node.stays-out", decision, why, said)
    _keep(case, known)


def _emit(case: Case, name: str, decision: str, why: str, said: str = "") -> None:
    event = events.Event(
        name,
        room="gate",
        rule=case.record.finding,
        reason=why,
        evidence=(said,) if said else (),
        decision=decision,
        boot_id=case.look.facts.boot_id,
        data={"record": case.record._asdict()},
    )
    trail.emit(case.settings, case.node, event, share=case.share)


def _path(case: Case) -> str:
    return os.path.join(at_node(case.settings.site.run_dir, case.node), SAID)


def _said(case: Case) -> dict[str, Any]:
    try:
        data = json.loads(read_trusted(_path(case), max_bytes=64 << 10))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return {}
    return data if isinstance(data, dict) else {}


def _keep(case: Case, data: dict[str, Any]) -> None:
    try:
        write_passing(_path(case), json.dumps(data))
    except OSError:
        return  # said again next time


def _forget_said(case: Case) -> None:
    try:
        os.unlink(_path(case))
    except OSError:
        return

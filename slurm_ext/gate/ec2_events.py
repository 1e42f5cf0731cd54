"""What EC2 has announced for an instance, and its status checks. Pure.

Sources: EC2 User Guide, "Scheduled events for your instances" (codes, and that a stop or retirement means a host whose
hardware fails or is withdrawn: start it again elsewhere), API InstanceStatusEvent ([Completed], [Canceled]), instance
metadata events/maintenance/scheduled (State) and spot/instance-action.
"""

from __future__ import annotations

import json

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import moment_s
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Code -> what to do about it: a reboot or maintenance passes, a stop or retirement takes the instance's host away.
CODES = {
    "instance-reboot": "warn",
    "system-reboot": "warn",
    "system-maintenance": "warn",
    "instance-stop": "replace",
    "instance-retirement": "replace",
}

#: A job that starts this shortly before an event is lost to it for certain.
SOON_S = 3600.0


class Event(NamedTuple):
    """One event; times in seconds since the epoch, None where not told or not readable."""

    code: str
    description: str = ""
    state: str = ""
    starts_s: float | None = None
    ends_s: float | None = None


class Status(NamedTuple):
    """What describe-instance-status says of the checks, as EC2's own words, and the events."""

    events: tuple[Event, ...] = ()
    system: str = ""
    instance: str = ""
    ebs: str = ""


def parse(text: str, instance_id: str = "") -> Status | None:
    """Return instance metadata's list or the answer of describe-instance-status; None where it is neither.

    With several instances in the answer, only `instance_id` is read, and nothing where that is not known.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(answer, dict) and "InstanceStatuses" in answer:
        answer = answer["InstanceStatuses"]
        if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
            return None
        mine = [row for row in answer if not instance_id or row.get("InstanceId") == instance_id]
        if len(mine) > 1:
            return None
        return _status(mine[0]) if mine else Status()
    if isinstance(answer, dict) and ("Events" in answer or "SystemStatus" in answer):
        return _status(answer)
    if isinstance(answer, dict) and isinstance(answer.get("action"), str) and "time" in answer:
        return Status((Event(f"spot-{answer['action']}", "spot interruption", "active", moment_s(answer["time"])),))
    if isinstance(answer, dict) and ("Code" in answer or "code" in answer):
        answer = [answer]
    events = _events(answer)
    return None if events is None else Status(events)


def _status(row: dict[str, object]) -> Status | None:
    events = _events(row.get("Events") or [])
    if events is None:
        return None

    def word(name: str) -> str:
        part = row.get(name)
        return str(part.get("Status") or "") if isinstance(part, dict) else ""

    return Status(events, word("SystemStatus"), word("InstanceStatus"), word("AttachedEbsStatus"))


def _events(rows: object) -> tuple[Event, ...] | None:
    if not isinstance(rows, list):
        return None
    events = []
    for row in rows:
        if not isinstance(row, dict):
            return None
        fields = {str(key).lower(): value for key, value in row.items()}
        code = fields.get("code") or fields.get("eventtype")
        if not isinstance(code, str):
            return None
        events.append(
            Event(
                code,
                str(fields.get("description") or ""),
                str(fields.get("state") or ""),
                moment_s(fields.get("notbefore")),
                moment_s(fields.get("notafter")),
            )
        )
    return tuple(events)


def judge(status: Status, now_s: float | None) -> list[Judged]:
    """Return what the checks and the announced events mean now (seconds since the epoch, None where not known)."""
    items = []
    for name, word, action in (
        ("system", status.system, "replace"),
        ("instance", status.instance, "reboot"),
        ("attached EBS", status.ebs, "drain"),
    ):
        if word == "impaired":
            items.append(judged(FAIL, "ec2.status-impaired", "node", action, f"{name} status check: impaired"))
        elif word not in ("", "ok", "not-applicable"):
            items.append(judged(UNKNOWN, "ec2.status-unclear", "node", "none", f"{name} status check: {word}"))
    told = [item for event in status.events for item in _one(event, now_s)]
    return items + told


def _one(event: Event, now_s: float | None) -> list[Judged]:
    lowered = event.description.lower()
    if lowered.startswith(("[completed]", "[canceled]", "[cancelled]")):
        return []
    if event.state.lower() in ("completed", "canceled", "cancelled"):
        return []
    if event.code.startswith("spot-"):
        return [judged(FAIL, "ec2.spot-interruption", "node", "drain", f"{event.code}: the instance is taken back")]
    action = CODES.get(event.code)
    if action is None:
        return [
            judged(UNKNOWN, "ec2.event-unknown", "node", "none", f"event {event.code[:60]}: {event.description[:100]}")
        ]
    line = f"{event.code}: {event.description[:100]}"
    if action == "replace" and "degraded hardware" in lowered:
        return [judged(FAIL, "ec2.scheduled-event", "node", action, line)]
    if now_s is not None and event.starts_s is not None:
        begins_s = event.starts_s - now_s
        over = event.ends_s is not None and event.ends_s < now_s
        if over and action == "warn":
            return []  # the time of a reboot has passed, and this node is up
        if begins_s <= SOON_S:
            line += ", begun" if begins_s <= 0 else f", in {begins_s / 60:.0f} min"
            return [judged(FAIL, "ec2.scheduled-event", "node", "drain" if action == "warn" else action, line)]
        line += f", in {begins_s / 3600:.0f} h"
    return [judged(WARN, "ec2.scheduled-event", "node", action, line)]

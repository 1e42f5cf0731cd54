"""The trail: one JSON line for everything fmslurm notices or does, written before it is done and confirmed after.

Line, version 1: `schema` (1), `time` (UTC, milliseconds), `event` (dotted, e.g. `node.drain`), `room`, `node`,
`instance_id`, `boot_id`, `job`, `attempt`, `rule`, `reason` (one sentence), `evidence` (list of lines), `decision`,
`dry_run`, `phase` (`intent`, `done`, `failed`, or `fact`), `config` (hash), `data` (anything more). Absent means unknown.

Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurm_ext.errors import UntrustedFileError

SCHEMA = 1
PHASES = ("fact", "intent", "done", "failed")

#: One line is one write(2) to a file opened with O_APPEND; longer evidence is cut so that a line stays readable.
EVIDENCE_LINES = 20
EVIDENCE_CHARS = 500


class Event(NamedTuple):
    """One line of the trail; see the module's text for what each field means."""

    event: str
    room: str = ""
    node: str = ""
    job: str = ""
    attempt: str = ""
    rule: str = ""
    reason: str = ""
    evidence: tuple[str, ...] = ()
    decision: str = ""
    phase: str = "fact"
    dry_run: bool = False
    instance_id: str = ""
    boot_id: str = ""
    config: str = ""
    data: Mapping[str, object] = {}
    time: str = ""
    schema: int = SCHEMA


def stamp(seconds: float | None = None) -> str:
    """Return a time (seconds since the epoch; None: now) as UTC text with milliseconds."""
    now = time.time() if seconds is None else seconds
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"


def to_line(event: Event) -> str:
    """Return the event as one JSON line without its newline; empty fields are left out, evidence is bounded."""
    fields: dict[str, object] = {"schema": event.schema, "time": event.time or stamp(), "event": event.event}
    for name in ("room", "node", "instance_id", "boot_id", "job", "attempt", "rule", "reason", "decision", "config"):
        if value := getattr(event, name):
            fields[name] = value
    fields["phase"] = event.phase
    fields["dry_run"] = event.dry_run
    if event.evidence:
        fields["evidence"] = [line[:EVIDENCE_CHARS] for line in event.evidence[:EVIDENCE_LINES]]
    if event.data:
        fields["data"] = dict(event.data)
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"), default=str)


def from_line(line: str) -> Event | None:
    """Return the event of a line, or None where it is no event of a version we read (a torn line, a newer schema)."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict) or fields.get("schema") != SCHEMA or not isinstance(fields.get("event"), str):
            return None
        known = {name: fields[name] for name in Event._fields if name in fields}
        evidence = known.get("evidence", ())
        data = known.get("data", {})
        if not isinstance(evidence, (list, tuple)) or not isinstance(data, dict):
            return None
        known["evidence"] = tuple(str(item) for item in evidence)
        return Event(**known)
    except (ValueError, TypeError):
        return None


def append(path: str, event: Event, *, durable: bool = False) -> Event:
    """Append the event to the file at `path` as one line in one write, and return it with its time filled in.

    `durable` also flushes it to disk: for an act that is journaled before it is done. Folders are made, mode 0755.
    A file that others may write, or a symbolic link, is refused with UntrustedFileError.
    """
    event = event if event.time else event._replace(time=stamp())
    os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        state = os.fstat(descriptor)
        if state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
            raise UntrustedFileError(f"{path} may be written by others", remedy=f"chown root {path}; chmod 0644 {path}")
        os.write(descriptor, (to_line(event) + "\n").encode())
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return event


def read(path: str) -> Iterator[Event]:
    """Yield the events of one file in order; a missing file has none, and lines that are no events are skipped."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if (event := from_line(line)) is not None:
                    yield event
    except FileNotFoundError:
        return

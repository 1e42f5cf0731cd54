"""The trail: one JSON line for everything fmslurm notices or does, written before it is done and confirmed after.

Line, version 1: `schema` (1), `time` (UTC, milliseconds), `event` (dotted, e.g. `node.drain`), `room`, `node`,
`instance_id`, `boot_id`, `job`, `attempt`, `rule`, `reason` (one sentence), `evidence` (list of lines), `decision`,
`dry_run`, `phase` (`intent`, `done`, `failed`, or `fact`), `config` (hash), `data` (anything more). Absent means unknown.

Standard library only: hooks import this.
"""

import json
import os
import stat
import time
from collections.abc import Iterator, Mapping

from slurm_ext.errors import UntrustedFileError
from slurm_ext.typed import NamedTuple

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


#: Fields of a line that are no text.
_KINDS: Mapping[str, type] = {"schema": int, "evidence": list, "dry_run": bool, "data": dict}


def stamp(seconds: float | None = None) -> str:
    """Return a time (seconds since the epoch; None: now) as UTC text with milliseconds."""
    whole, thousandths = divmod(int((time.time() if seconds is None else seconds) * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{thousandths:03d}Z"


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
    try:
        return json.dumps(fields, ensure_ascii=True, separators=(",", ":"), default=str, allow_nan=False)
    except ValueError:  # NaN or infinity, which JSON has no word for: the event matters more than its number
        fields["data"] = {str(name): repr(value) for name, value in event.data.items()}
        return json.dumps(fields, ensure_ascii=True, separators=(",", ":"))


def from_line(line: str) -> Event | None:
    """Return the event of a line, or None where it is no event of a version we read (a torn line, a newer schema)."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or type(fields.get("schema")) is not int or fields["schema"] != SCHEMA:
        return None
    known = {name: fields[name] for name in Event._fields if name in fields}
    if "event" not in known or not all(type(value) is _KINDS.get(name, str) for name, value in known.items()):
        return None
    known["evidence"] = tuple(str(item) for item in known.get("evidence", ()))
    return Event(**known)


def append(path: str, event: Event, *, durable: bool = False) -> Event:
    """Append the event to the file at `path` as one line in one write, and return it with its time filled in.

    `durable` also flushes it to disk: for an act that is journaled before it is done. Folders are made, mode 0755.
    A file that others may write, or a symbolic link, is refused with UntrustedFileError.
    """
    event = event if event.time else event._replace(time=stamp())
    os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise UntrustedFileError(f"{path} is no regular file", remedy="Remove it")
        if state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
            raise UntrustedFileError(f"{path} may be written by others", remedy=f"chown root {path}; chmod 0644 {path}")
        # A line that was torn by a full disk or a power cut must not take ours with it.
        torn = state.st_size > 0 and os.pread(descriptor, 1, state.st_size - 1) != b"\n"
        os.write(descriptor, (("\n" if torn else "") + to_line(event) + "\n").encode())
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

"""What the last slow check of each kind came to on a node: a file in the run folder, written by hooks/slow_run.py and read by the gate.

A try that was ended for a job says nothing of the node: what an earlier one of this boot said stays, and the try is noted in it.
Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os
import time

from slurm_ext.config.model import Gate, at_node
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.gate import read_small
from slurm_ext.gate.model import Judged, judged
from slurm_ext.typed import TYPE_CHECKING, Any, NamedTuple
from slurm_ext.verdict import ACTIONS, PASS, VERDICTS, Finding

if TYPE_CHECKING:
    from slurm_ext.gate.probes import Here

SCHEMA = 1

#: The kinds of slow checks, and where each keeps its result.
DCGM, EFA = "dcgm", "efa"
FILES = {DCGM: "slow.json", EFA: "slow-efa.json"}
FILE = FILES[DCGM]

MAX_BYTES = 1 << 20

#: How a slow check ended: it said its findings; it was ended for a job; there was no answer in time; its tool broke.
DONE, ENDED, LATE, BROKE = "done", "ended", "late", "broke"

HOUR_S = 3_600.0


class Last(NamedTuple):
    """What the last slow check came to. `boot_id` is the node's (below site.root); times are seconds since the epoch."""

    level: str
    outcome: str
    began_s: float
    ended_s: float
    boot_id: str
    items: tuple[Judged, ...] = ()
    said: str = ""  # the tool's own trouble, or where it ran
    waits_since_s: float = 0.0  # when the first of the tries began that were ended one after another, up to the last
    tried_s: float = 0.0  # when a later try ended that was ended for a job; 0: there was none since
    tried_said: str = ""  # why it was ended
    passed: tuple[str, ...] = ()  # targets that were tested and are well, where the kind tells

    @property
    def kind(self) -> str:
        """Which kind of slow check it was."""
        return kind_of_level(self.level)


def kind_of_level(level: str) -> str:
    """Return which kind of slow check a level belongs to."""
    return EFA if level == EFA else DCGM


def kind_of(finding: str) -> str:
    """Return which kind of slow check a finding comes from, by its id; empty: from none."""
    if finding.startswith("dcgm."):
        return DCGM
    return EFA if finding.startswith("efa.loopback-") else ""


def is_off(gate: Gate, kind: str = DCGM) -> bool:
    """Say whether the site asks for no slow checks of a kind."""
    return not gate.efa_loopback if kind == EFA else gate.slow_check == "off"


def write(run_dir: str, last: Last) -> None:
    """Keep what a slow check came to. OSError is the caller's."""
    items = [[*item.finding, item.verdict] for item in last.items]
    write_passing(
        os.path.join(run_dir, FILES[last.kind]), json.dumps({"schema": SCHEMA, **last._asdict(), "items": items})
    )


def read(run_dir: str, kind: str = DCGM) -> Last | None:
    """Return what the last slow check of a kind came to, None where there was none, or the file is none that root wrote in this form."""
    try:
        data = json.loads(read_trusted(os.path.join(run_dir, FILES[kind]), max_bytes=MAX_BYTES))
        if data["schema"] != SCHEMA or kind_of_level(str(data["level"])) != kind:
            return None
        return Last(
            str(data["level"]),
            str(data["outcome"]),
            float(data["began_s"]),
            float(data["ended_s"]),
            str(data["boot_id"]),
            tuple(_item(item) for item in data["items"]),
            str(data.get("said", "")),
            float(data.get("waits_since_s", 0.0)),
            float(data.get("tried_s", 0.0)),
            str(data.get("tried_said", "")),
            tuple(str(target) for target in data.get("passed", ())),
        )
    except (
        OSError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        UntrustedFileError,
    ):
        return None


def _item(item: Any) -> Judged:
    id_, target, action, evidence, verdict = item
    if action not in ACTIONS or verdict not in VERDICTS or not isinstance(evidence, list):
        raise ValueError(f"not a finding: {item!r}"[:200])
    return Judged(Finding(str(id_), str(target), action, tuple(str(line) for line in evidence)), verdict)


def of_node(here: Here, kind: str) -> tuple[tuple[Judged, ...], dict[str, Any]]:
    """Return what the last slow check of a kind says of this node, and which level it was and when; nothing where none does."""
    if is_off(here.settings.gate, kind):
        return (), {}
    boot_id = (read_small.text(here.path("proc/sys/kernel/random/boot_id"), 64) or "").strip()
    last, now = read(at_node(here.settings.site.run_dir, here.node), kind), time.time()
    late = overdue(here.settings.gate, last, now=now, boot_id=boot_id)
    notes = (late,) if late is not None else ()
    if last is None or not counts(here.settings.gate, last, now=now, boot_id=boot_id):
        return notes, {}
    return (*last.items, *notes), {"level": last.level, "ended_s": last.ended_s}


def counts(gate: Gate, last: Last | None, *, now: float, boot_id: str) -> bool:
    """Say whether a result still says something: of this boot, not older than two intervals, and asked for. Pure."""
    if last is None or is_off(gate, last.kind) or not boot_id or last.boot_id != boot_id:
        return False
    return last.outcome != ENDED and now - last.ended_s <= 2 * gate.slow_every_h * HOUR_S + HOUR_S


def after(last: Last, before: Last | None) -> Last:
    """Return what is to be kept: a result; for a try that was ended, the earlier result of this boot with the try in it. Pure."""
    if last.outcome != ENDED:
        return last
    here = before if before is not None and before.boot_id == last.boot_id else None
    since_s = here.waits_since_s if here is not None else 0.0
    since_s = since_s if 0 < since_s <= last.began_s else last.began_s
    if here is None or here.outcome == ENDED:
        return last._replace(waits_since_s=since_s)
    return here._replace(waits_since_s=since_s, tried_s=last.ended_s, tried_said=last.said)


def ended_try(last: Last | None) -> tuple[float, str] | None:
    """Return when and why the last try of all was ended for a job; None where it was not. Pure."""
    if last is None:
        return None
    if last.outcome == ENDED:
        return last.ended_s, last.said
    return (last.tried_s, last.tried_said) if last.tried_s > 0 else None


def overdue(gate: Gate, last: Last | None, *, now: float, boot_id: str) -> Judged | None:
    """Return the note that slow checks have been due for longer than two intervals and none came to its end; else None. Pure."""
    ended = ended_try(last)
    if last is None or is_off(gate, last.kind) or ended is None or not boot_id or last.boot_id != boot_id:
        return None
    waits_h = (now - last.waits_since_s) / HOUR_S
    if last.waits_since_s <= 0 or waits_h <= 2 * gate.slow_every_h:
        return None
    line = (
        f"no slow check came to its end for {waits_h:.0f} h, and one is due every {gate.slow_every_h:g} h: {ended[1]}"
    )
    id_ = "efa.loopback-overdue" if last.kind == EFA else "dcgm.overdue"
    return judged(PASS, id_, "node", "none", line)

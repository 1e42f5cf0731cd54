"""What the tests of group `system` share: judge texts by role as one folder, and the answers that come up often."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_ext.gate import replay

IDLE = {"jobs_on_node": [], "phase": "prolog"}
BUSY = {"jobs_on_node": [4711]}
GONE = {"jobs_on_node": [], "last_job_end": "2026-07-14T07:30:00Z", "now": "2026-07-14T08:12:00Z"}

PASS = ("pass",)
NODE_WARN = ("warn", ("node", "warn"))
NODE_NONE = ("unknown", ("node", "none"))
NODE_DRAIN = ("fail", ("node", "drain"))
NODE_REPLACE = ("fail", ("node", "replace"))


def drained(point: str) -> tuple[object, ...]:
    """Return the answer of one file system that no job may use."""
    return "fail", (f"fs:{point}", "drain")


def noted(point: str) -> tuple[object, ...]:
    """Return the answer of one file system that a person should look at."""
    return "warn", (f"fs:{point}", "warn")


def ask(folder: Path, *, instance_type=None, context=None, **roles) -> tuple[object, ...]:
    """Return (verdict, (target, action), ...) for texts by role as one captured folder."""
    files = {}
    for role, text in {**roles, **({"context": json.dumps(context)} if context is not None else {})}.items():
        (folder / role).write_text(text)
        files[role] = role
    described = {"group": "system", "instance_type": instance_type, "files": files}
    (folder / "case.json").write_text(json.dumps(described))
    verdict = replay.judge(str(folder))
    return verdict.verdict, *sorted({(found.target, found.action) for found in verdict.findings})

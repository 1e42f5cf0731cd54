"""What is left to do when a hook itself broke or ran late: say so where somebody will see it, and nothing else.

Relies on as little as possible: the configuration may be what broke.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from slurm_ext import command, events
from slurm_ext.config.model import machine_name
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted
from slurm_ext.hooks import supervise

DEFAULT_LOG_DIR = "/var/log/fmslurm"

#: How long (seconds) the trail may take.
WRITE_S = 2.0


def record(kind: str, environ: Mapping[str, str], local_dir: str, what: str) -> None:
    """Write `hook.broke` to the system log and to this node's trail; never raises."""
    supervise.log(f"{kind}: {what}")
    node = environ.get("SLURMD_NODENAME", "") or machine_name()
    job = environ.get("SLURM_JOB_ID", "")
    if "/" in node or node.startswith("."):
        return
    try:
        event = events.Event(
            "hook.broke",
            room="hooks",
            node=node,
            job=job if job.isdigit() else "",
            rule=f"hooks.{kind}",
            reason=f"{kind} broke or ran late, and the job passes",
            evidence=tuple(what.splitlines()[-8:]),
            decision="pass",
        )
        # In a child: what made the hook late may be this very disk, and slurmd waits for nobody else now.
        command.call_bounded(lambda: _write(event, local_dir.replace("%n", node)), timeout_s=WRITE_S)
    except Exception:  # noqa: BLE001 - no memory, no process: the system log has it
        return


def _write(event: events.Event, local_dir: str) -> bytes:
    events.append(os.path.join(_log_dir(local_dir, event.node), "events.jsonl"), event)
    return b""


def _log_dir(local_dir: str, node: str) -> str:
    """Return the log folder that this node's last good configuration names, else the default."""
    try:
        known = json.loads(read_trusted(os.path.join(local_dir, "last-good-config.json")))
        folder = json.loads(known["snapshot"])["settings"]["site"]["log_dir"]
    except (OSError, ValueError, KeyError, TypeError, UntrustedFileError):
        return DEFAULT_LOG_DIR
    return str(folder).replace("%n", node)

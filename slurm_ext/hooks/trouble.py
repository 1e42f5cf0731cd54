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


def record(kind: str, environ: Mapping[str, str], local_dir: str, what: str, share: str = "") -> None:
    """Write `hook.broke` to the system log, to this node's trail and to the share's, where it answers; never raises."""
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
        known = local_dir.replace("%n", node)
        command.call_bounded(lambda: _write(event, known), timeout_s=WRITE_S)
        # Whoever looks for it later may find the instance gone.
        command.call_bounded(lambda: _write_shared(event, known, share), timeout_s=WRITE_S)
    except Exception:  # noqa: BLE001 - no memory, no process: the system log has it
        return


def _write(event: events.Event, local_dir: str) -> bytes:
    events.append(os.path.join(_log_dir(local_dir, event.node), "events.jsonl"), event)
    return b""


def _write_shared(event: events.Event, local_dir: str, share: str) -> bytes:
    from slurm_ext import shared  # here: it may be what broke

    shared.append_event(share or _site(local_dir).get("share", ""), event.node, event)
    return b""


def _log_dir(local_dir: str, node: str) -> str:
    """Return the log folder that this node's last good configuration names, else the default."""
    return _site(local_dir).get("log_dir", DEFAULT_LOG_DIR).replace("%n", node)


def _site(local_dir: str) -> dict[str, str]:
    """Return the texts of `site` in this node's last good configuration, empty where there is none."""
    try:
        known = json.loads(read_trusted(os.path.join(local_dir, "last-good-config.json")))
        site = json.loads(known["snapshot"])["settings"]["site"]
        return {name: value for name, value in site.items() if isinstance(value, str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UntrustedFileError):
        return {}

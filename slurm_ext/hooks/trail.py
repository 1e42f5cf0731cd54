"""One event of a hook, on this node and on the share: the node's own file first, since the share may be gone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from slurm_ext import events, shared
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FmslurmError
from slurm_ext.events import Event
from slurm_ext.hooks.environment import HookJob

FILE = "events.jsonl"


def local_path(settings: Settings, node: str) -> str:
    """Return the path of this node's own trail."""
    return os.path.join(at_node(settings.site.log_dir, node), FILE)


def emit(settings: Settings, node: str, event: Event, *, share: str = "") -> None:
    """Write an event to this node's trail and to the share's; a trail that cannot be written never stops a hook."""
    event = event._replace(node=node, config=settings.source_hash[:12], time=event.time or events.stamp())
    with contextlib.suppress(OSError, FmslurmError):
        events.append(local_path(settings, node), event)
    shared.append_event(share or settings.site.share, node, event)


def about(job: HookJob, event: str, **fields: object) -> Event:
    """Return an event about a job's attempt on this node."""
    data = fields.pop("data", {})
    assert isinstance(data, Mapping)
    return Event(event, job=job.job_id, attempt=job.attempt, data={"cluster": job.cluster, **data}, **fields)  # type: ignore[arg-type]

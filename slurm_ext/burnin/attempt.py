"""What an attempt's burn-in leaves behind, on its nodes and on the share, and what who comes late reads there."""

from __future__ import annotations

import contextlib
import time

from slurm_ext import shared
from slurm_ext.burnin import history, history_line
from slurm_ext.burnin.model import BurninJob, Outcome, outcome_from_json, unknown
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FmslurmError
from slurm_ext.verdict import PASS, WARN


def ended(share: str, attempt: str) -> str:
    """Return why an attempt has ended, by the file that hooks and controller leave on the share; empty: it has not."""
    found = shared.read_json(shared.attempt_path(share, attempt, shared.STOPPED_FILE), timeout_s=1.0)
    return f"{found.get('node', 'the controller')}: {found.get('reason')}" if found else ""


def known_outcome(share: str, job: BurninJob, *, since: float) -> Outcome | None:
    """Return what the others' burn-in of this attempt came to, where it is over and says something about this node.

    `since` is seconds since 1970: job ids begin anew on a new cluster, so what is older is about another job.
    """
    if reason := ended(share, job.key):
        return unknown("burnin.ended-elsewhere", f"this attempt has ended: {reason}")
    line = shared.read_json(shared.attempt_path(share, job.key, shared.BURNIN_FILE), timeout_s=1.0)
    try:
        if line is None or not float(line.get("time", 0.0)) >= since:
            return None
        outcome = outcome_from_json(line)
    except (ValueError, TypeError):
        return None
    tested = job.node in outcome.measured.get("tested", ())
    # A pass of others is none of ours, and nobody is convicted by a file.
    return None if (outcome.verdict.verdict in (PASS, WARN) and not tested) or job.node in outcome.culprits else outcome


def record(job: BurninJob, settings: Settings, outcome: Outcome) -> None:
    """Write the outcome down: each node its own history, here and on the share; the leader also beside the attempt."""
    if outcome.verdict.verdict in (PASS, WARN):
        # What passed is the nodes that were tested together, not those of the job that are still to come.
        tested = tuple(name for name in job.nodes if name in outcome.measured.get("tested", job.nodes))
        job = job._replace(nodes=tested or job.nodes)
    line = history_line.line_of(job, outcome, now=time.time(), message_bytes=settings.burnin.message_bytes)
    if settings.site.share and line["leads"]:  # first of all: who comes late looks for it
        with contextlib.suppress(ValueError):
            shared.write_json(shared.attempt_path(settings.site.share, job.key, shared.BURNIN_FILE), line)
    with contextlib.suppress(OSError, FmslurmError):
        history.append(at_node(settings.site.state_dir, job.node), line)
    if settings.site.share:
        history.append_shared(settings.site.share, job.node, line)

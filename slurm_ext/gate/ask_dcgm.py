"""Ask DCGM's daemon what its health watches say, in the child of the probe: dcgmi, for a few seconds at most."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from slurm_ext import command
from slurm_ext.config.model import at_node
from slurm_ext.errors import FmslurmError
from slurm_ext.files import write_passing
from slurm_ext.gate import dcgm_health
from slurm_ext.gate.model import Judged
from slurm_ext.gate.probes import Here

#: How long dcgmi may take (seconds), but no more than half of the look's own time.
ASK_S = 5.0

#: Where it is written that DCGM was told to watch, and how soon it may be told again (seconds): who stops it has a reason.
MARK, AGAIN_S = "dcgm-watch", 86_400.0

#: What is said of a check that found nothing to look at.
NO_TOOL, NO_DAEMON, NO_WATCH = "there is no dcgmi", "DCGM's daemon does not run", "DCGM watches nothing"


def path(root: str) -> str:
    """Return the dcgmi to run: the one below `root`, else, for the machine itself, the first on the fixed PATH; empty: none."""
    folders = ["usr/bin"] if root.rstrip("/") else [folder.lstrip("/") for folder in command.CLEAN_PATH.split(":")]
    for folder in folders:
        found = os.path.join(root or "/", folder, "dcgmi")
        if os.access(found, os.X_OK):
            return found
    return ""


def watches(here: Here) -> tuple[Sequence[Judged], str]:
    """Return what DCGM's watches say; where there was nothing to look at, why in words."""
    dcgmi = path(here.root)
    if not dcgmi:
        return (), NO_TOOL
    limit_s = min(ASK_S, here.settings.gate.deadline_s / 2)
    try:
        said = command.run([dcgmi, "health", "-c", "-j"], timeout_s=limit_s, max_output_bytes=dcgm_health.MAX_CHARS)
    except FmslurmError as exc:
        return (dcgm_health.no_answer(str(exc)),), ""
    if said.timed_out:
        return (dcgm_health.no_answer(f"no answer within {limit_s:g} s"),), ""
    report = dcgm_health.parse(said.stdout)
    if report.is_absent:
        return (), NO_DAEMON
    if not report.is_off:
        return dcgm_health.judge(report), ""
    if here.settings.gate.dcgm_health != "watch":
        return (), f"{NO_WATCH}: `dcgmi health -s a`, or gate.dcgm_health: watch"
    return _watch(here, dcgmi, limit_s / 2)


def _watch(here: Here, dcgmi: str, limit_s: float) -> tuple[Sequence[Judged], str]:
    """Let DCGM watch everything, once in a day; what it sees is read the next time."""
    mark = os.path.join(at_node(here.settings.site.run_dir, here.node), MARK)
    try:
        if 0 <= time.time() - os.stat(mark).st_mtime < AGAIN_S:
            return (), f"{NO_WATCH}, though it was told to within the last day"
    except OSError:
        pass
    try:
        write_passing(mark, "")
        said = command.run([dcgmi, "health", "-s", "a"], timeout_s=limit_s)
    except (OSError, FmslurmError) as exc:
        return (), f"{NO_WATCH}: {exc}"
    return (), "DCGM watches from now on" if said.ok else f"{NO_WATCH}: {said.words()}"

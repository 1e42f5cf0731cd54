"""The counters that a job's epilog compares, read again after a burn-in: its own traffic and errors are not the job's.

Cheap: one question to nvidia-smi for the counters alone, and meanwhile one run of grep over those of the EFA devices that were
there before, which costs a third of what a child of ours does. Nothing is judged. Standard library only: hooks import this,
after a burn-in and not before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurm_ext import command
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.gate import ask_smi, efa_live_quick, gpu_growth
from slurm_ext.typed import Any

#: So long (seconds) a job waits at most for its counters to be read; without them nothing is said to have grown.
PATIENCE_S = 5.0


def take(settings: Settings, node: str, kept: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what was kept with GPUs and EFA as of now, and what could not be read again: that is left out.

    Of the probes in `kept` only these count what a burn-in does; the others stay as they are.
    """
    root = at_node(settings.site.root, node)
    cards = ask_smi.counters(root, at_node(settings.site.run_dir, node), PATIENCE_S) if "gpu" in kept else None
    again: dict[str, dict[str, Any]] = {}
    devices = (kept.get("efa") or {}).get("devices")
    if isinstance(devices, Mapping) and devices:
        again["efa"] = _efa(root, tuple(devices))
    if cards is not None:
        said = cards.answer()
        gpus = gpu_growth.keep(ask_smi.parsed(said, cards.seconds)) if said is not None and said.ok else {}
        again["gpu"] = {"at_s": time.time(), "gpus": gpus} if gpus else {}
    lost = tuple(name for name, found in again.items() if not found)
    return {name: value for name, value in {**kept, **again}.items() if name not in lost}, lost


def _efa(root: str, names: Sequence[str]) -> dict[str, Any]:
    """Return what the probe of EFA keeps, as of now; empty where it cannot be read."""
    with suppress(CommandNotFoundError):
        said = command.run(["grep", "-sH", "", *efa_live_quick.counter_files(root, names)], timeout_s=PATIENCE_S)
        # A counter that an older driver has not makes grep end with 2.
        if not said.timed_out and not said.truncated:
            values = efa_live_quick.counters_in(said.stdout, root, names)
            return efa_live_quick.keep(values, time.time()) if values else {}
    return {}

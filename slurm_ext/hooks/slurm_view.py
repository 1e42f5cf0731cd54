"""How many GPUs does Slurm hand out on this node? Asked by the health check once for each slurmd and day, and kept meanwhile.

A slurmd's Gres is what it registered with. Only where Slurm may be asked (registered.py), and one bounded call.
"""

from __future__ import annotations

import json
import os

from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError, UntrustedFileError
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.gate import rules, slurm_view_rules
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import conclude
from slurm_ext.hooks.registered import Slurmd
from slurm_ext.slurm import connect
from slurm_ext.typed import Any

FILE = "slurm-view.json"

#: So long (seconds) an answer holds, and so long Slurm is let be after none: other looks must not wait for it each time.
HOLDS_S, AGAIN_S = 86_400.0, 3_600.0

#: One answer may take so long (seconds).
SLURM_S = 5.0


def compared(look: Look, settings: Settings, node: str, run_dir: str, slurmd: Slurmd, at_s: float) -> Look:
    """Return the look with what Slurm's number of GPUs says beside it."""
    if look.facts.smi is None or not look.facts.smi.gpus:
        return look
    gpus = _gpus(settings, node, run_dir, slurmd, at_s)
    found = {item.finding.id for item in look.items}
    more = rules.enabled(slurm_view_rules.judge(gpus, look.facts.smi, found), settings.gate.disabled)
    if not more:
        return look
    items = (*look.items, *more)
    return look._replace(items=items, verdict=conclude(items, rule=look.verdict.rule))


def _gpus(settings: Settings, node: str, run_dir: str, slurmd: Slurmd, at_s: float) -> int | None:
    path = os.path.join(run_dir, FILE)
    kept = _read(path)
    gpus = kept.get("gpus") if type(kept.get("gpus")) is int else None
    until_s = kept.get("until_s")
    if kept.get("slurmd") == list(slurmd) and isinstance(until_s, (int, float)) and at_s < until_s <= at_s + HOLDS_S:
        return gpus
    try:
        found = next((one for one in connect(settings, timeout_s=SLURM_S).nodes([node]) if one.name == node), None)
    except FmslurmError:
        found = None
    gpus = slurm_view_rules.gpus_in(found.gres) if found is not None else None
    _keep(path, {"slurmd": list(slurmd), "until_s": at_s + (AGAIN_S if found is None else HOLDS_S), "gpus": gpus})
    return gpus


def _read(path: str) -> dict[str, Any]:
    try:
        data = json.loads(read_trusted(path, max_bytes=4096))
    except (OSError, ValueError, RecursionError, UntrustedFileError):
        return {}
    return data if isinstance(data, dict) else {}


def _keep(path: str, data: dict[str, Any]) -> None:
    try:
        write_passing(path, json.dumps(data))
    except OSError:
        return  # asked again next time

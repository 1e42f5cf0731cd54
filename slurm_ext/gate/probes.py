"""The live gate's probes: one module `probe_NAME` for each thing a node has, looked at in a bounded child of its own.

A probe's module has `CHECKS` (what it can find) and `look(here)`. `look` runs in the child, so it may touch what can hang, and
what goes wrong in it costs no more than its own answer: no answer is one finding, unknown. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurm_ext.config.model import Settings
from slurm_ext.gate import read_small
from slurm_ext.gate.model import Judged, judged
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import UNKNOWN, Finding

PROLOG, EPILOG, HEALTH = "prolog", "epilog", "health"
PHASES = (PROLOG, EPILOG, HEALTH)

#: Name of a probe -> the phases it runs in.
PROBES: Mapping[str, Sequence[str]] = {
    "efa": PHASES,
    "system": PHASES,
    "lustre": (EPILOG, HEALTH),  # in the prolog the probe of the node takes its quick look
    "dcgm": (HEALTH,),
    "container": (HEALTH,),
}

#: Probes that a prolog takes in the child that reads the other plain files: they wait for no device, and a child of their own
#: would cost three times what they read. One that hangs all the same costs that child's answer, too.
WITH_PLAIN_FILES = ("system",)


class Check(NamedTuple):
    """One thing that can be found: `id` or the beginning of it, what is looked at, what it means, when, and what it costs."""

    id: str
    what: str
    means: str
    phases: tuple[str, ...] = PHASES
    cost: str = ""


class Here(NamedTuple):
    """What a probe is told. `window` is the job's (start, end) in epoch seconds. `job_gpus` are GPU indexes or UUIDs as
    Slurm gives them; empty: none, or no job. `baseline` is what this same probe kept when the job began (until `run` picks
    it out: what each probe kept, by name).
    """

    root: str
    node: str
    phase: str
    settings: Settings
    job_id: str = ""
    job_uid: int = -1
    job_gpus: tuple[str, ...] = ()
    window: tuple[float, float] | None = None
    baseline: Mapping[str, Any] = {}

    def path(self, name: str) -> str:
        """Return where a path of the machine (without a leading slash) lies for this look."""
        return os.path.join(self.root, name)

    def instance_type(self) -> str:
        """Return the EC2 type: as configured, else DMI's product name, which on Nitro is the type; empty: not known."""
        told = self.settings.site.instance_type
        if told != "auto":
            return told
        said = read_small.text(self.path("sys/class/dmi/id/product_name"), 256)
        return "" if said is None else said.partition("\n")[0].strip()


class Probed(NamedTuple):
    """What a probe found, and plain data that it wants to see again as `baseline` when the job has ended."""

    items: tuple[Judged, ...] = ()
    kept: Mapping[str, Any] = {}


def of_phase(phase: str) -> tuple[str, ...]:
    """Return the names of the probes that run in a phase."""
    return tuple(name for name, phases in PROBES.items() if phase in phases)


def load(names: Sequence[str]) -> None:
    """Import probes before their children are made: in each child that costs four times as much. A broken one fails there."""
    for name in names:
        with suppress(Exception):
            module_of(name)


def module_of(name: str) -> Any:
    """Return a probe's module, imported only where it is needed."""
    full = f"slurm_ext.gate.probe_{name}"
    __import__(full)  # importlib's function for this would bring warnings along
    return sys.modules[full]


def run(name: str, here: Here) -> bytes:
    """Look, in the child; return the answer as JSON."""
    found: Probed = module_of(name).look(here._replace(baseline=here.baseline.get(name) or {}))
    return json.dumps([[[*item.finding, item.verdict] for item in found.items], found.kept]).encode()


def run_beside(names: Sequence[str], here: Here) -> dict[str, str]:
    """Look by several probes in one child; one that ends in an error is left out."""
    said = {}
    for name in names:
        with suppress(Exception):
            said[name] = run(name, here).decode()
    return said


def answer(name: str, raw: bytes | str | None) -> Probed:
    """Return what a child said; an answer that did not come, or has another form, is one finding that convicts nobody."""
    if raw is not None:
        try:
            items, kept = json.loads(raw)
            found = [
                Judged(Finding(id_, target, action, tuple(evidence)), verdict)
                for id_, target, action, evidence, verdict in items
            ]
            return Probed(tuple(found), kept)
        except (ValueError, TypeError):
            pass
    line = f"the look at {name} did not end, or ended in an error of ours"
    return Probed((judged(UNKNOWN, f"{name}.no-answer", "node", "none", line),))

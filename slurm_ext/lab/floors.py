"""Floors of the lab's own fabric: the burn-in's survey over its nodes, as a person would run it.

Floors of real instances mean nothing on loopback, and a simulated fabric varies by a factor of two: the survey divides
what it measured by three, and only gaps beyond that are asserted in a lab.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from slurm_ext.errors import FmslurmError
from slurm_ext.slurm.hostlist import fold

if TYPE_CHECKING:
    from slurm_ext.lab.cluster import Lab

#: 64 ranks on two cores: 2 s to start, then one round over all nodes and two over pairs.
SURVEY_S = 90.0


def measure(lab: Lab) -> dict[str, float]:
    """Measure busbw_gbs (all nodes) and pair_busbw_gbs, write them into the lab's settings, and return them (GB/s).

    Raise FmslurmError where the survey does not end well: a lab whose own fabric fails is of no use.
    """
    argv = [sys.executable, "-m", "slurm_ext.cli", "burnin", "run", "-w", fold(lab.nodes), "--survey", "--json"]
    result = lab.run([*argv, "--deadline", "60"], timeout_s=SURVEY_S)
    try:
        floors = {name: float(figure) for name, figure in json.loads(result.stdout)["floors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise FmslurmError(f"the lab's fabric could not be measured: {result.words()}") from exc
    lab.set_floors(floors)
    return floors

"""Start, reconfigure and memory of slurmctld by the number of switches, and the formula that fits them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from reconfigure_controller import NODES, Cost, Run, measure

from slurm_ext.lab import daemons
from slurm_ext.slurm.versions import parse_version
from slurm_ext.topology.budget_cost import predict

SHORT, FULL = (50, 100, 250, 500, 750, 1000), (50, 100, 250, 500, 750, 1000, 1500, 2000)

#: Below it the switches cost less than what else a reconfigure does varies by.
FITTED_FROM = 500


def figures(full: bool) -> Mapping[str, float]:
    """Measure, print what was measured, and return the figures; what this machine cannot do is left out, with the reason."""
    lacking = daemons.missing()
    if os.geteuid() != 0 or lacking:
        print(f"switches: skipped, it needs root and {', '.join(lacking) or 'Slurm'}")
        return {}
    version = parse_version(daemons.slurm_version()[1])
    assert version is not None
    repeats = 6 if full else 3
    floor = measure(0, repeats, version)
    runs = [measure(switches, repeats if switches <= 1000 else 3, version) for switches in (FULL if full else SHORT)]
    rows = [(run, *_above(run, floor), predict(run.switches, (version.major, version.minor))) for run in runs]
    print(f"slurmctld {version.text}, {NODES} nodes; without a topology: start {floor.start.cpu_s:.2f} s, reconfigure")
    print(
        f"{_least(floor).cpu_s:.2f} to {_most(floor).cpu_s:.2f} s of the processor, peak {_least(floor).peak_mb:.0f} MB"
    )
    print("Seconds of the processor above that, the least of the repeats and the most; by the clock, all of it:")
    print("switches   start   reconfigure    clock   peak MB   predicted   predicted/measured")
    for run, start, least, predicted in rows:
        most = _most(run).cpu_s - _least(floor).cpu_s
        wall = min(cost.wall_s for cost in run.reconfigures)
        ratio = f"{predicted / least:.2f}" if run.switches >= FITTED_FROM - 10 else "(too little to tell)"
        print(
            f"{run.switches:8} {start:7.2f} {least:7.2f} to {most:5.2f} {wall:6.2f} {_least(run).peak_mb:9.0f} {predicted:11.2f}"
            f"   {ratio}"
        )
    return _figures(rows)


def _figures(rows: Sequence[tuple[Run, float, float, float]]) -> dict[str, float]:
    large = [row for row in rows if row[0].switches >= FITTED_FROM - 10]
    fitted = math.exp(sum(math.log(least / run.switches**3) for run, _, least, _ in large) / len(large))
    ratios = [predicted / least for _, _, least, predicted in large]
    thousand = next(row for row in rows if abs(row[0].switches - 1000) < 20)
    print(f"fits: {fitted * 1e9:.2f} ns for each switch cubed (from {FITTED_FROM} switches on)")
    return {
        "reconfigure_s_1000": round(thousand[2], 2),
        "start_s_1000": round(thousand[1], 2),
        "peak_mb_1000": round(_least(thousand[0]).peak_mb, 1),
        "ns_per_switch_cubed": round(fitted * 1e9, 3),
        "predicted_over_measured_least": round(min(ratios), 2),
        "predicted_over_measured_most": round(max(ratios), 2),
    }


def _above(run: Run, floor: Run) -> tuple[float, float]:
    """Return what start and reconfigure cost above the floor, seconds of the processor: a busy machine only ever adds."""
    return run.start.cpu_s - floor.start.cpu_s, max(_least(run).cpu_s - _least(floor).cpu_s, 1e-3)


def _least(run: Run) -> Cost:
    """Return the cheapest reconfigure. The first one's peak is what one costs: 22.05 keeps some of the memory of each."""
    return min(run.reconfigures)._replace(peak_mb=run.reconfigures[0].peak_mb)


def _most(run: Run) -> Cost:
    return max(run.reconfigures)

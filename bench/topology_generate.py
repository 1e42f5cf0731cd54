"""What it costs from nodes and places to all files: in a process of its own, so that its peak is of nothing else."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from topology_fleet import fleet

from slurm_ext.slurm.model import Version
from slurm_ext.topology import blocks, render, render_yaml
from slurm_ext.topology.build import build

LIMIT_S = 300


def generate(nodes: int) -> tuple[float, float, int]:
    """Return CPU seconds and peak megabytes from placements to topology.conf (tree, block), topology.yaml and updates, and switches."""
    version = Version(26, 5, "26.05.5")
    started = time.process_time()
    tree = build(fleet(nodes))
    plan = blocks.plan(tree, version)
    render.topology_conf(tree, origin="a bench", version=version)
    render.block_conf(plan, origin="a bench", version=version)
    render_yaml.topology_yaml(tree, plan, origin="a bench", version=version)
    render_yaml.updates(render_yaml.node_strings(tree, plan))
    spent = time.process_time() - started
    return spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, len(tree.switches)


def _apart(nodes: int) -> tuple[float, float, float]:
    argv = [sys.executable, str(Path(__file__).resolve()), str(nodes)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout
    spent, peak, switches = map(float, said.split())
    return spent, peak, switches


def figures(full: bool) -> Mapping[str, float]:
    """Return the figures: the best of some runs, since a busy machine only ever adds."""
    runs = 5 if full else 2
    small = [_apart(10_000) for _ in range(runs)]
    large = [_apart(50_000) for _ in range(runs)]
    cpu_small, cpu_large = min(run[0] for run in small), min(run[0] for run in large)
    return {
        "cpu_s_10k": cpu_small,
        "peak_mb_10k": max(run[1] for run in small),
        "switches_10k": small[0][2],
        "cpu_s_50k": cpu_large,
        "peak_mb_50k": max(run[1] for run in large),
        "growth_50k_over_10k": cpu_large / cpu_small,
    }


if __name__ == "__main__":
    print(*generate(int(sys.argv[1])))

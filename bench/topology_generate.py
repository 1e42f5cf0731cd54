"""What it costs from nodes and places to all files: in a process of its own, so that its peak is of nothing else."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from topology_fleet import fleet

from slurm_ext.slurm.model import Version
from slurm_ext.topology import blocks, render, render_yaml
from slurm_ext.topology.build import build

LIMIT_S = 300


class Run(NamedTuple):
    """CPU seconds and peak megabytes from placements to topology.conf (tree, block), topology.yaml and updates; the hash of all."""

    spent_s: float
    peak_mb: float
    switches: int
    digest: str


def generate(nodes: int, shuffle: int) -> Run:
    """Measure one run in this process. `shuffle`: another order of the nodes; 0: theirs."""
    version = Version(26, 5, "26.05.5")
    placements = list(fleet(nodes))
    if shuffle:
        random.Random(shuffle).shuffle(placements)
    started = time.process_time()
    tree = build(placements)
    plan = blocks.plan(tree, version)
    texts = [
        render.topology_conf(tree, origin="a bench", version=version),
        render.block_conf(plan, origin="a bench", version=version),
        render_yaml.topology_yaml(tree, plan, origin="a bench", version=version),
        *render_yaml.updates(render_yaml.node_strings(tree, plan)),
    ]
    spent = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Run(spent, peak, len(tree.switches), hashlib.sha256("\0".join(texts).encode()).hexdigest())


def _apart(nodes: int, shuffle: int = 0) -> Run:
    argv = [sys.executable, str(Path(__file__).resolve()), str(nodes), str(shuffle)]
    # Hashes of text differ from process to process here: what leaned on them would show.
    env = {**os.environ, "PYTHONHASHSEED": str(shuffle + 1)}
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LIMIT_S, env=env).stdout
    spent, peak, switches, digest = said.split()
    return Run(float(spent), float(peak), int(switches), digest)


def figures(full: bool) -> Mapping[str, float]:
    """Return the figures: the best of some runs, since a busy machine only ever adds."""
    runs = 5 if full else 2
    small = [_apart(10_000, shuffle) for shuffle in range(runs)]
    large = [_apart(50_000) for _ in range(runs)]
    cpu_small, cpu_large = min(run.spent_s for run in small), min(run.spent_s for run in large)
    return {
        "cpu_s_10k": cpu_small,
        "peak_mb_10k": max(run.peak_mb for run in small),
        "switches_10k": small[0].switches,
        "same_bytes_10k": float(len({run.digest for run in small}) == 1),
        "cpu_s_50k": cpu_large,
        "peak_mb_50k": max(run.peak_mb for run in large),
        "growth_50k_over_10k": cpu_large / cpu_small,
    }


if __name__ == "__main__":
    print(*generate(int(sys.argv[1]), int(sys.argv[2])))

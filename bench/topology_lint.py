"""What it costs to lint the files of 10,000 nodes, with their slurm.conf."""

from __future__ import annotations

import time
from collections.abc import Mapping

from topology_fleet import fleet

from slurm_ext.slurm.model import Version
from slurm_ext.topology import blocks, render, render_yaml
from slurm_ext.topology.build import build
from slurm_ext.topology.lint import Source, lint
from slurm_ext.topology.lint_model import Given, release

NODES = 10_000
SLURM_CONF = f"""ClusterName=bench
TopologyPlugin=topology/tree
NodeName=gpu-st-p6e-[1-{NODES}] CPUs=144 State=CLOUD
PartitionName=all Nodes=ALL Default=YES
"""


def figures(full: bool) -> Mapping[str, float]:
    """Return the figures: the best of some runs."""
    version = Version(26, 5, "26.05.5")
    tree = build(fleet(NODES))
    conf = render.topology_conf(tree, origin="a bench", version=version)
    yaml = render_yaml.topology_yaml(tree, blocks.plan(tree, version), origin="a bench", version=version)
    return {
        "lint_s_10k": _best(Source("topology.conf", conf), full),
        "lint_yaml_s_10k": _best(Source("topology.yaml", yaml), full),
    }


def _best(source: Source, full: bool) -> float:
    target = release("26.05.5")
    assert target is not None
    best = float("inf")
    for _ in range(10 if full else 3):
        started = time.process_time()
        found = lint([source, Source("slurm.conf", SLURM_CONF)], Given(target))
        best = min(best, time.process_time() - started)
        assert all(finding.severity == "note" for finding in found), found
    return best

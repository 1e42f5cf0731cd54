"""How rules of the linter are written, and what their sources are called.

"tried" means that a real slurmctld of 22.05.8, 24.11.5 or 26.05.5 did it; the rest is read in Slurm's source and manuals.
"""

from __future__ import annotations

from slurm_ext.topology.lint_model import Rule

#: Releases at which something changed: the oldest, and those that brought blocks, BlockSizes (and the limit on names),
#: topology.yaml, the stop at an empty topology, and ring and torus3d.
OLDEST, BLOCKS, SIZES, YAML, STRICT, RINGS = (22, 5), (23, 11), (24, 5), (25, 5), (25, 11), (26, 5)

TREE_C = "topology/tree/switch_record.c (topology_tree.c before 24.05)"
BLOCK_C = "topology/block/block_record.c (topology_block.c in 23.11)"
RING_C, TORUS_C = "topology/ring/ring_record.c", "topology/torus3d/torus3d_record.c"
YAML_C = "interfaces/topology.c, data_parser/v0.0.43 and later"
PARSE_C = "common/parse_config.c"
HOSTLIST_C = "common/hostlist.c"
CONF_C = "common/read_config.c"


def rule(id_: str, severity: str, reason: str, remedy: str, source: str, *later: tuple[tuple[int, int], str]) -> Rule:
    """Return a rule that is `severity` in every release, or from `later` releases on something else."""
    return Rule(id_, ((OLDEST, severity), *later), reason, remedy, source)

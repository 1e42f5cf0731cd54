"""Rules of slurm.conf, and of releases."""

from __future__ import annotations

from slurm_ext.topology.lint_model import Rule
from slurm_ext.topology.lint_rule import BLOCKS, CONF_C, PARSE_C, RINGS, SIZES, YAML, YAML_C, rule

SLURM: tuple[Rule, ...] = (
    # slurm.conf.
    rule(
        "slurm.plugin",
        "fatal",
        "TopologyPlugin={what} is not in {release}{since}",
        "There are: {known}",
        "RELEASE_NOTES, tried",
    ),
    rule(
        "slurm.plugin-renamed",
        "note",
        "TopologyPlugin={what} is called {new} since {since}",
        "Write {new}",
        "RELEASE_NOTES",
    ),
    rule(
        "slurm.plugin-unset",
        "error",
        "a topology.conf with {kind}, but TopologyPlugin is {what}: it is not used",
        "TopologyPlugin=topology/{wanted}",
        "slurm.conf(5)",
    ),
    rule(
        "slurm.plugin-other",
        "fatal",
        "TopologyPlugin={what} refuses a topology.conf with {kind}",
        "TopologyPlugin=topology/{wanted}",
        PARSE_C + ", tried",
    ),
    rule(
        "slurm.yaml-wins",
        "note",
        "topology.yaml is read, topology.conf and TopologyPlugin={what} are not",
        "Keep one of the files",
        YAML_C,
    ),
    rule(
        "slurm.param",
        "warning",
        "TopologyParam={what} does nothing in {release}{since}",
        "There are: {known}",
        "slurm.conf(5)",
    ),
    rule(
        "slurm.route-plugin",
        "",
        "RoutePlugin is gone since 23.11",
        "TopologyParam=RouteTree",
        CONF_C,
        (BLOCKS, "note"),
    ),
    rule(
        "slurm.linear",
        "warning",
        "SelectType=select/linear with topology/tree stops 24.05 and later",
        "Use select/cons_tres",
        CONF_C,
        (SIZES, "fatal"),
    ),
    rule(
        "slurm.weights",
        "warning",
        "nodes of partition {name} have different Weight ({what}), and weight goes before topology",
        "Give them one Weight, or partitions of their own",
        "topology.shtml",
    ),
    rule(
        "slurm.route-overflow",
        "error",
        "TopologyParam=RouteTree with TreeWidth {width} and {count} nodes overflows and corrupts memory",
        "Lower TreeWidth, or leave RouteTree out; fixed in 25.05.6 and 25.11.1",
        "T23827",
        (RINGS, ""),
    ),
    rule(
        "slurm.route-forest",
        "warning",
        "TopologyParam=RouteTree with several roots: messages do not fan out along the tree",
        "Leave RouteTree out",
        "T25473",
    ),
    rule(
        "slurm.route-dynamic",
        "error",
        "TopologyParam=RouteTree does not go with dynamic nodes (MaxNodeCount)",
        "Leave RouteTree out",
        "slurm.conf(5) of 26.05",
    ),
    rule(
        "slurm.topology-key",
        "fatal",
        "Topology= on a {kind} line came with 25.05",
        "Leave it out",
        CONF_C + ", tried",
        (YAML, ""),
    ),
    rule(
        "slurm.topology-unknown",
        "fatal",
        "partition {name} wants the topology {what}, which topology.yaml does not have",
        "There are: {known}",
        "slurmctld/partition_mgr.c, tried",
    ),
    rule(
        "slurm.topology-conf",
        "fatal",
        "partition {name} wants the topology {what}, and without topology.yaml there is only `default`",
        "Write topology.yaml",
        "slurmctld/partition_mgr.c, tried",
    ),
    rule(
        "slurm.partition-roots",
        "warning",
        "nodes of partition {name} are under {count} roots: no job spans them",
        "Make a partition for each, so that nobody waits for ever",
        "topology/tree/eval_nodes_tree.c",
    ),
    # Releases.
    rule(
        "release.unsupported",
        "error",
        "{release} loses topology: nodes drop out of it at power-down, and new files may be ignored",
        "Use 25.11.3 or later",
        "T24405",
    ),
    rule(
        "release.unknown-patch",
        "note",
        "a release of {release} without its patch: {what}",
        "Give it whole, e.g. 25.11.7",
        "CHANGELOG",
    ),
    rule(
        "release.old",
        "note",
        "{release} is older than any that these rules were checked with (22.05)",
        "Read the result with care",
        "",
    ),
)

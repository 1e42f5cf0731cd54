"""Rules of files whatever they hold: Slurm's syntax, hostlists, and the shape of topology.yaml."""

from __future__ import annotations

from slurm_ext.topology.lint_model import Rule
from slurm_ext.topology.lint_rule import BLOCKS, HOSTLIST_C, PARSE_C, RINGS, STRICT, TREE_C, YAML, YAML_C, rule

FILES: tuple[Rule, ...] = (
    # Any file in Slurm's own syntax.
    rule("conf.parse", "fatal", "{what!r} is no KEY=VALUE: the whole file is refused", "Correct or remove it", PARSE_C),
    rule(
        "conf.unknown-key",
        "fatal",
        "the key {key} is not known here: the whole file is refused",
        "Remove it; keys of this file are {known}",
        PARSE_C + ", tried",
    ),
    rule(
        "conf.mixed",
        "fatal",
        "SwitchName and BlockName in one file: each plugin refuses the other's",
        "Keep one kind, or from 25.05 on both in topology.yaml",
        PARSE_C,
    ),
    rule(
        "conf.empty",
        "error",
        "no {kind}: the cluster has no topology",
        "Write some, or use another TopologyPlugin",
        f"{TREE_C}; fatal from 25.11 on (T23748), tried",
        (STRICT, "fatal"),
    ),
    rule(
        "conf.include",
        "warning",
        "Include {what}: it is not here, so what is missing may be in it; where slurmctld does not find it "
        "either, it waits a minute and stops",
        "Lint the files where slurmctld has them",
        PARSE_C + ", tried",
    ),
    rule(
        "conf.quoted",
        "fatal",
        "Include {what}: quotes are taken for a part of the name",
        "Leave them out",
        PARSE_C + ", tried",
    ),
    rule(
        "conf.circle",
        "fatal",
        "Include {what}: it includes itself, until no more files can be opened",
        "Leave it out",
        PARSE_C + ", tried",
    ),
    rule(
        "conf.glob",
        "fatal",
        "Include {what}: a pattern is not expanded, and the file is refused",
        "Name each file",
        PARSE_C,
    ),
    # Hostlists.
    rule("hostlist.bad", "fatal", "{what!r} is no hostlist", "Correct brackets and ranges", HOSTLIST_C + ", tried"),
    rule(
        "hostlist.open",
        "error",
        "{what!r} has a bracket that is not closed",
        "Close it",
        HOSTLIST_C + ", tried: 22.05.8 takes it for a name",
        ((23, 2), "fatal"),
    ),
    rule(
        "hostlist.large",
        "fatal",
        "{what!r} has a range of more than 65,536 hosts, as many names before its last bracket, or 262,144 ranges",
        "Write only the hosts that there are",
        HOSTLIST_C + " (MAX_RANGE, MAX_PREFIX_CNT, MAX_RANGES), tried",
    ),
    rule(
        "hostlist.too-many",
        "error",
        "{what!r} and what stands before it name more hosts than any cluster has",
        "Write only the hosts that there are",
        "a limit of this linter",
    ),
    rule(
        "hostlist.suffix",
        "fatal",
        "{what!r}: text behind a bracket is understood from 23.11 on only",
        "Let names end in their number, or list them",
        f"{HOSTLIST_C}, RELEASE_NOTES 23.11, tried on 22.05.8",
        (BLOCKS, ""),
    ),
    rule(
        "hostlist.digits",
        "warning",
        "{what} ends in {count} digits, more than Slurm's 64-bit number holds: a list reads it as another name",
        "Give it a name that ends in at most 19 digits",
        HOSTLIST_C + " (strtoul saturates), tried",
    ),
    # topology.yaml.
    rule(
        "yaml.unread",
        "error",
        "topology.yaml is not read before 25.05",
        "Write topology.conf",
        "RELEASE_NOTES 25.05",
        (YAML, ""),
    ),
    rule("yaml.parse", "fatal", "{what}", "Correct it", YAML_C + ", tried"),
    rule(
        "yaml.pages",
        "",
        "the file has {count} bytes, a multiple of 4096, which {release} reads beyond its end",
        "Add a line with a #",
        "plugins/serializer/yaml measures by strlen; fixed in 25.11.6",
        (YAML, "fatal"),
        (RINGS, ""),
    ),
    rule("yaml.shape", "fatal", "{what}", "See topology.yaml(5)", YAML_C + ", tried"),
    rule(
        "yaml.unknown-key",
        "warning",
        "{where} knows no key {key}: it is ignored",
        "Remove it; there are {known}",
        YAML_C + ", tried",
    ),
    rule(
        "yaml.key-twice",
        "warning",
        "the key {key} is there twice: the last one counts, but a list takes it in",
        "Keep one",
        YAML_C + ", tried",
    ),
    rule(
        "yaml.kinds",
        "fatal",
        "topology {name} has {what}: one kind is wanted",
        "Make a topology of each",
        YAML_C + ", tried",
    ),
    rule(
        "yaml.new-kind",
        "fatal",
        "topology {name} is a {kind}, which came with 26.05",
        "Use tree, block or flat",
        "RELEASE_NOTES 26.05",
        (RINGS, ""),
    ),
    rule("yaml.duplicate", "error", "a second topology {name}: nothing can refer to it", "Rename it", YAML_C),
    rule("yaml.unnamed", "error", "a topology without a name: no partition can refer to it", "Name it", YAML_C),
    rule(
        "yaml.defaults",
        "warning",
        "{count} topologies say cluster_default: the first of them is it",
        "Keep one",
        YAML_C,
    ),
    rule("yaml.no-default", "note", "no topology says cluster_default: the first one, {name}, is it", "Say it", YAML_C),
)

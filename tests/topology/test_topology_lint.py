"""The linter: a table of files for each Slurm, and what it must say. What a real slurmctld does is in tests/cluster."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from topology_cases import BLOCK, BLOCK_CASES, CONF_CASES, GOOD_YAML, NODES, SLURM_CASES, YAML_CASES, Case
from topology_cases_more import BLOCK_MORE, CONF_MORE, RINGS_MORE, SLURM_MORE, YAML_MORE

from slurm_ext.topology.lint import Source, kind_of, lint
from slurm_ext.topology.lint_model import SEVERITIES, Finding, Given, release
from slurm_ext.topology.lint_read import include_names, lines
from slurm_ext.topology.lint_rules import RULES

NOTHING: Mapping[str, str] = MappingProxyType({})
VERSIONS = ("22.05.8", "23.02.7", "23.11.10", "24.05.8", "24.11.5", "25.05.6", "25.11.4", "26.05.5")


def linted(
    files: dict[str, str],
    version: str,
    *,
    slurm: str = "",
    nodes: str = NODES,
    node: str = "",
    beside: Mapping[str, str] = NOTHING,
) -> list[Finding]:
    sources = [Source(name, text, "", beside) for name, text in files.items()]
    if slurm:
        sources.append(Source("slurm.conf", f"ClusterName=x\nNodeName={nodes} CPUs=2 {node}\n{slurm}\n"))
    target = release(version)
    assert target is not None
    return lint(sources, Given(target))


def of(case: Case, version: str) -> list[Finding]:
    slurm = f"{case.slurm}\n{case.partition or 'PartitionName=all Nodes=ALL'}"
    return linted(case.files, version, slurm=slurm, node=case.node, beside=case.beside)


def rules(found: list[Finding]) -> set[str]:
    return {finding.rule for finding in found}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "case",
    CONF_CASES + CONF_MORE + BLOCK_CASES + BLOCK_MORE + SLURM_CASES + SLURM_MORE,
    ids=lambda case: case.name,
)
def test_a_file_is_fatal_where_it_stops_slurmctld(case: Case, version: str) -> None:
    found = of(case, version)
    feature = release(version).feature
    assert any(finding.severity == "fatal" for finding in found) is case.stops(feature), found
    # A rule that makes the file fatal holds where it does; before 24.05 a file of blocks is refused for its keys already.
    if case.rule and (case.stops(feature) or not case.fatal) and feature >= case.since:
        assert case.rule in rules(found) or (case.slurm == BLOCK and feature < (24, 5)), found
    if not case.rule and not case.fatal:
        assert {finding.severity for finding in found} <= {"note"}, found


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= "25.05"])
@pytest.mark.parametrize("case", YAML_CASES + YAML_MORE + RINGS_MORE, ids=lambda case: case.name)
def test_a_topology_yaml_is_fatal_where_it_stops_slurmctld(case: Case, version: str) -> None:
    found = of(case, version)
    feature = release(version).feature
    fatal = [finding for finding in found if finding.severity == "fatal"]
    if case.conf == "word\n":  # the file that nothing reads is wrong all the same
        fatal = [finding for finding in fatal if finding.file == "topology.yaml"]
    assert bool(fatal) is case.stops(feature), found
    if case.rule and (case.stops(feature) or not case.fatal) and feature >= case.since:
        assert case.rule in rules(found), found


def test_before_2505_a_topology_yaml_is_not_read() -> None:
    found = linted({"topology.yaml": GOOD_YAML}, "24.11.5")
    assert [(finding.rule, finding.severity) for finding in found] == [("yaml.unread", "error")]


@pytest.mark.parametrize(
    ("version", "severity"),
    [("25.05.8", "fatal"), ("25.11.5", "fatal"), ("25.11.6", ""), ("25.11", "warning"), ("26.05.0", "")],
)
def test_whole_pages_are_a_fault_of_some_patches(version: str, severity: str) -> None:
    page = next(case for case in YAML_CASES if case.rule == "yaml.pages")
    found = [finding.severity for finding in linted(page.files, version) if finding.rule == "yaml.pages"]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("version", "kind", "faults"),
    [
        ("25.11.0", "tree", {"release.unsupported"}),
        ("25.11.2", "block", {"release.unsupported", "release.fault"}),
        ("25.11.3", "tree", set()),
        ("25.11.5", "block", {"release.fault"}),
        ("25.11.6", "block", set()),
        ("25.11", "tree", {"release.unknown-patch"}),
        ("24.05.0", "block", {"release.unsupported"}),
        ("24.05.2", "tree", {"release.fault"}),
        ("25.05.0", "tree", {"release.fault"}),
        ("26.05.0", "block", set()),
        ("21.08.8", "tree", {"release.old"}),
    ],
)
def test_faults_of_releases_are_named(version: str, kind: str, faults: set[str]) -> None:
    text = f"SwitchName=a Nodes={NODES}\n" if kind == "tree" else f"BlockName=a Nodes={NODES}\nBlockSizes=8\n"
    found = linted({"topology.conf": text}, version)
    assert {name for name in rules(found) if name.startswith("release")} == faults
    assert all("T2" in finding.reason for finding in found if finding.rule in ("release.unsupported", "release.fault"))


@pytest.mark.parametrize(
    ("version", "severity"), [("24.05.4", "warning"), ("24.05.5", "fatal"), ("23.11.10", "warning")]
)
def test_long_names_are_refused_from_24055_on(version: str, severity: str) -> None:
    found = linted({"topology.conf": f"SwitchName={'a' * 65} Nodes={NODES}\n"}, version)
    assert [finding.severity for finding in found if finding.rule == "tree.long-name"] == [severity]


@pytest.mark.parametrize(
    ("version", "severity"), [("26.05.2", "warning"), ("26.05.3", "fatal"), ("26.05", "fatal"), ("25.11.7", "warning")]
)
def test_sizes_of_a_yaml_are_checked_from_26053_on(version: str, severity: str) -> None:
    case = next(case for case in YAML_CASES if case.rule == "block.sizes-yaml")
    assert [f.severity for f in linted(case.files, version) if f.rule == case.rule] == [severity]


def test_2311_wants_blocks_of_one_size_and_levels() -> None:
    unequal = "BlockName=a Nodes=n[0-3]\nBlockName=b Nodes=n[4-7],n8\nBlockLevels=0,1\n"
    assert rules(linted({"topology.conf": unequal}, "23.11.10")) == {"block.unequal"}
    assert rules(linted({"topology.conf": unequal.replace(",n8", "")}, "23.11.10")) == set()
    assert "block.levels" in rules(linted({"topology.conf": unequal.replace("0,1", "0-16")}, "23.11.10"))


def test_weights_that_go_before_topology_are_named_with_their_line() -> None:
    slurm = "NodeName=DEFAULT Weight=1000\nNodeName=d[0-3] CPUs=2\nTopologyPlugin=topology/tree\nPartitionName=mixed Nodes=n[0-7],d[0-3]"
    found = linted({"topology.conf": f"SwitchName=a Nodes={NODES},d[0-3]\n"}, "24.11.5", slurm=slurm)
    (weight,) = [finding for finding in found if finding.rule == "slurm.weights"]
    assert (weight.file, weight.line, weight.severity) == ("slurm.conf", 6, "warning")
    assert "1: n[0-7], 1000: d[0-3]" in weight.reason


def test_weights_are_found_through_sets_of_nodes() -> None:
    """ParallelCluster's partitions have a NodeSet each, of static nodes of weight 1 and dynamic ones of 1000."""
    slurm = (
        "TopologyPlugin=topology/tree\nPartitionName=q Nodes=q_nodes\nPartitionName=f Nodes=by_feature\nPartitionName=one Nodes=st\n"
        "NodeName=q-st-p-[1-4] CPUs=2 Feature=static,p5\nNodeName=q-dy-p-[1-4] CPUs=2 Weight=1000 Feature=dynamic,p5\n"
        "NodeSet=q_nodes Nodes=q-st-p-[1-4],q-dy-p-[1-4]\nNodeSet=by_feature Feature=p5\nNodeSet=st Feature=static\n"
    )
    found = linted({"topology.conf": f"SwitchName=a Nodes={NODES},q-st-p-[1-4],q-dy-p-[1-4]\n"}, "24.11.5", slurm=slurm)
    weights = [finding for finding in found if finding.rule == "slurm.weights"]
    assert [finding.line for finding in weights] == [4, 5]
    assert all("1: q-st-p-[1-4], 1000: q-dy-p-[1-4]" in finding.reason for finding in weights)


def test_weights_go_before_a_topology_yaml_too() -> None:
    slurm = "NodeName=d[0-3] CPUs=2 Weight=9\nPartitionName=mixed Nodes=n[0-7],d[0-3]"
    assert "slurm.weights" in rules(linted({"topology.yaml": GOOD_YAML}, "26.05.5", slurm=slurm))
    assert "slurm.weights" not in rules(linted({"topology.yaml": GOOD_YAML}, "24.11.5", slurm=slurm))


def test_a_route_tree_over_the_limit_corrupts_memory_until_it_was_fixed() -> None:
    slurm = "TopologyPlugin=topology/tree\nTreeWidth=65533\nTopologyParam=RouteTree\n"
    topology = {"topology.conf": "SwitchName=a Nodes=n[0-33000]\n"}
    for version, wrong in (
        ("24.11.5", True),
        ("25.05.5", True),
        ("25.05.6", False),
        ("25.11.1", False),
        ("26.05.5", False),
    ):
        found = linted(topology, version, slurm=slurm, nodes="n[0-33000]")
        assert ("slurm.route-overflow" in rules(found)) is wrong, version
    small = linted({"topology.conf": f"SwitchName=a Nodes={NODES}\n"}, "24.11.5", slurm=slurm)
    assert "slurm.route-overflow" not in rules(small)


def test_a_route_tree_goes_with_neither_dynamic_nodes_nor_two_roots() -> None:
    slurm = "TopologyPlugin=topology/tree\nMaxNodeCount=100\nTopologyParam=RouteTree\n"
    found = linted({"topology.conf": "SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\n"}, "24.11.5", slurm=slurm)
    assert {"slurm.route-dynamic", "slurm.route-forest"} <= rules(found)


def test_includes_are_followed_and_missing_ones_noted() -> None:
    text = "Include switches.conf\ninclude other.conf\n"
    inner = f"# one\nSwitchName=a Nodes={NODES} Colour=red\n"
    found = lint([Source("topology.conf", text, "", {"switches.conf": inner})], Given(release("24.11.5")))
    assert [(f.file, f.line, f.rule) for f in found] == [
        ("switches.conf", 2, "conf.unknown-key"),
        ("topology.conf", 2, "conf.include"),
    ]
    assert include_names(text) == ["switches.conf", "other.conf"]
    assert rules(linted({"topology.conf": "Include *.conf\n"}, "24.11.5")) == {"conf.glob", "conf.empty"}


def test_what_an_include_may_hold_is_not_called_missing() -> None:
    slurm = Source("slurm.conf", "ClusterName=x\nInclude cloud.conf\nNodeName=login CPUs=2\n")
    topology = Source("topology.conf", "SwitchName=a Switches=b,zz\nSwitchName=b Nodes=n[0-7]\n")
    found = lint([topology, slurm], Given(release("24.11.5")))
    # The plugin, the nodes and even a switch may stand where nobody looked; the rest of what is wrong still is.
    assert [f.rule for f in found if f.severity in ("fatal", "error", "warning")] == ["conf.include"]
    found = lint([topology._replace(text="SwitchName=a\nSwitchName=a\n"), slurm], Given(release("24.11.5")))
    assert "fatal" in {f.severity for f in found if f.file == "topology.conf"}
    both = lint(
        [topology, slurm._replace(includes={"cloud.conf": "NodeName=n[0-7] CPUs=2\n"})], Given(release("24.11.5"))
    )
    assert {f.severity for f in both if f.rule == "tree.unknown-child"} == {"error"}  # no plugin reads the file


def test_an_include_of_itself_ends() -> None:
    assert len(list(lines("a", "Include a\n", {"a": "Include a\n"}))) < 20


def test_lines_are_those_of_the_file() -> None:
    text = "# one\n\nSwitchName=a \\\n  Nodes=n1 # two\nSwitchName=b Nodes=n2\\#3\n"
    found = [(line.number, line.pairs, line.rest) for line in lines("f", text)]
    assert found == [
        (3, (("switchname", "a"), ("nodes", "n1")), ""),
        (5, (("switchname", "b"), ("nodes", "n2#3")), ""),
    ]


def test_kinds_of_file_are_told_by_name_or_by_what_they_hold() -> None:
    assert kind_of("x/topology.yaml", "") == "topology.yaml"
    assert kind_of("mine.txt", "SwitchName=a Nodes=b") == "topology.conf"
    assert kind_of("mine.txt", "\nNodeName=a CPUs=1\n") == "slurm.conf"
    assert kind_of("mine.txt", "- topology: a\n") == "topology.yaml"


def test_a_rule_that_fires_too_often_says_how_much_more() -> None:
    text = "".join(f"SwitchName=a{i} Nodes=n{i} Colour=red\n" for i in range(50))
    found = linted({"topology.conf": text}, "24.11.5")
    assert sum(finding.rule == "conf.unknown-key" for finding in found) == 21
    assert any(finding.reason == "30 more of conf.unknown-key" for finding in found)


def test_many_switches_are_slow_and_too_many_do_not_fit() -> None:
    text = "".join(f"SwitchName=a{i} Nodes=n{i}\n" for i in range(3000))
    assert "tree.many-switches" in rules(linted({"topology.conf": text}, "24.11.5"))
    text = "".join(f"SwitchName=a{i} Nodes=n{i}\n" for i in range(65_535))
    assert "tree.too-many-switches" in rules(linted({"topology.conf": text}, "24.11.5"))


def test_every_rule_has_words_and_known_severities() -> None:
    for rule in RULES.values():
        assert rule.reason
        assert rule.remedy
        assert rule.source or rule.id == "release.old"
        assert {severity for _, severity in rule.severities} <= {*SEVERITIES, ""}
        assert [since for since, _ in rule.severities] == sorted(since for since, _ in rule.severities)


def test_a_release_is_read_from_what_slurm_prints() -> None:
    assert release("slurm-wlm 24.11.5-4") == (24, 11, 5)
    assert release("slurm 25.05.0-0rc1") == (25, 5, 0)
    assert release("26.05") == (26, 5, -1)
    assert release("none") is None

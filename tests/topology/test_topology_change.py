"""The smallest change: what each difference takes on each version of Slurm, and what must not be done, or not yet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.slurm.conf_file import EDITED, FOREIGN, MISSING, OURS, Held, digest, stamped
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import parse_version
from slurm_ext.topology.build import build
from slurm_ext.topology.change import (
    FILE,
    LEVELS,
    MAX_STALE,
    MAX_UPDATES,
    NEVER,
    NODE_UPDATE,
    NOTHING,
    RECONFIGURE,
    RESTART,
    Limits,
    Past,
    Plan,
    Refusal,
    Seen,
    plan,
    refused_key,
)
from slurm_ext.topology.model import Placement
from slurm_ext.topology.written import Choice, Written, essence, written

NOW = 1_800_000_000.0
ALL = Limits(RESTART, 1800.0, settle=False)
OLD, MIDDLE, NEW = "22.05.8", "24.11.5", "26.05.5"


def version_of(text: str) -> Version:
    found = parse_version(text)
    assert found is not None
    return found


def places(**paths: str) -> list[Placement]:
    """n1="a/b": node n1 at that path, with an instance; an empty path has none."""
    return [
        Placement(n, f"i-{n}" if p else "", "p5.48xlarge", tuple(p.split("/")) if p else (), "z")
        for n, p in paths.items()
    ]


def made(placements: list[Placement], version: str = NEW, format_: str = "tree", **more: object) -> Written:
    choice = Choice(format_, **more)  # type: ignore[arg-type]
    return written(build(placements), choice, origin="a test", version=version_of(version))


NEVER_YET = Past()
BEFORE = places(n1="s/a", n2="s/a", n3="s/b", n4="s/b")


def running(taken_in: Written, version: str = NEW, **more: object) -> Seen:
    """What runs where a file was taken in."""
    file = Held("/etc/slurm/topology.conf", stamped(taken_in.text), OURS)
    nodes = frozenset(node for paths in taken_in.paths.values() for node in paths)
    seen = Seen(version_of(version), f"topology/{taken_in.format}", taken_in.paths, nodes, file)
    return seen._replace(**more)  # type: ignore[arg-type]


def decided(
    wanted: Written, seen: Seen, past: Past = NEVER_YET, limits: Limits = ALL, away: frozenset[str] = frozenset()
) -> Plan:
    return plan(wanted, digest(essence(wanted.text)), seen, past, limits, now=NOW, away=away)


MOVES: Mapping[str, tuple[list[Placement], dict[str, str]]] = {
    "nothing": (BEFORE, {OLD: NOTHING, MIDDLE: NOTHING, NEW: NOTHING}),
    "a node to a leaf that is there": (
        places(n1="s/a", n2="s/b", n3="s/b", n4="s/b"),
        {
            OLD: RECONFIGURE,
            MIDDLE: RECONFIGURE,
            "25.05.1": NODE_UPDATE,
            "25.11.2": RECONFIGURE,
            "25.11.3": NODE_UPDATE,
            NEW: NODE_UPDATE,
        },
    ),
    "a node to a new leaf": (places(n1="s/a", n2="s/c", n3="s/b", n4="s/b"), {MIDDLE: RECONFIGURE, NEW: NODE_UPDATE}),
    "the root is another": (places(n1="t/a", n2="t/a", n3="t/b", n4="t/b"), {NEW: RECONFIGURE}),
    "a tier more": (
        places(n1="s/m1/a", n2="s/m1/c", n3="s/m2/b", n4="s/m2/d"),
        {NEW: NODE_UPDATE},
    ),
}


@pytest.mark.parametrize("case", MOVES)
def test_the_least_that_does(case: str) -> None:
    after, by_version = MOVES[case]
    for version, level in by_version.items():
        found = decided(made(after, version), running(made(BEFORE, version), version))
        assert found.level == level, (version, found)
        assert not found.blocked
        assert (found.level == NODE_UPDATE) == bool(found.updates)


def test_updates_name_each_place_once() -> None:
    after = places(n1="s/b", n2="s/b", n3="s/b", n4="s/a")
    found = decided(made(after), running(made(BEFORE)))
    assert found.level == NODE_UPDATE
    assert len(found.updates) == 2
    (nodes, place), *_ = found.updates
    assert nodes == "n[1-2]"
    assert place.startswith("default:l1-h")


def test_many_places_at_once_take_a_reconfigure() -> None:
    names = [f"n{number}" for number in range(MAX_UPDATES * 2 + 2)]
    before = places(**{name: f"s/l{number // 2}" for number, name in enumerate(names)})
    after = places(**{name: f"s/l{(number + 1) // 2 % (len(names) // 2)}" for number, name in enumerate(names)})
    found = decided(made(after), running(made(before)))
    assert found.level == RECONFIGURE
    assert f"more than {MAX_UPDATES} places change" in found.why


@pytest.mark.parametrize(
    ("leaves", "new", "level"), [(20, 20, NODE_UPDATE), (1000, 1, NODE_UPDATE), (1000, 3, RECONFIGURE)]
)
def test_new_switches_that_keep_slurmctld_busy_take_a_reconfigure(leaves: int, new: int, level: str) -> None:
    before = places(**{f"n{number}": f"s/l{number}" for number in range(leaves)})
    after = [place._replace(path=("s", f"new{place.node}")) if int(place.node[1:]) < new else place for place in before]
    found = decided(made(after), running(made(before)))
    assert found.level == level
    assert ("new switches would keep slurmctld busy" in found.why) == (level == RECONFIGURE)


@pytest.mark.parametrize(("stale", "level"), [(0, NODE_UPDATE), (MAX_STALE - 1, NODE_UPDATE), (MAX_STALE, RECONFIGURE)])
def test_switches_that_no_node_is_below_any_more_do_not_pile_up(stale: int, level: str) -> None:
    found = decided(made(places(n1="s/a", n2="s/c", n3="s/b", n4="s/b")), running(made(BEFORE), stale=stale))
    assert found.level == level


@pytest.mark.parametrize(
    ("version", "level"), [(OLD, RESTART), ("23.02.1", RESTART), ("23.11.1", RECONFIGURE), (NEW, RECONFIGURE)]
)
def test_a_first_tree(version: str, level: str) -> None:
    wanted = made(BEFORE, version)
    seen = running(wanted, version, paths={"default": {}})
    assert decided(wanted, seen).level == level


@pytest.mark.parametrize("plugin", ["topology/none", "topology/default", "topology/flat", ""])
def test_what_slurm_does_not_read_is_written_and_no_more(plugin: str) -> None:
    wanted = made(BEFORE)
    seen = running(wanted, plugin=plugin, paths={"default": {}}, held=Held("/etc/slurm/topology.conf"))
    found = decided(wanted, seen)
    assert (found.level, found.writes) == (FILE, True)
    assert "TopologyPlugin=topology/tree" in found.later
    again = decided(wanted, running(wanted, plugin=plugin, paths={"default": {}}))
    assert again.level == NOTHING
    assert again.later


def test_a_topology_yaml_that_wins_is_named() -> None:
    wanted = made(BEFORE)
    assert (
        "/etc/slurm/topology.yaml in its place"
        in decided(wanted, running(wanted, wins="/etc/slurm/topology.yaml")).later
    )


def test_a_file_that_lacks_behind_is_written_alone() -> None:
    wanted = made(BEFORE)
    for held in (Held("/f"), Held("/f", stamped("SwitchName=s Nodes=n[1-4]\n"), OURS)):
        found = decided(wanted, running(wanted, held=held))
        assert (found.level, found.writes) == (FILE, True)


def test_a_comment_is_no_change() -> None:
    wanted = made(BEFORE)
    held = Held("/f", stamped("# another origin\n" + wanted.text), OURS)
    assert decided(wanted, running(wanted, held=held)).level == NOTHING


def test_a_file_that_was_written_and_never_confirmed_is_taken_in() -> None:
    for wanted, level in ((made(BEFORE), NOTHING), (made(GB, NEW, "block", block_size=2), RECONFIGURE)):
        past = Past(unconfirmed=digest(essence(wanted.text)))
        # Of a tree all is in the nodes' paths; sizes of blocks are not.
        assert decided(wanted, running(wanted), past).level == level


@pytest.mark.parametrize(("has", "wants"), [("tree", "block"), ("block", "tree")])
def test_a_file_of_another_plugin_is_never_put_where_slurm_reads_it(has: str, wants: str) -> None:
    wanted = made(GB, NEW, wants)
    for force in (False, True):
        limits = ALL._replace(force=force, at_once=True, accept_loss=True)
        found = decided(wanted, running(made(GB, NEW, has), paths={"default": {}}), limits=limits)
        assert "would not start any more" in found.blocked
        assert not found.acts


def test_a_topology_of_blocks_does_not_vanish_by_itself() -> None:
    before = made(GB, NEW, "yaml")
    silent = [place._replace(clique="") for place in GB]
    wanted = made(silent, NEW, "yaml")
    seen = running(before, plugin="topology/flat", paths={"efa": before.paths["efa"]})
    assert "topology nvl" in decided(wanted, seen).blocked
    assert decided(wanted, seen, limits=ALL._replace(accept_loss=True)).acts


def test_a_yaml_does_not_win_over_somebody_elses_file_unasked() -> None:
    wanted = made(BEFORE, NEW, "yaml")
    seen = running(
        wanted, plugin="topology/tree", held=Held("/f"), paths={"efa": {}}, beside="/etc/slurm/topology.conf"
    )
    assert "/etc/slurm/topology.conf" in decided(wanted, seen).blocked
    assert decided(wanted, seen, limits=ALL._replace(force=True)).acts


GB = [
    Placement(f"g{n}", f"i-g{n}", "p6e-gb200.36xlarge", ("s", f"l{n // 2}"), "z", "", "", f"c.{n // 2}")
    for n in range(8)
]


def test_sizes_of_blocks_take_a_reconfigure_and_members_an_update() -> None:
    small, large = (made(GB, NEW, "block", block_size=size) for size in (2, 4))
    assert decided(large, running(small)).level == RECONFIGURE
    moved = [place._replace(clique="c.1") if place.node == "g0" else place for place in GB]
    assert decided(made(moved, NEW, "block", block_size=2), running(small)).level == NODE_UPDATE
    assert (
        decided(
            made(moved, MIDDLE, "block", block_size=1), running(made(GB, MIDDLE, "block", block_size=1), MIDDLE)
        ).level
        == RECONFIGURE
    )
    fresh = [place._replace(clique="c.9") if place.node == "g0" else place for place in GB]
    assert decided(made(fresh, NEW, "block", block_size=2), running(small)).level == RECONFIGURE


def test_nodes_that_went_change_nothing_and_come_along() -> None:
    away = frozenset({"n1"})
    after = places(n1="", n2="s/a", n3="s/b", n4="s/b")
    found = decided(made(after), running(made(BEFORE)), away=away)
    assert found.level == NOTHING
    assert "1 node has no place now" in found.why
    after = places(n1="", n2="s/a", n3="s/b", n4="s/a")
    found = decided(made(after), running(made(BEFORE)), away=away)
    assert (found.level, [nodes for nodes, _ in found.updates]) == (NODE_UPDATE, ["n4"])


def test_a_node_that_slurm_does_not_know_is_no_difference() -> None:
    wanted = made([*BEFORE, *places(n9="s/a")])
    seen = running(made(BEFORE))
    assert {move.node for move in decided(wanted, seen).moves["default"]} == set()


@pytest.mark.parametrize("state", [FOREIGN, EDITED, OURS, MISSING])
def test_somebody_elses_file(state: str) -> None:
    wanted = made(places(n1="s/a", n2="s/b", n3="s/b", n4="s/b"))
    held = Held("/f", "" if state == MISSING else "SwitchName=x Nodes=n[1-4]\n", state)
    found = decided(wanted, running(made(BEFORE), held=held))
    assert bool(found.blocked) == (state in (FOREIGN, EDITED))
    assert ("--force" in found.remedy) == bool(found.blocked)
    assert decided(wanted, running(made(BEFORE), held=held), limits=ALL._replace(force=True)).acts


def test_the_same_content_in_somebody_elses_file_needs_no_write() -> None:
    wanted = made(BEFORE)
    assert decided(wanted, running(wanted, held=Held("/f", wanted.text, FOREIGN))).level == NOTHING


@pytest.mark.parametrize("ceiling", [NEVER, *LEVELS[2:]])
@pytest.mark.parametrize("version", [OLD, NEW])
def test_no_further_than_allowed(ceiling: str, version: str) -> None:
    after = places(n1="s/a", n2="s/b", n3="s/b", n4="s/b")
    found = decided(made(after, version), running(made(BEFORE, version), version), limits=ALL._replace(ceiling=ceiling))
    allowed = ceiling != NEVER and LEVELS.index(found.level) <= LEVELS.index(ceiling)
    assert found.acts == allowed
    assert bool(found.blocked) != allowed


AFTER = places(n1="t/a", n2="t/a", n3="t/b", n4="t/c")


@pytest.mark.parametrize(
    ("past", "limits", "acts", "words"),
    [
        (Past(), ALL, True, ""),
        (Past(acted_at=NOW - 60), ALL, False, "min_interval_min"),
        (Past(acted_at=NOW - 60), ALL._replace(at_once=True), True, ""),
        (Past(acted_at=NOW - 1801), ALL, True, ""),
        (Past(acted_at=NOW + 3600), ALL, True, ""),  # the clock went back: nobody waits for hours
        (Past(), ALL._replace(settle=True), False, "same answer"),
        (Past(differs="another", differs_since=NOW - 60), ALL._replace(settle=True), False, "same answer"),
        (Past(differs="another", differs_since=NOW - 1801), ALL._replace(settle=True), True, ""),
        (Past(differs="another", differs_since=NOW + 9e6), ALL._replace(settle=True), True, ""),
        (Past(differs="this", differs_since=NOW - 1), ALL._replace(settle=True), True, ""),
        (Past(refused={"this": Refusal(NOW - 60, 1, "no")}), ALL, False, "did not take"),
        (Past(refused={"this": Refusal(NOW - 3601, 1, "no")}), ALL, True, ""),
        (Past(refused={"this": Refusal(NOW - 3601, 2, "no")}), ALL, False, "did not take"),
        (Past(refused={"this": Refusal(NOW - 8 * 86_400, 99, "no")}), ALL, True, ""),
        (Past(refused={"this": Refusal(NOW - 60, 1, "no")}), ALL._replace(force=True), True, ""),
        (Past(refused={"this": Refusal(NOW - 60, 1, "no")}), ALL._replace(at_once=True), True, ""),
        (Past(refused={"other": Refusal(NOW - 60, 1, "no")}), ALL, True, ""),
    ],
)
def test_when_it_may_be_done(past: Past, limits: Limits, acts: bool, words: str) -> None:
    wanted = made(AFTER)
    this = digest(essence(wanted.text))
    past = past._replace(
        differs=this if past.differs == "this" else past.differs,
        refused={
            refused_key(this, version_of(NEW)) if key == "this" else key: one for key, one in past.refused.items()
        },
    )
    found = decided(wanted, running(made(BEFORE)), past, limits)
    assert found.level == RECONFIGURE
    assert found.acts == acts
    assert words in found.waits_for


def test_an_update_waits_for_no_interval() -> None:
    after = places(n1="s/a", n2="s/b", n3="s/b", n4="s/b")
    assert decided(made(after), running(made(BEFORE)), Past(acted_at=NOW - 1)).acts


def test_most_running_nodes_without_a_place_are_an_answer_that_is_not_whole() -> None:
    after = [place._replace(path=()) if place.node in ("n1", "n2", "n3") else place for place in BEFORE]
    seen = running(made(BEFORE))
    # They run, so nobody calls them away.
    found = decided(made([*after[:3], after[3]._replace(path=("s", "c"))]), seen)
    assert "3 of 4 running nodes" in found.blocked
    assert decided(made(after), seen, limits=ALL._replace(force=True)).blocked
    assert not decided(made(after), seen, limits=ALL._replace(accept_loss=True)).blocked


@given(
    st.lists(st.tuples(st.sampled_from("sst"), st.sampled_from("abcd")), min_size=4, max_size=4),
    st.lists(st.tuples(st.sampled_from("sst"), st.sampled_from("abcd")), min_size=4, max_size=4),
    st.sampled_from([OLD, MIDDLE, NEW]),
)
def test_taking_it_in_leaves_nothing_to_do(
    before: list[tuple[str, str]], after: list[tuple[str, str]], version: str
) -> None:
    names = ("n1", "n2", "n3", "n4")
    was, now = (
        made(places(**{name: "/".join(path) for name, path in zip(names, paths, strict=True)}), version)
        for paths in (before, after)
    )
    found = decided(now, running(was, version))
    assert found.differs == (was.paths != now.paths or essence(was.text) != essence(now.text))
    done = decided(now, running(now, version))
    assert (done.level, done.writes) == (NOTHING, False)
    # What updates say is where the nodes are wanted.
    told = {text for _, text in found.updates}
    assert told <= set(now.strings.values())

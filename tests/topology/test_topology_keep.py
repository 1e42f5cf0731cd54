"""What is known of a node that nobody can ask for now."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError
from slurm_ext.topology import memory
from slurm_ext.topology.change import Past, Refusal
from slurm_ext.topology.keep import keep
from slurm_ext.topology.memory import Memory, Undo
from slurm_ext.topology.model import Placement

SAT = Placement("n", "i-1", "p6e-gb200.36xlarge", ("s", "a"), "z", "cb", "us", "c.1")


@pytest.mark.parametrize(
    ("now", "asked", "heard", "path", "clique"),
    [
        (SAT._replace(path=("s", "b"), clique="c.2"), True, True, ("s", "b"), "c.2"),
        (SAT._replace(path=()), False, True, ("s", "a"), "c.1"),
        (SAT._replace(path=(), instance_id=""), False, True, ("s", "a"), "c.1"),
        (SAT._replace(path=(), instance_id="i-2"), False, True, (), "c.1"),  # another instance: nobody knows where
        (SAT._replace(path=()), True, True, (), "c.1"),  # asked, and a type without topology
        (SAT._replace(clique="", ultraserver_id=""), True, False, ("s", "a"), "c.1"),
        (SAT._replace(clique="", ultraserver_id="", instance_id="i-2"), True, False, ("s", "a"), ""),
        (SAT._replace(clique="", ultraserver_id=""), True, True, ("s", "a"), ""),
    ],
)
def test_a_running_node_stays_where_it_was_until_somebody_says_otherwise(
    now: Placement, asked: bool, heard: bool, path: tuple[str, ...], clique: str
) -> None:
    found = keep([now], {"n": SAT}, unasked=() if asked else {"n"}, unheard=() if heard else {"n"})
    assert (found.placements[0].path, found.placements[0].clique) == (path, clique)
    assert found.away == frozenset()
    assert bool(found.notes) == (found.placements[0] != now)


@pytest.mark.parametrize("too", [True, False])
def test_a_node_that_went_keeps_its_place_as_long_as_nothing_else_changes(too: bool) -> None:
    off = Placement("n", "", "", (), "z")
    found = keep([off], {"n": SAT}, away_too=too)
    assert found.away == {"n"}
    assert found.placements[0].path == (SAT.path if too else ())
    assert keep([off], {}).placements == [off]


def test_a_node_that_runs_is_not_away_because_nobody_named_it() -> None:
    nameless = Placement("n")
    found = keep([nameless], {"n": SAT}, off=frozenset(), unasked={"n"})
    assert (found.away, found.placements) == (frozenset(), [SAT])
    assert keep([nameless], {}, off=frozenset()).away == frozenset()
    assert keep([nameless], {}, off={"n"}).away == {"n"}


def settings(folder: Path) -> Settings:
    found = Settings()
    return found._replace(site=found.site._replace(state_dir=str(folder)))


def test_what_is_remembered_comes_back(tmp_path: Path) -> None:
    undo = Undo("/f", "digest", "/f.copy", (("127.0.0.1", 6817),))
    held = Memory(Past(1.0, 2.0, "d", {"k": Refusal(3.0, 2, "no")}, "u"), {"n": SAT}, "said", undo)
    memory.write(settings(tmp_path), held)
    assert memory.read(settings(tmp_path)) == held


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"schema": 2}',
        '{"schema": 1}',
        '{"schema": 1, "past": {}, "placements": [], "said": ""}',
        '{"schema": 1, "past": {"acted_at": 0, "differs_since": 0, "differs": "", "refused": {"k": [1]}, "unconfirmed": ""},'
        ' "placements": [], "said": ""}',
        '{"schema": 1, "past": {"acted_at": 0, "differs_since": 0, "differs": "", "refused": {}, "unconfirmed": ""},'
        ' "placements": [[1, 2, 3, [4], 5, 6, 7, 8]], "said": ""}',
        "[" * 100_000,
    ],
)
def test_a_memory_that_is_none_is_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "topology.json").write_text(content)
    found = memory.read(settings(tmp_path))
    assert found._replace(trouble="") == Memory()
    assert "topology.json" in found.trouble


def test_a_memory_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    assert memory.read(settings(tmp_path)) == Memory()


def test_a_memory_of_somebody_elses_is_nothing(tmp_path: Path) -> None:
    memory.write(settings(tmp_path), Memory(said="x"))
    os.chmod(tmp_path / "topology.json", 0o666)
    found = memory.read(settings(tmp_path))
    assert (found.said, "topology.json" in found.trouble) == ("", True)


def test_no_more_refusals_are_kept_than_twenty(tmp_path: Path) -> None:
    many = {f"k{number}": Refusal(float(number), 1, "no") for number in range(50)}
    memory.write(settings(tmp_path), Memory(Past(refused=many)))
    kept = json.loads((tmp_path / "topology.json").read_text())["past"]["refused"]
    assert list(kept) == [f"k{number}" for number in range(30, 50)]


def test_one_lock(tmp_path: Path) -> None:
    own = settings(tmp_path)
    with memory.locked(own), pytest.raises(LackingError, match="another fmslurm"), memory.locked(own):
        raise AssertionError("two at once")
    with memory.locked(own):
        pass

"""Mode ladder, narrowing, switches, heartbeat; the hostlist question; changing one value in a file; finding the file."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config import hostlist, modes
from slurm_ext.config.edit import set_value
from slurm_ext.config.locate import config_path, locate
from slurm_ext.config.model import MODES, ROOMS, Mode, Settings
from slurm_ext.config.modes import Heartbeat, Off, effective_mode, heartbeat_is_fresh, switch_off
from slurm_ext.config.yaml_file import parse
from slurm_ext.errors import ConfigError

NOW = 1_900_000_000.0


def mode_of(mode: Mode, *, node: str = "n1", partition: str = "p", off: tuple[Off, ...] = ()) -> tuple[str, str]:
    return effective_mode(Settings(mode=mode), "gate", node=node, partition=partition, off=off, now=NOW)


@pytest.mark.parametrize(
    ("mode", "where", "expected", "why"),
    [
        (Mode(gate="off"), {}, "off", "mode.gate is off"),
        (Mode(gate="shadow"), {}, "shadow", "mode.gate is shadow"),
        (Mode(gate="warn", canary="n9"), {}, "warn", "mode.gate is warn"),
        (Mode(gate="enforce"), {}, "enforce", "mode.gate is enforce"),
        (Mode(gate="enforce", partitions=("p",)), {}, "enforce", "is enforce"),
        (Mode(gate="enforce", partitions=("q",)), {}, "shadow", "partition p is not in"),
        (Mode(gate="enforce", partitions=("q",)), {"partition": ""}, "shadow", "(unknown)"),
        (Mode(gate="enforce", canary="n[1-3]"), {}, "enforce", "is enforce"),
        (Mode(gate="enforce", canary="n[2-3]"), {}, "shadow", "node n1 is not in mode.canary"),
        (Mode(gate="enforce", canary="n[1-3]"), {"node": ""}, "shadow", "(unknown)"),
        (Mode(gate="enforce", canary="n[1-"), {}, "shadow", "no hostlist"),
        (Mode(gate="enforce", canary="n1", partitions=("q",)), {}, "shadow", "partition"),
        (
            Mode(gate="enforce"),
            {"off": (Off("gate", NOW + 60, "broken", "me"),)},
            "off",
            "by me for another 1 min: broken",
        ),
        (Mode(gate="enforce"), {"off": (Off("all", NOW + 7200),)}, "off", "another 2.0 h: no reason given"),
        (Mode(gate="enforce"), {"off": (Off("burnin", NOW + 60),)}, "enforce", "is enforce"),
        (Mode(gate="enforce"), {"off": (Off("gate", NOW),)}, "enforce", "is enforce"),
        (Mode(gate="enforce"), {"off": (Off("gate", NOW - 1), Off("all", NOW + 1))}, "off", "switched off"),
    ],
)
def test_what_holds_here_and_now(mode: Mode, where: dict[str, object], expected: str, why: str) -> None:
    found, said = mode_of(mode, **where)
    assert found == expected
    assert why in said


def test_a_room_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="topology"):
        effective_mode(Settings(), "toplogy", now=NOW)


def test_switching_off_in_settings_agrees_with_the_question() -> None:
    enforce = Settings(mode=Mode(**dict.fromkeys(ROOMS, "enforce")))
    for room, left_s in itertools.product([*ROOMS, "all"], [-1.0, 0.0, 1.0]):
        off = (Off(room, NOW + left_s),)
        changed = switch_off(enforce, off, now=NOW)
        for each in ROOMS:
            assert getattr(changed.mode, each) == effective_mode(enforce, each, off=off, now=NOW)[0]


@pytest.mark.parametrize(
    ("beat", "fresh"),
    [
        (None, False),
        (Heartbeat(NOW), True),
        (Heartbeat(NOW - 30), True),
        (Heartbeat(NOW - 31), False),
        (Heartbeat(NOW + 29), True),
        (Heartbeat(NOW + 3600), False),
    ],
)
def test_a_heartbeat_grows_old(beat: Heartbeat | None, fresh: bool) -> None:
    assert heartbeat_is_fresh(beat, now=NOW) is fresh


@given(
    st.text(max_size=40)
    | st.sampled_from(['{"until": true}', '{"until": "1"}', '{"until": NaN}', '{"until": 1e999}', "[]"])
)
def test_no_content_of_a_switch_or_heartbeat_raises(content: str) -> None:
    assert modes.off_from_json("gate", content) is None or '"until"' in content
    assert modes.heartbeat_from_json(content) is None or '"time"' in content


def test_switch_and_heartbeat_come_back_as_written() -> None:
    switch, beat = Off("all", NOW, "r\n\x1b", "b"), Heartbeat(NOW, "enforce", 12)
    assert modes.off_from_json("all", modes.off_to_json(switch)) == switch
    assert modes.heartbeat_from_json(modes.heartbeat_to_json(beat)) == beat
    assert modes.off_from_json("nonsense", modes.off_to_json(switch)) is None
    assert modes.heartbeat_from_json('{"time": 5, "pid": "x"}') == Heartbeat(5.0)
    assert modes.heartbeat_from_json("[" * 100_000) is None


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("n1", ["n1"], ["n", "n11", "n01", "N1", "xn1"]),
        ("n[1-3,7]", ["n1", "n3", "n7"], ["n4", "n01", "n0", "n31"]),
        ("n[08-10]", ["n08", "n09", "n10"], ["n8", "n7", "n010"]),
        ("n[8-10]", ["n8", "n10"], ["n08", "n010"]),
        ("n[001-100]x", ["n001x", "n100x"], ["n1x", "n100", "n0100x"]),
        ("r[1-2]n[1-2]", ["r1n2"], ["r3n1", "r1n3", "r1"]),
        ("a,b[1-2], c-d.e", ["a", "b2", "c-d.e"], ["b3", "c-dxe", ""]),
        ("", [], ["a", ""]),
        ("n[0-99999999]", ["n99999999"], ["n100000000"]),
        ("n[5-1]", [], ["n3"]),
    ],
)
def test_is_this_node_in_that_hostlist(text: str, inside: list[str], outside: list[str]) -> None:
    assert [name for name in inside if not hostlist.contains(text, name)] == []
    assert [name for name in outside if hostlist.contains(text, name)] == []


@pytest.mark.parametrize(
    "text", ["n[", "n]", "n[[1]]", "n[a]", "n[1-]", "n[]", "n 1", "n;m", "n[1,,2]", "n[-1]", "$(x)"]
)
def test_broken_hostlists_are_refused(text: str) -> None:
    with pytest.raises(hostlist.HostlistError):
        hostlist.contains(text, "n1")


@given(st.text("n1[]-, .0", max_size=14), st.text("n10.", max_size=6) | st.just("n" + "1" * 5000))
def test_no_hostlist_raises_anything_else(text: str, name: str) -> None:
    with contextlib.suppress(hostlist.HostlistError):
        hostlist.contains(text, name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "\nmode:\n  gate: enforce\n"),
        ("# c\n", "# c\n\nmode:\n  gate: enforce\n"),
        ("site:\n  cluster: a", "site:\n  cluster: a\n\nmode:\n  gate: enforce\n"),
        ("mode:\n", "mode:\n  gate: enforce\n"),
        ("mode: # x\ngate: {}\n", "mode: # x\n  gate: enforce\ngate: {}\n"),
        ("mode: {}\n", "mode: {gate: enforce}\n"),
        ("mode: {burnin: off} # c\n", "mode: {gate: enforce, burnin: off} # c\n"),
        ("mode: {gate: off} # c\n", "mode: {gate: enforce} # c\n"),
        (
            "mode:\n  # why\n  gate:  'off'   # night\n\n  burnin: off\n",
            "mode:\n  # why\n  gate:  enforce   # night\n\n  burnin: off\n",
        ),
        ("---\nmode:\n    burnin: off\n", "---\nmode:\n    gate: enforce\n    burnin: off\n"),
        ('site: {cluster: "é"}\r\nmode: {gate: off}\r\n', 'site: {cluster: "é"}\r\nmode: {gate: enforce}\r\n'),
    ],
)
def test_one_value_changes_and_nothing_else(before: str, after: str) -> None:
    assert set_value(before, "mode", "gate", "enforce") == after
    assert parse(after.encode()).settings.mode.gate == "enforce"


@pytest.mark.parametrize(
    "text", ["a: 1\n", "mode: {gate: &x off, burnin: *x}\n", "gate: &g\nmode: *g\n", "mode: {gate: on}\n"]
)
def test_what_cannot_be_changed_in_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        set_value(text, "mode", "gate", "enforce")


@given(
    st.sampled_from(
        ["", "mode:\n", "mode: {burnin: off}\n", "mode:\n   canary: n1\n   # c\n", "gate:\n  disabled:\n  - a\n  # c\n"]
    ),
    st.sampled_from(ROOMS),
    st.sampled_from(MODES),
)
def test_setting_twice_is_setting_once(text: str, room: str, rung: str) -> None:
    once = set_value(text, "mode", room, rung)
    assert set_value(once, "mode", room, rung) == once
    assert getattr(parse(once.encode()).settings.mode, room) == rung


def test_the_environment_names_the_file_and_fills_slurm_conf(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("gate: {deadline_s: 5}\n")
    found = locate({"FMSLURM_CONFIG": str(path), "SLURM_CONF": "/x/slurm.conf"})
    assert found.settings.gate.deadline_s == 5
    assert found.settings.site.slurm_conf == "/x/slurm.conf"
    assert found.origins["site.slurm_conf"] == "environment (SLURM_CONF)"
    assert found.origins["gate.deadline_s"] == f"{path}:1"
    path.write_text("site: {slurm_conf: /y}\n")
    assert locate({"FMSLURM_CONFIG": str(path), "SLURM_CONF": "/x"}).settings.site.slurm_conf == "/y"


def test_a_named_file_that_is_missing_is_said() -> None:
    assert config_path({"FMSLURM_CONFIG": "/nowhere/f.yaml"}) == "/nowhere/f.yaml"
    with pytest.raises(ConfigError, match=r"/nowhere/f\.yaml"):
        locate({"FMSLURM_CONFIG": "/nowhere/f.yaml"})

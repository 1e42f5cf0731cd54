"""Words of `gate.disabled`: which name something, and what is said of those that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import events
from slurm_ext.config.model import Settings
from slurm_ext.gate import disabled, rules
from slurm_ext.gate.model import judged
from slurm_ext.hooks import disabled as hook
from slurm_ext.verdict import WARN


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("gpu.lost", True),
        ("gpu.", True),
        ("gpu.xid-79", True),
        ("gpu.xid-", True),
        ("nvswitch.sxid-12028", True),
        ("efa.no-completion", True),
        ("gpu.temperature", False),
        ("gpu.losst", False),
        ("gpu", True),
        ("gpu.persistence", True),
        ("gpu.persistence-of", False),
        ("g", False),
        ("gp", False),
        ("efa.no-comp", False),
        ("", False),
    ],
)
def test_what_names_something(word: str, expected: bool) -> None:
    assert disabled.names_something(word) is expected


def test_what_is_said_names_the_place_and_the_nearest() -> None:
    assert disabled.wrong(["gpu.lost", "gpu.persistence-off", "gpu.losst"]) == [
        (2, "no check is called 'gpu.losst'. Did you mean gpu.lost?")
    ]
    assert disabled.wrong([""])[0][0] == 0
    assert "gate list" in disabled.wrong(["zzzzzz"])[0][1]


@pytest.mark.parametrize(
    ("word", "id_", "off"),
    [
        ("gpu.xid-7", "gpu.xid-7", True),
        ("gpu.xid-7", "gpu.xid-79", False),
        ("gpu.xid-", "gpu.xid-79", True),
        ("gpu.xid", "gpu.xid-79", True),
        ("gpu", "gpu.lost", True),
        ("g", "gpu.lost", False),
        ("efa.command", "efa.command-error", True),
        ("", "gpu.lost", False),
    ],
)
def test_only_a_whole_beginning_switches_off(word: str, id_: str, off: bool) -> None:
    item = judged(WARN, id_, "node", "warn", "x")
    assert (rules.enabled([item], [word]) == []) is off


@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_words_are_answered(words: list[str]) -> None:
    assert all(0 <= place < len(words) and what for place, what in disabled.wrong(words))


def test_a_hook_tells_once_and_again_after_a_change(tmp_path) -> None:
    plain = Settings()
    site = plain.site._replace(run_dir=str(tmp_path / "run"), log_dir=str(tmp_path / "log"))
    wrong = plain._replace(site=site, gate=plain.gate._replace(disabled=("gpu.losst",)), source_hash="a" * 64)

    def told() -> list[str]:
        return [event.reason for event in events.read(str(tmp_path / "log/events.jsonl"))]

    hook.tell(wrong, "n1", "")
    hook.tell(wrong, "n1", "")
    assert told() == ["gate.disabled: no check is called 'gpu.losst'. Did you mean gpu.lost?"]
    hook.tell(wrong._replace(gate=plain.gate._replace(disabled=("gpu.lost",))), "n1", "")
    assert len(told()) == 1
    hook.tell(wrong._replace(source_hash="b" * 64), "n1", "")
    assert len(told()) == 2


def test_a_place_that_cannot_be_written_costs_nothing(tmp_path) -> None:
    (tmp_path / "run").write_text("")
    plain = Settings()
    site = plain.site._replace(run_dir=str(tmp_path / "run"), log_dir=str(tmp_path / "run"))
    hook.tell(plain._replace(site=site, gate=plain.gate._replace(disabled=("gpu.losst",))), "n1", "")

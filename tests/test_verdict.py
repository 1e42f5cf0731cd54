"""Findings, verdicts and the text of drain reasons."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.verdict import (
    ACTIONS,
    FAIL,
    PASS,
    REASON_MAX,
    UNKNOWN,
    VERDICTS,
    WARN,
    Finding,
    Verdict,
    drain_reason,
    from_findings,
    from_json,
    is_ours,
    one_line,
    strength,
    strongest,
    to_json,
)


def finding(action: str, name: str = "gpu.x") -> Finding:
    return Finding(name, "gpu:3", action, ("first", "second"))


@pytest.mark.parametrize(
    ("actions", "verdict", "reason"),
    [
        ([], PASS, "nothing speaks against starting a job"),
        (["none"], PASS, "nothing speaks against starting a job"),
        (["none", "warn"], WARN, "gpu.1 on gpu:3: first"),
        (["drain"], FAIL, "gpu.0 on gpu:3: first"),
        (["warn", "reset-gpu", "drain"], FAIL, "gpu.1 on gpu:3: first"),
        (["reboot"], FAIL, "gpu.0 on gpu:3: first"),
        (["drain", "replace", "replace"], FAIL, "gpu.1 on gpu:3: first"),
        (["explode"], WARN, "gpu.0 on gpu:3: first"),
        (["explode", "none"], WARN, "gpu.0 on gpu:3: first"),
    ],
)
def test_what_findings_mean(actions: list[str], verdict: str, reason: str) -> None:
    found = from_findings([finding(action, f"gpu.{number}") for number, action in enumerate(actions)])
    assert (found.verdict, found.reason) == (verdict, reason)
    assert len(found.findings) == len(actions)


def test_a_finding_without_evidence_is_still_a_sentence() -> None:
    assert from_findings([Finding("a", "b", "drain")]).reason == "a on b"
    assert drain_reason(Finding("a", "b", "drain")) == "fmslurm: a b: no further evidence"


def test_actions_are_ordered_and_unknown_ones_never_act() -> None:
    assert [strength(action) for action in ACTIONS] == sorted(strength(action) for action in ACTIONS)
    assert strength("launch") == strength("warn") < strength("drain")


@given(st.lists(st.sampled_from([*ACTIONS, "else"]), max_size=6))
def test_the_strongest_is_the_first_of_the_strongest(actions: list[str]) -> None:
    found = [finding(action, str(number)) for number, action in enumerate(actions)]
    best = strongest(found)
    if not found:
        assert best is None
        return
    assert best is not None
    ranks = [strength(action) for action in actions]
    assert int(best.id) == ranks.index(max(ranks))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", "a b"),
        ("  a \t b  ", "a b"),
        ("\x1b[31mred\x00", "[31mred"),
        ("é\u2028x", "x"),
        ("", ""),
        ("x" * 300, "x" * (REASON_MAX - 3) + "..."),
        ("x" * REASON_MAX, "x" * REASON_MAX),
    ],
)
def test_hostile_text_becomes_one_line(text: str, line: str) -> None:
    assert one_line(text) == line


HOSTILE = st.text(max_size=400)


@given(HOSTILE, HOSTILE, st.lists(HOSTILE, max_size=2).map(tuple))
def test_a_reason_is_ours_printable_short_and_on_one_line(name: str, target: str, evidence: tuple[str, ...]) -> None:
    reason = drain_reason(Finding(name, target, "drain", evidence))
    assert len(reason) <= REASON_MAX
    assert reason.isascii()
    assert reason.isprintable()
    assert not set(reason) & {'"', "'", "\n"}
    assert is_ours(reason)
    assert one_line(reason) == reason


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        ("fmslurm: gpu.x gpu:3: y", True),
        ("fmslurm: ", True),
        ("fmslurm:x", False),
        ("Fmslurm: x", False),
        ("not fmslurm: x", False),
        ("NHC: x", False),
        ("", False),
    ],
)
def test_only_our_own_reasons_are_ours(reason: str, ours: bool) -> None:
    assert is_ours(reason) is ours


VERDICT = st.builds(
    Verdict,
    verdict=st.sampled_from(VERDICTS),
    findings=st.lists(
        st.builds(Finding, HOSTILE, HOSTILE, st.sampled_from(ACTIONS), st.lists(HOSTILE, max_size=2).map(tuple)),
        max_size=3,
    ).map(tuple),
    reason=HOSTILE,
    rule=HOSTILE,
)


@given(VERDICT)
def test_a_verdict_comes_back_from_json(verdict: Verdict) -> None:
    assert from_json(json.loads(json.dumps(to_json(verdict)))) == verdict


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda s: (
        st.lists(s, max_size=3) | st.dictionaries(st.sampled_from(["id", "target", "action", "evidence", "x"]), s)
    ),
)


@given(
    st.dictionaries(st.sampled_from(["verdict", "findings", "reason", "rule"]), ANYTHING | st.sampled_from(VERDICTS))
)
def test_other_data_is_a_value_error_or_a_whole_verdict(data: dict[str, object]) -> None:
    try:
        found = from_json(data)
    except ValueError:
        return
    assert found.verdict in VERDICTS
    for each in found.findings:
        assert all(isinstance(field, str) for field in each[:3])
        assert all(isinstance(line, str) for line in each.evidence)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"verdict": "maybe"},
        {"verdict": UNKNOWN, "findings": 3},
        {"verdict": UNKNOWN, "findings": [3]},
        {"verdict": UNKNOWN, "findings": [{"id": "a"}]},
        {"verdict": FAIL, "findings": [{"id": "a", "target": "b", "action": "drain", "evidence": "text"}]},
        {"verdict": FAIL, "findings": {"id": "a"}},
    ],
)
def test_what_is_no_verdict_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a verdict"):
        from_json(data)

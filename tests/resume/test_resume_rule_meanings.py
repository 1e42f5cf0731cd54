"""Every rule of `fmslurm why` that the source can give has a meaning, and no meaning is of a rule that nothing gives."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import slurm_ext.resume
from slurm_ext.resume import rule_meanings
from slurm_ext.resume.rule_meanings import RULES

FOLDER = Path(slurm_ext.resume.__file__).parent
TREES = [ast.parse(path.read_text()) for path in sorted(FOLDER.glob("*.py")) if path.name != "rule_meanings.py"]
WORDS = {n.value for tree in TREES for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def rules() -> set[str]:
    """Return the third argument of every Cause, and the rule of every Decision, as far as it is constant text."""
    found = set()
    for tree in TREES:
        for node in ast.walk(tree):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in ("Cause", "Decision") and len(node.args) > 2:
                given = node.args[2]
                if isinstance(given, ast.JoinedStr):
                    given = given.values[0]
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    found.add(given.value)
    return found


def test_every_rule_has_a_meaning() -> None:
    assert len(rules()) > 30
    assert sorted(rule for rule in rules() if not rule_meanings.of_rule(rule)) == []


def test_no_meaning_is_left_over() -> None:
    def is_used(rule: str) -> bool:
        return rule in WORDS or any(word.startswith(rule) or word.endswith(rule) for word in WORDS)

    assert sorted(rule for rule in RULES if not is_used(rule)) == []


@pytest.mark.parametrize("text", RULES.values())
def test_a_meaning_is_a_sentence(text: str) -> None:
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("rule", "known"), [("exit.127", True), ("nan.loss-again", True), ("kernel.hardware", True), ("zz", False)]
)
def test_families(rule: str, known: bool) -> None:
    assert bool(rule_meanings.of_rule(rule)) is known

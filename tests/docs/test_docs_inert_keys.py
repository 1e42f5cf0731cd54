"""The page on configuration says which keys do nothing yet: those, and no others, by what the source reads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from slurm_ext.config.rules import SECTIONS, keys

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## Keys that are read but do nothing yet\n"

#: What reads, checks and shows every key alike.
ALIKE = ("model.py", "rules.py", "meanings.py", "render.py", "yaml_file.py", "edit.py")


def listed() -> set[str]:
    text = (ROOT / "docs/guide/config.md").read_text().split(HEADING)[1]
    return set(re.findall(r"`([a-z]+\.[a-z_]+)`", text.strip().split("\n\n")[0]))


def read() -> tuple[set[tuple[str, str]], set[str]]:
    """Return what the source reads of what (`settings.drain.undrain`: drain, undrain), and every name of an attribute or text."""
    pairs, names = set(), set()
    for path in (ROOT / "slurm_ext").rglob("*.py"):
        if path.parent.name == "config" and path.name in ALIKE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                owner = node.value
                of = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                pairs.add((of.strip("_"), node.attr))
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return pairs, names


PAIRS, NAMES = read()
EVERY = [f"{section}.{key}" for section in SECTIONS for key in keys(section)]


def test_the_page_names_keys() -> None:
    assert len(listed()) > 5
    assert listed() <= set(EVERY)


@pytest.mark.parametrize("key", sorted(listed()))
def test_a_key_that_does_nothing_is_read_by_nobody(key: str) -> None:
    section, _, name = key.partition(".")
    assert (section, name) not in PAIRS


@pytest.mark.parametrize("key", sorted(set(EVERY) - listed()))
def test_every_other_key_is_read(key: str) -> None:
    section, _, name = key.partition(".")
    assert (section, name) in PAIRS or name in NAMES

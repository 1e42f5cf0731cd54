"""What README and docs name must exist: files they link to, commands and options they show, configuration keys and ids."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from slurm_ext.cli.main import fmslurm
from slurm_ext.config.rules import SECTIONS, keys

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

#: Commands that pages may name although they do not exist yet, each with the words that must say so on the same page.
PLANNED = {("lab", "drill"): "not built yet"}

#: Commands whose further words belong to another program.
OPEN_ENDED = {("submit",), ("lab", "run")}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"``?([^`\n]+)``?")
KEY = re.compile(rf"(?:{'|'.join(SECTIONS)})\.[a-z][a-z0-9_.-]*")


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def split(text: str) -> tuple[list[str], str]:
    """Return the lines of fenced blocks, and the text without them."""
    blocks: list[str] = []

    def take(found: re.Match[str]) -> str:
        blocks.extend(re.sub(r"\\\n\s*", "", found.group(1)).splitlines())
        return ""

    return blocks, re.sub(r"^```[^\n]*\n(.*?)^```", take, text, flags=re.MULTILINE | re.DOTALL)


def calls(text: str) -> Iterator[list[str]]:
    """Yield the words behind `fmslurm` of every command a page shows, as code span or in a block (not in its output)."""
    blocks, rest = split(text)
    started = re.compile(r"(?:^|\$ |sudo |&& |; +|/|=\d+ )fmslurm((?: [^\s;&#)>]+)+)")
    spanned = re.compile(r"(?:^|[\s/])fmslurm((?: [^\s;&#)>]+)+)")
    for line, form in [*((line, started) for line in blocks), *((span, spanned) for span in SPAN.findall(rest))]:
        for found in form.finditer(line):
            tail = re.split(r" \|| {2,}|[;&#)>]", found.group(1) + " ")[0]
            try:
                yield shlex.split(tail)
            except ValueError:
                yield tail.split()


def options_of(command: click.Command) -> set[str]:
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return names | {"-h", "--help"}


def trouble(words: list[str]) -> str:
    """Say what is wrong with a command line of ours; empty where nothing is."""
    here: click.Command = fmslurm
    path: tuple[str, ...] = ()
    allowed = options_of(here)
    for position, word in enumerate(words):
        if word.startswith("-"):
            if word == "--" or path in OPEN_ENDED:
                return ""
            name = word.split("=", 1)[0]
            if not re.fullmatch(r"--?[a-z][a-z-]*", name) or name in allowed:
                continue
            return f"{' '.join(path)} has no option {name}"
        if not isinstance(here, click.Group):
            continue
        if not re.fullmatch(r"[a-z][a-z|-]*", word):  # COMMAND, ROOM, "...": a placeholder, or output in a block
            return "" if position or word in ("COMMAND", "ROOM", "...") else f"{word!r} is no command"
        context = click.Context(here)
        found = [here.get_command(context, one) for one in word.split("|")]
        if None in found:
            planned = (*path, word) in PLANNED
            return "" if planned else f"no command fmslurm {' '.join((*path, word))}"
        if "|" in word:
            return ""
        assert found[0] is not None
        here, path = found[0], (*path, word)
        allowed = options_of(here)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    _, text = split(page.read_text(encoding="utf-8"))
    targets = [link.split("#")[0] for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist(page: Path) -> None:
    assert [wrong for words in calls(page.read_text(encoding="utf-8")) if (wrong := trouble(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_planned_commands_are_called_so(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words, said in PLANNED.items():
        if any(tuple(call[: len(words)]) == words for call in calls(text)):
            assert said in " ".join(text.split())


@pytest.fixture(scope="module")
def source_ids() -> set[str]:
    """Return the event names, rules, finding ids and file names that stand in our code as text."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "slurm_ext").rglob("*.py"))
    steps = re.findall(r"self\.step\(\s*attempt, \"(\w+)\"", code)  # their events are resume.STEP
    steps += re.findall(r"\bstep: str = \"(\w+)\"", code)
    for names in re.findall(r"^[A-Z_, ]*_STEP = (\".*\")$", code, re.MULTILINE):
        steps += re.findall(r"\"([\w-]+)\"", names)
    whole = re.findall(r"\"([a-z][a-z0-9_]*(?:\.[a-z0-9_-]+)+)\"", code)
    convicted = re.findall(r"\b(slow|wrong|hang|error)\b", code)  # what a convicted node did: burnin.WORD
    return {*whole, *(f"resume.{step}" for step in steps), *(f"burnin.{word}" for word in convicted)}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_configuration_keys_and_ids_exist(page: Path, source_ids: set[str]) -> None:
    known = {f"{section}.{name}" for section in SECTIONS for name in keys(section)} | source_ids
    _, text = split(page.read_text(encoding="utf-8"))
    named = {span.rstrip(":") for span in SPAN.findall(text)}
    asked = {name.split(":")[0] for name in named if KEY.fullmatch(name.split(":")[0])}
    assert sorted(asked - known) == []


def test_the_checks_can_fail() -> None:
    assert trouble(["doctro"]) == "no command fmslurm doctro"
    assert trouble(["lab", "down", "--keeplogs"]) == "lab down has no option --keeplogs"
    assert trouble(["config", "show|push"]) == ""
    assert trouble(["config", "show|pusch"]) != ""
    assert trouble(["submit", "--anything", "script"]) == ""
    text = "`fmslurm doctor --strict` and\n```\n$ fmslurm lab \\\n  up --ready   then\nsudo bin/fmslurm on && fmslurm off\n```"
    assert list(calls(text)) == [["lab", "up", "--ready"], ["on"], ["off"], ["doctor", "--strict"]]

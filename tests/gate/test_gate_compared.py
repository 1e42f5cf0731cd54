"""The page that sets the gate beside other projects' checks: every finding on it is one that the gate's list names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_ext.config.model import Settings
from slurm_ext.gate import checks, checks_elsewhere, meanings
from slurm_ext.gate.probes import EPILOG, HEALTH, PROLOG, Check

PAGE = Path(__file__).parents[2] / "docs/guide/gate-compared.md"
PEERS = 17

#: What a row may say of where it runs -> the phases of which a finding of it must have one.
WHERE = {
    "prolog": PROLOG,
    "epilog": EPILOG,
    "health check": HEALTH,
    "between jobs": HEALTH,
    "burn-in": checks_elsewhere.BURNIN,
    "captures": checks_elsewhere.REPLAY,
}
_SPAN = re.compile(r"`([^`]+)`")
_ID = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9][a-z0-9.-]*|(?:imex|mnnvl)-[a-z-]+")
_NO_ID = re.compile(r"fmslurm .*|tests/.*")


def rows() -> list[list[str]]:
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| | what"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


ROWS = rows()


def keys() -> set[str]:
    plain = Settings()
    return {
        f"{name}.{key}"
        for name in plain._fields
        if hasattr(section := getattr(plain, name), "_fields")
        for key in section._fields
    }


def ids(cell: str) -> list[str]:
    """Return the findings that a cell names: what is no key of the settings and no command."""
    return [
        span
        for span in _SPAN.findall(cell)
        if _ID.fullmatch(span) and not _NO_ID.fullmatch(span) and span not in keys()
    ]


def named_by(id_: str) -> list[Check]:
    """Return the rows of `gate list` that are this finding, or the beginning of it."""
    return [row for row in checks.listed() if id_ == row.id or (row.id.endswith(("-", ".")) and id_.startswith(row.id))]


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) == 75
    assert [row[0] for row in ROWS if row[0]] == ["GPU", "Network", "Storage", "Host", "Behaviour"]
    assert len({row[1] for row in ROWS}) >= 74  # one beginning with … may be named as another
    assert PAGE.read_text().count("\n| ") - len(ROWS) >= PEERS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_row_says_what_does_it_or_why_not(row: list[str]) -> None:
    _, _, others, ours, _ = row
    assert others == "none" or re.fullmatch(r"\d+( in part| as a number)?(; \d+ (in part|as a number))*", others)
    assert sum(int(number) for number in re.findall(r"\d+", others)) <= PEERS
    if "no sense" in ours:
        assert "https://" in ours, "say by whose word"
    assert ours
    assert all(meanings.find(id_) is not None for id_ in ids(ours))
    assert [id_ for id_ in ids(ours) if not named_by(id_)] == [], "no row of gate list names it"


@pytest.mark.parametrize("row", [row for row in ROWS if ids(row[3])], ids=lambda row: row[1])
def test_a_row_names_only_hooks_in_which_one_of_its_findings_is_looked_for(row: list[str]) -> None:
    phases = {phase for id_ in ids(row[3]) for found in named_by(id_) for phase in found.phases}
    said = {phase for words, phase in WHERE.items() if words in row[4]}
    assert said <= phases, row
    assert said, f"{row[4]!r} names no hook, no burn-in and no capture"


def test_the_walk_over_the_page_finds_its_findings() -> None:
    found = [id_ for row in ROWS for id_ in ids(row[3])]
    assert len(set(found)) > 110
    assert {"gpu.missing", "efa.drops", "imex-domain", "container.down", "dcgm-health.pcie"} <= set(found)

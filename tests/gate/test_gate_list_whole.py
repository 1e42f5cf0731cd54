"""`fmslurm gate list` names every finding that the source can make, and `gate explain` says what each row means."""

from __future__ import annotations

import ast

import finding_ids
import pytest

from slurm_ext.cli import explain
from slurm_ext.gate import checks, checks_elsewhere, meanings, probes
from slurm_ext.gate.probes import PHASES, Check

IDS = finding_ids.collect()
ROWS = checks.listed()

#: What the walk takes for an id and is none: a rule by which verdicts are told, a target, a person's own drain.
NO_FINDINGS = ("gate.local", "node", "node.manual")

#: Ids that come of a beginning that is put in -> all of them.
NO_ANSWERS = [f"{name}.no-answer" for name in probes.PROBES]


def is_named(id_: str) -> bool:
    """Say whether a row is this id, or the beginning of it."""
    return any(id_ == row.id or (row.id.endswith(("-", ".")) and id_.startswith(row.id)) for row in ROWS)


def test_every_finding_has_a_row() -> None:
    missing = {id_: where for id_, where in IDS.whole.items() if not is_named(id_) and id_ not in NO_FINDINGS}
    assert missing == {}, "write a row in slurm_ext/gate/checks*.py or the probe's CHECKS, with a fixture"


def test_every_beginning_of_ids_has_a_row() -> None:
    """An id that is put together begins with text that a row names, or that rows begin with."""
    missing = {
        begin: where
        for begin, where in IDS.begins.items()
        if not is_named(begin) and not any(row.id.startswith(begin) for row in ROWS)
    }
    assert missing == {}


def test_every_probe_that_gives_no_answer_has_a_row_in_its_phases() -> None:
    rows = {row.id: row for row in ROWS}
    assert [id_ for id_ in NO_ANSWERS if id_ not in rows] == []
    for name, phases in probes.PROBES.items():
        assert set(phases) <= set(rows[f"{name}.no-answer"].phases)
        assert meanings.find(f"{name}.no-answer") is not None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_says_what_it_is_and_can_be_explained(row: Check) -> None:
    assert row.what
    assert row.means
    assert row.cost
    assert explain.finding(row.id) is not None
    if row.id == "slurm.gres-differs":
        assert row.phases == (checks_elsewhere.HEALTH,)
    elif row in checks_elsewhere.ELSEWHERE:
        assert set(row.phases) <= {checks_elsewhere.BURNIN, checks_elsewhere.REPLAY}
    else:
        assert set(row.phases) <= set(PHASES)


def test_a_row_of_elsewhere_is_no_other_row_again() -> None:
    ids = [row.id for row in checks_elsewhere.ELSEWHERE]
    assert len(set(ids)) == len(ids)
    live = [row.id for row in checks.every()]
    assert [id_ for id_ in ids if id_ in live] == []


def test_findings_that_are_made_outside_of_the_walk_have_rows_too() -> None:
    seen = {path for pattern in finding_ids.SOURCES for path in finding_ids.PACKAGE.glob(pattern)}
    told: dict[str, str] = {}
    for path in sorted(set(finding_ids.PACKAGE.rglob("*.py")) - seen):
        for node in ast.walk(ast.parse(path.read_text())):
            place = {"judged": 1, "Finding": 0}.get(getattr(getattr(node, "func", None), "id", ""))
            if isinstance(node, ast.Call) and place is not None and len(node.args) > place:
                for part in ast.walk(node.args[place]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        told[part.value] = f"{path.relative_to(finding_ids.PACKAGE)}:{node.lineno}"
    assert told, "the walk finds none at all, so it looks at nothing"
    assert {id_: where for id_, where in told.items() if "." in id_ and not is_named(id_)} == {}

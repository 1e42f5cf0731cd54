"""Every finding that the source can produce has a meaning, and no meaning is of a finding that nothing produces."""

from __future__ import annotations

import finding_ids
import pytest

from slurm_ext.gate import meanings, meanings_remedies, probes, xid
from slurm_ext.gate.meanings_model import NO, UNKNOWN, YES, Meaning
from slurm_ext.verdict import ACTIONS, FAIL

IDS = finding_ids.collect()
ROWS = tuple(meanings.every())


#: The end of an id whose beginning is put in -> the ids that come of it.
PUT_TOGETHER = {
    ".no-answer": [f"{name}.no-answer" for name in probes.PROBES],
    "-unnamed": [id_ for id_ in (row.id for row in ROWS) if id_.endswith("-unnamed")],
}


def is_used(row: Meaning) -> bool:
    """Say whether the source names this id, ids of this family, or the two parts that it is made of."""
    if any(row.id in PUT_TOGETHER.get(end, ()) for end in IDS.ends):
        return True
    if row.id in IDS.words or row.id in IDS.whole or row.id in IDS.begins:
        return True
    if row.is_family and any(id_.startswith(row.id) for id_ in (*IDS.whole, *IDS.begins)):
        return True
    begins = [begin for begin in IDS.begins if row.id.startswith(begin)]
    ends = [end for end in IDS.words if end.startswith("-") and row.id.endswith(end)]
    middles = {row.id.removeprefix(begin).removesuffix(end) for begin in begins for end in (*ends, "")}
    return (
        bool(middles & IDS.words) or row.id.removesuffix("-unnamed") in IDS.whole or any(b[-1] == "-" for b in begins)
    )


def test_the_walk_finds_what_is_there() -> None:
    assert {"gpu.lost", "efa.drops", "disk.shm-leftover", "nccl-socket-fallback"} <= set(IDS.whole)
    assert {"gpu.xid-", "nvswitch.sxid-", "slurm.job-", "disk.nearly-full-"} <= set(IDS.begins)
    assert "node.manual" in IDS.words
    assert len(IDS.whole) > 300


def test_every_finding_has_a_meaning() -> None:
    known = set(IDS.whole)
    missing = {
        id_: where
        for id_, where in IDS.whole.items()
        # A row of a list of checks may be the beginning of several ids.
        if meanings.find(id_) is None and not any(other.startswith(id_) and other != id_ for other in known)
    }
    assert missing == {}, "write a row in slurm_ext/gate/meanings_*.py for each"


def test_every_beginning_of_ids_has_a_row() -> None:
    ids = [row.id for row in ROWS]
    missing = {
        begin: where
        for begin, where in IDS.begins.items()
        if not any(id_.startswith(begin) or (id_.endswith(("-", ".")) and begin.startswith(id_)) for id_ in ids)
    }
    assert missing == {}


def test_every_id_whose_beginning_is_put_in_has_a_row_of_its_own() -> None:
    assert set(IDS.ends) == set(PUT_TOGETHER), "say in PUT_TOGETHER which ids come of it"
    ids = {row.id for row in ROWS}
    assert [id_ for made in PUT_TOGETHER.values() for id_ in made if id_ not in ids] == []
    assert all(PUT_TOGETHER.values())


def test_no_meaning_is_left_over() -> None:
    assert [row.id for row in ROWS if not is_used(row)] == []


def test_no_id_has_two_rows() -> None:
    ids = [row.id for row in ROWS]
    assert sorted({id_ for id_ in ids if ids.count(id_) > 1}) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_is_whole(row: Meaning) -> None:
    assert row.means.endswith(".")
    assert row.remedy in ACTIONS
    assert row.remedy in meanings_remedies.RECIPES
    assert row.convicts
    assert all(page.startswith("https://") for page in row.pages)
    assert all(meanings.steps(row))
    if row.remedy in ("reset-gpu", "reboot", "replace", "drain") and row.convicts == YES:
        assert row.pages or row.steps, "what takes a node away says where that is written, or what to do"
    if row.convicts == UNKNOWN:
        assert meanings.steps(row)[-1] == meanings_remedies.UNKNOWN


@pytest.mark.parametrize("code", [*range(0, 200), 999])
def test_every_xid_is_told_by_the_catalogue(code: int) -> None:
    row = meanings.find(f"gpu.xid-{code}")
    assert row is not None
    assert str(code) in row.means
    if code in xid.XIDS:
        advice = xid.XIDS[code]
        assert (row.remedy, row.convicts == YES) == (advice.action, advice.verdict == FAIL)


def test_codes_and_families() -> None:
    old = meanings.find("gpu.xid-79-old-boot")
    assert old is not None
    assert (old.remedy, old.convicts) == ("none", NO)
    sxid = meanings.find("nvswitch.sxid-12028")
    assert sxid is not None
    assert "12028" in sxid.means
    job = meanings.find("slurm.job-timeout")
    assert job is not None
    assert job.id == "slurm.job-timeout"
    assert meanings.find("slurm.job-held").means != job.means  # type: ignore[union-attr]
    assert meanings.find("gpu.xid-x") is not None  # the family
    for id_ in ("", "gpu", "nothing.at-all", "gpu.lostt"):
        assert meanings.find(id_) is None


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("gpu.lostt", "gpu.lost"), ("efa.mising", "efa.missing"), ("GPU.LOST", "gpu.lost"), ("lost", "gpu.lost")],
)
def test_what_was_meant_is_offered(typed: str, expected: str) -> None:
    assert expected in meanings.closest(typed)


@pytest.mark.parametrize("typed", ["", "\x00", "x" * 10_000, "💥"])
def test_any_text_is_answered(typed: str) -> None:
    assert meanings.find(typed) is None
    assert isinstance(meanings.closest(typed), list)


def test_a_reset_turns_persistence_mode_off_first() -> None:
    steps = meanings_remedies.RECIPES["reset-gpu"]
    assert next(i for i, step in enumerate(steps) if "-pm 0" in step) < next(
        i for i, step in enumerate(steps) if step.startswith("`nvidia-smi --gpu-reset")
    )

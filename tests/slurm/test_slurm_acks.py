"""Acknowledgements: which holds, what is kept, and a share that is absent, hangs or holds what root did not write."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import events, shared
from slurm_ext.slurm import acks
from slurm_ext.slurm.acks import ANY, Ack

NOW = 1_900_000_000.0


def ack(finding: str = "gpu.xid-79", target: str = "gpu:3", until_s: float = NOW + 60, at_s: float = NOW) -> Ack:
    return Ack("n1", finding, target, until_s, "known", "alice", at_s)


@pytest.fixture
def share(tmp_path: Path) -> str:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    return str(folder)


@pytest.mark.parametrize(
    ("known", "finding", "target", "expected"),
    [
        ((), "gpu.xid-79", "gpu:3", None),
        ((ack(),), "gpu.xid-79", "gpu:3", ack()),
        ((ack(),), "gpu.xid-79", "", ack()),
        ((ack(),), "gpu.xid-79", "gpu:4", None),  # another GPU with the same fault is another fault
        ((ack(target=ANY),), "gpu.xid-79", "gpu:4", ack(target=ANY)),
        ((ack(),), "gpu.xid-74", "gpu:3", None),
        ((ack(until_s=NOW),), "gpu.xid-79", "gpu:3", None),  # the end itself is past
        ((ack(), ack(target=ANY, until_s=NOW + 99)), "gpu.xid-79", "gpu:3", ack(target=ANY, until_s=NOW + 99)),
    ],
)
def test_which_one_holds(known: tuple[Ack, ...], finding: str, target: str, expected: Ack | None) -> None:
    assert acks.holds(known, finding, NOW, target=target) == expected


def test_words_say_who_until_when_and_why() -> None:
    assert acks.words(ack(), events.stamp) == (
        "gpu.xid-79 on gpu:3 is acknowledged by alice until 2030-03-17T17:47:40.000Z: known"
    )
    assert acks.words(ack(target=ANY), lambda _: "then") == "gpu.xid-79 is acknowledged by alice until then: known"


def test_a_newer_one_takes_the_place_of_one_that_holds_and_past_ones_are_kept() -> None:
    past, old, new = ack(until_s=NOW - 5, at_s=NOW - 9), ack(until_s=NOW + 5, at_s=NOW - 1), ack()
    assert acks.added((past, old), new) == (past, new)
    many = tuple(ack(finding=f"f.{number}") for number in range(2 * acks.KEPT))
    assert acks.added(many, new) == (*many[1 - acks.KEPT :], new)


def test_written_read_and_taken_back(share: str) -> None:
    first, second = ack(), ack("efa.count", "node")
    assert acks.read(share, "n1") == ()
    assert acks.read_all(share) == {}
    assert acks.write(share, first)
    assert acks.write(share, second)
    assert acks.read(share, "n1") == (first, second)
    assert acks.read_all(share) == {"n1": (first, second)}
    assert acks.remove(share, "n1", "gpu.xid-79", "gpu:4") is False
    assert acks.remove(share, "n1", "gpu.xid-79") is True
    assert acks.remove(share, "n1", "gpu.xid-79") is False
    assert acks.read(share, "n1") == (second,)
    assert Path(share, "acks/n1.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "bad",
    [
        ack()._replace(node="../n1"),
        ack()._replace(finding="a b"),
        ack()._replace(target="a b"),
        ack()._replace(until_s=float("inf")),
        ack()._replace(at_s=float("nan")),
    ],
)
def test_names_that_are_none_are_not_written(share: str, bad: Ack) -> None:
    assert not acks.write(share, bad)
    assert os.listdir(share) == ["ledger"]


def test_of_many_people_at_once_nobodys_word_is_lost(share: str) -> None:
    given = [ack(f"f.{number}") for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda one: acks.write(share, one, timeout_s=60.0), given))
    assert set(acks.read(share, "n1")) == set(given)
    assert acks.read_all(share).keys() == {"n1"}  # type: ignore[union-attr]


def test_a_share_that_is_absent_is_not_made(tmp_path: Path) -> None:
    for share in ("", str(tmp_path / "share")):
        assert acks.read(share, "n1") == ()
        assert acks.read_all(share) is None
        assert not acks.write(share, ack())
        assert acks.remove(share, "n1", "gpu.xid-79") is None
    assert list(tmp_path.iterdir()) == []


def test_a_share_that_hangs_is_given_up(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child stops itself where a dead file server would hold it."""

    def hang(*_: object) -> bool:
        os.kill(os.getpid(), 19)  # SIGSTOP
        return True

    monkeypatch.setattr(shared, "is_share", hang)
    monkeypatch.setattr(acks, "_load", hang)
    assert acks.read(share, "n1", timeout_s=0.05) == ()
    assert acks.read_all(share, timeout_s=0.05) is None
    assert not acks.write(share, ack(), timeout_s=0.05)
    assert acks.remove(share, "n1", "gpu.xid-79", timeout_s=0.05) is None


def test_a_file_that_others_may_write_holds_nothing(share: str) -> None:
    assert acks.write(share, ack())
    Path(share, "acks/n1.json").chmod(0o666)
    assert acks.read(share, "n1") == ()


def test_a_full_or_read_only_share_says_no(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(acks, "write_atomic", full)
    assert not acks.write(share, ack())


def test_a_torn_file_is_written_anew(share: str) -> None:
    Path(share, "acks").mkdir()
    Path(share, "acks/n1.json").write_text('{"schema": 1, "acks": [{')
    assert acks.read(share, "n1") == ()
    assert acks.write(share, ack())
    assert acks.read(share, "n1") == (ack(),)


def test_a_number_beyond_all_numbers_is_no_time() -> None:
    assert acks.from_data({"acks": [{**GOOD, "until_s": 10**400}, {**GOOD, "at_s": -1}, GOOD]}, "n1") == (ack(),)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
GOOD = json.loads(json.dumps(ack()._asdict()))


@given(st.lists(PLAIN | st.dictionaries(st.sampled_from(sorted(GOOD)), PLAIN).map(lambda change: {**GOOD, **change})))
def test_whatever_lies_there_never_raises_and_never_lasts_for_ever(items: list[object]) -> None:
    for found in acks.from_data({"acks": items}, "n1"):
        assert acks.is_writable(found)
        assert found.node == "n1"


@given(PLAIN)
def test_any_plain_data_is_read(data: object) -> None:
    assert isinstance(acks.from_data(data, "n1"), tuple)

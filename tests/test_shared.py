"""The shared folder: first writer wins, absence and hanging are answered in time and never raised."""

from __future__ import annotations

import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_ext import events, shared
from slurm_ext.config.modes import Heartbeat, Off
from slurm_ext.events import Event

NOW = 1_900_000_000.0


@pytest.fixture
def share(tmp_path: Path) -> str:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    return str(folder)


def calls(share: str, timeout_s: float = 60.0) -> list[object]:
    """Every operation once, against one share."""
    path = shared.attempt_path(share, "c/1-0", "restore.json")
    return [
        shared.append_event(share, "n1", Event("x"), timeout_s=timeout_s),
        shared.decide_once(path, {"a": 1}, timeout_s=timeout_s),
        shared.write_json(path, {"a": 1}, timeout_s=timeout_s),
        shared.read_json(path, timeout_s=timeout_s),
        shared.beat(share, Heartbeat(NOW), timeout_s=timeout_s),
        shared.heartbeat(share, timeout_s=timeout_s),
        shared.throw_switch(share, Off("gate", NOW), timeout_s=timeout_s),
        shared.switches(share, timeout_s=timeout_s),
        shared.clear_switch(share, "gate", timeout_s=timeout_s),
        shared.write_addresses(share, {"n1": "10.0.0.1"}, timeout_s=timeout_s),
        shared.addresses(share, timeout_s=timeout_s),
    ]


NOTHING = [False, None, False, None, False, None, False, None, None, False, {}]


def test_without_a_share_everything_is_a_quiet_no() -> None:
    assert calls("") == NOTHING


def test_a_share_that_is_not_mounted_is_not_made_on_the_disk_below(tmp_path: Path) -> None:
    assert calls(str(tmp_path / "share")) == NOTHING
    assert list(tmp_path.iterdir()) == []


def test_the_empty_folder_that_a_share_is_mounted_on_is_not_taken_for_it(tmp_path: Path) -> None:
    point = tmp_path / "share"
    point.mkdir(mode=0o755)
    assert calls(str(point)) == NOTHING
    (point / "nodes/n1").mkdir(parents=True)  # as an earlier release left it below the mount point
    assert shared.append_event(str(point), "n1", Event("x")) is False
    assert [path.name for path in point.rglob("*")] == ["nodes", "n1"]


@pytest.mark.parametrize("marker", ["ledger/", "config/snapshot.json"])
def test_what_install_or_a_push_left_makes_it_a_share(tmp_path: Path, marker: str) -> None:
    path = tmp_path / marker
    path.parent.mkdir(exist_ok=True)
    if marker.endswith("/"):
        path.mkdir()
    else:
        path.write_text("{}")
    assert shared.append_event(str(tmp_path), "n1", Event("x")) is True


def test_on_a_share_everything_is_done(share: str) -> None:
    done = calls(share)
    assert done == [
        True,
        {"a": 1},
        True,
        {"a": 1},
        True,
        Heartbeat(NOW),
        True,
        (Off("gate", NOW),),
        True,
        True,
        {"n1": "10.0.0.1"},
    ]
    for path in Path(share).rglob("*"):
        assert path.stat().st_mode & 0o022 == 0, path
        assert not path.name.startswith("."), path


def test_a_share_that_hangs_costs_only_the_time_that_was_given(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child stops itself where a dead file server would hold it."""

    def hang(_: str) -> bool:
        os.kill(os.getpid(), 19)  # SIGSTOP
        return True

    monkeypatch.setattr(shared, "is_share", hang)
    for name in ("read_trusted", "read_off"):
        monkeypatch.setattr(shared, name, hang)
    begin = time.monotonic()
    assert calls(share, timeout_s=0.05) == NOTHING
    assert time.monotonic() - begin < 40


def asks(share: str, monkeypatch: pytest.MonkeyPatch, *, seldom: bool) -> list[float]:
    """Return the clock at each child that is made for a share whose every call hangs; the clock moves by its time."""
    clock, made = [1_000.0], []

    def silent(work: object, timeout_s: float) -> None:
        made.append(clock[0])
        clock[0] += timeout_s

    for name, value in (("_seldom", seldom), ("_silent_until", 0.0), ("in_child", silent)):
        monkeypatch.setattr(shared, name, value)
    monkeypatch.setattr(shared.time, "monotonic", lambda: clock[0])
    assert calls(share, timeout_s=2.0) == NOTHING
    assert calls(share, timeout_s=2.0) == NOTHING
    clock[0] += shared.SILENT_S
    assert calls(share, timeout_s=2.0) == NOTHING
    return made


def test_a_hook_asks_a_silent_share_once_and_later_again(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asks(share, monkeypatch, seldom=True) == [1_000.0, 1_002.0 + shared.SILENT_S]


def test_a_daemon_asks_each_time(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(asks(share, monkeypatch, seldom=False)) == 3 * len(NOTHING)


def test_a_call_with_little_time_or_one_that_is_refused_makes_no_share_silent(
    tmp_path: Path, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_seldom", True)
    monkeypatch.setattr(shared, "_silent_until", 0.0)
    assert calls(str(tmp_path / "gone")) == NOTHING
    monkeypatch.setattr(shared, "in_child", lambda work, timeout_s: time.sleep(timeout_s))
    shared.heartbeat(share, timeout_s=0.01)
    assert not shared.is_silent()


@pytest.mark.parametrize(("owner", "mode"), [(1, 0o755), (0, 0o777)])
def test_a_share_that_others_may_write_is_none(tmp_path: Path, owner: int, mode: int) -> None:
    share = tmp_path / "share"
    (share / "ledger").mkdir(parents=True)
    if os.geteuid():
        pytest.skip("only root gives a folder away")
    os.chown(share, owner, 0)
    share.chmod(mode)
    assert not shared.append_event(str(share), "n0", Event("x"))
    assert shared.decide_once(shared.attempt_path(str(share), "c/1-0", "a.json"), {}) is None
    assert os.listdir(share) == ["ledger"]


def test_the_first_decision_wins_for_everybody(share: str) -> None:
    path = shared.attempt_path(share, shared.attempt_key("c", "12", 3), "restore.json")
    assert path == f"{share}/jobs/c/12-3/restore.json"
    first = shared.decide_once(path, {"step": 1})
    assert first == {"step": 1}
    assert shared.decide_once(path, {"step": 2}) == {"step": 1}


def test_of_many_deciders_at_once_one_wins(share: str) -> None:
    path = shared.attempt_path(share, "c/1-0", "leader.json")
    pids = []
    results = Path(share).parent / "results"
    results.mkdir()
    for number in range(6):
        pid = os.fork()
        if pid == 0:
            won = shared.decide_once(path, {"by": number}, timeout_s=60)
            (results / str(number)).write_text(json.dumps(won))
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    said = {(results / str(number)).read_text() for number in range(6)}
    assert len(said) == 1
    assert json.loads(said.pop())["by"] in range(6)


def test_a_decision_that_root_did_not_write_counts_for_nothing(share: str) -> None:
    path = Path(shared.attempt_path(share, "c/1-0", "restore.json"))
    path.parent.mkdir(parents=True)
    path.write_text('{"step": 666}')
    path.chmod(0o666)
    assert shared.decide_once(str(path), {"step": 1}) is None
    assert shared.read_json(str(path)) is None
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert shared.read_json(str(path)) is None


@pytest.mark.parametrize(
    "attempt", ["", "c", "c/1", "../1-0", "c/../1-0", "/c/1-0", "c/1-0/x", "c/a-0", "c/1-", "c/1-0\n"]
)
def test_only_attempts_become_paths(attempt: str, share: str) -> None:
    with pytest.raises(ValueError, match="no attempt"):
        shared.attempt_path(share, attempt, "restore.json")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden", "a\n"])
def test_only_plain_names_become_files(name: str, share: str) -> None:
    with pytest.raises(ValueError, match="no attempt"):
        shared.attempt_path(share, "c/1-0", name)


@pytest.mark.parametrize("node", ["", "../n1", "n/1", ".n", "n 1", "n1\n"])
def test_only_node_names_get_a_trail(node: str, share: str) -> None:
    assert shared.append_event(share, node, Event("x")) is False
    assert os.listdir(share) == ["ledger"]


def test_events_of_a_node_are_lines_of_its_trail(share: str) -> None:
    with ThreadPoolExecutor(1) as pool:  # one thread: forking from several is the caller's own affair
        list(pool.map(lambda number: shared.append_event(share, "n1", Event("x", job=str(number))), range(5)))
    assert [event.job for event in events.read(f"{share}/nodes/n1/events.jsonl")] == list("01234")


def test_addresses_are_checked_both_ways(share: str) -> None:
    for bad in ({"n 1": "10.0.0.1"}, {"n1": "$(x)"}, {"n1": ""}):
        with pytest.raises(ValueError, match="no node name"):
            shared.write_addresses(share, bad)
    Path(share, "addresses").write_text("n1 10.0.0.1\nn2\n# c\nn3 evil;rm\n../n4 10.0.0.4\nn5 fe80::1\n")
    assert shared.addresses(share) == {"n1": "10.0.0.1", "n5": "fe80::1"}


def test_rooms_that_do_not_exist_have_no_switch(share: str) -> None:
    for call in (lambda: shared.throw_switch(share, Off("gat", NOW)), lambda: shared.clear_switch(share, "../x")):
        with pytest.raises(ValueError, match="no room"):
            call()
    assert shared.clear_switch(share, "gate") is False


def test_every_kind_of_broken_json_is_nothing(share: str) -> None:
    path = Path(shared.attempt_path(share, "c/1-0", "x.json"))
    path.parent.mkdir(parents=True)
    for content in itertools.chain(("", "{", "[]", "3", "null", "\x00", "[" * 100_000)):
        path.write_text(content)
        assert shared.read_json(str(path)) is None

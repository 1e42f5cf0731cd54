"""The ledger under faults: many at once, clocks that differ, a full or a lost share. Never one drain too many."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from slurm_ext.config.model import Drain
from slurm_ext.slurm import ledger, suppressed
from slurm_ext.slurm.breaker import FIRST_BOOT, HOURLY
from slurm_ext.slurm.suppressed import Suppressed

LIMITS = Drain()  # 2 an hour, and 2 of new nodes


@pytest.fixture
def share(tmp_path: Path) -> str:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    folder.chmod(0o755)
    return str(folder)


def claim(share: str, node: str, *, nodes: int = 8, first_boot: bool = False, **more):
    return ledger.claim(share, node, drain=LIMITS, nodes=nodes, first_boot=first_boot, timeout_s=60.0, **more)


def age(share: str, number: int, seconds: float) -> None:
    """Make an entry older, as if that much time had passed on the share."""
    at = time.time() - seconds
    os.utime(Path(share, "ledger", f"{number:08d}.json"), (at, at))


def names(share: str) -> list[str]:
    return sorted(path.name for path in Path(share, "ledger").iterdir())


def test_two_of_an_hour_and_two_new_ones(share: str) -> None:
    assert [claim(share, f"n{i}").allowed for i in range(4)] == [True, True, False, False]
    assert [claim(share, f"b{i}", first_boot=True).budget for i in range(4)] == [FIRST_BOOT, FIRST_BOOT, "", ""]
    found = ledger.entries(share)
    assert found is not None
    assert [(entry.node, entry.budget) for entry in found] == [
        ("n0", HOURLY),
        ("n1", HOURLY),
        ("b0", FIRST_BOOT),
        ("b1", FIRST_BOOT),
    ]
    # What was suppressed left nothing behind.
    assert names(share) == [f"{number:08d}.json" for number in range(1, 5)]


def test_what_is_suppressed_does_not_keep_the_breaker_open(share: str) -> None:
    for i in range(5):
        claim(share, f"n{i}")
    for number in (1, 2):
        age(share, number, 3_601)
    assert claim(share, "n2").allowed
    assert claim(share, "n3").allowed
    assert not claim(share, "n4").allowed


def test_over_the_hours_boundary_no_hour_has_more(share: str) -> None:
    claim(share, "n0")
    claim(share, "n1")
    age(share, 1, 3_590)
    assert not claim(share, "n2").allowed
    age(share, 1, 3_600)
    assert claim(share, "n2").allowed
    assert not claim(share, "n3").allowed  # n1 and n2 are of this hour


def race(share: str, count: int, *, clock: dict[int, float] | None = None, first: int = 0, **more) -> Counter:
    """Let `count` processes claim at the same moment, some by clocks of their own; return how often each answer came."""
    gate_reader, gate_writer = os.pipe()
    results = Path(share).parent / f"results-{first}"
    results.mkdir()
    pids = []
    for i in range(first, first + count):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(gate_writer)
                shift = (clock or {}).get(i, 0.0)
                time.time = lambda shift=shift, real=time.time: real() + shift
                os.read(gate_reader, 1)  # end of file: all at once
                ruling = ledger.claim(share, f"n{i}", drain=LIMITS, nodes=count, timeout_s=60.0, **more)
                (results / str(i)).write_text(f"{ruling.allowed} {ruling.budget}")
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(gate_reader)
    os.close(gate_writer)
    for pid in pids:
        os.waitpid(pid, 0)
    answers = [path.read_text() for path in results.iterdir()]
    assert len(answers) == count
    return Counter(answer.split()[0] == "True" for answer in answers)


def test_200_processes_at_once_take_just_what_is_allowed(share: str) -> None:
    assert race(share, 200) == {True: 2, False: 198}
    assert names(share) == ["00000001.json", "00000002.json"]


def test_200_new_nodes_at_once(share: str) -> None:
    assert race(share, 200, first_boot=True)[True] == 4
    assert len(names(share)) == 4


def test_clocks_an_hour_off_neither_open_the_breaker_nor_go_round_it(share: str) -> None:
    # Each second node is an hour behind, each third one ahead.
    clock = {i: -3_600.0 if i % 2 else 3_600.0 if i % 3 == 0 else 0.0 for i in range(40)}
    assert race(share, 40, clock=clock)[True] == 2
    # Later ones, by whatever clock, find it open.
    assert race(share, 12, clock={i: (i - 106) * 1_200.0 for i in range(100, 112)}, first=100)[True] == 0
    # By the share's clock an hour later all count no more, whatever stands in them.
    for number in (1, 2):
        age(share, number, 3_600)
    assert race(share, 12, clock={i: (i - 206) * 1_200.0 for i in range(200, 212)}, first=200)[True] == 2


def test_a_crash_between_entry_and_drain_counts(share: str) -> None:
    pid = os.fork()
    if pid == 0:
        claim(share, "n0")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    found = ledger.entries(share)
    assert found is not None
    assert [entry.node for entry in found] == ["n0"]
    # Again after the crash: one node, once.
    assert claim(share, "n0").allowed
    assert claim(share, "n1").allowed
    assert not claim(share, "n2").allowed


def test_a_child_that_is_too_slow_counts_and_drains_nothing(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: str) -> None:
        os.kill(os.getpid(), 19)

    monkeypatch.setattr(ledger, "sync_folder", stop)  # its entry is there already
    ruling = ledger.claim(share, "n0", drain=LIMITS, nodes=8, timeout_s=0.3)
    assert not ruling.allowed
    assert ruling.limit == -1
    monkeypatch.undo()
    found = ledger.entries(share)
    assert found is not None
    assert [entry.node for entry in found] == ["n0"]


def test_what_a_killed_claim_left_is_swept_by_a_later_one(share: str) -> None:
    old, young = Path(share, "ledger/.n7.0123456789ab"), Path(share, "ledger/.n8.0123456789ab")
    for path, age_s in ((old, ledger.SCRATCH_S + 60), (young, ledger.SCRATCH_S - 60)):
        path.write_text("{")
        os.utime(path, (time.time() - age_s,) * 2)
    assert claim(share, "n0").allowed
    assert names(share) == [young.name, "00000001.json"]


def test_no_folder_no_drain_and_it_is_not_made(share: str) -> None:
    claim(share, "n0")
    os.rename(f"{share}/ledger", f"{share}/gone")
    for first_boot in (False, True):
        ruling = claim(share, "n1", first_boot=first_boot)
        assert not ruling.allowed
        assert "ledger" in ruling.reason
    assert ledger.entries(share) is None
    assert os.listdir(share) == ["gone"]
    os.rename(f"{share}/gone", f"{share}/ledger")  # a share that comes back
    assert claim(share, "n1").allowed
    assert not claim(share, "n2").allowed


@pytest.mark.parametrize("where", ["", "/nonexistent/share"])
def test_no_share_no_drain(where: str) -> None:
    assert not claim(where, "n1").allowed
    assert ledger.entries(where) is None
    assert suppressed.note(where, Suppressed("n1", "a", "b", "drain", "", "", 1.0)) is None
    assert suppressed.read_all(where, now=1.0) is None


def test_a_folder_that_is_none(share: str) -> None:
    os.rmdir(f"{share}/ledger")
    Path(share, "ledger").write_text("")
    assert not claim(share, "n1").allowed
    assert ledger.entries(share) is None


@pytest.mark.parametrize("call", ["open", "fsync", "link"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_full_share_drains_nothing(share: str, call: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(os, call)

    def fails(*arguments, **more):
        if call != "open" or f"{share}/ledger/.n1" in str(arguments[0]):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    monkeypatch.setattr(os, call, fails)
    ruling = claim(share, "n1")
    assert not ruling.allowed
    assert os.strerror(number) in ruling.reason
    monkeypatch.undo()
    assert names(share) == []
    assert claim(share, "n1").allowed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
@pytest.mark.parametrize(("owner", "mode"), [(1, 0o755), (0, 0o777)])
def test_a_ledger_that_others_may_write_is_none(share: str, owner: int, mode: int) -> None:
    os.chown(f"{share}/ledger", owner, 0)
    os.chmod(f"{share}/ledger", mode)
    assert not claim(share, "n1").allowed
    assert ledger.entries(share) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"node": 7, "time": 1}',
        '{"node": "n1", "time": "x"}',
        '{"node": "../x", "time": 1}',
        "[" * 9_000,
        "x" * 20_000,
    ],
)
def test_an_entry_that_cannot_be_read_counts_as_somebody(share: str, content: str) -> None:
    for number in (1, 2):
        Path(share, "ledger", f"{number:08d}.json").write_text(content)
    assert not claim(share, "n1").allowed
    age(share, 1, 4_000)
    assert claim(share, "n1").allowed


def test_strange_files_are_no_drains(share: str) -> None:
    for name in ("x.json", "1.json", "000000001.json", "00000001.json.tmp", ".00000001.json", "00000001"):
        Path(share, "ledger", name).write_text("")
    Path(share, "ledger", "00000009.json").symlink_to("/etc/hostname")
    found = ledger.entries(share)
    assert found is not None
    assert [entry.node for entry in found] == ["?9"]  # whoever may write there is root: it counts, and is not followed
    claim(share, "n1")
    assert "00000010.json" in names(share)


def test_a_listing_that_is_old_does_not_mislead(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS may show a folder as it was: what matters is who gets the next name, and those between are read by name."""
    for i in range(2):
        claim(share, f"n{i}")
    monkeypatch.setattr(ledger, "_entries", lambda *_: [])
    assert not claim(share, "n2").allowed
    monkeypatch.undo()
    assert names(share) == ["00000001.json", "00000002.json"]


def test_old_entries_are_removed_and_the_count_goes_on(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 3)
    for number in range(1, 8):
        Path(share, "ledger", f"{number:08d}.json").write_text(json.dumps({"node": f"m{number}", "time": 1}))
        age(share, number, 40 * 86_400)
    age(share, 2, 20 * 86_400)
    assert claim(share, "n1").allowed
    assert names(share) == [f"{number:08d}.json" for number in (2, 5, 6, 7, 8)]


def test_what_a_killed_claim_left_goes_in_time(share: str) -> None:
    for name, age_s in ((".n7.0123456789ab", 90_000), (".n8.0123456789ab", 60)):
        path = Path(share, "ledger", name)
        path.write_text("{")
        os.utime(path, (time.time() - age_s,) * 2)
    assert claim(share, "n1").allowed
    assert names(share) == [".n8.0123456789ab", "00000001.json"]


def test_the_entry_says_for_what(share: str) -> None:
    claim(share, "n1", data={"finding": "gpu.lost", "target": "gpu:3", "job": "7"})
    entry = json.loads(Path(share, "ledger", "00000001.json").read_text())
    assert (entry["schema"], entry["node"], entry["finding"], entry["job"]) == (2, "n1", "gpu.lost", "7")
    assert os.stat(f"{share}/ledger/00000001.json").st_mode & 0o777 == 0o644


@pytest.mark.parametrize("node", ["", "../n1", "n/1", ".n", "n 1", "n1\n"])
def test_only_node_names_are_drained(share: str, node: str) -> None:
    assert not claim(share, node).allowed
    assert names(share) == []


# --- what was held back


def held(node: str, at_s: float = 1_000.0, allowed: int = 2) -> Suppressed:
    return Suppressed(node, "gpu.lost", "gpu:3", "reboot", "GPU is lost", "2 nodes were drained", at_s, allowed=allowed)


def test_an_opening_is_said_once_and_again_at_each_power_of_ten(share: str) -> None:
    claim(share, "n0")
    steps = {}
    for i in range(12):
        noted = suppressed.note(share, held(f"m{i:02}"))
        assert noted is not None
        assert (noted.opening.partition("-")[0], noted.total) == ("00000001", i + 1)
        if noted.step:
            steps[noted.step] = len(noted.nodes)
    assert steps == {1: 1, 10: 10}
    assert suppressed.note(share, held("m03")).step == 0
    claim(share, "n1")  # another drain: what follows is another opening
    assert suppressed.note(share, held("m03")).step == 1


def test_the_list_is_bounded_and_shows_the_last_of_each_node(share: str) -> None:
    for opening in range(8):
        Path(share, "ledger", f"{opening + 1:08d}.json").write_text("{}")
        suppressed.note(share, held("m0", at_s=1_000.0 + opening))
        (folder,) = Path(share, "suppressed").glob(f"{opening + 1:08d}-*")
        os.utime(folder, (opening, opening))
    suppressed.note(share, held("m1", at_s=900.0))
    assert len(list(Path(share, "suppressed").iterdir())) <= suppressed.OPENINGS + 1
    found = suppressed.read_all(share, now=1_010.0)
    assert found is not None
    assert {node: one.at_s for node, one in found.items()} == {"m0": 1_007.0, "m1": 900.0}
    assert suppressed.read_all(share, now=1_000.0 + 2 * 86_400) == {}
    (last,) = Path(share, "suppressed").glob("00000008-*")
    (last / "x.json").write_text("[" * 9_000)
    (last / "m2.json").write_text('{"node": "m2"}')
    assert set(suppressed.read_all(share, now=1_010.0) or ()) == {"m0", "m1"}


def test_without_a_ledger_it_is_noted_all_the_same(share: str) -> None:
    os.rmdir(f"{share}/ledger")
    os.makedirs(f"{share}/config", exist_ok=True)
    Path(share, "config/snapshot.json").write_text("{}")  # a push was here: it is the share, and no empty mount point
    noted = suppressed.note(share, held("m0", allowed=0))
    assert noted is not None
    assert noted.opening.startswith("no-ledger-")
    assert noted.step == 1


def test_when_the_breaker_is_open(share: str) -> None:
    now = time.time()
    assert suppressed.is_open(None, [], now=now)
    claim(share, "n0")
    claim(share, "n1")
    entries = ledger.entries(share)
    assert not suppressed.is_open(entries, [], now=now)  # used up, and nobody was held back
    assert suppressed.is_open(entries, [held("m0", now - 60)], now=now)
    assert not suppressed.is_open(entries, [held("m0", now - 3_700)], now=now)
    assert not suppressed.is_open((entries or ())[:1], [held("m0", now - 60)], now=now)
    # What is allowed now counts, and so does what Slurm alone says was drained: as for the hooks.
    assert not suppressed.is_open(entries, [held("m0", now - 60)], now=now, limit=20)
    assert suppressed.is_open((), [held("m0", now - 60)], now=now, limit=2, also={"n0", "n1"})
    assert not suppressed.is_open(entries, [held("m0", now - 60)], now=now, limit=3, also={"n0", "n1"})


def test_who_was_drained_later_is_held_back_no_more(share: str) -> None:
    now = time.time()
    claim(share, "n0")
    entries = ledger.entries(share) or ()
    assert suppressed.drained_since(held("n0", now - 60), entries, now=now)
    assert not suppressed.drained_since(held("n0", now + 60), entries, now=now)
    assert not suppressed.drained_since(held("n1", now - 60), entries, now=now)


def test_of_many_held_back_at_once_one_pages(share: str) -> None:
    claim(share, "n0")
    results = Path(share).parent / "steps"
    results.mkdir()
    pids = []
    for i in range(40):
        pid = os.fork()
        if pid == 0:
            noted = suppressed.note(share, held(f"m{i:02}"), timeout_s=60.0)
            (results / f"{i}").write_text(f"{noted.step} {noted.first}" if noted else "none")
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    said = Counter(path.read_text() for path in results.iterdir())
    assert said["none"] == 0
    assert sum(count for answer, count in said.items() if answer.endswith("True")) == 1
    assert sum(count for answer, count in said.items() if answer.startswith("10 ")) == 1
    marks = {path.name for path in Path(share, "suppressed").glob("*/.said-*")}
    assert marks == {".said-1", ".said-10"}

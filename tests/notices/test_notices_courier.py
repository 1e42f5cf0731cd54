"""Deliveries against real receivers and a real journal: killed at any moment, targets in every bad mood, a disk that is full."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from notices_support import drained, journal, opened, queue
from stand_ins import Receiver, program, receiver, until

from slurm_ext import events
from slurm_ext.config.model import Mode, Notify, Settings, Site, Target
from slurm_ext.errors import LackingError
from slurm_ext.notices import courier as courier_module
from slurm_ext.notices import desk as desk_module
from slurm_ext.notices import kinds, look, policy, webhook
from slurm_ext.notices.courier import Courier
from slurm_ext.notices.desk import Desk
from slurm_ext.notices.model import LOST, SENT, WAITING
from slurm_ext.resume.journal import Journal
from slurm_ext.slurm import ledger, suppressed
from slurm_ext.slurm.suppressed import Suppressed

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Journal]:
    with closing(journal(tmp_path)) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "PAUSES_S", (0.05,) * 5)


def settings_for(*targets: Target, **more: object) -> Settings:
    return Settings(notify=Notify(targets=targets, **more))


def chat(one: Receiver, name: str = "chat", **more: str) -> Target:
    return Target(name=name, webhook=one.url, **more)


def work_off(one: Courier, settings: Settings, *, what: str = "all is sent") -> None:
    def over() -> bool:
        one.step(settings, "c1", time.time())
        waiting = one.queue.db.execute("SELECT COUNT(*) FROM deliveries WHERE state='waiting'").fetchone()[0]
        unready = one.queue.db.execute(
            "SELECT COUNT(*) FROM notices WHERE NOT ready AND due<=?", (time.time(),)
        ).fetchone()[0]
        return not one.busy() and not waiting and not unready

    until(over, what)


def states(db: sqlite3.Connection) -> list[str]:
    return [state for (state,) in db.execute("SELECT state FROM deliveries ORDER BY id")]


def test_all_targets_get_it_and_the_trail_says_so(kept: Journal, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pager = Target(command=str(program(tmp_path / "page", f"cat >>{out}\n")), severity="page")
    with receiver() as one:
        made = Courier(queue(kept), str(tmp_path / "events.jsonl"))
        made.queue.take([opened("1", time.time())], time.time())
        work_off(made, settings_for(chat(one), pager))
        assert one.got[0]["kind"] == "breaker.open"
        assert one.got[0]["id"] == json.loads(out.read_text())["id"]
    trail = list(events.read(str(tmp_path / "events.jsonl")))
    assert [(event.event, event.phase) for event in trail] == [("notice.sent", "done")] * 2
    assert {event.data["target"] for event in trail} == {"chat", "page"}


def test_a_dead_target_is_given_up_with_an_event_and_without_its_secret(kept: Journal, tmp_path: Path) -> None:
    with receiver(500) as dead, receiver() as well:
        dead.said = dead.url.encode()
        made = Courier(queue(kept), str(tmp_path / "events.jsonl"))
        made.queue.take([opened("1", time.time()), opened("2", time.time())], time.time())
        work_off(made, settings_for(chat(dead, "dead"), chat(well)))
        assert len(dead.posts) == 2 * policy.TRIES
        assert len(well.posts) == 2
    lost = [event for event in events.read(str(tmp_path / "events.jsonl")) if event.event == "notice.lost"]
    assert [(event.phase, event.data["target"], event.data["tries"]) for event in lost] == [("failed", "dead", 6)] * 2
    assert sorted(states(kept.db)) == sorted([LOST, LOST, SENT, SENT])
    assert "sEcReTsEcReT" not in (tmp_path / "events.jsonl").read_text()
    assert "sEcReTsEcReT" not in "\n".join(kept.db.iterdump())


def test_a_target_that_hangs_holds_up_neither_a_step_nor_another(kept: Journal, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    slow = program(tmp_path / "slow", f"echo begun >>{marks}; sleep 600\n")
    with receiver() as well, receiver("hang") as hanging:
        made = Courier(queue(kept), str(tmp_path / "events.jsonl"))
        targets = settings_for(Target(command=str(slow)), chat(hanging, "hanging"), chat(well))
        made.queue.take([opened("1", time.time())], time.time())
        longest_s = 0.0

        def step() -> None:
            nonlocal longest_s
            began = time.monotonic()
            made.step(targets, "c1", time.time())
            longest_s = max(longest_s, time.monotonic() - began)

        until(lambda: step() or (marks.exists() and hanging.posts and well.posts), "all three have begun")
        made.queue.take([opened("2", time.time())], time.time())
        until(lambda: step() or states(kept.db).count(SENT) == 2, "the one that is well gets the next")
        assert len(well.posts) == 2
        assert marks.read_text() == "begun\n"
        assert len(hanging.posts) == 1
        assert longest_s < webhook.STEP_S  # which every step would take that waits
        assert made.busy()
        made.close(within_s=0.0)
    assert states(kept.db).count(WAITING) == 4  # of those that hang: tried again by the next daemon


def test_many_facts_at_once_are_one_notice_and_a_flood_ends_in_a_fold(
    kept: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kinds.KINDS, "node.drained", kinds.KINDS["node.drained"]._replace(fold_s=0.0))  # type: ignore[index]
    monkeypatch.setattr(policy, "LIMIT", 5)
    monkeypatch.setattr(policy.choose, "__kwdefaults__", {"limit": 5})
    with receiver() as one:
        made = Courier(queue(kept), str(tmp_path / "events.jsonl"))
        now = time.time()
        made.queue.take([drained(f"n{i}", now) for i in range(20)], now)
        work_off(made, settings_for(chat(one)))
        assert [got["kind"] for got in one.got] == ["node.drained"] * 4 + ["notices.more"]
        assert one.got[-1]["subject"] == "fmslurm c1: and 16 more notices"
        assert "n19" in one.got[-1]["body"]


def test_owners_are_told_by_the_program_that_slurm_mails_with(
    kept: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path / "mailprog", f'echo "$2|$3" >>{tmp_path}/mails\n')
    monkeypatch.setattr("slurm_ext.notices.send.slurms_mail", lambda _settings: (str(path), ""))
    made = Courier(queue(kept), str(tmp_path / "events.jsonl"))
    now = time.time()
    made.queue.take([drained("job 7", now, kind="owner.held", owner=os.getuid(), job="7", job_name="train")], now)
    work_off(made, settings_for(users=True))
    subject, _, user = (tmp_path / "mails").read_text().strip().rpartition("|")
    assert subject.startswith("Slurm Job_id=7 Name=train Held by fmslurm: ")
    assert user


def test_a_disk_that_is_full_sends_nothing_twice_and_loses_nothing(kept: Journal, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    out = tmp_path / "out"
    slow = program(tmp_path / "slow", f"cat {gate} >/dev/null; echo told >>{out}\n")
    targets = settings_for(Target(command=str(slow)))
    made = Courier(queue(kept), str(tmp_path / "events.jsonl"))
    desk = Desk(kept.db, str(tmp_path / "events.jsonl"))
    desk.courier = made
    now = time.time()
    made.queue.take([opened("1", now)], now)
    made.step(targets, "c1", time.time())
    assert made.busy()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))  # nothing can be written to any file from now on
        with pytest.raises(sqlite3.Error):
            kept.db.execute("INSERT INTO told VALUES ('x', 1)")
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        gate.write_text("go")
        until(out.exists, "it was told")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))

        def fails() -> bool:
            try:
                desk.step(targets, "c1", time.time())
            except LackingError as exc:
                return "journal" in str(exc)
            return False

        until(lambda: fails() and made._unwritten, "the end of the try cannot be written")
        for _ in range(20):
            assert fails()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    desk.step(targets, "c1", time.time())
    assert states(kept.db) == [SENT]
    assert out.read_text() == "told\n"
    desk.close()


#: A daemon that does nothing but send; it ends at the named point if it is to, as by kill -9.
DAEMON = """
import os, sys, time
sys.path[:0] = sys.argv[5:7]
from notices_support import journal, opened
from pathlib import Path
from slurm_ext.config.model import Notify, Settings, Target
from slurm_ext.notices import policy
from slurm_ext.notices.courier import Courier
from slurm_ext.notices.queue import Queue
folder, url, point, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
policy.PAUSES_S, policy.TRIES, policy.LIMIT = (0.02,) * 200, 201, 1000
policy.choose.__kwdefaults__["limit"] = 1000
made = journal(folder)
def crash(at):
    if at == point:
        os.kill(os.getpid(), 9)
courier = Courier(Queue(made.db), str(folder / "events.jsonl"), crash=crash)
settings = Settings(notify=Notify(targets=(Target(name="chat", webhook=url),)))
courier.queue.take([opened(str(i), time.time()) for i in range(count)], time.time())
while True:
    courier.step(settings, "c1", time.time())
    left = made.db.execute("SELECT COUNT(*) FROM deliveries WHERE state='waiting'").fetchone()[0]
    if not left and not courier.busy():
        print("done", flush=True)
        break
    time.sleep(0.002)
"""


def daemon(folder: Path, url: str, *, point: str = "", count: int = 1) -> subprocess.Popen[str]:
    argv = [
        sys.executable,
        "-c",
        DAEMON,
        str(folder),
        url,
        point,
        str(count),
        str(CHECKOUT),
        str(Path(__file__).parent),
    ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("point", ["meant", "started", "sent", "marked"])
def test_killed_at_each_point_it_is_sent_once_or_twice_and_never_lost(point: str, tmp_path: Path) -> None:
    with receiver() as one:
        first = daemon(tmp_path, one.url, point=point)
        assert first.wait(60) == -signal.SIGKILL
        first.communicate()
        second = daemon(tmp_path, one.url)
        assert second.communicate(timeout=60)[0] == "done\n"
        # A try that was under way when its daemon was killed may still arrive.
        assert 1 <= len(one.got) <= 2
        assert {got["id"] for got in one.got} == {one.got[0]["id"]}
        if point == "marked":
            assert len(one.got) == 1
    with closing(journal(tmp_path)) as made:
        assert states(made.db) == [SENT]


def test_killed_at_random_nothing_is_lost_and_there_is_an_end(tmp_path: Path) -> None:
    seed = int(os.environ.get("FMSLURM_SEED", random.randrange(1 << 30)))
    print(f"FMSLURM_SEED={seed}")
    chance, count, kills = random.Random(seed), 25, 0
    with receiver() as one:
        while True:
            running = daemon(tmp_path, one.url, count=count)
            try:
                said, _ = running.communicate(timeout=chance.uniform(0.2, 1.5) if kills < 8 else 120)
                assert said == "done\n"
                break
            except subprocess.TimeoutExpired:
                running.kill()
                running.communicate()
                kills += 1
        told = [got["id"] for got in one.got]
        assert len(set(told)) == count
        assert len(told) <= count + kills  # a kill repeats one try at most: the one under way
    with closing(journal(tmp_path)) as made:
        assert states(made.db) == [SENT] * count


# --- the desk: from the share to the target


@pytest.fixture
def share(tmp_path: Path) -> Path:
    folder = tmp_path / "share"
    for name in ("ledger", "nodes", "config"):
        (folder / name).mkdir(parents=True)
    return folder


def of_site(share: Path, *targets: Target) -> Settings:
    return Settings(
        site=Site(share=str(share), cluster="c1"), mode=Mode(gate="enforce"), notify=Notify(targets=targets)
    )


def open_breaker(share: Path, settings: Settings) -> None:
    for number in range(3):
        ledger.claim(str(share), f"d{number}", drain=settings.drain, nodes=10, timeout_s=60)
    one = Suppressed("n4", "gpu.xid-79", "gpu:1", "replace", "fell off", "2 are allowed", time.time(), "7", allowed=2)
    assert suppressed.note(str(share), one, timeout_s=60) is not None


def run_until(desk: Desk, settings: Settings, is_so, what: str) -> None:
    def look() -> bool:
        desk.step(settings, "c1", time.time())
        return bool(is_so())

    until(look, what)


def test_the_breaker_opens_and_the_page_arrives_once(
    share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "LOOK_S", 0.1)
    with receiver() as one:
        settings = of_site(share, chat(one))
        open_breaker(share, settings)
        for turn in range(2):  # also over a restart
            with closing(journal(tmp_path)) as made:
                desk = Desk(made.db, str(tmp_path / "events.jsonl"))
                looks = []
                began = desk._found
                desk._found = lambda *args, began=began, looks=looks: looks.append(began(*args)) or looks[-1]  # type: ignore[method-assign]
                run_until(desk, settings, lambda looks=looks: sum(bool(one) for one in looks) >= 3, "it looked thrice")
                run_until(desk, settings, lambda desk=desk: not desk.courier.busy(), "all is sent")
                desk.close()
            assert [got["kind"] for got in one.got] == ["breaker.open"], turn
        assert one.got[0]["severity"] == "page"
        assert one.got[0]["where"] == "n4"
        # Nothing counts any more, an hour later by the share's own clock.
        for path in (share / "ledger").glob("*.json"):
            os.utime(path, (time.time() - 3_700,) * 2)
        with closing(journal(tmp_path)) as made:
            desk = Desk(made.db, str(tmp_path / "events.jsonl"))
            run_until(desk, settings, lambda: len(one.got) == 2, "it is closed")
            desk.close()
        assert one.got[1]["kind"] == "breaker.closed"
        assert one.got[1]["severity"] == "notice"


def test_a_share_that_hangs_holds_up_no_step(share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "LOOK_S", 0.1)
    monkeypatch.setattr(look, "look", lambda _order: time.sleep(600) or b"")
    with closing(journal(tmp_path)) as made, receiver() as one:
        desk = Desk(made.db, str(tmp_path / "events.jsonl"))
        desk.queue.take([opened("1", time.time())], time.time())
        settings = of_site(share, chat(one))
        run_until(desk, settings, lambda: one.got and not desk.courier.busy(), "what is known goes out all the same")
        desk.close()
    assert one.got[0]["kind"] == "breaker.open"


def test_shadow_drains_come_from_the_trails_and_places_are_kept(
    share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "LOOK_S", 0.1)
    monkeypatch.setattr(desk_module, "TRAILS_S", 0.1)
    monkeypatch.setitem(kinds.KINDS, "node.drained", kinds.KINDS["node.drained"]._replace(fold_s=0.0))  # type: ignore[index]
    path = share / "nodes" / "n1" / "events.jsonl"

    def would(finding: str) -> None:
        event = events.Event("node.drain", node="n1", rule=finding, reason=f"fmslurm: {finding} x: y", dry_run=True)
        events.append(str(path), event)

    would("gpu.xid-79")
    with receiver() as one:
        settings = of_site(share, chat(one))._replace(mode=Mode(gate="shadow"))
        with closing(journal(tmp_path)) as made:
            desk = Desk(made.db, str(tmp_path / "events.jsonl"))
            run_until(desk, settings, lambda: len(one.got) == 1 and not desk.courier.busy(), "the first is told")
            desk.close()
        with path.open("a") as stream:
            stream.write('{"torn')
        with closing(journal(tmp_path)) as made:
            desk = Desk(made.db, str(tmp_path / "events.jsonl"))
            desk.step(settings, "c1", time.time())
            would("gpu.xid-48")
            would("gpu.xid-79")  # at the next job: told once a day
            run_until(desk, settings, lambda: len(one.got) == 2 and not desk.courier.busy(), "the second is told")
            desk.close()
    assert [got["where"] for got in one.got] == ["n1", "n1"]
    assert "xid-48" in one.got[1]["body"]
    assert one.got[0]["what"] == "1 node would have been drained"
    assert one.got[0]["dry_run"] is True


def test_nobody_is_told_where_nobody_is_named(share: Path, tmp_path: Path) -> None:
    with closing(journal(tmp_path)) as made:
        desk = Desk(made.db, str(tmp_path / "events.jsonl"))
        desk.step(of_site(share), "c1", time.time())
        assert desk._look is None
        desk.close()


def test_an_ending_daemon_waits_a_moment_for_what_is_under_way(kept: Journal, tmp_path: Path) -> None:
    out = tmp_path / "out"
    target = Target(command=str(program(tmp_path / "page", f"echo told >>{out}\n")))
    made = Courier(queue(kept), str(tmp_path / "events.jsonl"))
    made.queue.take([opened("1", time.time())], time.time())
    made.step(settings_for(target), "c1", time.time())
    made.close(within_s=60.0)
    assert states(kept.db) == [SENT]
    assert courier_module.LAST_S <= 5  # systemd and people wait for it

"""Doctor on notices: nobody is named, a target cannot work, it fails, its secret is none."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from slurm_ext.config.model import Mode, Notify, Settings, Site, Target
from slurm_ext.doctor import notify
from slurm_ext.doctor.model import OK, UNKNOWN, WARN, Facts
from slurm_ext.doctor.notify import Notices, collect, rule
from slurm_ext.doctor.rules import examine
from slurm_ext.notices.model import Fact, Sent
from slurm_ext.notices.queue import Queue
from slurm_ext.notices.ready import State
from slurm_ext.resume.daemon import journal_path
from slurm_ext.resume.journal import Journal

CHAT = State("chat", "webhook", "https://a.example/***", "notice", tried=True)

#: mode, what was found -> (id, state, piece of the text).
CASES = [
    (Mode(), Notices(), []),
    (Mode(gate="enforce"), Notices(), [("notify.targets", WARN, "gate enforces")]),
    (Mode(gate="enforce", resume="enforce"), Notices(), [("notify.targets", WARN, "gate, resume enforces")]),
    (Mode(), Notices((CHAT,)), [("notify.targets", OK, "none was used yet")]),
    (Mode(), Notices((CHAT._replace(tried=False),)), [("notify.targets", OK, "controller's journal")]),
    (Mode(), Notices((CHAT._replace(last_sent=5.0),)), [("notify.targets", OK, "chat")]),
    (
        Mode(),
        Notices((CHAT._replace(last_sent=5.0, last_failed=6.0, said="500", lost=1),)),
        [("notify.target", WARN, "500")],
    ),
    (Mode(), Notices((CHAT._replace(last_sent=7.0, last_failed=6.0, said="500"),)), [("notify.targets", OK, "chat")]),
    (Mode(), Notices((CHAT._replace(problem="no such file"),)), [("notify.target", WARN, "no such file")]),
    (
        Mode(),
        Notices((CHAT,), "everyone may read it"),
        [("notify.secret", WARN, "everyone"), ("notify.targets", OK, "")],
    ),
    (Mode(), Notices(unknown="no answer"), [("notify.targets", UNKNOWN, "no answer")]),
]


@pytest.mark.parametrize(("mode", "found", "wanted"), CASES)
def test_rules(mode: Mode, found: Notices, wanted: list[tuple[str, str, str]]) -> None:
    results = list(rule(Settings(mode=mode), found))
    assert [(result.id, result.state) for result in results] == [(id_, state) for id_, state, _ in wanted]
    for result, (_, state, piece) in zip(results, wanted, strict=True):
        assert piece in result.text
        assert result.remedy or state in (OK, UNKNOWN)


def test_doctor_asks_for_it() -> None:
    results = examine(Facts(Settings(mode=Mode(gate="enforce")), notices=Notices()))
    assert "notify.targets" in {result.id for result in results}


def test_what_is_seen_of_files_and_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "PROBE_S", 60.0)
    config = tmp_path / "fmslurm.yaml"
    config.write_text("")
    config.chmod(0o644)
    targets = (
        Target(name="chat", webhook="https://a.example/SECRETSECRET"),
        Target(command="/nonexistent/page"),
        Target(webhook_file="/nonexistent/url"),
        Target(mail="a@b"),
    )
    settings = Settings(site=Site(state_dir=str(tmp_path)), notify=Notify(targets=targets))
    found = collect(settings, str(config), {"MailProg": "/bin/sh"})
    assert found.secret
    assert [bool(state.problem) for state in found.targets] == [False, True, True, False]
    assert not any(state.tried for state in found.targets)
    assert "SECRET" not in str(found)
    config.chmod(0o600)
    with closing(Journal(journal_path(settings))) as journal:
        queue = Queue(journal.db)
        now = time.time()
        queue.take([Fact("breaker.open", "k", since_s=now)], now)
        queue.address({"chat": "page"}, now, users=False)
        queue.mark_failed(queue.meant(queue.due("chat", now)[0], now), Sent(False, "a.example: 500"), now)
    found = collect(settings, str(config), None)
    assert found.secret == ""
    assert found.targets[0].tried
    assert (found.targets[0].waiting, found.targets[0].said, found.targets[0].fails) == (1, "a.example: 500", True)

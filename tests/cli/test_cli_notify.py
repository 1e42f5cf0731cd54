"""`fmslurm notify`: what people see of targets, and that a test really goes out."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_ext import events
from slurm_ext.cli.main import fmslurm
from slurm_ext.config.locate import settings as located
from slurm_ext.notices.model import Fact
from slurm_ext.notices.queue import Queue
from slurm_ext.resume.daemon import journal_path
from slurm_ext.resume.journal import Journal

sys.path.append(str(Path(__file__).resolve().parents[1] / "notices"))
from stand_ins import program, receiver


class Site:
    """A fmslurm.yaml of a test's own, and the command line on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "fmslurm.yaml"
        self.write("[]")

    def write(self, targets: str) -> None:
        site = f"{{cluster: c1, state_dir: {self.folder}/state, log_dir: {self.folder}/log, slurm_bin: {self.folder}}}"
        self.path.write_text(f"site: {site}\nnotify:\n  targets: {targets}\n")
        self.path.chmod(0o600)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(fmslurm, ["notify", *arguments], env={"FMSLURM_CONFIG": str(self.path)})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_test_goes_to_each_and_says_what_came_of_it(site: Site) -> None:
    out = site.folder / "out"
    good = program(site.folder / "good", f"cat >{out}; echo paged\n")
    bad = program(site.folder / "bad", "exit 4\n")
    with receiver() as chat:
        site.write(f"[{good}, {bad}, {{webhook: '{chat.url}', name: chat}}]")
        done = site.run("test")
        assert done.exit_code == 1
        assert "good: sent: paged" in done.output
        assert "bad: FAILED:" in done.output
        assert "chat: sent: 127.0.0.1: 200 ok" in done.output
        assert "sEcReT" not in done.output
        assert json.loads(out.read_text())["kind"] == "notice.test"
        assert chat.got[0]["subject"].startswith("fmslurm c1: PAGE: a test of")
        alone = site.run("test", "chat", "--json")
        assert alone.exit_code == 0
        assert [row["target"] for row in json.loads(alone.output)["results"]] == ["chat"]
    trails = list((site.folder / "log").glob("**/events.jsonl"))
    told = [event for path in trails for event in events.read(str(path))]
    assert [(event.event, event.phase) for event in told].count(("notice.test", "failed")) == 1
    assert len(told) == 4


def test_mistakes_of_a_person(site: Site) -> None:
    done = site.run("test")
    assert "names nobody" in str(done.exception)
    site.write("[{mail: root}]")
    done = site.run("test", "rot")
    assert "Did you mean root?" in str(done.exception)
    assert "There are: root" in str(done.exception)


def test_the_list_before_and_after_something_was_told(site: Site) -> None:
    assert "names nobody" in site.run("list").output
    site.write("[{webhook: 'https://a.example/sEcReTsEcReT', name: chat, severity: page}, /nonexistent/page]")
    before = site.run("list")
    assert before.exit_code == 0
    assert "not known here" in before.output
    assert "sEcReT" not in before.output
    with closing(Journal(journal_path(settings_of(site)))) as journal:
        queue = Queue(journal.db)
        now = time.time()
        queue.take([Fact("breaker.open", "k", since_s=now)], now)
        queue.address({"chat": "page"}, now, users=False)
        queue.mark_sent(queue.due("chat", now)[0], "ok", now)
    rows = json.loads(site.run("list", "--json").output)["targets"]
    assert [(row["name"], row["sent"], row["waiting"], row["fails"]) for row in rows] == [
        ("chat", 1, 0, False),
        ("page", 0, 0, False),
    ]
    assert "/nonexistent/page" in rows[1]["problem"]
    assert rows[0]["where"] == "https://a.example/***"
    lines = site.run("list", "-o", "target,sent,last_failed", "--noheader").output.splitlines()
    assert lines == ["chat  1  never", "page  0  never"]
    assert site.run().output == site.run("list").output


def settings_of(site: Site):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FMSLURM_CONFIG", str(site.path))
        return located()


def test_a_journal_of_an_older_version_is_as_good_as_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_ext.resume import journal as module

    site.write("[{mail: root}]")
    with monkeypatch.context() as before:
        before.setattr(module, "VERSION", 1)
        before.setattr(module, "_MIGRATIONS", module._MIGRATIONS[:1])
        Journal(journal_path(settings_of(site))).close()
    done = site.run("list")
    assert done.exit_code == 0
    assert "?" in done.output

"""The daemon's settings: what was pushed holds, and whom to tell comes from the file that was pushed, since no snapshot says it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from slurm_ext.config import snapshot, yaml_file
from slurm_ext.resume import daemon
from slurm_ext.resume.daemon import Loop


class Site:
    """A fmslurm.yaml, a share it is pushed to, and a daemon that reads both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "fmslurm.yaml"
        (root / "share" / "ledger").mkdir(parents=True)

    def write(self, targets: str = "[]", *, infra: int = 5) -> None:
        places = ", ".join(f"{name}_dir: {self.root}/{name}" for name in ("state", "run", "log"))
        site = f"{{cluster: c, share: {self.root}/share, {places}}}"
        self.path.write_text(f"site: {site}\nresume: {{infra: {infra}}}\nnotify: {{targets: {targets}}}\n")

    def push(self) -> None:
        snapshot.push(yaml_file.load(str(self.path)), str(self.root / "share"))

    def loop(self) -> Loop:
        return Loop(yaml_file.load(str(self.path)), str(self.path))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setitem(snapshot.view.__kwdefaults__, "timeout_s", 60.0)
    return Site(tmp_path)


def names(loop: Loop) -> list[str]:
    return [target.mail for target in loop.current().notify.targets]


def test_whom_to_tell_is_read_from_the_file_once_it_was_pushed(site: Site) -> None:
    site.write("[{mail: a@x}]")
    with closing(site.loop()) as loop:
        assert names(loop) == ["a@x"]  # nothing was pushed yet: the file as it was at the start
        site.push()
        assert names(loop) == ["a@x"]
        site.write("[{mail: b@x}]", infra=3)
        assert names(loop) == ["a@x"]  # an edit without a push does nothing
        assert loop.current().resume.infra == 5
        site.push()
        assert names(loop) == ["b@x"]
        assert loop.current().resume.infra == 3
        site.write("[{mail: b@x}", infra=3)  # broken meanwhile
        assert names(loop) == ["b@x"]


def test_a_push_from_another_machine_changes_nobody_who_is_told(site: Site) -> None:
    site.write("[{mail: a@x}]")
    site.push()
    with closing(site.loop()) as loop:
        other = Site(site.root / "other")
        other.root = site.root
        other.write("[{mail: z@x}]", infra=1)
        other.push()
        assert names(loop) == ["a@x"]
        assert loop.current().resume.infra == 1


@pytest.mark.parametrize("error", [sqlite3.OperationalError("database or disk is full"), RuntimeError("a bug of ours")])
def test_notices_that_break_do_not_keep_jobs_from_coming_back(
    error: Exception, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.write("[{mail: a@x}]")
    with closing(site.loop()) as loop:
        ticks: list[float] = []
        monkeypatch.setattr(loop.controller, "tick", lambda: ticks.append(time.time()))
        monkeypatch.setattr(loop._push, "refresh", lambda *_about: None)

        def broken(*_about: object) -> None:
            raise error

        monkeypatch.setattr(loop.desk.courier, "step", broken)
        for _ in range(3):
            assert loop.once()
        assert len(ticks) == 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1  # not one line a tick
    assert str(error) in said[0]


def test_notices_do_not_wait_for_the_next_tick(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "NOTICES_S", 0.01)
    site.write("[{mail: a@x}]")
    with closing(site.loop()) as loop:
        loop.controller.settings = loop.settings._replace(resume=loop.settings.resume._replace(poll_s=3_600.0))
        ticks: list[float] = []
        steps: list[float] = []
        monkeypatch.setattr(loop, "_tick", lambda: ticks.append(time.time()))

        def step(*_about: object) -> None:
            steps.append(time.time())
            loop.stopping = len(steps) == 5

        monkeypatch.setattr(loop.desk, "step", step)
        loop.run()
    assert (len(ticks), len(steps)) == (1, 5)

"""`fmslurm config|mode|off|on|events` as a person runs them: exit codes, JSON with a schema, and what is on disk after."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_ext import events, shared
from slurm_ext.cli.main import main
from slurm_ext.config import snapshot
from slurm_ext.config.model import ROOMS


class Site:
    """A site in a folder: its fmslurm.yaml, share and trail, and a way to run commands there."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.share = folder / "share"
        (self.share / "ledger").mkdir(mode=0o755, parents=True)
        self.path = folder / "fmslurm.yaml"
        self.text = (
            f"# ours\nsite:\n  share: {self.share}\n  log_dir: {folder}/log/%n\nmode:\n  gate: shadow # for now\n"
        )
        self.path.write_text(self.text)

    def run(self, *words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def json(self, *words: str) -> dict[str, object]:
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        data = json.loads(out)
        assert data["schema"] == 1
        return data

    def trail(self) -> list[tuple[str, str]]:
        found = [event for path in self.folder.glob("log/*/events.jsonl") for event in events.read(str(path))]
        return [(event.event, event.phase) for event in found]


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, capsys)
    monkeypatch.setenv("FMSLURM_CONFIG", str(made.path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return made


def test_check_says_what_is_wrong_and_exits_1(site: Site) -> None:
    assert site.run("config", "check")[0] == 0
    assert site.json("config", "check")["ok"] is True
    site.path.write_text("gate: {deadline_s: 10s}\nmod: {}\n")
    code, out, _ = site.run("config", "check")
    assert code == 1
    assert [line.split(": ")[0] for line in out.splitlines()] == [f"{site.path}:1", f"{site.path}:2"]
    code, out, _ = site.run("config", "check", "--json")
    assert code == 1
    assert [problem["line"] for problem in json.loads(out)["problems"]] == [1, 2]


def test_a_broken_file_stops_every_command_with_3_and_its_reasons(site: Site) -> None:
    site.path.write_text("gate: {deadline_s: 10s}\n")
    for words in (["config", "show"], ["config", "push"], ["mode"], ["off", "--reason", "x"], ["on"], ["events"]):
        code, _, err = site.run(*words)
        assert code == 3, words
        assert f"{site.path}:1: gate.deadline_s" in err


def test_show_says_where_each_value_comes_from(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/x/slurm.conf")
    rows = {row["key"]: row for row in site.json("config", "show")["values"]}  # type: ignore[attr-defined]
    assert rows["mode.gate"]["origin"] == f"{site.path}:6"
    assert rows["mode.burnin"]["origin"] == "default"
    assert rows["site.slurm_conf"]["origin"] == "environment (SLURM_CONF)"
    assert all(row["meaning"] for row in rows.values())
    assert len(site.run("config", "show", "burnin")[1].splitlines()) > 10
    changed = [row["key"] for row in site.json("config", "show", "--changed")["values"]]  # type: ignore[attr-defined]
    assert changed == ["site.share", "site.log_dir", "site.slurm_conf", "mode.gate"]
    code, out, _ = site.run("config", "show", "gate.deadline_s")
    assert code == 0
    assert "meaning" in out
    code, _, err = site.run("config", "show", "gate.deadlines")
    assert code == 2
    assert "Did you mean gate.deadline_s?" in err
    assert site.run("config")[1] == site.run("config", "show")[1]


def test_push_hands_it_over_and_a_dry_run_does_not(site: Site) -> None:
    assert site.json("config", "push", "--dry-run")["generation"] == 1
    assert [path.name for path in site.share.iterdir()] == ["ledger"]
    assert site.trail() == []
    assert site.json("config", "push")["generation"] == 1
    assert site.json("config", "push")["generation"] == 2
    assert snapshot.read(str(site.share / snapshot.SNAPSHOT_FILE)).mode.gate == "shadow"
    assert site.trail() == [("config.push", "intent"), ("config.push", "done")] * 2


def test_push_without_a_share_says_what_to_set(site: Site) -> None:
    site.path.write_text("gate: {}\n")
    code, _, err = site.run("config", "push")
    assert code == 3
    assert "Set site.share" in err
    site.path.write_text(f"site: {{share: {site.folder}/unmounted}}\n")
    assert site.run("config", "push")[0] == 3
    assert not (site.folder / "unmounted").exists()
    (site.folder / "unmounted").mkdir()  # the empty folder that it is mounted on
    code, _, err = site.run("config", "push")
    assert (code, list((site.folder / "unmounted").iterdir())) == (3, [])
    assert "Mount it" in err


def test_setting_a_mode_changes_that_line_alone_and_pushes(site: Site) -> None:
    assert site.json("mode", "set", "gate", "enforce", "--dry-run")["generation"] == 0
    assert site.path.read_text() == site.text
    answer = site.json("mode", "set", "gate", "enforce", "--reason", "tried")
    assert (answer["was"], answer["mode"], answer["generation"]) == ("shadow", "enforce", 1)
    assert site.path.read_text() == site.text.replace("shadow", "enforce")
    assert snapshot.read(str(site.share / snapshot.SNAPSHOT_FILE)).mode.gate == "enforce"
    assert site.trail()[0] == ("mode.set", "intent")
    assert site.trail()[-1] == ("mode.set", "done")
    assert site.run("mode", "set", "gate", "on")[0] == 2
    assert site.run("mode", "set", "gat", "off")[0] == 2


def test_a_linked_configuration_stays_linked(site: Site) -> None:
    real = site.path.rename(site.folder / "real.yaml")
    site.path.symlink_to(real)
    assert site.run("mode", "set", "gate", "warn")[0] == 0
    assert site.path.is_symlink()
    assert "gate: warn # for now" in real.read_text()


def rooms(site: Site) -> dict[str, str]:
    return {row["room"]: row["now"] for row in site.json("mode", "show")["rooms"]}  # type: ignore[attr-defined]


def test_the_switch_stops_rooms_at_once_and_on_takes_it_back(site: Site) -> None:
    answer = site.json("off", "gate", "--for", "30m", "--reason", "three in the morning")
    assert 1600 < float(str(answer["until"])) - time.time() < 1810
    assert rooms(site)["gate"] == "off"
    seen = snapshot.view(str(site.share), str(site.folder / "state"))
    assert seen.settings.mode.gate == "off"
    assert seen.off[0].reason == "three in the morning"
    assert site.json("on", "gate")["cleared"] == ["gate"]
    assert rooms(site)["gate"] == "shadow"
    site.json("off", "--reason", "all of it")
    assert set(rooms(site).values()) == {"off"}
    assert site.json("on", "gate")["still_off_by_all"] is True
    assert site.json("on")["cleared"] == ["all"]
    assert site.json("on")["cleared"] == []
    assert [name for name, _ in site.trail()] == ["mode.off", "mode.on", "mode.off", "mode.on"]


def test_the_switch_works_though_the_trail_cannot_be_written(site: Site) -> None:
    (site.folder / "log").write_text("in the way")
    code, _, err = site.run("off", "--reason", "x")
    assert code == 0
    assert "not written to the trail" in err
    assert shared.switches(str(site.share))


def test_dry_runs_of_the_switch_touch_nothing(site: Site) -> None:
    assert site.json("off", "--reason", "x", "--dry-run")["dry_run"] is True
    assert [path.name for path in site.share.iterdir()] == ["ledger"]
    shared.throw_switch(str(site.share), shared.Off("gate", time.time() + 60))
    assert site.json("on", "--dry-run")["cleared"] == ["gate"]
    assert rooms(site)["gate"] == "off"
    assert site.trail() == []


@pytest.mark.parametrize("span", ["3", "h", "-1h", "0s", "31d", "1w", ""])
def test_spans_that_are_none_are_refused(span: str, site: Site) -> None:
    assert site.run("off", "--for", span, "--reason", "x")[0] == 2
    assert [path.name for path in site.share.iterdir()] == ["ledger"]


def test_without_a_share_no_switch_pretends_to_work(site: Site) -> None:
    site.path.write_text("gate: {}\n")
    for words in (["off", "--reason", "x"], ["on"]):
        code, _, err = site.run(*words)
        assert code == 3
        assert "Set site.share" in err


def test_off_wants_a_reason(site: Site) -> None:
    assert site.run("off", "gate")[0] == 2


def test_mode_shows_what_narrows_it(site: Site) -> None:
    site.path.write_text(site.text.replace("shadow # for now", "enforce\n  canary: n[1-2]"))
    assert rooms(site)["gate"] == "enforce"
    there = site.json("mode", "show", "-w", "n9")["rooms"]
    assert [row["now"] for row in there if row["room"] == "gate"] == ["shadow"]  # type: ignore[attr-defined]
    assert set(rooms(site)) == set(ROOMS)


def test_events_are_shown_filtered_and_as_lines(site: Site) -> None:
    for node in ("n1", "n2"):
        shared.append_event(str(site.share), node, events.Event("gate.fail", node=node, job="7", reason="a\x1b[31mb"))
    code, out, _ = site.run("events")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "\x1b" not in out
    code, out, _ = site.run("events", "-w", "n2", "--json")
    assert [json.loads(line)["node"] for line in out.splitlines()] == ["n2"]
    assert site.run("events", "-j", "8", "--noheader")[1].strip() == ""
    assert site.run("events", "--since", "yesterday")[0] == 2
    assert site.run("events", "-w", "n[")[0] == 2


def test_the_switch_works_though_the_file_has_a_mistake_elsewhere(site: Site) -> None:
    site.path.write_text(site.text + "resume:\n  pol_s: 1\n")
    code, out, err = site.run("off", "--for", "1h", "--reason", "somebody pushed something")
    assert (code, "is off until" in out, "config check" in err) == (0, True, True)
    assert [switch.room for switch in shared.switches(str(site.share)) or ()] == ["all"]
    assert site.run("on")[0] == 0
    assert shared.switches(str(site.share)) == ()
    site.path.write_text(site.text.replace("share:", "shar:"))
    assert site.run("off", "--reason", "no share to be found")[0] == 3


def test_a_disabled_check_that_does_not_exist_is_named_with_its_line(site: Site) -> None:
    site.path.write_text(site.text + "gate:\n  disabled:\n    - gpu.persistence-off\n    - gpu.losst\n")
    code, out, _ = site.run("config", "check")
    assert code == 1
    line = len(site.path.read_text().splitlines())
    assert out == f"{site.path}:{line}: gate.disabled[1]: no check is called 'gpu.losst'. Did you mean gpu.lost?\n"
    code, _, err = site.run("config", "push")
    assert code == 3
    assert "gpu.losst" in err
    assert site.run("config", "show")[0] == 0, "it stops nothing but the push"

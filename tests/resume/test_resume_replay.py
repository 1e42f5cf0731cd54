"""Folders of evidence: the contract of `why --replay`, the labelled cases of our own, and folders that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_ext.cli.why import lines, why
from slurm_ext.config.model import Settings
from slurm_ext.resume.replay import judge, seconds

CASES = sorted(path.parent for path in (Path(__file__).parent / "cases").glob("*/expected.json"))


@pytest.mark.parametrize("folder", CASES, ids=[folder.name for folder in CASES])
def test_own_case(folder: Path):
    want = json.loads((folder / "expected.json").read_text())
    got = judge(str(folder), Settings())
    assert {name: got[name] for name in ("class", "action", "culprit_nodes", "innocent_nodes")} == {
        name: want[name] for name in ("class", "action", "culprit_nodes", "innocent_nodes")
    }


def test_one_line_for_each_folder_in_order_and_the_label_is_never_opened(tmp_path: Path):
    good = tmp_path / "good"
    good.mkdir()
    (good / "job.log").write_text("KeyError: 'x'\n")
    (good / "expected.json").mkdir()  # opening it would fail
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "slurm.json").write_text("{")
    folders = [str(good), str(tmp_path / "none"), str(broken), str(good)]
    arguments = [word for folder in folders for word in ("--replay", folder)]
    result = CliRunner().invoke(why, [*arguments, "--json"], standalone_mode=False)
    assert result.exception is None
    answers = [json.loads(line) for line in result.output.splitlines()]
    assert [answer["case"] for answer in answers] == folders
    assert [answer["class"] for answer in answers] == ["user-code", "unknown", "unknown", "user-code"]
    assert ["error" in answer for answer in answers] == [False, True, True, False]
    for answer in answers:
        assert {"culprit_nodes", "innocent_nodes", "action", "rule", "confidence", "evidence"} <= set(answer)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"nodes": 3}',
        '{"job_state": null, "elapsed": true}',
        '{"job_state": [], "restart_count": "x"}',
        '{"nodes": [1]}',
    ],
)
def test_odd_records_are_read_as_far_as_they_go(tmp_path: Path, content: str):
    (tmp_path / "slurm.json").write_text(content)
    (tmp_path / "nodes" / "a").mkdir(parents=True)
    (tmp_path / "nodes" / "a" / "events.json").write_text('{"events": [3, {"time": 5}]}')
    assert judge(str(tmp_path), Settings())["class"] == "unknown"


def test_durations():
    assert seconds("1-02:03:04") == 93784
    assert seconds("00:10:00") == 600
    assert seconds("soon") == -1
    assert seconds(7) == 7


def test_a_story_fits_a_narrow_terminal_whatever_a_job_printed():
    run = {"restarts": 0, "nodes": "n[1-2]", "started": 1, "ended": 2, "end_state": "FAILED", "exit_code": "1:0"}
    evidence = ["\x1b[31m" + "x" * 500, "\u2028 line \r\n more"]
    cause = {
        "reason": "r" * 300,
        "class": "unknown",
        "rule": "x",
        "confidence": 0.5,
        "culprit_nodes": [],
        "evidence": evidence,
    }
    decision = {"action": "stop", "reason": "b" * 200, "rule": "y", "exclude": ["n1"], "wait_s": 60.0}
    run |= {"cause": cause, "decision": decision, "dry_run": True, "steps": []}
    told = {"job": "1", "name": "\x07name", "now": "over", "resume": False, "runs": [run], "budgets": {}}
    for line in lines(told):
        assert len(line) <= 80
        assert line.isprintable()


@pytest.mark.parametrize("name", ["job.log", "slurm.json", "nodes/n1/kernel.log", "nodes/n1/events.json"])
def test_no_link_in_a_folder_is_followed(tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text('{"not for": "everybody"}')
    folder = tmp_path / "folder"
    (folder / "nodes/n1").mkdir(parents=True)
    (folder / "slurm.json").write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    answer = judge(str(folder), Settings())
    assert answer["class"] == "unknown"
    assert "symbolic link" in str(answer["error"])
    assert "everybody" not in str(answer)

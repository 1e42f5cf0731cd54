"""`fmslurm gate replay`: one line for each folder, whatever is in it, by the live rules, and never by the right answer."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from slurm_ext import captured
from slurm_ext.cli.gate import gate


def case(tmp_path, name, group, files, *, instance_type=None, context=None, **more):
    folder = tmp_path / name
    folder.mkdir()
    roles = {}
    for role, text in files.items():
        (folder / f"{role}.txt").write_text(text)
        roles[role] = f"{role}.txt"
    if context is not None:
        (folder / "context.json").write_text(json.dumps(context))
        roles["context"] = "context.json"
    described = {"group": group, "instance_type": instance_type, "files": roles, **more}
    (folder / "case.json").write_text(json.dumps(described))
    return str(folder)


def run(*folders):
    done = CliRunner().invoke(gate, ["replay", *folders, "--json"], standalone_mode=False)
    assert done.exception is None, done.output
    assert done.return_value == 0
    return [json.loads(line) for line in done.output.splitlines()]


XID_79 = "[ 5.1] NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n"


def test_one_line_for_each_folder_in_order_also_for_broken_ones(tmp_path):
    good = case(tmp_path, "good", "kernel", {"dmesg": XID_79})
    unbuilt = case(tmp_path, "unbuilt", "slurm", {"sinfo": "x"})
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "case.json").write_text("{")
    lines = run(good, str(tmp_path / "nowhere"), str(broken), unbuilt)
    assert [line["case"] for line in lines] == [good, str(tmp_path / "nowhere"), str(broken), unbuilt]
    assert [line["verdict"] for line in lines] == ["fail", "unknown", "unknown", "unknown"]
    assert lines[0]["findings"][0]["target"] == "gpu@0000:05:00"
    assert all(isinstance(f["evidence"], list) for f in lines[0]["findings"])
    assert ["error" in line for line in lines] == [False, True, True, False]


def test_the_right_answer_is_never_read(tmp_path):
    lie = {"verdict": "pass", "findings": []}
    told = case(tmp_path, "told", "kernel", {"dmesg": XID_79}, expected=lie)
    plain = case(tmp_path, "plain", "kernel", {"dmesg": XID_79})
    first, second = run(told, plain)
    assert {**first, "case": ""} == {**second, "case": ""}


def test_a_capture_cannot_name_a_file_outside_its_folder(tmp_path):
    folder = case(tmp_path, "bad", "kernel", {"dmesg": XID_79})
    for name in ("../secret", "/etc/passwd", "", "a/b"):
        with open(os.path.join(folder, "case.json"), "w") as stream:
            json.dump({"group": "kernel", "files": {"dmesg": name}}, stream)
        (line,) = run(folder)
        assert line["verdict"] == "unknown"
        assert "error" in line


@pytest.mark.parametrize("name", ["case.json", "dmesg.txt", "context.json"])
def test_no_link_in_a_capture_is_followed(tmp_path, name):
    """Root judges folders that somebody else made: a link would show what that one may not read."""
    secret = tmp_path / "secret"
    secret.write_text('{"group": "kernel", "files": {}, "note": "not for everybody"}')
    folder = tmp_path / "folder"
    folder.mkdir()
    files = {"dmesg": "dmesg.txt", "context": "context.json"}
    (folder / "case.json").write_text(json.dumps({"group": "kernel", "files": files}))
    (folder / "dmesg.txt").write_text(XID_79)
    (folder / "context.json").write_text("{}")
    (folder / name).unlink()
    (folder / name).symlink_to(secret)
    (line,) = run(str(folder))
    assert line["verdict"] == "unknown"
    assert name in line["error"]
    assert "symbolic link" in line["error"]
    assert "not for everybody" not in json.dumps(line)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "case.json"),
        ("{", "line 1"),
        ("{}", "key group"),
        ('{"group": "kernel"}', "key files"),
        ('{"group": 7, "files": {}}', "key group"),
        ('{"group": "kernel", "files": {}, "instance_type": 7}', "key instance_type"),
        ('{"group": "kernel", "files": {"dmesg": 7}}', "key files.dmesg"),
        ('{"group": "kernel", "files": {"dmesg": "absent"}}', "key files.dmesg"),
        ('{"group": "kernel", "files": {"dmesg": "a/../b"}}', "key files.dmesg"),
        ("[" * 5000, "case.json"),
    ],
)
def test_a_case_that_cannot_be_used_is_told_with_file_and_key(tmp_path, text, named):
    (tmp_path / "case.json").write_text(text)
    (line,) = run(str(tmp_path))
    assert line["verdict"] == "unknown"
    assert named in line["error"]
    assert "Error(" not in line["error"]


@pytest.mark.parametrize(
    ("context", "verdict"),
    [
        ({"exit_code": 15}, "fail"),
        ({"exit_code": None, "timed_out": True, "elapsed_s": 30.0}, "unknown"),
        ("not an object", "unknown"),
        ({"exit_code": "odd"}, "fail"),
    ],
)
def test_how_the_probe_ended_counts(tmp_path, context, verdict):
    said = "Unable to determine the device handle for GPU 0000:B9:00.0: GPU is lost."
    folder = case(tmp_path, "smi", "gpu", {"stdout": "", "stderr": said}, instance_type="p5.48xlarge", context=context)
    (line,) = run(folder)
    assert line["verdict"] == verdict


def test_a_log_that_begins_long_after_boot_does_not_pass(tmp_path):
    text = "[146011.1] nfs: server fs01 not responding, still trying\n" * 3
    late = {"boot_time": "2026-07-01T00:00:00Z", "now": "2026-07-02T16:33:40Z"}
    (line,) = run(case(tmp_path, "late", "kernel", {"dmesg": text}, context=late))
    assert line["verdict"] == "unknown"


def test_times():
    assert captured.parse_time("2026-07-14T08:10:45Z") == 1784016645.0
    assert captured.parse_time("2026-07-14T10:10:45+02:00") == 1784016645.0
    assert captured.parse_time("") is None
    assert captured.parse_time("soon") is None


def test_list_shows_what_is_off(monkeypatch):
    done = CliRunner().invoke(gate, ["list", "--json"], standalone_mode=False)
    assert {check["state"] for check in json.loads(done.output)["checks"]} == {"on"}


def test_a_fifo_is_answered_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "case.json")
    result = CliRunner().invoke(gate, ["replay", "--json", str(tmp_path)])
    answer = json.loads(result.output)
    assert result.exit_code == 0
    assert (answer["verdict"], "no regular file" in answer["error"]) == ("unknown", True)

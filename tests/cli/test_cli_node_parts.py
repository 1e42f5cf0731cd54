"""The parts of `fmslurm node`: who acts, times that people write, what is told of a node, and bundles of evidence."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.cli import node_evidence, node_rows
from slurm_ext.cli.actor import Actor, actor
from slurm_ext.cli.main import main
from slurm_ext.cli.node_options import target_of
from slurm_ext.cli.node_rows import Known
from slurm_ext.cli.times import until_s
from slurm_ext.config.model import Settings
from slurm_ext.errors import UsageError
from slurm_ext.slurm.acks import Ack
from slurm_ext.slurm.drain_record import DrainRecord
from slurm_ext.slurm.model import Node

NOW = 1_900_000_000.0
OURS = "fmslurm: gpu.xid-79 gpu:3: NVRM: Xid 79"
RECORD = DrainRecord(
    "n1",
    "gpu.xid-79",
    "gpu:3",
    "reboot",
    OURS,
    NOW - 60,
    NOW + 86_400,
    "boot",
    "i-1",
    "fmslurm gate",
    "reboot",
    2,
    "/s/e",
    "a reboot",
    "0000:56:00 GPU-3",
    "the gate fails here",
)
ACK = Ack("n1", "gpu.xid-79", "gpu:3", NOW + 60, "known", "alice", NOW - 5)


@pytest.mark.parametrize(
    "words",
    [
        ["node", "drain", "n1", "--reason", ""],
        ["node", "drain", "n1", "--reason", " \t"],
        ["node", "ack", "gpu.xid-79", "n1", "--until", "2h", "--reason", " "],
        ["node", "resume", "n1", "--ack", "--reason", " "],
        ["off", "gate", "--for", "2h", "--reason", ""],
    ],
)
def test_a_reason_says_something(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "--reason" in capsys.readouterr().err


@pytest.mark.parametrize(
    "target",
    ["gpu:3", "gpu@0000:53:00", "node", "efa:rdmap79s0", "efa:0000:4f:00.0", "nic:ens5", "ost:fs-OST0002", "fs:/a b"],
)
def test_what_a_finding_may_be_about(target: str) -> None:
    assert target_of(target) == target
    assert target_of("") == ""


@pytest.mark.parametrize(
    "target", ["gpu:999", "gpu", "gpu:", "gpu:x", "../../x", "node:", "fs:fsx", "disk:-rf", "a\nb", "GPU:3"]
)
def test_what_no_finding_is_about(target: str) -> None:
    with pytest.raises(UsageError, match="--target"):
        target_of(target)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (Actor(0, "root"), "root"),
        (Actor(0, "root", 1000, "alice"), "root (sudo by alice)"),
        (Actor(0, "root", login_uid=1000, login_name="alice"), "root (logged in as alice)"),
        (Actor(0, "root", 1000, "alice", 1001, "bob"), "root (sudo by alice)"),
        (Actor(0, "root", 0, "root", 0, "root"), "root"),
    ],
)
def test_who_it_is_for_people(who: Actor, words: str) -> None:
    assert who.words() == words
    assert "" not in who.data().values()


@pytest.mark.parametrize(
    ("text", "login_uid"), [("0\n", 0), ("4294967295\n", -1), ("", -1), ("many\n", -1), ("99999999999999", -1)]
)
def test_the_login_is_the_kernels_word(tmp_path: Path, text: str, login_uid: int) -> None:
    path = tmp_path / "loginuid"
    path.write_text(text)
    assert actor({}, str(path)).login_uid == login_uid
    assert actor({}, str(tmp_path / "none")).login_uid == -1


@pytest.mark.parametrize(
    ("environment", "uid", "name"),
    [
        ({"SUDO_UID": "1000", "SUDO_USER": "alice"}, 1000, "alice"),
        ({"SUDO_UID": "x", "SUDO_USER": "a b\nc"}, -1, "abc"),
        ({"SUDO_UID": "9" * 40, "SUDO_USER": "z" * 500}, -1, "z" * 64),
        ({}, -1, ""),
    ],
)
def test_what_sudo_says_is_made_harmless(environment: dict[str, str], uid: int, name: str) -> None:
    found = actor(environment)
    assert (found.sudo_uid, found.sudo_user) == (uid, name)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("3d", 259_200), ("1.5h", 5400), (" 2 W ", 1_209_600), ("30m", 1800)]
)
def test_spans(text: str, seconds: float) -> None:
    assert until_s(text, NOW) == NOW + seconds


def test_moments() -> None:
    day = time.strftime("%Y-%m-%d", time.localtime(NOW + 5 * 86_400))
    end = time.mktime(time.strptime(f"{day} 23:59:59", "%Y-%m-%d %H:%M:%S"))
    assert until_s(day, NOW) == end
    assert until_s("2030-03-18T00:00:00Z", NOW) == 1_900_022_400.0


@pytest.mark.parametrize(
    "text", ["", "2x", "soon", "-2h", "0h", "2020-01-01", "2h ago", "9999-12-31", "400d", "2030-13-01"]
)
def test_what_is_no_time_to_come(text: str) -> None:
    with pytest.raises(UsageError):
        until_s(text, NOW)


@given(st.text(max_size=30))
def test_any_text_is_a_time_to_come_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert NOW < until_s(text, NOW) < NOW + 400 * 86_400


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (OURS, ("gpu.xid-79", "gpu:3")),
        ("fmslurm: node.manual node: fans (by root)", ("node.manual", "node")),
        ("fmslurm: fs.hang fs:/fsx: no answer", ("fs.hang", "fs:/fsx")),
        ("Prolog error", ("", "")),
        ("", ("", "")),
    ],
)
def test_what_a_reason_of_ours_is_for(reason: str, expected: tuple[str, str]) -> None:
    assert node_rows.in_reason(reason) == expected


def node(reason: str = OURS, *, drained: bool = True) -> Node:
    return Node("n1", "IDLE", ("DRAIN",) if drained else (), reason, "root", int(NOW) - 60)


@pytest.mark.parametrize(
    ("one", "known", "expected"),
    [
        (node(), Known({"n1": RECORD}, {"n1": (ACK,)}), ("fmslurm", "gpu.xid-79", "reboot", "a reboot", "gpu.xid-79")),
        (node("Prolog error"), Known({"n1": RECORD}, {}), ("fmslurm", "gpu.xid-79", "reboot", "a reboot", "")),
        (node(), Known({}, {}), ("fmslurm", "gpu.xid-79", "", "", "")),
        (node(), Known(None, None), ("fmslurm", "gpu.xid-79", "", "", "")),
        (node("fans"), Known({"n1": RECORD}, {}), ("root", "", "", "", "")),
        (node("", drained=False), Known({"n1": RECORD}, {}), ("", "", "", "", "")),
    ],
)
def test_one_line_of_the_table(one: Node, known: Known, expected: tuple[str, ...]) -> None:
    row = node_rows.row(one, known, NOW)
    assert tuple(row[name] for name in ("by", "finding", "step", "needs", "acks")) == expected
    assert set(row) == set(node_rows.COLUMNS)


def test_everything_of_a_node_for_people_and_machines() -> None:
    known = Known({"n1": RECORD}, {"n1": (ACK,)})
    text = "\n".join(node_rows.told(node(), known, NOW))
    for word in (
        "gpu.xid-79 on gpu:3",
        "to come back     a reboot",
        "it stays out     the gate fails here",
        "/s/e",
        "acknowledged by alice",
        "i-1",
        "time 2",
    ):
        assert word in text
    data = node_rows.as_data(node(), known, NOW)
    assert json.loads(json.dumps(data)) == data
    assert data["drain"]["step"] == "reboot"
    assert data["acks"][0]["actor"] == "alice"
    assert "no record of this drain" in "\n".join(node_rows.told(node(), Known({}, {}), NOW))


def test_an_absent_share_is_told() -> None:
    assert Known(None, None).trouble("/share").startswith("/share does not answer")
    assert Known(None, None).trouble("").startswith("site.share is empty")
    assert Known({}, {}).trouble("/share") == ""


# --- evidence ---


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of one node's bundles on a share, and let the command find it."""
    share = tmp_path / "share"
    (share / "evidence/n1").mkdir(parents=True, mode=0o755)
    share.chmod(0o755)
    (share / "ledger").mkdir(mode=0o755)
    config = tmp_path / "fmslurm.yaml"
    config.write_text(f"site:\n  share: {share}\n  state_dir: {tmp_path}/state/%n\n")
    monkeypatch.setenv("FMSLURM_CONFIG", str(config))
    for name in ("20261130T120000Z-gpu.lost", "20261130T130000Z-efa.missing"):
        bundle = share / "evidence/n1" / name
        bundle.mkdir()
        (bundle / "case.json").write_text("{}")
        (bundle / "context.json").write_text(json.dumps({"bundle": {"finding": {"id": name.partition("-")[2]}}}))
    (share / "evidence/n1/.20261130T140000Z-half.1234").mkdir()
    (share / "evidence/n1/notes.txt").write_text("")
    return share / "evidence/n1"


def test_bundles_are_listed_named_and_copied(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "evidence", "n1", "-o", "time,finding", "--noheader"]) == 0
    assert capsys.readouterr().out == "20261130T120000Z  gpu.lost\n20261130T130000Z  efa.missing\n"
    assert main(["node", "evidence", "n1", "--path"]) == 0
    assert capsys.readouterr().out == f"{saved}/20261130T130000Z-efa.missing\n"
    assert main(["node", "evidence", "n1", "--json"]) == 0
    assert [one["finding"] for one in json.loads(capsys.readouterr().out)["bundles"]] == ["gpu.lost", "efa.missing"]
    out = tmp_path / "out"
    out.mkdir()
    assert main(["node", "evidence", "n1", "--out", str(out), "--bundle", "20261130T12"]) == 0
    copy = out / "n1-20261130T120000Z-gpu.lost"
    assert capsys.readouterr().out == f"{copy}\n"
    assert sorted(os.listdir(copy)) == ["case.json", "context.json"]
    assert copy.stat().st_mode & 0o777 == 0o700
    assert main(["node", "evidence", "n1", "--out", str(out), "--bundle", "20261130T12"]) == 2, "nothing is overwritten"


def test_a_link_in_a_bundle_is_not_copied(saved: Path, tmp_path: Path) -> None:
    (saved / "20261130T130000Z-efa.missing/shadow").symlink_to("/etc/shadow")
    (saved / "20261130T130000Z-efa.missing/deep").mkdir()
    (tmp_path / "out").mkdir()
    assert main(["node", "evidence", "n1", "--out", str(tmp_path / "out")]) == 0
    assert sorted(os.listdir(tmp_path / "out/n1-20261130T130000Z-efa.missing")) == ["case.json", "context.json"]


def test_bundles_on_the_node_itself_are_found_too(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state/n1/evidence/20261130T150000Z-disk.full").mkdir(parents=True)
    assert main(["node", "evidence", "n1", "-o", "finding", "--noheader"]) == 0
    assert capsys.readouterr().out.split() == ["gpu.lost", "efa.missing", "disk.full"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["n2"], 0, "nothing was saved of n2"),
        (["n2", "--path"], 1, "nothing was saved of n2"),
        (["n1", "--bundle", "zzz"], 1, "no bundle of n1 is called zzz"),
        (["../n1"], 2, "no node name"),
        (["n1", "--list", "--path"], 2, "exclude one another"),
        (["n1", "--out", "/nonexistent"], 2, "no such folder"),
    ],
)
def test_what_is_not_there(
    saved: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node", "evidence", *words]) == code
    assert said in capsys.readouterr().err


def test_a_share_that_is_gone_is_no_empty_one(tmp_path: Path) -> None:
    plain = Settings()
    site = plain.site._replace(share=str(tmp_path / "gone"), state_dir=str(tmp_path))
    assert node_evidence.find(plain._replace(site=site), "n1") is None

"""What the controller reads of the share: only what root wrote, only what is new, and never more than it can carry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_ext import events
from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings
from slurm_ext.events import Event
from slurm_ext.notices import look
from slurm_ext.notices.look import Order, Place
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.drain_record import DrainRecord


@pytest.fixture
def share(tmp_path: Path) -> Path:
    folder = tmp_path / "share"
    for name in ("ledger", "nodes/n1", "nodes/n2"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the share take its time on a busy machine."""
    for function in (look.ledger.entries, look.suppressed.read_all, drain_record.read_all, drain_record.history):
        monkeypatch.setitem(function.__kwdefaults__, "timeout_s", 60.0)


def seen(share: Path, places: dict[str, Place] | None = None, **more) -> dict:
    return json.loads(look.look(Order(str(share), "", {}, {} if places is None else places)._replace(**more)))


def would(share: Path, node: str, finding: str = "gpu.xid-79") -> Path:
    path = share / "nodes" / node / "events.jsonl"
    events.append(str(path), Event("gate.prolog", node=node))
    events.append(str(path), Event("node.drain", node=node, rule=finding, dry_run=True))
    events.append(str(path), Event("node.drain", node=node, rule=finding))
    events.append(str(path), Event("gate.prolog", node=node, decision="pass", dry_run=False))
    return path


def test_only_what_is_new_and_of_interest(share: Path) -> None:
    would(share, "n1")
    first = seen(share)
    assert [json.loads(line)["node"] for line in first["lines"]] == ["n1"]
    assert (first["nodes"], list(first["places"])) == (2, ["n1"])
    places = {"n1": Place(*first["places"]["n1"])}
    again = seen(share, places)
    assert (again["lines"], again["places"]) == ([], {})
    path = would(share, "n1", "gpu.xid-48")
    more = seen(share, places)
    assert [json.loads(line)["rule"] for line in more["lines"]] == ["gpu.xid-48"]
    path.unlink()  # begun anew, e.g. by a person who made room
    would(share, "n1", "gpu.xid-94")
    assert [json.loads(line)["rule"] for line in seen(share, places)["lines"]] == ["gpu.xid-94"]
    alone = json.loads(look.look(Order(str(share), "", {}, None)))
    assert (alone["lines"], alone["drained"]) == ([], [])


def test_what_a_hook_would_have_done_is_of_interest(share: Path) -> None:
    event = Event("gate.prolog", node="n1", rule="findings", decision="would-drain", dry_run=True)
    events.append(str(share / "nodes" / "n1" / "events.jsonl"), event)
    assert [json.loads(line)["decision"] for line in seen(share)["lines"]] == ["would-drain"]


def test_a_torn_line_waits_for_its_end(share: Path) -> None:
    path = would(share, "n1")
    with path.open("a") as stream:
        stream.write('{"event":"node.drain","dry_run":true')
    first = seen(share)
    assert len(first["lines"]) == 1
    with path.open("a") as stream:
        stream.write(',"node":"n1"}\n')
    assert len(seen(share, {"n1": Place(*first["places"]["n1"])})["lines"]) == 1


def test_a_trail_that_is_long_is_read_from_its_end(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "TAIL_BYTES", 4_000)
    for number in range(50):
        path = would(share, "n1", f"gpu.xid-{number}")
    found = seen(share)
    rules = [json.loads(line)["rule"] for line in found["lines"] if line.startswith("{")]
    assert rules[-1] == "gpu.xid-49"
    assert len(rules) < 50
    assert found["places"]["n1"][1] == path.stat().st_size


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.mark.parametrize("how", ["writable", pytest.param("owner", marks=needs_root), "link", "fifo"])
def test_what_others_could_have_written_is_not_read(how: str, share: Path) -> None:
    path = would(share, "n1")
    if how == "writable":
        path.chmod(0o666)
    elif how == "owner":
        os.chown(path, 12345, -1)
    else:
        path.rename(share / "elsewhere")
        if how == "link":
            path.symlink_to(share / "elsewhere")
        else:
            os.mkfifo(path)
    assert seen(share)["lines"] == []


def test_no_share_and_no_answer_are_not_an_empty_one(tmp_path: Path) -> None:
    found = seen(tmp_path / "nowhere")
    assert [found[name] for name in ("ledger", "held_back", "drained")] == [None] * 3


def test_how_a_drain_ended(share: Path) -> None:
    record = DrainRecord("n1", "gpu.xid-79", "gpu:1", "replace", "fmslurm: x", 1_000.0, owner="fmslurm gate")
    assert drain_record.write(str(share), record, timeout_s=60)
    assert [row["node"] for row in seen(share, drained={"n1": 1_000.0})["drained"]] == ["n1"]
    assert seen(share, drained={"n1": 1_000.0})["over"] == {}
    assert drain_record.remove(str(share), "n1", outcome="resumed on proof: well", now=2_000.0, timeout_s=60)
    assert seen(share, drained={"n1": 1_000.0})["over"] == {"n1": ["gpu.xid-79", 2_000.0, "resumed on proof: well"]}
    assert seen(share, drained={"n2": 5.0})["over"] == {"n2": ["", 0.0, ""]}


def test_what_was_pushed_and_what_the_file_is(share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look.shared, "TIMEOUT_S", 60.0)
    path = tmp_path / "fmslurm.yaml"
    path.write_text("gate: {}\n")
    snapshot.push(Settings(source_hash="a" * 64), str(share))
    found = seen(share, config_path=str(path))
    assert found["pushed"] == "a" * 64
    assert found["file"] == look.file_hash(str(path)) != ""
    assert look.file_hash(str(tmp_path)) == look.file_hash("") == ""

"""The false-alarm rate of a check: drains from the ledger, acknowledgements beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_ext.cli.main import main
from slurm_ext.slurm import acks, alarms, ledger
from slurm_ext.slurm.acks import ANY, Ack
from slurm_ext.slurm.alarms import Drained, Rate

NOW = 1_900_000_000.0


def ack(finding: str, node: str, at_s: float = NOW) -> Ack:
    return Ack(node, finding, ANY, at_s + 60, "known", "alice", at_s)


def test_rates() -> None:
    drained = [
        Drained(NOW, "n1", "a.x"),
        Drained(NOW + 9, "n1", "a.x"),
        Drained(NOW, "n2", "a.x"),
        Drained(NOW, "n3", "b.y"),
    ]
    known = [ack("a.x", "n1"), ack("a.x", "n1", NOW + 9), ack("c.z", "n4")]
    assert alarms.rates(drained, known) == [
        Rate("a.x", 3, 2, 1, NOW + 9),
        Rate("c.z", 0, 0, 1, 0.0),
        Rate("b.y", 1, 1, 0, NOW),
    ]
    assert alarms.rates([], []) == []
    assert Rate("a.x", 4, 2, 1, 0.0).percent == 25.0
    assert Rate("a.x", 1, 1, 3, 0.0).percent == 100.0
    assert Rate("a.x", 0, 0, 1, 0.0).percent is None


def enter(share: str, *drains: tuple[str, float]) -> None:
    """Write entries as the ledger does."""
    folder = Path(ledger.folder_of(share))
    folder.mkdir(mode=0o755, exist_ok=True)
    for number, (node, at) in enumerate(drains, 1):
        data = {"schema": ledger.SCHEMA, "node": node, "time": at, "finding": "a.x"}
        (folder / f"{number:08}.json").write_text(json.dumps(data))


@pytest.fixture
def share(tmp_path: Path) -> str:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    return str(folder)


def test_counted_from_the_share(share: str) -> None:
    assert alarms.read(share, since_s=NOW - 60) == ([], [])
    enter(share, ("n1", NOW), ("n2", NOW + 1), ("n3", NOW - 100))
    assert acks.write(share, ack("a.x", "n1"))
    assert acks.write(share, ack("a.x", "n9", NOW - 1000))
    Path(share, "ledger/00000009.json").write_text("{")
    Path(share, "ledger/notes.txt").write_text("")
    found = alarms.read(share, since_s=NOW - 60)
    assert found == ([Drained(NOW, "n1", "a.x"), Drained(NOW + 1, "n2", "a.x")], [ack("a.x", "n1")])
    assert alarms.rates(*found)[0].percent == 50.0


def test_an_absent_share_is_not_zero(tmp_path: Path) -> None:
    assert alarms.read("", since_s=0) is None
    assert alarms.read(str(tmp_path / "gone"), since_s=0) is None


def test_the_command(
    share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "fmslurm.yaml"
    config.write_text(f"site:\n  share: {share}\n")
    monkeypatch.setenv("FMSLURM_CONFIG", str(config))
    assert main(["gate", "stats"]) == 0
    assert "nothing was drained" in capsys.readouterr().err
    enter(share, ("n1", NOW))
    assert main(["gate", "stats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["finding"], one["drains"], one["alarm_percent"]) for one in found] == [("a.x", 1, 0.0)]
    assert main(["gate", "stats", "-o", "finding,drains,alarms", "--noheader"]) == 0
    assert capsys.readouterr().out.split() == ["a.x", "1", "0", "%"]
    config.write_text(f"site:\n  share: {tmp_path}/gone\n")
    assert main(["gate", "stats"]) == 3

"""A finding that a person acknowledged is not drained for, Slurm is not asked, and the trail says by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_ext import events
from slurm_ext.config.model import Settings
from slurm_ext.errors import SlurmError
from slurm_ext.slurm import acks
from slurm_ext.slurm.acks import ANY, Ack
from slurm_ext.slurm.act import drain_node
from slurm_ext.verdict import Finding

NOW = 1_900_000_000.0
FINDING = Finding("gpu.xid-79", "gpu:3", "reboot", ("fell off the bus",))


class Deaf:
    """A Slurm that answers nothing: whoever asks it is told so."""

    name = "deaf"

    def nodes(self, names: object = None) -> Any:
        raise SlurmError("nobody should have asked")


@pytest.mark.parametrize(
    ("finding", "target", "until_s", "expected"),
    [
        ("gpu.xid-79", "gpu:3", NOW + 60, "acked"),
        ("gpu.xid-79", ANY, NOW + 60, "acked"),
        ("gpu.xid-79", "gpu:4", NOW + 60, "failed"),
        ("gpu.xid-74", ANY, NOW + 60, "failed"),
        ("gpu.xid-79", "gpu:3", NOW - 1, "failed"),
    ],
)
def test_only_what_was_acknowledged_and_only_until_then(
    tmp_path: Path, finding: str, target: str, until_s: float, expected: str
) -> None:
    share, trail = tmp_path / "share", str(tmp_path / "events.jsonl")
    (share / "ledger").mkdir(mode=0o755, parents=True)
    settings = Settings()
    settings = settings._replace(site=settings.site._replace(share=str(share)))
    assert acks.write(str(share), Ack("n1", finding, target, until_s, "spare GPU is ordered", "alice", NOW - 9))
    outcome = drain_node(Deaf(), settings, "n1", FINDING, now=NOW, mode="enforce", events_path=trail)  # type: ignore[arg-type]
    assert (outcome.done, outcome.result) == (False, expected)
    said = list(events.read(trail))
    assert [event.decision for event in said] == ["acked" if expected == "acked" else "drain"]
    if expected == "acked":
        assert "by alice until 2030-03-17T17:47:40.000Z: spare GPU is ordered" in outcome.reason
        assert said[0].reason == outcome.reason
        assert said[0].data["ack"]["actor"] == "alice"  # type: ignore[index]

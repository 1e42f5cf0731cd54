"""What becomes of a look that failed for something a person acknowledged, and only for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_ext.gate import local
from slurm_ext.gate.model import Facts, Judged, conclude, judged
from slurm_ext.hooks import acked
from slurm_ext.slurm import acks
from slurm_ext.slurm.acks import ANY, Ack
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

NOW = 1_900_000_000.0
XID = judged(FAIL, "gpu.xid-79", "gpu:3", "reboot", "fell off the bus")
EFA = judged(FAIL, "efa.missing", "node", "replace", "31 of 32 are there")
REMAP = judged(WARN, "gpu.row-remap-pending", "gpu:1", "reset-gpu", "a remap waits")
DEAF = judged(UNKNOWN, "gpu.smi-timeout", "node", "none", "no answer")


@pytest.fixture
def share(tmp_path: Path) -> str:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    return str(folder)


def look(*items: Judged) -> local.Look:
    return local.Look(conclude(items, rule="gate.local"), Facts(), (), 0.1, {}, items)


def ack(finding: str, target: str = ANY) -> Ack:
    return Ack("n1", finding, target, NOW + 60, "known", "alice", NOW - 60)


@pytest.mark.parametrize(
    ("items", "known", "verdict", "rule", "lines"),
    [
        ((XID,), (), FAIL, "gpu.xid-79", 0),
        ((XID,), (ack("gpu.xid-79"),), WARN, "gpu.xid-79", 1),
        ((XID,), (ack("gpu.xid-79", "gpu:4"),), FAIL, "gpu.xid-79", 0),
        ((XID, EFA), (ack("gpu.xid-79"),), FAIL, "efa.missing", 1),
        ((XID, EFA), (ack("gpu.xid-79"), ack("efa.missing")), WARN, "efa.missing", 2),
        # A warning with a strong advice does not become a failure when the failure beside it is acknowledged.
        ((XID, REMAP), (ack("gpu.xid-79"),), WARN, "gpu.xid-79", 1),
        ((REMAP,), (ack("gpu.row-remap-pending"),), WARN, "gpu.row-remap-pending", 0),
        ((XID, DEAF), (ack("gpu.xid-79"),), UNKNOWN, "gpu.smi-timeout", 1),
        ((), (ack("gpu.xid-79"),), PASS, "gate.local", 0),
    ],
)
def test_what_is_left(
    share: str, items: tuple[Judged, ...], known: tuple[Ack, ...], verdict: str, rule: str, lines: int
) -> None:
    for one in known:
        assert acks.write(share, one)
    found, said = acked.spare(look(*items), share, "n1", NOW)
    assert (found.verdict.verdict, found.verdict.rule, len(said)) == (verdict, rule, lines)
    assert len(found.verdict.findings) == len(items)
    for line in said:
        assert any(line in finding.evidence for finding in found.verdict.findings)


def test_without_a_share_nothing_is_spared(tmp_path: Path) -> None:
    for share in ("", str(tmp_path / "gone")):
        assert acked.spare(look(XID), share, "n1", NOW) == (look(XID), ())
        assert acked.of(XID.finding, share, "n1", NOW) == ""


def test_one_finding(share: str) -> None:
    assert acks.write(share, ack("burnin.culprit", "node:n1"))
    culprit = judged(FAIL, "burnin.culprit", "node:n1", "drain", "slow").finding
    assert "by alice" in acked.of(culprit, share, "n1", NOW)
    assert acked.of(culprit, share, "n1", NOW + 61) == ""
    assert acked.of(None, share, "n1", NOW) == ""

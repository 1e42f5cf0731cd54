"""Who else has a node in hand: then it is neither drained nor resumed."""

from __future__ import annotations

import pytest

from slurm_ext.slurm import repair
from slurm_ext.slurm.model import Node

OURS = "fmslurm: gpu.lost gpu:3: gone"


def node(state: str = "IDLE", *flags: str, reason: str = "") -> Node:
    return Node("n0", state, flags, reason, "root")


BY_OTHERS: list[tuple[str, Node, str, str]] = [
    ("nobody", node(), "plain", ""),
    ("drained by us", node("IDLE", "DRAIN", reason=OURS), "hyperpod", ""),
    ("HyperPod was asked", node("IDLE", "DRAIN", reason="Action:Reboot"), "hyperpod", "HyperPod was asked"),
    ("on any type of site", node("IDLE", "FAIL", reason="Action:Replace"), "plain", "HyperPod was asked"),
    ("set to fail", node("IDLE", "FAIL", reason="bad"), "plain", "set to FAIL by root: bad"),
    ("HyperPod's deep checks", node("IDLE", "MAINTENANCE"), "hyperpod", "maintenance reservation"),
    ("a reservation elsewhere", node("IDLE", "MAINTENANCE"), "plain", ""),
    ("a reboot with its reason", node("IDLE", "REBOOT_REQUESTED", reason="kernel update"), "plain", "REBOOT_REQUESTED"),
    ("a cloud node that sleeps", node("IDLE", "CLOUD", "POWERED_DOWN"), "plain", ""),
    ("ours, and rebooting", node("IDLE", "DRAIN", "REBOOT_ISSUED", reason=OURS), "plain", ""),
]


@pytest.mark.parametrize(
    ("found", "site", "words"), [case[1:] for case in BY_OTHERS], ids=[case[0] for case in BY_OTHERS]
)
def test_who_has_it_in_hand(found: Node, site: str, words: str) -> None:
    said = repair.by_others(found, site)
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (node("IDLE", "DRAIN", reason=OURS), ""),
        (node("MIXED", "DRAIN", reason=OURS), ""),
        (node("DOWN", "DRAIN", reason=OURS), ""),
        (node("DOWN", "DRAIN", "NOT_RESPONDING", reason=OURS), "NOT_RESPONDING"),
        (node("IDLE", "DRAIN", "REBOOT_ISSUED", reason=OURS), "REBOOT_ISSUED"),
        (node("IDLE", "DRAIN", "MAINTENANCE", reason=OURS), "MAINTENANCE"),
        (node("UNKNOWN", "DRAIN", reason=OURS), "UNKNOWN"),
        (node("", "DRAIN", reason=OURS), "unknown"),
    ],
)
def test_what_is_not_to_be_resumed_now(found: Node, words: str) -> None:
    said = repair.not_to_resume(found, "plain")
    assert words in said
    assert bool(said) == bool(words)

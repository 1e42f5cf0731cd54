"""Addresses and leaves on the share: what is pushed, for a thousand nodes, only when it changed, and not for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurm_ext import shared
from slurm_ext.errors import SlurmError
from slurm_ext.resume.push import EVERY_S, Push, addresses_of, leaves_of
from slurm_ext.slurm.model import Node

NODES = [Node(f"n{index:04}", address=f"10.1.{index // 250}.{index % 250 + 1}") for index in range(1024)]
TREE = {node.name: ("spine", f"leaf{index // 32}") for index, node in enumerate(NODES)}


class Asked:
    """As much of Slurm as is asked here; counts the questions."""

    def __init__(self) -> None:
        self.listed: list[Node] = list(NODES)
        self.tree: Mapping[str, tuple[str, ...]] = dict(TREE)
        self.asked = 0

    def nodes(self) -> list[Node]:
        self.asked += 1
        return self.listed

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        if not self.tree:
            raise SlurmError("no answer")
        return self.tree


def refresh(push: Push, slurm: Asked, share: Path, now: float, said: list[str]) -> None:
    push.refresh(slurm, str(share), now, said.append)  # type: ignore[arg-type]


def test_names_and_addresses_that_are_none_are_left_out():
    odd = [
        Node("ok", address="fe80::1"),
        Node("named", address="ip-10-0-0-1"),
        Node("none"),
        Node("b d", address="::1"),
    ]
    assert addresses_of(odd) == {"ok": "fe80::1"}
    assert leaves_of({"n1": ("top", "leaf1"), "n2": (), "n3": ("x y",), "n4": ("only",)}) == {
        "n1": "leaf1",
        "n4": "only",
    }


def test_a_thousand_nodes_are_there_and_written_again_only_when_they_change(tmp_path: Path):
    slurm, said = Asked(), []
    push = Push()
    (tmp_path / "ledger").mkdir()
    refresh(push, slurm, tmp_path, 1000.0, said)
    assert shared.addresses(str(tmp_path)) == {node.name: node.address for node in NODES}
    assert shared.leaves(str(tmp_path)) == {name: path[-1] for name, path in TREE.items()}
    files = [tmp_path / "addresses", tmp_path / "topology" / "leaves"]
    before = [path.stat().st_ino for path in files]
    refresh(push, slurm, tmp_path, 1000.0 + EVERY_S / 2, said)
    assert slurm.asked == 1
    refresh(push, slurm, tmp_path, 1001.0 + EVERY_S, said)
    refresh(Push(), slurm, tmp_path, 0.0, said)  # another daemon finds it as it should be
    assert slurm.asked == 3
    assert [path.stat().st_ino for path in files] == before
    slurm.listed[5] = slurm.listed[5]._replace(address="10.9.9.9")
    refresh(push, slurm, tmp_path, 1002.0 + 2 * EVERY_S, said)
    assert shared.addresses(str(tmp_path))["n0005"] == "10.9.9.9"
    assert files[1].stat().st_ino == before[1]
    assert said == []


def test_what_does_not_answer_leaves_the_files_and_is_tried_again(tmp_path: Path):
    slurm, said = Asked(), []
    share = tmp_path / "share"
    push = Push()
    refresh(push, slurm, share, 0.0, said)  # not mounted: nothing is made anew below it
    assert not share.exists()
    (share / "ledger").mkdir(parents=True)
    slurm.tree = {}
    refresh(push, slurm, share, EVERY_S, said)
    assert shared.addresses(str(share))
    assert shared.leaves(str(share)) == {}
    assert ["stay as they are" in line for line in said] == [True]
    slurm.tree = TREE
    refresh(push, slurm, share, 2 * EVERY_S, said)
    assert len(shared.leaves(str(share))) == 1024

"""Which network devices sit nearest to a GPU, from a tree as sysfs has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Cluster

from slurm_ext.burnin import rail_nics

#: A GPU and its NICs below one switch each, two switches below one root, as where a machine shows its tree.
GPUS = {"0000:53:00.0": "pci0000:44/0000:44:00.0/0000:45:00.0", "0000:64:00.0": "pci0000:44/0000:44:00.0/0000:46:00.0"}
NICS = {
    "rdmap79s0": "pci0000:44/0000:44:00.0/0000:45:00.0/0000:4f:00.0",
    "rdmap80s0": "pci0000:44/0000:44:00.0/0000:45:00.0/0000:50:00.0",
    "rdmap96s0": "pci0000:44/0000:44:00.0/0000:46:00.0/0000:60:00.0",
    "rdmap200s0": "pci0000:b0/0000:b0:00.0/0000:c8:00.0",
}


def tree(root: Path, gpus: dict[str, str], nics: dict[str, str]) -> str:
    for address, above in gpus.items():
        (root / "sys/devices" / above / address).mkdir(parents=True)
        link(root / "sys/bus/pci/devices" / address, root / "sys/devices" / above / address)
    for name, place in nics.items():
        (root / "sys/devices" / place).mkdir(parents=True, exist_ok=True)
        link(root / "sys/class/infiniband" / name / "device", root / "sys/devices" / place)
    return str(root)


def link(path: Path, aim: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(aim)


@pytest.mark.parametrize(
    ("pci", "names"), [("0000:53:00.0", ("rdmap79s0", "rdmap80s0")), ("0000:64:00.0", ("rdmap96s0",))]
)
def test_the_devices_below_the_gpus_own_switch_are_its_own(tmp_path: Path, pci: str, names: tuple[str, ...]) -> None:
    assert rail_nics.near(tree(tmp_path, GPUS, NICS), pci) == names


def test_where_all_are_equally_near_none_is_named(tmp_path: Path) -> None:
    flat = {f"rdmap{n}s0": f"pci0000:00/0000:00:{n:02x}.0" for n in range(4)}
    assert rail_nics.near(tree(tmp_path, {"0000:53:00.0": "pci0000:00"}, flat), "0000:53:00.0") == ()


@pytest.mark.parametrize("pci", ["", "0000:99:00.0", "../../../etc", "0000:53:00.0/..", "none"])
def test_what_is_no_gpu_there_has_none(tmp_path: Path, pci: str) -> None:
    assert rail_nics.near(tree(tmp_path, GPUS, NICS), pci) == ()
    assert rail_nics.near(str(tmp_path / "nothing"), "0000:53:00.0") == ()


def test_folders_in_the_place_of_links_tell_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, GPUS, {})
    for name in ("rdmap79s0", "rdmap80s0"):
        (tmp_path / "sys/class/infiniband" / name / "device").mkdir(parents=True)
    assert rail_nics.near(root, "0000:53:00.0") == ()


def test_the_slow_rail_of_a_real_round_is_told_with_its_devices(make_cluster, tmp_path: Path) -> None:
    cluster: Cluster = make_cluster(4, deadline_s=60.0, floor_busbw_gbs=0.01, pair_floor_busbw_gbs=0.01)
    cluster.hardware("n2", **{"gpu.0.pci": "0000:53:00", "gpu.1.pci": "0000:64:00", "gpu.1.nccl.rate_mbit": 4})
    tree(cluster.folder / "n2/root", GPUS, NICS)
    outcome = cluster.convict("n2")["n0"]
    told = json.dumps([outcome.verdict.reason, [finding.evidence for finding in outcome.verdict.findings]])
    assert "rail 1 (gpu 1 and rdmap96s0 beside it)" in told

"""Faults of the simulated node itself: what the gate finds of each, and that undoing one leaves a node that is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError
from slurm_ext.gate import probes
from slurm_ext.lab import faults, hardware
from slurm_ext.lab.model import LabNode, State
from slurm_ext.verdict import FAIL, PASS

MOUNTS = {"/fsx": "lustre", "/nvme": "xfs"}


def lab(folder: Path, name: str = "p5.48xlarge") -> State:
    nodes = tuple(LabNode(f"n{number}", number, "127.0.0.1", 20001, f"i-{number}") for number in range(2))
    head = LabNode("head", -1, "127.0.0.1", 0, "i-0")
    for node in nodes:
        root = folder / f"nodes/{node.name}/root"
        hardware.build_root(root, catalogue.CATALOGUE[name], node.name, node.instance_id, MOUNTS)
    told = {"mode": "loopback", "why_mode": "asked for", "prefix": "", "cluster": "lab", "slurm_version": "22.05.8"}
    return State(
        dir=str(folder),
        id="abcdef",
        instance_type=name,
        cgroup=False,
        subnet="127.0.0.0/8",
        head=head,
        nodes=nodes,
        controller_port=20000,
        **told,
    )


def found(state: State, node: str, phase: str = "prolog") -> list[tuple[str, str, str]]:
    root = f"{state.dir}/nodes/{node}/root"
    plain = Settings()
    gate = plain.gate._replace(nvme_dirs=("/nvme",), lustre_mounts=("/fsx",))
    settings = plain._replace(site=plain.site._replace(root=root), gate=gate)
    here = probes.Here(root, node, phase, settings)
    names = [name for name in probes.of_phase(phase) if name in ("system", "lustre")]
    items = [item for name in names for item in probes.module_of(name).look(here).items]
    return [(item.finding.id, item.verdict, item.finding.target) for item in items]


@pytest.mark.parametrize(
    ("kind", "options", "id_", "target"),
    [
        ("nvme-gone", {}, "disk.nvme-missing", "node"),
        ("memory-error", {"count": 2}, "memory.dimm-uncorrected", "node"),
        ("root-read-only", {}, "fs.read-only", "fs:/"),
        ("lustre-evicted", {}, "lustre.import-bad", "ost:fsxlab-OST0002"),
    ],
)
def test_a_fault_is_found_on_its_node_alone_and_gone_when_undone(tmp_path, kind, options, id_, target):
    state = lab(tmp_path)
    assert found(state, "n0") == []
    state, _ = faults.make(state, "n0", kind, options)
    for phase in probes.PHASES:
        assert found(state, "n0", phase) == [(id_, FAIL, target)]
        assert found(state, "n1", phase) == []
    state, _ = faults.undo(state, "n0", kind)
    assert found(state, "n0") == []
    assert {verdict for _, verdict, _ in found(state, "n0", "epilog")} <= {PASS}


def test_a_type_without_local_disks_has_none_to_lose(tmp_path):
    state = lab(tmp_path, "p6e-gb200.36xlarge")
    with pytest.raises(LackingError):
        faults.make(state, "n0", "nvme-gone", {})

"""What GPUs a node has is written by the hooks that no job waits for, once a boot; and hooks know the types that the site fetched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hook_site import Site

from slurm_ext.gres import told


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site whose node has two GPUs, one at each socket."""
    (tmp_path / "site").mkdir()
    made = Site(tmp_path / "site")
    texts = {
        "sys/class/dmi/id/product_name": "p9.96xlarge",
        "proc/sys/kernel/random/boot_id": "11111111-1111-1111-1111-111111111111",
    }
    for socket in range(2):
        bus = f"0000:5{socket}:00.0"
        texts[f"proc/driver/nvidia/gpus/{bus}/information"] = f"Model: NVIDIA R100\nDevice Minor: {socket}"
        texts[f"sys/bus/pci/devices/{bus}/numa_node"] = str(socket)
        texts[f"sys/devices/system/node/node{socket}/cpulist"] = str(socket)
        texts[f"sys/devices/system/cpu/cpu{socket}/topology/physical_package_id"] = str(socket)
        texts[f"sys/devices/system/cpu/cpu{socket}/topology/core_id"] = "0"
    for name, text in texts.items():
        path = made.folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return made


def gpus(site: Site) -> dict[str, told.Told]:
    return dict(told.read_all(str(site.folder / "share"), timeout_s=60) or {})


@pytest.mark.parametrize("kind", ["epilog", "health"])
def test_an_epilog_or_a_health_check_tells_the_gpus(site: Site, kind: str) -> None:
    assert site.run("prolog")[0] == 0
    assert gpus(site) == {}  # a job's way to its start is left alone
    for _ in range(5):  # on a busy machine the share may be too slow once or twice
        assert site.run(kind)[0] == 0
        if gpus(site):
            break
        (site.folder / "run" / told.LAST).unlink(missing_ok=True)
    facts = gpus(site)["n0"].facts
    assert [(gpu.number, gpu.numa_node) for gpu in facts.gpus] == [(0, 0), (1, 1)]
    assert (facts.sockets, facts.numa_cores) == (2, {0: frozenset({0}), 1: frozenset({1})})
    before = os.stat(site.folder / "share/gpus/n0.json").st_ino
    assert site.run(kind)[0] == 0
    assert os.stat(site.folder / "share/gpus/n0.json").st_ino == before


def test_the_gate_knows_a_type_that_the_site_fetched(site: Site) -> None:
    def said() -> str:
        assert site.run("health")[0] == 0
        return (site.folder / "run/health.json").read_text()

    vendor = site.folder / "root/sys/class/dmi/id/sys_vendor"
    vendor.write_text("Amazon EC2\n")
    assert "node.type-unknown" in said()
    row = {"name": "p9.96xlarge", "gpu_type": "r100", "arch": "x86_64", "checked_on": "2026-11-30"}
    row |= {"vcpus": 2, "memory_mib": 1, "threads_per_core": 1, "gpus": 2, "gpu_memory_mib": 1, "efa_devices": 0}
    row |= {"nvme_count": 0, "nvme_gb": 0, "network_cards": 1}
    path = site.folder / "share/config/instance_types.json"
    path.write_text(json.dumps({"schema": 1, "types": [row]}))
    assert "node.type-unknown" not in said()

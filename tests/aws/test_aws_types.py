"""The catalogue against DescribeInstanceTypes, by the fake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_ec2 import FakeEc2

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.aws.ec2_types import compare, instance_types
from slurm_ext.aws.service import Service
from slurm_ext.cli.gres import gres as command


def as_ec2_has_it(name: str) -> dict[str, object]:
    row = CATALOGUE[name]
    return {
        "vcpus": row.vcpus,
        "cores": row.sockets * row.cores_per_socket,
        "threads": row.threads_per_core,
        "memory": row.memory_mib,
        "gpu": ("NVIDIA", row.gpu_type.upper(), row.gpus, row.gpu_memory_mib or 189_000),
        "efa": row.efa_devices,
        "cards": row.network_cards,
        "disks": (row.nvme_count or 3, row.nvme_gb or 7500),
        "arch": "arm64" if row.arch == "aarch64" else row.arch,
    }


@pytest.fixture
def region(fake: FakeEc2) -> FakeEc2:
    fake.types = {name: as_ec2_has_it(name) for name in CATALOGUE}
    fake.page_size = 3
    return fake


def test_a_region_that_agrees(region: FakeEc2, ask: Callable[..., Service]) -> None:
    told = instance_types(ask())
    assert region.calls["DescribeInstanceTypes"] == 3
    found = compare(told)
    assert found.different == []
    assert found.new == []
    assert found.absent == []
    # What no public source gave is told as such.
    assert {one.figure for one in found.filled_in} == {"gpu_memory_mib", "nvme_count", "nvme_gb"}
    assert {one.type for one in found.filled_in} == {"p6e-gb200.36xlarge"}


def test_what_differs_and_what_is_new(region: FakeEc2, ask: Callable[..., Service]) -> None:
    region.types["p5.48xlarge"]["efa"] = 16
    region.types["p9.96xlarge"] = as_ec2_has_it("p6-b300.48xlarge") | {"gpu": ("NVIDIA", "R 100", 8, 500_000)}
    region.types["p1.big"] = {"vcpus": 4, "cores": 2, "threads": 2, "memory": 8192, "gpu": ("AMD", "x", 1, 1)}
    del region.types["p4d.24xlarge"]
    found = compare(instance_types(ask()))
    assert [(one.type, one.figure, one.ours, one.theirs) for one in found.different] == [
        ("p5.48xlarge", "efa_devices", "32", "16")
    ]
    assert [(one.name, one.gpu_type, one.gpus) for one in found.new] == [("p9.96xlarge", "r100", 8)]
    assert found.absent == ["p4d.24xlarge"]


def test_types_beside_the_catalogue_are_compared_by_what_the_gate_uses(
    region: FakeEc2, ask: Callable[..., Service]
) -> None:
    g5 = {"vcpus": 192, "cores": 96, "threads": 2, "memory": 786_432, "gpu": ("NVIDIA", "A10G", 8, 24_576)}
    region.types = {
        "g5.48xlarge": g5 | {"efa": 1, "disks": (2, 3800)},
        "g6.48xlarge": g5 | {"memory": 786_431, "efa": 2, "disks": (8, 940)},
        "g9.big": g5 | {"efa": 4},
        "hpc7a.96xlarge": {"vcpus": 192, "cores": 192, "threads": 1, "memory": 786_432, "efa": 2},
    }
    found = compare(instance_types(ask()), {})
    assert [(one.type, one.figure, one.ours, one.theirs) for one in found.different] == [
        ("g6.48xlarge", "efa_devices", "1", "2"),
        ("g6.48xlarge", "memory_mib", "786432", "786431"),
    ]
    assert [(one.type, one.figure) for one in found.filled_in] == [("g9.big", "efa_devices"), ("g9.big", "gpus")]
    assert found.new == []


def test_the_command_prints_and_writes_nothing(
    region: FakeEc2, ec2_server: tuple[FakeEc2, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fmslurm.yaml").write_text(f"aws: {{region: us-east-2, ec2_endpoint: '{ec2_server[1]}'}}\n")
    monkeypatch.setenv("FMSLURM_CONFIG", str(tmp_path / "fmslurm.yaml"))
    before = Path("slurm_ext/aws/catalogue.py").read_bytes()
    done = CliRunner().invoke(command, ["check", "--ec2"])
    assert done.exit_code == 0
    assert "p6e-gb200.36xlarge: nvme_count is not in the catalogue, and 3 at EC2" in done.stdout
    region.types["p5.48xlarge"]["memory"] = 1
    done = CliRunner().invoke(command, ["check", "--ec2", "--json"])
    assert json.loads(done.stdout.splitlines()[0])["different"][0]["figure"] == "memory_mib"
    assert Path("slurm_ext/aws/catalogue.py").read_bytes() == before

"""A cluster as ParallelCluster has it: a real slurmctld with cloud nodes, its table and EC2 on loopback, and our commands over it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_controller import BareController

from slurm_ext.lab import daemons
from slurm_ext.slurm import parse

sys.path.append(str(Path(__file__).parents[1] / "aws"))
from fake_dynamodb import FakeDynamoDb
from fake_dynamodb import running as running_dynamodb
from fake_ec2 import FakeEc2
from fake_ec2 import running as running_ec2

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")
NODES = "gpu-dy-p5-[1-5]"
CLOUD = f"""SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=3600
ResumeTimeout=3600
NodeName={NODES} CPUs=192 RealMemory=1992294 State=CLOUD Feature=dynamic,p5.48xlarge,p5,gpu Weight=1000"""


class Cluster:
    """The controller, the fakes, and what `fmslurm` says there."""

    def __init__(self, slurm: BareController, ec2: FakeEc2, table: FakeDynamoDb) -> None:
        self.slurm, self.ec2, self.table = slurm, ec2, table

    def fmslurm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.slurm.env(), "FMSLURM_CONFIG": str(self.slurm.folder / "fmslurm.yaml")}
        env |= {"AWS_ACCESS_KEY_ID": "AKIAFAKE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
        argv = [FMSLURM, *arguments]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)


def await_power(slurm: BareController, node: str) -> None:
    """Wait until slurmctld has run the resume program for a node."""
    give_up = time.monotonic() + 300
    while True:
        # Slurm hides cloud nodes that are powered down: only partitions tell of them.
        said = slurm.ask("scontrol", "--oneliner", "show", "node")
        if any(one.name == node and "POWERED_DOWN" not in one.flags for one in parse.nodes(said)):
            return
        assert time.monotonic() < give_up, said
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if lacking := daemons.missing():
        pytest.skip(f"no Slurm here: it needs {', '.join(lacking)}")
    with (
        tempfile.TemporaryDirectory(prefix="fmpc-", dir="/var/tmp") as folder,
        running_ec2() as (ec2, ec2_url),
        running_dynamodb() as (table, table_url),
        BareController(Path(folder)) as slurm,
    ):
        slurm.write({}, "login", more=CLOUD)
        Path(folder, "fmslurm.yaml").write_text(
            json.dumps(
                {
                    "site": {"type": "parallelcluster", "backend": "cli", "slurm_conf": str(slurm.conf)},
                    "topology": {"node_table": "parallelcluster-slurm-mine", "instance_tag": "cluster=mine"},
                    "aws": {"region": "us-east-2", "ec2_endpoint": ec2_url, "dynamodb_endpoint": table_url},
                }
            )
        )
        with slurm.running() as up:
            assert up, slurm.said()
            slurm.ask("scontrol", "update", "NodeName=gpu-dy-p5-[1-3]", "State=POWER_UP")
            for number in (1, 2, 3):
                # As its resume program does: the node comes up, and NodeAddr becomes the instance's address.
                await_power(slurm, f"gpu-dy-p5-{number}")
                slurm.ask("scontrol", "update", f"NodeName=gpu-dy-p5-{number}", f"NodeAddr=10.0.0.{number}")
            for number in (1, 2, 3):
                tags = {"cluster": "mine"}
                nodes = ("nn-a", f"nn-b{number // 3}", f"nn-c{number}")
                ec2.launch(f"i-{number:08x}", *nodes, address=f"10.0.0.{number}", tags=tags)
            # Another cluster of the account, with the same address in another VPC.
            ec2.launch("i-000000ff", "nn-x", address="10.0.0.1", vpc="vpc-2", tags={"cluster": "other"})
            table.tables["parallelcluster-slurm-mine"] = [
                {"Id": "gpu-dy-p5-1", "InstanceId": "i-00000001"},
                {"Id": "gpu-dy-p5-2", "InstanceId": "i-0000dead"},
                {"Id": "gpu-dy-p5-4", "InstanceId": "i-0000beef"},
                {"Id": "COMPUTE_FLEET", "Status": "RUNNING"},
            ]
            yield Cluster(slurm, ec2, table)


def test_places_without_a_list_of_nodes(cluster: Cluster) -> None:
    said = cluster.fmslurm("topology", "show", "--json")
    assert said.returncode == 0, said.stderr
    paths = json.loads(said.stdout)["paths"]
    cloud = [f"gpu-dy-p5-{number}" for number in range(1, 6)]
    assert set(paths) == {"login", *cloud}
    # 1 and 2 share a tier that 3 is not in; 4 and 5 do not run and wait under the same root.
    assert paths[cloud[0]][:-1] == paths[cloud[1]][:-1] != paths[cloud[2]][:-1]
    assert paths[cloud[3]] == paths[cloud[4]]
    assert len({path[0] for path in paths.values()}) == 1
    assert "gpu-dy-p5-2: ParallelCluster's table says i-0000dead, which is not alive" in said.stderr
    assert "gpu-dy-p5-4" not in said.stderr
    assert set(cluster.ec2.calls) == {"DescribeInstances", "DescribeInstanceTopology"}
    assert cluster.table.calls["Scan"] > 0


def test_gpus_of_the_nodes_that_run(cluster: Cluster) -> None:
    said = cluster.fmslurm("gres", "show", "--json", "--type", "p5.48xlarge")
    assert said.returncode == 0, said.stderr
    (row,) = json.loads(said.stdout)["types"]
    assert "gpu-dy-p5-1" in row["nodes"]
    refused = cluster.fmslurm("gres", "generate", "--type", "p5.48xlarge", "--autodetect", "nvidia")
    assert refused.returncode == 2
    assert "cloud nodes" in refused.stderr


def test_a_denied_role_names_the_right_and_writes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ec2.faults = lambda action, _number, _form: (
        (403, "UnauthorizedOperation", "You are not authorized") if action == "DescribeInstanceTopology" else None
    )
    try:
        said = cluster.fmslurm("topology", "generate", "-o", str(tmp_path / "topology.conf"))
    finally:
        cluster.ec2.faults = lambda _action, _number, _form: None
    assert said.returncode == 3
    assert "ec2:DescribeInstanceTopology" in said.stderr
    assert not (tmp_path / "topology.conf").exists()

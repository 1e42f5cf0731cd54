"""How many calls the places of 10,000 nodes cost: boto3 asks a fake of EC2 on loopback, which counts them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "aws"))
from fake_ec2 import running
from topology_fleet import fleet

from slurm_ext.aws.ec2_topology import instance_places
from slurm_ext.aws.service import Service

NODES = 10_000


def figures(full: bool) -> Mapping[str, float]:
    """Return the calls, the seconds of the processor (the fake's included), and how many places were told."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "AKIAFAKE",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with running() as (ec2, url):
        wanted = []
        for placement in fleet(NODES):
            ec2.launch(
                placement.instance_id, *placement.path, type=placement.instance_type, block=placement.capacity_block_id
            )
            wanted.append(placement.instance_id)
        service = Service("ec2", region="us-east-2", endpoint=url)
        service.client()
        started = time.process_time()
        places = instance_places(service, wanted)
        return {
            "api_calls_10k": sum(ec2.calls.values()),
            "api_cpu_s_10k": time.process_time() - started,
            "api_places_10k": len(places.instances),
        }

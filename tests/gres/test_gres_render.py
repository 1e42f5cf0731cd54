"""gres.conf and node lines, as text."""

from __future__ import annotations

import pytest

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.gres.render import Offer, gres_conf, node_lines


def test_one_line_for_each_type_of_gpu() -> None:
    offers = {f"n{i}": Offer(CATALOGUE["p5.48xlarge"]) for i in range(4)} | {"m1": Offer(CATALOGUE["p5.4xlarge"])}
    assert gres_conf(offers, device_dir="/dev").splitlines()[1:] == [  # sorted by the type's name
        "NodeName=n[0-3] Name=gpu Type=h100 File=/dev/nvidia[0-7]",
        "NodeName=m1 Name=gpu Type=h100 File=/dev/nvidia0",
    ]


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_node_line_agrees_with_itself(name: str) -> None:
    line = node_lines({"n0": Offer(CATALOGUE[name], "10.0.0.1", 7000)}).splitlines()[-1]
    fields = dict(part.split("=", 1) for part in line.split())
    assert int(fields["CPUs"]) == int(fields["Sockets"]) * int(fields["CoresPerSocket"]) * int(fields["ThreadsPerCore"])
    assert fields["NodeAddr"] == "10.0.0.1"
    assert fields["Port"] == "7000"
    assert fields["Gres"] == f"gpu:{CATALOGUE[name].gpu_type}:{CATALOGUE[name].gpus}"
    assert int(fields["RealMemory"]) < CATALOGUE[name].memory_mib

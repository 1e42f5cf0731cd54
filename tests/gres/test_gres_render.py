"""gres.conf and node lines, as text."""

from __future__ import annotations

import pytest

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.gres.render import Offer, gres_conf, no_cores, node_lines, pcs_settings


def test_one_line_for_each_socket_of_each_type() -> None:
    offers = {f"n{i}": Offer(CATALOGUE["p5.48xlarge"]) for i in range(4)} | {"m1": Offer(CATALOGUE["p5.4xlarge"])}
    assert gres_conf(offers, device_dir="/dev").splitlines()[1:] == [  # sorted by the type's name
        "NodeName=n[0-3] Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-47",
        "NodeName=n[0-3] Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=48-95",
        "# p5.4xlarge has one socket: Cores= would say nothing",
        "NodeName=m1 Name=gpu Type=h100 File=/dev/nvidia0",
    ]


def test_a_split_that_nobody_published_has_no_cores_and_says_so() -> None:
    text = gres_conf({"g1": Offer(CATALOGUE["p5e.48xlarge"])})
    assert "# no Cores= for p5e.48xlarge" in text
    assert "NodeName=g1 Name=gpu Type=h200 File=/dev/nvidia[0-7]\n" in text


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_cores_cover_whole_sockets_and_every_gpu_once(name: str) -> None:
    row = CATALOGUE[name]
    found = Offer(row).parts
    assert [number for part in found for number in part.numbers] == list(range(row.gpus))
    for part in found:
        if part.cores:
            low, _, high = part.cores.partition("-")
            assert int(low) % row.cores_per_socket == 0
            assert (int(high) + 1) % row.cores_per_socket == 0
            assert int(high) < row.sockets * row.cores_per_socket
    assert bool(no_cores(Offer(row))) != any(part.cores for part in found)
    if row.gpus_by_socket:
        assert row.split_source
        assert (len(row.gpus_by_socket), sum(row.gpus_by_socket)) == (row.sockets, row.gpus)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_node_line_agrees_with_itself(name: str) -> None:
    line = node_lines({"n0": Offer(CATALOGUE[name], "10.0.0.1", 7000)}).splitlines()[-1]
    fields = dict(part.split("=", 1) for part in line.split())
    assert int(fields["CPUs"]) == int(fields["Sockets"]) * int(fields["CoresPerSocket"]) * int(fields["ThreadsPerCore"])
    assert fields["NodeAddr"] == "10.0.0.1"
    assert fields["Port"] == "7000"
    assert fields["Gres"] == f"gpu:{CATALOGUE[name].gpu_type}:{CATALOGUE[name].gpus}"
    assert int(fields["RealMemory"]) < CATALOGUE[name].memory_mib
    assert fields["State"] == "UNKNOWN"


def test_autodetect_and_cloud() -> None:
    offers = {"n1": Offer(CATALOGUE["p5.48xlarge"])}
    assert gres_conf(offers, autodetect="nvidia").splitlines()[1:] == ["NodeName=n1 AutoDetect=nvidia"]
    assert node_lines(offers, state="CLOUD").splitlines()[-1].endswith("Gres=gpu:h100:8 State=CLOUD")


def test_settings_of_pcs_have_no_node_names() -> None:
    assert pcs_settings(Offer(CATALOGUE["p4d.24xlarge"])) == {
        "slurmCustomSettings": [{"parameterName": "RealMemory", "parameterValue": "1120665"}],
        "gresCustomSettings": [
            {"Name": "gpu", "Type": "a100", "File": "/dev/nvidia[0-3]", "Cores": "0-23"},
            {"Name": "gpu", "Type": "a100", "File": "/dev/nvidia[4-7]", "Cores": "24-47"},
        ],
    }
    assert pcs_settings(Offer(CATALOGUE["p5e.48xlarge"]))["gresCustomSettings"] == [
        {"Name": "gpu", "Type": "h200", "File": "/dev/nvidia[0-7]"}
    ]

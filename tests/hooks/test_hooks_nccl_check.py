"""What a job's NCCL settings differ in from what its nodes were tested with, in few, short, printable lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.hooks import nccl_check

PROVEN = {"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "efa"}


@pytest.mark.parametrize(
    ("environ", "conf", "expected"),
    [
        ({}, "", []),
        ({"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "efa", "PATH": "/bin", "NCCL_DEBUG": "INFO"}, "", []),
        (
            {"NCCL_NET": "Socket"},
            "",
            ["NCCL_NET=Socket in this job, the nodes were tested with NCCL_NET=AWS Libfabric"],
        ),
        (
            {"FI_PROVIDER": "tcp", "NCCL_ALGO": "Ring"},
            "",
            [
                "FI_PROVIDER=tcp in this job, the nodes were tested with FI_PROVIDER=efa",
                "NCCL_ALGO=Ring in this job, the nodes were tested without it",
            ],
        ),
        (
            {},
            "# site\nNCCL_IB_DISABLE=1\n NCCL_NET = AWS Libfabric \nNCCL_DEBUG=WARN\nnonsense\n",
            ["NCCL_IB_DISABLE=1 in /etc/nccl.conf, the nodes were tested without it"],
        ),
        # The environment goes before the file.
        ({"NCCL_NET": "AWS Libfabric"}, "NCCL_NET=Socket\n", []),
        (
            {"OFI_NCCL_PROTOCOL": "SENDRECV"},
            "",
            ["OFI_NCCL_PROTOCOL=SENDRECV in this job, the nodes were tested without it"],
        ),
        # What AWS's own examples set, and what the software does by itself.
        ({"FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}, "", []),
        (
            {"FI_EFA_USE_DEVICE_RDMA": "0"},
            "",
            ["FI_EFA_USE_DEVICE_RDMA=0 in this job, the nodes were tested without it"],
        ),
        ({"NCCL_VERSION": "2.27.3-1", "NCCL_SOCKET_IFNAME": "eth0", "TORCH_NCCL_BLOCKING_WAIT": "1"}, "", []),
    ],
)
def test_only_what_can_matter_is_told(environ, conf, expected):
    assert nccl_check.differences(environ, nccl_check.parse_conf(conf), PROVEN) == expected


def test_many_differences_are_counted():
    said = nccl_check.differences({f"NCCL_X{number:02}": "1" for number in range(30)}, {}, PROVEN)
    assert len(said) == nccl_check.LINES_MAX + 1
    assert said[-1] == "and 22 more such settings"


ANY = st.text(max_size=300)
NAMES = st.one_of(
    ANY, st.sampled_from(["NCCL_", "FI_", "OFI_NCCL_"]).flatmap(lambda start: ANY.map(lambda end: start + end))
)


@given(st.dictionaries(NAMES, ANY, max_size=20), ANY)
def test_hostile_text_is_cut_to_short_printable_lines(environ, conf):
    said = nccl_check.differences(environ, nccl_check.parse_conf(conf), PROVEN)
    assert len(said) <= nccl_check.LINES_MAX + 1
    for line in said:
        assert line.isascii()
        assert line.isprintable()
        assert len(line) < 300

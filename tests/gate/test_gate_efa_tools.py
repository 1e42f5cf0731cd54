"""EFA in captures: every form in which fi_info, rdma, ibv_devinfo and lspci print devices, alone and together."""

from __future__ import annotations

import json

import pytest
from efa_answers import (
    NODE_DRAIN,
    NODE_NONE,
    NODE_REPLACE,
    NODE_WARN,
    P4D,
    P5,
    P5EN,
    answer,
    fi_info,
    lacking,
    links,
    tree,
    without,
)
from fabric_answers import PASS
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.gate import rdma_text

NODATA = "fi_getinfo: -61 (No data available)\n"


@pytest.mark.parametrize(
    ("roles", "instance_type", "context", "expected"),
    [
        ({"fi_info": fi_info(P5EN)}, "p5en.48xlarge", {}, PASS),
        ({"fi_info": fi_info(("rdmap47s0",))}, "", {"expected_efa": 1}, PASS),
        ({"fi_info": fi_info(("rdmap47s0",))}, "", {"expected_efa": 2}, NODE_REPLACE),
        ({"fi_info": fi_info(without(P5EN, "rdmap161s0"))}, "p5en.48xlarge", {}, lacking("rdmap161s0")),
        ({"fi_info": NODATA}, "p5.48xlarge", {"exit_code": 61}, NODE_DRAIN),
        ({"fi_info": "fi_getinfo: -61\n"}, "c5.xlarge", {"exit_code": 61}, ("pass", {("node", "none")})),
        ({"fi_info": NODATA}, "", {"exit_code": 61}, NODE_NONE),
        ({"fi_info": NODATA}, "p5.48xlarge", {"expected_efa": 0}, ("pass", {("node", "none")})),
        ({"stderr": NODATA}, "p5.48xlarge", {"command": "fi_info -p efa", "exit_code": 61}, NODE_DRAIN),
        ({"fi_info": NODATA, "tree": tree(P5EN)}, "p5en.48xlarge", {"exit_code": 61}, NODE_WARN),
        ({"fi_info": NODATA, "rdma_link": links(P5EN)}, "p5en.48xlarge", {"exit_code": 61}, NODE_WARN),
        (
            {"fi_info": NODATA, "tree": {"sys/class/infiniband/": "", "sys/module/ena/version": "2"}},
            "p5en.48xlarge",
            {},
            NODE_DRAIN,
        ),
        (
            {"fi_info": fi_info(P4D[:3]), "tree": tree(P4D)},
            "p4d.24xlarge",
            {},
            ("unknown", {("efa:rdmap160s27", "warn")}),
        ),
        ({"fi_info": fi_info(P4D[:3]), "tree": tree(P4D[:3])}, "p4d.24xlarge", {}, lacking("rdmap160s27")),
        ({"fi_info": fi_info(("eth0",), provider="tcp")}, "p5.48xlarge", {}, NODE_DRAIN),
        ({"fi_info": fi_info(P4D) + fi_info(("lo",), provider="shm")}, "p4d.24xlarge", {}, PASS),
        ({"fi_info": "fi_getinfo: -12 (Cannot allocate memory)\n"}, "p5.48xlarge", {}, NODE_WARN),
        ({"fi_info": "", "stderr": "bash: fi_info: command not found"}, "p5.48xlarge", {"exit_code": 127}, NODE_WARN),
        ({"fi_info": ""}, "p5.48xlarge", {"timed_out": True}, NODE_WARN),
        ({"fi_info": fi_info(P5EN)[:-60]}, "p5en.48xlarge", {}, PASS),  # the last device stands in blocks before
        ({"fi_info": fi_info(P5EN[:7])[:-60]}, "p5en.48xlarge", {}, NODE_NONE),
        ({"fi_info": fi_info(without(P5EN, "rdmap161s0")).strip()}, "p5en.48xlarge", {}, lacking("rdmap161s0")),
    ],
)
def test_fi_info(roles, instance_type, context, expected):
    assert answer(roles, instance_type=instance_type, context=context) == expected


VERBOSE = """---
fi_info:
    caps: [ FI_MSG, FI_RMA, FI_TAGGED ]
    mode: [  ]
    addr_format: FI_ADDR_EFA
    fi_tx_attr:
        caps: [ FI_MSG ]
    fi_ep_attr:
        type: FI_EP_RDM
        protocol: FI_PROTO_EFA
    fi_domain_attr:
        domain: 0x0
        name: NAME-rdm
    fi_fabric_attr:
        name: efa
        prov_name: efa
        prov_version: 201.0
        api_version: 2.0
    nic:
        fi_device_attr:
            name: NAME
            device_id: 0xefa2
            vendor_id: 0x1d0f
        fi_link_attr:
            address: EFA-fe80::1
            mtu: 8928
            speed: 200000000000
            state: FI_LINK_UP
            network_type: Ethernet
"""


def test_fi_info_in_its_long_form():
    whole = "".join(VERBOSE.replace("NAME", name) for name in P4D)
    assert answer({"fi_info": whole}, instance_type="p4d.24xlarge") == PASS
    down = whole.replace("state: FI_LINK_UP", "state: FI_LINK_DOWN", 1)
    assert answer({"fi_info": down}, instance_type="p4d.24xlarge") == lacking("rdmap16s27")
    assert answer({"fi_info": VERBOSE.replace("NAME", P4D[0])}, instance_type="p4d.24xlarge") == NODE_REPLACE


JSON_LINKS = [{"ifname": n, "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"} for n in P4D]
DEVINFO = "".join(
    f"hca_id:\t{n}\n\ttransport:\tunspecified (4)\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n" for n in P4D
)


@pytest.mark.parametrize(
    ("text", "instance_type", "expected"),
    [
        (links(P5), "p5.48xlarge", PASS),
        (links(without(P5, "rdmap98s0")), "p5.48xlarge", lacking("rdmap98s0")),
        (links(P5, rdmap98s0="DOWN physical_state DISABLED"), "p5.48xlarge", lacking("rdmap98s0")),
        (links(P5, rdmap98s0="ASLEEP physical_state LINK_UP"), "p5.48xlarge", ("unknown", {("efa:rdmap98s0", "warn")})),
        (links(P5)[:-40], "p5.48xlarge", NODE_NONE),
        (links(P4D) + "link mlx5_0/1 state DOWN physical_state DISABLED netdev ib0 \n", "p4d.24xlarge", PASS),
        ("link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib0 \n", "", NODE_NONE),
        (json.dumps(JSON_LINKS), "p4d.24xlarge", PASS),
        (json.dumps(JSON_LINKS[1:]), "p4d.24xlarge", lacking("rdmap16s27")),
        (json.dumps(JSON_LINKS)[:-9], "p4d.24xlarge", NODE_NONE),
        (
            "".join(f"{n}/1: {d}/1: state ACTIVE physical_state LINK_UP\n" for n, d in enumerate(P4D)),
            "p4d.24xlarge",
            PASS,
        ),
        (DEVINFO, "p4d.24xlarge", PASS),
        (DEVINFO.replace("PORT_ACTIVE", "PORT_DOWN", 1), "p4d.24xlarge", lacking("rdmap16s27")),
        ("", "p5.48xlarge", NODE_DRAIN),
        ("", "c5.xlarge", ("pass", {("node", "none")})),
        ("Segmentation fault", "p5.48xlarge", NODE_NONE),
    ],
)
def test_lists_of_links(text, instance_type, expected):
    assert answer({"rdma_link": text}, instance_type=instance_type) == expected


DEV = "".join(f"{n}: {d}: node_type unspecified fw 0.0.0.0 node_guid 0000:0000:0000:0000\n" for n, d in enumerate(P4D))
IBV = "    device          \t   node GUID\n    ------          \t----------------\n"
IBV += "".join(f"    {d}\t0000000000000000\n" for d in P4D)


def test_lists_of_devices_without_ports():
    for text in (DEV, IBV):
        short = "".join(line for line in text.splitlines(True) if P4D[1] not in line)
        assert answer({"rdma_link": text}, instance_type="p4d.24xlarge") == PASS
        assert answer({"rdma_link": short}, instance_type="p4d.24xlarge") == lacking(P4D[1])
        listed = {"command": "ibv_devices", "exit_code": 0}
        assert answer({"stdout": short}, instance_type="p4d.24xlarge", context=listed) == lacking(P4D[1])
    assert answer({"rdma_link": "0: mlx5_0: node_type ca fw 28.41.1000 node_guid 0:0\n"}) == NODE_NONE


def lspci(names, form="{a} Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)\n", **more):
    out = "00:00.0 Host bridge: Intel Corporation 440FX\n27:00.0 Ethernet controller: Amazon.com, Inc. Elastic Network Adapter (ENA)\n"
    for name in names:
        bus, slot = (int(part) for part in name.removeprefix("rdmap").split("s"))
        out += form.format(a=f"{bus:02x}:{slot:02x}.0") + more.get(name, "")
    return out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lspci(P4D), PASS),
        (lspci(P4D, "0000:{a} Ethernet controller [0200]: Amazon.com, Inc. Device [1d0f:efa1]\n"), PASS),
        (lspci(P4D, "{a} 0200: 1d0f:efa1\n"), PASS),
        (lspci(P4D[:3]), ("fail", {("efa:0000:a0:1b.0", "replace")})),
        (lspci(P4D).replace("90:1b.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)",
                            "90:1b.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA) (rev ff)"),
         ("fail", {("efa:0000:90:1b.0", "replace")})),
        (lspci(P4D, **{n: "\tKernel driver in use: efa\n" for n in P4D}), PASS),
        (lspci(P4D, **{n: "\tKernel driver in use: efa\n" for n in P4D[1:]}), ("fail", {("efa:0000:10:1b.0", "drain")})),
        (lspci(P4D, rdmap16s27="\tKernel modules: efa\n"), NODE_DRAIN),
        ("lspci: cannot open /proc/bus/pci\n", NODE_NONE),
        ("", NODE_NONE),
    ],
)  # fmt: skip
def test_the_pci_bus(text, expected):
    assert answer({"lspci": text}, instance_type="p4d.24xlarge") == expected


def test_views_of_one_event_tell_it_once():
    roles = {"lspci": lspci(P4D), "tree": tree(P4D[:3])}
    assert answer(roles, instance_type="p4d.24xlarge") == lacking("0000:a0:1b.0", action="drain")
    roles = {"lspci": lspci(P4D[:3]), "tree": tree(P4D[:3]), "fi_info": fi_info(P4D[:3]), "rdma_link": links(P4D[:3])}
    assert answer(roles, instance_type="p4d.24xlarge") == lacking("rdmap160s27")


@pytest.mark.parametrize(
    ("text", "expected"), [("unlimited\n", PASS), ("64\n", ("warn", {("node", "warn")})), ("?", NODE_NONE)]
)
def test_locked_memory(text, expected):
    context = {"command": "srun bash -c 'ulimit -l'"}
    assert answer({"stdout": text}, instance_type="p5.48xlarge", context=context) == expected


PARSED = (rdma_text.parse_fi_info, rdma_text.parse_rdma, rdma_text.parse_lspci)
SAMPLES = (
    fi_info(P4D),
    links(P4D),
    lspci(P4D),
    VERBOSE,
    DEVINFO,
    json.dumps(JSON_LINKS),
    NODATA,
    json.dumps(tree(P4D)),
)


@settings(max_examples=150, deadline=None)
@given(sample=st.sampled_from(SAMPLES), at=st.integers(0, 4000), junk=st.text(max_size=12), kept=st.integers(0, 4000))
def test_no_text_makes_a_parser_or_the_judge_raise(sample, at, junk, kept):
    text = sample[:at] + junk + sample[at : at + kept]
    for parse in PARSED:
        parse(text)
    for role in ("fi_info", "rdma_link", "lspci", "tree", "tree_after", "ls"):
        answer({role: text, "tree_before": text}, instance_type="p4d.24xlarge")

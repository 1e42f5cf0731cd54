"""EFA in captures: what is there against what should be, counters, device files, and every tool's way to print them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.aws import efa_types
from slurm_ext.gate import efa_missing, rdma_text, replay_efa
from slurm_ext.gate.case import Case
from slurm_ext.gate.model import conclude

P4D = efa_types.efa_names("p4d.24xlarge")
P5 = efa_types.efa_names("p5.48xlarge")
P5EN = efa_types.efa_names("p5en.48xlarge")
# Groups of two at a stride of 17: an order that no table has, as another generation of a host may number its buses.
B300_OTHER = tuple(f"rdmap{88 + 17 * group + place}s0" for group in range(8) for place in range(2))

PASS = ("pass", set())
DEVICE_COUNTERS = (
    "submitted_cmds",
    "completed_cmds",
    "cmds_err",
    "no_completion_cmds",
    "keep_alive_rcvd",
    "create_qp_err",
)
PORT_COUNTERS = (
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_drops",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_bytes",
)
PORT_COUNTERS += ("retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events")


def answer(roles, *, instance_type="", context=None):
    texts = {role: text if isinstance(text, str) else json.dumps(text) for role, text in roles.items()}
    verdict = conclude(replay_efa.judge(Case("x", "efa", instance_type, texts, context or {})))
    return verdict.verdict, {(finding.target, finding.action) for finding in verdict.findings}


def tree(names, *, nodes=True, module="2.17.3g\n", **counters):
    """Return a sysfs of EFA devices; a counter is named `device__counter`, or `counter` for all devices."""
    found = {"sys/module/efa/version": module} if module else {}
    for at, name in enumerate(names):
        base = f"sys/class/infiniband/{name}"
        found |= {f"{base}/device/vendor": "0x1d0f\n", f"{base}/device/device": "0xefa2\n"}
        found |= {f"{base}/node_guid": "0000:0000:0000:0000\n", f"{base}/ports/1/state": "4: ACTIVE\n"}
        for folder, all_ in (("ports/1/hw_counters", PORT_COUNTERS), ("hw_counters", DEVICE_COUNTERS)):
            for counter in all_:
                value = counters.get(f"{name}__{counter}", counters.get(counter, 0))
                found[f"{base}/{folder}/{counter}"] = value if isinstance(value, dict) else f"{value}\n"
        found[f"sys/class/infiniband_verbs/uverbs{at}/ibdev"] = f"{name}\n"
        if nodes is True or (nodes and name in nodes):
            found[f"dev/infiniband/uverbs{at}"] = ""
    if not nodes:
        found["dev/infiniband/"] = ""
    return found


def fi_info(names, *, provider="efa"):
    blocks = []
    for name in names:
        for fabric, way, kind in (("efa-direct", "rdm", "RDM"), ("efa", "rdm", "RDM"), ("efa", "dgrm", "DGRAM")):
            blocks.append(
                f"provider: {provider}\n    fabric: {fabric}\n    domain: {name}-{way}\n    version: 201.0\n"
                f"    type: FI_EP_{kind}\n    protocol: FI_PROTO_EFA\n"
            )
    return "".join(blocks)


def links(names, **states):
    return "".join(f"link {n}/1 state {states.get(n, 'ACTIVE physical_state LINK_UP')} \n" for n in names)


def without(names, *gone):
    return tuple(name for name in names if name not in gone)


def lacking(*names, action="replace"):
    return "fail", {(f"efa:{name}", action) for name in names}


NODE_REPLACE, NODE_DRAIN = ("fail", {("node", "replace")}), ("fail", {("node", "drain")})
NODE_WARN, NODE_NONE = ("unknown", {("node", "warn")}), ("unknown", {("node", "none")})


@pytest.mark.parametrize(
    ("names", "instance_type", "context", "expected"),
    [
        (P5, "p5.48xlarge", {}, PASS),
        (P5, "p5e.48xlarge", {}, PASS),
        (P5EN, "p5en.48xlarge", {}, PASS),
        (efa_types.efa_names("p6-b200.48xlarge"), "p6-b200.48xlarge", {}, PASS),
        (efa_types.efa_names("p6-b300.48xlarge"), "p6-b300.48xlarge", {}, PASS),
        (B300_OTHER, "p6-b300.48xlarge", {}, PASS),
        (efa_types.efa_names("p6e-gb200.36xlarge"), "p6e-gb200.36xlarge", {}, PASS),
        (P4D, "p4de.24xlarge", {}, PASS),
        (("rdmap0s6",), "hpc6a.48xlarge", {}, PASS),
        (("rdmap0s29",), "g4dn.8xlarge", {}, PASS),
        (("rdmap47s0",), "p5.4xlarge", {}, PASS),
        # One gone, first, last and in the middle; two of one group; a whole group; what no table names.
        (without(P5, "rdmap115s0"), "p5.48xlarge", {}, lacking("rdmap115s0")),
        (without(P5, "rdmap79s0"), "p5.48xlarge", {}, lacking("rdmap79s0")),
        (without(P5, "rdmap201s0"), "p5.48xlarge", {}, lacking("rdmap201s0")),
        (without(P5, "rdmap201s0"), "p5e.48xlarge", {}, lacking("rdmap201s0")),
        (without(P5EN, "rdmap110s0", "rdmap112s0"), "p5en.48xlarge", {}, lacking("rdmap110s0", "rdmap112s0")),
        (P5EN[4:], "p5en.48xlarge", {}, lacking(*P5EN[:4])),
        (without(P4D, "rdmap144s27"), "p4d.24xlarge", {}, lacking("rdmap144s27")),
        (without(B300_OTHER, "rdmap123s0"), "p6-b300.48xlarge", {}, lacking("rdmap123s0")),
        (P5[:16], "p5.48xlarge", {}, NODE_REPLACE),
        ((), "p5.48xlarge", {}, NODE_REPLACE),  # the driver is loaded and found nothing
        # What was attached counts, not what the type can have.
        (P5[:16], "p5.48xlarge", {"expected_efa": 16}, PASS),
        (P5[:8], "p5.48xlarge", {"expected_efa": 1}, PASS),
        (without(P5EN, "rdmap86s0"), "p5en.48xlarge", {"expected_efa": 16}, lacking("rdmap86s0")),
        (P4D[:2], "", {"expected_efa": 4}, NODE_REPLACE),
        # Instances that are often started with fewer.
        (("rdmap0s6",), "hpc7a.96xlarge", {}, NODE_WARN),
        (efa_types.efa_names("p6e-gb200.36xlarge")[:8], "p6e-gb200.36xlarge", {}, NODE_WARN),
        # Nothing tells how many.
        (P4D, "", {}, NODE_NONE),
        (P4D, "p9.48xlarge", {}, NODE_NONE),
        ((), "c5.xlarge", {}, ("pass", {("node", "none")})),
        # Devices that come late.
        (P5EN[:12], "p5en.48xlarge", {"boot_time": 1_700_000_000, "now": 1_700_000_020}, NODE_WARN),
        (P5EN[:12], "p5en.48xlarge", {"boot_time": 1_700_000_000, "now": 1_700_000_600}, lacking(*P5EN[12:])),
    ],
)
def test_devices_that_are_there_against_those_that_should_be(names, instance_type, context, expected):
    folder = tree(names) | ({} if names else {"sys/class/infiniband/": ""})
    assert answer({"tree": folder}, instance_type=instance_type, context=context) == expected


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"sys/class/infiniband/": ""}, NODE_DRAIN),
        ({"sys/class/infiniband/": "", "sys/module/ena/version": "2.13"}, NODE_DRAIN),
        ({"proc/modules": "ena 1 0 - Live 0x0\n", "sys/class/infiniband/": ""}, NODE_DRAIN),
        ({"sys/class/infiniband": {"error": "EACCES"}}, NODE_WARN),
        ({"sys/class/infiniband/": {"error": "EIO"}}, NODE_WARN),
        ({}, NODE_NONE),
    ],
)
def test_no_device_at_all(roles, expected):
    assert answer({"tree": roles}, instance_type="p5.48xlarge") == expected


def test_a_function_on_the_bus_without_a_device_is_the_drivers_affair():
    bus = {
        f"sys/bus/pci/devices/0000:{int(n[5:-2]):02x}:00.0/{k}": v
        for n in P5EN
        for k, v in (("vendor", "0x1d0f"), ("device", "0xefa2"))
    }
    assert answer({"tree": tree(P5EN) | bus}, instance_type="p5en.48xlarge") == PASS
    lost = tree(without(P5EN, "rdmap86s0")) | bus
    assert answer({"tree": lost}, instance_type="p5en.48xlarge") == lacking("rdmap86s0", action="drain")


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({}, PASS),
        ({"rx_drops": 40_000, "retrans_timeout_events": 900}, PASS),  # since the driver was loaded, who knows when
        ({"rdmap144s27__no_completion_cmds": 3}, lacking("rdmap144s27")),
        ({"rdmap144s27__cmds_err": 2}, ("warn", {("efa:rdmap144s27", "warn")})),
        ({"create_qp_err": 5}, PASS),  # a program's own bad argument
        ({key: {"error": "EACCES"} for key in (*PORT_COUNTERS, *DEVICE_COUNTERS)}, NODE_WARN),
        ({"cmds_err": {"error": "EIO"}}, NODE_WARN),
        ({"rdmap32s27__rx_drops": {"error": "EIO"}}, ("unknown", {("efa:rdmap32s27", "warn")})),
        ({"rdmap32s27__rx_drops": "N/A"}, ("unknown", {("efa:rdmap32s27", "warn")})),
        (
            {"rdmap32s27__rx_drops": {"error": "EIO"}, "rdmap16s27__no_completion_cmds": 1},
            ("fail", {("efa:rdmap32s27", "warn"), ("efa:rdmap16s27", "replace")}),
        ),
    ],
)
def test_one_reading_of_the_counters(counters, expected):
    assert answer({"tree": tree(P4D, **counters)}, instance_type="p4d.24xlarge") == expected


@pytest.mark.parametrize(
    ("before", "after", "context", "expected"),
    [
        ({}, {}, {"interval_s": 60}, PASS),
        ({"rx_drops": 500}, {"rx_drops": 500}, {"interval_s": 60}, PASS),
        ({}, {"rx_drops": 12, "retrans_timeout_events": 3}, {"interval_s": 60}, PASS),
        ({}, {"rdmap32s27__rx_drops": 88_120}, {"interval_s": 60}, ("warn", {("efa:rdmap32s27", "warn")})),
        ({}, {"rdmap32s27__rx_drops": 88_120}, {"interval_s": 86_400}, PASS),
        ({}, {"rdmap32s27__rx_drops": 88_120}, {}, ("warn", {("efa:rdmap32s27", "warn")})),
        ({}, {"rdmap16s27__retrans_timeout_events": 412}, {"interval_s": 60}, ("warn", {("efa:rdmap16s27", "warn")})),
        ({}, {"rdmap16s27__rdma_write_wr_err": 900}, {"interval_s": 60}, ("warn", {("efa:rdmap16s27", "warn")})),
        ({}, {"rdmap16s27__retrans_bytes": 10**9}, {"interval_s": 60}, ("warn", {("efa:rdmap16s27", "warn")})),
        (
            {},
            {"rdmap16s27__retrans_pkts": 10**6},
            {"job_start": "2026-03-01T00:00:00Z", "job_end": "2026-03-01T00:01:00Z"},
            ("warn", {("efa:rdmap16s27", "warn")}),
        ),
        ({}, {"rdmap16s27__no_completion_cmds": 1}, {"interval_s": 60}, lacking("rdmap16s27")),
        # What was refused before the window is not of the window.
        ({"cmds_err": 4}, {"cmds_err": 4}, {"interval_s": 60}, PASS),
        ({"cmds_err": 4}, {"cmds_err": 4, "rdmap16s27__cmds_err": 6}, {}, ("warn", {("efa:rdmap16s27", "warn")})),
        # The driver was loaded anew, on all or on one; a counter that went round its 64 bits was not.
        ({"tx_bytes": 900}, {"tx_bytes": 3}, {"interval_s": 60}, NODE_NONE),
        (
            {"tx_bytes": 900},
            {"tx_bytes": 900, "rdmap16s27__tx_bytes": 1},
            {},
            ("unknown", {("efa:rdmap16s27", "none")}),
        ),
        ({"rx_drops": 2**64 - 5}, {"rx_drops": 4}, {"interval_s": 60}, PASS),
        ({"rx_drops": {"error": "EIO"}}, {}, {"interval_s": 60}, NODE_WARN),
    ],
)
def test_growth_between_two_readings(before, after, context, expected):
    roles = {"tree_before": tree(P4D, **before), "tree_after": tree(P4D, **after)}
    assert answer(roles, instance_type="p4d.24xlarge", context=context) == expected


def test_a_device_that_left_between_two_readings_and_one_that_came():
    both, three = tree(P4D), tree(P4D[:3])
    assert answer({"tree_before": both, "tree_after": three}, instance_type="p4d.24xlarge") == lacking(P4D[3])
    assert answer({"tree_before": both, "tree_after": three}, context={"expected_efa": 3}) == lacking(P4D[3])
    assert answer({"tree_before": three, "tree_after": both}, instance_type="p4d.24xlarge") == PASS
    assert answer({"tree_before": both}, instance_type="p4d.24xlarge") == NODE_NONE
    odd = tree(("rdmap1s1", "rdmap9s1", "rdmap20s2", "rdmap31s4"))
    fewer = tree(("rdmap1s1", "rdmap9s1", "rdmap31s4"))
    assert answer({"tree_before": odd, "tree_after": fewer}, context={"expected_efa": 4}) == lacking("rdmap20s2")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (True, PASS),
        (without(P5EN, "rdmap88s0"), lacking("rdmap88s0", action="drain")),
        (without(P5EN, "rdmap88s0", "rdmap136s0"), lacking("rdmap88s0", "rdmap136s0", action="drain")),
        ((), NODE_DRAIN),  # a container that was not given /dev/infiniband
    ],
)
def test_device_files(nodes, expected):
    assert answer({"tree": tree(P5EN, nodes=nodes)}, instance_type="p5en.48xlarge") == expected


def test_a_tree_without_dev_says_nothing_of_device_files():
    only_sys = {path: text for path, text in tree(P5EN).items() if not path.startswith("dev")}
    assert answer({"tree": only_sys}, instance_type="p5en.48xlarge") == PASS


def test_devices_of_other_makers_are_not_counted():
    other = {
        "sys/class/infiniband/mlx5_0/device/vendor": "0x15b3",
        "sys/class/infiniband/mlx5_0/device/device": "0x1021",
    }
    other["sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer"] = "9"
    assert answer({"tree": other}) == NODE_NONE
    assert answer({"tree": tree(P4D) | other}, instance_type="p4d.24xlarge") == PASS
    assert answer({"tree": other}, instance_type="p4d.24xlarge") == NODE_DRAIN


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
    assert answer(roles, instance_type="p4d.24xlarge") == lacking("rdmap160s27", action="drain")
    roles = {"lspci": lspci(P4D[:3]), "tree": tree(P4D[:3]), "fi_info": fi_info(P4D[:3]), "rdma_link": links(P4D[:3])}
    assert answer(roles, instance_type="p4d.24xlarge") == lacking("rdmap160s27")


@pytest.mark.parametrize(
    ("text", "expected"), [("unlimited\n", PASS), ("64\n", ("warn", {("node", "warn")})), ("?", NODE_NONE)]
)
def test_locked_memory(text, expected):
    context = {"command": "srun bash -c 'ulimit -l'"}
    assert answer({"stdout": text}, instance_type="p5.48xlarge", context=context) == expected


def test_no_order_that_fits_twice_names_a_device():
    assert efa_missing.missing(("rdmap10s0", "rdmap11s0", "rdmap12s0"), 4) == ()
    assert efa_missing.missing(("rdmap3s0", "rdmap77s0", "rdmap90s0"), 4) == ()
    assert efa_missing.missing(P5, 32, "p5.48xlarge") == ()


@pytest.mark.parametrize(
    "name", ["p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge", "p4d.24xlarge"]
)
def test_each_device_of_a_type_is_named_when_it_alone_is_gone(name):
    names = efa_types.efa_names(name)
    assert len(names) == efa_types.efa_devices(name)
    for gone in names:
        assert efa_missing.missing(without(names, gone), len(names), name) == (gone,)


def test_counts_of_types():
    known = {
        "c5n.18xlarge": 1,
        "g6e.48xlarge": 4,
        "hpc7g.4xlarge": 1,
        "c5.xlarge": 0,
        "p5.2xlarge": 0,
        "trn2.48xlarge": 16,
    }
    assert {name: efa_types.efa_devices(name) for name in known} == known
    assert [efa_types.efa_devices(name) for name in ("", "p5", "p5.", "q9.large")] == [None] * 4


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


@settings(max_examples=100, deadline=None)
@given(
    found=st.dictionaries(
        st.text("sys/clainfbdrmp0devuhwports_12", min_size=1, max_size=60),
        st.one_of(
            st.text(max_size=8), st.integers(), st.none(), st.fixed_dictionaries({"error": st.sampled_from(["EIO"])})
        ),
        max_size=6,
    )
)
def test_no_tree_makes_the_judge_raise(found):
    answer({"tree": found, "tree_before": found, "tree_after": found}, instance_type="p5.48xlarge")

"""EFA in captures: the devices that are there against those that should be, counters, device files."""

from __future__ import annotations

import pytest
from efa_answers import (
    B300_OTHER,
    DEVICE_COUNTERS,
    NODE_DRAIN,
    NODE_NONE,
    NODE_REPLACE,
    NODE_WARN,
    P4D,
    P5,
    P5EN,
    PORT_COUNTERS,
    answer,
    lacking,
    tree,
    without,
)
from fabric_answers import PASS
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.aws import efa_types
from slurm_ext.gate import efa_counters, efa_facts, efa_missing


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
        (("rdmap9s0",), "g6e.48xlarge", {}, NODE_WARN),
        (("rdmap9s0", "rdmap40s0", "rdmap77s0"), "g6e.48xlarge", {}, NODE_REPLACE),
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
        ({}, {"retrans_timeout_events": 412}, {"interval_s": 60}, ("warn", {("node", "warn")})),  # on all alike
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


def test_what_timed_out_was_sent_again_and_is_one_event():
    grown = {"retrans_timeout_events": 412, "retrans_pkts": 10**6, "retrans_bytes": 10**9, "rx_drops": 0}
    before, after = (efa_facts.read(tree(P4D[:1], **counts)).devices for counts in ({}, grown))
    (found,) = efa_counters.judge_growth(before, after, 60.0)
    assert found.finding.id == "efa.retransmission-timeouts"
    assert len(found.finding.evidence) == 3


def test_without_a_type_the_first_reading_tells_how_many():
    roles = {"tree_before": tree(P4D), "tree_after": tree(P4D, rdmap16s27__rx_drops=10**6)}
    assert answer(roles) == ("warn", {("efa:rdmap16s27", "warn")})
    assert answer({**roles, "tree_after": roles["tree_before"]}) == PASS
    assert answer({**roles, "tree_after": tree(P4D[1:])}) == lacking(P4D[0])
    assert answer({"tree": tree(P4D, rdmap16s27__no_completion_cmds=1)}) == lacking("rdmap16s27")


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


def test_nodes_as_ls_lists_them():
    row = "crw-rw-rw- 1 root root 231, 19{at} Jul  1 10:00 uverbs{at}\n"
    listing = "total 0\ncrw-rw-rw- 1 root root 10, 57 Jul  1 10:00 rdma_cm\n" + "".join(
        row.format(at=at) for at in range(4)
    )
    context = {"command": "ls -l /dev/infiniband", "exit_code": 0}
    for roles in ({"ls": listing}, {"stdout": listing}):
        assert answer(roles, instance_type="p4d.24xlarge", context=context) == PASS
        assert answer(roles, instance_type="p5en.48xlarge", context=context) == NODE_DRAIN
    shut = listing.replace("crw-rw-rw- 1 root root 231", "crw------- 1 root root 231")
    assert answer({"ls": shut}, instance_type="p4d.24xlarge") == NODE_DRAIN
    gone = "ls: cannot access '/dev/infiniband': No such file or directory\n"
    assert answer({"ls": gone}, instance_type="p4d.24xlarge") == NODE_DRAIN
    assert answer({"ls": gone}, instance_type="c5.xlarge") == ("pass", {("node", "none")})
    without_nodes = {path: text for path, text in tree(P4D).items() if not path.startswith("dev")}
    assert answer({"tree": without_nodes, "ls": listing}, instance_type="p4d.24xlarge") == PASS
    fewer = listing.replace("uverbs3", "umad3")
    assert answer({"tree": without_nodes, "ls": fewer}, instance_type="p4d.24xlarge") == lacking(P4D[3], action="drain")


def test_gpu_memory_that_the_driver_is_given():
    def peers(*words):
        return tree(P4D) | {f"sys/class/infiniband/{n}/device/p2p": w for n, w in zip(P4D, words, strict=True)}

    for words, expected in (
        (("NVIDIA\n",) * 4, PASS),
        (("\n",) * 4, ("warn", {("node", "warn")})),
        (("NVIDIA\n", "\n", "NVIDIA\n", "NVIDIA\n"), ("warn", {("efa:rdmap32s27", "warn")})),
    ):
        assert answer({"tree": peers(*words)}, instance_type="p4d.24xlarge") == expected
    assert answer({"tree": peers(*("\n",) * 4)}, context={"expected_efa": 4}) == PASS  # no GPUs to speak of


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


UNHEARD = "The device sent a completion but the driver didn't receive any MSI-X interrupt"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("DEV: The device didn't send any completion for admin cmd CREATE_QP(1) status 0 (id: 3)", lacking("rdmap79s0")),
        ("DEV: Admin queue is closed\nDEV: Failed to submit command CREATE_QP (opcode 1) err -19", lacking("rdmap79s0")),
        ("DEV: Reading register timed out. expected: req id[1] offset[0x4]", lacking("rdmap79s0")),
        (f"DEV: {UNHEARD} for admin cmd CREATE_QP(1) status 1", lacking("rdmap79s0", action="reboot")),
        ("DEV: Failed to process command CREATE_QP (opcode 1) comp_status 1 err -22", ("warn", {("efa:rdmap79s0", "warn")})),
        ("efa 0000:4f:00.0: EFA device init failed\nefa: probe of 0000:4f:00.0 failed with error -62", lacking("0000:4f:00.0")),
        ("efa 0000:4f:00.0: probe with driver efa failed with error -62", lacking("0000:4f:00.0")),
        ("efa 0000:4f:00.0: Setup irq:107 name:efa-mgmnt@pci:0000:4f:00.0", PASS),
        ("usb 1-1: device descriptor read/64 failed with error -62", PASS),
    ],
)  # fmt: skip
def test_kernel_lines(lines, expected):
    lines = lines.replace("DEV", "infiniband rdmap79s0")
    log = "".join(f"[ 8123.55{at:04d}] {line}\n" for at, line in enumerate(lines.splitlines()))
    assert answer({"dmesg": log}, instance_type="p5.48xlarge") == expected


def test_no_order_that_fits_twice_names_a_device():
    assert efa_missing.missing(("rdmap10s0", "rdmap11s0", "rdmap12s0"), 4) == ()
    assert efa_missing.missing(("rdmap3s0", "rdmap77s0", "rdmap90s0"), 4) == ()
    assert efa_missing.missing(P5, 32, "p5.48xlarge") == ()
    assert efa_missing.missing(("efa_0", "efa_1", "efa_3"), 4) == ("efa_2",)
    assert efa_missing.missing(("efa_0", "efa_1", "efa_2"), 4) == ()


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


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 24))
def test_no_cut_of_a_healthy_tree_fails_it(cut):
    short = {path: text[:cut] for path, text in tree(P5EN).items()}
    assert answer({"tree": short}, instance_type="p5en.48xlarge")[0] != "fail"


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

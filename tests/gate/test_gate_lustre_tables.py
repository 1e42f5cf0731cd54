"""Lustre in captures: lfs df, lfs check, LNet and the way that traffic goes; any text at all."""

from __future__ import annotations

import json

import pytest
from fabric_answers import PASS
from hypothesis import given, settings
from hypothesis import strategies as st
from lustre_answers import FSTAB, IMPORT, LUSTRE, NOW, ROOT, answer, client, connection, word

from slurm_ext.gate import lnet, lustre_df, lustre_facts

CUT_OFF, FS_WARN = word("fail", "node", "drain"), word("warn", "fs:/fsx", "warn")
HEAD = "UUID                   1K-blocks        Used   Available Use% Mounted on\n"
TAIL = "\nfilesystem_summary:   4673404928  3225199104  1448197632  69% /fsx\n\n"


def rows(*used, tail=TAIL, kind="OST", head=HEAD):
    text = head
    for at, what in enumerate(used):
        name = f"fsx-{kind}{at:04x}_UUID"
        text += (
            f"{name:<20} 1168351232   711622144   456727040  {what}% /fsx[{kind}:{at}]\n"
            if isinstance(what, int)
            else f"{name:<20}: {what}\n"
        )
    return text + tail


IHEAD = (
    HEAD.replace("1K-blocks", "Inodes").replace("Used", "IUsed").replace("Available", "IFree").replace("Use%", "IUse%")
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rows(61, 60, 57), PASS),
        (rows(61, 100, 57), word("warn", "ost:fsx-OST0001", "warn")),
        (rows(61, 99, 57), word("warn", "ost:fsx-OST0001", "warn")),
        (rows(61, 94, 57), word("warn", "ost:fsx-OST0001", "warn")),
        (rows(100, 100, tail=TAIL.replace("69%", "100%")), FS_WARN),
        (rows(93, 92, tail=TAIL.replace("69%", "93%")), FS_WARN),
        (rows(61, "inactive device", 57), word("warn", "ost:fsx-OST0001", "warn")),
        (rows(61, "Resource temporarily unavailable", 57), word("fail", "ost:fsx-OST0001", "drain")),
        (rows(61, "Cannot send after transport endpoint shutdown"), word("fail", "ost:fsx-OST0001", "drain")),
        (rows("Input/output error", kind="MDT"), word("fail", "mdt:fsx-MDT0000", "drain")),
        (rows(100, kind="MDT", tail=TAIL.replace("69%", "100%"), head=IHEAD), word("warn", "mdt:fsx-MDT0000", "warn")),
        (rows(61, 60).replace("/fsx[OST:1]", "/fsx[OST:1] D"), word("warn", "ost:fsx-OST0001", "warn")),
        (rows(61, 60).replace("/fsx[OST:1]", "/fsx[OST:1]R"), word("warn", "ost:fsx-OST0001", "warn")),
        (rows(61, 60).replace("/fsx[OST:1]", "/fsx[OST:1] f"), PASS),
        (rows(61, 60).replace("1168351232", "1.1T").replace("456727040", "435.6G"), PASS),
        (rows(61, 60, tail=""), word("unknown", "node", "none")),
        (rows(61, 100, tail=""), ("unknown", {("ost:fsx-OST0001", "warn"), ("node", "none")})),
        (rows(61)[:150], word("unknown", "node", "none")),
        ("", word("unknown", "node", "warn")),
        ("OST0005             : Resource temporarily unavailable\n" + TAIL, word("fail", "ost:OST0005", "drain")),
        (rows(61, 60) + rows(70, 99).replace("fsx", "data"), word("warn", "ost:data-OST0001", "warn")),
    ],
)  # fmt: skip
def test_lfs_df(text, expected):
    assert answer({"df": text}, {"command": "lfs df /fsx", "exit_code": 0}) == expected
    if text.strip():
        assert answer({"stdout": text}, {"command": "lfs df /fsx", "exit_code": 0}) == expected


def test_a_table_that_tells_why_the_run_failed():
    said = {"df": rows(61, "Input/output error"), "stderr": "lfs df: error: 5"}
    assert answer(said, {"command": "lfs df /fsx", "exit_code": 5}) == word("fail", "ost:fsx-OST0001", "drain")
    hung = {"df": rows(61, 60, tail="")}
    assert answer(hung, {"command": "lfs df /fsx", "timed_out": True}) == word("unknown", "fs:/fsx", "drain")


def test_plain_df_of_lustre():
    text = (
        "Filesystem              Size  Used Avail Use% Mounted on\n10.0.0.41@tcp:/abcdefgh 4.4T  3.1T  1.4T  70% /fsx\n"
    )
    assert answer({"df": text}) == PASS
    assert answer({"df": text.replace("70%", "97%")}) == FS_WARN


def test_lfs_check_servers():
    good = "fsx-OST0000-osc-ffff active.\nfsx-MDT0000-mdc-ffff active.\n"
    context = {"command": "lfs check servers", "exit_code": 0}
    assert answer({"stdout": good}, context) == PASS
    bad = good + "check 'fsx-OST000b-osc-ffff': Input/output error (5)\n"
    assert answer({"stdout": bad}, context) == word("fail", "ost:fsx-OST000b", "drain")
    bad = "lfs check: error: check 'fsx-OST0001-osc-ffff': Resource temporarily unavailable (11)\n"
    assert answer({"stdout": good, "stderr": bad}, context) == word("fail", "ost:fsx-OST0001", "drain")


def net(kind, *interfaces):
    text = f"    - net type: {kind}\n      local NI(s):\n"
    for nid, status, device, more in interfaces:
        text += f"        - nid: {nid}@{kind}\n          status: {status}\n"
        text += f"          interfaces:\n              0: {device}\n" if device else ""
        if isinstance(more, int):
            text += f"          health stats:\n              health value: {more}\n              dropped: 0\n"
        elif more is not None:
            text += f"          statistics:\n              send_count: {more[0]}\n              recv_count: {more[1]}\n"
    return text


def nets(*parts):
    return "net:\n" + net("lo", ("0", "up", "", None)) + "".join(parts)


NIS = "nid   status alive refs peer rtr max tx min\n0@lo up 0 2 0 0 0 0 0\n10.0.0.11@tcp down -1 1 8 0 128 128 128\n"
TCP, TCP_DOWN = net("tcp", ("10.0.0.11", "up", "ens32", 1000)), net("tcp", ("10.0.0.11", "down", "ens32", 0))
EFA = net("efa", ("10.0.0.11", "up", "rdmap85s0", (900, 800)))


@pytest.mark.parametrize(
    ("text", "context", "expected"),
    [
        (nets(TCP), {}, PASS),
        (nets(net("o2ib1", ("10.0.0.11", "up", "ib0", 1000))), {}, PASS),
        (nets(TCP_DOWN), {}, CUT_OFF),
        (nets(TCP_DOWN, net("o2ib", ("10.1.0.11", "down", "ib0", None))), {}, CUT_OFF),
        (nets(TCP, net("o2ib", ("10.1.0.11", "down", "ib0", None))), {}, word("warn", "nic:ib0", "warn")),
        (nets(net("tcp", ("10.0.0.11", "up", "ens32", 400))), {}, word("warn", "nic:ens32", "warn")),
        (nets(net("tcp", ("10.0.0.11", "sideways", "ens32", None))), {}, word("unknown", "nic:ens32", "warn")),
        (nets(), {}, CUT_OFF),
        ("net:\n", {}, CUT_OFF),
        ("show:\n    - net:\n          errno: -100\n          descr: \"cannot get networks: Network is down\"\n", {}, CUT_OFF),
        ("opening /dev/lnet failed: No such file or directory\nhint: the kernel modules may not be loaded\n", {}, CUT_OFF),
        ("Segmentation fault\n", {}, word("unknown", "node", "warn")),
        ("", {}, word("unknown", "node", "warn")),
        # lctl's forms.
        ("10.0.0.11@tcp\n", {}, PASS),
        (NIS, {}, CUT_OFF),
        # Set up for EFA.
        (nets(TCP, EFA), {"expected_lnet": "efa"}, PASS),
        (nets(TCP), {"expected_lnet": "efa"}, FS_WARN),
        (nets(TCP, EFA.replace("up", "down")), {"expected_lnet": "efa"}, FS_WARN),
        (nets(TCP, EFA.replace("900", "0").replace("800", "0")), {"expected_lnet": "efa"}, FS_WARN),
        (nets(TCP, EFA), {"expected_lnet": "efa", "expected_efa": 16}, FS_WARN),
        (nets(TCP_DOWN), {"expected_lnet": "efa"}, CUT_OFF),
        (nets(TCP), {"expected_lnet": "tcp"}, PASS),
    ],
)  # fmt: skip
def test_lnet(text, context, expected):
    assert answer({"lnet": text}, {"mount": "/fsx", **context}) == expected


def test_lnet_peers():
    peers = "peer:\n    - primary nid: 10.0.1.5@tcp\n      Multi-Rail: True\n"
    peers += "      peer ni:\n        - nid: 10.0.1.5@tcp\n          state: STATE\n"
    context = {"command": "lnetctl peer show -v"}
    assert answer({"lnet": peers.replace("STATE", "NA")}, context) == PASS
    assert answer({"lnet": peers.replace("STATE", "down")}, context) == word("warn", "node", "warn")


def over(net_name, servers="10.0.0.41@efa, 10.0.0.41@tcp"):
    return connection(
        "fsx-OST0000", form=IMPORT.replace("10.0.0.42@o2ib, 10.0.0.43@o2ib", servers), current=f"10.0.0.41@{net_name}"
    )


@pytest.mark.parametrize(
    ("roles", "context", "expected"),
    [
        ({"tree": over("tcp"), "lnet": nets(TCP)}, {"expected_lnet": "efa"}, FS_WARN),
        ({"tree": over("tcp")}, {"expected_lnet": "efa"}, FS_WARN),
        ({"tree": over("tcp")}, {}, FS_WARN),  # its own list begins with EFA
        ({"tree": over("efa"), "lnet": nets(TCP, EFA)}, {"expected_lnet": "efa"}, PASS),
        # An import names the first network that was configured; the messages that went over EFA decide.
        ({"tree": over("tcp"), "lnet": nets(TCP, EFA)}, {"expected_lnet": "efa"}, PASS),
        ({"tree": over("tcp", "10.0.0.41@tcp"), "lnet": nets(TCP)}, {}, PASS),
        ({"tree": over("tcp", "10.0.0.41@tcp"), "lnet": nets(TCP)}, {"expected_lnet": "tcp"}, PASS),
    ],
)
def test_which_way_the_traffic_goes(roles, context, expected):
    assert answer(roles, {"mount": "/fsx", "now": NOW, **context}) == expected


SAMPLES = (json.dumps(client()), rows(61, "inactive device", 100), nets(TCP, EFA), ROOT + LUSTRE, IMPORT, FSTAB)
ROLES = ("tree", "tree_after", "lnet", "df", "df_inodes", "mounts", "mountinfo", "findmnt", "fstab", "stdout", "stderr")


@settings(max_examples=60, deadline=None)
@given(sample=st.sampled_from(SAMPLES), at=st.integers(0, 3000), junk=st.text(max_size=12), kept=st.integers(0, 3000))
def test_no_text_makes_a_parser_or_the_judge_raise(sample, at, junk, kept):
    text = sample[:at] + junk + sample[at : at + kept]
    lnet.parse(text)
    lustre_df.parse(text)
    lustre_df.parse_check(text)
    lustre_facts.parse_parameters(text)
    for role in ROLES:
        for command in ("stat /fsx", "lctl get_param osc.*.import", "lfs check servers", "lnetctl net show", ""):
            answer({role: text}, {"command": command, "exit_code": 1})


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 2000))
def test_no_cut_of_a_healthy_client_fails_it(cut):
    tree = client()
    short = {path: text[:cut] for path, text in tree.items()}
    assert answer({"tree": short}, {"now": NOW})[0] != "fail"

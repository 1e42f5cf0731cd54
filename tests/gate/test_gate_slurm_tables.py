"""sinfo and squeue: any word, separator, header or none."""

from __future__ import annotations

import pytest
from slurm_cases import DRAIN, NODE, NOTHING, told

SINFO = (
    ("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n", "gpu*         up   infinite      2  {0} gpu-[1-2]\n"),
    ("NODELIST   NODES PARTITION STATE \n", "gpu-1          1      gpu* {0}\ngpu-2          1      gpu* {0}\n"),
    ("NODELIST|STATE|REASON\n", "gpu-1|{0}|none\ngpu-2|{0}|none\n"),
    ("STATE,NODELIST\n", "{0},gpu-1\n{0},gpu-2\n"),
    ("STATE;;NODELIST\n", "{0};;gpu-[1-2]\n"),
)


@pytest.mark.parametrize(("header", "row"), SINFO)
@pytest.mark.parametrize(
    ("word", "verdict", "action"),
    [
        *(
            ("idle", "pass", ""),
            ("mix", "pass", ""),
            ("alloc", "pass", ""),
            ("alloc+", "pass", ""),
            ("comp", "pass", ""),
        ),
        *(
            ("idle~", "pass", ""),
            ("alloc#", "pass", ""),
            ("idle%", "pass", ""),
            ("idle!", "pass", ""),
            ("mix-", "pass", ""),
        ),
        *(
            ("resv", "pass", ""),
            ("plnd", "pass", ""),
            ("block", "pass", ""),
            ("pow_up", "pass", ""),
            ("allocated", "pass", ""),
        ),
        *(("down*", "fail", "drain"), ("idle*", "fail", "drain"), ("mix*", "fail", "drain"), ("down", "fail", "drain")),
        *(
            ("inval", "fail", "drain"),
            ("drain", "fail", "none"),
            ("drained*", "fail", "none"),
            ("drng", "fail", "none"),
        ),
        *(("maint", "fail", "none"), ("down$", "fail", "none"), ("maint*", "fail", "none"), ("down~", "fail", "none")),
        *(("boot^", "fail", "none"), ("drng@", "fail", "none"), ("failg", "fail", "none"), ("down^", "fail", "none")),
        *(("boot", "warn", "none"), ("mix@", "warn", "none"), ("unk", "unknown", "none"), ("unk*", "unknown", "none")),
        *(("quarantined", "unknown", "none"),),
    ],
)
def test_every_word_of_sinfo_in_every_form(header, row, word, verdict, action):
    expected = (verdict, [("node:gpu-1", action), ("node:gpu-2", action)] if action else [])
    assert told({}, sinfo=header + row.format(word)) == expected


def test_sinfo_with_a_format_and_no_header():
    context = {"command": "sinfo -h -N -o '%N|%t|%E'", "own_prefix": "fmslurm:"}
    text = "gpu-1|idle|none\ngpu-2|drain|a|b: odd reason\ngpu-3|down*|Not responding\n"
    assert told(context, sinfo=text) == ("fail", [("node:gpu-2", "none"), ("node:gpu-3", "drain")])
    assert told({"command": "sinfo -hN -O NodeList,StateLong"}, sinfo="gpu-1   idle\ngpu-2   drained\n") == (
        "fail",
        [("node:gpu-2", "none")],
    )


def test_sinfo_reasons_cut_by_their_column():
    text = (
        "REASON               USER      TIMESTAMP           NODELIST\n"
        "Not responding       slurm     2026-06-11T01:22:10 gpu-[1-2]\n"
        "Node unexpectedly re slurm     2026-06-11T01:22:10 gpu-3\n"
        "gres/gpu count repor slurm     2026-06-11T01:22:10 gpu-4\n"
        "ticket 4711: swap PS admin1    2026-06-11T01:22:10 gpu-5\n"
        "Low RealMemory (repo slurm     2026-06-11T01:22:10 gpu-6\n"
    )
    drains = [(f"node:gpu-{number}", "drain") for number in (1, 2, 3, 4, 6)]
    assert told({}, sinfo=text) == ("fail", sorted([*drains, ("node:gpu-5", "none")]))


def test_sinfo_that_lists_no_reason_has_answered():
    assert told({"exit_code": 0}, sinfo="REASON               USER      TIMESTAMP           NODELIST\n") == NOTHING
    assert told({"exit_code": 0}, sinfo="PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\n") == (
        "unknown",
        [("node", "none")],
    )


def test_a_long_sinfo_begins_with_a_date_and_cuts_its_words():
    text = (
        "Thu Jun 11 03:21:00 2026\n"
        "NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON\n"
        "gpu-1          1      gpu* powering_do  192   2:48:2 199229        0      1   static none\n"
        "gpu-2          1      gpu*    drained*  192   2:48:2 199229        0      1   static kernel update soon\n"
    )
    assert told({}, sinfo=text) == ("fail", [("node:gpu-2", "none")])


@pytest.mark.parametrize(
    "text", ["NODELIST|STATE\ngpu-1|idle\ngpu-2", "no table at all\n", "PARTITION NODELIST\ngpu gpu-1\n"]
)
def test_a_table_that_cannot_be_read_is_unknown(text):
    assert told({}, sinfo=text) == ("unknown", [("node", "none")])


def test_scontrol_knows_more_of_a_node_than_sinfo():
    text = NODE.format(name="gpu-1", state="IDLE+DRAIN", more="   Reason=Prolog error [root@2026-06-11T01:22:10]")
    assert told({}, scontrol_node=text, sinfo="NODELIST|STATE\ngpu-1|drain\ngpu-2|idle\n") == DRAIN


@pytest.mark.parametrize("separator", ["|", "|#", "~", "\t", ";", "@@", "^"])
@pytest.mark.parametrize("header", [True, False])
def test_squeue_with_any_separator(separator, header):
    context = {
        "now": "2026-06-11T03:21:00",
        "command": separator.join(("squeue -o '%i", "%j", "%T", "%N", "%e", "%r'")),
    }
    rows = [
        ("4712", f"odd{separator}name", "COMPLETING", "gpu-1", "2026-06-11T01:20:00", "None"),
        ("4713_7", "RUNNING", "RUNNING", "gpu-[2-6]", "2026-06-12T01:00:00", "None"),
        ("4714", "x", "PENDING", "", "N/A", "Resources"),
        ("4715_[1-9%2]", "y", "PENDING", "", "N/A", "Dependency"),
    ]
    names = [("JOBID", "NAME", "STATE", "NODELIST", "END_TIME", "REASON")] if header else []
    text = "".join(separator.join(row) + "\n" for row in [*names, *rows])
    expected = ("warn", [("job:4712", "warn"), ("node:gpu-1", "warn")])
    assert told(context, squeue=text) == expected
    if header:
        assert told({"now": context["now"]}, squeue=text) == expected


def test_a_name_that_holds_the_separator_and_a_state_is_not_believed():
    text = "JOBID|NAME|STATE|NODELIST|REASON\n4712|x|NODE_FAIL|RUNNING|gpu-1|None\n"
    assert told({}, squeue=text) == ("unknown", [("node", "none")])


def test_squeues_own_columns_with_blanks_in_names():
    text = (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "              4712       gpu train v2    user1 NF    1:00:00      1 gpu-1\n"
        "              4713       gpu    train    user1  R    1:00:00      1 gpu-2\n"
        "              4714       gpu    train    user1 PD       0:00      1 (launch failed requeued held)\n"
        "              4715       gpu    train    user1 PD       0:00      1 (Priority)\n"
    )
    assert told({}, squeue=text) == ("fail", [("job:4714", "warn"), ("node:gpu-1", "drain")])


def test_squeue_without_anything_that_describes_it():
    text = "4712|bash|NODE_FAIL|gpu-1|x\n4713|bash|RUNNING|gpu-2|x\n"
    assert told({}, squeue=text) == DRAIN
    assert told({}, squeue="4713|RUNNING|gpu-2\n4714|RUNN") == ("unknown", [("node", "none")])


def test_squeues_long_form_cuts_its_states_and_tells_for_how_long():
    text = (
        "Tue Nov 22 13:51:50 2022\n"
        "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)\n"
        "                 2   execute aid7742p  hpcuser CONFIGUR      28:14 1-00:00:00      1 execute-pg0-2\n"
        "                 5   hb120v2 aid7742p  hpcuser CONFIGUR      58:14 1-00:00:00      1 hb120v2-pg0-2\n"
        "                 6   hb120v2 aid7742p  hpcuser COMPLETI    2:58:14 1-00:00:00      1 hb120v2-pg0-3\n"
        "                12 largeviz3 aid7742p  hpcuser  PENDING       0:00 1-00:00:00      1 (Nodes required for job are "
        "DOWN, DRAINED or reserved for jobs in higher priority partitions)\n"
    )
    assert told({}, squeue=text) == ("warn", [("job:5", "warn"), ("node:hb120v2-pg0-2", "warn")])


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        ("sinfo -R --noheader", "Kill task failed root 2024-01-25T15:12:23 gpu-1\n", DRAIN),
        ("sinfo -h -N", "gpu-1 1 gpu* down*\ngpu-2 1 gpu* idle\n", DRAIN),
        ("sinfo -h", "gpu* up infinite 1 down* gpu-1\ngpu* up infinite 2 idle gpu-[2-3]\n", DRAIN),
        ("sinfo -hRl", "Low RealMemory (repo slurm(64030) 2024-01-25T15:12:23 drain* gpu-1\n", DRAIN),
        ("squeue -h", "4712 gpu train v2 user1 NF 1:00:00 1 gpu-1\n", DRAIN),
        (
            "",
            "  80520_36 n2  a.sh  PENDING  0:00  1 (launch failed requeued held)\n 80520_37 n2 b.sh NODE_FAIL 0:00 1 gpu-1\n",
            None,
        ),
    ],
)
def test_columns_that_no_header_names(command, text, expected):
    role = "sinfo" if "sinfo" in command else "squeue"
    expected = expected or ("fail", [("job:80520_36", "warn"), ("node:gpu-1", "drain")])
    assert told({"command": command, "exit_code": 0}, **{role: text}) == expected


def test_a_wide_sinfo_with_a_separator_that_has_blanks_around_it():
    text = (
        "AVAIL|CPUS|HOSTNAMES|STATE|USER|S:C:T|NODES(A/I) |REASON |NODELIST |PARTITION |STATE |USER |THREADS\n"
        "up|80|node0201|drain*|root|2:20:2|0/0 |replace |node0201 |partition |drained* |root(0) |2 |\n"
        "up|80|node1537|alloc|Unknown|2:20:2|1/0 |none |node1537 |partition |allocated |Unknown |2\n"
    )
    assert told({}, sinfo=text) == ("fail", [("node:node0201", "none")])


def test_a_partition_without_nodes_is_no_trouble():
    text = (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "gpu          up 7-00:00:00      2   idle e[001-002]\n"
        "big          up 7-00:00:00      0    n/a \n"
    )
    assert told({}, sinfo=text) == NOTHING

"""Captures of group `system`: programs on GPUs, process lists, probes that failed.

The rows are neighbours of captures: what is nearly the same and must be answered otherwise stands beside it.
"""

from __future__ import annotations

import pytest
from system_answers import BUSY, GONE, IDLE, NODE_DRAIN, NODE_NONE, NODE_WARN, PASS, ask

from slurm_ext.aws import catalogue
from slurm_ext.gate import (
    process_rules,
    tables,
)
from slurm_ext.gate.process_rules import Jobs

APPS = "timestamp, gpu_name, gpu_bus_id, gpu_serial, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"


def app(pid, name, bus="53", memory="512 MiB"):
    return f"2026/07/14 08:12:53.500, NVIDIA H100 80GB HBM3, 00000000:{bus}:00.0, 1, GPU-1, {pid}, {name}, {memory}\n"


LEFT = ("fail", ("gpu@0000:53:00", "drain"))


@pytest.mark.parametrize(
    ("rows", "context", "expected"),
    [
        (app(1, "/usr/bin/python3"), IDLE, LEFT),
        (app(1, "/usr/bin/python3"), BUSY, PASS),
        (app(1, "/usr/bin/python3"), None, ("unknown", ("gpu@0000:53:00", "none"))),
        (app(1, "python3") + app(1, "python3", "64"), IDLE, (*LEFT, ("gpu@0000:64:00", "drain"))),
        (app(1, "python3") + app(2, "python3"), IDLE, LEFT),
        (app(1, "/usr/bin/nv-hostengine"), IDLE, PASS),
        (app(1, "/usr/bin/dcgm-exporter") + app(2, "nvidia-cuda-mps-server", memory="28 MiB"), IDLE, PASS),
        (app(1, "/usr/lib/xorg/Xorg") + app(2, "python3"), IDLE, LEFT),
        (app(1, "/home/user1/nv-hostengine.py"), IDLE, LEFT),
        (app(1, "[Not Found]", memory="61234 MiB"), IDLE, LEFT),
        (app(1, "[Insufficient Permissions]"), IDLE, ("unknown", ("gpu@0000:53:00", "none"))),
        (app(1, "python3", memory="[N/A]"), IDLE, LEFT),
        (app(1, "python3") + "2026/07/14 08:12:53.500, NVIDIA H100 80GB", IDLE, (*LEFT, ("node", "none"))),
        (app(1, "a, name with, commas"), IDLE, LEFT),
        ("", IDLE, PASS),
        ("2026/07/14 08:12:53.500, NVIDIA H100 80GB HBM3, 00000000:53:00.0, 1, GPU-1, 11\n", IDLE, NODE_NONE),
    ],
)
def test_programs_on_gpus(tmp_path, rows, context, expected):
    assert ask(tmp_path, compute_apps=APPS + rows, context=context) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pid, process_name, used_gpu_memory [MiB]\n10, python3, 5 MiB\n", NODE_DRAIN),
        ("10, python3, 00000000:53:00.0, 500 MiB\n", LEFT),
        ("No running processes found\n", PASS),
        ("Failed to initialize NVML: Driver/library version mismatch\n", NODE_NONE),
        ("", NODE_NONE),
    ],
)
def test_programs_on_gpus_without_the_usual_header(tmp_path, text, expected):
    assert ask(tmp_path, compute_apps=text, context=IDLE) == expected


SMI = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |
|   0  NVIDIA H200                    On  |   00000000:83:00.0 Off |                    0 |
| N/A   52C    P0            628W /  700W |   {used}MiB / 143771MiB |    100%      Default |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|=========================================================================================|
{rows}
+-----------------------------------------------------------------------------------------+
"""
NO_ROWS = "|  No running processes found                                                             |"
ROW = "|    0   N/A  N/A           10309      C   {name:<35} 28234MiB |"


@pytest.mark.parametrize(
    ("used", "rows", "context", "expected"),
    [
        (4, NO_ROWS, IDLE, PASS),
        (61000, NO_ROWS, IDLE, ("fail", ("gpu:0", "reset-gpu"))),
        (61000, NO_ROWS, BUSY, PASS),
        (28240, ROW.format(name="./gpu_burn"), IDLE, ("fail", ("gpu:0", "drain"))),
        (
            28240,
            "|    0     10309      C   ./gpu_burn                                  28234MiB |",
            IDLE,
            ("fail", ("gpu:0", "drain")),
        ),
        (28240, ROW.format(name="...n/nv-hostengine"), IDLE, PASS),
        (28240, ROW.format(name="./gpu_burn"), BUSY, PASS),
    ],
)
def test_the_default_table(tmp_path, used, rows, context, expected):
    assert ask(tmp_path, smi_table=SMI.format(used=used, rows=rows), context=context) == expected


def test_the_query_names_the_gpu_and_the_table_only_where_it_does_not(tmp_path):
    table = SMI.format(used=28240, rows=ROW.format(name="./gpu_burn"))
    assert ask(tmp_path, compute_apps="pid, process_name\n10309, ./gpu_burn\n", smi_table=table, context=IDLE) == (
        "fail",
        ("gpu:0", "drain"),
    )


def test_a_program_that_is_older_than_the_only_job_is_a_leftover(tmp_path):
    context = {**BUSY, "job_start": "2026-07-14T08:00:00Z", "now": "2026-07-14T08:12:00Z"}
    ps = "PID USER STAT ELAPSED COMMAND\n77 user1 Sl {} python3 train.py\n"
    apps = APPS + app(77, "python3")
    assert ask(tmp_path, compute_apps=apps, ps=ps.format("10:00"), context=context) == PASS
    assert ask(tmp_path, compute_apps=apps, ps=ps.format("03:10:00"), context=context)[:2] == LEFT


PS = "    PID USER     STAT WCHAN                            ELAPSED COMMAND\n"
STUCK = "120331 user1    D    uvm_va_range_destroy             00:52:10 python3 train.py\n"
UNKILLABLE = ("fail", ("node", "reboot"))


@pytest.mark.parametrize(
    ("rows", "context", "expected"),
    [
        (STUCK, GONE, UNKILLABLE),
        (STUCK, BUSY, PASS),
        ("2211 root     Ssl  -  1-02:11:09 /usr/bin/nv-hostengine\n120331 user1    D    uvm", GONE, NODE_NONE),
        ("    99 user1    D    folio_wait_bit_common            00:00:03 ls /data\n", GONE, PASS),
        ("    99 user1    D    folio_wait_bit_common            00:20:03 /usr/bin/rsync a b\n", GONE, NODE_NONE),
        ("    99 user1    D    uvm_va_range_destroy             00:20:03 /usr/bin/x a b\n", GONE, UNKILLABLE),
        ("    99 message+ S    -                                00:20:03 ./x\n", GONE, PASS),
        (STUCK, {**GONE, "last_job_end": "2026-07-14T08:11:30Z"}, NODE_NONE),
        (STUCK, IDLE, UNKILLABLE),
        (STUCK, None, NODE_NONE),
        (STUCK.replace(" D ", " D+"), GONE, UNKILLABLE),
        (STUCK.replace(" D ", " Zl"), GONE, UNKILLABLE),
        (STUCK.replace("uvm_va_range_destroy", "folio_wait_bit_common"), GONE, UNKILLABLE),
        (STUCK.replace("uvm_va_range_destroy", "folio_wait_bit_common"), BUSY, PASS),
        ("  812 root     D    jbd2_journal_commit_transaction 1-02:11:09 [jbd2/nvme0n1p1-8]\n", GONE, PASS),
        ("  812 root     D    io_schedule                       00:00:01 /usr/bin/updatedb\n", GONE, PASS),
        ("  812 root     D    ptlrpc_set_wait                   00:20:01 df -kP\n", BUSY, NODE_NONE),
        ("  812 root     D    rpcRecvPoll_GH100                 00:20:01 nvidia-smi -q\n", BUSY, UNKILLABLE),
        ("120331 user1    Z    -                                00:52:10 [python3] <defunct>\n", GONE, NODE_WARN),
        ("120331 user1    Z    -                                00:00:10 [python3] <defunct>\n", GONE, PASS),
        ("   331 root     Z    -                                00:52:10 [sh] <defunct>\n", GONE, PASS),
        ("   331 user1    Z    -                                00:52:10 [sh] <defunct>\n" * 25, BUSY, NODE_WARN),
        ("120331 user1    Rl   -                                00:52:10 python3 train.py\n", GONE, NODE_WARN),
        ("120331 user1    Rl   -                                00:52:10 /fsx/user1/a.out\n", GONE, NODE_WARN),
        ("120331 user1    Rl   -                                00:52:10 python3 train.py\n", BUSY, PASS),
        ("120331 user1    Ss   -                                00:52:10 -bash\n", GONE, PASS),
        ("120331 user1    S    -                                00:52:10 sshd: user1@pts/0\n", GONE, PASS),
        ("120331 telegraf S    -                                00:52:10 /usr/bin/telegraf\n", GONE, PASS),
        ("  2211 root     Ssl  -                              1-02:11:09 /usr/bin/nv-hostengine -n\n", GONE, PASS),
        (
            "  2 root     I<   -                              1-02:11:09 [kworker/0:0H-events_highpri]\n",
            GONE,
            PASS,
        ),
    ],
)
def test_process_lists(tmp_path, rows, context, expected):
    assert ask(tmp_path, ps=PS + rows, context=context) == expected


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (
            "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND\nuser1 77 0.0 0.1 1 2 ? Dl Jul13 0:01 python3 train.py\n",
            "",
        ),
        (
            "PID PPID USER STAT ELAPSED WCHAN COMMAND COMMAND\n77 1 user1 D 3130 uvm_x python3 python3 train.py --a b\n",
            "",
        ),
        ("  77 user1 D 52:10 python3 train.py\n", "ps -eo pid=,user=,stat=,etime=,args="),
        ("STAT PID USER STARTED COMMAND\nD 77 user1 Tue Jul 14 07:20:28 2026 python3 train.py\n", ""),
        ("S UID PID PPID C PRI NI ADDR SZ WCHAN TTY TIME CMD\nD 1001 77 1 0 80 0 - 1 uvm_x ? 00:00:01 python3\n", ""),
        ("PID S COMMAND USER\n77 D tmux: server x user1\n", ""),
    ],
)
def test_columns_of_ps(text, command):
    ((process,), whole) = process_rules.parse_ps(text, command)
    assert whole
    assert process.pid == 77
    assert process.state.startswith("D")
    assert process_rules.is_person(process.user)
    assert process_rules.judge([process], Jobs((), since_end_s=2000.0))[0].finding.action == "reboot"


def test_a_service_is_known_by_its_name_and_its_owner(tmp_path):
    ps = "PID USER STAT COMMAND\n77 {} Sl /usr/bin/nv-hostengine -n\n"
    for owner, expected in (("root", PASS), ("user1", LEFT)):
        apps = APPS + app(77, "/usr/bin/nv-hostengine")
        assert ask(tmp_path, compute_apps=apps, ps=ps.format(owner), context=IDLE)[:2] == expected


def test_tasks_that_the_kernel_calls_blocked(tmp_path):
    line = "[ 5000.1] INFO: task python3:120331 blocked for more than 120 seconds.\n"
    assert ask(tmp_path, dmesg=line, context=GONE) == NODE_WARN


@pytest.mark.parametrize(
    ("roles", "context"),
    [
        ({"stdout": ""}, {"command": "ps -eo pid,args", "timed_out": True, "exit_code": None, "elapsed_s": 10.0}),
        ({"stdout": ""}, {"command": "lsblk -J", "exit_code": 127}),
        ({"stdout": "", "stderr": "df: not found"}, {"command": "df -kP"}),
        ({"stdout": "hello"}, {"command": "frobnicate", "exit_code": 0}),
        ({"stdout": "506 Cannot talk to daemon"}, {"command": "chronyc tracking", "exit_code": 1}),
        ({"ps": "error"}, None),
        ({"tree": "{"}, None),
        ({}, None),
    ],
)
def test_a_probe_that_failed_is_unknown(tmp_path, roles, context):
    assert ask(tmp_path, context=context, **roles) == NODE_NONE


def test_words_and_numbers():
    assert tables.size_bytes("1.7T") == 1.7 * 1024**4
    assert tables.size_bytes("512 MiB") == 512 * 1024**2
    assert tables.size_bytes("100", 1024) == 102400
    assert tables.size_bytes("0B") == 0
    assert tables.size_bytes("-") is None
    assert tables.elapsed_s("1-02:11:09") == 94269
    assert tables.elapsed_s("52:10") == tables.elapsed_s("3130") == 3130
    assert tables.elapsed_s("Jul13") is None
    assert tables.moment_s("16 Jul 2026 06:00:00 GMT") == tables.moment_s("2026-07-16T06:00:00.000Z") == 1784181600
    assert tables.moment_s("soon") is None


def test_shapes_of_types():
    assert catalogue.host("p5.48xlarge").nvme_count == 8
    assert catalogue.host("p6e-gb200.36xlarge").nvme_count is None
    assert catalogue.host("hpc7a.96xlarge").nvme_count == 0
    assert catalogue.host("p9.48xlarge") is None
    assert [catalogue.has_nvswitch(name) for name in ("p4d.24xlarge", "p5.4xlarge", "g6e.48xlarge", "p9.48xlarge")] == [
        True,
        False,
        False,
        None,
    ]
    assert [catalogue.has_shared_nvlink(name) for name in ("p6e-gb200.36xlarge", "p5.48xlarge", "p9.48xlarge")] == [
        True,
        False,
        None,
    ]

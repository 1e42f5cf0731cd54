"""Captures of group `system`: processors and memory against the type.

The rows are neighbours of captures: what is nearly the same and must be answered otherwise stands beside it.
"""

from __future__ import annotations

import json

import pytest
from system_answers import BUSY, IDLE, NODE_NONE, NODE_REPLACE, NODE_WARN, PASS, ask

LSCPU = """Architecture:             x86_64
CPU(s):                   192
On-line CPU(s) list:      0-191
Thread(s) per core:       2
Core(s) per socket:       48
Socket(s):                2
NUMA node(s):             2
"""
SMT_OFF = LSCPU.replace("0-191", "0-95\nOff-line CPU(s) list:     96-191").replace("core:       2", "core:       1")


@pytest.mark.parametrize(
    ("text", "kind", "context", "expected"),
    [
        (LSCPU, "p5.48xlarge", None, PASS),
        (SMT_OFF, "p5.48xlarge", None, NODE_WARN),
        (SMT_OFF, None, {"expected_cpus": 96}, PASS),
        (
            LSCPU.replace("192\n", "96\n", 1).replace("0-191", "0-95").replace("core:       2", "core:       1"),
            "p5.48xlarge",
            None,
            NODE_WARN,
        ),
        (LSCPU.replace("0-191", "0-94,96-190\nOff-line CPU(s) list: 95,191"), "p5.48xlarge", None, NODE_WARN),
        (
            LSCPU.replace("192\n", "96\n", 1)
            .replace("0-191", "0-95")
            .replace("Socket(s):                2", "Socket(s):                1"),
            "p5.48xlarge",
            None,
            NODE_REPLACE,
        ),
        (LSCPU.replace("NUMA node(s):             2", "NUMA node(s):             1"), "p5.48xlarge", None, NODE_WARN),
        (LSCPU, "p4d.24xlarge", None, PASS),
        (LSCPU, None, None, NODE_NONE),
        (LSCPU, "p9.48xlarge", None, NODE_NONE),
        ("Architecture: x86_64\n", "p5.48xlarge", None, NODE_NONE),
        (
            json.dumps(
                {
                    "lscpu": [
                        {
                            "field": "CPU(s):",
                            "data": "192",
                            "children": [{"field": "On-line CPU(s) list:", "data": "0-95"}],
                        },
                        {"field": "Thread(s) per core:", "data": "1"},
                    ]
                }
            ),
            "p5.48xlarge",
            None,
            NODE_WARN,
        ),
        (
            json.dumps(
                {"lscpu": [{"field": "CPU(s):", "data": "192"}, {"field": "On-line CPU(s) list:", "data": "0-191"}]}
            ),
            "p5.48xlarge",
            None,
            PASS,
        ),
        (
            "CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n0 0 0 0 0:0:0:0 yes\n1 - - - - no\n",
            None,
            {"expected_cpus": 2},
            NODE_WARN,
        ),
        (
            "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n1,1,0,0,,1,1,1,0\n",
            None,
            {"expected_cpus": 2},
            PASS,
        ),
    ],
)
def test_lscpu(tmp_path, text, kind, context, expected):
    assert ask(tmp_path, lscpu=text, instance_type=kind, context=context) == expected


def meminfo(total_gib, available_gib, more=""):
    return f"MemTotal:       {int(total_gib * 1024**2)} kB\nMemFree:        1 kB\nMemAvailable:   {int(available_gib * 1024**2)} kB\n{more}"


@pytest.mark.parametrize(
    ("text", "kind", "context", "expected"),
    [
        (meminfo(2015, 1990), "p5.48xlarge", IDLE, PASS),
        (meminfo(1920, 1900), "p5.48xlarge", IDLE, NODE_WARN),
        (meminfo(1007, 990), "p5.48xlarge", IDLE, NODE_REPLACE),
        (meminfo(2015, 100), "p5.48xlarge", IDLE, NODE_WARN),
        (meminfo(2015, 100), "p5.48xlarge", BUSY, PASS),
        (meminfo(2015, 500, "HugePages_Total: 1000\nHugepagesize: 1048576 kB\n"), "p5.48xlarge", IDLE, PASS),
        (meminfo(2015, 1990, "HardwareCorrupted:    64 kB\n"), "p5.48xlarge", IDLE, NODE_WARN),
        (meminfo(2015, 1990, "HardwareCorrupted:     0 kB\n"), "p5.48xlarge", None, PASS),
        (meminfo(2015, 1990), None, None, NODE_NONE),
        (meminfo(1000, 990), None, {"expected_memory_gib": 1024}, PASS),
        ("MemFree: 1 kB\n", "p5.48xlarge", None, NODE_NONE),
    ],
)
def test_meminfo(tmp_path, text, kind, context, expected):
    assert ask(tmp_path, meminfo=text, instance_type=kind, context=context) == expected


def test_load_counts_only_without_a_job(tmp_path):
    text = " 08:12:38 up 10 days,  2:11,  0 users,  load average: {}, 96.10, 96.05\n"
    for load, context, expected in (("96.12", IDLE, NODE_WARN), ("0.31", IDLE, PASS), ("96.12", BUSY, PASS)):
        asked = {**context, "command": "uptime", "exit_code": 0}
        assert ask(tmp_path, stdout=text.format(load), context=asked, instance_type="p5.48xlarge") == expected

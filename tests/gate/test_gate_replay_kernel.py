"""Captures of kernel logs: logs of several boots, logs that were refused, cut or lost messages."""

from __future__ import annotations

import json

import pytest

from slurm_ext.captured import Case
from slurm_ext.gate import kernel_log, replay_kernel
from slurm_ext.gate.model import conclude

OFF = "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus."
BROKEN = ("fail", [("gpu@0000:53:00", "reboot")])
HISTORY = ("pass", [("gpu@0000:53:00", "none")])
UNKNOWN = ("unknown", [("node", "none")])
BOOT = "Linux version 6.8.0-1031-aws (buildd@bld) #33-Ubuntu SMP"


def told(context=None, **texts):
    verdict = conclude(replay_kernel.judge(Case("/c", "kernel", "", texts, context or {})))
    return verdict.verdict, sorted((finding.target, finding.action) for finding in verdict.findings)


def rows(*texts, tag="Jul 14 08:12:38 node-a kernel: "):
    return "".join(f"{text}\n" if text.startswith("-- ") else f"{tag}{text}\n" for text in texts)


@pytest.mark.parametrize("separator", ["-- Reboot --", "-- Boot 0123456789abcdef0123456789abcdef --", BOOT])
def test_what_stands_before_the_last_boot_is_history(separator):
    assert told(journal=rows(BOOT, OFF, separator, "NVRM: loading")) == HISTORY
    assert told(journal=rows(BOOT, "NVRM: loading", separator, OFF)) == BROKEN
    assert told(journal=rows(separator, BOOT, OFF)) == BROKEN
    assert told(syslog=rows(OFF, "[    0.000000] " + BOOT)) == HISTORY


def test_a_journal_tells_its_boots_by_their_ids():
    one, two = "1" * 32, "2" * 32
    records = [
        {"_TRANSPORT": "kernel", "_BOOT_ID": one, "MESSAGE": OFF},
        {"_TRANSPORT": "kernel", "_BOOT_ID": two, "MESSAGE": "NVRM: loading"},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    assert told(journal=text) == told({"boot_id": two}, journal=text) == HISTORY
    assert told({"boot_id": one}, journal=text) == BROKEN
    assert told(journal=text.splitlines()[0]) == BROKEN


def test_only_the_kernel_begins_a_boot():
    assert told(syslog=rows(OFF) + f"Jul 14 08:12:38 node-a mallory[7]: {BOOT}\n") == BROKEN
    assert told(kmsg=f"4,1,1,-;{OFF}\n12,2,2,-;{BOOT}\n") == BROKEN


@pytest.mark.parametrize(
    ("context", "texts"),
    [
        ({}, {"dmesg": ""}),
        ({}, {"dmesg": "dmesg: read kernel buffer failed: Operation not permitted\n"}),
        (
            {"command": "dmesg", "exit_code": 1},
            {"dmesg": "", "stderr": "dmesg: read kernel buffer failed: Operation not permitted"},
        ),
        ({"command": "dmesg", "exit_code": 127}, {"stdout": "", "stderr": "bash: dmesg: command not found"}),
        ({"command": "dmesg", "timed_out": True, "exit_code": None}, {"stdout": ""}),
        ({"command": "journalctl -k"}, {"journal": "-- No entries --\n"}),
        ({"command": "journalctl -k"}, {"journal": "No journal files were found.\n-- No entries --\n"}),
        ({}, {}),
        ({}, {"journal": rows("x") + "Jul 14 08:12:38 node-a systemd-journald[412]: Missed 1220 kernel messages\n"}),
        ({"timed_out": True}, {"dmesg": "[ 1.0] NVRM: loading\n"}),
    ],
)
def test_a_log_that_did_not_come_is_not_a_quiet_one(context, texts):
    assert told(context, **texts) == UNKNOWN


def test_what_a_cut_log_says_still_counts():
    assert told({"timed_out": True}, dmesg=f"[ 1.0] {OFF}\n") == (
        "fail",
        [("gpu@0000:53:00", "reboot"), ("node", "none")],
    )


def test_no_message_since_a_time_is_an_answer():
    assert told({"command": "journalctl -k --since -10min"}, journal="-- No entries --\n") == ("pass", [])


def test_times_do_not_matter_to_the_mark_of_an_earlier_boot():
    first, second = kernel_log.parse(rows(OFF, "-- Reboot --", "x"))
    assert not kernel_log.same_boot(first, "", None)
    assert kernel_log.same_boot(second, "", None)


@pytest.mark.parametrize(
    "form",
    [
        "Jul 14 08:12:38.123456 node-a kernel: {}",
        "Tue 2026-07-14 08:12:38 UTC node-a kernel: {}",
        "Tue 2026-07-14 08:12:38.123456 UTC node-a kernel[n/a]: {}",
        "[ 5102.118820] node-a kernel: {}",
        "[ 5102.118820] kernel: {}",
        "1782870000.123456 node-a kernel: {}",
        "[Jul14 08:12] {}",
        "[Jul 4 08:12] {}",
        "[  +0.000005] {}",
        "[ 5102.118820 <    0.000011>] {}",
        "[<    0.000011>] {}",
        "[Tue Jul 14 08:12:38 2026 <    0.000011>] {}",
        "[ 5102.118820] [   T1234] {}",
        "[ 5102.118820][    C0] {}",
        "\ufeff[ 1.0] {}",
        "[ 1.0] {}\r",
    ],
)
def test_every_time_style_of_dmesg_and_journalctl(form):
    assert told(journal=form.format(OFF) + "\n") == BROKEN
    assert told(dmesg="[    0.000000] " + BOOT + "\n" + form.format(OFF) + "\n") == BROKEN


@pytest.mark.parametrize(
    "line",
    [
        "Jul 14 08:12:38.123456 node-a mallory[7]: " + OFF,
        "Jul 14 08:12:38 node-a kernel[7]: " + OFF,
        "Tue 2026-07-14 08:12:38 UTC node-a mallory[user@1000.service]: " + OFF,
        "1782870000.123456 node-a mallory[7]: " + OFF,
        "[ 5102.118820] node-a mallory[7]: " + OFF,
        "[ 5102.118820] node-a mallory[7]: x kernel: " + OFF,
        "2026-07-14T08:12:38.123456789Z stdout F [ 5102.118820] " + OFF,
    ],
)
def test_another_programs_line_is_no_kernels_in_any_style(line):
    assert told(journal=line + "\n") == ("pass", [])


def test_a_log_that_is_one_document():
    rows = [{"pri": 5, "time": 0.0, "msg": BOOT}, {"pri": 3, "time": 5102.1, "msg": OFF}]
    assert told(dmesg=json.dumps({"dmesg": rows}, indent=3)) == BROKEN
    assert told(dmesg=json.dumps({"dmesg": [*rows[:1], {**rows[1], "pri": 12}]})) == ("pass", [])
    assert told(dmesg=json.dumps({"dmesg": [*rows[:1], {**rows[1], "fac": "user"}]})) == ("pass", [])
    record = {"_TRANSPORT": "kernel", "MESSAGE": OFF}
    assert told(journal=json.dumps(record, indent=8) + "\n" + json.dumps(record, indent=8)) == BROKEN
    assert told(journal=json.dumps([record])) == BROKEN
    assert told(journal=json.dumps({**record, "_TRANSPORT": "syslog"}, indent=8)) == ("pass", [])

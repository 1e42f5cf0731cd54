"""The short form of the soak: 20,000 random lines of every form, no false Xid, none lost; and what no line can do."""

from __future__ import annotations

import json

import kernel_soak
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import kernel_log, kernel_rules
from slurm_ext.verdict import FAIL

XID = "NVRM: Xid (PCI:0000:53:00): 79, pid=1, name=python3, GPU has fallen off the bus."


@pytest.mark.parametrize("seed", range(4))
def test_random_lines(seed: int) -> None:
    drawn = kernel_soak.lines(seed, 5_000)
    items, _ = kernel_soak.judge(drawn)
    kernel_soak.check(drawn, items, seed)
    assert sum(line.code is not None for line in drawn) > 50


def judge(text: str):
    return kernel_rules.judge(kernel_log.parse(text))


@pytest.mark.parametrize(
    "line",
    [
        f"<4>1 2026-03-10T04:12:51.551Z node-a kernel - - - {XID}",
        f'<4>1 2026-03-10T04:12:51.551Z node-a kernel - - [x@1 a="b\\]c"] {XID}',
        f"\x1b[32m[    1.000000] \x1b[0m\x1b[33mNVRM: \x1b[0m{XID[6:]}",
        f"{XID}\r",
        f"\x00\x00\x00[    1.000000] {XID}",
        f"4,5,1000000,-,caller=T77;{XID}",
        json.dumps({"_TRANSPORT": "kernel", "MESSAGE": [*XID.encode(), 255]}),
        json.dumps({"_TRANSPORT": "kernel", "MESSAGE": f"{XID}\nmore"}),
        json.dumps({"__CURSOR": "x", "_BOOT_ID": "1" * 32, "MESSAGE": XID}),
        f"[    1.000000] {XID}" + "x" * 100_000,
    ],
)
def test_the_kernels_own_word_in_more_forms(line: str) -> None:
    (found,) = judge(line)
    assert (found.finding.id, found.finding.target, found.verdict) == ("gpu.xid-79", "gpu@0000:53:00", FAIL)


@pytest.mark.parametrize(
    "text",
    [
        f"<13>1 2026-03-10T04:12:51.551Z node-a logger - - - {XID}",
        f"<4>1 2026-03-10T04:12:51.551Z node-a python 77 - - {XID}",
        # What a program wrote behind another mark of a line's end, or indented below its first line.
        *(f"Jul 01 03:00:01 node-a a[1]: x{mark}{XID}" for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"),
        f"Jul 01 03:00:01 node-a a[1]: first line\n                          {XID}",
        f"Jul 01 03:00:01 node-a a[1]: first line\n\t{XID}",
        json.dumps({"_TRANSPORT": "stdout", "MESSAGE": XID}),
        json.dumps({"_TRANSPORT": "kernel", "MESSAGE": [XID]}),
        json.dumps({"_TRANSPOR?T": "journal", "MESSAGE": XID}),
        json.dumps({"_PID": "77", "MESSAGE": XID}),
        json.dumps({"SYSLOG_IDENTIFIER": "python", "MESSAGE": XID}),
        f'{{"_TRANSPORT": "kernel", "MESSAGE": "{XID}"}}'[:-2],
        f"[    1.000000] python[77]: {XID}",
        f"[    1.000000] a{XID}",
        "[    1.000000] NVRM: Xid (PCI:0000:53:00): 7",  # cut within the code: it need not be 7
    ],
)
def test_what_the_kernel_did_not_say(text: str) -> None:
    assert not [item for item in judge(text) if item.finding.id.startswith("gpu.xid")]


@pytest.mark.parametrize(
    "line",
    [
        "9" * 6_000 + ",1,1,-;x",
        "4," + "9" * 400 + ",1,-;x",
        "4,5," + "9" * 400 + ",-;x",
        "[" + "9" * 400 + "." + "9" * 400 + "] x",
        "<" + "9" * 6_000 + ">x",
        '{"MESSAGE": "x", "__REALTIME_TIMESTAMP": "²"}',
        '{"MESSAGE": "x", "__REALTIME_TIMESTAMP": "' + "9" * 6_000 + '"}',
        '{"MESSAGE": "x", "__REALTIME_TIMESTAMP": ' + "9" * 6_000 + "}",
        '{"MESSAGE": [1e999]}',
        '{"MESSAGE": [-1, 256]}',
        "{" * 70_000,
        '{"MESSAGE":' + "[" * 60_000,
        "2026-13-45T99:99:99,9 x",
        "[Foo Bar 99 25:61:61 2026] x",
        "[Mon Feb 30 01:02:03 2026] x",
        f"NVRM: Xid (PCI:0000:53:00): {'9' * 5_000}, x",
        "NVRM: Xid (PCI:0000:53:00): 154, GPU recovery action changed from 0x0 (None) to 0x" + "f" * 900,
        # Long text that once made a rule slow: the whole is cut before it is judged.
        "LustreError: " + "-osc-" * 30_000 + " This client was evicted by x",
        "rcu" * 30_000 + " stall",
    ],
)
def test_lines_that_no_kernel_prints_cost_nothing(line: str) -> None:
    judge(line)
    judge(f"[    1.000000] {line}")


@given(st.binary(max_size=400))
def test_any_bytes(content: bytes) -> None:
    assert not [item for item in judge(content.decode("utf-8", "replace")) if item.finding.id == "gpu.xid-79"]


_PIECES = st.sampled_from(
    (
        *(XID, "kernel: ", "[ 1.0] ", "<4>", "<12>", "4,5,6,-;", "12,5,6,-;", "host ", "python[7]: ", " ", "\t"),
        *("Mar 10 04:12:51 ", "2026-03-10T04:12:51Z ", "\x00", "\x1b[0m", "{", '"', "\r", "x: ", "kern :err : "),
        "user :warn : ",
    )
)


@given(st.lists(_PIECES, max_size=8).map("".join))
def test_whatever_is_put_together_a_program_in_front_of_it_is_heard(text: str) -> None:
    """Behind a program's own tag no line becomes the kernel's."""
    for head in ("Mar 10 04:12:51 host python[7]: ", "2026-03-10T04:12:51.1Z host python[7]: ", "12,5,6,-;", "<12>"):
        assert not [item for item in judge(head + text) if item.finding.id == "gpu.xid-79"], head

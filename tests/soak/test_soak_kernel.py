"""A million random kernel-log lines, real formats mixed with noise: no crash, linear time, no false Xid and none lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gate"))

import kernel_soak

LINES = int(os.environ.get("FMSLURM_SOAK_LINES", "1000000"))
BATCH = 100_000


@pytest.mark.soak
def test_a_million_lines_without_a_false_xid() -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"kernel lines: seed {seed}")
    for batch in range(max(LINES // BATCH, 1)):
        drawn = kernel_soak.lines(f"{seed}/{batch}", BATCH)
        items, _ = kernel_soak.judge(drawn)
        kernel_soak.check(drawn, items, f"{seed}/{batch}")


@pytest.mark.soak
def test_time_is_linear() -> None:
    """Ten times the lines take ten times as long, give or take: the best of three each, by processor time."""
    seed = int.from_bytes(os.urandom(4), "big")
    count = min(LINES, 500_000)
    print(f"kernel lines: seed {seed}, {count // 10} and {count} lines")
    many = kernel_soak.lines(seed, count)
    few = many[: count // 10]
    few_s = min(kernel_soak.judge(few)[1] for _ in range(3))
    many_s = min(kernel_soak.judge(many)[1] for _ in range(3))
    print(f"{len(few) / few_s:.0f} and {count / many_s:.0f} lines/s")
    assert many_s / few_s < 20


@pytest.mark.soak
@pytest.mark.parametrize("code", [13, 79, 95])
def test_a_storm_of_one_message_is_linear_too(code: int) -> None:
    """A GPU that fails may log thousands of lines a second, all of them events to be weighed against one another."""
    line = kernel_soak.Line(f"[    1.000000] NVRM: Xid (PCI:0000:53:00): {code}, pid=1, name=a", code, "0000:53:00")
    few_s = min(kernel_soak.judge([line] * 20_000)[1] for _ in range(3))
    many_s = min(kernel_soak.judge([line] * 200_000)[1] for _ in range(3))
    assert many_s / few_s < 20

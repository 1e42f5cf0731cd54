"""Random kernel logs, judged, and what must hold of the answer: shared by the short test and the soak."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from slurm_ext.gate import kernel_log, kernel_rules
from slurm_ext.gate.model import Judged
from slurm_ext.lab import kernel_lines
from slurm_ext.lab.kernel_lines import Line
from slurm_ext.verdict import VERDICTS


def lines(seed: object, count: int) -> list[Line]:
    """Return `count` lines, the same for the same seed."""
    return list(kernel_lines.draw(random.Random(f"kernel/{seed}"), count))


def judge(drawn: Sequence[Line]) -> tuple[list[Judged], float]:
    """Return what the lines mean, and how much time of the processor that took (seconds)."""
    # As a reader has it: bytes from a file that need not be UTF-8.
    text = "\n".join(line.text for line in drawn).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    started = time.process_time()
    items = kernel_rules.judge(kernel_log.parse(text))
    return items, time.process_time() - started


def check(drawn: Sequence[Line], items: Sequence[Judged], seed: object) -> None:
    """No false Xid, none lost of those that arrived whole, and each answer has its form."""
    found = {(item.finding.id, item.finding.target) for item in items if item.finding.id.startswith("gpu.xid-")}
    said = [line for line in drawn if line.code is not None]
    false = found - {(f"gpu.xid-{line.code}", f"gpu@{line.gpu}") for line in said}
    lost = {(f"gpu.xid-{line.code}", f"gpu@{line.gpu}") for line in said if line.whole} - found
    assert not false, f"seed {seed}: {sorted(false)[:5]}"
    assert not lost, f"seed {seed}: {sorted(lost)[:5]}"
    assert all(item.verdict in VERDICTS and item.finding.target for item in items)

"""How fast kernel logs are read and judged: random lines of every form, most of them noise, one in forty a driver's own.

`kernel_lines_per_s` is both together, by processor time, the best of several. Beside it in the same run: how fast one plain
search for `NVRM: Xid` goes over the same lines, one by one, and what share of that is reached.
`figures(full)` is what `bench/gate` collects; by itself: `python bench/gate_kernel.py [--full]`.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slurm_ext.gate import kernel_log, kernel_rules
from slurm_ext.lab import kernel_lines

LINES, LINES_FULL = 50_000, 500_000
SEED = 20261130


def figures(full: bool) -> dict[str, float]:
    """Judge the lines, print how long it took, and return the figures."""
    count, times = (LINES_FULL, 5) if full else (LINES, 3)
    text = "\n".join(line.text for line in kernel_lines.draw(random.Random(SEED), count))
    lines = text.split("\n")
    search = re.compile("NVRM: Xid").search
    parsed = kernel_log.parse(text)
    parse_s = _best(lambda: kernel_log.parse(text), times)
    judge_s = _best(lambda: kernel_rules.judge(parsed), times)
    both_s = _best(lambda: kernel_rules.judge(kernel_log.parse(text)), times)
    plain_s = _best(lambda: [line for line in lines if search(line)], times)
    found = {
        "kernel_lines_per_s": float(round(count / both_s)),
        "kernel_parse_lines_per_s": float(round(count / parse_s)),
        "kernel_judge_lines_per_s": float(round(count / judge_s)),
        "kernel_plain_search_lines_per_s": float(round(count / plain_s)),
        "kernel_over_plain_search": round(both_s / plain_s, 1),
    }
    print(f"{count} lines, {len(text) / 1e6:.1f} MB, {len(kernel_rules.judge(parsed))} findings")
    for name, value in found.items():
        print(f"  {name:34}{value:>12.6g}")
    return found


def _best(work: Callable[[], object], times: int) -> float:
    """Return the least processor time (seconds) of several runs."""
    best = float("inf")
    for _ in range(times):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


if __name__ == "__main__":
    print(json.dumps({"bench": "gate_kernel", "figures": figures("--full" in sys.argv[1:])}))

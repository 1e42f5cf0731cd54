"""All figures of the local gate, each beside what was promised of it; the last line is one JSON object.

`--full` repeats more; `--only hook,kernel` leaves parts out. Exit 0 whatever was measured: a machine that is busy with other
things misses promises of time, and says so.
"""

from __future__ import annotations

import sys

from promises import Promise, main

PARTS = ("hook", "kernel")

PROMISES = (
    Promise("checks", None),
    Promise("checks_in_prolog", None),
    Promise("hook_over_bare_python", 6.0, unit="x"),
    Promise("hook_over_nhc", 0.5, unit="x"),
    Promise("hook_over_nhc_small", None, unit="x"),
    Promise("peak_mb", 20.0, unit="MB"),
    Promise("kernel_lines_per_s", None, unit="lines/s"),
)


if __name__ == "__main__":
    sys.exit(main("gate", __doc__, PARTS, PROMISES, more="repeat more"))

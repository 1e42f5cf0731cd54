"""All figures of the local gate, each beside what was promised of it; the last line is one JSON object.

`--full` repeats more; `--only hook,kernel` leaves parts out. Exit 0 whatever was measured: a machine that is busy with other
things misses promises of time, and says so.
"""

from __future__ import annotations

import argparse
import sys

from promises import Promise, run

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


def main() -> int:
    """Measure what is there and print it."""
    parser = argparse.ArgumentParser(prog="bench/gate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="repeat more")
    parser.add_argument("--only", default=",".join(PARTS), help="some of hook, kernel, with commas")
    wanted = parser.parse_args()
    parts = wanted.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    run("gate", parts, PROMISES, full=wanted.full)
    return 0


if __name__ == "__main__":
    sys.exit(main())

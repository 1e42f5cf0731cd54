"""All figures of the burn-in, each beside what was promised of it; the last line is one JSON object.

`bench/burnin` ends within ten minutes; `--full` simulates and repeats more; `--only plan,control,gate` leaves parts out.
Exit 0 whatever was measured: a machine that is busy with other things misses promises of time, and says so.
"""

from __future__ import annotations

import sys

from promises import Promise, main

PARTS = ("plan", "control", "gate")


PROMISES = (
    Promise("rendezvous_512_s", 1.0, unit="s"),
    Promise("leader_cpu_s_1024", 0.5, unit="s"),
    Promise("healthy_8x8_s", 5.0, unit="s"),
    Promise("hook_cpu_over_bare_python", 6.0, unit="x"),
    Promise("rounds_to_culprit_64", 3, unit="rounds"),
    Promise("histories", 10_000, at_least=True),
    Promise("healthy_drained", 0, unit="nodes"),
    Promise("wrong_culprit", 0, unit="histories"),
    Promise("named_percent_one_culprit", 99.0, at_least=True, unit="%"),
    Promise("cannot_tell", None),
    Promise("worst_overrun_s", 2.0, unit="s"),
)


if __name__ == "__main__":
    sys.exit(main("burnin", __doc__, PARTS, PROMISES, more="simulate and repeat more"))

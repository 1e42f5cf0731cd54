"""What so many switches cost slurmctld, and what fewer cost jobs, beside what was promised; the last line is one JSON object.

`switches` needs root and a Slurm: the one that is installed here, or with `.ci/matrix --run bench/reconfigure --full` three of
them. `merging` is pure. `--full` repeats more and goes up to 2,000 switches; `--only switches` leaves the rest out. Exit 0
whatever was measured: times are of the processor, so that what else a machine does counts little. Predicted is what fmslurm
tells people (topology/budget_cost.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

from promises import Promise, main

ROOT = Path(__file__).resolve().parent.parent
#: A suite of .ci/matrix has our packages, and not us.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cluster")]

PARTS = ("switches", "merging")

PROMISES = (
    Promise("reconfigure_s_1000", None, unit="s"),
    Promise("start_s_1000", None, unit="s"),
    Promise("peak_mb_1000", None, unit="MB"),
    Promise("ns_per_switch_cubed", None, unit="ns"),
    # Of the same machine at another hour, or another machine of its kind.
    Promise("predicted_over_measured_least", 0.5, at_least=True),
    Promise("predicted_over_measured_most", 2.0),
    # What jobs pay for our way of merging by what they pay for others: the best within the budget, and each with as many switches.
    Promise("ours_over_best_other_most", 1.0),
    Promise("ours_over_same_number_mean", 1.0),
    Promise("ours_over_same_number_most", 1.1),
)


if __name__ == "__main__":
    sys.exit(main("reconfigure", __doc__, PARTS, PROMISES, more="repeat more, and up to 2,000 switches"))

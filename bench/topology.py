"""All figures of the topology generator, each beside what was promised of it; the last line is one JSON object.

`--full` repeats more; `--only generate,calls,lint` leaves parts out. Exit 0 whatever was measured: times are of the processor, so that
what else a machine does counts little.
"""

from __future__ import annotations

import sys

from promises import Promise, main

PARTS = ("generate", "calls", "lint")

PROMISES = (
    Promise("cpu_s_10k", 1.0, unit="s"),
    Promise("peak_mb_10k", 150.0, unit="MB"),
    Promise("cpu_s_50k", None, unit="s"),
    Promise("growth_50k_over_10k", 7.0, unit="x"),
    Promise("same_bytes_10k", 1.0, at_least=True),
    Promise("api_calls_10k", 100.0),
    Promise("api_places_10k", 10_000.0, at_least=True),
    Promise("switches_10k", None),
    Promise("lint_s_10k", 0.5, unit="s"),
    Promise("lint_yaml_s_10k", 0.5, unit="s"),
)


if __name__ == "__main__":
    sys.exit(main("topology", __doc__, PARTS, PROMISES, more="repeat more"))

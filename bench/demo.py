"""Times of the demo's moments over one run, or five with --full; needs root. The floor is a lab that comes up and goes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: name of the figure -> (words of the moment where it begins, words of the moment where it ends)
SPANS = {
    "gate_s": ("is queued", "the gate passed"),
    "fault_to_cause_s": ("falls off the bus", "cause:"),
    "fault_to_queue_s": ("falls off the bus", "again"),
    "start_to_culprit_named_s": ("again", "burn-in:"),
    "culprit_named_to_running_s": ("burn-in:", "the job runs on"),
    "fault_to_completed_s": ("falls off the bus", "is COMPLETED"),
}


def main() -> int:
    """Play the demo and print when things happened."""
    here, full = sys.argv[1], "--full" in sys.argv
    rounds: list[dict[str, float]] = []
    for _ in range(5 if full else 1):
        with tempfile.TemporaryDirectory(prefix="fmdemo-", dir="/var/tmp") as folder:
            Path(folder).chmod(0o755)  # jobs of any user pass through
            program = f"{here}/bin/fmslurm"
            began = time.monotonic()
            subprocess.run(
                [program, "lab", "up", "--dir", f"{folder}/floor", "--s3", "off", "--no-floors"],
                check=True,
                timeout=120,
                capture_output=True,
            )
            subprocess.run(
                [program, "lab", "down", "--dir", f"{folder}/floor"], check=True, timeout=60, capture_output=True
            )
            floor_s = time.monotonic() - began
            played = subprocess.run(
                [program, "lab", "demo", "--dir", f"{folder}/lab", "--json"],
                timeout=400,
                capture_output=True,
                text=True,
                check=False,
            )
        told = json.loads(played.stdout.strip().splitlines()[-1])
        if not told["kept"]:
            print(played.stdout)
            return 1
        figures = {
            "total_s": told["seconds"],
            "floor_s": round(floor_s, 1),
            "total_over_floor": told["seconds"] / floor_s,
        }
        for name, (first, last) in SPANS.items():
            start = next(moment["at_s"] for moment in told["moments"] if first in moment["text"])
            end = next(m["at_s"] for m in told["moments"] if last in m["text"] and m["at_s"] >= start)
            figures[name] = end - start
        rounds.append(figures)
    medians = {name: round(statistics.median(row[name] for row in rounds), 2) for name in rounds[0]}
    print(f"median of {len(rounds)}; simulated hardware, so these are times of software")
    for name, figure in medians.items():
        print(f"{name:28} {figure:8.1f}")
    print(json.dumps({"bench": "demo", "figures": medians}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

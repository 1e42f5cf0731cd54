"""Score attribution against labelled cases: a table by grade, the mistakes, and one JSON line. Labels are read here only."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, sys.argv.pop(1))

from slurm_ext.config.model import Settings
from slurm_ext.resume.replay import judge

FIGURES = ("class", "action", "culprits", "blamed innocent", "wrong stop", "wrong requeue")
COMES_BACK = {"requeue", "requeue-exclude", "wait-requeue"}


def same_action(got: str, want: str) -> bool:
    """Say whether two actions mean the same to a scorer: stop and none both leave the job alone."""
    return got == want or {got, want} <= {"stop", "none"}


def main() -> int:
    """Run over the folders and print the score."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    own = Path(__file__).resolve().parent.parent / "tests" / "resume" / "cases"
    root = Path(arguments[0] if arguments else os.environ.get("FMSLURM_CASES", str(own)))
    folders = sorted(path.parent for path in root.glob("*/expected.json"))
    if not folders:
        print(f"no labelled cases in {root}", file=sys.stderr)
        return 3
    per_grade: dict[str, Counter[str]] = {}
    worst_s = 0.0
    started = time.monotonic()
    for folder in folders:
        want = json.loads((folder / "expected.json").read_text())
        begun = time.monotonic()
        got = judge(str(folder), Settings())
        worst_s = max(worst_s, time.monotonic() - begun)
        grade = str(want.get("source", "?"))[:1]
        counts = per_grade.setdefault(grade, Counter())
        innocent = set(want["innocent_nodes"])
        blamed = set(got["culprit_nodes"])
        infra = want["class"].startswith(("infra", "storage", "checkpoint", "preempt", "mainten", "capac"))
        right = {
            "class": got["class"] == want["class"],
            "action": same_action(got["action"], want["action"]),
            "culprits": blamed == set(want["culprit_nodes"]),
            "blamed innocent": bool(blamed & innocent),
            "wrong stop": infra and got["action"] in ("stop", "hold") and want["action"] in COMES_BACK,
            "wrong requeue": want["action"] in ("stop", "none") and got["action"] in COMES_BACK,
        }
        counts["cases"] += 1
        for name, hit in right.items():
            counts[name] += int(hit)
        if not (right["class"] and right["action"] and right["culprits"]) or right["blamed innocent"]:
            print(
                f"  {folder.name}: {got['class']} {got['action']} {got['culprit_nodes']} by {got['rule']};"
                f" label {want['class']} {want['action']} {want['culprit_nodes']}"
            )
    total: Counter[str] = Counter()
    print(f"{'grade':6}{'cases':>7}" + "".join(f"{name:>17}" for name in FIGURES))
    for grade in sorted(per_grade):
        total.update(per_grade[grade])
        print(f"{grade:6}{per_grade[grade]['cases']:7}" + "".join(f"{per_grade[grade][name]:17}" for name in FIGURES))
    print(f"{'all':6}{total['cases']:7}" + "".join(f"{total[name]:17}" for name in FIGURES))
    figures: dict[str, object] = {name.replace(" ", "_"): total[name] for name in ("cases", *FIGURES)}
    figures["seconds"] = round(time.monotonic() - started, 2)
    figures["worst_case_seconds"] = round(worst_s, 3)
    print(json.dumps({"bench": "attribution", "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a Slurm version can and cannot do, as one table. Pure, standard library only.

Sources: Slurm's RELEASE_NOTES and man pages of each release, and what was seen with 22.05.8, 24.11.5 and 26.05.5.
"""

from __future__ import annotations

import re

from slurm_ext.slurm.model import Version

#: Checked on 2026-11-29. A newer release is used like the newest one known here.
CHECKED = "2026-11-29"
OLDEST, NEWEST = (22, 5), (26, 5)

#: feature -> the first release that has it.
SINCE: dict[str, tuple[int, int]] = {
    "exit-code-as-pair": (23, 2),  # squeue -O exit_code prints 3:0; before, the raw wait status 768
    "node-count-lists": (23, 2),  # --nodes=64,48,32
    "failed-node-in-accounting": (23, 2),
    "prolog-after-quick-restart": (23, 2),  # a job that returns to a node within 2 s is gated there again
    "force-requeue-on-fail": (23, 2),  # PrologFlags=ForceRequeueOnFail
    "batch-script-limit-configurable": (23, 2),  # SchedulerParameters=max_batch_requeue
    "slurmd-anew-on-reconfigure": (
        23,
        11,
    ),  # SlurmdStartTime tells which slurmd read the files (seen on 24.11.5 and 26.05.5)
    "json-pinned-parser": (23, 11),  # --json=v0.0.40
    "topology-block": (23, 11),
    "topology-yaml": (25, 5),
    "topology-by-name": (25, 5),  # scontrol show topology NAME is a topology, node=NAME a node (seen on 26.05.5)
    "node-topology-update": (25, 5),  # scontrol update NodeName= Topology=
    "requeue-delay": (25, 11),  # SchedulerParameters=requeue_delay=
    "expedited-requeue": (25, 11),  # sbatch --requeue=expedite
    "restart-count-in-output-name": (25, 11),  # %r in --output
    "openmetrics": (25, 11),
}
#: Seen, and levelled out by parse.py: 24.11.5 keeps the reason of a node that was resumed (22.05.8 and 26.05.5 drop it);
#: 26.05.5 gives StdOut as the user wrote it (the others as an absolute pattern).

_VERSION = re.compile(r"(\d{2})\.(\d{2})(?:\.\d+)?\S*")


def parse_version(text: str) -> Version | None:
    """Return the version in text like `slurm 22.05.8` or `slurm-wlm 24.11.5`, or None where there is none."""
    found = _VERSION.search(text)
    return Version(int(found.group(1)), int(found.group(2)), found.group(0)) if found else None


def has(version: Version, feature: str) -> bool:
    """Say whether a version has a feature of SINCE. Raise KeyError for a feature that is not in the table."""
    return (version.major, version.minor) >= SINCE[feature]


def is_supported(version: Version) -> bool:
    """Say whether the version is one that fmslurm is tried with; a newer one is used but not promised."""
    return OLDEST <= (version.major, version.minor) <= NEWEST


#: slurmd refuses a credential that was made in the second in which it learned of the job's end, or before (`ctime <=
#: revoked` in its cred_context.c, whole seconds): a job that is back on its node at once ends as FAILED with exit code 1
#: ("Job credential revoked", seen on 24.11.5). Two seconds, since the clocks of two machines may differ by one.
NEXT_SECOND_S = 2.0

#: Before 23.02 slurmd sweeps its record of ended jobs at most every 2 s, and takes a job that comes back to a node sooner
#: for one it knows: its prolog does not run there (seen on 22.05.8). Seconds; a job is in the queue at once all the same.
QUICK_RESTART_S = 3.0


def restart_pause_s(version: Version) -> float:
    """Return how long (seconds) a requeued job must stay away from the nodes it had, so that it is gated and runs there again."""
    return NEXT_SECOND_S if has(version, "prolog-after-quick-restart") else QUICK_RESTART_S

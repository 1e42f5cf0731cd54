"""Wall time of the hooks on their passing path: real processes, a pushed configuration, a stand-in nvidia-smi of no cost.

What nvidia-smi itself needs on a real node (0.3 to 1 s with persistence mode) comes on top and is not measured here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings

SMI = "#!/bin/sh\necho 'index, pci.bus_id'\necho '0, 00000000:53:00.0'\n"
JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_UID": "0",
    "SLURM_CLUSTER_NAME": "bench",
    "SLURMD_NODENAME": "n0",
    "SLURM_NODELIST": "n0",
    "SLURM_JOB_STDOUT": "/x",
    "ENVIRONMENT": "BATCH",
}


def site(folder: Path) -> None:
    """Make a share, a node's folders and a pushed configuration."""
    for name in ("share", "state", "run", "log", "root/usr/bin", "root/var/log"):
        (folder / name).mkdir(parents=True)
    (folder / "root/var/log/kmsg.log").write_text("6,0,0,-;Linux version 6.8.0\n")
    (folder / "root/usr/bin/nvidia-smi").write_text(SMI)
    (folder / "root/usr/bin/nvidia-smi").chmod(0o755)
    plain = Settings()
    places = {"share": "share", "state_dir": "state", "run_dir": "run", "log_dir": "log", "root": "root"}
    settings = plain._replace(
        site=plain.site._replace(**{key: str(folder / name) for key, name in places.items()}),
        mode=plain.mode._replace(gate="enforce"),
    )
    snapshot.push(settings, str(folder / "share"))


def measure(argv: Sequence[str], env: Mapping[str, str], repeats: int) -> list[float]:
    """Return the wall times (seconds) of several runs, the first left out: it fills caches."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run(argv, env=dict(env), check=True, stdout=subprocess.DEVNULL, timeout=60)
        times.append(time.perf_counter() - started)
    return times[1:]


def main() -> None:
    here, full = sys.argv[1], "--full" in sys.argv
    if os.geteuid() != 0:
        print("skipped: hooks trust only what root owns")
        print(json.dumps({"bench": "hook", "figures": {}}))
        return
    repeats = 100 if full else 20
    hook, python = os.path.join(here, "bin/fmslurm-hook"), "/usr/bin/python3"
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        site(Path(folder))
        more = ["--share", f"{folder}/share", "--local", f"{folder}/state"]
        imports = f"import sys; sys.path.insert(0, {here!r}); import slurm_ext.hooks.prolog"
        for name, argv, env in (
            ("python", [python, "-IS", "-c", "pass"], {}),
            ("imports", [python, "-IS", "-c", imports], {}),
            ("prolog", [python, "-IS", hook, "prolog", *more], JOB),
            ("task_prolog", [python, "-IS", hook, "task-prolog", *more], JOB),
            ("epilog", [python, "-IS", hook, "epilog", *more], JOB),
        ):
            times = sorted(measure(argv, env, repeats))
            figures[f"{name}_median_ms"] = round(statistics.median(times) * 1e3, 1)
            figures[f"{name}_p95_ms"] = round(times[int(len(times) * 0.95) - 1] * 1e3, 1)
            print(f"{name:12}  median {figures[f'{name}_median_ms']:7.1f} ms   p95 {figures[f'{name}_p95_ms']:7.1f} ms")
    print(json.dumps({"bench": "hook", "figures": figures}))


if __name__ == "__main__":
    main()

"""How long a trainer waits for a checkpoint, and how long until each tier has it; floors in the same run, alternating.

The trainer writes the same bytes twice: plainly (write, fsync of every file and folder) and through a step of ours while
the node's agent moves what came before. `cp -r` with fsync of the same tree is the second floor. S3 is SeaweedFS on
loopback, which shares the cores and takes about 0.2 GB/s here: its time says little about S3.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(sys.argv.pop(1))
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "s3")]

from slurm_ext.config import snapshot  # noqa: E402
from slurm_ext.config.model import Mode, Settings, Site, Staging, Tier  # noqa: E402
from slurm_ext.staging import Checkpoints, nvme  # noqa: E402
from slurm_ext.staging import manifest as manifests  # noqa: E402
from slurm_ext.staging.local import sync_tree  # noqa: E402

LIMIT_S = 120.0
#: plain: write and fsync; cp: `cp -r` and fsync; step, step_cp: the same through a step; then seconds until a tier has it.
KINDS = ("plain", "step", "cp", "step_cp", "lustre", "s3")
BYTES = memoryview(os.urandom(128 << 20))  # made once: making them is no part of saving them


def write(folder: str, files: int, size: int) -> None:
    """Write a checkpoint as a trainer does: one large write a file."""
    for number in range(files):
        with open(os.path.join(folder, f"state-{number}.bin"), "wb", buffering=0) as stream:
            stream.write(BYTES[:size])


def sync(folder: str) -> None:
    """Make a tree durable, file by file."""
    sync_tree(folder, manifests.walk(folder))
    descriptor = os.open(os.path.dirname(folder), os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def timed(work: Callable[[], object]) -> float:
    """Return how long something takes, in seconds."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def wait_for(what: Callable[[], object]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + LIMIT_S
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing came of {what} within {LIMIT_S:g} s")
        time.sleep(0.002)


def measure(
    root: Path, settings: Settings, files: int, size: int, repeats: int, in_s3: Callable[[int], bool] | None
) -> dict[str, float]:
    """Return medians in seconds of one kind of checkpoint."""
    folder = nvme.prepare_run_folder(settings, "bench", f"run-{files}", os.geteuid())
    checkpoints = Checkpoints(
        run=f"run-{files}",
        directory=f"{root}/shared/{files}",
        nvme=folder,
        attempt="bench",
        environment={"FMSLURM_CKPT_SOCKET": f"{root}/run/agent.sock"},
    )
    seen: dict[str, list[float]] = {name: [] for name in KINDS}
    source = root / f"source-{files}"
    source.mkdir()
    write(str(source), files, size)
    for step in range(repeats):
        plain = root / "nvme" / f"plain-{files}-{step}"
        plain.mkdir()

        def write_plain(target: str = str(plain)) -> None:
            write(target, files, size)
            sync(target)

        def copy_plain(target: str = f"{plain}.cp") -> None:
            subprocess.run(["cp", "-r", str(source), target], check=True)
            sync(target)

        def take_step(fill: Callable[[str], object], number: int) -> None:
            with checkpoints.step(number) as mine:
                fill(mine)

        def copied(folder: str) -> None:
            subprocess.run(["cp", "-r", f"{source}/.", folder], check=True)

        order = [
            ("plain", write_plain),
            ("cp", copy_plain),
            ("step", partial(take_step, partial(write, files=files, size=size), 2 * step)),
            ("step_cp", partial(take_step, copied, 2 * step + 1)),
        ]
        for name, work in random.Random(step).sample(order, len(order)):
            os.sync()  # what the last one and the S3 server left to write is not this one's
            started = time.monotonic()
            seen[name].append(timed(work))
            if name.startswith("step"):
                number = 2 * step + (name == "step_cp")
                wait_for(partial(os.path.isdir, f"{root}/shared/{files}/step-{number}"))  # one rename made it so: whole
                seen["lustre"].append(time.monotonic() - started)
                if in_s3 is not None:
                    wait_for(partial(in_s3, number))  # which also keeps the next measurement alone
                    seen["s3"].append(time.monotonic() - started)
        for path in (str(plain), f"{plain}.cp"):
            shutil.rmtree(path)
    return {name: statistics.median(values) for name, values in seen.items() if values}


def main() -> int:
    """Print the table and the JSON line."""
    full = "--full" in sys.argv
    kinds = [("1 x 128 MiB", 1, 128 << 20), ("8 x 16 MiB", 8, 16 << 20), ("500 x 64 KiB", 500, 64 << 10)]
    repeats = 9 if full else 5
    root = Path(tempfile.mkdtemp(prefix="fmslurm-bench-"))
    try:
        from s3_support import WEED, running
    except ImportError:
        WEED = Path("/nonexistent")
    try:
        for name in ("nvme", "shared", "seaweedfs"):
            (root / name).mkdir()
        if WEED.exists():
            with running(root / "seaweedfs", volume_mb=1024) as server:
                tier = Tier("s3", "s3", f"s3://{server.bucket}/bench", server.endpoint, server.credentials)
                return report(root, kinds, repeats, tier)
        print("SeaweedFS is not installed: without S3")
        return report(root, kinds, repeats, None)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def report(root: Path, kinds: list[tuple[str, int, int]], repeats: int, tier: Tier | None) -> int:
    """Measure all kinds beside a real agent."""
    tiers = (Tier("nvme", "nvme", f"{root}/nvme"), Tier("shared", "lustre", f"{root}/shared"))
    settings = Settings(
        site=Site(state_dir=f"{root}/state", run_dir=f"{root}/run", log_dir=f"{root}/log"),
        mode=Mode(staging="enforce"),
        staging=Staging(tiers=(*tiers, tier) if tier else tiers),
    )
    snapshot.write(str(root / "snapshot.json"), settings)
    agent = subprocess.Popen([ROOT / "bin" / "fmslurm-agent", "--config", root / "snapshot.json", "--node", "bench"])
    try:
        wait_for((root / "run" / "staging.json").exists)
        print(f"medians of {repeats}, alternating; seconds")
        print(f"{'':14}" + "".join(f"{name:>9}" for name in KINDS) + f"{'step/plain':>12}{'step_cp/cp':>12}")
        figures: dict[str, float] = {}
        for (words, files, size), slug in zip(kinds, ("", "_8_files", "_500_files"), strict=True):
            in_s3 = None
            if tier is not None:
                from slurm_ext.staging import s3

                store = s3.connect(tier, settings)

                def in_s3(step: int, store: s3.Store = store, files: int = files) -> bool:
                    return s3.read_manifest(store, os.geteuid(), f"run-{files}", step) is not None

            found = measure(root, settings, files, size, repeats, in_s3)
            ratio, over_cp = found["step"] / found["plain"], found["step_cp"] / found["cp"]
            columns = [found.get(name, float("nan")) for name in KINDS]
            print(f"{words:14}" + "".join(f"{value:9.3f}" for value in columns) + f"{ratio:12.2f}{over_cp:12.2f}")
            figures[f"trainer_stall_over_plain_write{slug}"] = round(ratio, 3)
            figures[f"trainer_stall_over_cp_fsync{slug}"] = round(over_cp, 3)
            figures[f"until_lustre_over_stall{slug}"] = round(found["lustre"] / found["step"], 2)
        print(json.dumps({"bench": "staging", "figures": figures}))
    finally:
        agent.terminate()
        agent.wait(30)
    return 0


if __name__ == "__main__":
    sys.exit(main())

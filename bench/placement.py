"""How well Slurm's own scheduler places jobs, by what it is told of the network: the last line is one JSON object.

A real slurmctld and a real slurmd for each of 256 nodes run the same seeded jobs once for each arm; each job is judged by the
true fabric, whatever Slurm was told. The default takes about eight minutes; `--full` adds loads, stale maps and jobs that ask
for few switches, and takes about 35 minutes. Exit 0 whatever was measured; 3 without root or Slurm.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import placement_fabric
import placement_jobs
import placement_score
from placement_cluster import fleet
from promises import Promise, show

from slurm_ext.lab import daemons
from slurm_ext.slurm.model import Version
from slurm_ext.slurm.versions import parse_version

CHECKOUT = Path(__file__).resolve().parents[1]
SUITES = ("installed", "trixie", "forky")
#: Namespaces of its own: nothing outlives the run, no port is taken, nothing of it can be reached from elsewhere, and its files
#: are in memory, in a place where no checkout lies.
FOLDER, SUITE_FOLDER = "/var/spool", "/tmp"
ISOLATE = f"""
ip link set lo up
ip link add eth0 type bridge
ip addr add 192.0.2.10/24 dev eth0
ip link set eth0 up
mount -t proc proc /proc
mount -t tmpfs -o mode=0755 none {FOLDER}
"$@"
"""
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--propagation", "private", "--")
FIRST_PORT, PORTS_EACH = 20001, 1100

PROMISES = (
    # Beside the fewest leaves in an empty fabric, and beside the fewest among the nodes that were free as a job began.
    Promise("leaves_over_ideal_tree-3", 1.5, unit="x"),
    Promise("leaves_over_free_tree-3", 1.1, unit="x"),
    # Beside the same jobs without a topology in the same run.
    Promise("leaves_tree-3_over_flat", 0.5, unit="x"),
    Promise("wait_p95_tree-3_over_flat", 1.25, unit="x"),
    Promise("occupancy_tree-3_over_flat", 0.95, at_least=True, unit="x"),
)


class Plan(NamedTuple):
    """What is run: see the options."""

    nodes: int
    arms: tuple[str, ...]
    loads: tuple[int, ...]
    seeds: tuple[int, ...]
    window_s: float
    mean_s: float
    budget: int
    base: int
    at_once: int
    folder: str


class Lane(NamedTuple):
    """One arm of one seed: all loads on one fleet."""

    arm: str
    seed: int
    measured: Mapping[int, placement_score.Measured]
    words: str


def main() -> int:
    """Read the options, enter the suite's Slurm, run, and print."""
    parser = argparse.ArgumentParser(prog="bench/placement", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--slurm", choices=SUITES, default="installed", help="whose Slurm: this machine's, or one of .ci/matrix"
    )
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--arms", default="", help=f"some of {', '.join(placement_fabric.EVERY_ARM)}, with commas")
    parser.add_argument("--loads", default="", help="what jobs want of all nodes, in percent, with commas (default 80)")
    parser.add_argument("--seeds", default="1", help="for each of them another fabric and other jobs, with commas")
    parser.add_argument("--window-s", type=float, default=80.0, help="how long jobs arrive")
    parser.add_argument("--mean-s", type=float, default=8.0, help="how long jobs last on average")
    parser.add_argument(
        "--budget", type=int, default=0, help="most switches of `collapsed` (0: half as many as leaves)"
    )
    parser.add_argument("--base", type=int, default=0, help="base size of `block` (0: the smallest leaf)")
    parser.add_argument(
        "--at-once", type=int, default=2, help="so many arms side by side, each with daemons of its own"
    )
    parser.add_argument(
        "--full", action="store_true", help="loads 60, 80, 95; stale maps; jobs that ask for few switches"
    )
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        return enter(given.slurm, sys.argv[1:])
    arms = (
        given.arms.split(",")
        if given.arms
        else [*(placement_fabric.EVERY_ARM if given.full else placement_fabric.ARMS)]
    )
    loads = given.loads.split(",") if given.loads else (("60", "80", "95") if given.full else ("80",))
    if unknown := [arm for arm in arms if arm not in placement_fabric.EVERY_ARM]:
        parser.error(f"--arms {unknown[0]}: there are {', '.join(placement_fabric.EVERY_ARM)}")
    for option, wrong in (
        (f"--nodes {given.nodes}: there are 16 to {PORTS_EACH}", not 16 <= given.nodes <= PORTS_EACH),
        (
            f"--loads {given.loads}: percent, 1 to 100",
            not all(word.isdecimal() and 1 <= int(word) <= 100 for word in loads),
        ),
        (f"--seeds {given.seeds}: whole numbers", not all(word.isdecimal() for word in given.seeds.split(","))),
        (f"--at-once {given.at_once}: 1 to 8", not 1 <= given.at_once <= 8),
        ("--window-s and --mean-s: 1 and more", given.window_s < 1 or given.mean_s < 1),
    ):
        if wrong:
            parser.error(option)
    if lacking := daemons.missing():
        print(f"no placement is measured here: it needs {', '.join(lacking)}", file=sys.stderr)
        return 3
    plan = Plan(
        given.nodes,
        tuple(arms),
        tuple(map(int, loads)),
        tuple(map(int, given.seeds.split(","))),
        given.window_s,
        given.mean_s,
        given.budget,
        given.base,
        given.at_once,
        given.inside,
    )
    run(plan)
    return 0


def enter(suite: str, arguments: Sequence[str]) -> int:
    """Start this program again where the suite's Slurm is, in namespaces of its own."""
    if os.geteuid() != 0:
        print("no placement is measured here: it needs root (run it through sudo)", file=sys.stderr)
        return 3
    if suite == "installed":
        argv = [*APART, "sh", "-euc", ISOLATE, "sh", str(CHECKOUT / "bench" / "placement"), "--inside", FOLDER]
    else:
        argv = [str(CHECKOUT / ".ci" / "matrix"), suite, "--run", "bench/placement", "--inside", SUITE_FOLDER]
    # A session of its own: Ctrl-C would end the daemons under a bench that still counts on them. Killed, it takes its namespaces
    # and all that is in them along.
    child = subprocess.Popen([*argv, *arguments], start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return child.wait()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def run(plan: Plan) -> None:
    """Run all arms and print the figures."""
    version = parse_version(daemons.slurm_version()[1])
    assert version is not None
    started = time.monotonic()
    print(
        f"Slurm {version.text}, {plan.nodes} slurmd, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, seeds {plan.seeds}",
        flush=True,
    )
    lanes: list[Lane] = []
    slots = list(range(plan.at_once))
    stop = threading.Event()
    with ThreadPoolExecutor(plan.at_once) as pool:
        waiting = []
        for seed in plan.seeds:
            for name in plan.arms:
                waiting.append(pool.submit(_lane, plan, name, seed, version, slots, stop))
        for each in waiting:
            try:
                lane = each.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            print(f"  {lane.words}", flush=True)
            lanes += [lane] if lane.measured else []
    print(f"({time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f})\n")
    by_arm = {arm: [lane for lane in lanes if lane.arm == arm] for arm in plan.arms}
    for load in plan.loads:
        print(
            _table(
                f"load {load} %", {a: [lane.measured[load] for lane in group] for a, group in by_arm.items() if group}
            )
        )
    scores = {
        arm: placement_score.score([measured for lane in group for measured in lane.measured.values()])
        for arm, group in by_arm.items()
        if group
    }
    figures: dict[str, float] = {}
    for arm, of_arm in scores.items():
        figures[f"leaves_over_ideal_{arm}"] = round(of_arm.leaves_over_ideal, 3)
        figures[f"leaves_over_free_{arm}"] = round(of_arm.leaves_over_free, 3)
        figures[f"wait_p95_{arm}"] = round(of_arm.wait_p95_s, 2)
    if "flat" in scores and "tree-3" in scores:
        ours, none = scores["tree-3"], scores["flat"]
        figures["leaves_tree-3_over_flat"] = round(ours.leaves_over_ideal / none.leaves_over_ideal, 3)
        figures["wait_p95_tree-3_over_flat"] = round(ours.wait_p95_s / max(none.wait_p95_s, 0.01), 3)
        figures["occupancy_tree-3_over_flat"] = round(ours.occupancy / none.occupancy, 3)
    show("placement", figures, PROMISES)


def _lane(plan: Plan, name: str, seed: int, version: Version, slots: list[int], stop: threading.Event) -> Lane:
    nodes = placement_fabric.node_names(plan.nodes)
    fabric = placement_fabric.true_fabric(nodes, seed)
    try:
        arm = placement_fabric.arm(name, fabric, version, seed=seed, budget=plan.budget, base=plan.base)
    except ValueError as why:
        return Lane(name, seed, {}, f"{name}: not possible here: {why}")
    sizes = placement_fabric.leaf_sizes(fabric).values()
    fewest = {size: placement_score.fewest(sizes, size) for size in range(1, plan.nodes + 1)}
    slot = slots.pop()
    try:
        measured: dict[int, placement_score.Measured] = {}
        with tempfile.TemporaryDirectory(prefix="fmplace-", dir=plan.folder) as folder:
            began = time.monotonic()
            with fleet(Path(folder), nodes, arm, version, first_port=FIRST_PORT + slot * PORTS_EACH) as up:
                words = f"{name}: up in {time.monotonic() - began:.0f} s, all slurmd {up.slurmd_mib:.0f} MiB"
                for load in plan.loads:
                    jobs = placement_jobs.mix(
                        plan.nodes, load / 100, seed=seed, window_s=plan.window_s, mean_s=plan.mean_s
                    )
                    runs, known = up.play(jobs, fewest, stop)
                    measured[load] = placement_score.measure(fabric, runs, known)
    finally:
        slots.append(slot)
    words += f", {sum(len(one.placed) for one in measured.values())} jobs counted, switches {arm.switches}"
    return Lane(name, seed, measured, f"{words}; {arm.note}" if arm.note else words)


def _table(title: str, several: Mapping[str, Sequence[placement_score.Measured]]) -> str:
    head = (
        "leaves/ideal",
        "leaves/free",
        "on one leaf",
        "hops",
        "tight",
        "wait mean s",
        "wait p95 s",
        "occupied",
        "late s",
    )
    lines = [f"{title:14}" + "".join(f"{word:>13}" for word in head)]
    for arm, measured in several.items():
        s = placement_score.score(measured)
        cells = (
            f"{s.leaves_over_ideal:.2f}",
            f"{s.leaves_over_free:.2f}",
            f"{100 * s.on_one_leaf:.0f} %",
            f"{s.hops:.2f}",
            f"{s.hops_tight:.2f}",
            f"{s.wait_mean_s:.2f}",
            f"{s.wait_p95_s:.2f}",
            f"{100 * s.occupancy:.0f} %",
            f"{s.late_s:.2f}",
        )
        lines.append(f"{arm:14}" + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

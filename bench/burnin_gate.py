"""The gate as a job meets it: a healthy one on a real Slurm, what the hook itself costs, and how late it is when all goes wrong.

`healthy_8x8_s`: 8 nodes of 8 simulated GPUs each, 4 MiB a rank, 0.5 s of sustained traffic; from the first prolog's start to
the last one's end, by the nodes' own trail. The floor is the same job with the burn-in off.
`hook_cpu_over_bare_python`: CPU (user and system) of one passing prolog hook with its burn-in, all it waits for included
(nvidia-smi, bounded children, the start of the agent; the agent and its workers run by themselves), by that of
`python3 -I -c pass`.
`worst_overrun_s`: over every kind of fault, and with a stopped agent beside them, the longest that a hook outlived its
deadline; below zero: none did. The deadline is too short for most verdicts on purpose.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "burnin"))

from conftest import Cluster
from fault_kinds import FLOOR_GBS, KINDS, FaultKind, keys_on, left_behind, needs_frozen
from hook_cost import PYTHON, cost, hook

from slurm_ext import events
from slurm_ext.burnin.gate import run_burnin
from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError
from slurm_ext.lab import daemons, frozen, standins
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions

_HERE = Path(__file__).resolve().parent.parent
MESSAGE_BYTES = 4 << 20
SUSTAIN_S = 0.5

#: Far below what any machine gives: what is timed here is a pass.
LAB_FLOORS = {"busbw_gbs": 0.0005, "pair_busbw_gbs": 0.0005}
JOB_S = 120.0

#: Of the hooks whose overrun is measured.
DEADLINE_S = 5.0
STOPPED = FaultKind("agent-stopped", "n1", {})
END_S = 20.0


def figures(full: bool) -> dict[str, float]:
    """Measure, print a table, and return the figures; what this machine cannot do is left out, with the reason."""
    if os.geteuid() != 0:
        print("gate of the burn-in: skipped, it needs root")
        return {}
    found: dict[str, float] = {}
    if lacking := daemons.missing():
        print(f"healthy gate on a real Slurm: skipped, it needs {', '.join(lacking)}")
    else:
        found |= healthy(10 if full else 3)
    with tempfile.TemporaryDirectory(prefix="fmburnin-", dir="/var/tmp") as folder:
        libraries = Path(folder, "lib")
        standins.build(str(libraries / "lib"), str(libraries / "bin"))
        found |= hook_cpu(Path(folder), libraries, 30 if full else 10)
        found |= overruns(Path(folder), libraries / "lib", full)
    return found


def healthy(repeats: int) -> dict[str, float]:
    """Run whole jobs in a lab of eight nodes; return the median span of their prologs, and the floor's."""
    with tempfile.TemporaryDirectory(prefix="fmburnin-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # jobs of any user pass through
        lab = Lab.up(LabOptions(f"{folder}/lab", 8, ready=True, s3="off"))
        try:
            lab.set_floors(LAB_FLOORS)
            _configure(lab, burnin="off")
            _fmslurm(lab, "install")
            floor = _spans_s(lab, "gate.local", repeats)
            _configure(lab, burnin="enforce")
            _fmslurm(lab, "config", "push")
            spans = _spans_s(lab, "burnin.all-nodes", repeats)
        finally:
            lab.down()
    print(
        f"healthy gate, 8 nodes x 8 ranks, {MESSAGE_BYTES >> 20} MiB, {SUSTAIN_S} s sustained, Slurm {lab.slurm_version}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: {', '.join(f'{span:.2f}' for span in spans)} s; "
        f"without a burn-in {', '.join(f'{span:.2f}' for span in floor)} s"
    )
    found = {"healthy_8x8_not_passed": float(2 * repeats - len(spans) - len(floor))}
    if spans:
        found["healthy_8x8_s"] = round(statistics.median(spans), 2)
    if floor:
        found["healthy_8x8_floor_s"] = round(statistics.median(floor), 2)
    return found


def _spans_s(lab: Lab, rule: str, repeats: int) -> list[float]:
    """Return the spans of the jobs that passed by a rule; print why one did not, which is a finding of its own."""
    spans = []
    for _ in range(repeats):
        try:
            spans.append(_span_s(lab, rule))
        except NotPassedError as exc:
            print(f"  NOT PASSED: {exc}")
            lab.run(["scancel", "--user=root"])
    return spans


def _configure(lab: Lab, *, burnin: str) -> None:
    path = lab.path("etc/fmslurm/fmslurm.yaml")
    settings = yaml.safe_load(path.read_text())
    settings["mode"]["burnin"] = burnin
    settings["burnin"] |= {"message_bytes": MESSAGE_BYTES, "sustain_s": SUSTAIN_S, "deadline_s": 60.0}
    path.write_text(yaml.safe_dump(settings))


def _fmslurm(lab: Lab, *arguments: str) -> None:
    done = lab.run([sys.executable, "-m", "slurm_ext.cli", *arguments], timeout_s=90)
    if not done.ok:
        raise SystemExit(f"fmslurm {' '.join(arguments)}: {done.words()}")


class NotPassedError(Exception):
    """A job that had to pass its gate did not."""


def _span_s(lab: Lab, rule: str) -> float:
    """Run a job on all nodes; return the time from the first prolog's start to the last one's end."""
    options = ["--parsable", f"-N{len(lab.nodes)}", "--gpus-per-node=8", "--exclusive", "-t30", "-o/dev/null"]
    done = lab.run(["sbatch", *options, "--wrap=true"])
    if not done.ok:
        raise SystemExit(f"sbatch: {done.words()}")
    job = done.stdout.strip().partition(";")[0]
    deadline = time.monotonic() + JOB_S
    while len(rows := _prologs(lab, job)) < len(lab.nodes):
        if time.monotonic() > deadline:
            raise NotPassedError(f"job {job}: {len(rows)} of {len(lab.nodes)} prologs have ended")
        time.sleep(0.2)
    while lab.run(["squeue", "-h", "-j", job]).stdout.strip() and time.monotonic() < deadline:
        time.sleep(0.1)
    if wrong := [row for row in rows if row.rule != rule or row.decision != "pass"]:
        raise NotPassedError(f"job {job} on {wrong[0].node}: {wrong[0].decision} by {wrong[0].rule}: {wrong[0].reason}")
    ends = [_seconds(row.time) for row in rows]
    starts = [end - float(str(row.data["seconds"])) for end, row in zip(ends, rows, strict=True)]
    return max(ends) - min(starts)


def _prologs(lab: Lab, job: str) -> list[events.Event]:
    found = {}
    for path in lab.path("nodes").glob("*/log/events.jsonl"):
        for line in path.read_text().splitlines():
            event = events.from_line(line)
            if event is not None and event.event == "gate.prolog" and event.job == job:
                found[event.node] = event
    return list(found.values())


def _seconds(stamp: str) -> float:
    whole, _, thousandths = stamp.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + int(thousandths) / 1000


def hook_cpu(folder: Path, libraries: Path, repeats: int) -> dict[str, float]:
    """Return what one hook's CPU is, by that of a bare interpreter, both taken in turns."""
    _site(folder / "cpu", libraries)
    bare, whole = [], []
    for number in range(repeats + 1):
        bare.append(cost([PYTHON, "-I", "-c", "pass"], {}).cpu_s)
        whole.append(cost(*hook(folder / "cpu", "0,1", job_id=100 + number)).cpu_s)
        _check_passed(folder / "cpu")
    ratio = statistics.median(whole[1:]) / statistics.median(bare[1:])
    print(
        f"CPU of a passing hook with its burn-in {statistics.median(whole[1:]) * 1e3:.1f} ms, "
        f"of python3 -I -c pass {statistics.median(bare[1:]) * 1e3:.1f} ms"
    )
    return {"hook_cpu_over_bare_python": round(ratio, 2)}


def _site(folder: Path, libraries: Path) -> None:
    """Make a node of two GPUs that is alone in its jobs, and a pushed configuration that tests it each time."""
    for name in ("share", "state", "run", "log", "root/usr/bin", "root/var/log", "root/etc/fmslurm-lab"):
        (folder / name).mkdir(parents=True)
    (folder / "root/var/log/kmsg.log").write_text("6,0,0,-;Linux version 6.8.0\n")
    (folder / "root/etc/fmslurm-lab/hardware.env").write_text("node=n0\ngpus=2\n")
    (folder / "root/etc/fmslurm-lab/hardware.json").write_text("{}")
    os.link(libraries / "bin/nvidia-smi", folder / "root/usr/bin/nvidia-smi")
    plain = Settings()
    places = {"share": "share", "state_dir": "state", "run_dir": "run", "log_dir": "log", "root": "root"}
    settings = plain._replace(
        site=plain.site._replace(**{key: str(folder / name) for key, name in places.items()}),
        mode=plain.mode._replace(gate="enforce", burnin="enforce"),
        burnin=plain.burnin._replace(
            min_nodes=1,
            reuse_pass_h=0.0,
            message_bytes=1 << 20,
            iterations=3,
            sustain_s=0.1,
            transport="socket",
            floor_busbw_gbs=0.0001,
            nccl_library=str(libraries / "lib/libnccl.so.2"),
            cuda_library=str(libraries / "lib/libcuda.so.1"),
        ),
    )
    snapshot.push(settings, str(folder / "share"))


def _check_passed(folder: Path) -> None:
    """What is measured must be a burn-in that passed."""
    last = events.from_line((folder / "log/events.jsonl").read_text().splitlines()[-1])
    data: Any = last.data.get("burnin", {}) if last is not None else {}
    if last is None or last.decision != "pass" or data.get("verdict") != "pass" or data.get("ranks") != 2:
        raise SystemExit(f"the hook did not pass with a burn-in: {last}")


def overruns(folder: Path, libraries: Path, full: bool) -> dict[str, float]:
    """Spoil one node in every known way, under a deadline that hardly a verdict meets; return the worst overrun."""
    found: list[tuple[float, str, str]] = []
    for repeat in range(3 if full else 1):
        for kind in (*KINDS, STOPPED):
            try:
                overrun_s, rule = _overrun_s(folder / f"{kind.name}-{repeat}", libraries, kind)
            except LackingError as exc:
                print(f"  {kind.name:18} skipped: {exc}")
                continue
            found.append((overrun_s, kind.name, rule))
    found.sort(reverse=True)
    print(f"hooks by their deadline of {DEADLINE_S:.0f} s, {len(found)} runs, the latest first:")
    for overrun_s, name, rule in found[:6]:
        print(f"  {name:18} {overrun_s:+.3f} s  {rule}")
    return {"worst_overrun_s": round(found[0][0], 3)} if found else {}


def _overrun_s(folder: Path, libraries: Path, kind: FaultKind) -> tuple[float, str]:
    """Return how long after its deadline the last hook came back (seconds), and what rule it got."""
    folder.mkdir()
    cluster = Cluster(
        folder,
        libraries,
        kind.nodes,
        deadline_s=DEADLINE_S,
        sustain_s=0.2,
        floor_busbw_gbs=FLOOR_GBS,
        pair_floor_busbw_gbs=FLOOR_GBS,
        transport=kind.transport,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(_until_gone, folder)
        stuck = None
        if needs_frozen(kind):
            stack.callback(frozen.remove, folder / "frozen")
            stuck = frozen.make(folder / "frozen")
        for name in cluster.nodes:
            if kind.transport == "efa":
                cluster.efa_counters(name, 32)
            cluster.hardware(name, **{"efa": 32} | (keys_on(kind, stuck) if name == kind.culprit else {}))
        with ThreadPoolExecutor(len(cluster.nodes)) as pool:
            hooks = [
                pool.submit(run_burnin, cluster.job(name), cluster.settings, deadline_s=DEADLINE_S, cgroups=False)
                for name in cluster.nodes
            ]
            if kind is STOPPED:
                _stop_agent(folder / kind.culprit)
            outcomes = [hook.result() for hook in hooks]
    latest = max(outcomes, key=lambda outcome: outcome.seconds)
    return latest.seconds - DEADLINE_S, latest.verdict.rule


def _stop_agent(node: Path) -> None:
    """Stop a node's agent once it has said who it is: its hook has nobody then who would tell it anything."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for note in (node / "run/burnin").glob("*.json"):
            with contextlib.suppress(ValueError, LookupError, ProcessLookupError):  # just being written, or gone
                os.kill(json.loads(note.read_text())["processes"][0][0], signal.SIGSTOP)
                return
        time.sleep(0.005)


def _until_gone(folder: Path) -> None:
    """Let one run's agents end before the next: they are not what is timed."""
    deadline = time.monotonic() + END_S
    while left_behind(folder) and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> None:
    """Print the figures of this file alone."""
    print(json.dumps({"bench": "burnin_gate", "figures": figures("--full" in sys.argv)}))


if __name__ == "__main__":
    main()

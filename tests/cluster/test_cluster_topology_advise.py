"""What `topology advise` foresees is where a real Slurm places the job, and sbatch takes what it recommends.

A slurmctld alone: its nodes are cloud nodes, so that jobs get nodes (and configure for ever) without any slurmd.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from bare_controller import BareController

from slurm_ext.config.model import Settings, Site
from slurm_ext.slurm.cli_backend import CliBackend
from slurm_ext.slurm.hostlist import expand, fold
from slurm_ext.slurm.model import Version
from slurm_ext.topology import advise_block, advise_tree
from slurm_ext.topology.advise import advise
from slurm_ext.topology.advise_model import REFUSES_BEFORE, Free, Request, Situation
from slurm_ext.topology.advise_read import Answers, partition_of, situation
from slurm_ext.topology.advise_time import everything, moments

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")
CLOUD = "ResumeProgram=/bin/true\nSuspendProgram=/bin/true\nSuspendTime=100000\nResumeTimeout=36000\nTreeWidth=65533\n"
#: Jobs are tried as they come; by default Slurm gathers batch jobs for up to three seconds.
SCHEDULER = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0{}\n"
PARTITION = "PartitionName=gpu Nodes={} Default=YES MaxTime=10-0 DefaultTime=60\n"

#: Jobs of each round, one after the other; each round has another seed, so other nodes are busy.
JOBS = 6


class Shape(NamedTuple):
    """A topology.conf and its nodes; `weights` gives lines of nodes of other weights."""

    conf: str
    nodes: int
    plugin: str
    weights: Mapping[str, int] = {}


def tree(leaves: Sequence[int], per_spine: int, *, roots: int = 1, first: str = "top") -> str:
    """Leaves of these sizes, so many to a spine; `first` says which switches the file names first."""
    names, start = [], 0
    lower = []
    for number, size in enumerate(leaves):
        lower.append(f"SwitchName=l{number} Nodes=n[{start}-{start + size - 1}]")
        names.append(f"l{number}")
        start += size
    spines = [names[i : i + per_spine] for i in range(0, len(names), per_spine)]
    upper = [f"SwitchName=s{i} Switches={','.join(below)}" for i, below in enumerate(spines)]
    each = -(-len(spines) // roots)
    tops = [
        f"SwitchName=t{i} Switches={','.join(f's{j}' for j in range(i * each, min(len(spines), (i + 1) * each)))}"
        for i in range(roots)
    ]
    lines = [*tops, *upper, *lower] if first == "top" else [*lower, *upper, *tops]
    return "\n".join(lines) + "\n"


def blocks(sizes: Sequence[int], base: int, levels: str) -> str:
    lines, start = [], 0
    for number, size in enumerate(sizes):
        lines.append(f"BlockName=b{number} Nodes=n[{start}-{start + size - 1}]")
        start += size
    return "\n".join(lines) + f"\nBlockSizes={levels or base}\n"


TREE, BLOCK = "topology/tree", "topology/block"
TREES = {
    "even": Shape(tree([8] * 12, 4), 96, TREE),
    "leaves first": Shape(tree([8] * 12, 3, first="leaf"), 96, TREE),
    "uneven": Shape(tree([4, 16, 7, 9, 12, 3, 16, 8, 5], 3), 80, TREE),
    "two fabrics": Shape(tree([8] * 12, 3, roots=2), 96, TREE),
    "a leaf below the root": Shape(
        tree([8] * 9, 3).replace("Switches=s0,s1,s2", "Switches=s0,s1,s2,odd") + "SwitchName=odd Nodes=n[72-79]\n",
        80,
        TREE,
    ),
    "weights": Shape(tree([8] * 12, 4), 96, TREE, {"n[0-95]": 1}),
}
BLOCKS = {
    "nvl72": Shape(blocks([18] * 6, 18, "18,36,72"), 108, BLOCK),
    "one size": Shape(blocks([18] * 6, 18, "18"), 108, BLOCK),
    "small": Shape(blocks([4] * 16, 4, "4,8,16,32"), 64, BLOCK),
    "levels left out": Shape(blocks([4] * 16, 4, "4,16"), 64, BLOCK),
}


def write(controller: BareController, shape: Shape, *, weighed: int = 0, more: str = "") -> None:
    """Write the files; with `weighed`, nodes have weights by a seed."""
    names = f"n[0-{shape.nodes - 1}]"
    lines = [f"NodeName={names} CPUs=2 State=CLOUD Gres=gpu:4"]
    if weighed:
        rng = random.Random(weighed)
        lines = [
            f"NodeName=n{i} CPUs=2 State=CLOUD Weight={rng.choice((1, 1, 5))} Gres=gpu:4" for i in range(shape.nodes)
        ]
    text = f"TopologyPlugin={shape.plugin}\nGresTypes=gpu\n{CLOUD}{SCHEDULER.format(more)}" + "\n".join(lines)
    controller.write({"topology.conf": shape.conf}, "spare", more=text, partitions=PARTITION.format(names))
    (controller.folder / "gres.conf").write_text(f"NodeName={names} Name=gpu Count=4\n")


def sbatch(controller: BareController, *argv: str) -> subprocess.CompletedProcess[str]:
    script = "#!/bin/sh\nsleep 100000\n"
    return subprocess.run(
        ["sbatch", "--exclusive", "-o", "/dev/null", *argv],
        input=script,
        env=controller.env(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def submitted(controller: BareController, *argv: str) -> str:
    done = sbatch(controller, "--parsable", *argv)
    assert done.returncode == 0, (argv, done.stderr, controller.said())
    return done.stdout.strip()


def nodes_of(controller: BareController, job: str, *, wait_s: float = 20.0) -> list[str]:
    """Return the nodes that a job got, none where Slurm says that it waits."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        state, reason, nodes = controller.ask("squeue", "-h", "-j", job, "-o", "%T|%r|%N").strip().split("|")
        if nodes:
            return expand(nodes)
        if state == "PENDING" and reason not in ("None", "Priority"):
            return []
        time.sleep(0.05)
    raise AssertionError(f"job {job} neither started nor got a reason")


def backend(controller: BareController) -> CliBackend:
    return CliBackend(Settings(site=Site(slurm_conf=str(controller.conf))))


def seen(controller: BareController, version: Version) -> Situation:
    """Return the situation as the command reads it."""
    slurm = backend(controller)
    answers = Answers(version, slurm.config(), slurm.partitions(), slurm.nodes(), slurm.jobs(), slurm.topology_units())
    return situation(answers, partition_of(answers.partitions, "gpu"), time.time())


def make_busy(controller: BareController, shape: Shape, rng: random.Random) -> None:
    share = rng.uniform(0.2, 0.7)
    for line in shape.conf.splitlines():  # a job each: one that names nodes of several blocks is refused
        if found := re.search(r"Nodes=(\S+)", line):
            busy = [node for node in expand(found.group(1)) if rng.random() < share]
            if busy:
                submitted(controller, "-N", str(len(busy)), "-w", fold(busy), "-t", str(rng.randint(5, 300)))
    deadline = time.monotonic() + 30
    while "PENDING" in controller.ask("squeue", "-h", "-o", "%T"):
        assert time.monotonic() < deadline, controller.ask("squeue")
        time.sleep(0.02)


def foreseen(found: Situation, nodes: int, segment: int, together: bool) -> Counter[str] | str:
    """Return leaf or block -> nodes, or that the job waits, or is refused."""

    def placed(free: Free) -> Counter[str] | None:
        if found.kind == "tree":
            taken = advise_tree.place(found.switches, free, nodes, found.release)
            return Counter(taken) if taken is not None else None
        segments = advise_block.place(found.blocks, free, nodes, found.release, segment, consolidate=together)
        return sum(map(Counter, segments), Counter()) if segments is not None else None

    now = placed(next(iter(moments(found)))[1])
    return now or ("waits" if placed(everything(found, out=True)) else "refused")


def rate(
    controller: BareController, shape: Shape, version: Version, seed: int, sizes: Sequence[tuple[int, int]]
) -> list[str]:
    """Foresee and place jobs one after the other, without taking them away; return what differed."""
    rng = random.Random(seed)
    write(controller, shape, weighed=seed if shape.weights else 0)
    wrong = []
    with controller.running() as up:
        assert up, controller.said()
        make_busy(controller, shape, rng)
        for nodes, segment in sizes:
            found = seen(controller, version)
            together = bool(segment) and version >= (25, 11) and rng.random() < 0.4
            guess = foreseen(found, nodes, segment, together)
            options = [f"--segment={segment}"] if segment else []
            options += ["--consolidate-segments"] if together else []
            done = sbatch(controller, "--parsable", "-N", str(nodes), *options)
            job = done.stdout.strip()
            got = nodes_of(controller, job) if job else []
            unit_of = {place.node: place.unit for place in found.places}
            real = Counter(unit_of[node] for node in got) if got else "waits" if job else "refused"
            if nodes == 1 and version >= (26, 5) and isinstance(real, Counter) and isinstance(guess, Counter):
                guess = real  # one node is the first that is free: its leaf is not looked at
            if guess != real:
                wrong.append(f"seed {seed} -N {nodes} {' '.join(options)}: foreseen {guess}, placed {real}")
            if job and not got:
                controller.ask("scancel", job)
    return wrong


def advised(controller: BareController, *argv: str, user: bool = False, code: int = 0) -> str:
    """Return what the command prints (on an error: what it says); with `user`, Slurm is asked by nobody."""
    config, folder = controller.folder / "fmslurm.yaml", controller.folder / "bin"
    folder.mkdir(exist_ok=True)
    for name in ("scontrol", "squeue"):
        (folder / name).write_text(f'#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups {name} "$@"\n')
        (folder / name).chmod(0o755)
    config.write_text(f"site: {{slurm_conf: {controller.conf}{f', slurm_bin: {folder}' if user else ''}}}\n")
    for _ in range(5):
        done = subprocess.run(
            [FMSLURM, "topology", "advise", *argv],
            env={**controller.env(), "FMSLURM_CONFIG": str(config), "HOME": "/"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if code == 3 or "no answer within" not in done.stderr:  # each call is bounded, and a machine may be busy
            break
    assert done.returncode == code, (done.stdout, done.stderr, controller.said())
    return done.stdout if not code else done.stderr


@pytest.mark.parametrize("name", ["even", "small"])
def test_sbatch_takes_and_keeps_what_is_advised(name: str, controller: BareController, version: Version) -> None:
    shape = {**TREES, **BLOCKS}[name]
    if shape.plugin == BLOCK and version < (24, 5):
        pytest.skip(f"Slurm {version.text} has no --segment")
    write(controller, shape, more=",max_switch_wait=86400")
    asked = set()
    with controller.running() as up:
        assert up, controller.said()
        make_busy(controller, shape, random.Random(3))
        for nodes, *more in (
            (2,),
            (20, "--patience", "600"),
            (8,),
            (12, "--expert-parallel", "16"),
            (12, "--patience", "600"),
            (16,),
        ):
            told = json.loads(advised(controller, "-N", str(nodes), *more, "--json"))
            asked |= {option.partition("=")[0] for option in told["options"]}
            job = submitted(controller, "-N", str(nodes), *told["options"])
            starts = [row for row in told["rows"] if any(row["ask"] and row["ask"] in each for each in told["options"])]
            expected = starts[0]["starts_s"] if starts else told["starts_s"]
            assert bool(nodes_of(controller, job)) == (expected == 0.0)
            if expected:
                controller.ask("scancel", job)
    assert asked == ({"--switches"} if shape.plugin == TREE else {"--segment"})


def test_slurm_itself_foresees_no_earlier_start(controller: BareController, version: Version) -> None:
    """sbatch --test-only plays the ends of jobs through, in windows that grow: it is never earlier, and at the end the same."""
    shape = TREES["even"]
    write(controller, shape)
    with controller.running() as up:
        assert up, controller.said()
        make_busy(controller, shape, random.Random(4))
        for nodes in (40, 60, 80, 96):
            ours = advise(seen(controller, version), Request(nodes)).starts_s
            told = re.search(r"to start at (\S+) ", sbatch(controller, "--test-only", "-N", str(nodes)).stderr)
            assert ours is not None
            assert told is not None
            theirs = time.mktime(time.strptime(told[1], "%Y-%m-%dT%H:%M:%S")) - time.time()
            # Whole seconds, and the time that the two questions take.
            assert ours <= theirs + 60
            assert nodes < shape.nodes or theirs <= ours + 60


def test_any_user_is_told_in_words(controller: BareController, version: Version) -> None:
    write(controller, TREES["even"])
    with controller.running() as up:
        assert up, controller.said()
        said = advised(controller, "-N", "12", "--gpus-per-node", "4", user=True)
        assert said.startswith(
            "ask for: nothing\nwhy: it gets 2 leaves, the fewest there can be\n12 nodes of gpu (48 GPUs): without options: 2 leaves, now"
        )
        assert f"a model of Slurm {version.text}" in said
        told = json.loads(advised(controller, "-N", "12", "-p", "gpu", "--json", user=True))
        assert (told["schema"], told["topology"], told["spans"], told["fewest"]) == (1, "tree", 2, 2)
        assert sum(told["taken"].values()) == 12
        assert "no partition cpu: there are gpu" in advised(controller, "-N", "1", "-p", "cpu", code=2)
        assert "has 96 nodes, fewer than 97" in advised(controller, "-N", "97", code=2)
        controller.ask("scontrol", "update", "partitionname=gpu", "maxnodes=8")
        assert "at most 8 nodes" in advised(controller, "-N", "9", code=2)
    assert "scontrol" in advised(controller, "-N", "1", code=3)


def test_without_a_topology_leaves_are_our_own(controller: BareController, version: Version) -> None:
    plugin = "topology/flat" if version >= (25, 5) else "topology/none" if version < (23, 11) else "topology/default"
    write(controller, Shape("", 8, plugin))
    (controller.folder / "topology.conf").unlink()
    rows = "".join(f"n{i},top/leaf{i // 4}\n" for i in range(8))
    (controller.folder / "places.csv").write_text(f"node,path\n{rows}")
    with controller.running() as up:
        assert up, controller.said()
        told = json.loads(
            advised(controller, "-N", "5", "--json", "--source-file", str(controller.folder / "places.csv"))
        )
        assert (told["topology"], told["options"], told["fewest"], told["fewest_now"]) == ("flat", [], 2, 2)
        assert "--format hosts" in told["notes"][0]
        said = advised(controller, "-N", "5")
        assert "this Slurm has no topology" in said
        assert "leaves are not known here" in said


def test_a_partition_is_advised_by_the_topology_it_names(controller: BareController, version: Version) -> None:
    if version < (25, 5):
        pytest.skip(f"Slurm {version.text} has one topology")
    files = {
        "topology.yaml": "- topology: efa\n  cluster_default: true\n  tree:\n    switches:\n"
        '      - {switch: top, children: "l[0-1]"}\n'
        '      - {switch: l0, nodes: "n[0-7]"}\n      - {switch: l1, nodes: "n[8-15]"}\n'
        "- topology: nvl\n  cluster_default: false\n  block:\n    block_sizes: [4, 8]\n    blocks:\n"
        + "".join(f'      - {{block: b{i}, nodes: "n[{4 * i}-{4 * i + 3}]"}}\n' for i in range(4))
    }
    more = f"{CLOUD}{SCHEDULER.format('')}NodeName=n[0-15] CPUs=2 State=CLOUD"
    partitions = PARTITION.format("n[0-15]") + "PartitionName=gb Nodes=n[0-15] Topology=nvl\n"
    controller.write(files, "spare", more=more, partitions=partitions)
    with controller.running() as up:
        assert up, controller.said()
        tree_, block = (
            json.loads(advised(controller, "-N", "8", "-p", name, "--gpus-per-node", "4", "--json"))
            for name in ("gpu", "gb")
        )
        assert (tree_["topology"], tree_["unit"], tree_["fewest"], tree_["options"]) == ("tree", "leaf", 1, [])
        assert (block["topology"], block["fewest"], block["options"]) == ("block", 2, ["--segment=4"])
        job = submitted(controller, "-N", "8", "-p", "gb", *block["options"])
        assert len(nodes_of(controller, job)) == 8


def test_slurm_waits_for_switches_as_long_as_we_say(controller: BareController, version: Version) -> None:
    """--switches that cannot be met is waited out, up to max_switch_wait, from Slurm's first look at the job on."""
    wait_s = 20
    write(controller, Shape(tree([4, 4, 4, 4], 2), 16, TREE), more=f",max_switch_wait={wait_s}")
    slurm = backend(controller)

    def started(job: str) -> int:
        deadline = time.monotonic() + 120
        while not (found := slurm.jobs([job])[0]).nodes:
            assert time.monotonic() < deadline, controller.ask("squeue")
            time.sleep(0.1)
        return found.start_time

    with controller.running() as up:
        assert up, controller.said()
        controller.ask("scontrol", "update", "nodename=n[5-15]", "state=drain", "reason=test")
        told = json.loads(advised(controller, "-N", "5", "--json"))
        assert "--switches=1 would only wait out its time" in told["warnings"][0]
        late = submitted(controller, "-N", "6", "--switches=1@10:00")
        capped = submitted(controller, "-N", "5", "--switches=1@10:00")
        submit = slurm.jobs([capped])[0].submit_time
        assert wait_s <= started(capped) - submit < 300
        # The other one was looked at even before: it starts as soon as there are nodes, and not another 20 s later.
        resumed = int(time.time())
        controller.ask("scontrol", "update", "nodename=n[5-15]", "state=resume")
        assert started(late) - resumed < wait_s


def sizes_of(shape: Shape, rng: random.Random) -> list[tuple[int, int]]:
    """Return what jobs of a round ask for: nodes, and a segment size that divides them (0: none)."""
    if shape.plugin == TREE:
        return [(rng.choice((1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24)), 0) for _ in range(JOBS)]
    sizes = []
    for _ in range(JOBS):
        nodes = rng.choice((1, 2, 4, 8, 9, 12, 16, 18, 24, 32, 36))
        base = 18 if shape.nodes == 108 else 4
        sizes.append((nodes, rng.choice([size for size in range(1, min(nodes, base) + 1) if nodes % size == 0] + [0])))
    return sizes


def agreement(
    controller: BareController, shapes: Mapping[str, Shape], name: str, version: Version, rounds: int
) -> None:
    if shapes is BLOCKS and version < (24, 5):
        pytest.skip(f"Slurm {version.text} has no --segment")
    wrong: list[str] = []
    for seed in range(1, rounds + 1):
        wrong += rate(controller, shapes[name], version, seed, sizes_of(shapes[name], random.Random(seed)))
    print(f"Slurm {version.text} {name}: {rounds * JOBS - len(wrong)} of {rounds * JOBS} jobs as foreseen")
    if version >= REFUSES_BEFORE:  # such a job only may be refused
        wrong = [line for line in wrong if not line.endswith("foreseen refused, placed waits")]
    assert wrong == []


@pytest.mark.parametrize("name", TREES)
def test_a_job_gets_the_leaves_that_are_foreseen(name: str, controller: BareController, version: Version) -> None:
    agreement(controller, TREES, name, version, 1)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_job_gets_the_blocks_that_are_foreseen(name: str, controller: BareController, version: Version) -> None:
    agreement(controller, BLOCKS, name, version, 1)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*TREES, *BLOCKS])
def test_many_jobs_get_what_is_foreseen(name: str, controller: BareController, version: Version) -> None:
    agreement(controller, TREES if name in TREES else BLOCKS, name, version, 10)

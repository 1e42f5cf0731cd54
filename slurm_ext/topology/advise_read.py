"""What Slurm tells any user -> the situation that advice is made of: which nodes are free, when, and where they sit. Pure.

The job is taken to want whole nodes. A node that runs a job is free when the last of its jobs must end, by their time
limits: an upper bound, since jobs may end sooner. Reservations that have not begun, preemption and limits of accounts are
not looked at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import Job, Node, Partition, TopologyUnit, Version
from slurm_ext.topology.advise_model import BLOCK, FLAT, NEVER, NOW, OTHER, TREE, Blocks, Place, Situation, Switches

#: A node with one of these takes no job; RESERVED and MAINTENANCE belong to a reservation.
_OUT = frozenset(
    (
        "BLOCKED",
        "DRAIN",
        "FAIL",
        "INVALID_REG",
        "NOT_RESPONDING",
        "POWERING_DOWN",
        "POWER_DOWN",
        "POWER_DRAIN",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
    )
)
_RESERVED = frozenset(("RESERVED", "MAINTENANCE"))

#: What Slurm adds to a node's weight that must be booted first, and (26.05) to one that boots (_set_sched_weight).
_BOOT, _BOOTING = 1 << 41, 1 << 40

#: Seconds until a node is free whose job is past its end, or that is completing: soon, but not now.
_SOON_S = 60.0

#: Slurm's own default of max_switch_wait, in seconds.
DEFAULT_SWITCH_WAIT_S = 300

_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,4})(?=[,(]|$)")
_WAITS = frozenset(
    ("Dependency", "DependencyNeverSatisfied", "BeginTime", "JobHeldUser", "JobHeldAdmin", "JobArrayTaskLimit")
)


class Answers(NamedTuple):
    """What was asked of Slurm."""

    version: Version
    config: Mapping[str, str]
    partitions: Sequence[Partition]
    nodes: Sequence[Node]
    jobs: Sequence[Job]
    units: Sequence[TopologyUnit]


def partition_of(partitions: Iterable[Partition], name: str) -> Partition:
    """Return the partition of a name, the default one for no name. Raise ValueError where there is none."""
    known = {partition.name: partition for partition in partitions}
    if name:
        if name not in known:
            raise ValueError(f"Slurm has no partition {name}: there are {', '.join(sorted(known)) or 'none'}")
        return known[name]
    chosen = [partition for partition in known.values() if partition.default] or list(known.values())
    if len(chosen) != 1:
        raise ValueError(f"no partition is the default: there are {', '.join(sorted(known)) or 'none'}")
    return chosen[0]


def situation(
    answers: Answers, partition: Partition, now: float, leaf_of: Mapping[str, str] | None = None
) -> Situation:
    """Return what advice for a job in a partition is made of. Raise HostlistError for nodes that cannot be read.

    `leaf_of` is where nodes sit as we know it, for a Slurm that has no topology.
    """
    members = expand(partition.nodes)
    units = [unit for unit in answers.units if unit.kind in ("switch", "block")]
    unit_of = {node: unit.name for unit in units if unit.kind == "block" or unit.level == 0 for node in unit.nodes}
    kind = kind_of(answers)
    if kind == FLAT:
        unit_of = dict(leaf_of or {})
    ends = _ends(answers.jobs, now)
    shown = {node.name: node for node in answers.nodes}
    places, out, reserved = [], 0, 0
    for name in members:
        # scontrol hides cloud nodes that are powered down: they are configured, and a job may have them.
        node = shown.get(name, Node(name, "IDLE", ("CLOUD", "POWERED_DOWN")))
        free_at = _free_at(node, ends.get(name), now)
        weight_now = _weight(node, answers.version)
        # A busy node is booted by the time it is free.
        weight = weight_now if free_at == NOW else node.weight << 8
        when = NEVER if free_at is None else free_at
        places.append(Place(name, unit_of.get(name, ""), weight, when, free_at is None, weight_now))
        if free_at is not None:
            continue
        if _RESERVED & {*node.flags}:
            reserved += 1
        else:
            out += 1
    waiting = [job for job in answers.jobs if _is_ahead(job, partition.name)]
    parameters = answers.config.get("SchedulerParameters", "")
    topology_words = answers.config.get("TopologyParam", "").lower()
    return Situation(
        now=now,
        partition=partition.name,
        release=(answers.version.major, answers.version.minor),
        version=answers.version.text,
        kind=kind,
        places=tuple(places),
        switches=_switches(units) if kind == TREE else Switches((), (), ()),
        blocks=_blocks(answers.units) if kind == BLOCK else Blocks((), 0),
        sizes=Counter(unit_of[name] for name in members if name in unit_of),
        plugin=answers.config.get("TopologyPlugin", ""),
        out=out,
        reserved=reserved,
        endless=sum(place.free_at == NEVER and not place.out for place in places),
        pending_jobs=len(waiting),
        pending_nodes=sum(job.node_count for job in waiting),
        max_switch_wait_s=_number(parameters, "max_switch_wait", DEFAULT_SWITCH_WAIT_S),
        topo_optional="topooptional" in topology_words,
        dragonfly="dragonfly" in topology_words,
        gpus_per_node=_gpus(shown[name].gres for name in members if name in shown),
        notes=tuple(_notes(answers, members, shown, places)),
    )


def kind_of(answers: Answers) -> str:
    """Return what Slurm places jobs by: tree, block, flat (nothing), or other."""
    kinds = {unit.kind for unit in answers.units}
    if "other" in kinds:
        return OTHER
    if kinds:
        return BLOCK if "block" in kinds else TREE
    plugin = answers.config.get("TopologyPlugin", "").rpartition("/")[2]
    return FLAT if plugin in ("", "none", "default", "flat", "tree", "block") else OTHER


def _ends(jobs: Iterable[Job], now: float) -> dict[str, float]:
    """Return node -> when the last of its jobs must end."""
    ends: dict[str, float] = {}
    for job in jobs:
        if job.state not in ("RUNNING", "SUSPENDED", "COMPLETING") and "COMPLETING" not in job.flags:
            continue
        end = max(float(job.end_time), now + _SOON_S) if job.end_time else NEVER
        if "COMPLETING" in job.flags:
            end = now + _SOON_S
        try:
            names = expand(job.nodes)
        except HostlistError:
            continue
        for name in names:
            ends[name] = max(ends.get(name, 0.0), end)
    return ends


def _free_at(node: Node, end: float | None, now: float) -> float | None:
    """Return when a whole node is free, None where no job may have it."""
    flags = {*node.flags}
    if "POWERING_UP" in flags:
        flags.discard("NOT_RESPONDING")  # not yet
    if flags & (_OUT | _RESERVED) or node.state not in ("IDLE", "ALLOCATED", "MIXED"):
        return None
    if end is not None:
        return end
    if "COMPLETING" in flags:
        return now + _SOON_S
    # Busy, and no job that we are shown says until when (PrivateData hides others' jobs).
    return NOW if node.state == "IDLE" else NEVER


def _weight(node: Node, version: Version) -> int:
    """Return a node's weight as Slurm sorts it now."""
    weight = node.weight << 8
    if "POWERED_DOWN" in node.flags:
        return weight | _BOOT
    return weight | _BOOTING if "POWERING_UP" in node.flags and (version.major, version.minor) >= (26, 5) else weight


def _is_ahead(job: Job, partition: str) -> bool:
    """Say whether a waiting job may start before one that is submitted now."""
    return (
        job.state == "PENDING"
        and job.priority > 0
        and job.reason not in _WAITS
        and partition in job.partition.split(",")
    )


def _switches(units: Sequence[TopologyUnit]) -> Switches:
    position = {unit.name: index for index, unit in enumerate(units)}
    parents = [-1] * len(units)
    for index, unit in enumerate(units):
        for child in unit.switches:
            if child in position:
                parents[position[child]] = index
    return Switches(tuple(unit.name for unit in units), tuple(parents), tuple(unit.level for unit in units))


def _blocks(units: Sequence[TopologyUnit]) -> Blocks:
    """Return base blocks and planning levels; before 24.11 Slurm shows neither: the size of the first, and its default levels."""
    base_blocks = [unit for unit in units if unit.kind == "block"]
    size = base_blocks[0].size or len(base_blocks[0].nodes) or 1
    found = Blocks(tuple(unit.name for unit in base_blocks), size)
    if not base_blocks[0].size:
        return found
    above = {(unit.size // size - 1).bit_length() for unit in units if unit.kind == "blocks" and unit.size > size}
    return found._replace(levels=(0, *sorted(above)))


def _number(parameters: str, name: str, otherwise: int) -> int:
    found = re.search(rf"(?:^|,)\s*{name}=(\d{{1,9}})(?=,|\s|$)", parameters, re.IGNORECASE)
    return int(found.group(1)) if found else otherwise


def _gpus(gres: Iterable[str]) -> int:
    """Return how many GPUs a node has: the fewest of those that have any, 0 where none has."""
    counts = {count for text in gres if (count := sum(int(many) for many in _GPUS.findall(text)))}
    return min(counts, default=0)


def _notes(
    answers: Answers, members: Sequence[str], shown: Mapping[str, Node], places: Sequence[Place]
) -> Iterable[str]:
    hidden = sum(name not in shown for name in members)
    if hidden:
        yield f"{hidden} of the nodes are not shown by Slurm (cloud nodes that are off): taken for free, after a boot"
    select = answers.config.get("SelectType", "")
    if select and not select.endswith("/cons_tres"):
        yield f"what a job would span is a model of select/cons_tres, and this Slurm has {select}"
    if "LLN" in answers.config.get("SelectTypeParameters", ""):
        yield "CR_LLN: Slurm takes the least loaded nodes and does not look at the topology"
    if "jobs" in answers.config.get("PrivateData", "").lower().split(","):
        yield "PrivateData hides other users' jobs: when their nodes are free is not known"
    if answers.units and (lost := sum(not place.unit for place in places)):
        yield f"{lost} of the nodes are in no leaf or block: no job that is placed by topology gets them"

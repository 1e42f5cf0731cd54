"""EC2 asked where instances sit: ceil(N/100) calls, several at once, and what is known is kept where some of them fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from slurm_ext.aws.ec2 import InstanceTopology, parse_instance_topology
from slurm_ext.aws.service import Refused, Service, batches
from slurm_ext.aws.topology_types import is_ultraserver, layers
from slurm_ext.aws.trouble import Said, explain

CALL, PERMISSION = "EC2 DescribeInstanceTopology", "ec2:DescribeInstanceTopology"

#: Ids per call: the API takes at most 100, and MaxResults and InstanceIds exclude each other (EC2 API reference).
IDS_PER_CALL = 100

#: CapacityBlockId comes late for instances just launched (EC2 user guide): how often, and after how many seconds, it is asked
#: for again.
BLOCK_PAUSES_S = (2.0, 4.0, 8.0)

_GONE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_ID = re.compile(r"\bi-[0-9a-f]{1,40}\b")


class Places(NamedTuple):
    """What EC2 told. `unknown`: id -> why its place is not known; `notes`: what else a person should hear.

    `unasked` are those of `unknown` of which EC2 said nothing at all, in a batch that failed or an answer that lacks them: they
    may run where they ran before.
    """

    instances: tuple[InstanceTopology, ...]
    unknown: Mapping[str, str]
    notes: tuple[str, ...] = ()
    unasked: frozenset[str] = frozenset()


def instance_places(ec2: Service, instance_ids: Iterable[str]) -> Places:
    """Return the places of instances. Raise LackingError where EC2 cannot be asked at all, or told of none.

    Instances that are gone are left out and named. Ids are asked for in order, so that the same nodes make the same calls.
    """
    wanted = sorted({instance_id for instance_id in instance_ids if instance_id})
    if not wanted:
        return Places((), {})
    try:
        found, unknown, failed = _ask(ec2, wanted)
        found, notes = _with_blocks(ec2, found)
    except Refused as refused:
        raise explain(refused.said, CALL, PERMISSION) from refused
    unasked = set(failed)
    for instance_id in wanted:
        if instance_id not in found and instance_id not in unknown:
            unknown[instance_id] = "EC2's answer lacks it"
            unasked.add(instance_id)
    for instance_id, instance in found.items():
        if not instance.network_nodes:
            unknown[instance_id] = _no_nodes(instance.instance_type)
    in_order = tuple(found[instance_id] for instance_id in wanted if instance_id in found)
    return Places(in_order, unknown, (*notes, *_other_depths(found)), frozenset(unasked))


def _no_nodes(kind: str) -> str:
    """Return why EC2 may have no network nodes for a running or stopped instance of a type."""
    if layers(kind) is None:
        return f"EC2 gives no network nodes for it, and AWS lists none for {kind or 'its type'}"
    return f"EC2 gives no network nodes for it, though AWS lists {layers(kind)} for {kind}: it is not running"


def _other_depths(found: Mapping[str, InstanceTopology]) -> tuple[str, ...]:
    """Return what differs from the number of network nodes that AWS lists for a type: it is used as it comes."""
    seen: dict[tuple[str, int], int] = {}
    for instance in found.values():
        usual, depth = layers(instance.instance_type), len(instance.network_nodes)
        if depth and usual is not None and depth != usual:
            seen[instance.instance_type, depth] = seen.get((instance.instance_type, depth), 0) + 1
    return tuple(
        f"EC2 names {depth} network nodes for {count} instances of {kind}, and AWS lists {layers(kind)}"
        for (kind, depth), count in sorted(seen.items())
    )


def _ask(ec2: Service, wanted: list[str]) -> tuple[dict[str, InstanceTopology], dict[str, str], list[str]]:
    """Return what is known by id, why the rest is not, and of whom nothing was heard. Raise Refused where all calls failed."""
    found: dict[str, InstanceTopology] = {}
    unknown: dict[str, str] = {}
    failed: list[Refused] = []
    unheard: list[str] = []
    questions: dict[int, Callable[[], object]] = {
        number: partial(_batch, ec2, batch) for number, batch in enumerate(batches(wanted, IDS_PER_CALL))
    }
    asked = list(batches(wanted, IDS_PER_CALL))
    for number, answer in ec2.ask_all(questions):
        if isinstance(answer, Refused):
            failed.append(answer)
            unheard += asked[number]
            unknown.update(dict.fromkeys(asked[number], f"EC2 gave no answer: {answer.said.code or answer.said.words}"))
            continue
        known, gone = answer
        found.update((instance.instance_id, instance) for instance in known)
        unknown.update(gone)
    if failed and not found:
        raise failed[0]
    mine = set(wanted)
    return {key: instance for key, instance in found.items() if key in mine}, unknown, unheard


def _batch(ec2: Service, ids: list[str]) -> tuple[list[InstanceTopology], dict[str, str]]:
    """Return the places of up to 100 instances, and those that are no more. Raise Refused for any other failure."""
    gone: dict[str, str] = {}
    todo, found = [list(ids)], list[InstanceTopology]()
    while todo:
        batch = todo.pop()
        try:
            # A page for each of them, and an empty one behind, are the most that there can be.
            for page in ec2.pages("describe_instance_topology", most=len(batch) + 1, InstanceIds=batch):
                found += _parsed(page)
        except Refused as refused:
            if refused.said.code not in _GONE:
                raise
            named = set(_ID.findall(refused.said.words)) & set(batch)
            if not named and len(batch) > 1:
                # It does not say which: halves, down to the one that is wrong.
                middle = len(batch) // 2
                todo += [batch[middle:], batch[:middle]]
                continue
            gone.update(dict.fromkeys(named or batch, f"EC2 knows no such instance ({refused.said.code}): terminated?"))
            if rest := [one for one in batch if one not in gone]:
                todo.append(rest)
    return found, gone


def _parsed(page: Mapping[str, object]) -> list[InstanceTopology]:
    try:
        # boto3 leaves an empty list out of its answer.
        return parse_instance_topology({"Instances": page.get("Instances") or []})
    except ValueError as exc:
        raise Refused("describe_instance_topology", Said("", f"an answer of another shape: {exc}", False)) from exc


def _with_blocks(
    ec2: Service, found: Mapping[str, InstanceTopology]
) -> tuple[dict[str, InstanceTopology], tuple[str, ...]]:
    """Return the places with the capacity blocks of UltraServers that EC2 did not name at first, and what is still missing."""
    known = dict(found)
    for pause_s in (*BLOCK_PAUSES_S, 0.0):
        missing = sorted(
            instance_id
            for instance_id, instance in known.items()
            if is_ultraserver(instance.instance_type) and not instance.capacity_block_id
        )
        if not missing:
            return known, ()
        if pause_s == 0.0 or ec2.clock() + pause_s > ec2.until():
            break
        ec2.sleep(pause_s)
        try:
            again, _, _ = _ask(ec2, missing)
        except Refused:
            break
        known.update((key, instance) for key, instance in again.items() if instance.capacity_block_id)
    words = f"{len(missing)} instances of UltraServers have no CapacityBlockId yet (the first is {missing[0]})"
    return known, (f"{words}: EC2 fills it in late, ask again in a few minutes",)

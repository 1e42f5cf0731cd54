"""Which instance is behind each node, without asking the nodes: what Slurm, ParallelCluster's table, the nodes' own facts and EC2
say, held against one another. Pure.

A row of the table outlives its instance, a fact outlives its boot, and two VPCs may have the same private address: what EC2
contradicts is named and not used, and an address alone decides only where one instance has it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_ext.aws.ec2_instances import Instance
from slurm_ext.aws.pcluster import node_name
from slurm_ext.slurm.model import Node

#: A clock of a node and the controller's may differ by so much (seconds).
SLACK_S = 300

#: Flags under which nothing is behind a node, whatever address it still shows.
_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})


class Told(NamedTuple):
    """What a node wrote of itself: its instance, and when (epoch seconds)."""

    instance_id: str
    at_s: float
    instance_type: str = ""


class Evidence(NamedTuple):
    """Everything that is known. `instances` is None where EC2 was not asked; `tag` is what this cluster's instances carry."""

    nodes: Sequence[Node]
    table: Mapping[str, str] = {}
    told: Mapping[str, Told] = {}
    instances: Sequence[Instance] | None = None
    tag: tuple[str, str] = ("", "")


class NodeMap(NamedTuple):
    """`ids` has every node, with an empty id where no instance is behind it or nobody knows which.

    `stale`: node -> what was not used and why; `unmatched`: node with something behind it -> why its instance is not known.
    `unasked` are those of `unmatched` that may well run: only of the others EC2 says that nothing is behind them.
    `running`: nodes whose instance runs, as EC2's own list says.
    """

    ids: dict[str, str]
    stale: dict[str, str]
    unmatched: dict[str, str]
    types: dict[str, str]
    unasked: set[str]
    running: set[str]

    @property
    def notes(self) -> list[str]:
        """Return one line for each thing a person should hear."""
        lines = [f"{node}: {why}" for node, why in sorted(self.stale.items())]
        return lines + [f"{node}: {why}" for node, why in sorted(self.unmatched.items())]


def is_backed(node: Node) -> bool:
    """Say whether an instance is behind a node: a cloud node whose address is its own name has none."""
    if _OFF & set(node.flags):
        return False
    if "CLOUD" in node.flags or node_name(node.name) is not None:
        return node.address not in ("", node.name) or bool(node.instance_id)
    return True


def addresses_to_ask(nodes: Iterable[Node]) -> list[str]:
    """Return the addresses of nodes with something behind them that EC2 can be asked for."""
    return sorted({node.address for node in nodes if is_backed(node) and _is_address(node.address)})


def map_nodes(evidence: Evidence) -> NodeMap:
    """Return the instance behind each node, by the best evidence that nothing contradicts."""
    known = _Known(evidence)
    found = NodeMap({}, {}, {}, {}, set(), set())
    for node in evidence.nodes:
        found.ids[node.name] = ""
        if is_backed(node):
            _one(node, evidence, known, found)
    _each_once(found)
    return found


class _Known:
    """EC2's instances by id and by address; of several with one address, those of this cluster alone."""

    def __init__(self, evidence: Evidence) -> None:
        self.asked = evidence.instances is not None
        self.by_id = {instance.instance_id: instance for instance in evidence.instances or ()}
        self.by_address: dict[str, list[Instance]] = {}
        for instance in evidence.instances or ():
            names = (instance.private_dns, instance.private_dns.partition(".")[0])
            for address in {_one_form(text) for text in (*instance.addresses, *names)} - {""}:
                self.by_address.setdefault(address, []).append(instance)
        key, value = evidence.tag
        self.tag = (key, value) if key else None

    def at(self, address: str) -> list[Instance]:
        found = self.by_address.get(_one_form(address), [])
        if self.tag and len(found) > 1:
            key, value = self.tag
            mine = [one for one in found if one.tags.get(key) == value]
            return mine or found
        return found


def _one(node: Node, evidence: Evidence, known: _Known, found: NodeMap) -> None:
    complaints: list[str] = []
    accepted: list[tuple[str, str]] = []
    for source, instance_id in _candidates(node, evidence, complaints):
        if why := _contradiction(node, instance_id, known):
            complaints.append(f"{source} says {instance_id}, {why}")
        else:
            accepted.append((source, instance_id))
    if accepted:
        source, chosen = accepted[0]
        for other, differing in accepted[1:]:
            if differing != chosen:
                complaints.append(f"{other} says {differing}, {source} says {chosen}, which is used")
        found.ids[node.name] = chosen
    else:
        at = known.at(node.address)
        if len(at) == 1:
            found.ids[node.name] = at[0].instance_id
        elif at:
            several = ", ".join(f"{one.instance_id} ({one.vpc_id or 'no VPC'})" for one in at)
            found.unmatched[node.name] = (
                f"its address {node.address} belongs to {several}: an address alone decides nothing"
            )
            found.unasked.add(node.name)
        elif known.asked and node.address:
            found.unmatched[node.name] = f"no instance that is alive has its address {node.address}"
        else:
            found.unmatched[node.name] = "nobody says which instance is behind it"
            found.unasked.add(node.name)
    if complaints:
        found.stale[node.name] = "; ".join(complaints)
    if chosen_id := found.ids[node.name]:
        if chosen_id in known.by_id and known.by_id[chosen_id].state == "running":
            found.running.add(node.name)
        told = evidence.told.get(node.name)
        kind = known.by_id[chosen_id].instance_type if chosen_id in known.by_id else node.instance_type
        if not kind and told is not None and told.instance_id == chosen_id:
            kind = told.instance_type
        if kind:
            found.types[node.name] = kind


def _candidates(node: Node, evidence: Evidence, complaints: list[str]) -> list[tuple[str, str]]:
    """Return (who says so, instance id), the best first; a fact from before the node's boot is said, unless EC2 can judge it."""
    said: list[tuple[str, str]] = []
    if node.instance_id:
        said.append(("Slurm", node.instance_id))
    told = evidence.told.get(node.name)
    if told is not None and told.instance_id:
        if evidence.instances is None and node.boot_time and told.at_s < node.boot_time - SLACK_S:
            complaints.append(f"the node's own fact says {told.instance_id}, and is older than its boot")
        else:
            said.append(("the node's own fact", told.instance_id))
    if row := evidence.table.get(node.name):
        said.append(("ParallelCluster's table", row))
    return said


def _contradiction(node: Node, instance_id: str, known: _Known) -> str:
    """Return why an instance cannot be the one behind a node, empty where nothing speaks against it."""
    if not known.asked:
        return ""
    instance = known.by_id.get(instance_id)
    if instance is None:
        return "which is not alive any more"
    if _is_address(node.address) and _one_form(node.address) not in map(_one_form, instance.addresses):
        return f"whose address is {', '.join(instance.addresses) or 'none'}, and Slurm has {node.address}"
    return ""


def _each_once(found: NodeMap) -> None:
    """Take an instance away from every node that shares it with another: one of them is wrong, and nobody knows which."""
    owners: dict[str, list[str]] = {}
    for node, instance_id in found.ids.items():
        if instance_id:
            owners.setdefault(instance_id, []).append(node)
    for instance_id, nodes in owners.items():
        if len(nodes) > 1:
            for node in nodes:
                found.ids[node] = ""
                found.types.pop(node, None)
                found.running.discard(node)
                found.unasked.add(node)
                others = ", ".join(one for one in nodes if one != node)
                found.unmatched[node] = f"{instance_id} is said to be behind {others} as well"


def _one_form(text: str) -> str:
    """Return an address in the one form that all writings of it have, other text as it is."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

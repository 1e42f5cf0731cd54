"""Which nodes there are and which instance is behind each: the site's own list, else all that anybody knows, gathered and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.aws import pcluster
from slurm_ext.aws.dynamodb import node_table
from slurm_ext.aws.ec2_instances import Instance, instances_at, instances_of, instances_with_tag
from slurm_ext.aws.service import Service
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError, SlurmError, UsageError
from slurm_ext.slurm.hostlist import HostlistError, expand, shortened
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology.node_map import Evidence, Told, addresses_to_ask, is_backed, map_nodes
from slurm_ext.topology.reach import Choice, Reach
from slurm_ext.topology.sources import node_list


class Nodes(NamedTuple):
    """Which nodes there are: node -> instance id (empty: none), its type where known, and the notes.

    `unasked`: nodes with something behind them, and nobody knows which instance; `running`: those whose instance runs by EC2's list.
    """

    ids: dict[str, str]
    types: Mapping[str, str]
    notes: list[str]
    unasked: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()


def nodes_and_instances(settings: Settings, choice: Choice, reach: Reach, *, asks_ec2: bool) -> Nodes:
    """Return which instance is behind each node: by the list of nodes, else by all that is known of them."""
    if choice.nodes_file:
        listed = node_list(choice.nodes_file)
        return Nodes(
            {node: one.instance_id for node, one in listed.items()},
            {node: one.instance_type for node, one in listed.items() if one.instance_type},
            [],
        )
    try:
        nodes = all_nodes(reach.slurm())
    except SlurmError as exc:
        remedy = "Give --nodes FILE or set topology.nodes_file, or run this where Slurm answers"
        raise LackingError(f"no list of nodes, and Slurm does not tell them: {exc.message}", remedy=remedy) from exc
    if not nodes:
        raise LackingError("Slurm has no nodes", remedy="Give --nodes FILE or set topology.nodes_file")
    notes: list[str] = []
    evidence = Evidence(nodes, told=_told(settings, reach, notes))
    cluster = pcluster.cluster(reach.root)
    backed = [node.name for node in nodes if is_backed(node)]
    if backed and (table := settings.topology.node_table or cluster.table):
        try:
            evidence = evidence._replace(table=node_table(reach.dynamodb(), table, backed))
        except LackingError as exc:
            notes.append(f"ParallelCluster's table is not used: {exc}")
    tag = settings.topology.instance_tag
    key, _, value = tag.partition("=")
    if tag and not (key and value):
        raise UsageError(
            f"topology.instance_tag: {tag!r} is not KEY=VALUE", remedy="Write it so, e.g. cluster=training"
        )
    evidence = evidence._replace(
        tag=(key, value) if key else (pcluster.CLUSTER_TAG, cluster.name) if cluster.name else ("", "")
    )
    if asks_ec2 and backed:
        try:
            evidence = evidence._replace(instances=_instances(reach.ec2(), evidence))
        except LackingError as exc:
            notes.append(f"nothing is compared with EC2's own list of instances: {exc}")
    mapped = map_nodes(evidence)
    if backed and not any(mapped.ids.values()):
        why = next(iter(mapped.unmatched.values()), "nothing says so")
        raise LackingError(
            f"the instance of none of {len(backed)} nodes is known, e.g. {backed[0]}: {why}",
            remedy="Give --nodes FILE with node,instance_id, or see docs/guide/topology-sources.md for what maps them",
        )
    said = [*notes, *lines(mapped.stale), *lines(mapped.unmatched)]
    return Nodes(mapped.ids, mapped.types, said, frozenset(mapped.unasked), frozenset(mapped.running))


def all_nodes(slurm: Slurm) -> list[Node]:
    """Return the nodes, with those of the cloud that are powered down: Slurm shows them as members of partitions alone."""
    nodes = slurm.nodes()
    known = {node.name for node in nodes}
    hidden: dict[str, None] = {}
    for partition in slurm.partitions():
        try:
            hidden |= dict.fromkeys(name for name in expand(partition.nodes) if name not in known)
        except HostlistError:
            continue  # a form that we do not read: its nodes are known to Slurm all the same
    return [*nodes, *(Node(name, "IDLE", ("CLOUD", "POWERED_DOWN"), address=name) for name in hidden)]


def _instances(ec2: Service, evidence: Evidence) -> list[Instance] | None:
    """Return EC2's instances of this cluster: by its tag, else by the nodes' addresses and the ids that others say."""
    if evidence.tag[0]:
        return instances_with_tag(ec2, *evidence.tag)
    named = {node.instance_id for node in evidence.nodes} | set(evidence.table.values())
    named |= {told.instance_id for told in evidence.told.values()}
    addresses = addresses_to_ask(evidence.nodes)
    if not addresses and not named - {""}:
        return None
    found = {one.instance_id: one for one in instances_at(ec2, addresses)}
    found |= {one.instance_id: one for one in instances_of(ec2, named - found.keys())}
    return list(found.values())


def _told(settings: Settings, reach: Reach, notes: list[str]) -> dict[str, Told]:
    if not settings.site.share:
        return {}
    places = reach.places()
    if places is None:
        notes.append("the share does not answer: what the nodes told of themselves is not used")
    return {
        node: Told(place.instance_id, place.at_s, place.instance_type)
        for node, place in (places or {}).items()
        if place.instance_id
    }


def lines(reasons: Mapping[str, str]) -> list[str]:
    nodes: dict[str, list[str]] = {}
    for node, why in reasons.items():
        nodes.setdefault(why, []).append(node)
    return [f"{shortened(members)}: {why}" for why, members in sorted(nodes.items())]

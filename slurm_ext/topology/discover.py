"""From what a site has to the place of every node: the list of nodes, their instances, their places, and what was odd on the way.

Nothing is asked that the chosen source does not need; what cannot be asked is said, and what is known is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from slurm_ext.aws import pcluster
from slurm_ext.aws.ec2 import InstanceTopology
from slurm_ext.aws.ec2_reservations import reservation_places
from slurm_ext.aws.ec2_topology import instance_places
from slurm_ext.aws.topology_types import is_ultraserver, layers
from slurm_ext.config.model import Settings
from slurm_ext.errors import LackingError, UsageError
from slurm_ext.slurm.hostlist import HostlistError, expand, shortened
from slurm_ext.topology import domains
from slurm_ext.topology.backing import all_nodes, lines, nodes_and_instances
from slurm_ext.topology.model import Placement
from slurm_ext.topology.node_map import is_backed
from slurm_ext.topology.reach import AUTO, EC2, FILE, RESERVED, Choice, Reach
from slurm_ext.topology.sources import FromFile, before_launch, from_slurm, join, node_list, read_file

#: The origin of places that Slurm itself told: good to draw, and no reason to change Slurm.
FROM_SLURM = "the running Slurm's own topology"


class Discovered(NamedTuple):
    """Every node once, in a few words where it comes from, and one line for each thing a person should hear.

    `unasked` are nodes that may run, and whose place could not be learned: their batch failed, EC2's answer lacks them, or nobody
    knows their instance. What was known of their place may still be true. All others without a path do not run, or are of a
    type without topology. `unheard` are nodes of UltraServers of which the same is true for their NVLink domain.
    """

    placements: list[Placement]
    origin: str
    notes: list[str]
    unasked: frozenset[str] = frozenset()
    unheard: frozenset[str] = frozenset()


def discover(settings: Settings, choice: Choice, reach: Reach) -> Discovered:
    """Return the places of all nodes from the chosen source. Raise UsageError or LackingError, each with its remedy."""
    source = choice.source
    if source == AUTO:
        if choice.source_file:
            source = FILE
        else:
            try:
                return _finished(_from_ec2(settings, choice, reach), settings, choice, reach)
            except LackingError as exc:
                found = _finished(_from_slurm(reach), settings, choice, reach)
                words = f"EC2 cannot tell the places ({exc.message}): what the running Slurm has is taken"
                return found._replace(notes=[words, *found.notes])
    made = {EC2: _from_ec2, FILE: _from_file}.get(source)
    return _finished(made(settings, choice, reach) if made else _from_slurm(reach), settings, choice, reach)


def _from_ec2(settings: Settings, choice: Choice, reach: Reach) -> Discovered:
    nodes = nodes_and_instances(settings, choice, reach, asks_ec2=True)
    wanted = [one for one in nodes.ids.values() if one]
    places = instance_places(reach.ec2(), wanted)
    _some_known("EC2", wanted, places.instances, next(iter(places.unknown.values()), "no answer"))
    # join says it of every instance without a place; the reasons are told together below.
    placements, _ = join(nodes.ids, places.instances)
    placements = _typed(placements, nodes.types)
    late = {
        placement.node
        for placement in placements
        if not placement.path and placement.node in nodes.running and layers(placement.instance_type)
    }
    unknown = dict(places.unknown) | dict.fromkeys(
        (nodes.ids[node] for node in late if nodes.ids[node] not in places.unasked),
        "EC2 lists it as running, and gives no network nodes for it yet",
    )
    unasked = nodes.unasked | late | {node for node, one in nodes.ids.items() if one in places.unasked}
    notes = [*nodes.notes, *_unknown(nodes.ids, unknown), *places.notes]
    return Discovered(placements, "EC2 DescribeInstanceTopology", notes, unasked)


def _from_file(settings: Settings, choice: Choice, reach: Reach) -> Discovered:
    if not choice.source_file:
        raise UsageError("no file of places", remedy="Give --source-file FILE or set topology.source_file")
    found = read_file(choice.source_file)
    if isinstance(found, FromFile):
        placements, notes = list(found.placements), list[str]()
        if choice.nodes_file:
            listed = node_list(choice.nodes_file)
            placed = {placement.node for placement in placements}
            if missing := [node for node in listed if node not in placed]:
                notes.append(f"{choice.source_file} does not place {shortened(missing)}")
            if more := [node for node in placed if node not in listed]:
                notes.append(f"{choice.nodes_file} does not list {shortened(more)}, which {choice.source_file} places")
            placements += [Placement(node, listed[node].instance_id, listed[node].instance_type) for node in missing]
        return Discovered(placements, f"the places in {choice.source_file}", notes)
    instances: list[InstanceTopology] = found
    nodes = nodes_and_instances(settings, choice, reach, asks_ec2=False)
    wanted = [one for one in nodes.ids.values() if one]
    _some_known(choice.source_file, wanted, instances, "it does not have them, or has no network nodes for them")
    placements, odd = join(nodes.ids, instances)
    told = {instance.instance_id for instance in instances}
    unasked = nodes.unasked | {node for node, one in nodes.ids.items() if one and one not in told}
    origin = f"the recorded EC2 answer {choice.source_file}"
    return Discovered(_typed(placements, nodes.types), origin, [*nodes.notes, *odd], unasked)


def _some_known(who: str, wanted: Collection[str], instances: Iterable[InstanceTopology], why: str) -> None:
    """Raise LackingError where not one place is known: an empty answer is not taken for truth."""
    mine = set(wanted)
    if wanted and not any(one.network_nodes for one in instances if one.instance_id in mine):
        raise LackingError(
            f"{who} tells the place of none of {len(wanted)} instances: {why}",
            remedy="Are these the instances of this region? Else name places in a file (topology.source: file)",
        )


def _from_slurm(reach: Reach) -> Discovered:
    slurm = reach.slurm()
    paths = slurm.topology()
    if not paths:
        raise LackingError(
            "the running Slurm has no topology to take places from",
            remedy="Set topology.source to ec2 or file, or give slurmctld a topology first",
        )
    placements = from_slurm(paths, slurm.config().get("TopologyPlugin", ""))
    absent = [node for node in all_nodes(slurm) if node.name not in paths]
    missing = [node.name for node in absent]
    notes = [f"Slurm's own topology does not have {shortened(missing)}"] if missing else []
    everybody = [*placements, *(Placement(node) for node in missing)]
    unasked = frozenset(node.name for node in absent if is_backed(node))
    return Discovered(everybody, FROM_SLURM, notes, unasked)


def _finished(found: Discovered, settings: Settings, choice: Choice, reach: Reach) -> Discovered:
    """Return the places with those of reservations, the cliques that nodes tell, and what contradicts itself."""
    placements, notes = found.placements, list(found.notes)
    if choice.reservations:
        placements, more = _reserved(placements, choice, reach)
        notes += more
    silent = False
    if settings.site.share and any(is_ultraserver(placement.instance_type) for placement in placements):
        told = reach.places()
        if told is None:
            notes.append("the share does not answer: which NVLink cliques the nodes are in is not known")
        # A fact of another instance is of the node's last life.
        cliques = {
            placement.node: place.clique
            for placement in placements
            if (place := (told or {}).get(placement.node)) is not None
            and (not placement.instance_id or place.instance_id == placement.instance_id)
        }
        placements = domains.with_cliques(placements, cliques)
        silent = told is None
    if placements and not any(one.path or one.ultraserver_id or one.clique for one in placements):
        notes.append(
            f"nobody knows the place of any of {len(placements)} nodes: a topology of them tells Slurm nothing"
        )
    unheard = frozenset(one.node for one in placements if _domain_is_missing(one, found.unasked, silent))
    return found._replace(placements=placements, notes=[*notes, *domains.contradictions(placements)], unheard=unheard)


def _domain_is_missing(placement: Placement, unasked: Collection[str], silent: bool) -> bool:
    """Say whether a node may be in an NVLink domain of which nothing was heard: a silent share, a failed or a late answer."""
    if placement.clique or placement.ultraserver_id:
        return False
    if placement.node in unasked:
        return not placement.instance_type or is_ultraserver(placement.instance_type)
    late = bool(placement.path) and not placement.capacity_block_id
    return is_ultraserver(placement.instance_type) and bool(placement.instance_id) and (silent or late)


def _reserved(placements: list[Placement], choice: Choice, reach: Reach) -> tuple[list[Placement], list[str]]:
    """Return the placements with the nodes of reservations placed by them: those named, and those that the site's files name."""
    by_node = _files_reservations(placements, choice, reach)
    wanted: dict[str, str] = {}
    for text in choice.reservations:
        names, equals, reservation = text.rpartition("=")
        if not equals:
            found = {node: one for node, one in by_node.items() if text in (RESERVED, one)}
            # Nobody says whose it is: it stands for itself.
            wanted |= found if found or text == RESERVED else {text: text}
            continue
        try:
            wanted |= dict.fromkeys(expand(names), reservation)
        except HostlistError as exc:
            raise UsageError(
                f"--reservation {text}: {exc}", remedy="Give NODES=cr-..., e.g. gb-[1-18]=cr-0123"
            ) from exc
    if not wanted:
        raise UsageError(
            "no node is to be launched into a reservation",
            remedy="Give --reservation cr-..., or a column reservation_id in the list of nodes",
        )
    answer = reservation_places(reach.ec2(), set(wanted.values()))
    known = {placement.node for placement in placements}
    everybody = [*placements, *(Placement(node) for node in wanted if node not in known)]
    placed, notes = before_launch(everybody, wanted, answer.reservations)
    return placed, [*notes, *(f"{one}: {why}" for one, why in sorted(answer.unknown.items()))]


def _files_reservations(placements: Iterable[Placement], choice: Choice, reach: Reach) -> dict[str, str]:
    if choice.nodes_file:
        return {node: one.reservation_id for node, one in node_list(choice.nodes_file).items() if one.reservation_id}
    fleet = pcluster.reservations(reach.root)
    found = {}
    for placement in placements:
        name = pcluster.node_name(placement.node)
        if name is not None and (reservation := fleet.get((name.queue, name.compute_resource))):
            found[placement.node] = reservation
    return found


def _typed(placements: Iterable[Placement], types: Mapping[str, str]) -> list[Placement]:
    return [
        placement if placement.instance_type else placement._replace(instance_type=types.get(placement.node, ""))
        for placement in placements
    ]


def _unknown(ids: Mapping[str, str], unknown: Mapping[str, str]) -> list[str]:
    """Return the reasons why places are not known, each once with its nodes: thousands of nodes may share one."""
    return lines({node: unknown[one] for node, one in ids.items() if one in unknown})

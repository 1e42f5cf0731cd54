"""What GPUs each node offers, for the verbs of `fmslurm gres`: its type by a list or the topology's sources, and what it told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import click

from slurm_ext.aws import catalogue, gpu_types
from slurm_ext.aws.ec2 import InstanceTopology
from slurm_ext.cli.gres_check import has_numa_sockets
from slurm_ext.cli.output import say_text
from slurm_ext.cli.topology_source import chosen, discovered, source_options
from slurm_ext.config.model import Settings
from slurm_ext.errors import UsageError
from slurm_ext.gres import told
from slurm_ext.gres.places import numa_as_sockets
from slurm_ext.gres.render import Offer
from slurm_ext.gres.told import Told
from slurm_ext.site.detect import detect
from slurm_ext.slurm import conf_file
from slurm_ext.slurm.hostlist import fold
from slurm_ext.topology.reach import FILE
from slurm_ext.topology.sources import Listed, node_list, read_file


def offer_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which nodes there are, of what type, and what they told; `offers_of` takes them."""
    options = (
        source_options,
        click.option("--type", "default_type", default="", help="instance type of nodes that no source knows"),
        click.option(
            "--facts",
            multiple=True,
            metavar="FILE",
            help="what nodes show (`gres show --here --json`), one JSON object a line; beside what lies on the share",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def offers_of(settings: Settings, *, default_type: str, facts: Iterable[str], **options: Any) -> dict[str, Offer]:
    """Return what each node with GPUs offers. Raise UsageError for a node whose type nobody knows; say what is odd on stderr."""
    kinds, listed, origin = _kinds(settings, **options)
    if not default_type and settings.site.instance_type != "auto":
        default_type = settings.site.instance_type
    seen = facts_of(settings, facts)
    if seen and (slurm_conf := detect(settings).slurm_conf) and has_numa_sockets(slurm_conf):
        seen = {node: one._replace(facts=numa_as_sockets(one.facts)) for node, one in seen.items()}
    agreed = told.by_type(seen.values())
    offers: dict[str, Offer] = {}
    without: list[str] = []
    for node, kind in kinds.items():
        own = seen[node].facts if node in seen else None
        name = kind or default_type or (own.instance_type if own is not None else "")
        row = catalogue.with_gpus(name)
        if row is None and name and gpu_types.gpu_count(name) == 0:
            without.append(node)
            continue
        if row is None:
            known = ", ".join(sorted(catalogue.CATALOGUE))
            raise UsageError(
                f"{origin}: node {node}: the catalogue has no instance type {name or '(none given)'!r}",
                remedy=f"Give a column instance_type or --type; known are {known}; `fmslurm gres refresh` asks EC2 for others",
            )
        if own is not None and (own.unread or len(own.gpus) != row.gpus):
            own = None  # a node that misses a GPU is to be mended, not written down
        one = listed.get(node, Listed())
        offers[node] = Offer(row, one.address, one.port, own or agreed.get(row.name))
    if without:
        say_text(f"fmslurm: {fold(without)}: types without GPUs are left out", err=True)
    return offers


def facts_of(settings: Settings, paths: Iterable[str]) -> dict[str, Told]:
    """Return what nodes told on the share, and in files, which win. Raise UsageError for a file that holds no such thing."""
    share = settings.site.share
    found = told.read_all(share) if share else {}
    if found is None:
        say_text(f"fmslurm: {share} does not answer: what nodes told of their GPUs is not known", err=True)
        found = {}
    for path in paths:
        found |= {one.node: one for one in _facts_in(path)}
    return found


def _facts_in(path: str) -> list[Told]:
    held = conf_file.look(path)
    if held.state == conf_file.MISSING:
        raise UsageError(f"{path}: there is no such file", remedy="Name what `fmslurm gres show --here --json` printed")
    found = []
    for number, line in enumerate(held.text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            one = told.from_data(json.loads(line))
        except (ValueError, RecursionError):
            one = None
        if one is None:
            raise UsageError(
                f"{path}, line {number}: no facts of a node",
                remedy="One line each, as `fmslurm gres show --here --json` prints it",
            )
        found.append(one)
    return found


def _kinds(settings: Settings, **options: Any) -> tuple[dict[str, str], dict[str, Listed], str]:
    """Return node -> type (empty: not known), what a list says of nodes beside, and where it comes from."""
    choice = chosen(settings, **options)
    if not choice.nodes_file:
        found = discovered(settings, **options)
        return {one.node: one.instance_type for one in found.placements}, {}, found.origin
    listed = node_list(choice.nodes_file)
    answer = read_file(choice.source_file) if choice.source == FILE and choice.source_file else []
    recorded = answer if isinstance(answer, list) else []
    types = {one.instance_id: one.instance_type for one in recorded if isinstance(one, InstanceTopology)}
    kinds = {node: one.instance_type or types.get(one.instance_id, "") for node, one in listed.items()}
    return kinds, listed, os.fspath(choice.nodes_file)

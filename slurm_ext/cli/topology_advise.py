"""`fmslurm topology advise`: for a job of N nodes, what to ask of Slurm so that it lies close together, and what that costs."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.cli.topology_source import source_options, wanted_tree
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError, UsageError
from slurm_ext.slurm import connect
from slurm_ext.slurm.hostlist import HostlistError
from slurm_ext.topology import advise as deciding
from slurm_ext.topology.advise_model import FLAT, REFUSES_BEFORE, Advice, Request, Row, Situation
from slurm_ext.topology.advise_read import Answers, kind_of, partition_of, situation
from slurm_ext.topology.advise_words import lasting, many

#: More rows than this are thinned out for people; --json has them all.
_MOST_ROWS = 10


@click.command()
@click.option(
    "-N", "--node-count", "count", type=click.IntRange(1), required=True, metavar="N", help="whole nodes of the job"
)
@click.option("-p", "--partition", default="", metavar="PARTITION", help="partition (default: Slurm's own default)")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1, 1024),
    default=None,
    metavar="GPUS",
    help="GPUs the job uses on each node (default: as Slurm's GRES say)",
)
@click.option(
    "--expert-parallel",
    "--tensor-parallel",
    "group",
    type=click.IntRange(1),
    default=None,
    metavar="GPUS",
    help="size of the groups of GPUs that must talk over NVLink: expert or tensor parallel",
)
@click.option(
    "--patience",
    type=click.IntRange(0, 100_000),
    default=30,
    show_default=True,
    metavar="MINUTES",
    help="how much more waiting a better placement is worth",
)
@source_options
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def advise(
    count: int,
    partition: str,
    gpus_per_node: int | None,
    group: int | None,
    patience: int,
    as_json: bool,
    **sources: Any,
) -> None:
    """Say what --switches= or --segment= a job of N whole nodes should ask for, what it would span, and when it would start.

    Only asks Slurm what any user may ask. What a job would span is a model of Slurm's own choice; times are upper bounds,
    by the limits of running jobs. Where Slurm has no topology, places come from the same sources as for `generate`.
    """
    settings = site_settings()
    found, limit = _situation(settings, partition, sources)
    if 0 <= limit < count:
        raise UsageError(
            f"partition {found.partition} takes jobs of at most {many(limit, 'node')} (MaxNodes)",
            remedy="Ask for fewer nodes, or name another partition with -p",
        )
    request = Request(count, gpus_per_node or found.gpus_per_node, group or 0, patience * 60)
    try:
        advice = deciding.advise(found, request)
    except ValueError as exc:
        remedy = "Name them with --gpus-per-node" if "GPUs" in str(exc) else "Name another partition with -p"
        raise UsageError(str(exc), remedy=remedy) from exc
    if as_json:
        say_json(_data(found, request, advice))
    else:
        _say(found, request, advice)


def _situation(settings: Settings, name: str, sources: dict[str, Any]) -> tuple[Situation, int]:
    """Return the situation and the partition's limit of nodes for a job, -1 for none. Raise UsageError, SlurmError."""
    slurm = connect(settings)
    partitions = slurm.partitions()
    try:
        partition = partition_of(partitions, name)
    except ValueError as exc:
        raise UsageError(str(exc), remedy="Name a partition with -p; `sinfo` lists them") from exc
    answers = Answers(
        slurm.version(),
        slurm.config(),
        partitions,
        slurm.nodes(),
        slurm.jobs(),
        slurm.topology_units(partition.topology),
    )
    leaf_of, note = _own_leaves(settings, sources) if kind_of(answers) == FLAT else ({}, "")
    try:
        found = situation(answers, partition, time.time(), leaf_of)
    except HostlistError as exc:
        raise UsageError(f"partition {partition.name}: its nodes cannot be read: {exc}") from exc
    return found._replace(notes=(*found.notes, *([note] if note else []))), partition.max_nodes


def _own_leaves(settings: Settings, sources: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Return node -> leaf as our own sources know it, and a note where they do not."""
    try:
        tree, _ = wanted_tree(settings, **sources)
    except FmslurmError as exc:
        return {}, f"leaves are not known here: {exc}"
    return {node: path[-1] for node, path in tree.paths().items()}, ""


def _say(found: Situation, request: Request, advice: Advice) -> None:
    say_text(f"ask for: {' '.join(advice.options) or 'nothing'}")
    say_text(f"why: {advice.reason}")
    say_text(_now(found, request, advice))
    if advice.rows:
        say_text()
        say_table(*_table(advice, "refused" if found.release < REFUSES_BEFORE else "may be refused"))
    said = [f"warning: {line}" for line in advice.warnings] + [f"note: {line}" for line in advice.notes]
    if said:
        say_text()
    for line in said:
        say_text(line)


def _now(found: Situation, request: Request, advice: Advice) -> str:
    plural = "leaves" if advice.unit == "leaf" else f"{advice.unit}s"
    head = f"{many(request.nodes, 'node')} of {found.partition}"
    if request.gpus_per_node:
        head += f" ({request.nodes * request.gpus_per_node} GPUs)"
    parts = []
    if advice.spans:
        when = lasting(advice.starts_s or 0.0)
        would = f"{many(advice.spans, advice.unit, plural)}, {when if when == 'now' else 'in ' + when}"
        parts.append(f"without options: {would} (a model of Slurm {found.version})")
    parts.append(
        f"fewest on idle nodes: {many(advice.fewest_now, advice.unit, plural)}"
        if advice.fewest_now
        else "too few idle nodes now"
    )
    if advice.fewest:
        parts.append(f"on the whole partition: {advice.fewest}")
    return f"{head}: {'; '.join(parts)}"


def _table(advice: Advice, refused: str) -> tuple[list[str], list[list[str]]]:
    by_segment = any(row.segment for row in advice.rows) or advice.unit != "leaf"
    head = ["ASK", "LEAVES" if advice.unit == "leaf" else "DOMAINS", "STARTS", "WAITS MORE"]
    if by_segment:
        head += ["HELD NOW", "HELD"]
    return head, [_cells(row, by_segment, refused) for row in _told(advice)]


def _told(advice: Advice) -> list[Row]:
    """Return the rows that are shown: all where they are few, else the first, the last, what is advised, and some between."""
    rows = advice.rows
    step = -(-len(rows) // _MOST_ROWS)
    asked = {option.partition("@")[0] for option in advice.options}
    last = len(rows) - 1
    return [row for index, row in enumerate(rows) if index % step == 0 or index == last or row.ask in asked]


def _cells(row: Row, by_segment: bool, refused: str) -> list[str]:
    starts = lasting(row.starts_s) if row.starts_s is not None else "not in sight"
    starts = refused if row.refused else starts
    waits = lasting(row.waits_s) if row.waits_s else "-"
    cells = [row.ask or "(nothing)", str(row.spans or "-"), starts, waits]
    if not by_segment:
        return cells
    return [*cells, *((str(row.held_now), str(row.held)) if row.segment or row.held else ("-", "-"))]


def _data(found: Situation, request: Request, advice: Advice) -> dict[str, Any]:
    rows = [row._asdict() for row in advice.rows]
    return {
        "partition": found.partition,
        "slurm_version": found.version,
        "topology": found.kind,
        "nodes": request.nodes,
        "gpus_per_node": request.gpus_per_node,
        "group_gpus": request.group_gpus,
        **{key: value for key, value in advice._asdict().items() if key != "rows"},
        "rows": rows,
    }

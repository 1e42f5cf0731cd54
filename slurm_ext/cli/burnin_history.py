"""`fmslurm burnin history|thresholds`: what burn-ins measured, node by node, and what a run is judged by at this site."""

from __future__ import annotations

import calendar
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from slurm_ext.aws import catalogue
from slurm_ext.burnin import history, history_line, picture, rules, thresholds
from slurm_ext.burnin.picture_svg import to_html, to_svg
from slurm_ext.burnin.picture_text import to_text
from slurm_ext.burnin.thresholds import DAY_S, Fleet, Key, Run
from slurm_ext.cli.output import say_json, say_table, say_text, write_named
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import Burnin, Settings, at_node, machine_name
from slurm_ext.errors import UsageError
from slurm_ext.report.trail import since_text
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.verdict import one_line

#: A person waits for it; an administrator's share may be slow.
READ_S = 20.0
READ_MAX_BYTES = 128 << 20

Line = dict[str, Any]


@click.command("history")
@click.option("-w", "--node", default="", metavar="HOSTLIST", help="only burn-ins in which one of these took part")
@click.option("--since", default="", metavar="TIME", help="10m, 2h, 1d, 2031-05-01T12:00 (local) or ...Z (UTC)")
@click.option("--last", default=50, type=click.IntRange(1, 100_000), help="at most so many, newest last")
@click.option("--html", "html_file", default="", metavar="FILE", help="write the picture as a page")
@click.option("--svg", "svg_file", default="", metavar="FILE", help="write the picture as a drawing")
@click.option("--map/--no-map", "with_map", default=True, help="the node-by-node picture below the table")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@click.option("--noheader", is_flag=True, help="no line of column names, and no picture")
def history_(
    node: str, since: str, last: int, html_file: str, svg_file: str, with_map: bool, as_json: bool, noheader: bool
) -> None:
    """What burn-ins measured, and a picture of it node by node: of all nodes where there is a share, else of this one."""
    settings, now = site_settings(), time.time()
    try:
        begin = _begin(since, now)
        only = expand(node)
    except (HostlistError, ValueError) as exc:
        raise UsageError(str(exc)) from exc
    lines = read_lines(settings, since=begin)
    wanted = set(only)
    merged = [one for one in picture.merged(lines) if not wanted or wanted.intersection(history_line.nodes_of(one))]
    merged = merged[-last:]
    jobs = {str(one.get("job", "")) for one in merged}
    medians = {key: fleet.median_gbs for key, fleet in fleets(lines, settings.burnin, now).items() if fleet is not None}
    drawn = picture.build(
        [one for one in lines if str(one.get("job", "")) in jobs],
        floor=lambda kind, nodes, size: _floor(settings.burnin, kind, nodes, size),
        medians=medians,
        only=only,
    )
    for path, render in ((svg_file, to_svg), (html_file, to_html)):
        if path:
            write_named(path, render(drawn))
    if as_json:
        plain = [{**one, "nodes": list(history_line.nodes_of(one))} for one in merged]
        say_json({"burnins": plain, "map": picture.to_data(drawn)})
    elif merged:
        _say(merged, drawn, header=not noheader, with_map=with_map and not noheader)
    else:
        say_text("no burn-in has been recorded yet" if not (node or since) else "no burn-in fits", err=True)


def _begin(text: str, now: float) -> float:
    """Return the time (seconds since 1970) that a person wrote, 0.0 for none."""
    if not text:
        return 0.0
    return float(calendar.timegm(time.strptime(since_text(text, now=now)[:19], "%Y-%m-%dT%H:%M:%S")))


def _say(merged: Sequence[Line], drawn: picture.Picture, *, header: bool, with_map: bool) -> None:
    marks = {column.job: column.mark for column in drawn.columns}
    rows = [
        (
            marks.get(one_line(str(line.get("job", "")), 80), ""),
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(min(history_line.time_of(line), 4e9))),
            one_line(str(line.get("job", "")), 80),
            str(len(history_line.nodes_of(line))),
            one_line(str(line.get("verdict", "")), 20),
            f"{busbw:.3g}" if (busbw := _busbw(line)) else "",
            ",".join(_culprits(line)),
            one_line(str(line.get("reason", "")), 80),
        )
        for line in merged
    ]
    say_table(("MAP", "TIME", "JOB", "NODES", "VERDICT", "BUSBW_GBS", "CULPRITS", "REASON"), rows, header=header)
    if with_map:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
        say_text("")
        for text in to_text(drawn, width=width, colours=terminal and "NO_COLOR" not in os.environ):
            say_text(text, colours=terminal)


def _busbw(line: Mapping[str, Any]) -> float | None:
    past = history_line.past_of(line)
    return past.busbw_gbs if past is not None else None


def _culprits(line: Mapping[str, Any]) -> tuple[str, ...]:
    past = history_line.past_of(line)
    return past.culprits if past is not None else ()


def read_lines(settings: Settings, *, since: float = 0.0) -> list[Line]:
    """Return all lines there are since a time (seconds since 1970): the nodes' on the share, and this node's own."""
    lines = history.read_shared(settings.site.share, since=since, max_bytes=READ_MAX_BYTES, timeout_s=READ_S)
    known = {(line.get("job"), line.get("node")) for line in lines}
    name = os.environ.get("SLURMD_NODENAME") or machine_name()
    own = at_node(settings.site.state_dir, name)
    for line in history.read_local(own, refused=lambda why: say_text(f"left out: {why}", err=True)):
        # The share has the same line once more, where it could be reached.
        if history_line.time_of(line) >= since and (line.get("job"), line.get("node")) not in known:
            lines.append(line)
    return sorted(lines, key=history_line.time_of)


def _floor(burnin: Burnin, kind: str, nodes: int, size: int) -> float:
    return rules.floor_gbs(
        kind,
        nodes,
        message_bytes=size,
        site_floor=burnin.floor_busbw_gbs,
        site_pair_floor=burnin.pair_floor_busbw_gbs,
    )


def _runs(lines: Sequence[Line]) -> list[Run]:
    return [run for line in lines if (run := history_line.run_of(line)) is not None]


def fleets(lines: Sequence[Line], burnin: Burnin, now: float) -> dict[Key, Fleet | None]:
    """Return what the fleet shows for each key that any run has; None where there are too few."""
    runs = _runs(lines)
    return {
        key: thresholds.relative_floor(
            runs, key=key, now=now, percent=burnin.relative_percent or 100.0, history_d=burnin.history_d
        )
        for key in sorted({run.key for run in runs})
    }


@click.command("thresholds")
@click.option("--type", "instance_type", default="", help="only this instance type")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def thresholds_(instance_type: str, as_json: bool) -> None:
    """What a burn-in is judged by at this site: its own floors, the table's, the fleet's medians, and what would be flagged."""
    settings, now = site_settings(), time.time()
    burnin = settings.burnin
    lines = read_lines(settings, since=now - burnin.history_d * DAY_S)
    _check_type(instance_type, lines)
    instance_type = instance_type or (settings.site.instance_type if settings.site.instance_type != "auto" else "")
    known = {k: f for k, f in fleets(lines, burnin, now).items() if instance_type in ("", k.instance_type)}
    runs = [run for run in _runs(lines) if instance_type in ("", run.key.instance_type)]
    flagged = [
        (run, fleet)
        for run in runs
        if burnin.relative_percent > 0
        and (fleet := known.get(run.key)) is not None
        and thresholds.judge_relative(run.busbw_gbs, fleet) is not None
    ]
    data = {
        "message_bytes": burnin.message_bytes,
        "site": {"floor_busbw_gbs": burnin.floor_busbw_gbs, "pair_floor_busbw_gbs": burnin.pair_floor_busbw_gbs},
        "relative": {
            "percent": burnin.relative_percent,
            "act": burnin.relative_act,
            "history_d": burnin.history_d,
            "runs_min": thresholds.RUNS_MIN,
            "runs_per_set": thresholds.RUNS_PER_SET,
        },
        "tcp_alarm": {"busbw_gbs": rules.TCP_ALARM_GBS, "types": list(rules.TCP_ALARM_TYPES)},
        "checked_on": rules.FLOORS_CHECKED_ON,
        "table": [
            {**row._asdict(), "used": _is_used(burnin)}
            for row in rules.FLOORS
            if instance_type in ("", row.instance_type)
        ],
        "fleet": [
            {**key._asdict(), "recorded": sum(run.key == key for run in runs), **_fleet_data(fleet, burnin)}
            for key, fleet in known.items()
        ],
        "flagged": [
            {"time": run.time, "nodes": list(run.nodes), "busbw_gbs": run.busbw_gbs, "median_gbs": fleet.median_gbs}
            for run, fleet in flagged
        ],
    }
    if as_json:
        say_json(data)
    else:
        _say_thresholds(data, burnin)


def _check_type(instance_type: str, lines: Sequence[Line]) -> None:
    """Raise UsageError for a type that neither the catalogue nor any run knows: an empty table would look like an answer."""
    types = {row.instance_type for row in rules.FLOORS} | {run.key.instance_type for run in _runs(lines)}
    if instance_type and instance_type not in types and catalogue.find(instance_type) is None:
        raise UsageError(
            f"no instance type {one_line(instance_type, 80)} is known, and no run was on one",
            remedy=f"There are {', '.join(sorted(types - {''}))}",
        )


def _is_used(burnin: Burnin) -> bool:
    own = burnin.floor_busbw_gbs > 0 or burnin.pair_floor_busbw_gbs > 0
    return not own and burnin.message_bytes >= rules.FLOOR_BYTES


def _fleet_data(fleet: Fleet | None, burnin: Burnin) -> dict[str, Any]:
    if fleet is None:
        return {"runs": None, "sets": None, "median_gbs": None, "flag_below_gbs": None}
    below = fleet.floor_gbs if burnin.relative_percent > 0 else None
    return {"runs": fleet.runs, "sets": fleet.sets, "median_gbs": fleet.median_gbs, "flag_below_gbs": below}


def _say_thresholds(data: Mapping[str, Any], burnin: Burnin) -> None:
    say_text(f"all-reduce of {burnin.message_bytes >> 20} MiB over {burnin.transport}; figures are busbw in GB/s")
    if burnin.floor_busbw_gbs or burnin.pair_floor_busbw_gbs:
        say_text(
            f"the site's floors: {burnin.floor_busbw_gbs:g} from three nodes on, {burnin.pair_floor_busbw_gbs:g} for two; "
            "the table below is not used"
        )
    elif not _is_used(burnin):
        say_text("no floors: the table holds for 1 GiB and more only; set burnin.floor_busbw_gbs")
    else:
        say_text(f"the site set no floors of its own; the table's are used (read {rules.FLOORS_CHECKED_ON})")
    rows = [
        (row["instance_type"], _reach(row), f"{row['busbw_gbs']:g}", f"{row['published_gbs']:g}", row["source"])
        for row in data["table"]
    ]
    if rows:
        say_text("")
        say_table(("TYPE", "NODES", "FLOOR", "PUBLISHED", "SOURCE"), rows)
    say_text("")
    if burnin.relative_percent > 0:
        does = "is treated as below the floor" if burnin.relative_act == thresholds.DRAIN else "is flagged"
        say_text(
            f"{burnin.relative_percent:g} % below the median of {thresholds.RUNS_MIN} like runs or more of the last "
            f"{burnin.history_d:g} days {does}"
        )
    else:
        say_text("burnin.relative_percent is 0: no run is held against the fleet's median")
    fleet_rows = [_fleet_row(one) for one in data["fleet"]]
    if fleet_rows:
        say_table(("TYPE", "NODES", "MIB", "NCCL", "PLUGIN", "DRIVER", "RUNS", "SETS", "MEDIAN", "BELOW"), fleet_rows)
    else:
        say_text("no run has been recorded yet")
    for one in data["flagged"]:
        when = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(one["time"]))
        say_text(f"would be flagged: {when} {one['busbw_gbs']:.3g} GB/s on {len(one['nodes'])} nodes")


def _reach(row: Mapping[str, Any]) -> str:
    least = str(row["nodes_min"])
    return (least if row["nodes_min"] <= 2 else f"{least}+") + (" mnnvl" if row["mnnvl"] else "")


def _fleet_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    head = (one["instance_type"], one["bucket"], str(one["message_bytes"] >> 20))
    versions = tuple(one_line(one[name], 24) or "?" for name in ("nccl", "plugin", "driver"))
    if one["runs"] is None:
        return (*head, *versions, f"{one['recorded']} of {thresholds.RUNS_MIN}", "", "", "")
    below = f"{one['flag_below_gbs']:.4g}" if one["flag_below_gbs"] else ""
    return (*head, *versions, str(one["runs"]), str(one["sets"]), f"{one['median_gbs']:.4g}", below)

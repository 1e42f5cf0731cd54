"""The linter: files as text, a target release -> findings. Pure; no text makes it fail.

Each file is one of three kinds, told by its name or by what it holds; what two of them say of the same thing is compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_ext.topology import (
    lint_block,
    lint_releases,
    lint_rings,
    lint_slurm,
    lint_together,
    lint_topologies,
    lint_tree,
)
from slurm_ext.topology.lint_model import Finding, Given, Unit
from slurm_ext.topology.lint_read import Line, is_number, lines
from slurm_ext.topology.lint_report import Report

CONF, YAML, SLURM = "topology.conf", "topology.yaml", "slurm.conf"

_OF_SLURM_CONF = re.compile(r"^\s*(nodename|partitionname|topologyplugin|clustername|slurmctldhost)\s*=", re.I | re.M)
_OF_TOPOLOGY_CONF = re.compile(r"^\s*(switchname|blockname|ringname|blocksizes|blocklevels)\s*=", re.I | re.M)
_OF_YAML = re.compile(r"^\s*-?\s*[\"']?topology[\"']?\s*:", re.M)
#: Plugins that read no topology.conf; "" is the default.
_NO_FILE = ("", "none", "default", "flat")
_TREE_KEYS = ("switchname", "nodes", "switches", "linkspeed")
_BLOCK_KEYS = ("blockname", "nodes")


class Source(NamedTuple):
    """One file to look at; `kind` is CONF, YAML or SLURM, or empty to be told from name and text."""

    name: str
    text: str
    kind: str = ""
    includes: Mapping[str, str] = {}


def kind_of(name: str, text: str) -> str:
    """Return which kind of file it is."""
    base = name.rpartition("/")[2].lower()
    if base.endswith((".yaml", ".yml")):
        return YAML
    if _OF_TOPOLOGY_CONF.search(text) or base == "topology.conf":
        return CONF
    if _OF_SLURM_CONF.search(text) or base.startswith("slurm"):
        return SLURM
    return YAML if _OF_YAML.search(text) else CONF


def lint(sources: Sequence[Source], given: Given) -> list[Finding]:
    """Return everything that is wrong with the files, for one release of Slurm."""
    report = Report(given)
    kinds = [(source, source.kind or kind_of(source.name, source.text)) for source in sources]
    yaml_wins = any(kind == YAML for _, kind in kinds) and given.release.feature >= (25, 5)
    conf: lint_slurm.SlurmConf | None = None
    for source, kind in kinds:
        if kind == SLURM and conf is None:
            conf = lint_slurm.read(report, _lines(report, source), source.name)
            lint_slurm.check(report, conf, yaml=yaml_wins)
    if conf is not None and not given.nodes:
        report.given = given = given._replace(nodes=frozenset(conf.weights), weights=conf.weights)
    held: lint_topologies.Found | None = None
    found: lint_topologies.Found | None = None
    for source, kind in kinds:
        if kind == CONF:
            report.unread = yaml_wins or (conf is not None and conf.plugin() in _NO_FILE and not report.partial)
            held = _topology_conf(report, source, conf)
            report.unread = False
        elif kind == YAML:
            found = lint_topologies.check(report, source.text, source.name)
    if conf is not None:
        lint_together.check(report, conf, held, found)
    if sources:
        of_kinds = [kind for part in (held, found) if part is not None for kind in part.kinds]
        lint_releases.check(report, sources[0].name, of_kinds)
    return report.sorted()


def _lines(report: Report, source: Source) -> list[Line]:
    entries = list(lines(source.name, source.text, source.includes))
    for entry in entries:
        if entry.circle:
            report.add("conf.circle", entry.file, entry.number, what=entry.include)
        elif "*" in entry.include:
            report.add("conf.glob", entry.file, entry.number, what=entry.include)
        elif '"' in entry.include and entry.include not in source.includes:
            report.add("conf.quoted", entry.file, entry.number, what=entry.include)
        elif entry.include and entry.include not in source.includes:
            report.add("conf.include", entry.file, entry.number, what=entry.include)
            report.partial = True
        if entry.rest:
            report.add("conf.parse", entry.file, entry.number, what=entry.rest[:60])
    return entries


def _topology_conf(report: Report, source: Source, conf: lint_slurm.SlurmConf | None) -> lint_topologies.Found:
    switches: list[Unit] = []
    blocks: list[Unit] = []
    sizes: lint_block.Sizes | None = None
    entries = _lines(report, source)
    firsts = {entry.pairs[0][0] for entry in entries if entry.pairs}
    wanted = conf.plugin() if conf is not None else ""
    if report.given.release.feature >= (26, 5) and (wanted == "ring" or (not wanted and "ringname" in firsts)):
        return _rings(report, entries, source.name)
    # What the file holds decides; where it holds both, what slurm.conf wants.
    of_blocks = bool(firsts & {"blockname", "blocksizes", "blocklevels"})
    of_blocks = of_blocks and ("switchname" not in firsts or wanted == "block")
    of_blocks = of_blocks or (wanted == "block" and "switchname" not in firsts)
    sizes_key = "blocklevels" if report.given.release.feature < (24, 5) else "blocksizes"
    known_firsts = ("blockname", sizes_key) if of_blocks else ("switchname",)
    inside = _BLOCK_KEYS if of_blocks else _TREE_KEYS
    if "blockname" in firsts and "switchname" in firsts:
        where = next(e for e in entries if e.pairs and e.pairs[0][0] == ("switchname" if of_blocks else "blockname"))
        report.add("conf.mixed", where.file, where.number)
    for entry in entries:
        if not entry.pairs:
            continue
        first, name = entry.pairs[0]
        if first == "switchname":
            switches.append(Unit(name, entry.file, entry.number, entry.get("nodes"), entry.get("switches")))
            if (speed := entry.get("linkspeed")) is not None:
                rule = "tree.link-speed" if is_number(speed) else "tree.link-speed-number"
                report.add(rule, entry.file, entry.number, what=speed)
        elif first == "blockname":
            blocks.append(Unit(name, entry.file, entry.number, entry.get("nodes")))
        elif first in ("blocksizes", "blocklevels"):
            sizes = lint_block.Sizes(first, name, entry.number)
        others = inside[1:] if first == known_firsts[0] else ()
        for number, (key, _) in enumerate(entry.pairs):
            mixed = "blockname" in firsts and "switchname" in firsts and first in ("switchname", "blockname")
            if (not mixed or first in known_firsts) and key not in (others if number else known_firsts):
                report.add(
                    "conf.unknown-key", entry.file, entry.number, key=key, known=", ".join(known_firsts + inside[1:])
                )
    if of_blocks:
        lint_block.check(report, blocks, sizes, source.name)
        return _found("block", blocks, {})
    return _found("tree", switches, lint_tree.check(report, switches, source.name))


def _rings(report: Report, entries: Sequence[Line], file: str) -> lint_topologies.Found:
    rings = []
    for entry in entries:
        for number, (key, name) in enumerate(entry.pairs):
            if key != ("nodes" if number else "ringname"):
                report.add("conf.unknown-key", entry.file, entry.number, key=key, known="ringname, nodes")
            elif not number:
                rings.append(Unit(name, entry.file, entry.number, entry.get("nodes")))
    lint_rings.check(report, rings, file)
    return _found("ring", rings, {})


def _found(kind: str, units: Sequence[Unit], roots: dict[str, str]) -> lint_topologies.Found:
    topology = lint_topologies.Topology(lint_together.DEFAULT, kind, {unit.name: unit for unit in units})
    return lint_topologies.Found((topology,), roots)

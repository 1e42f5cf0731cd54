"""Rules of trees: what topology/tree does with a list of switches, step by step as its own validation goes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_ext.topology.budget_cost import predict, seconds
from slurm_ext.topology.lint_hosts import overflow
from slurm_ext.topology.lint_model import Unit
from slurm_ext.topology.lint_report import Report, folded
from slurm_ext.topology.naming import MAX_NAME

#: Slurm goes over the switches so often to find their levels, and stops where some are still without.
PASSES = 21
#: From so many seconds on that its switches take slurmctld, a tree is worth a warning: nobody gets an answer meanwhile, commands
#: give up after 10 (MessageTimeout), and another machine may take twice or four times as long.
SLOW_S = 2.0
MOST_SWITCHES = 65_534


def check(report: Report, units: Sequence[Unit], file: str, *, line: int = 1, yaml: bool = False) -> dict[str, str]:
    """Report what is wrong with a tree, and return node -> the root that it is below, where that is one."""
    if not units:
        report.add("conf.empty", file, line, kind="switches")
        return {}
    known = _names(report, units, yaml)
    children = _children(report, units, known, yaml)
    parents = _parents(report, units, children)
    _levels(report, units, children, known)
    leaf_of, _ = members(report, units, "tree")
    _orphans(report, leaf_of, file, line)
    roots = [unit for unit in known.values() if unit.name not in parents]
    if len(roots) > 1:
        report.add("tree.forest", file, roots[1].line, count=len(roots), roots=", ".join(u.name for u in roots[:6]))
    if len(units) > MOST_SWITCHES:
        report.add("tree.too-many-switches", file, line, count=len(units))
    elif predict(len(units), release := report.given.release.feature) >= SLOW_S:
        report.add("tree.many-switches", file, line, count=len(units), seconds=seconds(len(units), release))
    return _roots_of(leaf_of, parents)


def _names(report: Report, units: Sequence[Unit], yaml: bool) -> dict[str, Unit]:
    known: dict[str, Unit] = {}
    for unit in units:
        if unit.name in known:
            report.add("tree.duplicate", unit.file, unit.line, name=unit.name, first=known[unit.name].line)
            continue
        known[unit.name] = unit
        if len(unit.name.encode("utf-8", "replace")) > MAX_NAME:
            # 24.05.5 brought the limit, and every later release has it.
            release = report.given.release
            mild = "warning" if release.feature == (24, 5) and 0 <= release.patch < 5 and not yaml else ""
            rule = "tree.long-name-yaml" if yaml else "tree.long-name"
            report.add(rule, unit.file, unit.line, severity=mild, name=unit.name)
        if count := overflow(unit.name):
            report.add("hostlist.digits", unit.file, unit.line, what=f"the name {unit.name}", count=count)
        if unit.nodes is not None and unit.children is not None:
            report.add("tree.both-yaml" if yaml else "tree.both", unit.file, unit.line, name=unit.name)
        elif unit.nodes is None and unit.children is None:
            report.add("tree.childless", unit.file, unit.line, name=unit.name)
        elif unit.nodes is None and not (unit.children or "").strip(", "):
            report.add("tree.empty-children", unit.file, unit.line, name=unit.name)
    return known


def _children(report: Report, units: Sequence[Unit], known: Mapping[str, Unit], yaml: bool) -> dict[str, list[str]]:
    """Return name -> its children, as far as they are switches; a switch with nodes has none."""
    found: dict[str, list[str]] = {}
    for unit in units:
        if unit.children is None or unit.nodes is not None or unit.name in found:
            continue
        here = found[unit.name] = []
        for child in report.names(unit.children, unit.file, unit.line):
            if count := overflow(child):
                report.add("tree.digits-child", unit.file, unit.line, name=unit.name, child=child, count=count)
            elif child not in known:
                report.add("tree.unknown-child", unit.file, unit.line, name=unit.name, child=child)
            elif child == unit.name:
                report.add("tree.not-a-tree", unit.file, unit.line, name=unit.name)
            else:
                here.append(child)
    return found


def _parents(report: Report, units: Iterable[Unit], children: Mapping[str, Sequence[str]]) -> dict[str, str]:
    parents: dict[str, list[str]] = {}
    for name, below in children.items():
        for child in dict.fromkeys(below):
            parents.setdefault(child, []).append(name)
    where = {unit.name: unit for unit in units}
    for name, above in parents.items():
        if len(above) > 1:
            unit = where[name]
            report.add("tree.two-parents", unit.file, unit.line, name=name, parents=" and ".join(above[:4]))
    return {child: above[0] for child, above in parents.items()}


def _levels(
    report: Report, units: Sequence[Unit], children: Mapping[str, Sequence[str]], known: Mapping[str, Unit]
) -> None:
    """Go over the switches as Slurm does, in the order of the file: a level is known once its children's are."""
    resolved = {name for name in known if name not in children}
    waiting = [name for name in known if name in children]
    for _ in range(PASSES):
        still = []
        for name in waiting:
            if all(child in resolved for child in children[name]):
                resolved.add(name)
            else:
                still.append(name)
        waiting = still
        if not waiting:
            return
    for name in waiting[:3]:
        report.add("tree.not-a-tree", known[name].file, known[name].line, name=name)


def members(report: Report, units: Sequence[Unit], kind: str) -> tuple[dict[str, Unit], dict[str, int]]:
    """Return node -> the leaf or block it is in (the first), and how many nodes that exist each has by its own list.

    Report nodes in two, and nodes that nobody defines.
    """
    owner: dict[str, Unit] = {}
    counts: dict[str, int] = {}
    given = report.given.nodes
    for unit in units:
        if unit.nodes is None:
            continue
        twice: dict[str, list[str]] = {}
        unknown = []
        names = report.names(unit.nodes, unit.file, unit.line)
        counts[unit.name] = sum(node in given for node in names) if given else len(names)
        for node in names:
            first = owner.setdefault(node, unit)
            if first is not unit:
                twice.setdefault(first.name, []).append(node)
            elif given and node not in given:
                unknown.append(node)
        for other, nodes in twice.items():
            report.add(f"{kind}.node-twice", unit.file, unit.line, count=len(nodes), first=other, second=unit.name,
                       nodes=folded(nodes))  # fmt: skip
        if unknown:
            report.add(f"{kind}.unknown-node", unit.file, unit.line, name=unit.name, nodes=folded(unknown))
    for node in owner:
        if count := overflow(node):
            report.add("hostlist.digits", owner[node].file, owner[node].line, what=f"the node {node}", count=count)
    return owner, counts


def _orphans(report: Report, leaf_of: Mapping[str, Unit], file: str, line: int) -> None:
    if missing := report.given.nodes - leaf_of.keys():
        report.add("tree.orphans", file, line, count=len(missing), nodes=folded(missing))


def _roots_of(leaf_of: Mapping[str, Unit], parents: Mapping[str, str]) -> dict[str, str]:
    top: dict[str, str] = {}
    for leaf in {unit.name for unit in leaf_of.values()}:
        name, way = leaf, dict[str, None]()
        while name not in top and name in parents and name not in way:  # a circle ends, too
            way[name] = None
            name = parents[name]
        top.update(dict.fromkeys((*way, name), top.get(name, name)))
    return {node: top[unit.name] for node, unit in leaf_of.items()}

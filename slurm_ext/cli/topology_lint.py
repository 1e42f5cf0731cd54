"""`fmslurm topology lint`: read topology files and slurm.conf, and say what a version of Slurm makes of them."""

from __future__ import annotations

import os
import sys
from collections import Counter

import click

from slurm_ext.cli.output import say_json, say_text
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.errors import LackingError, SlurmError, UsageError
from slurm_ext.slurm import connect
from slurm_ext.topology.lint import SLURM, YAML, Source, kind_of
from slurm_ext.topology.lint import lint as lint_files
from slurm_ext.topology.lint_hosts import hosts
from slurm_ext.topology.lint_model import SEVERITIES, Finding, Given, Release, release
from slurm_ext.topology.lint_read import MAX_DEPTH, MAX_FILES, MAX_TEXT, include_names

_MAX_NODES = 200_000


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--slurm-version", default="", metavar="VERSION", help="for this Slurm (default: the one that runs here)")
@click.option("--slurm-conf", default="", metavar="FILE", help="the slurm.conf that goes with them")
@click.option(
    "--nodes", "nodes", default="", metavar="HOSTLIST|FILE", help="all nodes there are (default: those of slurm.conf)"
)
@click.option("--strict", is_flag=True, help="exit code 1 on warnings, too")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def lint(files: tuple[str, ...], slurm_version: str, slurm_conf: str, nodes: str, strict: bool, as_json: bool) -> None:
    """Say what is wrong with topology.conf, topology.yaml and slurm.conf, whoever wrote them.

    fatal: slurmctld does not start. error: it starts, and jobs do not or are placed wrongly. warning: it works worse than
    it could. Exit code 1 on errors and worse.
    """
    wanted = _release(slurm_version)
    sources = [_source(path) for path in files]
    if slurm_conf:
        sources.append(_source(slurm_conf, SLURM))
    found = lint_files(sources, Given(wanted, _nodes(nodes)))
    worst = SEVERITIES.index("warning" if strict else "error")
    failed = any(SEVERITIES.index(finding.severity) <= worst for finding in found)
    if as_json:
        say_json({"slurm_version": wanted.words(), "findings": [finding._asdict() for finding in found]})
    else:
        _say(found, wanted, len(sources))
    if failed:
        sys.exit(1)


def _say(found: list[Finding], wanted: Release, files: int) -> None:
    for finding in found:
        where = f"{finding.file}:{finding.line}" if finding.line else finding.file
        say_text(f"{where}: {finding.severity}: {finding.reason} ({finding.rule})")
        if finding.remedy and finding.severity != "note":
            say_text(f"    {finding.remedy}")
    counts = Counter(finding.severity for finding in found)
    words = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    say_text(f"{words or 'nothing wrong'}, for Slurm {wanted.words()}, in {files} file{'s' if files > 1 else ''}")


def _release(text: str) -> Release:
    if text:
        found = release(text)
        if found is None:
            raise UsageError(f"--slurm-version {text}: no version of Slurm", remedy="For example 24.11.5")
        return found
    try:
        return release(connect(site_settings()).version().text) or Release(0, 0)
    except SlurmError as exc:
        raise LackingError(f"no Slurm here to lint for: {exc}", remedy="Name one with --slurm-version") from exc


def _source(path: str, kind: str = "") -> Source:
    text = _read(path)
    kind = kind or kind_of(path, text)
    includes: dict[str, str] = {}
    if kind != YAML:
        folder, waiting = os.path.dirname(path), [(name, 1) for name in include_names(text)]
        while waiting and len(includes) < MAX_FILES:
            name, depth = waiting.pop(0)
            inner = os.path.join(folder, name)
            if name in includes or "*" in name or not os.path.isfile(inner):
                continue
            includes[name] = _read(inner)
            if depth < MAX_DEPTH:
                waiting += [(more, depth + 1) for more in include_names(includes[name])]
    return Source(path, text, kind, includes)


def _read(path: str) -> str:
    """Return a file's text, bytes that are no UTF-8 kept as they are."""
    try:
        if not os.path.isfile(path):
            raise UsageError(f"{path} is no file", remedy="Name topology.conf, topology.yaml or slurm.conf")
        with open(path, "rb") as stream:
            raw = stream.read(MAX_TEXT + 1)
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}", remedy="Name a readable file") from exc
    if len(raw) > MAX_TEXT:
        raise UsageError(
            f"{path} is larger than any topology file", remedy="Name topology.conf, topology.yaml or slurm.conf"
        )
    return raw.decode("utf-8", "surrogateescape")


def _nodes(text: str) -> frozenset[str]:
    """Return the nodes of a hostlist, or of a file: CSV with a column node, or hostlists, by lines."""
    if not text:
        return frozenset()
    lines = [text]
    if os.path.isfile(text):
        rows = _read(text).splitlines()
        header = [word.strip().lower() for word in rows[0].split(",")] if rows else []
        column = header.index("node") if "node" in header else -1
        lines = (
            [row.split(",")[column].strip() for row in rows[1:] if row.count(",") >= column] if column >= 0 else rows
        )
    names: set[str] = set()
    for line in lines:
        found = hosts(line, _MAX_NODES - len(names))
        if found.problem:
            raise UsageError(f"--nodes {line[:60]}: no hostlist, or too many nodes", remedy="For example n[1-16]")
        names.update(found.names)
    return frozenset(names)

"""`fmslurm node evidence`: the bundles that were saved before drains: list them, name one, copy one out."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any, NamedTuple

import click

from slurm_ext import shared
from slurm_ext.cli.node_options import AS_JSON
from slurm_ext.cli.output import fields_option, say_fields, say_json, say_text
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import FindingError, LackingError, UsageError
from slurm_ext.files import open_regular

FOLDER = "evidence"
COLUMNS = ("name", "time", "finding", "files", "bytes", "path")

#: How long (seconds) the share may take, and how many bundles of a node and bytes of a bundle are looked at.
TIMEOUT_S, MOST, MOST_FILES, MOST_BYTES = 20.0, 1000, 200, 64 << 20

_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-([A-Za-z0-9._-]{1,100})")


class Bundle(NamedTuple):
    """One saved folder: its name, when (UTC), for which finding, how many files and bytes, and where it lies."""

    name: str
    time: str
    finding: str
    files: int
    bytes: int
    path: str


@click.command()
@click.argument("node", metavar="NODE")
@click.option("--list", "listing", is_flag=True, help="List the bundles; this is also what it does without an option.")
@click.option("--path", "only_path", is_flag=True, help="Print the path of one bundle, the newest unless named.")
@click.option("--out", default="", metavar="DIR", help="Copy one bundle into DIR, the newest unless named.")
@click.option(
    "--bundle", "name", default="", metavar="NAME", help="The bundle that is meant, by its name or its beginning."
)
@AS_JSON
@fields_option(*COLUMNS)
def evidence(
    node: str,
    listing: bool,
    only_path: bool,
    out: str,
    name: str,
    as_json: bool,
    fields: tuple[str, ...],
    noheader: bool,
) -> None:
    """Show what was saved of a node before it was drained. `fmslurm gate replay PATH` judges a bundle again.

    The bundles are root's alone, since logs may hold what users wrote.
    """
    if not shared.NODE_NAME.fullmatch(node):
        raise UsageError(f"{node!r} is no node name")
    if sum((listing, only_path, bool(out))) > 1:
        raise UsageError("--list, --path and --out exclude one another", remedy="Choose one")
    settings = located_settings()
    found = find(settings, node)
    if found is None:
        raise LackingError(f"the evidence of {node} cannot be read", remedy="Run it as root where the share is mounted")
    chosen = [one for one in found if one.name.startswith(name)]
    if not chosen and (only_path or out or name):
        words = f"no bundle of {node} is called {name}" if name else f"nothing was saved of {node}"
        raise FindingError(words, remedy=f"`fmslurm node evidence {node}` lists what is there")
    if out:
        target = _copy(chosen[-1], node, out)
        if as_json:
            say_json({"node": node, "bundle": chosen[-1]._asdict(), "copy": target})
        else:
            say_text(target)
    elif only_path:
        say_text(chosen[-1].path) if not as_json else say_json({"node": node, "bundle": chosen[-1]._asdict()})
    elif as_json:
        say_json({"node": node, "bundles": [one._asdict() for one in chosen]})
    else:
        rows = [{key: str(value) for key, value in one._asdict().items()} for one in chosen]
        say_fields(rows, ("time", "finding", "files", "bytes", "path"), fields=fields, noheader=noheader)
        if not rows:
            say_text(f"nothing was saved of {node}", err=True)


def find(settings: Settings, node: str) -> list[Bundle] | None:
    """Return a node's bundles, oldest first: those on the share, and on the node itself those that the share did not take.

    None where the share does not answer, or may not be read.
    """
    share = settings.site.share
    above = [os.path.join(share, FOLDER, node)] if share else []
    above.append(os.path.join(at_node(settings.site.state_dir, node), FOLDER))

    def work() -> list[list[Any]] | None:
        if share and not shared.is_share(share):
            return None
        return [list(one) for folder in above for one in _in(folder)]

    listed = shared.bounded(work, TIMEOUT_S)
    return sorted(Bundle(*row) for row in listed) if isinstance(listed, list) else None


def _in(folder: str) -> list[Bundle]:
    """Return the bundles in a folder. Runs in the child; PermissionError is for the caller."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names[-MOST:]:
        path = os.path.join(folder, name)
        parts = _NAME.fullmatch(name)
        if parts is None or not stat.S_ISDIR(os.lstat(path).st_mode):
            continue
        sizes = [os.lstat(os.path.join(path, file)).st_size for file in os.listdir(path)[:MOST_FILES]]
        found.append(Bundle(name, parts[1], _finding(path) or parts[2], len(sizes), sum(sizes), path))
    return found


def _finding(path: str) -> str:
    """Return the finding that a bundle names, empty where it does not say."""
    try:
        with os.fdopen(open_regular(os.path.join(path, "context.json"), os.O_RDONLY), "rb") as stream:
            told = json.loads(stream.read(4 << 20))
        return str(told["bundle"]["finding"]["id"])[:100]
    except Exception:  # noqa: BLE001 - its name says it as well
        return ""


def _copy(bundle: Bundle, node: str, out: str) -> str:
    """Copy a bundle's files into a new folder below `out`; links and folders in it are not followed."""
    if not os.path.isdir(out):
        raise UsageError(f"{out}: there is no such folder", remedy="Make it, or correct the path")
    target = os.path.join(out, f"{node}-{bundle.name}")
    try:
        os.mkdir(target, 0o700)
    except FileExistsError as exc:
        raise UsageError(f"{target} is there already", remedy="Remove it, or name another folder") from exc
    total = 0
    for name in sorted(os.listdir(bundle.path))[:MOST_FILES]:
        source = os.path.join(bundle.path, name)
        if not stat.S_ISREG(os.lstat(source).st_mode):
            continue
        with os.fdopen(open_regular(source, os.O_RDONLY), "rb") as stream:
            content = stream.read(MOST_BYTES - total + 1)
        total += len(content)
        if total > MOST_BYTES:
            raise LackingError(f"{bundle.path} holds more than {MOST_BYTES} bytes, so no bundle of ours")
        descriptor = os.open(os.path.join(target, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as copy:
            copy.write(content)
    return target

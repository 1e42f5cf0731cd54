"""`fmslurm gres refresh`: ask EC2 for instance types that are newer than this release, and let all rooms of the site know them."""

from __future__ import annotations

import os
import time

import click

from slurm_ext import events, shared
from slurm_ext.aws import catalogue, site_types
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.aws.ec2_types import Compared, compare, instance_types, rows_of
from slurm_ext.cli.actor import actor
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.cli.topology_source import reach
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.locate import trail_path
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.config.snapshot import is_marked
from slurm_ext.errors import FindingError, FmslurmError, LackingError, UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic


@click.command()
@click.option("--dry-run", is_flag=True, help="say what would be written")
@click.option("--reason", default="", help="why, for the trail")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def refresh(dry_run: bool, reason: str, as_json: bool) -> None:
    """Ask EC2 (DescribeInstanceTypes) for types with GPUs that this release does not know, and keep what it tells for this site.

    Says also which figures of the release's own rows EC2 tells otherwise: those stay as they are.
    """
    settings = site_settings()
    told = instance_types(reach(settings).ec2())
    if not told:
        raise LackingError("EC2 tells of no instance type at all", remedy="Is aws.region right?")
    found = compare(told)
    rows = rows_of(told, time.strftime("%Y-%m-%d", time.gmtime()))
    path = path_of(settings)
    known = site_types.from_json(_read(path))
    new = [row.name for row in rows if row.name not in known]
    changed = [row.name for row in rows if row.name in known and _figures(row) != _figures(known[row.name])]
    gone = sorted(known.keys() - {row.name for row in rows})
    # A region may lack what another has: rows stay until the file is removed.
    rows = sorted([*rows, *(known[name] for name in gone)])
    if not dry_run and (new or changed):
        _write(settings, path, rows, reason)
    if as_json:
        differing = [one._asdict() for one in found.different]
        say_json(
            {"file": path, "new": new, "changed": changed, "kept": gone, "different": differing, "dry_run": dry_run}
        )
        return
    for one in found.different:
        say_text(f"{one.type}: {one.figure} is {one.ours} in the catalogue and {one.theirs} at EC2; ours stays")
    for row in rows:
        if row.name in new or row.name in changed:
            word = "new" if row.name in new else "changed"
            say_text(
                f"{row.name}: {word}: {row.gpus} {row.gpu_type}, {row.vcpus} CPUs, {row.memory_mib} MiB, EFA {row.efa_devices}"
            )
    if not new and not changed:
        say_text("EC2 tells of no type with GPUs that is not known here")
    else:
        say_text(f"{'would write' if dry_run else 'wrote'} {path}: {len(rows)} types")


def _figures(row: InstanceType) -> InstanceType:
    return row._replace(checked_on="", source="")


def path_of(settings: Settings) -> str:
    """Return where the site's rows lie: on the share, else in this machine's state folder."""
    if settings.site.share:
        return os.path.join(settings.site.share, site_types.FILE)
    return os.path.join(at_node(settings.site.state_dir, machine_name()), os.path.basename(site_types.FILE))


def known_to_site() -> dict[str, InstanceType]:
    """Return the rows that this site fetched, for `catalogue.source`; none where they cannot be read."""
    try:
        return site_types.from_json(_read(path_of(site_settings())))
    except FmslurmError:
        return {}  # no settings to go by: whoever needs them says so


def _read(path: str) -> str:
    def work() -> str:
        try:
            return read_trusted(path, max_bytes=site_types.MAX_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except UntrustedFileError as exc:
            return f"! {exc}"

    said = shared.in_child(work, shared.TIMEOUT_S)
    if not isinstance(said, str) or said.startswith("!"):
        say_text(f"fmslurm: {said[2:] if isinstance(said, str) else f'{path} does not answer'}", err=True)
        return ""
    if said and not site_types.from_json(said):
        say_text(f"fmslurm: {path} holds no instance types: `fmslurm gres refresh` writes it anew", err=True)
    return said


def _write(settings: Settings, path: str, rows: list[InstanceType], reason: str) -> None:
    share = settings.site.share
    if share and not is_marked(share):
        raise LackingError(f"{share} is not a share that install made", remedy="Mount it, or run `fmslurm install`")
    event = events.Event(
        "gres.refresh",
        room="gres",
        reason=reason or "instance types as EC2 tells them",
        data={"file": path, "types": [row.name for row in rows], "actor": actor().data()},
    )
    try:
        events.append(trail_path(settings), event._replace(phase="intent"), durable=True)
        write_atomic(path, site_types.to_json(rows, region=settings.aws.region))
        events.append(trail_path(settings), event._replace(phase="done"))
    except OSError as exc:
        raise LackingError(
            f"{path}: {exc.strerror}", remedy="Run this as root on a machine that may write there"
        ) from exc


def say_compared(found: Compared, as_json: bool) -> None:
    """Print how EC2's types differ from our tables. Raise FindingError where a figure differs."""
    unknown = [one for one in found.new if catalogue.find(one.name) is None]
    if as_json:
        say_json(
            {
                "different": [one._asdict() for one in found.different],
                "filled_in": [one._asdict() for one in found.filled_in],
                "new": [one._asdict() for one in found.new],
                "absent": found.absent,
            }
        )
    else:
        for one in found.different:
            say_text(f"{one.type}: {one.figure} is {one.ours} in the catalogue and {one.theirs} at EC2")
        for one in found.filled_in:
            say_text(f"{one.type}: {one.figure} is not in the catalogue, and {one.theirs} at EC2")
        for new in unknown:
            figures = ", ".join(f"{k} {v}" for k, v in new._asdict().items() if v and k != "name")
            say_text(f"{new.name}: not in the catalogue (`fmslurm gres refresh` adds it): {figures}")
        if found.absent:
            say_text(f"EC2 does not tell of {', '.join(found.absent)}: the region may not have them")
    if found.different:
        raise FindingError(
            f"{len(found.different)} figures differ from EC2's", remedy="Tell us, or correct aws/catalogue.py"
        )
    if not as_json and not found.filled_in and not unknown:
        say_text("the catalogue agrees with EC2")

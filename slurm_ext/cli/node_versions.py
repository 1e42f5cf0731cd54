"""`fmslurm node versions`: which releases the nodes have, in cohorts. Only told: while an image rolls out, two are normal."""

from __future__ import annotations

import click

from slurm_ext.cli.output import say_json, say_table
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.errors import LackingError
from slurm_ext.gate import versions
from slurm_ext.slurm.hostlist import fold


@click.command("versions")
@click.option("--all", "every_part", is_flag=True, help="Show every release, not only those in which cohorts differ.")
@click.option("--noheader", is_flag=True, help="No line of column names.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def node_versions(every_part: bool, noheader: bool, as_json: bool) -> None:
    """Show the nodes by driver, VBIOS, kernel, EFA and NCCL releases: cohorts of each instance type, largest first."""
    share = located_settings().site.share
    records = versions.read_all(share)
    if records is None:
        raise LackingError("the shared folder does not answer, or none is set", remedy="Set site.share, or mount it")
    found = versions.cohorts(records)
    if as_json:
        listed = [{"type": one.type, "nodes": list(one.nodes), "parts": dict(one.parts)} for one in found]
        say_json({"cohorts": listed})
        return
    rows = []
    for one in found:
        differ = versions.differing(found, one.type)
        shown = [name for name in versions.PARTS if name in one.parts] if every_part else list(differ)
        words = ", ".join(f"{name} {one.parts.get(name, 'not known')}" for name in shown) or "all alike"
        rows.append((one.type or "not known", str(len(one.nodes)), fold(one.nodes), words))
    say_table(("TYPE", "COUNT", "NODES", "RELEASES"), rows, header=not noheader)

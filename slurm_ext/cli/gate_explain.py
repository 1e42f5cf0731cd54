"""`fmslurm gate explain ID`: what a finding of the gate means, NVIDIA's, AWS's or Lustre's page, and what to do."""

from __future__ import annotations

import click

from slurm_ext.cli import explain as general


@click.command()
@click.argument("id_", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(id_: str, as_json: bool) -> None:
    """Say what a finding means, whether it convicts the node, and what to do about it."""
    found = general.finding(id_)
    if found is None:
        from slurm_ext.gate import meanings

        raise general.unknown(id_, meanings.closest(id_))
    general.say(found, as_json=as_json)

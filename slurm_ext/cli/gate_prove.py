"""`fmslurm gate prove`: run every check on a healthy node and on a broken one, and show that it can both pass and fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_ext.cli.output import fields_option, say_fields, say_json, say_text
from slurm_ext.errors import EXIT_FINDING, EXIT_OK

if TYPE_CHECKING:
    from slurm_ext.aws.catalogue import InstanceType

COLUMNS = ("check", "result", "good", "bad", "finding", "verdict", "phase", "seconds", "why")


@click.command()
@click.option(
    "--check", "names", multiple=True, metavar="ID", help="Only this check, or those that begin so; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@fields_option(*COLUMNS)
def prove(names: tuple[str, ...], as_json: bool, fields: tuple[str, ...], noheader: bool) -> int:
    """Run each check on a good and on a bad simulated node, by the live gate's own code. Exit 1 where one is not proven.

    Needs no Slurm, no GPU and no root; nothing on this machine is looked at or changed.
    """
    from slurm_ext.gate import prove as room

    proofs = room.run(_build, names)
    unproven = [proof for proof in proofs if proof.result != room.PROVEN]
    if as_json:
        say_json({"proven": len(proofs) - len(unproven), "checks": [proof._asdict() for proof in proofs]})
    else:
        rows = [
            {
                **{name: str(value) for name, value in proof._asdict().items()},
                "good": "passes" if proof.good else "-",
                "bad": "found" if proof.bad else "-",
                "seconds": f"{proof.seconds:.2f}",
            }
            for proof in proofs
        ]
        say_fields(
            rows, ("check", "result", "good", "bad", "verdict", "phase", "why"), fields=fields, noheader=noheader
        )
        say_text(f"{len(proofs) - len(unproven)} of {len(proofs)} checks can both pass and fail", err=True)
    return EXIT_FINDING if unproven else EXIT_OK


def _build(root: Path, row: InstanceType, mounts: Mapping[str, str]) -> None:
    from slurm_ext.lab import hardware

    hardware.build_root(root, row, "proof", "i-0proof0000000000", mounts)

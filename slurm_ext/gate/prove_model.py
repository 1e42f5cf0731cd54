"""What proves one check: how to break a simulated node so that it must find it."""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.gate.probes import HEALTH
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.typed import NamedTuple


class Fixture(NamedTuple):
    """`check` is a row of checks.every(); `finding` the id that it must give once `apply` has broken the node, in `phase`.

    `verdict` is what it must come to, empty: any but pass. `target` and `action` are compared where they are told.
    """

    check: str
    finding: str
    apply: Callable[[Bench], None]
    verdict: str = ""
    phase: str = HEALTH
    target: str = ""
    action: str = ""

"""Fixtures that prove that a probe which gives no answer is told of: each ends in an error of ours, in its own child."""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.gate import probes
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.verdict import UNKNOWN


def _breaks(name: str) -> Callable[[Bench], None]:
    def look(here: probes.Here) -> probes.Probed:
        raise OSError("a fault of ours")

    return lambda bench: bench.replace(f"probe_{name}", "look", look)


FIXTURES: tuple[Fixture, ...] = tuple(
    Fixture(f"{name}.no-answer", f"{name}.no-answer", _breaks(name), UNKNOWN, phase, target="node", action="none")
    for name, phases in probes.PROBES.items()
    for phase in ((*phases, probes.PROLOG) if name == "lustre" else phases)
)

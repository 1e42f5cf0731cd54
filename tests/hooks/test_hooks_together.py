"""How many GPUs a node counts as having when a job asks whether all of them are its own."""

from __future__ import annotations

import pytest

from slurm_ext.gate.model import Facts, Gpu, Smi
from slurm_ext.hooks.together import gpus_here

KNOWN, STRANGE = "p5.48xlarge", "p9.48xlarge"


def listed(count: int, **more: object) -> Smi:
    return Smi(tuple(Gpu(number=number) for number in range(count)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("smi", "instance_type", "count"),
    [
        (listed(8), KNOWN, 8),
        (listed(7), KNOWN, 8),  # one is missing: it has eight all the same
        (listed(9), KNOWN, 9),
        (listed(0, timed_out=True), KNOWN, 8),  # a tool that hangs takes no node out of its job's burn-in
        (None, KNOWN, 8),
        (listed(3, attached=8, complete=False), STRANGE, 8),
        (listed(7), STRANGE, 7),
        (listed(0, timed_out=True), STRANGE, None),
        (None, STRANGE, None),
        (None, "", None),
        (Smi((Gpu(mig=True), Gpu(mig=False))), KNOWN, None),
    ],
)
def test_what_is_not_listed_is_still_there(smi: Smi | None, instance_type: str, count: int | None) -> None:
    assert gpus_here(Facts(smi=smi, instance_type=instance_type)) == count

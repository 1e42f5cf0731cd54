"""A hundred thousand random burn-ins: no healthy node is convicted, and one culprit of four or more is named in 99 %.

FMSLURM_SOAK_BURNINS sets another number; the seed is printed, so that a history that fails can be played again.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from slurm_ext.burnin import simulate

BURNINS = int(os.environ.get("FMSLURM_SOAK_BURNINS", "100000"))


@pytest.mark.soak
def test_a_hundred_thousand_burnins_convict_nobody_healthy() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in simulate.SINGLE}
    for number in range(BURNINS):
        chance = random.Random(f"{seed}/{number}")
        kind, fleet = simulate.draw(chance)
        history = simulate.play(kind, fleet, chance)
        assert history.end != simulate.BAD, (
            f"history {number} of seed {seed}: {kind}, {history.decision.verdict.reason}"
        )
        if kind in ends and len(fleet.nodes) >= 4:
            ends[kind][history.end] += 1
    for kind, counts in ends.items():
        print(kind, dict(counts))
        assert counts[simulate.NAMED] >= 0.985 * counts.total(), f"{kind} of seed {seed}"
    named = sum(counts[simulate.NAMED] for counts in ends.values())
    assert named >= 0.99 * sum(counts.total() for counts in ends.values())

"""A million histories of failures: none is requeued beyond its budgets, none excludes the whole cluster.

FMSLURM_SOAK_HISTORIES sets another number; the seed is printed, so that a history that fails can be played again.
"""

from __future__ import annotations

import os
import random

import pytest

from slurm_ext.config.model import Resume
from slurm_ext.resume.model import ACTIONS, CLASSES, COMES_BACK, Cause, Past
from slurm_ext.resume.policy import Situation, decide, most_requeues

HISTORIES = int(os.environ.get("FMSLURM_SOAK_HISTORIES", "1000000"))


@pytest.mark.soak
def test_a_million_histories_end() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(HISTORIES):
        site = Resume(
            infra=chance.randint(0, 6),
            unknown=chance.randint(0, 3),
            user=chance.randint(0, 2),
            same_root=chance.randint(1, 4),
            exclude_max_percent=chance.choice((0.0, 10.0, 50.0, 100.0)),
        )
        total = chance.randint(1, 64)
        situation = Situation(
            site,
            requested=chance.randint(-1, 9),
            nodes_total=total,
            nodes_needed=chance.randint(1, total),
            requeued_by_slurm=chance.random() < 0.3,
        )
        history: tuple[Past, ...] = ()
        for _ in range(chance.randint(1, 40)):
            nodes = tuple(
                f"n{index}" for index in sorted(chance.sample(range(total), min(total, chance.randint(0, 2))))
            )
            about = Cause(
                chance.choice(CLASSES),
                chance.choice(ACTIONS),
                "rule",
                0.9,
                nodes,
                (),
                ("line",),
                "why",
                chance.choice("abcd"),
            )
            decision = decide(about, situation._replace(history=history))
            assert decision.reason, f"history {number} of seed {seed}"
            assert len(decision.exclude) <= max(total - situation.nodes_needed, 0), f"history {number} of seed {seed}"
            if decision.action in COMES_BACK:
                history = (*history, Past(about.cause, about.root, about.culprit_nodes))
        assert len(history) <= most_requeues(situation), f"history {number} of seed {seed}"

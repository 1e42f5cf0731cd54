"""Nodes that do well in the timed all-reduces and fail in the sustained traffic behind them: real agents, stand-in GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Cluster

from slurm_ext.burnin.model import Outcome
from slurm_ext.verdict import FAIL, PASS

#: Far below what healthy nodes show on a busy machine, and above what is left with DELAY_MS.
FLOOR_GBS, DELAY_MS = 0.03, 150

#: So long after its first all-reduce a communicator is in its sustained traffic.
AFTER_MS, SUSTAIN_S = 1200, 3.0

#: Behind all that is done before the traffic is sustained.
LATE_STEP = 200


def run(make_cluster: Callable[..., Cluster], keys: dict[str, object], **burnin: object) -> tuple[Outcome, Cluster]:
    more = {"sustain_s": SUSTAIN_S, "deadline_s": 120.0, **burnin}
    cluster = make_cluster(4, gpus=1, floor_busbw_gbs=FLOOR_GBS, pair_floor_busbw_gbs=FLOOR_GBS, **more)
    cluster.hardware("n2", **keys)
    return cluster.run()["n0"], cluster


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(
            {"nccl.delay_ms": DELAY_MS, "nccl.delay_after_ms": AFTER_MS}, marks=pytest.mark.soak, id="throttled"
        ),
        pytest.param({"nccl.hang": f"allreduce:{LATE_STEP}"}, id="hangs"),
    ],
)
def test_who_fails_only_in_sustained_traffic_is_found(
    make_cluster: Callable[..., Cluster], keys: dict[str, object]
) -> None:
    """On a busy machine pairs may not come as far as the fault in their time: then nobody is named, and nothing starts."""
    outcome, _ = run(make_cluster, keys)
    assert outcome.verdict.verdict == FAIL
    told = (outcome.verdict, outcome.seconds, outcome.measured["rounds"])
    assert outcome.culprits == ("n2",) or (outcome.culprits, outcome.verdict.rule) == ((), "burnin.whole-only"), told


def test_without_sustained_traffic_it_is_not_seen(make_cluster: Callable[..., Cluster]) -> None:
    outcome, _ = run(make_cluster, {"nccl.delay_ms": DELAY_MS, "nccl.delay_after_ms": 30_000}, sustain_s=0.0)
    assert outcome.verdict.verdict == PASS

"""Nodes that do well in the timed all-reduces and fail in the sustained traffic behind them: real agents, stand-in GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Cluster

from slurm_ext.verdict import PASS

#: Far below what healthy nodes show on a busy machine, and above what is left with DELAY_MS.
FLOOR_GBS, DELAY_MS = 0.01, 600

#: So long after its first all-reduce a communicator is in its sustained traffic, on a busy machine, too.
AFTER_MS, SUSTAIN_S = 2000, 4.0

#: A delay that no round outlasts.
FOR_EVER_MS = 3_600_000


def cluster_of(make_cluster: Callable[..., Cluster], keys: dict[str, object], **burnin: object) -> Cluster:
    more = {"sustain_s": SUSTAIN_S, "deadline_s": 120.0, **burnin}
    cluster = make_cluster(4, gpus=1, floor_busbw_gbs=FLOOR_GBS, pair_floor_busbw_gbs=FLOOR_GBS, **more)
    cluster.hardware("n2", **keys)
    return cluster


@pytest.mark.parametrize(
    "delay_ms", [pytest.param(DELAY_MS, marks=pytest.mark.soak, id="throttled"), pytest.param(FOR_EVER_MS, id="hangs")]
)
def test_who_fails_only_in_sustained_traffic_is_found(make_cluster: Callable[..., Cluster], delay_ms: int) -> None:
    """By time, not by a count of all-reduces, of which a busy machine makes few: so the rounds of pairs come as far, too."""
    cluster = cluster_of(make_cluster, {"nccl.delay_ms": delay_ms, "nccl.delay_after_ms": AFTER_MS})
    rounds = cluster.convict("n2")["n0"].measured["rounds"]
    assert rounds[0]["groups"][0]["outcome"] != "ok"


def test_without_sustained_traffic_it_is_not_seen(make_cluster: Callable[..., Cluster]) -> None:
    keys = {"nccl.delay_ms": DELAY_MS, "nccl.delay_after_ms": 60_000}
    assert cluster_of(make_cluster, keys, sustain_s=0.0).run()["n0"].verdict.verdict == PASS

"""Doctor's rules: what each says of a cluster, as tables."""

from __future__ import annotations

import pytest

from slurm_ext.config.model import Burnin, Mode, Settings, Site
from slurm_ext.doctor.collect import told_of_nccl
from slurm_ext.doctor.model import FAIL, OK, UNKNOWN, WARN, Facts
from slurm_ext.doctor.rules import examine
from slurm_ext.hooks.decide import LEADERS, TAKE_OVER_S
from slurm_ext.hooks.prolog import REST_S
from slurm_ext.hooks.supervise import MARGIN_S
from slurm_ext.slurm.model import Node, Version

SETTINGS = Settings(site=Site(share="/share"), mode=Mode(burnin="enforce"), source_hash="abc")
GOOD = Facts(
    SETTINGS,
    "/etc/fmslurm/fmslurm.yaml",
    "cli",
    Version(24, 11, "24.11.5"),
    {"PrologFlags": "Alloc,DeferBatch", "SchedulerParameters": "nohold_on_prolog_fail", "MaxBatchRequeue": "10"},
    (Node("n0", "IDLE"),),
    {"Prolog": ("50-fmslurm",), "Epilog": ("50-fmslurm",)},
    "abc",
    None,
    1.0,
    {},
    True,
    nccl_nodes={"n0": ""},
)


def states(facts: Facts) -> dict[str, str]:
    return {result.id: result.state for result in examine(facts)}


def test_a_good_cluster_is_all_ok() -> None:
    assert set(states(GOOD).values()) == {OK}


@pytest.mark.parametrize(
    ("change", "check", "state"),
    [
        ({"version": None, "slurm_config": None}, "slurm.answers", FAIL),
        ({"ledger": False}, "drains.ledger", FAIL),
        ({"ledger": False, "settings": SETTINGS._replace(mode=Mode())}, "drains.ledger", WARN),
        ({"held_back": ("n1", "n2")}, "drains.breaker", WARN),
        ({"version": Version(27, 5, "27.05.0")}, "slurm.version", WARN),
        ({"slurm_config": {"PrologFlags": "Alloc"}}, "slurm.prolog-flags", FAIL),
        ({"slurm_config": {"PrologFlags": "(null)"}, "settings": Settings()}, "slurm.prolog-flags", WARN),
        ({"slurm_config": None}, "slurm.prolog-flags", UNKNOWN),
        ({"slurm_config": {"PrologFlags": "Alloc,DeferBatch"}}, "slurm.nohold", WARN),
        (
            {
                "slurm_config": {"SchedulerParameters": "nohold_on_prolog_fail,requeue_delay=1"},
                "settings": Settings(mode=Mode(resume="enforce")),
            },
            "slurm.requeue-delay",
            WARN,
        ),
        ({"slurm_config": {"MaxBatchRequeue": "5"}}, "slurm.max-batch-requeue", WARN),
        ({"slurm_config": {"PrologEpilogTimeout": "60"}}, "slurm.prolog-timeout", FAIL),
        ({"slurm_config": {"PrologTimeout": "60 sec"}}, "slurm.prolog-timeout", FAIL),
        ({"hooks": {"Prolog": ("10-other",), "Epilog": ("50-fmslurm",)}}, "hooks.prolog", FAIL),
        ({"hooks": None}, "hooks.installed", UNKNOWN),
        ({"nccl": "cannot load NCCL: tried libnccl.so.2"}, "burnin.library", FAIL),
        ({"nccl": "cannot load", "settings": Settings(mode=Mode(burnin="shadow"))}, "burnin.library", WARN),
        ({"nccl": ""}, "burnin.library", OK),
        ({"nccl": "", "nccl_nodes": {}}, "burnin.library", OK),
        ({"nccl_nodes": {}}, "burnin.library", FAIL),
        ({"nccl_nodes": {}, "settings": Settings(mode=Mode(burnin="shadow"))}, "burnin.library", UNKNOWN),
        ({"nccl_nodes": {"n0": "", "n1": "cannot load NCCL"}}, "burnin.library", FAIL),
        ({"nccl": "", "nccl_nodes": {"n1": "cannot load NCCL"}}, "burnin.library", FAIL),
        ({"nccl_nodes": {"n1": "no"}, "settings": Settings(mode=Mode(burnin="shadow"))}, "burnin.library", WARN),
        ({"config_path": ""}, "config.file", WARN),
        ({"settings": Settings()}, "config.share", WARN),
        ({"share_problem": "/share is writable by others"}, "config.share", FAIL),
        ({"snapshot_hash": None}, "config.pushed", FAIL),
        ({"snapshot_hash": "old"}, "config.pushed", WARN),
        ({"off": {"gate": "maintenance"}}, "mode.switched-off", WARN),
        ({"heartbeat_age_s": None}, "controller.heartbeat", FAIL),
        ({"heartbeat_age_s": 600.0}, "controller.heartbeat", FAIL),
        ({"munge": None}, "munge.answers", UNKNOWN),
        ({"munge": False}, "munge.answers", FAIL),
        ({"nodes": None}, "nodes.state", UNKNOWN),
        ({"nodes": (Node("n0", "IDLE", ("DRAIN",), "fmslurm: gpu.xid-79 gpu:3: x"),)}, "nodes.drained-by-us", WARN),
        ({"nodes": (Node("n0", "DOWN"),)}, "nodes.down", WARN),
        ({"nodes": (Node("n0", "IDLE", ("DRAIN",), "bob: testing"),)}, "nodes.state", OK),
    ],
)
def test_one_thing_wrong_is_one_result(change: dict[str, object], check: str, state: str) -> None:
    assert states(GOOD._replace(**change))[check] == state


def test_a_prolog_timeout_beyond_the_gate_is_no_finding() -> None:
    burnin = Burnin()
    needed = REST_S + MARGIN_S + SETTINGS.gate.deadline_s + (LEADERS - 1) * TAKE_OVER_S
    # At the defaults a user may ask for the strict one, and nodes that come late are waited for.
    needed += burnin.deadline_s + burnin.strict_sustain_s - burnin.sustain_s + burnin.late_s
    for seconds, found in ((needed, False), (needed - 1, True)):
        facts = GOOD._replace(slurm_config={**(GOOD.slurm_config or {}), "PrologEpilogTimeout": str(int(seconds))})
        assert ("slurm.prolog-timeout" in states(facts)) is found


def test_everything_that_is_wrong_has_a_remedy() -> None:
    broken = GOOD._replace(
        version=None, slurm_config=None, hooks={}, snapshot_hash=None, heartbeat_age_s=None, munge=False
    )
    assert all(result.remedy for result in examine(broken) if result.state == FAIL)


def test_nodes_tell_of_the_library_by_their_last_burn_in() -> None:
    job = {"job": "7", "nodes": "n[0-2]", "node": "n0", "leads": True}
    finding = {
        "id": "burnin.library",
        "target": "node:n1",
        "action": "none",
        "evidence": ["cannot load NCCL: tried /x"],
    }
    ran = {**job, "time": 1.0, "verdict": "pass", "rule": "burnin.all-nodes", "busbw_gbs": 3.0}
    absent = {**ran, "measured": {"absent": ["n2"]}}
    lacks = {**job, "time": 2.0, "verdict": "unknown", "rule": "burnin.library", "findings": [finding]}
    follower = {**job, "time": 3.0, "verdict": "unknown", "rule": "burnin.library", "node": "n2"}
    mended = {**ran, "time": 4.0}
    assert told_of_nccl([]) == {}
    assert told_of_nccl([absent]) == {"n0": "", "n1": ""}
    assert told_of_nccl([absent, lacks, follower]) == {"n0": "", "n1": "cannot load NCCL: tried /x"}
    assert told_of_nccl([lacks, mended]) == {"n0": "", "n1": "", "n2": ""}
    assert told_of_nccl([{**lacks, "findings": "?"}, {"verdict": 3}]) == {}

"""Verdict, mode, partition, on_unknown and when_open as one table: what a prolog does, and what it never does."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from folder_slurm import FolderSlurm

from slurm_ext import shared
from slurm_ext.config.model import MODES, Settings
from slurm_ext.config.modes import Heartbeat, Off, effective_mode
from slurm_ext.hooks import act, decide, jobfile, marks, prolog
from slurm_ext.hooks.decide import DRAIN, PASS_ON, STOP_JOB
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm import site_policy
from slurm_ext.slurm.hostlist import expand
from slurm_ext.slurm.model import Job
from slurm_ext.verdict import ACTIONS, FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

JOB = HookJob("7", "c", 0, "n0", ("n0",), "gpu", 1000, 1000, 8, True)


def settings(**keys: object) -> Settings:
    plain = Settings()
    return plain._replace(gate=plain.gate._replace(**keys))


@pytest.mark.parametrize("on_unknown", ["pass", "requeue"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("word", [PASS, WARN, FAIL, UNKNOWN])
def test_what_follows_from_a_verdict(word: str, action: str, mode: str, on_unknown: str) -> None:
    finding = Finding("x.y", "node", action, ("so it is",))
    plan = decide.on_gate(Verdict(word, (finding,), "because", "x.y"), settings(on_unknown=on_unknown), mode=mode)
    wanted = DRAIN if word == FAIL else STOP_JOB if (word, on_unknown) == (UNKNOWN, "requeue") else PASS_ON
    acts = mode == "enforce"
    assert plan.act == (wanted if acts else PASS_ON)
    assert plan.would == ("" if acts or wanted == PASS_ON else wanted)
    assert "because" in plan.reason
    # Unknown never drains, whatever its findings advise; neither does a warning.
    assert word == FAIL or DRAIN not in (plan.act, plan.would)


@pytest.mark.parametrize(
    ("partition", "node", "off", "rung"),
    [
        ("gpu", "n1", (), "enforce"),
        ("gpu", "n7", (), "shadow"),  # no canary
        ("debug", "n1", (), "shadow"),  # not that partition
        ("", "n1", (), "shadow"),  # between jobs no partition is known
        ("gpu", "", (), "shadow"),
        ("gpu", "n1", (Off("gate", 20.0),), "off"),
        ("gpu", "n1", (Off("all", 20.0),), "off"),
        ("gpu", "n1", (Off("gate", 5.0), Off("burnin", 20.0)), "enforce"),
    ],
)
def test_a_partition_at_a_time(partition: str, node: str, off: tuple[Off, ...], rung: str) -> None:
    plain = Settings()
    mine = plain._replace(mode=plain.mode._replace(gate="enforce", partitions=("gpu",), canary="n[0-3]"))
    found, why = effective_mode(mine, "gate", node=node, partition=partition, off=off, now=10.0)
    assert found == rung
    assert why
    plan = decide.on_gate(Verdict(FAIL, (Finding("x.y", "node", "drain"),), "z", "x.y"), mine, mode=found)
    assert plan.act == (DRAIN if rung == "enforce" else PASS_ON)


@pytest.mark.parametrize(
    ("when_open", "controller", "restarts", "code", "runs", "acts", "excluded"),
    [
        ("requeue", True, 0, 0, False, ["requeuehold 7"], []),  # the controller excludes and releases
        ("requeue", True, 9, 0, False, ["requeuehold 7"], []),  # and has budgets of its own
        ("requeue", False, 0, 0, False, ["requeue 7"], ["n0"]),
        ("requeue", False, 4, 0, False, ["requeue 7"], ["n0"]),
        (
            "requeue",
            False,
            5,
            0,
            True,
            [],
            [],
        ),  # it went round often enough: more likely we are wrong than so many nodes
        ("hold", True, 0, 0, False, ["requeuehold 7"], []),
        ("hold", False, 0, 0, False, ["requeue 7"], ["n0"]),
        ("hold", False, 5, 0, False, ["requeuehold 7"], ["n0"]),
        ("cancel", True, 0, 0, False, ["requeuehold 7"], []),  # what can go back goes back
        ("cancel", False, 5, 0, True, [], []),
        ("pass", True, 0, 0, True, [], []),
        ("pass", False, 5, 0, True, [], []),
    ],
)
def test_when_the_breaker_is_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when_open: str,
    controller: bool,
    restarts: int,
    code: int,
    runs: bool,
    acts: list[str],
    excluded: list[str],
) -> None:
    (tmp_path / "share/ledger").mkdir(mode=0o755, parents=True)
    (tmp_path / "run").mkdir()
    plain = Settings()
    mine = plain._replace(
        site=plain.site._replace(share=str(tmp_path / "share"), run_dir=str(tmp_path / "run"), log_dir=str(tmp_path)),
        drain=plain.drain._replace(max_per_hour=0, max_percent_per_hour=0.0, when_open=when_open),
    )
    running = Job("7", partition="gpu", state="RUNNING", restarts=restarts, priority=10, nodes="n0", requeue=True)
    slurm = FolderSlurm.create(tmp_path / "slurm", ("n0", "n1"), [running])
    monkeypatch.setattr(act, "connect", lambda *_a, **_k: slurm)
    jobfile.job_starts(str(tmp_path / "run"), "boot")
    if controller:
        shared.beat(mine.site.share, Heartbeat(time.time(), "enforce", 1))
    plan = decide.Plan(DRAIN, "x", "x.y", Finding("x.y", "node", "drain", ("z",)))
    passed = prolog.Passed(plan, (), {}, boot_id="boot")
    job = JOB._replace(restarts=restarts)
    found = prolog._drain(job, mine, mine.site.share, passed, "gate", {})
    assert found[:2] == (code, runs)
    assert "not drained" in found[2]
    assert slurm.acts() == acts
    (after,) = slurm.jobs(["7"])
    assert expand(after.excluded_nodes) == excluded
    assert not any(node.drained for node in slurm.nodes())


def test_a_partner_that_drains_in_its_stead_does_not_go_round_the_breaker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The breaker stopped the partner that had claimed the drain: to exit 1 for its claim would be a drain all the same."""
    (tmp_path / "share/ledger").mkdir(mode=0o755, parents=True)
    plain = Settings()
    mine = plain._replace(
        site=plain.site._replace(share=str(tmp_path / "share"), run_dir=str(tmp_path / "run"), log_dir=str(tmp_path)),
        drain=plain.drain._replace(max_per_hour=0, max_percent_per_hour=0.0, first_boot_budget=0),
    )
    slurm = FolderSlurm.create(
        tmp_path / "slurm", ("n0", "n1"), [Job("7", partition="gpu", state="RUNNING", requeue=True)]
    )
    monkeypatch.setattr(act, "connect", lambda *_a, **_k: slurm)
    partner = JOB._replace(node="n1", nodes=("n0", "n1"))
    assert marks.claim_drain(mine.site.share, partner, "n0") == "n1"
    plan = decide.Plan(DRAIN, "x", "x.y", Finding("x.y", "node", "drain", ("z",)))
    passed = prolog.Passed(plan, (), {}, boot_id="boot")
    assert prolog._drain(JOB, mine, mine.site.share, passed, "burnin", {})[0] == 0
    # Where the partner did drain it, the node fails at once.
    slurm.set_node("n0", flags=("DRAIN",), reason="fmslurm: x.y node: z")
    slurm.set_job("7", state="RUNNING", flags=(), restarts=0)
    assert prolog._drain(JOB, mine, mine.site.share, passed, "burnin", {})[0] == 1


@pytest.mark.parametrize(
    ("kind", "action"),
    list(itertools.product(("auto", "plain", "parallelcluster", "pcs", "hyperpod", "lab"), (*ACTIONS, "a new word"))),
)
def test_what_becomes_of_a_drained_node(kind: str, action: str) -> None:
    found = site_policy.after_drain(kind, action)
    assert found.terminates == (kind == "parallelcluster")
    assert bool(found.left_to) == (kind == "parallelcluster")
    assert found.words
    if kind == "parallelcluster":
        assert "capacity block" in found.words
    else:
        assert (action if action in site_policy.ACTS else "look") in found.words


def test_hyperpod_is_told_in_its_own_words_by_a_person() -> None:
    assert 'reason="Action:Replace"' in site_policy.after_drain("hyperpod", "replace").words
    assert 'reason="Action:Reboot"' in site_policy.after_drain("hyperpod", "reboot").words
    assert "Action:" not in site_policy.after_drain("hyperpod", "reset-gpu").words

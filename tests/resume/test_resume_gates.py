"""Hooks of a job that is over in its gate are told so, once, and nobody takes that for a job sent back by a hook."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import shared
from slurm_ext.burnin import gate as burnin_gate
from slurm_ext.config.model import Burnin, Mode, Settings, Site
from slurm_ext.hooks.prolog import REST_S
from slurm_ext.hooks.supervise import MARGIN_S
from slurm_ext.resume import stopped
from slurm_ext.resume.gates import Gates, longest_s, over
from slurm_ext.slurm.model import Job

NOW = 1_000_000.0
CANCELLED = Job("7", state="CANCELLED", flags=("COMPLETING",), start_time=int(NOW) - 20, restarts=2)


@pytest.mark.parametrize(
    ("job", "in_gate", "restarts"),
    [
        (CANCELLED, None, 2),
        (CANCELLED._replace(flags=()), 2, None),  # its hooks have ended
        (CANCELLED._replace(start_time=int(NOW) - 3600), None, None),
        (CANCELLED._replace(start_time=int(NOW) - 3600), 2, 2),
        (CANCELLED._replace(state="COMPLETING", restarts=3), 2, 2),
        (CANCELLED._replace(state="COMPLETING", reason="Prolog"), None, 2),
        (CANCELLED._replace(state="COMPLETING"), None, None),
        (CANCELLED._replace(state="COMPLETED"), None, None),
        (CANCELLED._replace(state="PENDING", start_time=0), None, 1),  # requeued: the attempt before
        (CANCELLED._replace(state="RUNNING", flags=()), 2, None),
    ],
)
def test_whose_hooks_wait_in_vain(job: Job, in_gate: int | None, restarts: int | None) -> None:
    assert over(job, Settings(), in_gate=in_gate, now=NOW) == restarts


def test_who_was_seen_in_the_gate_is_told_until_the_share_answers(tmp_path: Path) -> None:
    settings = Settings(site=Site(share=str(tmp_path / "share")))
    gates = Gates()
    gates.tell([CANCELLED._replace(state="RUNNING", flags=(), reason="Prolog")], settings, "c", NOW)
    completing = CANCELLED._replace(state="COMPLETING", reason="None")
    gates.tell([completing], settings, "c", NOW)
    (tmp_path / "share/ledger").mkdir(parents=True)
    gates.tell([completing], settings, "c", NOW)
    assert (tmp_path / "share/jobs/c/7-2/stopped.json").exists()


def test_they_are_told_once_and_it_is_no_stop_of_ours(tmp_path: Path) -> None:
    share = str(tmp_path)
    (tmp_path / "ledger").mkdir()
    settings = Settings(site=Site(share=share))
    path = shared.attempt_path(share, "c/7-2", "stopped.json")
    gates = Gates()
    for _ in range(2):
        gates.tell([CANCELLED], settings, "c", NOW)
    told = shared.read_json(path)
    assert told is not None
    assert told["reason"] == "the job was ended in its gate"
    held = Job("7", state="PENDING", restarts=3, priority=0)
    assert stopped.find(settings, "c", held) is None
    assert shared.write_json(path, {"schema": 1, "node": "n0", "reason": "no culprit"})
    assert stopped.find(settings, "c", held) is not None


@given(
    st.integers(1, 1024), st.booleans(), st.floats(1, 600), st.floats(0, 600), st.floats(0, 300), st.integers(1, 128)
)
def test_no_gate_is_called_stuck_before_its_hooks_give_it_up_themselves(nodes, strict, deadline, late, sustain, group):
    burnin = Burnin(deadline_s=deadline, late_s=late, strict_sustain_s=sustain, group_nodes=group)
    settings = Settings(burnin=burnin, mode=Mode(burnin="enforce"))
    hook_s = REST_S + settings.gate.deadline_s + burnin_gate.longest_s(settings, nodes=nodes, strict=strict) + MARGIN_S
    assert longest_s(settings, nodes) >= hook_s - 1e-6  # the same sum, in another order

"""The ladder: where it begins, when it climbs, what it forgets, and what it says that a node needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import ladder
from slurm_ext.gate.ladder import DRAIN, REBOOT, REPLACE, RESET
from slurm_ext.slurm.drain_record import STEPS, DrainRecord, PastDrain
from slurm_ext.verdict import ACTIONS, Finding

NOW = 1_900_000_000.0
DAY_S = 86_400.0

ECC = Finding("gpu.ecc-uncorrected", "gpu:3", "reset-gpu")
LOST = Finding("gpu.lost", "gpu@0000:86:00", "reboot")
EFA = Finding("efa.missing", "node", "replace")
REMAP = Finding("gpu.row-remap-failure", "gpu:3", "replace")
FULL = Finding("disk.scratch-full", "fs:/scratch", "drain")


def past(
    finding: Finding, step: str, *, days_ago: float = 1, boot: str = "b1", instance: str = "i-1", target: str = ""
) -> PastDrain:
    since = NOW - days_ago * DAY_S
    record = DrainRecord(
        "n1",
        finding.id,
        target or finding.target,
        finding.action,
        f"fmslurm: {finding.id}",
        since,
        boot_id=boot,
        instance_id=instance,
        step=step,
    )
    return PastDrain(record, since + 60, "resumed on proof")


def step(
    finding: Finding, *history: PastDrain, boot: str = "b2", instance: str = "i-1", reboot_first: bool = True
) -> tuple[str, int]:
    found = ladder.climb(finding, history, now=NOW, boot_id=boot, instance_id=instance, reboot_first=reboot_first)
    return found.step, found.tries


@pytest.mark.parametrize(
    ("finding", "history", "expected"),
    [
        # Where it begins.
        (ECC, (), (RESET, 1)),
        (LOST, (), (REBOOT, 1)),
        (EFA, (), (REBOOT, 1)),  # drain.reboot_first
        (REMAP, (), (REPLACE, 1)),  # NVIDIA: no reset mends it
        (FULL, (), (DRAIN, 1)),
        (Finding("x.y", "node", "warn"), (), (DRAIN, 1)),
        # It climbs when it comes back after what was asked for was done.
        (ECC, (past(ECC, RESET),), (REBOOT, 2)),
        (ECC, (past(ECC, RESET, days_ago=2), past(ECC, REBOOT, boot="b1")), (REPLACE, 3)),
        (LOST, (past(LOST, REBOOT, boot="b1"),), (REPLACE, 2)),
        (EFA, (past(EFA, REBOOT, boot="b1"),), (REPLACE, 2)),
        # A reboot that was asked for and not done is asked for again.
        (LOST, (past(LOST, REBOOT, boot="b2"),), (REBOOT, 2)),
        (EFA, (past(EFA, REBOOT, boot="b2"),), (REBOOT, 2)),
        (EFA, (past(EFA, REPLACE, boot="b2"),), (REPLACE, 2)),
        (LOST, (past(LOST, REBOOT, boot=""),), (REBOOT, 2)),
        # What only takes a node out climbs nowhere, however often.
        (FULL, (past(FULL, DRAIN),) * 5, (DRAIN, 6)),
        # Another finding, another target, another instance, or long ago: forgotten.
        (ECC, (past(LOST, REBOOT),), (RESET, 1)),
        (ECC, (past(ECC, RESET, target="gpu:4"),), (RESET, 1)),
        (ECC, (past(ECC, RESET, instance="i-0"),), (RESET, 1)),
        (ECC, (past(ECC, RESET, days_ago=31),), (RESET, 1)),
        # Which instance it was then is not known: held against this one.
        (ECC, (past(ECC, RESET, instance=""),), (REBOOT, 2)),
    ],
)
def test_where_the_ladder_stands(finding: Finding, history: tuple[PastDrain, ...], expected: tuple[str, int]) -> None:
    assert step(finding, *history) == expected


def test_without_reboot_first_a_replacement_is_asked_for_at_once() -> None:
    assert step(EFA, reboot_first=False) == (REPLACE, 1)
    assert step(LOST, reboot_first=False) == (REBOOT, 1)


def test_it_says_why_a_step_is_not_the_advised_one() -> None:
    found = ladder.climb(EFA, (), now=NOW, boot_id="b", instance_id="i", reboot_first=True)
    assert found.why.startswith("drain.reboot_first")
    found = ladder.climb(ECC, (past(ECC, RESET),), now=NOW, boot_id="b", instance_id="i-1", reboot_first=True)
    assert found.why == "it came back after step reset-gpu of 1 earlier drain"
    assert ladder.climb(ECC, (), now=NOW, boot_id="b", instance_id="i", reboot_first=True).why == ""


@pytest.mark.parametrize(
    ("finding", "target", "step_", "words"),
    [
        ("gpu.ecc-uncorrected", "gpu:3", RESET, "nvidia-smi --gpu-reset -i 3, "),
        ("gpu.ecc-uncorrected", "gpu@0000:86:00", RESET, "nvidia-smi --gpu-reset, "),
        ("gpu.lost", "gpu:3", REBOOT, "a reboot; "),
        ("gpu.row-remap-failure", "gpu:3", REPLACE, "another instance"),
        ("fs.stat-error", "fs:/fsx", DRAIN, "the same check must pass"),
        ("burnin.culprit", "node:n1", DRAIN, "fmslurm burnin run"),
        ("burnin.culprit", "node:n1", REPLACE, "another instance"),
        ("node.manual", "node", DRAIN, "fmslurm node resume"),
    ],
)
def test_what_a_node_needs_is_said_in_words(finding: str, target: str, step_: str, words: str) -> None:
    assert words in ladder.needs(finding, target, step_)


def test_a_drain_that_stands_too_long_is_told_with_its_owner_and_what_it_needs() -> None:
    record = past(ECC, RESET, days_ago=8).record._replace(owner="fmslurm gate", expires_s=NOW - DAY_S)
    words = ladder.expired(record, now=NOW)
    assert "n1 has been drained by fmslurm gate for 8.0 days for gpu.ecc-uncorrected on gpu:3" in words
    assert "a reset of the GPU" in words
    assert ladder.expired(record, now=NOW - 2 * DAY_S) == ""
    assert ladder.expired(record._replace(expires_s=0.0), now=NOW) == ""


_NAMES = st.sampled_from(["b1", "b2", ""])
_RECORDS = st.builds(
    past,
    st.sampled_from([ECC, LOST, EFA, REMAP, FULL]),
    st.sampled_from(STEPS),
    days_ago=st.floats(0, 60),
    boot=_NAMES,
    instance=st.sampled_from(["i-1", "i-2", ""]),
)


@given(
    st.builds(
        Finding,
        st.sampled_from([one.id for one in (ECC, LOST, EFA, REMAP, FULL)]),
        st.just("gpu:3"),
        st.sampled_from(ACTIONS),
    ),
    st.lists(_RECORDS, max_size=6),
    _NAMES,
    st.booleans(),
)
def test_memory_never_asks_for_less_than_without_it(
    finding: Finding, history: list[PastDrain], boot: str, reboot_first: bool
) -> None:
    def rank(*pasts: PastDrain) -> int:
        found = ladder.climb(finding, pasts, now=NOW, boot_id=boot, instance_id="i-1", reboot_first=reboot_first)
        assert found.step in STEPS
        assert found.needs
        return STEPS.index(found.step)

    assert rank(*history) >= rank()

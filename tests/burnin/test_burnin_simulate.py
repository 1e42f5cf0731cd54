"""A thousand random histories: no healthy node is convicted, and the simulator is as bad as it says."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from slurm_ext.burnin import plan, simulate, simulate_fleet
from slurm_ext.burnin.model import HANG, OK, SLOW, WRONG, Decision, Round, RoundResult
from slurm_ext.verdict import FAIL, Verdict


def histories(seed: str, count: int) -> list[simulate.History]:
    found = []
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        found.append(simulate.play(*simulate.draw(chance), chance))
    return found


@pytest.fixture(scope="module")
def thousand() -> list[simulate.History]:
    return histories("fast", 1000)


def test_no_healthy_node_is_convicted(thousand: list[simulate.History]) -> None:
    wrong = [(n, h.kind, h.decision.verdict.reason) for n, h in enumerate(thousand) if h.end == simulate.BAD]
    assert wrong == []
    for history in thousand:
        assert len(history.decision.culprits) <= max(1, len(history.fleet.nodes) // 3)
        assert history.seconds <= simulate.DEADLINE_S + 30


def test_one_culprit_among_four_or_more_is_nearly_always_named(thousand: list[simulate.History]) -> None:
    single = [h for h in thousand if h.kind in simulate.SINGLE and len(h.fleet.nodes) >= 4]
    named = sum(h.end == simulate.NAMED for h in single)
    assert len(single) > 300
    assert named >= 0.99 * len(single)
    assert set(simulate.KINDS) == {h.kind for h in thousand}


def test_the_same_seed_is_the_same_history() -> None:
    assert histories("same", 20) == histories("same", 20)


def test_the_noise_is_as_nasty_as_it_says() -> None:
    chance = random.Random(5)
    outcomes: Counter[tuple[int, str]] = Counter()
    for _ in range(3000):
        _, fleet = simulate.draw(chance, kind="healthy", count=chance.choice((2, 64)))
        sky = simulate_fleet.weather(fleet, chance)
        (result,) = simulate_fleet.run(fleet, sky, 0, Round("all", (fleet.nodes,)), chance)
        outcomes[len(fleet.nodes), result.outcome] += 1
    pairs = sum(n for (size, _), n in outcomes.items() if size == 2)
    wholes = sum(n for (size, _), n in outcomes.items() if size == 64)
    assert outcomes[2, SLOW] / pairs > 0.04
    assert outcomes[64, SLOW] / wholes > 0.08
    assert sum(n for (_, outcome), n in outcomes.items() if outcome not in (OK, SLOW)) >= 5


@pytest.mark.parametrize(
    ("kind", "outcome"), [("slow", SLOW), ("rail", SLOW), ("sender", WRONG), ("receiver", WRONG), ("hang", HANG)]
)
def test_a_fault_shows_as_what_it_is(kind: str, outcome: str) -> None:
    for number in range(50):
        chance = random.Random(f"{kind}/{number}")
        found, fleet = simulate.draw(chance, kind=kind, count=16)
        history = simulate.play(found, fleet, chance, noise=False)
        assert history.rounds[0].groups[0].outcome == outcome
        assert simulate.failed_first(history)


def test_without_noise_a_healthy_fleet_passes_and_one_of_64_is_found_in_three_rounds() -> None:
    for number in range(60):
        chance = random.Random(f"still/{number}")
        assert (
            simulate.play(*simulate.draw(chance, kind="healthy", count=64), chance, noise=False).end == simulate.PASSED
        )
        kind = simulate.SINGLE[number % len(simulate.SINGLE)]
        found, fleet = simulate.draw(chance, kind=kind, count=64)
        if found != kind:
            continue  # alone under its switch: left open
        history = simulate.play(found, fleet, chance, noise=False)
        assert history.end == simulate.NAMED, history.decision
        assert history.localising <= 3


def test_a_plan_that_convicts_at_random_is_found_out() -> None:
    """The measure itself: a rule that drains the first node of a failed pair is wrong often, and shows as wrong."""

    def hasty(nodes: tuple[str, ...], history: list[RoundResult], **more: object) -> Round | Decision:
        step = plan.next_step(nodes, history, **more)  # type: ignore[arg-type]
        failed = [g for done in history[1:] for g in done.groups if g.outcome != OK and len(g.nodes) == 2]
        return Decision(Verdict(FAIL), failed[0].nodes[:1]) if failed else step

    ends: Counter[str] = Counter()
    for number in range(200):
        chance = random.Random(f"hasty/{number}")
        ends[simulate.play(*simulate.draw(chance), chance, next_step=hasty).end] += 1
    assert ends[simulate.BAD] > 40


def test_a_second_offence_is_named_and_no_healthy_node_is() -> None:
    ends = {
        guilty: Counter(simulate.second_offence(random.Random(i), guilty=guilty).end for i in range(150))
        for guilty in (True, False)
    }
    assert ends[True][simulate.NAMED] > 100
    assert ends[True][simulate.BAD] + ends[False][simulate.BAD] == 0


def test_a_node_slow_only_when_hot_is_looked_for_in_sustained_traffic_and_never_missed() -> None:
    ends: Counter[str] = Counter()
    for number in range(150):
        history = simulate.throttled(random.Random(f"hot/{number}"), count=(4, 8, 16, 64)[number % 4])
        assert history.rounds[0].groups[0].outcome != OK
        ends[history.end] += 1
    assert set(ends) <= {simulate.NAMED, simulate.OPEN}
    assert ends[simulate.NAMED] > 75

"""When it is tried again, when it is lost, and how many a target gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.notices import policy
from slurm_ext.notices.model import NOTICE, PAGE, WAITING, Delivery
from slurm_ext.notices.policy import LIMIT, PAUSES_S, TRIES, choose, due_again_s


def test_pauses_grow_and_end_within_the_hour() -> None:
    assert list(PAUSES_S) == sorted(PAUSES_S)
    assert [due_again_s(tries, 100.0) for tries in range(1, TRIES)] == [100.0 + pause for pause in PAUSES_S]
    assert due_again_s(TRIES, 100.0) is None
    assert TRIES == 6
    assert sum(PAUSES_S) <= 3_600


@pytest.mark.parametrize(("asked_s", "wanted_s"), [(0, 10), (-5, 10), (60, 60), (1e9, policy.RETRY_AFTER_MAX_S)])
def test_a_target_may_ask_for_a_pause(asked_s: float, wanted_s: float) -> None:
    assert due_again_s(1, 0.0, retry_after_s=asked_s) == wanted_s


def waiting(*severities: str) -> list[Delivery]:
    return [Delivery(i, i, "t", severity, WAITING, 0, 0.0) for i, severity in enumerate(severities)]


#: What waits, what was sent within the hour -> ids to send one by one (the first), or to fold.
CHOICES = [
    ((), {}, None, ()),
    ((NOTICE,), {}, 0, ()),
    ((NOTICE, PAGE), {}, 1, ()),
    ((NOTICE, NOTICE), {NOTICE: LIMIT - 2}, 0, ()),
    ((NOTICE,), {NOTICE: LIMIT - 1}, 0, ()),
    ((NOTICE, NOTICE, NOTICE), {NOTICE: LIMIT - 1}, None, (0, 1, 2)),
    ((NOTICE, NOTICE), {NOTICE: LIMIT}, None, ()),
    ((NOTICE, PAGE), {NOTICE: LIMIT}, 1, ()),
    ((NOTICE, PAGE), {PAGE: LIMIT}, 0, ()),
    ((PAGE, PAGE, NOTICE), {PAGE: LIMIT - 1}, None, (0, 1)),
]


@pytest.mark.parametrize(("severities", "sent", "one", "folded"), CHOICES)
def test_choices(severities, sent, one, folded) -> None:
    choice = choose(waiting(*severities), sent)
    assert (choice.one.id if choice.one else None) == one
    assert tuple(delivery.id for delivery in choice.folded) == folded


@given(st.lists(st.lists(st.sampled_from([PAGE, NOTICE]), max_size=12), max_size=12), st.integers(1, 6))
def test_no_flood_sends_more_than_the_limit_and_all_is_told(rounds: list[list[str]], limit: int) -> None:
    """Everything that came is sent alone or in a fold as long as the window stays the same, up to one fold a severity."""
    sent: dict[str, int] = {}
    pending: list[Delivery] = []
    number = 0
    for came in rounds:
        for severity in came:
            pending.append(Delivery(number, number, "t", severity, WAITING, 0, 0.0))
            number += 1
        while True:
            choice = choose(pending, sent, limit=limit)
            taken = choice.folded or ((choice.one,) if choice.one else ())
            if not taken:
                break
            assert len({one.severity for one in taken}) == 1
            sent[taken[0].severity] = sent.get(taken[0].severity, 0) + 1
            pending = [one for one in pending if one not in taken]
    assert all(count <= limit for count in sent.values())
    for severity in {one.severity for one in pending}:
        assert sent[severity] == limit

"""A job gets back what its gate took: in minutes, once, within the partition's bound, and not what an earlier run got."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.resume.time_back import duration, parse, raised


@pytest.mark.parametrize(
    ("limit_min", "gate_s", "most", "before", "expected"),
    [
        (15, 65.0, -1, "", 17),
        (15, 12.0, -1, "", 16),
        (15, 4.0, -1, "", None),  # less than rounding gives or takes
        (-1, 65.0, -1, "", None),  # no limit
        (15, 65.0, 16, "", 16),
        (15, 65.0, 15, "", None),
        (20, 65.0, 15, "", None),  # root gave it more than the partition has: not ours to lower
        (17, 65.0, -1, "15 min -> 17 min: the gate took 65 s", None),  # raised before it was requeued
        (17, 130.0, -1, "15 min -> 17 min: the gate took 65 s", 18),
        (30, 65.0, -1, "15 min -> 17 min: the gate took 65 s", 32),  # somebody set another limit since
        (15, 65.0, -1, "nonsense", 17),
    ],
)
def test_the_new_limit(limit_min, gate_s, most, before, expected):
    got = raised(limit_min=limit_min, gate_s=gate_s, partition_max_min=most, before=before)
    assert (got.limit_min if got else None) == expected
    if got:
        assert parse(got.said)[1] == expected


@given(st.lists(st.floats(0, 4000), min_size=1, max_size=20), st.integers(1, 5000), st.integers(1, 100))
def test_however_often_it_returns_it_never_has_more_than_its_own_and_its_longest_gate(gates, own, extra):
    limit, before = own, ""
    for gate_s in gates:
        got = raised(limit_min=limit, gate_s=gate_s, partition_max_min=own + extra, before=before)
        if got:
            limit, before = got.limit_min, got.said
        assert own <= limit <= min(own + extra, own + max(gates) // 60 + 1)


def test_how_long_a_gate_took_is_never_longer_than_the_run():
    assert duration(start=100.0, seen=130.0, ended=128.5, now=140.0) == 30.0
    assert duration(start=100.0, seen=None, ended=128.5, now=140.0) == 28.5
    assert duration(start=100.0, seen=None, ended=900.0, now=140.0) == 40.0  # a clock ahead
    assert duration(start=100.0, seen=None, ended=50.0, now=140.0) == 0.0
    assert duration(start=100.0, seen=None, ended=None, now=140.0) is None  # nobody looked: nothing is guessed

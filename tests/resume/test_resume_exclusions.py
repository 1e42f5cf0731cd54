"""Who is left out and who is not: convicted, suspect, required by the job itself, and when an exclusion has to go again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.resume.exclusions import SUSPECT_EXPIRES_S, Ground, allowed, blocking, choose
from slurm_ext.resume.model import Cause, Past
from slurm_ext.resume.policy import Resume, Situation, decide

ALL = frozenset(f"n{index}" for index in range(8))
EIGHT = Ground(8, ALL, 4)


@pytest.mark.parametrize(
    ("convicted", "suspects", "former", "ground", "exclude", "words"),
    [
        (("n1",), (), (), EIGHT, ("n1",), ""),
        ((), ("n1", "n2"), (), EIGHT, ("n1", "n2"), ""),
        ((), ("n1", "n2"), (), EIGHT._replace(needed=7), ("n1",), "n2 may be used, though suspect: 8 nodes, 8 usable"),
        ((), ("n1", "n2"), (), EIGHT._replace(needed=8), (), "n1, n2 may be used, though suspect"),
        ((), ("n1",), (), EIGHT._replace(usable=ALL - {"n5", "n6", "n7"}, needed=5), (), "5 usable for it, 5 needed"),
        ((), ("n1",), (), EIGHT._replace(usable=ALL - {"n1"}, needed=7), ("n1",), ""),  # out of use already
        (("n1",), ("n2", "n3"), (), EIGHT, ("n1", "n2"), "n3 may be used, though suspect"),  # two at most of eight
        (("n1",), (), ("n2", "n3"), EIGHT, ("n1", "n2"), "n3 may be used again"),
        ((), ("n1", "n2"), (), EIGHT._replace(required=frozenset({"n1"})), ("n2",), "n1 is required by the job itself"),
        (("n1",), (), (), EIGHT._replace(required=frozenset({"n1"})), (), "n1 is required by the job itself"),
        (("n1",), (), (), EIGHT._replace(usable=ALL - {"n1"}, needed=8), (), "n1 is out of use anyway"),
        (("n1",), (), (), Ground(), ("n1",), ""),  # nothing is known: little may be left out all the same
    ],
)
def test_who_is_left_out(convicted, suspects, former, ground, exclude, words):
    got = choose(convicted, suspects, former, ground)
    assert got.exclude == exclude
    assert not got.refused
    assert words in "; ".join(got.notes)
    assert bool(words) == bool(got.notes)


def test_a_convicted_node_that_does_not_fit_is_refused_in_words():
    got = choose(("n1",), ("n2",), (), EIGHT._replace(needed=8))
    assert got.exclude == ()
    assert "1 culprit cannot be excluded: 8 nodes, 8 usable for it, 8 needed" in got.refused


def test_an_exclusion_goes_when_nodes_go():
    assert blocking({"n1", "n2"}, EIGHT) == ""
    assert "4 nodes remain" in blocking({"n1", "n2"}, EIGHT._replace(needed=5, usable=ALL - {"n5", "n6"}))
    # With all of them back it would still not start: the exclusion is not what keeps it.
    assert blocking({"n1"}, EIGHT._replace(needed=8, usable=ALL - {"n5"})) == ""


NAMES = st.lists(st.sampled_from([f"n{index}" for index in range(12)]), max_size=6).map(tuple)


@given(
    NAMES,
    NAMES,
    NAMES,
    st.integers(1, 12),
    st.sets(st.sampled_from(sorted(ALL))),
    st.sets(st.sampled_from(sorted(ALL))),
)
def test_no_list_leaves_too_few_nodes_or_takes_what_the_job_requires(convicted, suspects, former, needed, up, required):
    ground = Ground(8, frozenset(up), needed, frozenset(required))
    got = choose(convicted, suspects, former, ground)
    assert not set(got.exclude) & required
    assert len(got.exclude) <= allowed(ground)
    assert not got.exclude or 8 - len(got.exclude) >= needed
    if got.exclude and not set(convicted) & set(got.exclude) & ground.usable and set(got.exclude) & ground.usable:
        assert len(ground.usable - set(got.exclude)) >= needed


def test_suspects_are_left_out_by_policy_for_a_day_and_the_decision_says_where_not():
    about = Cause("infra-fabric", "requeue-exclude", "gate.stopped", suspects=("n1", "n2"), reason="no culprit")
    site = Situation(Resume(), nodes_total=8, nodes_needed=4, usable=ALL)
    assert (decide(about, site).action, decide(about, site).exclude) == ("requeue-exclude", ("n1", "n2"))
    tight = decide(about, site._replace(nodes_needed=8))
    assert (tight.action, tight.exclude) == ("requeue", ())
    assert "n1, n2 may be used, though suspect" in tight.reason
    again = Cause("infra-node", "requeue-exclude", "kernel.hardware", culprit_nodes=("n5",), reason="xid")
    young, old = (Past("infra-fabric", "r", (), ("n1",), age_s=age) for age in (60.0, SUSPECT_EXPIRES_S + 1))
    assert decide(again, site._replace(history=(young,))).exclude == ("n1", "n5")
    assert decide(again, site._replace(history=(old,))).exclude == ("n5",)

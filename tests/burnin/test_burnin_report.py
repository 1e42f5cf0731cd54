"""How a rank's report goes to the leader: shorter than it is, and the same when it arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.burnin.model import ERROR, HANG, LOCAL, OK, RankReport, rank_from, shortened

REPORTS = st.builds(
    RankReport,
    st.integers(0, 9000),
    st.sampled_from(["n1", "n2"]),
    st.integers(0, 7),
    state=st.sampled_from([OK, HANG, ERROR]),
    cause=st.sampled_from(["", LOCAL]),
    step=st.integers(0, 9),
    text=st.text(max_size=5),
    **{name: st.floats(0, 10) for name in RankReport._fields if name.endswith("_ms")},
    mismatches=st.integers(0, 3),
    first_bad=st.integers(-1, 3),
    checksums=st.lists(st.text("0123456789abcdef", max_size=4), max_size=3).map(tuple),
    drift=st.sampled_from([1.0, 1.4]),
)


@given(REPORTS)
def test_a_shortened_report_arrives_whole(report: RankReport) -> None:
    sent = json.loads(json.dumps(shortened(report._asdict())))
    # By their words: one nan is not equal to another.
    assert repr(rank_from(sent, report.node)) == repr(report)
    assert repr(rank_from(json.loads(json.dumps(report._asdict())), report.node)) == repr(report)


@given(REPORTS)
def test_nobody_reports_in_another_nodes_name(report: RankReport) -> None:
    assert rank_from(report._asdict(), "n7").node == "n7"
    assert rank_from(shortened(report._asdict()), "n7").node == "n7"


def test_a_report_of_a_rank_that_was_well_is_short() -> None:
    well = RankReport(4711, "p5-st-gpu-512", 7, phase="done", step=9, median_ms=1.25, checksums=("0123abcd",) * 4)
    assert len(json.dumps(shortened(well._asdict()))) < 160


@pytest.mark.parametrize("row", [None, 5, "text", [], [1], [1] * 99, {}, [0] * 15 + [7]])
def test_what_is_no_report_is_refused(row: Any) -> None:
    with pytest.raises(TypeError):
        rank_from(row, "n1")

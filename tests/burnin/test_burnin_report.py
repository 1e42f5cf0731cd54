"""How a rank's report goes to the leader: shorter than it is, and the same when it arrives."""

from __future__ import annotations

import json

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
    assert rank_from(sent, report.node) == report
    assert rank_from(json.loads(json.dumps(report._asdict())), report.node) == report


@given(REPORTS)
def test_nobody_reports_in_another_nodes_name(report: RankReport) -> None:
    assert rank_from(report._asdict(), "n7").node == "n7"

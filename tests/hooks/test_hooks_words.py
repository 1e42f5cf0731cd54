"""The one line that a job finds in its log about its burn-in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.burnin.model import Outcome
from slurm_ext.config.model import Settings
from slurm_ext.hooks import decide, words
from slurm_ext.hooks.environment import HookJob
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Verdict

JOB = HookJob("7", "c", 0, "n0", ("n0", "n1", "n2", "n3"), "gpu", 1000, 1000, 8, True)
EFA = Settings()
SOCKET = EFA._replace(burnin=EFA.burnin._replace(transport="socket"))
MEASURED = {"leader": "n0", "transport": "EFA with GPUDirect", "floor_gbs": 310.0, "passed": True}


def line(
    word=PASS, *, job=JOB, settings=EFA, measured=MEASURED, rule="burnin.all-nodes", reason="fine", earlier="", **more
):
    fields = {"busbw_gbs": 371.2, "ranks": 8 * len(job.nodes), "seconds": 21.3, **more}
    outcome = Outcome(Verdict(word, (), reason, rule), measured=measured, **fields)
    plan = decide.on_burnin(outcome.verdict, (), settings, job, mode="enforce", measured=measured)
    return words.burnin_line(job, settings, outcome, plan, earlier=earlier)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {},
            "4 nodes, 32 GPUs: all-reduce right, 371 GB/s over EFA with GPUDirect (floor 310), 21 s; leader n0",
        ),
        (
            {"settings": SOCKET, "measured": {"leader": "n1"}, "seconds": 0.47},
            "4 nodes, 32 GPUs: all-reduce right, 371 GB/s over TCP sockets, 0.5 s; leader n1",
        ),
        (
            {"job": JOB._replace(nodes=("n0",)), "measured": {"leader": "n0"}},
            "1 node, 8 GPUs: all-reduce right, 371 GB/s inside the node, 21 s; leader n0",
        ),
        (
            {"word": WARN, "rule": "burnin.transport", "reason": "no byte counters of EFA can be read"},
            "4 nodes, 32 GPUs: all-reduce right, 371 GB/s over EFA (floor 310), 21 s; leader n0; "
            "but: no byte counters of EFA can be read",
        ),
        (
            {"rule": "burnin.reused", "earlier": "they passed together 2.1 h ago, for c/5-0"},
            "4 nodes, 32 GPUs: not measured again: they passed together 2.1 h ago, for c/5-0",
        ),
        (
            {
                "word": UNKNOWN,
                "rule": "burnin.peer-absent",
                "reason": "1 of 4 nodes did not come in time: n3",
                "measured": {**MEASURED, "absent": ["n3"]},
                "settings": EFA._replace(burnin=EFA.burnin._replace(on_absent="pass")),
            },
            "4 nodes: no result, 21 s; leader n0: 1 of 4 nodes did not come in time: n3; the job starts all the same, "
            "since burnin.on_absent is pass; NOT TESTED: 1 of 4 nodes: n3",
        ),
        (
            {
                "word": FAIL,
                "rule": "burnin.fabric",
                "reason": "3 of 4 nodes fail",
                "settings": EFA._replace(burnin=EFA.burnin._replace(on_fabric="pass")),
            },
            "4 nodes: all-reduce failed, 21 s; leader n0: 3 of 4 nodes fail; the job starts all the same, "
            "since burnin.on_fabric is pass",
        ),
        (
            {"word": UNKNOWN, "rule": "burnin.deadline", "reason": "no verdict within 90 s", "measured": {}},
            "4 nodes: no result, 21 s: no verdict within 90 s; the job could not be sent back and starts all the same",
        ),
        (
            {"measured": {**MEASURED, "absent": ["n1", "n3"]}},
            "4 nodes, 32 GPUs: all-reduce right, 371 GB/s over EFA with GPUDirect (floor 310), 21 s; leader n0; "
            "NOT TESTED: 2 of 4 nodes: n1, n3",
        ),
        ({"measured": {"leader": "../x", "floor_gbs": "high", "transport": 7}, "busbw_gbs": None}, None),
    ],
)
def test_what_was_measured_in_one_line(change, expected):
    said = line(**change)
    assert said == (expected or "4 nodes, 32 GPUs: all-reduce right, 21 s")


@given(st.text(max_size=2000), st.text(max_size=200), st.sampled_from([PASS, WARN, FAIL, UNKNOWN]))
def test_texts_of_other_nodes_stay_one_short_printable_line(reason, transport, word):
    said = line(word, reason=reason, measured={**MEASURED, "transport": transport, "absent": list(JOB.nodes)})
    assert said.isascii()
    assert said.isprintable()
    assert len(said) <= 600

"""The words that Slurm prints, and any text at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_cases import NODE, told

from slurm_ext.gate import slurm_json, slurm_table, slurm_text
from slurm_ext.gate.slurm_node_rules import slurms_own
from slurm_ext.slurm import parse, states


@pytest.mark.parametrize("mark", states.NODE_MARKS)
def test_both_parsers_read_a_mark_alike(mark):
    assert parse.node_state(f"IDLE{mark}")[1] == tuple(states.node((f"idle{mark}",)).flags)


def test_pending_and_issued_reboots_are_not_mixed_up():
    # sinfo(1): `@` is pending reboot, `^` is reboot issued
    assert (states.NODE_MARKS["@"], states.NODE_MARKS["^"]) == ("REBOOT_REQUESTED", "REBOOT_ISSUED")


#: What node_state_string, node_state_string_compact, node_state_flags and the REST parsers print in 20.11 to 26.05.
NODE_WORDS = """
    ALLOC ALLOCATED ALLOCATED# ALLOCATED$ ALLOCATED* ALLOCATED@ ALLOCATED^ ALLOCATED+ ALLOCATED~ BLOCK BLOCKED BOOT BOOT* BOOT^
    CANCEL_REBOOT CANC_R CLOUD COMP COMP* COMPLETING COMPLETING* DOWN DOWN! DOWN# DOWN$ DOWN% DOWN* DOWN@ DOWN^ DOWN~ DRAIN
    DRAIN! DRAIN# DRAIN$ DRAIN% DRAIN* DRAIN@ DRAIN^ DRAIN~ DRAINED DRAINED* DRAINING DRAINING@ DRNG DRNG* DYNAMIC
    DYNAMIC_FUTURE DYNAMIC_NORM ERR ERR* ERROR ERROR* EXT EXTERNAL FAIL FAIL* FAILG FAILG* FAILING FAILING* FUTR FUTURE
    FUTURE* IDLE IDLE! IDLE# IDLE$ IDLE% IDLE* IDLE- IDLE@ IDLE^ IDLE~ INVAL INVALID_REG MAINT MAINT* MAINTENANCE MIX MIX+
    MIX- MIXED MIXED! NOT_RESPONDING NPC PERFCTRS PLANNED PLND POWERED_DN POWERED_DOWN POWERING_DOWN POWERING_UP POWER_DOWN
    POWER_DOWN_ASAP POWER_DOWN_FORCE POWER_DRAIN POWER_UP POWRING_DN POWRNG_DN POW_DN POW_UP REBOOT REBOOT* REBOOT^
    REBOOT_CANCELED REBOOT_ISSUED REBOOT_REQUESTED RESERVED RESM RESUME RESV UNDRAIN UNK UNK* UNKNOWN UNKNOWN*
"""


def test_every_word_that_slurm_prints_is_known():
    assert [word for word in NODE_WORDS.split() if not states.is_node_word(word)] == []
    assert not states.is_node_word("?")
    assert states.node(("INVALID",)).unknown


def test_a_cut_word_counts_only_where_one_word_begins_so():
    assert states.node(("powering_do",), cut=True).flags == {"POWERING_DOWN"}
    assert states.node(("power",), cut=True).flags == {"POWERED_DOWN"}
    assert states.node(("powerin",), cut=True).unknown
    assert states.node(("powering_do",)).unknown


@pytest.mark.parametrize(
    "reason", ["Not responding, and more", "Prolog error, bob looks", "x : reboot issued", "", "none"]
)
def test_what_is_only_in_part_slurms_own_is_not(reason):
    assert not slurms_own(reason)


ODD = st.text(alphabet=st.sampled_from(list('aNodeJbIStRs=+*~|# \t\n[]@{}",0123:()/-')), max_size=300)


@given(text=st.one_of(st.text(max_size=300), ODD))
def test_no_text_breaks_a_reader(text):
    for role in ("scontrol_node", "scontrol_job", "sinfo", "squeue", "stdout"):
        verdict, _ = told({"command": "scontrol"}, **{role: text})
        assert verdict in ("pass", "warn", "fail", "unknown")
    slurm_text.nodes(text)
    slurm_text.jobs(text)
    slurm_json.read(text)
    slurm_table.read(text, is_state=states.is_node_word)


@given(comment=st.text(max_size=60), reason=st.text(max_size=60))
def test_no_comment_or_reason_of_an_idle_node_makes_it_fail(comment, reason):
    one = " ".join(reason.split())
    more = f"   Reason={one} [bob@2026-06-11T01:22:10]\n   Comment={' '.join(comment.split())}"
    assert told({"own_prefix": "x:"}, scontrol_node=NODE.format(name="gpu-1", state="IDLE", more=more))[0] == "pass"


@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "nodes",
                        "jobs",
                        "sinfo",
                        "state",
                        "node",
                        "job_state",
                        "errors",
                        "name",
                        "reason",
                        "job_id",
                        "restart_cnt",
                        "end_time",
                        "last_update",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_no_json_breaks_the_reader(data):
    slurm_json.read(json.dumps(data))


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("scontrol_node", "NodeName=a State=DOWN Reason=" + " Reason=" * 30_000),
        ("scontrol_node", "NodeName=a State=DOWN Reason=" + "Not responding : " * 30_000),
        ("scontrol_node", "NodeName=a State=IDLE Reason=" + " [a@" * 30_000),
        ("scontrol_job", "JobId=1 UserId=a GroupId=b " + "JobState=x Reason=" * 30_000),
        ("sinfo", "( ( ( [ " * 30_000),
        ("squeue", "JOBID|NAME|STATE\n" + "1|" * 100_000),
    ],
)
def test_a_long_hostile_line_is_answered(role, text):
    assert told({}, **{role: text})[0] in ("pass", "fail", "unknown")

"""Job records in text and JSON: which of them points at a node."""

from __future__ import annotations

import json

import pytest
from slurm_cases import DRAIN, JOB, JOB_NOTE, JOB_UNKNOWN, JOB_WARN, NODE, NOTHING, case, job, told

from slurm_ext.gate import replay_slurm


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ("COMPLETED", {}, NOTHING),
        ("RUNNING", {}, NOTHING),
        ("RUNNING", {"restarts": 2}, JOB_NOTE),
        ("RUNNING", {"restarts": 35}, JOB_WARN),
        ("SUSPENDED", {}, NOTHING),
        ("PENDING", {"reason": "Resources", "nodes": "(null)"}, NOTHING),
        ("PENDING", {"reason": "JobHeldAdmin", "nodes": "(null)"}, NOTHING),
        ("PENDING", {"reason": "ReqNodeNotAvail,_Reserved_for_maintenance"}, NOTHING),
        ("PENDING", {"reason": "ReqNodeNotAvail,_UnavailableNodes:gpu-[1-2]", "nodes": "(null)"}, JOB_WARN),
        ("PENDING", {"reason": "launch_failed_requeued_held", "nodes": "(null)", "restarts": 1}, JOB_WARN),
        ("PENDING", {"reason": "JobHoldMaxRequeue", "nodes": "(null)"}, JOB_WARN),
        ("PENDING", {"reason": "BeginTime", "nodes": "(null)", "restarts": 1}, JOB_NOTE),
        ("FAILED", {"reason": "NonZeroExitCode"}, JOB_NOTE),
        ("FAILED", {"reason": "RaisedSignal:9(Killed)"}, JOB_NOTE),
        ("TIMEOUT", {"reason": "TimeLimit"}, JOB_NOTE),
        ("OUT_OF_MEMORY", {"reason": "OutOfMemory"}, JOB_NOTE),
        ("DEADLINE", {"reason": "DeadLine"}, JOB_NOTE),
        ("CANCELLED", {}, JOB_NOTE),
        ("PREEMPTED", {}, JOB_NOTE),
        ("SPECIAL_EXIT", {"reason": "job_requeued_in_special_exit_state"}, JOB_NOTE),
        ("NODE_FAIL", {"reason": "NodeDown", "failed": "gpu-2"}, ("fail", [("node:gpu-2", "drain")])),
        ("NODE_FAIL", {"reason": "NodeDown"}, JOB_UNKNOWN),
        ("NODE_FAIL", {"reason": "NodeDown", "nodes": "gpu-1"}, DRAIN),
        ("PENDING", {"failed": "gpu-1", "nodes": "(null)"}, DRAIN),
        ("BOOT_FAIL", {}, JOB_UNKNOWN),
        ("BOOT_FAIL", {"nodes": "gpu-1"}, DRAIN),
        ("FAILED", {"reason": "JobLaunchFailure"}, JOB_UNKNOWN),
        ("FAILED", {"reason": "SystemFailure"}, JOB_UNKNOWN),
        ("FAILED", {"reason": "NodeDown", "nodes": "gpu-1"}, DRAIN),
        ("ASCENDED", {}, JOB_UNKNOWN),
        ("COMPLETING", {}, NOTHING),
        ("COMPLETING", {"now": "2026-06-11T02:23:00"}, NOTHING),
        (
            "COMPLETING",
            {"now": "2026-06-11T04:23:00"},
            ("warn", [("job:4712", "warn"), ("node:gpu-1", "warn"), ("node:gpu-2", "warn")]),
        ),
        ("CONFIGURING", {"now": "2026-06-11T01:32:00"}, NOTHING),
        ("CONFIGURING", {"now": "2026-06-11T02:32:00"}, JOB_WARN),
        ("RUNNING", {"now": "2026-06-11T01:23:00", "reason": "Prolog"}, NOTHING),
        ("RUNNING", {"now": "2026-06-11T02:23:00", "reason": "Prolog"}, JOB_WARN),
        ("RUNNING", {"name": "x JobState=NODE_FAIL Reason=NodeDown FailedNode=gpu-1"}, NOTHING),
        ("RUNNING", {"comment": "JobState=NODE_FAIL Reason=NodeDown FailedNode=gpu-1 Dependency=(null)"}, NOTHING),
    ],
)
def test_does_a_job_point_at_a_node(state, options, expected):
    assert job(state, **options) == expected


def test_names_of_groups_may_hold_blanks():
    text = JOB.format(state="RUNNING", reason="None", nodes="gpu-1", failed="", restarts=0, name="x", comment="")
    text = text.replace(
        "UserId=user1(1000) GroupId=users(100) MCS_label=N/A", "UserId=a b(1) GroupId=domain users(100)"
    )
    assert told({}, scontrol_job=text) == NOTHING


def test_a_job_name_that_is_a_whole_record_is_not_believed():
    forged = "x UserId=a(1) GroupId=b(1) JobState=NODE_FAIL Reason=NodeDown FailedNode=gpu-9 Dependency=(null)"
    text = " ".join(
        JOB.format(
            state="RUNNING", reason="None", nodes="gpu-1", failed="", restarts=0, name=forged, comment="x"
        ).split()
    )
    assert told({}, scontrol_job=text + "\n") == JOB_UNKNOWN


def test_a_node_and_its_job_say_one_thing_once():
    text = JOB.format(state="NODE_FAIL", reason="NodeDown", nodes="gpu-1", failed="", restarts=0, name="x", comment="")
    more = "   Reason=Not responding [slurm@2026-06-11T01:22:10]"
    items = replay_slurm.judge(
        case(scontrol_job=text, scontrol_node=NODE.format(name="gpu-1", state="DOWN*", more=more))
    )
    assert [(item.finding.target, item.finding.action) for item in items] == [("node:gpu-1", "drain")]


def test_a_node_that_is_shown_as_failed_answers_which_it_was():
    text = JOB.format(
        state="NODE_FAIL", reason="NodeDown", nodes="gpu-[1-2]", failed="", restarts=0, name="x", comment=""
    )
    more = "   Reason=Not responding [slurm@2026-06-11T01:22:10]"
    assert told({}, scontrol_job=text, scontrol_node=NODE.format(name="gpu-1", state="DOWN*", more=more)) == DRAIN


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"job_state": "COMPLETED"}, NOTHING),
        ({"job_state": ["COMPLETED"], "failed_node": ""}, NOTHING),
        ({"job_state": ["NODE_FAIL"], "failed_node": "gpu-1"}, DRAIN),
        ({"job_state": "NODE_FAIL", "nodes": "gpu-1"}, DRAIN),
        ({"job_state": ["NODE_FAIL", "COMPLETING"], "nodes": "gpu-1"}, JOB_UNKNOWN),
        ({"job_state": ["PENDING", "LAUNCH_FAILED"]}, JOB_UNKNOWN),
        ({"job_state": ["PENDING"], "state_description": "launch failed requeued held"}, JOB_WARN),
        ({"job_state": ["FAILED"], "exit_code": {"return_code": {"set": True, "number": 1}}}, JOB_NOTE),
        ({"job_state": ["PENDING", "REQUEUED"], "restart_cnt": 1}, JOB_NOTE),
        ({"job_state": []}, JOB_UNKNOWN),
        (
            {
                "job_state": ["COMPLETED", "COMPLETING"],
                "end_time": {"set": True, "number": 1749560000},
                "nodes": "gpu-1",
            },
            ("warn", [("job:4712", "warn"), ("node:gpu-1", "warn")]),
        ),
        ({"job_state": ["COMPLETED", "COMPLETING"], "end_time": 1749564000, "nodes": "gpu-1"}, NOTHING),
    ],
)
def test_every_json_form_of_a_job(record, expected):
    whole = {"jobs": [{"job_id": 4712, **record}], "last_update": {"set": True, "number": 1749564100}, "errors": []}
    assert told({}, scontrol_job=json.dumps(whole)) == expected
    assert told({}, squeue=json.dumps(whole)) == expected

"""Captures of Slurm's own views: every state, suffix, reason and form of a node, judged as Slurm's documentation says."""

from __future__ import annotations

import json

import pytest
from slurm_cases import DRAIN, LEAVE, NODE, NOTHING, UNKNOWN, node, told

from slurm_ext.slurm import states


@pytest.mark.parametrize(
    "state",
    [
        *(
            "IDLE",
            "MIXED+CLOUD",
            "ALLOCATED",
            "IDLE+CLOUD+POWER",
            "IDLE+CLOUD+POWERED_DOWN",
            "IDLE~+CLOUD",
            "IDLE#+CLOUD",
        ),
        *("IDLE+PLANNED", "MIXED+PLANNED", "ALLOCATED+COMPLETING", "IDLE+COMPLETING", "IDLE+RESERVED", "IDLE+BLOCKED"),
        *("IDLE+DYNAMIC_NORM", "IDLE+DYNAMIC_FUTURE", "IDLE+EXTERNAL", "IDLE+CLOUD+POWERING_UP", "MIXED#+CLOUD"),
        *(
            "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP",
            "IDLE*+CLOUD+POWERING_DOWN",
            "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP",
        ),
        *(
            "IDLE+CLOUD+POWER_DOWN",
            "IDLE!+CLOUD",
            "IDLE%+CLOUD",
            "IDLE+REBOOT_CANCELED",
            "IDLE+PERFCTRS",
            "IDLE+UNDRAIN",
        ),
        "IDLE+CLOUD+POWER_DOWN_FORCE",
    ],
)
def test_a_fit_node_never_fails(state):
    assert node(state) == NOTHING
    words = [word for word in states.NODE_MARKS if state.endswith(word)]
    if not words and "+" not in state.rstrip("+"):
        assert told(sinfo=f"NODELIST|STATE\ngpu-1|{state.lower()}\n") == NOTHING


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        # Slurm's own
        ("DOWN*", "Not responding [slurm@2026-06-11T01:22:10]", DRAIN),
        ("DOWN+NOT_RESPONDING", "Not responding [slurm@1781000000]", DRAIN),
        ("IDLE*", "", DRAIN),
        ("ALLOCATED*+CLOUD", "", DRAIN),
        ("DOWN", "", DRAIN),
        ("ERROR", "", DRAIN),
        ("ALLOCATED+CLOUD+DOWN", "", DRAIN),
        ("DOWN", "Node unexpectedly rebooted [slurm@2026-06-11T01:22:10]", DRAIN),
        (
            "IDLE+DRAIN",
            "Low RealMemory (reported:1031000 < 100.00% of configured:1992294) [slurm@2026-06-11T01:22:10]",
            DRAIN,
        ),
        ("IDLE+DRAIN", "Low RealMemory [slurm@2026-06-11T01:22:10]", DRAIN),
        ("IDLE+DRAIN+INVALID_REG", "Low socket*core*thread count, Low CPUs [slurm@2026-06-11T01:22:10]", DRAIN),
        ("IDLE+DRAIN", "gres/gpu count reported lower than configured (7 < 8) [slurm@2026-06-11T01:22:10]", DRAIN),
        ("IDLE+DRAIN", "gres/gpu count reported lower than configured (7 < 8) [burnadmin@2026-06-11T01:22:10]", DRAIN),
        ("DOWN", "gres/gpu count too low (7 < 8) [slurm@2026-06-11T01:22:10]", DRAIN),
        ("DOWN", "Low TmpDisk, gres/gpu:h100 count too low (7 < 8) [slurm@2026-06-11T01:22:10]", DRAIN),
        ("INVAL", "", DRAIN),
        ("IDLE+INVALID_REG", "", DRAIN),
        ("DRAINED", "Prolog error [root@2026-06-11T01:22:10]", DRAIN),
        ("DRAINING", "Epilog error [root@2026-06-11T01:22:10]", DRAIN),
        ("MIXED+DRAIN", "Kill task failed [root@2026-06-11T01:22:10]", DRAIN),
        ("MIXED+DRAIN", "Kill task failed (JobId=4712 StepId=0) [root@2026-06-11T01:22:10]", DRAIN),
        ("ALLOCATED+DRAIN", "batch job complete failure [slurm@2026-06-11T01:22:10]", DRAIN),
        ("IDLE+DRAIN", "Duplicate jobid [slurm@2026-06-11T01:22:10]", DRAIN),
        ("IDLE+DRAIN", "SlurmdSpoolDir is full [root@2026-06-11T01:22:10]", DRAIN),
        ("DOWN", "reboot timed out [slurm@2026-06-11T01:22:10]", DRAIN),
        ("DOWN", "Not responding : reboot timed out [slurm@2026-06-11T01:22:10]", DRAIN),
        # ours
        ("IDLE+DRAIN", "fmslurm: gpu.lost gpu:3: GPU is lost [root@2026-06-11T01:22:10]", DRAIN),
        ("DOWN*", "fmslurm: gpu.lost gpu:3 [root@2026-06-11T01:22:10]", DRAIN),
        # somebody else's: left alone
        ("IDLE+DRAIN", "ticket 4711: swap PSU, ask ops before resume [admin1@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN", "NHC: check_fs_mount:  /fsx not mounted [root@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN", "see fmslurm: not ours [root@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN", "Prolog error [alice@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN", "Prolog error seen twice, bob looks [root@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN", "Not responding to ping, ticket 12 [root@2026-06-11T01:22:10]", LEAVE),
        ("DOWN", "Scheduler health check failed [slurm@2026-06-11T01:22:10]", LEAVE),
        (
            "DOWN+CLOUD+POWERED_DOWN",
            "(Code:InsufficientInstanceCapacity)Failure when resuming nodes [slurm@1781000000]",
            LEAVE,
        ),
        ("IDLE+CLOUD+DRAIN", "Node failing scheduled_events_check [root@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN", 'bad [x] ]odd[ "quotes" & État=DOWN [admin1@2026-06-11T01:22:10]', LEAVE),
        ("FAIL", "expected to fail soon [admin1@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN", "", LEAVE),
        # asked for, and expected
        ("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached [slurm@2026-06-11T01:22:10]", LEAVE),
        ("DOWN+CLOUD+POWERING_DOWN+NOT_RESPONDING", "Not responding [slurm@2026-06-11T01:22:10]", LEAVE),
        ("DOWN+CLOUD+REBOOT_ISSUED", "Reboot ASAP : reboot issued [slurm@2023-01-26T10:11:39]", LEAVE),
        ("DOWN+CLOUD+POWER_DOWN+POWERED_DOWN+NOT_RESPONDING", "", LEAVE),
        ("DOWN+CLOUD+POWERING_UP", "(Code:InsufficientInstanceCapacity)Failure when resuming nodes [slurm@1]", LEAVE),
        ("DOWN#+CLOUD", "", LEAVE),
        ("DOWN+REBOOT_ISSUED", "kernel update : reboot issued [admin1@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN+REBOOT_REQUESTED", "Reboot ASAP [root@2026-06-11T01:22:10]", LEAVE),
        ("DOWN@+DRAIN", "Reboot ASAP [root@2026-06-11T01:22:10]", LEAVE),
        ("DOWN", "reboot complete [slurm@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+MAINTENANCE", "", LEAVE),
        ("ALLOCATED+MAINTENANCE+RESERVED", "", LEAVE),
        ("DOWN*+MAINTENANCE", "Not responding [slurm@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN+MAINTENANCE", "rack move [admin1@2026-06-11T01:22:10]", LEAVE),
        ("IDLE+DRAIN+MAINTENANCE", "Prolog error [root@2026-06-11T01:22:10]", DRAIN),
        ("ALLOCATED+REBOOT_REQUESTED", "", ("warn", [("node:gpu-1", "none")])),
        # the platform's orders
        ("FAIL*+CLOUD", "Action:Replace [root@2026-06-11T01:22:10]", ("fail", [("node:gpu-1", "replace")])),
        ("FAIL", "Action:Reboot [root@2026-06-11T01:22:10]", ("fail", [("node:gpu-1", "reboot")])),
        ("DOWN*", "Action:Reboot [root@2026-06-11T01:22:10]", ("fail", [("node:gpu-1", "reboot")])),
        ("IDLE+DRAIN", "action:replace [admin1@2026-06-11T01:22:10]", ("fail", [("node:gpu-1", "replace")])),
        ("IDLE", "Action:Replace [root@2026-06-11T01:22:10]", ("pass", [("node:gpu-1", "none")])),
        # not decided
        ("UNKNOWN", "", UNKNOWN),
        ("UNKNOWN+CLOUD", "", UNKNOWN),
        ("UNKNOWN*", "", UNKNOWN),
        ("IDLE+QUARANTINED", "", UNKNOWN),
        ("SLEEPING", "", UNKNOWN),
        ("IDLE+DRAIN+QUARANTINED", "x [a@1]", ("fail", [("node:gpu-1", "none"), ("node:gpu-1", "none")])),
        # an old reason
        ("IDLE", "kernel update [admin1@2026-06-01T01:22:10]", ("pass", [("node:gpu-1", "none")])),
        ("MIXED+CLOUD", "fmslurm: gpu.lost gpu:3 [root@2026-06-01T01:22:10]", ("pass", [("node:gpu-1", "none")])),
    ],
)
def test_a_node_is_judged_by_its_state_and_whose_reason_it_has(state, reason, expected):
    assert node(state, reason) == expected


def test_without_our_prefix_only_slurms_own_old_reasons_are_told():
    assert node("IDLE", "Foo/ failed [bob@01 Jan 2018]", prefix=None) == NOTHING
    assert node("IDLE", "Prolog error [root@2026-06-01T01:22:10]", prefix=None) == ("pass", [("node:gpu-1", "none")])


def test_a_prefix_of_the_site_is_ours_and_the_default_is_not():
    assert node("IDLE+DRAIN", "burnguard: xid 79 [root@2026-06-01T01:22:10]", prefix="burnguard:") == DRAIN
    assert node("IDLE+DRAIN", "fmslurm: xid 79 [root@2026-06-01T01:22:10]", prefix="burnguard:") == LEAVE


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("   Comment=State=DOWN Reason=Prolog error\n   Reason=Not responding [slurm@1781000000]", NOTHING),
        ("   Reason=Not responding [slurm@1781000000]\n   Comment=State=DOWN\n   Extra=Reason=x", NOTHING),
        ('   Extra={"State": "DOWN"}\nNodeName=gpu-1 State=DOWN', NOTHING),
    ],
)
def test_free_text_decides_nothing(more, expected):
    verdict, findings = told({}, scontrol_node=NODE.format(name="gpu-1", state="IDLE", more=more))
    assert (verdict, [one for one in findings if one[1] != "none"]) == expected


def test_a_reason_of_several_lines_is_one_reason():
    more = "   Reason=Not responding [slurm@2026-06-11T01:22:10]\n       second line: Prolog error"
    assert told({}, scontrol_node=NODE.format(name="gpu-1", state="DOWN*", more=more)) == DRAIN


def test_one_line_records_with_missing_spaces():
    line = (
        "NodeName=n{0} NodeAddr=n{0}NodeHostName=n{0} OS=Linux Boards=1State={1}ThreadsPerCore=2 Reason={2} Comment=x\n"
    )
    text = line.format(1, "IDLE", "x") + line.format(2, "DOWN*", "Not responding [slurm@1781000000]")
    text += line.format(3, "IDLE+DRAIN", "Epilog error [root@2026-06-11T01:22:10]") + line.format(
        4, "DOWN", "by hand [bob@1]"
    )
    assert told({}, scontrol_node=text) == ("fail", [("node:n2", "drain"), ("node:n3", "drain"), ("node:n4", "none")])


def test_a_cut_record_is_not_a_node_that_is_well():
    whole = NODE.format(name="gpu-1", state="IDLE", more="")
    assert told({}, scontrol_node=whole + whole[: whole.index("State=")]) == ("unknown", [("node", "none")])


REST = {
    "name": "gpu-1",
    "reason": "",
    "reason_set_by_user": "",
    "reason_changed_at": {"set": True, "infinite": False, "number": 0},
    "next_state_after_reboot": ["INVALID"],
}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"state": ["IDLE", "DYNAMIC_NORM"]}, NOTHING),
        ({"state": "idle", "state_flags": []}, NOTHING),
        ({"state": "idle", "state_flags": ["DRAIN"], "reason": "x", "reason_changed_at": 1749560000}, LEAVE),
        ({"state": "down*", "state_flags": ["NOT_RESPONDING"], "reason": "Not responding"}, DRAIN),
        ({"state": ["DOWN", "NOT_RESPONDING"], "reason": "Not responding", "reason_set_by_user": "slurm"}, DRAIN),
        ({"state": ["IDLE", "DRAIN"], "reason": "fmslurm: gpu.lost gpu:3", "reason_set_by_user": "root"}, DRAIN),
        ({"state": ["IDLE", "DRAIN"], "reason": "Prolog error", "reason_set_by_user": "alice"}, LEAVE),
        ({"state": ["IDLE", "CLOUD", "POWERED_DOWN"]}, NOTHING),
        ({"state": ["IDLE", "POWER_DOWN_ASAP"]}, NOTHING),
        ({"state": ["IDLE", "HIBERNATING"]}, UNKNOWN),
        ({"state": []}, UNKNOWN),
        ({"state": ["INVALID"]}, UNKNOWN),
        ({"state": ["IDLE"], "comment": "DOWN", "extra": '{"state": "DOWN"}'}, NOTHING),
    ],
)
def test_every_json_form_of_a_node(record, expected):
    prefix = {"own_prefix": "fmslurm:"}
    assert told(prefix, scontrol_node=json.dumps({**REST, **record})) == expected
    assert told(prefix, scontrol_node=json.dumps({"nodes": [{**REST, **record}], "errors": []})) == expected
    assert told({**prefix, "command": "scontrol show node --json"}, stdout=json.dumps([{**REST, **record}])) == expected


def test_sinfo_json_names_several_nodes_in_one_row():
    row = {
        "node": {"state": ["DOWN"]},
        "nodes": {"nodes": ["gpu-1", "gpu-2"]},
        "reason": {"description": "Not responding"},
    }
    assert told({}, sinfo=json.dumps({"sinfo": [row], "errors": []})) == (
        "fail",
        [("node:gpu-1", "drain"), ("node:gpu-2", "drain")],
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"nodes": [{"name": "gpu-1", "state": ["ID', ("unknown", [("node", "none")])),
        ('{"nodes": [], "errors": [{"error": "Unable to contact slurm controller"}]}', ("unknown", [("node", "none")])),
        ('{"nodes": [], "errors": []}', ("unknown", [("node", "none")])),
        ("[" * 100_000, ("unknown", [("node", "none")])),
        ("", ("unknown", [("node", "none")])),
        (
            "slurm_load_node error: Unable to contact slurm controller (connect failure)",
            ("unknown", [("node", "none")]),
        ),
        ("Node gpu-7 not found", ("unknown", [("node:gpu-7", "none")])),
    ],
)
def test_no_answer_is_unknown(text, expected):
    assert told({"exit_code": 0}, scontrol_node=text) == expected


@pytest.mark.parametrize(
    ("context", "texts", "expected"),
    [
        ({"command": "squeue -h", "exit_code": 0}, {"stdout": "", "stderr": ""}, NOTHING),
        ({"command": "squeue -h", "exit_code": 1}, {"stdout": ""}, ("unknown", [("node", "none")])),
        ({"command": "squeue -h", "timed_out": True}, {"stdout": ""}, ("unknown", [("node", "none")])),
        ({"command": "sinfo -h", "exit_code": 0}, {"stdout": ""}, ("unknown", [("node", "none")])),
        (
            {"command": "sinfo", "exit_code": 1},
            {"stdout": "", "stderr": "slurm_load_partitions: Socket timed out on send/recv operation"},
            ("unknown", [("node", "none")]),
        ),
        (
            {"command": "scontrol show job 99", "exit_code": 1},
            {"stdout": "", "stderr": "slurm_load_jobs error: Invalid job id specified"},
            ("unknown", [("job:99", "none")]),
        ),
        ({"command": "scontrol show job", "exit_code": 0}, {"stdout": "No jobs in the system\n"}, NOTHING),
        ({"command": "squeue --json", "exit_code": 0}, {"stdout": '{"jobs": [], "errors": []}'}, NOTHING),
    ],
)
def test_how_the_command_ended_counts(context, texts, expected):
    assert told(context, **texts) == expected

"""Captures of Slurm's own views: every state, suffix, reason and form, judged as Slurm's documentation and sources say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import replay_slurm, slurm_json, slurm_table, slurm_text
from slurm_ext.gate.case import Case
from slurm_ext.gate.model import conclude
from slurm_ext.gate.slurm_node_rules import slurms_own
from slurm_ext.slurm import parse, states

NODE = """NodeName={name} Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.11
   AvailableFeatures=static,p5-48xlarge
   Gres=gpu:h100:8
   NodeAddr=10.0.0.11 NodeHostName={name} Version=24.05.8
   OS=Linux 6.8.0-1031-aws #33-Ubuntu SMP
   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   NextState=DOWN
   Partitions=gpu
   BootTime=2026-06-10T05:12:44 SlurmdStartTime=2026-06-10T05:14:02
   CfgTRES=cpu=192,mem=1992294M,billing=192,gres/gpu=8
{more}

"""
JOB = """JobId=4712 JobName={name}
   UserId=user1(1000) GroupId=users(100) MCS_label=N/A
   Priority=1 Nice=0 Account=ml QOS=normal
   JobState={state} Reason={reason} {failed}Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:1
   SubmitTime=2026-06-11T01:00:00 EligibleTime=2026-06-11T01:00:00
   StartTime=2026-06-11T01:22:00 EndTime=2026-06-11T02:22:10 Deadline=N/A
   ReqNodeList=(null) ExcNodeList=gpu-9
   NodeList={nodes}
   BatchHost=gpu-1
   Command=/home/user1/train.sh
   Comment={comment}
   WorkDir=/home/user1

"""


def case(context=None, **texts):
    return Case("/c", "slurm", "", texts, context or {})


def told(context=None, **texts):
    verdict = conclude(replay_slurm.judge(case(context, **texts)))
    return verdict.verdict, sorted((finding.target, finding.action) for finding in verdict.findings)


def node(state, reason="", *, prefix="fmslurm:", name="gpu-1"):
    more = f"   Reason={reason}" if reason else ""
    context = {"own_prefix": prefix} if prefix else {}
    return told(context, scontrol_node=NODE.format(name=name, state=state, more=more))


def job(state, reason="None", *, nodes="gpu-[1-2]", failed="", restarts=0, now=None, name="train", comment="x"):
    failed = f"FailedNode={failed} " if failed else ""
    text = JOB.format(
        state=state, reason=reason, nodes=nodes, failed=failed, restarts=restarts, name=name, comment=comment
    )
    return told({"now": now} if now else {}, scontrol_job=text)


NOTHING = ("pass", [])
LEAVE = ("fail", [("node:gpu-1", "none")])
DRAIN = ("fail", [("node:gpu-1", "drain")])
UNKNOWN = ("unknown", [("node:gpu-1", "none")])


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


SINFO = (
    ("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n", "gpu*         up   infinite      2  {0} gpu-[1-2]\n"),
    ("NODELIST   NODES PARTITION STATE \n", "gpu-1          1      gpu* {0}\ngpu-2          1      gpu* {0}\n"),
    ("NODELIST|STATE|REASON\n", "gpu-1|{0}|none\ngpu-2|{0}|none\n"),
    ("STATE,NODELIST\n", "{0},gpu-1\n{0},gpu-2\n"),
    ("STATE;;NODELIST\n", "{0};;gpu-[1-2]\n"),
)


@pytest.mark.parametrize(("header", "row"), SINFO)
@pytest.mark.parametrize(
    ("word", "verdict", "action"),
    [
        *(
            ("idle", "pass", ""),
            ("mix", "pass", ""),
            ("alloc", "pass", ""),
            ("alloc+", "pass", ""),
            ("comp", "pass", ""),
        ),
        *(
            ("idle~", "pass", ""),
            ("alloc#", "pass", ""),
            ("idle%", "pass", ""),
            ("idle!", "pass", ""),
            ("mix-", "pass", ""),
        ),
        *(
            ("resv", "pass", ""),
            ("plnd", "pass", ""),
            ("block", "pass", ""),
            ("pow_up", "pass", ""),
            ("allocated", "pass", ""),
        ),
        *(("down*", "fail", "drain"), ("idle*", "fail", "drain"), ("mix*", "fail", "drain"), ("down", "fail", "drain")),
        *(
            ("inval", "fail", "drain"),
            ("drain", "fail", "none"),
            ("drained*", "fail", "none"),
            ("drng", "fail", "none"),
        ),
        *(("maint", "fail", "none"), ("down$", "fail", "none"), ("maint*", "fail", "none"), ("down~", "fail", "none")),
        *(("boot^", "fail", "none"), ("drng@", "fail", "none"), ("failg", "fail", "none"), ("down^", "fail", "none")),
        *(("boot", "warn", "none"), ("mix@", "warn", "none"), ("unk", "unknown", "none"), ("unk*", "unknown", "none")),
        *(("quarantined", "unknown", "none"),),
    ],
)
def test_every_word_of_sinfo_in_every_form(header, row, word, verdict, action):
    expected = (verdict, [("node:gpu-1", action), ("node:gpu-2", action)] if action else [])
    assert told({}, sinfo=header + row.format(word)) == expected


def test_sinfo_with_a_format_and_no_header():
    context = {"command": "sinfo -h -N -o '%N|%t|%E'", "own_prefix": "fmslurm:"}
    text = "gpu-1|idle|none\ngpu-2|drain|a|b: odd reason\ngpu-3|down*|Not responding\n"
    assert told(context, sinfo=text) == ("fail", [("node:gpu-2", "none"), ("node:gpu-3", "drain")])
    assert told({"command": "sinfo -hN -O NodeList,StateLong"}, sinfo="gpu-1   idle\ngpu-2   drained\n") == (
        "fail",
        [("node:gpu-2", "none")],
    )


def test_sinfo_reasons_cut_by_their_column():
    text = (
        "REASON               USER      TIMESTAMP           NODELIST\n"
        "Not responding       slurm     2026-06-11T01:22:10 gpu-[1-2]\n"
        "Node unexpectedly re slurm     2026-06-11T01:22:10 gpu-3\n"
        "gres/gpu count repor slurm     2026-06-11T01:22:10 gpu-4\n"
        "ticket 4711: swap PS admin1    2026-06-11T01:22:10 gpu-5\n"
        "Low RealMemory (repo slurm     2026-06-11T01:22:10 gpu-6\n"
    )
    drains = [(f"node:gpu-{number}", "drain") for number in (1, 2, 3, 4, 6)]
    assert told({}, sinfo=text) == ("fail", sorted([*drains, ("node:gpu-5", "none")]))


def test_sinfo_that_lists_no_reason_has_answered():
    assert told({"exit_code": 0}, sinfo="REASON               USER      TIMESTAMP           NODELIST\n") == NOTHING
    assert told({"exit_code": 0}, sinfo="PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\n") == (
        "unknown",
        [("node", "none")],
    )


def test_a_long_sinfo_begins_with_a_date_and_cuts_its_words():
    text = (
        "Thu Jun 11 03:21:00 2026\n"
        "NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON\n"
        "gpu-1          1      gpu* powering_do  192   2:48:2 199229        0      1   static none\n"
        "gpu-2          1      gpu*    drained*  192   2:48:2 199229        0      1   static kernel update soon\n"
    )
    assert told({}, sinfo=text) == ("fail", [("node:gpu-2", "none")])


@pytest.mark.parametrize(
    "text", ["NODELIST|STATE\ngpu-1|idle\ngpu-2", "no table at all\n", "PARTITION NODELIST\ngpu gpu-1\n"]
)
def test_a_table_that_cannot_be_read_is_unknown(text):
    assert told({}, sinfo=text) == ("unknown", [("node", "none")])


def test_scontrol_knows_more_of_a_node_than_sinfo():
    text = NODE.format(name="gpu-1", state="IDLE+DRAIN", more="   Reason=Prolog error [root@2026-06-11T01:22:10]")
    assert told({}, scontrol_node=text, sinfo="NODELIST|STATE\ngpu-1|drain\ngpu-2|idle\n") == DRAIN


JOB_NOTE = ("pass", [("job:4712", "none")])
JOB_UNKNOWN = ("unknown", [("job:4712", "none")])
JOB_WARN = ("warn", [("job:4712", "warn")])


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


@pytest.mark.parametrize("separator", ["|", "|#", "~", "\t", ";", "@@", "^"])
@pytest.mark.parametrize("header", [True, False])
def test_squeue_with_any_separator(separator, header):
    context = {
        "now": "2026-06-11T03:21:00",
        "command": separator.join(("squeue -o '%i", "%j", "%T", "%N", "%e", "%r'")),
    }
    rows = [
        ("4712", f"odd{separator}name", "COMPLETING", "gpu-1", "2026-06-11T01:20:00", "None"),
        ("4713_7", "RUNNING", "RUNNING", "gpu-[2-6]", "2026-06-12T01:00:00", "None"),
        ("4714", "x", "PENDING", "", "N/A", "Resources"),
        ("4715_[1-9%2]", "y", "PENDING", "", "N/A", "Dependency"),
    ]
    names = [("JOBID", "NAME", "STATE", "NODELIST", "END_TIME", "REASON")] if header else []
    text = "".join(separator.join(row) + "\n" for row in [*names, *rows])
    expected = ("warn", [("job:4712", "warn"), ("node:gpu-1", "warn")])
    assert told(context, squeue=text) == expected
    if header:
        assert told({"now": context["now"]}, squeue=text) == expected


def test_a_name_that_holds_the_separator_and_a_state_is_not_believed():
    text = "JOBID|NAME|STATE|NODELIST|REASON\n4712|x|NODE_FAIL|RUNNING|gpu-1|None\n"
    assert told({}, squeue=text) == ("unknown", [("node", "none")])


def test_squeues_own_columns_with_blanks_in_names():
    text = (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "              4712       gpu train v2    user1 NF    1:00:00      1 gpu-1\n"
        "              4713       gpu    train    user1  R    1:00:00      1 gpu-2\n"
        "              4714       gpu    train    user1 PD       0:00      1 (launch failed requeued held)\n"
        "              4715       gpu    train    user1 PD       0:00      1 (Priority)\n"
    )
    assert told({}, squeue=text) == ("fail", [("job:4714", "warn"), ("node:gpu-1", "drain")])


def test_squeue_without_anything_that_describes_it():
    text = "4712|bash|NODE_FAIL|gpu-1|x\n4713|bash|RUNNING|gpu-2|x\n"
    assert told({}, squeue=text) == DRAIN
    assert told({}, squeue="4713|RUNNING|gpu-2\n4714|RUNN") == ("unknown", [("node", "none")])


def test_squeues_long_form_cuts_its_states_and_tells_for_how_long():
    text = (
        "Tue Nov 22 13:51:50 2022\n"
        "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)\n"
        "                 2   execute aid7742p  hpcuser CONFIGUR      28:14 1-00:00:00      1 execute-pg0-2\n"
        "                 5   hb120v2 aid7742p  hpcuser CONFIGUR      58:14 1-00:00:00      1 hb120v2-pg0-2\n"
        "                 6   hb120v2 aid7742p  hpcuser COMPLETI    2:58:14 1-00:00:00      1 hb120v2-pg0-3\n"
        "                12 largeviz3 aid7742p  hpcuser  PENDING       0:00 1-00:00:00      1 (Nodes required for job are "
        "DOWN, DRAINED or reserved for jobs in higher priority partitions)\n"
    )
    assert told({}, squeue=text) == ("warn", [("job:5", "warn"), ("node:hb120v2-pg0-2", "warn")])


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        ("sinfo -R --noheader", "Kill task failed root 2024-01-25T15:12:23 gpu-1\n", DRAIN),
        ("sinfo -h -N", "gpu-1 1 gpu* down*\ngpu-2 1 gpu* idle\n", DRAIN),
        ("sinfo -h", "gpu* up infinite 1 down* gpu-1\ngpu* up infinite 2 idle gpu-[2-3]\n", DRAIN),
        ("sinfo -hRl", "Low RealMemory (repo slurm(64030) 2024-01-25T15:12:23 drain* gpu-1\n", DRAIN),
        ("squeue -h", "4712 gpu train v2 user1 NF 1:00:00 1 gpu-1\n", DRAIN),
        (
            "",
            "  80520_36 n2  a.sh  PENDING  0:00  1 (launch failed requeued held)\n 80520_37 n2 b.sh NODE_FAIL 0:00 1 gpu-1\n",
            None,
        ),
    ],
)
def test_columns_that_no_header_names(command, text, expected):
    role = "sinfo" if "sinfo" in command else "squeue"
    expected = expected or ("fail", [("job:80520_36", "warn"), ("node:gpu-1", "drain")])
    assert told({"command": command, "exit_code": 0}, **{role: text}) == expected


def test_a_wide_sinfo_with_a_separator_that_has_blanks_around_it():
    text = (
        "AVAIL|CPUS|HOSTNAMES|STATE|USER|S:C:T|NODES(A/I) |REASON |NODELIST |PARTITION |STATE |USER |THREADS\n"
        "up|80|node0201|drain*|root|2:20:2|0/0 |replace |node0201 |partition |drained* |root(0) |2 |\n"
        "up|80|node1537|alloc|Unknown|2:20:2|1/0 |none |node1537 |partition |allocated |Unknown |2\n"
    )
    assert told({}, sinfo=text) == ("fail", [("node:node0201", "none")])


def test_a_partition_without_nodes_is_no_trouble():
    text = (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "gpu          up 7-00:00:00      2   idle e[001-002]\n"
        "big          up 7-00:00:00      0    n/a \n"
    )
    assert told({}, sinfo=text) == NOTHING


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

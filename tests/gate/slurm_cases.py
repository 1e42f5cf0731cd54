"""What tests of Slurm's views share: records as scontrol prints them, and what a capture of them is judged to say."""

from __future__ import annotations

from slurm_ext.captured import Case
from slurm_ext.gate import replay_slurm
from slurm_ext.gate.model import conclude

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
JOB_NOTE = ("pass", [("job:4712", "none")])
JOB_UNKNOWN = ("unknown", [("job:4712", "none")])
JOB_WARN = ("warn", [("job:4712", "warn")])

"""What is left on GPUs after a job, what only seems so, and what is somebody's own."""

from __future__ import annotations

import pytest
from gpu_answers import answer, uuid

from slurm_ext.aws import catalogue
from slurm_ext.command import Result
from slurm_ext.gate import ask_smi, gpu_left, local, smi
from slurm_ext.gate.model import Facts, GpuHolder, conclude
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

CLEAN = smi.parse_csv(answer())
FULL = smi.parse_csv(answer(change={3: {"memory.used": "70000 MiB"}}))


def after(holders, again=None, first=CLEAN, second=CLEAN, job_id="7", uid=1000, whole=True, compute=True):
    left = None if again is None else (second, again)
    return gpu_left.after(
        Facts(smi=first, holders=holders, left=left),
        job_id=job_id,
        job_uid=uid,
        whole_node=whole,
        compute_only=compute,
    )


def holder(pid=10, number=3, name="python3", job="7", user=1000):
    return GpuHolder(pid, uuid(number), name, job, user)


def test_a_program_of_the_job_that_is_still_there_at_a_second_look():
    (found,) = after((holder(),), (holder(),))
    assert (found.verdict, found.finding.id, found.finding.target) == (FAIL, "gpu.leftover-processes", "gpu:3")


def test_one_that_has_ended_meanwhile_is_nothing():
    assert after((holder(),), ()) == []
    assert after((holder(pid=10),), (holder(pid=11),)) == []
    assert after((holder()._replace(start=5),), (holder()._replace(start=9),)) == [], "the number is another's by now"


def test_without_a_second_look_nobody_is_convicted():
    assert conclude(after((holder(),))).verdict == UNKNOWN
    left = Facts(smi=CLEAN, holders=(holder(),), left=(None, None))
    found = gpu_left.after(left, job_id="7", job_uid=1000, whole_node=True, compute_only=True)
    assert conclude(found).verdict == UNKNOWN


@pytest.mark.parametrize(
    ("who", "verdict"),
    [
        (holder(job="8"), PASS),  # another job's, which runs
        (holder(job="", name="/usr/bin/nv-hostengine", user=0), PASS),
        (holder(job="", name="nvidia-cuda-mps-server", user=1000), PASS),
        (holder(job="", name="nv-hostengine", user=1000), FAIL),  # a name is anybody's to choose
        (holder(job="", user=1000), FAIL),  # no cgroups here, but it had the node for itself
        (holder(job="", user=1001), WARN),  # a person who is at work on this node
        (holder(job="", user=0), WARN),
        (holder(job="", user=None), WARN),
    ],
)
def test_whose_it_is(who, verdict):
    assert conclude(after((who,), (who,))).verdict == verdict


def test_on_a_shared_node_the_same_user_may_have_another_job():
    mine = holder(job="")
    assert conclude(after((mine,), (mine,), whole=False)).verdict == WARN


def test_between_jobs_a_program_is_only_told():
    mine = holder(job="")
    assert conclude(after((mine,), (mine,), job_id="")).verdict == WARN


def test_memory_that_no_program_holds():
    (found,) = after((), (), first=FULL, second=FULL)
    assert (found.verdict, found.finding.id, found.finding.action) == (FAIL, "gpu.memory-leak", "reset-gpu")
    assert found.finding.target == "gpu:3"
    (told,) = after((), (), first=FULL, second=FULL, compute=False)
    assert told.verdict == WARN


def test_memory_that_is_given_back_or_held_is_no_leak():
    assert after((), (), first=FULL, second=CLEAN) == []
    other = holder(job="8")
    assert after((other,), (other,), first=FULL, second=FULL) == []
    assert after((), (other,), first=FULL, second=FULL) == []  # a program began between two questions
    assert after(None, None, first=FULL, second=FULL) == []


def test_under_mig_memory_tells_no_gpu():
    mig = smi.parse_csv(answer(change={3: {"memory.used": "70000 MiB", "mig.mode.current": "Enabled"}}))
    assert after((), (), first=mig, second=mig) == []
    inside = GpuHolder(10, "MIG-aaaa", "python3", "8", 1000)
    assert after((inside,), (inside,), first=FULL, second=FULL) == []


def test_before_a_job_it_is_a_warning():
    facts = Facts(smi=FULL, holders=(holder(job="", number=1), holder(job="8", number=2)))
    found = {item.finding.id: item.finding.target for item in gpu_left.before(facts, job_id="7")}
    assert found == {"gpu.leftover-processes": "gpu:1", "gpu.memory-in-use": "gpu:3"}
    assert conclude(gpu_left.before(facts, job_id="7")).verdict == WARN
    assert gpu_left.before(Facts(smi=CLEAN, holders=()), job_id="7") == []


def test_when_a_second_look_is_worth_its_time():
    assert not gpu_left.doubtful(CLEAN, (), job_id="7")
    assert not gpu_left.doubtful(None, None, job_id="7")
    assert not gpu_left.doubtful(CLEAN, (holder(name="nv-hostengine", user=0, job=""),), job_id="7")
    assert not gpu_left.doubtful(CLEAN, (holder(job="8"),), job_id="7")
    assert not gpu_left.doubtful(CLEAN, (holder(job="8"),), job_id="")
    assert gpu_left.doubtful(CLEAN, (holder(),), job_id="7")
    assert gpu_left.doubtful(CLEAN, (holder(job=""),), job_id="")
    assert gpu_left.doubtful(FULL, (), job_id="")


@pytest.mark.parametrize("said", ["4711, GPU-1", "4711, GPU-1, python\n4712, GPU-", "12"])
def test_a_list_of_programs_without_the_end_of_its_line_is_not_known(said):
    ended = Result(("nvidia-smi",), 0, said, "", 0.1)
    assert ask_smi.holders(ended) is None
    assert ask_smi.holders(ended._replace(stdout="")) == ()


@pytest.mark.parametrize(
    ("smi", "known", "whole"),
    [
        (CLEAN, True, 8),
        (CLEAN._replace(gpus=CLEAN.gpus[:2], exit_code=-9), True, 8),
        (CLEAN._replace(gpus=CLEAN.gpus[:2], attached=None, complete=False), True, 8),
        (CLEAN._replace(gpus=(), attached=None, complete=False, exit_code=None, timed_out=True), True, 8),
        (CLEAN._replace(gpus=CLEAN.gpus[:7], attached=7), True, 7),
        (CLEAN._replace(gpus=CLEAN.gpus[:2], attached=None, exit_code=255), False, 2),
    ],
)
def test_a_cut_list_does_not_make_a_jobs_gpus_all_there_are(smi, known, whole):
    assert local._gpus_here(smi, catalogue.find("p5.48xlarge") if known else None) == whole

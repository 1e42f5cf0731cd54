"""Attribution as a table: one row, one kind of end, its class, what it calls for and whom it convicts."""

from __future__ import annotations

import pytest

from slurm_ext.resume import logs
from slurm_ext.resume.attribute import attribute
from slurm_ext.resume.model import ACTIONS, CLASSES, Earlier, Evidence, NodeEvent, NodeEvidence, SlurmFacts

NODES = ("n1", "n2", "n3", "n4")
STEPS = "".join(f"[rank0]: step: {step} loss: 3.{step}\n" for step in range(5))
GONE = "srun: error: n1: task 0: Exited with exit code 1\n"


def ev(log="", state="FAILED", nodes=NODES, rpn=8, kernel=None, events=None, **facts):
    """Return evidence from a log text, kernel text per node, and (time, source, type, text) events per node."""
    kernel, events = kernel or {}, events or {}
    about = {
        node: NodeEvidence(
            node,
            f"i-0{node[1:]}",
            tuple(kernel.get(node, "").splitlines()),
            tuple(NodeEvent(logs.time_of(when), *rest) for when, *rest in events.get(node, ())),
        )
        for node in {*kernel, *events}
    }
    slurm = SlurmFacts(job_id="5", state=state, nodes=nodes, ranks_per_node=rpn, **facts)
    return Evidence(slurm, tuple(logs.lines(log)), about)


CASES = [
    pytest.param(
        ev(
            STEPS
            + "[2026-11-29T23:34:41.384] error: *** JOB 4 ON n2 CANCELLED AT 2026-11-29T23:34:41 DUE TO NODE FAILURE, "
            "SEE SLURMCTLD LOG FOR DETAILS ***\n",
            state="",
        ),
        "infra-node",
        "requeue",
        (),
        id="requeued-for-a-node-that-is-back-already",
    ),
    pytest.param(
        ev(
            state="NODE_FAIL",
            events={
                "n3": [("2026-11-29T10:00:05", "fmslurm", "burnin.slow", "node:n3 fails with n1, n2, n4")],
                "n1": [("2026-11-29T10:00:02", "slurmctld", "node_state", "Not responding")],
            },
            failed_node="n1",
        ),
        "infra-fabric",
        "requeue-exclude",
        ("n3",),
        id="convicted-by-the-burn-in-beside-a-restarted-slurmd",
    ),
    pytest.param(
        ev(
            STEPS.replace("step", "stp")
            + "[rank9]: FileNotFoundError: [Errno 2] No such file or directory: '/fsx/data/train.bin'\n"
            "[rank12]: FileNotFoundError: [Errno 2] No such file or directory: '/fsx/data/train.bin'\n" + GONE
        ),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="path-missing-one-host",
    ),
    pytest.param(
        ev(
            STEPS + "[rank17]: OSError: [Errno 116] Stale file handle: '/fsx/a'\n[rank18]: OSError: "
            "[Errno 116] Stale file handle: '/fsx/b'\n"
        ),
        "infra-node",
        "requeue-exclude",
        ("n3",),
        id="stale-one-host",
    ),
    pytest.param(
        ev(
            "[rank25]: socket.gaierror: [Errno -3] Temporary failure in name resolution\n[rank26]: "
            "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"
        ),
        "infra-node",
        "requeue-exclude",
        ("n4",),
        id="name-resolution-one",
    ),
    pytest.param(
        ev(
            "".join(
                f"[rank{r}]: socket.gaierror: [Errno -3] Temporary failure in name resolution\n"
                for r in range(0, 32, 4)
            )
        ),
        "external-service",
        "wait-requeue",
        (),
        id="name-resolution-all",
    ),
    pytest.param(
        ev(STEPS + "[rank10]: OSError: [Errno 28] No space left on device: '/tmp/cache/x'\n"),
        "storage",
        "requeue-exclude",
        ("n2",),
        id="local-disk",
    ),
    pytest.param(
        ev(STEPS + "[rank0]: OSError: [Errno 28] No space left on device: '/fsx/ckpt/step100'\n"),
        "storage",
        "wait-requeue",
        (),
        id="shared-full",
    ),
    pytest.param(
        ev(
            STEPS + "srun: error: Node failure on n2\n",
            state="NODE_FAIL",
            failed_node="n2",
            events={
                "n2": [
                    (
                        "2026-04-20T08:00:00",
                        "ec2",
                        "scheduled_event",
                        "Code=instance-retirement NotBefore=2026-04-21T02:00:00Z",
                    )
                ]
            },
        ),
        "maintenance",
        "requeue-exclude",
        ("n2",),
        id="retirement",
    ),
    pytest.param(
        ev(
            STEPS + "2026-04-25T08:00:00 srun: error: Node failure on n2\n",
            state="NODE_FAIL",
            failed_node="n2",
            events={
                "n2": [
                    (
                        "2026-04-20T08:00:00",
                        "ec2",
                        "scheduled_event",
                        'Code=system-reboot NotBefore=2026-04-21T02:00:00Z Description="[Completed] reboot"',
                    )
                ]
            },
        ),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="completed-event",
    ),
    pytest.param(
        ev(STEPS, state="CANCELLED", cancelled_by_uid=0, job_uid=5001), "user-cancel", "none", (), id="admin-cancel"
    ),
    pytest.param(
        ev(
            "SLURM_RESTART_COUNT=0\n"
            + STEPS
            + "[rank3]: RuntimeError: Rank 3, iteration 8818: Unexpected result nan\nSLURM_RESTART_COUNT=1\n"
            + STEPS
            + "[rank3]: RuntimeError: Rank 3, iteration 8818: Unexpected result nan\n",
            restarts=1,
        ),
        "numeric",
        "stop",
        (),
        id="nan-again",
    ),
    pytest.param(
        ev(
            STEPS + "[rank11]: Second rerun: "
            "unexpected result is not reproducible on a different GPU, therefore was likely incorrect. "
            "Possible persistent error!\n"
        ),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="sdc-other-gpu",
    ),
    pytest.param(
        ev("n3: ModuleNotFoundError: No module named 'torch'\n" + GONE),
        "infra-node",
        "requeue-exclude",
        ("n3",),
        id="importerror-one-host",
    ),
    pytest.param(
        ev("".join(f"n{i}: ModuleNotFoundError: No module named 'apex'\n" for i in range(1, 5))),
        "user-config",
        "stop",
        (),
        id="importerror-all",
    ),
    pytest.param(
        ev("n2: Failed to initialize NVML: Driver/library version mismatch\n"),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="driver-mismatch",
    ),
    pytest.param(
        ev(
            STEPS,
            kernel={"n3": "[Mon Mar 21 13:34:33 2022] NVRM: Xid (PCI:0000:91:00): 95, pid=12, Uncontained ECC error"},
        ),
        "infra-node",
        "requeue-exclude",
        ("n3",),
        id="xid95",
    ),
    pytest.param(
        ev(
            STEPS + "[rank10]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
            kernel={"n2": "NVRM: Xid (PCI:0000:91:00): 31, pid=12, MMU Fault"},
        ),
        "unknown",
        "requeue",
        (),
        id="xid31-alone",
    ),
    pytest.param(
        ev(
            "2022-03-21 15:00:00 step: 1 loss: 3\n2022-03-21 17:00:00 KeyError: 'x'\n",
            elapsed_s=7200,
            kernel={"n3": "[Mon Mar 21 10:34:33 2022] NVRM: Xid (PCI:0000:91:00): 48, pid=12, DBE"},
        ),
        "user-code",
        "stop",
        (),
        id="xid48-prior-job",
    ),
    pytest.param(
        ev(STEPS + "OSError: [Errno 24] Too many open files\n"), "user-config", "requeue", (), id="emfile-first"
    ),
    pytest.param(
        ev(
            "SLURM_RESTART_COUNT=0\n"
            + STEPS
            + "n1: Segmentation fault (core dumped)\nSLURM_RESTART_COUNT=1\n"
            + STEPS
            + "n9: Segmentation fault (core dumped)\n",
            restarts=1,
            nodes=("n9",),
            previous_nodes=("n1",),
        ),
        "user-code",
        "stop",
        (),
        id="segv-twice-elsewhere",
    ),
    pytest.param(
        ev(
            "[rank9]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
            "GPU 1 has a total capacity of 79.11 GiB of which 1.2 GiB is free. "
            "Process 777 has 60.00 GiB memory in use. Process 888 has 17.9 GiB memory in use.\n"
        ),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="cuda-oom-foreign",
    ),
    pytest.param(
        ev(
            "[rank0]: requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: "
            "https://huggingface.co/x\n[rank8]: requests.exceptions.HTTPError: 503 Server Error: "
            "Service Unavailable for url\n"
        ),
        "external-service",
        "wait-requeue",
        (),
        id="503-hub",
    ),
    pytest.param(
        ev(
            "[rank0]: botocore.exceptions.ClientError: "
            "An error occurred (AccessDenied) when calling the GetObject operation: Access Denied\n"
        ),
        "user-config",
        "stop",
        (),
        id="403-s3",
    ),
    pytest.param(
        ev(
            "",
            state="PENDING",
            reason="launch failed requeued held",
            events={"n2": [("2026-01-01T00:00:00", "slurmctld", "node_state", 'DRAIN reason="Prolog error"')]},
        ),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="prolog",
    ),
    pytest.param(
        ev(
            STEPS,
            state="FAILED",
            events={"n2": [("2026-01-01T00:00:00", "slurmctld", "node_state", 'DRAIN reason="Kill task failed"')]},
        ),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="kill-task-failed",
    ),
    pytest.param(
        ev(
            STEPS,
            state="NODE_FAIL",
            events={
                "n2": [("2026-01-01T00:00:00", "slurmctld", "node_state", 'DOWN reason="Node unexpectedly rebooted"')]
            },
        ),
        "infra-node",
        "requeue-exclude",
        ("n2",),
        id="unexpected-reboot",
    ),
    pytest.param(ev("", state="PENDING", reason="JobHoldMaxRequeue"), "scheduler", "hold", (), id="max-requeue"),
    pytest.param(ev("Loading\n", state="TIMEOUT"), "time-limit", "stop", (), id="timeout-no-progress"),
    pytest.param(
        ev(
            STEPS + "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-18T08:35:07 DUE TO TIME LIMIT ***\n"
            "[rank9]: KeyError: 'x'\n",
            state="TIMEOUT",
        ),
        "time-limit",
        "requeue",
        (),
        id="timeout",
    ),
    pytest.param(
        ev("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge\n"),
        "checkpoint",
        "requeue",
        (),
        id="ckpt-truncated-st",
    ),
    pytest.param(
        ev("RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: ...\n"),
        "user-code",
        "stop",
        (),
        id="collective-mismatch",
    ),
    pytest.param(
        ev(
            "AssertionError: "
            "global batch size (500) is not divisible by micro batch size (3) times data parallel size (8)\n"
        ),
        "user-config",
        "stop",
        (),
        id="divisible",
    ),
    pytest.param(
        ev(
            STEPS + "[rank25]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n[rank0]: "
            "torch.distributed.DistBackendError: NCCL error: "
            "remote process exited or there was a network error\n"
        ),
        "infra-node",
        "requeue-exclude",
        ("n4",),
        id="ecc-with-host",
    ),
    pytest.param(ev(""), "unknown", "requeue", (), id="no-output"),
    pytest.param(ev("", exit_code="127:0"), "user-config", "stop", (), id="127"),
    pytest.param(
        ev("/var/spool/slurmd/job5/slurm_script: line 12: torchrun: command not found\n", exit_code="127:0"),
        "user-config",
        "stop",
        (),
        id="bash-notfound",
    ),
    pytest.param(ev(STEPS, state="RUNNING", last_output_age_s=4000), "hang", "requeue", (), id="hang"),
    pytest.param(
        ev(
            "wandb: WARNING Too Many Requests, retrying in 3 s\n"
            + STEPS
            + STEPS
            + "[rank3]: TypeError: forward() got an unexpected keyword\n"
        ),
        "user-code",
        "stop",
        (),
        id="wandb-warn",
    ),
    pytest.param(
        ev(
            "[rank0]: urllib3.exceptions.MaxRetryError: Max retries exceeded\n"
            + STEPS
            + STEPS
            + "[rank3]: RuntimeError: The size of tensor a (3) must match the size of tensor b (4)\n"
        ),
        "user-code",
        "stop",
        (),
        id="transient-then-fine",
    ),
    pytest.param(
        ev(STEPS + "[rank3]: RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx\n"),
        "unknown",
        "requeue",
        (),
        id="cublas",
    ),
    pytest.param(
        ev(
            STEPS
            + "".join(
                f"[rank{r}]: OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/fsx/x'\n"
                for r in (0, 8, 16, 24)
            )
        ),
        "storage",
        "wait-requeue",
        (),
        id="lustre-evict-all",
    ),
    pytest.param(
        ev(
            STEPS,
            state="NODE_FAIL",
            failed_node="n2",
            events={
                "n2": [
                    (
                        "2026-01-01T00:00:00",
                        "ec2",
                        "instance_state",
                        "Server.SpotInstanceTermination: Spot instance termination",
                    )
                ]
            },
        ),
        "preemption",
        "requeue",
        (),
        id="spot-rebalance+term",
    ),
    pytest.param(
        ev(
            STEPS + "srun: error: Node failure on n3\n",
            state="NODE_FAIL",
            events={"n3": [("2026-01-01T00:00:00", "ec2", "status_check", "system status impaired")]},
        ),
        "infra-node",
        "requeue-exclude",
        ("n3",),
        id="ec2-impaired",
    ),
    pytest.param(
        ev("[rank17]: RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n"),
        "infra-node",
        "requeue-exclude",
        ("n3",),
        id="gpu-busy",
    ),
    pytest.param(
        ev("[rank0]: PermissionError: [Errno 13] Permission denied: '/fsx/home/other/x'\n"),
        "user-config",
        "stop",
        (),
        id="permission",
    ),
    pytest.param(
        ev(
            STEPS + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=5.0 cgroup. "
            "Some of your processes may have been killed by the cgroup out-of-memory handler.\n",
            state="OUT_OF_MEMORY",
        ),
        "user-oom",
        "requeue",
        (),
        id="oom-host-late-1st",
    ),
    pytest.param(
        ev(STEPS + "slurmstepd: error: Detected 1 oom-kill event(s)\n", state="OUT_OF_MEMORY", restarts=1),
        "user-oom",
        "stop",
        (),
        id="oom-host-again",
    ),
]


@pytest.mark.parametrize(("evidence", "cause", "advice", "culprits"), CASES)
def test_kind(evidence, cause, advice, culprits):
    got = attribute(evidence)
    assert (got.cause, got.advice, got.culprit_nodes) == (cause, advice, culprits), got
    assert got.cause in CLASSES
    assert got.advice in ACTIONS
    assert not set(got.culprit_nodes) & set(got.innocent_nodes)
    assert got.rule
    assert got.reason


def test_every_verdict_names_its_evidence():
    for param in CASES:
        assert attribute(param.values[0]).evidence


def test_the_reporter_of_a_node_failure_is_innocent():
    log = (
        "srun: error: Node failure on n3\n"
        "slurmstepd: error: "
        "*** STEP 5.0 ON n1 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n"
    )
    got = attribute(ev(STEPS + log, state="NODE_FAIL"))
    assert got.culprit_nodes == ("n3",)
    assert "n1" in got.innocent_nodes


def test_unknown_clears_and_blames_nobody():
    got = attribute(ev("something nobody has ever printed\n"))
    assert (got.cause, got.culprit_nodes, got.innocent_nodes) == ("unknown", (), ())


def test_contained_error_again_on_the_same_node_excludes_it():
    kernel = {"n2": "[Mon Nov  3 09:09:49 2025] NVRM: Xid (PCI:0000:5d:00): 94, pid=4104, name=python, Contained"}
    first = attribute(ev(STEPS, kernel=kernel))
    assert first.advice == "requeue"
    again = attribute(ev(STEPS, kernel=kernel)._replace(earlier=(Earlier(first.root, first.cause, NODES),)))
    assert (again.advice, again.culprit_nodes) == ("requeue-exclude", ("n2",))


def test_history_of_the_journal_counts_like_an_earlier_run_in_the_log():
    log = STEPS + "[rank3]: RuntimeError: Rank 3, iteration 8818: Unexpected result nan\n"
    first = attribute(ev(log))
    assert (first.cause, first.advice) == ("numeric", "requeue")
    again = attribute(
        ev(log, restarts=1)._replace(earlier=(Earlier(first.root, first.cause, NODES, first.evidence[0]),))
    )
    assert (again.cause, again.advice) == ("numeric", "stop")


def test_a_hard_xid_during_teardown_does_not_clear_the_program():
    log = "2022-03-21 13:34:00 [rank3]: KeyError: 'pixel_values'\n"
    kernel = {"n3": "[Mon Mar 21 13:34:33 2022] NVRM: Xid (PCI:0000:91:00): 109, pid=12, CTX SWITCH TIMEOUT"}
    assert attribute(ev(log, kernel=kernel)).cause == "user-code"


@pytest.mark.parametrize("reason", ["BadConstraints", "DependencyNeverSatisfied", "launch failure limit exceeded"])
def test_a_cancelled_job_is_cancelled_whatever_it_was_waiting_for(reason: str) -> None:
    found = attribute(ev(state="CANCELLED", nodes=(), reason=reason))
    assert (found.cause, found.advice) == ("user-cancel", "none")

"""`nccl-check`: what NCCL did inside a step, told by its own log and EFA's counters, with a job that really reduces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Cluster

from slurm_ext.burnin import in_job
from slurm_ext.burnin.in_job import NodeFacts
from slurm_ext.burnin.nccl_log import parse
from slurm_ext.cli import nccl_check
from slurm_ext.cli.instance import instance_type
from slurm_ext.config.model import Settings, Site
from slurm_ext.verdict import FAIL, PASS, UNKNOWN

CHECKOUT = Path(__file__).resolve().parents[2]

#: A job's own NCCL program: rank and number of ranks from Slurm's variables, the id through a file, one all-reduce.
PROGRAM = """
import ctypes, os, sys, time
from pathlib import Path
from slurm_ext.burnin.cuda import Cuda
from slurm_ext.burnin.nccl import Nccl
libraries, meet = sys.argv[1], Path(sys.argv[2])
rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
nccl, cuda = Nccl([libraries + "/libnccl.so.2"]), Cuda(libraries + "/libcuda.so.1")
cuda.open(0)
if rank == 0:
    fresh = meet.with_suffix(".new")
    fresh.write_bytes(nccl.unique_id())
    fresh.rename(meet)
give_up = time.monotonic() + 120
while not meet.exists() and time.monotonic() < give_up:
    time.sleep(0.01)
nccl.begin(meet.read_bytes(), rank, ranks)
def settle():
    while not nccl.settled():
        time.sleep(0.005)
settle()
size = 8 << 20
send, receive = cuda.allocate(size), cuda.allocate(size)
for _ in range(2):
    nccl.all_reduce(send, receive, size // 4, "u32", cuda.stream)
    settle()
event = cuda.event()
cuda.record(event)
while not cuda.done(event):
    time.sleep(0.005)
print("reduced", rank)
sys.exit(int(os.environ.get("JOB_EXIT", "0")))
"""


def step(
    cluster: Cluster, tmp_path: Path, *, options: tuple[str, ...] = (), command: tuple[str, ...] = (), **more: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run the program as the tasks of a step, one on each node, under nccl-check."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "fmslurm.yaml").write_text(f"site:\n  root: {cluster.folder}/%n/root\n")
    libraries = str(Path(cluster.settings.burnin.nccl_library).parent)
    started = []
    for rank, node in enumerate(cluster.nodes):
        own = [*(command or (sys.executable, str(program), libraries, str(tmp_path / "id")))]
        check = [sys.executable, "-m", "slurm_ext.cli", "nccl-check", *options, "--dir", str(tmp_path), "--", *own]
        environ = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "FMSLURM_CONFIG": str(tmp_path / "fmslurm.yaml"),
            "FMSLURM_LAB_HARDWARE": str(cluster.folder / node / "root/etc/fmslurm-lab/hardware.json"),
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_NODES": str(len(cluster.nodes)),
            "SLURM_NTASKS": str(len(cluster.nodes)),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": "0",
            "SLURMD_NODENAME": node,
            "NCCL_SOCKET_IFNAME": "lo",
            **more,
        }
        started.append(subprocess.Popen(check, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    done = []
    for process in started:
        out, err = process.communicate(timeout=300)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


@pytest.fixture
def two(make_cluster) -> Cluster:
    cluster: Cluster = make_cluster(2, gpus=1)
    for node in cluster.nodes:
        cluster.hardware(node, type="p5.48xlarge", efa=32)
        cluster.efa_counters(node, 2)
    return cluster


def test_a_step_over_efa_is_proven(two: Cluster, tmp_path: Path) -> None:
    done = step(two, tmp_path, options=("--json", str(tmp_path / "report.json"), "--strict"))
    assert [one.returncode for one in done] == [0, 0], done
    assert [one.stdout for one in done] == ["reduced 0\n", "reduced 1\n"]  # the command's own output is left alone
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] in (PASS, "warn"), report
    assert "2 of 2 nodes send EFA bytes" in done[0].stderr
    assert "send EFA" not in done[1].stderr  # the first task speaks for all
    assert not list(tmp_path.glob("fmslurm-nccl-*"))


def test_a_silent_fall_back_to_tcp_is_refuted_and_says_what_to_do(two: Cluster, tmp_path: Path) -> None:
    for node in two.nodes:
        two.hardware(node, type="p5.48xlarge", efa=32, nccl__net="socket")
    done = step(two, tmp_path, JOB_EXIT="3")
    assert [one.returncode for one in done] == [3, 3]  # the code stays the command's
    assert "nccl-socket-fallback" in done[0].stderr
    assert "do: NCCL found no EFA plugin" in done[0].stderr


def test_strict_makes_a_refuted_transport_an_exit_code(two: Cluster, tmp_path: Path) -> None:
    for node in two.nodes:
        two.hardware(node, type="p5.48xlarge", efa=32, nccl__net="socket")
    done = step(two, tmp_path, options=("--strict",))
    assert [one.returncode for one in done] == [1, 0]


def test_a_command_that_cannot_run_or_never_starts_nccl(tmp_path: Path) -> None:
    (tmp_path / "fmslurm.yaml").write_text("site: {}\n")
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SLURM")},
        "FMSLURM_CONFIG": str(tmp_path / "fmslurm.yaml"),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        check = [sys.executable, "-m", "slurm_ext.cli", "nccl-check", "--dir", str(tmp_path), "--", *words]
        return subprocess.run(check, env=environ, capture_output=True, text=True, timeout=300, cwd=CHECKOUT)

    missing = run("/nonexistent/program")
    assert missing.returncode == 2
    assert "cannot run" in missing.stderr
    silent = run("sh", "-c", "exit 7")
    assert silent.returncode == 7
    assert "log-empty" in silent.stderr
    killed = run("sh", "-c", "kill -KILL $$")
    assert killed.returncode == 128 + signal.SIGKILL
    assert not list(tmp_path.glob("fmslurm-nccl-*"))


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    (tmp_path / "fmslurm.yaml").write_text("site: {}\n")
    ready = tmp_path / "ready"
    script = f"trap 'exit 9' USR1; touch {ready}; while :; do sleep 0.05; done"
    check = [sys.executable, "-m", "slurm_ext.cli", "nccl-check", "--dir", str(tmp_path), "--", "sh", "-c", script]
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SLURM")},
        "FMSLURM_CONFIG": str(tmp_path / "fmslurm.yaml"),
    }
    process = subprocess.Popen(check, env=environ, stderr=subprocess.PIPE, cwd=CHECKOUT)
    give_up = time.monotonic() + 120
    while not ready.exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) == 9
    assert process.stderr is not None
    process.stderr.close()


def test_the_type_is_the_sites_or_the_machines_own(tmp_path: Path) -> None:
    name = tmp_path / "n0/sys/class/dmi/id/product_name"
    name.parent.mkdir(parents=True)
    name.write_text("p5en.48xlarge\n")
    site = Site(root=f"{tmp_path}/%n")
    assert instance_type(Settings(site=site), "n0") == "p5en.48xlarge"
    assert instance_type(Settings(site=site), "n1") == ""
    assert instance_type(Settings(site=site._replace(instance_type="p5.48xlarge")), "n0") == "p5.48xlarge"


GOOD = """
{h}:10:10 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.14.0
{h}:10:10 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
{h}:10:10 [0] NCCL INFO Using network Libfabric
{h}:10:10 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {r} nranks 2 cudaDev 0 - Init COMPLETE
{h}:10:10 [0] NCCL INFO Channel 00/0 : {r}[0] -> {o}[0] [send] via NET/Libfabric/0/GDRDMA
"""


def facts(node: str, rank: int, text: str = GOOD, efa_bytes: int | None = 1 << 30) -> NodeFacts:
    log = parse(text.format(h=node, r=rank, o=1 - rank).splitlines())
    return NodeFacts(node, log.processes, ("2.27.7",), efa_bytes)


def test_one_node_whose_counters_stand_still_is_named() -> None:
    report = in_job.report([facts("a", 0), facts("b", 1, efa_bytes=10)], expected=2, instance_type="p5.48xlarge")
    assert report.verdict == FAIL
    assert any("1 of 2 nodes send EFA bytes; none: b" in line for line in report.lines)
    assert any(line.startswith("do:") for line in report.lines)


@pytest.mark.parametrize("inside", [False, True], ids=["no-nccl", "each-node-by-itself"])
def test_a_command_without_nccl_between_nodes_is_not_refuted_by_still_counters(inside: bool) -> None:
    alone = "{h}:10:10 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 1 cudaDev 0 - Init COMPLETE\n"
    text = alone if inside else ""
    nodes = [facts(name, 0, text=text, efa_bytes=0) for name in ("a", "b")]
    report = in_job.report(nodes, expected=2, instance_type="p5.48xlarge")
    assert report.verdict == UNKNOWN, report
    assert "in-job-no-efa-bytes" not in report.findings
    assert any("0 of 2 nodes send EFA bytes" in line for line in report.lines)


def test_counters_that_stand_still_below_a_communicator_of_both_nodes_refute_it() -> None:
    nodes = [facts("a", 0, efa_bytes=0), facts("b", 1, efa_bytes=0)]
    report = in_job.report(nodes, expected=2, instance_type="p5.48xlarge")
    assert report.verdict == FAIL
    assert "in-job-no-efa-bytes" in report.findings


def test_a_step_that_never_used_nccl_is_unknown_and_strict_lets_it_be(two: Cluster, tmp_path: Path) -> None:
    done = step(two, tmp_path, options=("--strict",), command=("true",))
    assert [one.returncode for one in done] == [0, 0], done
    assert "nccl-check: unknown" in done[0].stderr


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("", "INIT,NET,ENV"),
        ("graph,NET", "GRAPH,NET,INIT,ENV"),
        ("ALL", "ALL"),
        ("COLL,ALL", "ALL"),
        ("^TUNING", "^TUNING"),
        ("^TUNING,INIT,NET", "^TUNING"),
        ("^INIT,env", "ALL"),
        ("^ALL", "INIT,NET,ENV"),
        ("^", "ALL"),
    ],
)
def test_nccls_subsystems_are_those_asked_for_and_ours(asked: str, wanted: str) -> None:
    assert nccl_check._subsystems(asked) == wanted


def test_a_log_file_of_the_users_own_is_not_replaced_without_a_word(two: Cluster, tmp_path: Path) -> None:
    done = step(two, tmp_path, command=("sh", "-c", "echo $NCCL_DEBUG_FILE"), NCCL_DEBUG_FILE="/home/me/nccl.log")
    assert "fmslurm-nccl-7.0/n0/nccl" in done[0].stdout
    assert ["/home/me/nccl.log" in one.stderr for one in done] == [True, False]


def test_all_is_well() -> None:
    report = in_job.report([facts("a", 0), facts("b", 1)], expected=2, instance_type="p5.48xlarge")
    assert report.verdict == PASS, report
    assert "provider efa, on all 2 nodes" in report.lines[0]


def test_a_node_that_left_no_word_is_unproven() -> None:
    report = in_job.report([facts("a", 0)], expected=2, instance_type="p5.48xlarge")
    assert report.verdict == UNKNOWN
    assert any("1 of 2 nodes left no word" in line for line in report.lines)


def test_without_counters_only_the_log_counts() -> None:
    nodes = [facts("a", 0, efa_bytes=None), facts("b", 1, efa_bytes=None)]
    report = in_job.report(nodes, expected=2, instance_type="p5.48xlarge")
    assert report.verdict == PASS
    assert any("counters cannot be read" in line for line in report.lines)


def test_facts_survive_their_way_and_nonsense_does_not() -> None:
    one = facts("a", 0)
    assert in_job.from_json(json.loads(json.dumps(in_job.to_json(one)))) == one
    for nonsense in ({}, {"node": "a"}, {"node": "a", "efa_bytes": "x", "processes": [], "versions": []}):
        with pytest.raises(ValueError, match="no facts"):
            in_job.from_json(nonsense)

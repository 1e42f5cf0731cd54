"""The lab itself: a real Slurm whose nodes are apart, faults that are real, and an end that leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_ext import command
from slurm_ext.errors import LackingError, UsageError
from slurm_ext.lab import clean, daemons, journal, process
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions

CLI = [sys.executable, "-m", "slurm_ext.cli"]
SERVER = """
import socket
with socket.create_server(("", 7777)) as server:
    connection = server.accept()[0]
    received = 0
    while chunk := connection.recv(1 << 20):
        received += len(chunk)
    print(received)
"""
CLIENT = """
import socket, sys, time
for _ in range(2000):
    try:
        connection = socket.create_connection((sys.argv[1], 7777), timeout=20)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
started = time.monotonic()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.monotonic() - started)
"""
WRITE = "import os; os.write(os.open({path!r}, os.O_WRONLY | os.O_CREAT, 0o644), b'x' * 65536)"


def wait_for(what: Callable[[], bool], timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def must(result: command.Result) -> str:
    assert result.ok, f"{result.words()}\n{result.stdout}{result.stderr}"
    return result.stdout


def error_of(lab: Lab, node: str, code: str) -> str:
    """Return the errno name that Python code meets on a node, or an empty text where it meets none."""
    result = lab.run([sys.executable, "-I", "-c", code], node=node, timeout_s=10.0)
    for name in ("ENOSPC", "ESTALE", "EIO"):
        if f"Errno {getattr(errno, name)}]" in result.stderr:
            return name
    assert result.ok, result.stderr
    return ""


def seconds_to_send(lab: Lab, sender: str, receiver: str, size: int) -> float:
    argv = lab.argv([sys.executable, "-I", "-c", SERVER], receiver)
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        address = lab.state.node(receiver).address
        client = [sys.executable, "-I", "-c", CLIENT, address, str(size)]
        seconds = float(must(lab.run(client, node=sender, timeout_s=240.0)))
        output, _ = server.communicate(timeout=240)
        assert int(output) == size
        return seconds
    finally:
        server.kill()
        server.communicate()


def test_every_node_runs_steps_under_its_own_name_and_address(lab: Lab) -> None:
    said = must(lab.run(["srun", "-N8", "sh", "-c", "echo $SLURMD_NODENAME $(hostname) $(hostname -I)"]))
    seen = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
    assert set(seen) == set(lab.nodes)
    if lab.state.mode == "netns":
        assert seen == {node.name: [node.name, node.address] for node in lab.state.nodes}


def test_a_ready_lab_has_gpus_and_switches_that_slurm_agrees_with(lab: Lab) -> None:
    said = must(lab.run(["srun", "-N2", "--gpus-per-node=8", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]))
    assert said.split() == ["0,1,2,3,4,5,6,7"] * 2
    topology = must(lab.run(["scontrol", "show", "topology"]))
    assert "SwitchName=leaf0" in topology
    assert "SwitchName=spine" in topology


def test_a_job_of_four_nodes_sits_under_one_leaf(lab: Lab) -> None:
    script = "echo $SLURMD_NODENAME"
    names = must(lab.run(["srun", "-N4", "--switches=1", "sh", "-c", script])).split()
    assert set(names) in ({"n0", "n1", "n2", "n3"}, {"n4", "n5", "n6", "n7"})


def test_status_says_that_hardware_is_simulated(lab: Lab) -> None:
    said = must(command.run([*CLI, "lab", "status", "--dir", lab.dir], timeout_s=240.0, env=os.environ))
    assert "hardware is simulated" in said
    data = json.loads(
        must(command.run([*CLI, "lab", "status", "--json", "--dir", lab.dir], timeout_s=240.0, env=os.environ))
    )
    assert data["schema"] == 1
    assert len(data["nodes"]) == 8
    assert "simulated" in data["simulated"]
    assert data["head"]["alive"]["slurmctld"]


def test_run_passes_on_exit_code_and_place(lab: Lab) -> None:
    run = [*CLI, "lab", "run", "--dir", lab.dir]
    assert command.run([*run, "--", "sh", "-c", "exit 7"], timeout_s=240.0, env=os.environ).returncode == 7
    assert must(command.run([*run, "--", "printenv", "SLURM_CONF"], timeout_s=240.0, env=os.environ)).strip() == str(
        lab.path("etc/slurm/slurm.conf")
    )
    if lab.state.mode == "netns":
        said = must(command.run([*run, "--node", "n3", "--", "hostname"], timeout_s=240.0, env=os.environ))
        assert said.strip() == "n3"


def test_munge_is_the_lab_s_own(lab: Lab) -> None:
    socket = f"--socket={lab.path('run/munge.socket')}"
    credential = must(lab.run(["munge", "--no-input", socket], node="n0"))
    decoded = command.run(["unmunge", socket], timeout_s=10.0, input_text=credential)
    assert "STATUS:" in must(decoded)
    assert "Success" in decoded.stdout
    assert lab.path("etc/munge.key").stat().st_mode & 0o077 == 0


def test_a_restart_after_scontrol_reconfigure_ends_the_slurmctld_that_is_there(lab: Lab) -> None:
    # Since 23.11 a reconfigure replaces the daemons by new processes, which the kernel knows by another name.
    assert lab.run(["scontrol", "reconfigure"]).ok
    lab.restart()
    [before] = daemons.find(lab.state, lab.state.head, "slurmctld")
    lab.restart()
    [after] = daemons.find(lab.state, lab.state.head, "slurmctld")
    assert before != after
    assert "Address already in use" not in lab.path("log/slurmctld.log").read_text()


def test_jobs_live_on_over_a_restart_of_every_daemon(lab: Lab) -> None:
    flag = lab.path("lustre/go-on")
    begun = lab.path("lustre/begun")
    wrap = f"echo task >>{begun}; while [ ! -e {flag} ]; do sleep 0.1; done"
    job = must(lab.run(["sbatch", "--parsable", "-N2", "-o", "/dev/null", f"--wrap=srun -n2 sh -c '{wrap}'"])).strip()

    def state() -> str:
        return lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()

    wait_for(lambda: begun.exists() and begun.read_text() == "task\n" * 2)
    lab.restart()
    assert state() == "RUNNING"
    flag.touch()
    wait_for(lambda: state() == "COMPLETED")
    flag.unlink()
    begun.unlink()


def test_a_slow_link_is_slow_both_ways_and_fast_again(lab: Lab) -> None:
    if lab.state.mode != "netns":
        pytest.skip("no links on loopback")
    size = 4 << 20
    fast = seconds_to_send(lab, "n0", "n1", size)
    lab.fault("n1", "slow-link", rate="50mbit")
    try:
        slow = min(seconds_to_send(lab, "n0", "n1", size), seconds_to_send(lab, "n1", "n0", size))
        assert slow > size * 8 / 50e6 * 0.7
        assert slow > 3 * fast
    finally:
        lab.heal("n1")
    assert seconds_to_send(lab, "n0", "n1", size) < slow / 3


def test_a_cut_node_is_not_reached_and_healed_it_is(lab: Lab) -> None:
    if lab.state.mode != "netns":
        pytest.skip("no links on loopback")
    ping = [sys.executable, "-I", "-c", "import socket,sys; socket.create_connection((sys.argv[1], 6818), timeout=2)"]
    argv = [*ping, lab.state.node("n2").address]
    assert lab.run(argv, node="n1").ok
    lab.fault("n2", "cut")
    try:
        assert not lab.run(argv, node="n1").ok
    finally:
        lab.heal("n2")
    assert lab.run(argv, node="n1").ok


def test_a_full_disk_gives_enospc_on_one_node_only_and_keeps_what_is_there(lab: Lab) -> None:
    if lab.state.mode != "netns":
        pytest.skip("no mounts of its own on loopback")
    old = lab.path("nodes/n3/nvme/old")
    old.write_text("kept")
    lab.fault("n3", "disk-full")
    try:
        assert error_of(lab, "n3", WRITE.format(path=str(lab.path("nodes/n3/nvme/new")))) == "ENOSPC"
        assert must(lab.run(["cat", str(old)], node="n3")) == "kept"
        assert error_of(lab, "n4", WRITE.format(path=str(lab.path("nodes/n4/nvme/new")))) == ""
    finally:
        lab.heal("n3")
    assert error_of(lab, "n3", WRITE.format(path=str(lab.path("nodes/n3/nvme/new")))) == ""


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE")
@pytest.mark.parametrize(("how", "name"), [("stale", "ESTALE"), ("eio", "EIO")])
def test_a_stale_file_system_fails_one_node_only(lab: Lab, how: str, name: str) -> None:
    if lab.state.mode != "netns":
        pytest.skip("no mounts of its own on loopback")
    code = f"import os; os.stat({str(lab.path('lustre'))!r})"
    lab.fault("n5", "lustre-stale", how=how)
    try:
        assert error_of(lab, "n5", code) == name
        assert error_of(lab, "n6", code) == ""
    finally:
        lab.heal("n5")
    assert error_of(lab, "n5", code) == ""


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE")
def test_a_hanging_file_system_hangs_and_heal_frees_who_hung(lab: Lab) -> None:
    if lab.state.mode != "netns":
        pytest.skip("no mounts of its own on loopback")
    lab.fault("n5", "lustre-stale", how="hang")
    argv = lab.argv(["ls", str(lab.path("lustre"))], "n5")
    hanging = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            hanging.wait(1.0)
    finally:
        lab.heal("n5")
    assert hanging.wait(10.0) != 0
    assert lab.run(["ls", str(lab.path("lustre"))], node="n5").ok


def test_a_dead_node_takes_its_processes_and_comes_back_with_a_new_boot(lab: Lab) -> None:
    node = lab.state.node("n7")
    boot_id = (lab.root("n7") / "proc/sys/kernel/random/boot_id").read_text()
    lab.fault("n7", "node-death")
    try:
        assert not daemons.find(lab.state, node, "slurmd")
        if lab.state.mode == "netns":
            with pytest.raises(LackingError, match="n7 is dead"):
                lab.run(["true"], node="n7")
    finally:
        lab.heal("n7")
    assert (lab.root("n7") / "proc/sys/kernel/random/boot_id").read_text() != boot_id
    assert must(lab.run(["srun", "-w", "n7", "sh", "-c", "echo $SLURMD_NODENAME"])).strip() == "n7"


def test_slurmd_is_killed_and_comes_back(lab: Lab) -> None:
    lab.fault("n6", "slurmd-kill")
    assert not daemons.find(lab.state, lab.state.node("n6"), "slurmd")
    lab.heal("n6")
    assert must(lab.run(["srun", "-w", "n6", "sh", "-c", "echo $SLURMD_NODENAME"])).strip() == "n6"


def test_s3_holds_over_its_own_death_what_it_held(lab: Lab) -> None:
    if not lab.state.s3_port:
        pytest.skip("no SeaweedFS here")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    from slurm_ext.lab import s3

    lab.wait_s3()
    key, secret = s3.credentials(lab.dir)
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10, proxies={})
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{lab.state.head.address}:{lab.state.s3_port}",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=config,
    )
    client.put_object(Bucket="fmslurm", Key="kept", Body=b"over its death")
    lab.fault("-", "s3-down")
    try:
        with pytest.raises(BotoCoreError):  # no answer at all, not an answer that says no
            client.head_object(Bucket="fmslurm", Key="kept")
    finally:
        lab.heal("-")
    answer = client.get_object(Bucket="fmslurm", Key="kept")
    with answer["Body"] as body:
        assert body.read() == b"over its death"
    client.close()


def small(folder: Path, **options: object) -> LabOptions:
    return LabOptions(**{"dir": str(folder / "lab"), "nodes": 2, "s3": "off", **options})  # type: ignore[arg-type]


def test_two_labs_side_by_side_do_not_meet(lab: Lab, new_lab: type[Lab], short_dir: Path) -> None:
    other = new_lab.up(small(short_dir, prefix="b-"))
    try:
        assert other.state.subnet != lab.state.subnet or other.state.mode == "loopback"
        assert set(must(other.run(["sinfo", "-hN", "-o", "%N"])).split()) == {"b-n0", "b-n1"}
        credential = must(other.run(["munge", "--no-input", f"--socket={other.path('run/munge.socket')}"]))
        ours = ["unmunge", f"--socket={lab.path('run/munge.socket')}"]
        assert not command.run(ours, timeout_s=10.0, input_text=credential).ok
        with pytest.raises(UsageError, match="already"):
            new_lab.up(small(short_dir))
    finally:
        other.down()
    assert must(lab.run(["srun", "-N8", "sh", "-c", "echo $SLURMD_NODENAME"])).count("n") == 8


def test_without_namespaces_all_nodes_share_loopback_and_it_says_so(new_lab: type[Lab], short_dir: Path) -> None:
    made = new_lab.up(small(short_dir, mode="loopback", ready=True))
    try:
        assert "127.0.0.1" in made.state.why_mode
        argv = ["srun", "-N2", "--gpus-per-node=8", "sh", "-c", "echo $SLURMD_NODENAME"]
        assert set(must(made.run(argv)).split()) == {"n0", "n1"}
        job = ["sbatch", "-N1", "-o", "/dev/null", "--wrap=exec sleep 1000"]
        must(made.run(job))
        wait_for(lambda: "RUNNING" in made.run(["squeue", "-h", "-o", "%T"]).stdout)
    finally:
        made.down()
    assert_gone(made.dir, made.state.link)


@pytest.mark.skipif(not os.path.exists("/sys/fs/cgroup/freezer/cgroup.procs"), reason="no cgroup v1 freezer here")
def test_with_control_groups_what_a_job_leaves_behind_ends_with_it(new_lab: type[Lab], short_dir: Path) -> None:
    made = new_lab.up(small(short_dir, cgroup=True))
    try:
        script = "setsid sleep 1234 & while ! pgrep -f '[s]leep 1234'; do sleep 0.05; done"
        must(made.run(["sbatch", "-W", "-N1", "-o", "/dev/null", f"--wrap={script}"]))
        wait_for(lambda: not made.run(["pgrep", "-f", "[s]leep 1234"], node="n0").ok)
    finally:
        made.down()
    assert_gone(made.dir, made.state.link)
    assert not os.path.exists(f"/sys/fs/cgroup/freezer/{made.state.link}")


#: Lines of the journal behind which a lab is killed, and its mode, beside the soak's.
SHORT_KILLS = ((2, "auto"), (6, "auto"), (4, "loopback"))


def assert_gone(directory: str, link: str) -> None:
    assert not os.path.exists(directory)
    assert process.marked(directory) == []
    assert not clean.mounts_below(directory)
    assert link not in [name for _, name in socket.if_nameindex()]


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        pytest.param(lines, mode, marks=() if (lines, mode) in SHORT_KILLS else pytest.mark.soak)
        for mode in ("auto", "loopback")
        for lines in (1, 2, 4, 6, 8)
    ],
)
def test_a_lab_killed_in_mid_up_is_cleaned_by_the_next_down(
    new_lab: type[Lab], short_dir: Path, lines: int, mode: str
) -> None:
    directory = str(short_dir / "lab")
    up = [*CLI, "lab", "up", "--dir", directory, "-n", "2", "--mode", mode]
    starting = subprocess.Popen(up, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # As far as that many lines of the journal, then SIGKILL at once: between an intention and what it is for.
        deadline = time.monotonic() + 60
        while len(journal.read(directory)) < lines and starting.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        starting.send_signal(signal.SIGKILL)
        starting.wait(10)
    link = next((entry["name"] for entry in journal.read(directory) if entry["make"] == "link"), "")
    for _ in range(2):  # the second finds nothing, and that is fine
        must(command.run([*CLI, "lab", "down", "--dir", directory], timeout_s=240.0, env=os.environ))
    assert_gone(directory, link)


def test_ctrl_c_in_mid_up_cleans_up_at_once(new_lab: type[Lab], short_dir: Path) -> None:
    directory = str(short_dir / "lab")
    up = [*CLI, "lab", "up", "--dir", directory, "-n", "2"]
    starting = subprocess.Popen(up, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(journal.read(directory)) >= 4)
    starting.send_signal(signal.SIGINT)
    assert starting.wait(60) == 130
    assert_gone(directory, "")


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak), (signal.SIGTERM, 143)]
)
def test_who_is_stopped_while_floors_are_measured_leaves_nothing(
    new_lab: type[Lab], short_dir: Path, number: signal.Signals, code: int
) -> None:
    directory = str(short_dir / "lab")
    up = [*CLI, "lab", "up", "--dir", directory, "-n", "2", "--s3", "off"]
    starting = subprocess.Popen(up, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(p.name == "srun" for p in clean.processes(directory)), 60.0)
    starting.send_signal(number)
    starting.send_signal(number)  # who is impatient
    assert starting.wait(60) == code
    assert not [p for p in process.everything() if b"SLURM_CONF=%b/" % directory.encode() in environment_of(p)]
    assert_gone(directory, "")


def environment_of(found: process.Found) -> bytes:
    try:
        return Path(f"/proc/{found.pid.pid}/environ").read_bytes()
    except OSError:
        return b""


def test_down_refuses_a_folder_that_is_no_lab(new_lab: type[Lab], short_dir: Path) -> None:
    (short_dir / "precious").write_text("keep me")
    refused = command.run([*CLI, "lab", "down", "--dir", str(short_dir)], timeout_s=240.0, env=os.environ)
    assert refused.returncode == 2
    assert (short_dir / "precious").read_text() == "keep me"

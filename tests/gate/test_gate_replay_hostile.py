"""Captures that somebody made to break the judge: odd digits, endless numbers and lines, a context that is no sense."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.captured import Case
from slurm_ext.gate import replay
from slurm_ext.verdict import VERDICTS

SUPERSCRIPT, ENDLESS = "1\u00b2", "9" * 5000

PS = "    PID USER     STAT     ELAPSED COMMAND\n{} user1    D   00:52:10 python3 train.py\n"
APPS = "pid, process_name, used_gpu_memory [MiB]\n{}, python3, 5 MiB\n"
IMPORT = "import:\n    target: fs-OST0000_UUID\n    state: FULL\n    connection:\n       connection_attempts: {}\n"
TREE = json.dumps({"proc/fs/lustre/osc/fs-OST0000-osc-ff/import": IMPORT})
NET = "net:\n    - net type: tcp\n      local NI(s):\n        - nid: 10.0.0.1@tcp\n          status: up\n"
NET += "          health stats:\n              health value: {}\n"
JOB = "JobId=1 JobName=x\n   UserId=a(1) GroupId=b\n   JobState=RUNNING Reason=None Dependency=(null)\n"
JOB += "   Restarts={0} RunTime={0}:{0}:{0}\n   Command=x\n"
REST = '{{"jobs": [{{"job_id": 1, "job_state": ["RUNNING"], "restart_cnt": {{"set": true, "number": {0}}}}}]}}'

FORMS = [
    ("system", "ps", PS),
    ("system", "compute_apps", APPS),
    ("system", "smi_table", "| NVIDIA-SMI 590 |\n|   {}  NVIDIA H200  On  |   00000000:83:00.0 Off |  0 |\n"),
    ("system", "meminfo", "MemTotal: {} kB\n"),
    ("system", "lscpu", "CPU(s): {}\nOn-line CPU(s) list: 0-{}\n"),
    ("system", "mdstat", "Personalities : [raid1]\nmd0 : active raid1 a[0] b[{0}]\n      5 blocks [{0}/{0}] [UU]\n"),
    ("system", "chronyc", "Reference ID : A9FEA97B\nStratum : {}\nLeap status : Normal\n"),
    ("lustre", "tree", TREE),
    ("lustre", "lnet", NET),
    ("kernel", "kmsg", "{0},{0},{0},-;NVRM: Xid (PCI:0000:53:00): {0}, x\n"),
    ("kernel", "dmesg", "[ {0}.0] NVRM: Xid (PCI:0000:53:00): {0}, x\n<{0}>nvme nvme{0}: I/O {0} timeout\n"),
    ("gpu", "smi_csv", "index, pci.bus_id, ecc.errors.uncorrected.volatile.total\n{0}, 00000000:53:00.0, {0}\n"),
    ("gpu", "nvlink", "GPU {0}: NVIDIA H200 (UUID: GPU-1)\n\t Link {0}: {0} GB/s\n"),
    ("gpu", "smi_table", "| NVIDIA-SMI 590 |\n|   {0}  NVIDIA H200  On  |   00000000:83:00.0 Off |  {0} |\n| Processes:\n"),
    ("efa", "fi_info", "fi_getinfo: -{}\n"),
    ("efa", "memlock", "{}\n"),
    ("slurm", "scontrol_job", JOB),
    ("slurm", "squeue", "JOBID|STATE|TIME|RESTARTS\n{0}|RUNNING|{0}:{0}|{0}\n"),
    ("slurm", "scontrol_job", REST),
    ("nccl", "nccl_log", "a:{0}:{0} [{0}] NCCL INFO rank {0} nranks {0}\n"),
    ("perf", "perf_log", "# size count type redop algbw busbw\n{0} {0} float sum {0} 1 1 1 0\n"),
]  # fmt: skip


@pytest.mark.parametrize("number", [SUPERSCRIPT, "\u0663", ENDLESS, "-5", "--5", "1e400", "NaN", ""])
@pytest.mark.parametrize(("group", "role", "form"), FORMS, ids=lambda value: value if len(str(value)) < 20 else "")
def test_a_number_that_is_none_breaks_nothing(group, role, form, number):
    text = form.replace("{}", number).replace("{0}", number) if role == "tree" else form.format(number, number, number)
    assert replay.judge_case(Case("/c", group, "p5.48xlarge", {role: text}, {})).verdict in VERDICTS


KEYS = ("command", "exit_code", "timed_out", "elapsed_s", "now", "boot_time", "jobs_on_node", "job_start", "job_end")
KEYS += ("last_job_end", "floor", "interval_s", "expected_efa", "expected_cpus", "expected_memory_mib", "expected_gpus")
KEYS += ("mount", "expected_lnet", "expected_mounts", "own_prefix", "nodes", "ranks", "log_of_ranks", "instance_id")
ODD = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.just(10**400), st.text(max_size=12),
    st.lists(st.one_of(st.integers(), st.text(max_size=5), st.just({"id": 1})), max_size=3),
    st.dictionaries(st.sampled_from(("size", "busbw")), st.one_of(st.floats(), st.integers(), st.none()), max_size=2),
)  # fmt: skip
TEXTS = {role: form.replace("{0}", "7").replace("{}", "7") for _, role, form in FORMS}


@given(
    st.sampled_from(("gpu", "kernel", "efa", "lustre", "nccl", "perf", "slurm", "system")),
    st.dictionaries(st.sampled_from(KEYS), ODD, max_size=6),
    st.sets(st.sampled_from(sorted(TEXTS)), max_size=3),
)
def test_a_context_without_sense_breaks_nothing(group, context, roles):
    texts = {role: TEXTS[role] for role in roles} | {"stdout": "x", "stderr": "y"}
    assert replay.judge_case(Case("/c", group, "p5.48xlarge", texts, context)).verdict in VERDICTS


#: Beginnings after which one of the judge's expressions may look for something far away.
BEGINNINGS = (
    ("nccl", "nccl_log", "gpu-node-a:412"),
    ("nccl", "nccl_log", "a:1:1 [0] NCCL INFO NCCL_"),
    ("nccl", "nccl_log", "a:1:1 [0] "),
    ("nccl", "nccl_log", "a:1:1 [0] NCCL INFO Using network Lib"),
    ("system", "systemctl", "  Lo"),
    ("slurm", "sinfo", "gpu-1|+"),
    ("gpu", "stderr", "Unable to determine the device handle for GPU 0000:B9:00.0: GPU is lost. "),
    ("gpu", "smi_q_xml", "<nvidia_smi_log><gpu>"),
    ("system", "timedatectl", "RTC time: Tue "),
    ("system", "chronyc", "RMS offset : "),
    ("kernel", "dmesg", "[ 1.0] EXT4-fs (md0): "),
    ("slurm", "scontrol_node", "NodeName=a State="),
    ("slurm", "squeue", "1|RUNNING|"),
    ("lustre", "df", "fsx-OST0000_UUID "),
    ("efa", "rdma_link", "link rdmap79s0/1 state "),
)


@pytest.mark.parametrize("unit", ["a", " ", "0", "a-", "0 ", "gen>5<", "NCCL_", "CCL_TUN", "|", ":", "a.", "\t", "+"])
@pytest.mark.parametrize(("group", "role", "beginning"), BEGINNINGS)
def test_a_long_line_takes_time_by_its_length(group, role, beginning, unit):
    """Quadratic time would be minutes here, and the test run's own limit ends it."""
    text = beginning + unit * (200_000 // len(unit)) + "\n"
    assert replay.judge_case(Case("/c", group, "p5.48xlarge", {role: text}, {})).verdict in VERDICTS


#: Words that stand in faults, in no order: nothing that is made of them is an answer of a tool.
WORDS = (  # noqa: SIM905
    "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus NCCL INFO Using network Socket FAIL error ERROR I/O"
    " nvme0n1 dev sector lost State=DOWN Reason=Not responding JobState=NODE_FAIL FailedNode=gpu-1 evicted md0 inactive"
    " active (failed) 100% / /dev/sda1 0 D Z <defunct> python3 root Unknown Error ERR! Link 0: 25 GB/s GPU 0: efa Failed"
    " process command : , . ; - 2026-07-14 [ 1.0] kernel: hello mlx5_0 timeout EDAC UE remount"
).split()
ROLES = {
    "gpu": ("smi_q_xml", "smi_q_text", "smi_csv", "smi_table", "topo", "stdout"),
    "efa": ("tree", "fi_info", "rdma_link", "lspci"),
    "lustre": ("tree", "lnet", "df", "mounts"),
    "perf": ("perf_log",),
    "slurm": ("scontrol_node", "scontrol_job", "sinfo", "squeue"),
    "system": ("ps", "compute_apps", "df", "findmnt", "lsblk", "mdstat", "chronyc", "systemctl", "meminfo", "events"),
}
LINES = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join), min_size=1, max_size=5)


@given(st.sampled_from([(group, role) for group, roles in ROLES.items() for role in roles]), LINES)
def test_noise_convicts_nobody(asked, lines):
    group, role = asked
    text = "".join(f"{line}\n" for line in lines)
    told = replay.judge_case(Case("/c", group, "p5.48xlarge", {role: text}, {"jobs_on_node": []}))
    assert told.verdict != "fail", told


@pytest.mark.parametrize(
    ("group", "role", "text"),
    [
        ("system", "lsblk", "remount nvme0n1 has failed\nUsing nvme1n1\n"),
        ("system", "compute_apps", " 79, infiniband responding\n ERR! remount\n"),
        (
            "slurm",
            "sinfo",
            "command NCCL world aborting process Z hello Error failed mlx5_0\nJobState=NODE_FAIL to md0\n",
        ),
        ("slurm", "squeue", "mlx5_0 JobState=NODE_FAIL failed Error [ 0: world FailedNode=gpu-1\n"),
    ],
)
def test_prose_is_no_table(group, role, text):
    assert replay.judge_case(Case("/c", group, "p5.48xlarge", {role: text}, {"jobs_on_node": []})).verdict in (
        "unknown",
        "pass",
    )


@pytest.mark.parametrize(
    ("group", "role", "text", "expected"),
    [
        ("system", "lsblk", "nvme0n1 259:0 0 200G 0 disk\nnvme1n1 259:1 0 3.5T 0 disk\n", "fail"),
        ("system", "compute_apps", "10291, /opt/tools/memhog, 2566\n", "fail"),
        ("system", "compute_apps", "10291, /opt/tools/memhog, 2566 MiB\n", "fail"),
        ("slurm", "sinfo", "gpu* up infinite 2 idle gpu-[1-2]\ngpu* up infinite 1 down* gpu-3\n", "fail"),
        ("slurm", "sinfo", "gpu-1 idle\ngpu-2 down\n", "fail"),
        ("slurm", "squeue", "4711 gpu train user1 R 1:02 2 gpu-[1-2]\n", "pass"),
    ],
)
def test_tables_without_a_header_are_read(group, role, text, expected):
    told = replay.judge_case(Case("/c", group, "p5.48xlarge", {role: text}, {"jobs_on_node": []}))
    assert told.verdict == expected


@pytest.mark.parametrize(
    ("context", "verdict", "target"),
    [
        ({"command": "timeout 10 stat /fsx/a", "exit_code": 124}, "unknown", "fs:/fsx"),
        ({"command": "/usr/bin/timeout -k 1 10 stat /fsx/a", "exit_code": 137}, "unknown", "fs:/fsx"),
        ({"command": "stat /fsx/a", "exit_code": 137}, "unknown", "node"),
    ],
)
def test_a_run_that_timeout_ended_has_timed_out(context, verdict, target):
    told = replay.judge_case(Case("/c", "lustre", "", {"stdout": ""}, {**context, "mount": "/fsx"}))
    assert (told.verdict, [finding.target for finding in told.findings]) == (verdict, [target])


def test_a_list_of_disks_without_its_last_end_convicts_nobody_and_may_be_whole():
    rows = "NAME    MAJ:MIN RM  SIZE RO TYPE\nnvme0n1 259:0    0  200G  0 disk\n"
    eight = rows + "".join(f"nvme{n}n1 259:{n}    0  3.5T  0 disk\n" for n in range(1, 9))
    seven = eight[: eight.index("nvme8n1")]

    def told(text):
        return replay.judge_case(Case("/c", "system", "p5.48xlarge", {"lsblk": text}, {})).verdict

    assert told(eight) == told(eight.rstrip()) == "pass"
    assert told(seven) == "fail"
    assert told(seven.rstrip()) == told(eight[:-3]) == "unknown"


@pytest.mark.parametrize("prompt", ["$ ", "[root@node-a ~]# ", "user1@node-a:~/run$ "])
@pytest.mark.parametrize(
    ("role", "text", "expected"),
    [
        ("df", "Filesystem 1K-blocks Used Available Use% Mounted on\n/dev/root 203056560 203040176 0 100% /\n", "fail"),
        ("mounts", "/dev/root / ext4 rw,relatime 0 0\n", "pass"),
        (
            "systemctl",
            "x munge.service - MUNGE\n     Loaded: loaded (/x; enabled)\n     Active: failed (Result: x)\n",
            "fail",
        ),
        ("ps", "    PID USER STAT COMMAND\n      1 root Ss   /sbin/init\n", "pass"),
    ],
)
def test_what_was_copied_with_its_prompt_and_colours_is_read(role, text, expected, prompt):
    def told(text):
        return replay.judge_case(Case("/c", "system", "p5.48xlarge", {role: text}, {"jobs_on_node": []})).verdict

    assert told(text) == expected
    assert told(f"{prompt}some tool -x\n{text}") == told(f"{text}{prompt}") == expected
    assert told(f"\x1b[0;1;31m{text}\x1b[0m") == told(f"\ufeff{text}") == expected


def test_a_comment_is_no_prompt():
    fstab = "# /etc/fstab: static file system information\n/dev/md0 /scratch ext4 defaults 0 2\n"
    texts = {"fstab": fstab, "mounts": "/dev/root / ext4 rw 0 0\n"}
    told = replay.judge_case(Case("/c", "system", "", texts, {}))
    assert [finding.target for finding in told.findings] == ["fs:/scratch"]


def test_a_unit_without_its_head_is_the_one_that_was_asked_for_or_unknown():
    text = "     Loaded: loaded (/x; enabled)\n     Active: failed (Result: x)\n"

    def told(command):
        return replay.judge_case(Case("/c", "system", "p5.48xlarge", {"systemctl": text}, {"command": command})).verdict

    assert told("systemctl status munge") == "fail"
    assert told("") == told("systemctl status munge slurmd") == "unknown"

"""Captures of group `system`: space and inodes, files that stayed.

The rows are neighbours of captures: what is nearly the same and must be answered otherwise stands beside it.
"""

from __future__ import annotations

import pytest
from system_answers import BUSY, IDLE, NODE_NONE, PASS, ask, drained, noted

DF = "Filesystem     1K-blocks      Used Available Use% Mounted on\n"
DFH = "Filesystem      Size  Used Avail Use% Mounted on\n"
DFT = "Filesystem     Type      Size  Used Avail Use% Mounted on\n"
DFI = "Filesystem       Inodes  IUsed    IFree IUse% Mounted on\n"


@pytest.mark.parametrize(
    ("text", "context", "expected"),
    [
        (DF + "/dev/nvme0n1p1 203056560 100040176 103016384  50% /\n", None, PASS),
        (DF + "/dev/nvme0n1p1 203056560 203040176         0 100% /\n", None, drained("/")),
        ("Filesystem Use% Mounted on\n/dev/nvme0n1p1 97% /\n", None, noted("/")),
        ("Filesystem Use% Mounted on\n/dev/nvme0n1p1 100% /\n", None, drained("/")),
        (DF + "/dev/nvme0n1p1 203056560 186812036  16228140  92% /\n", None, noted("/")),
        (DF + "/dev/nvme0n1p1 203056560 181000000  22056560  89% /\n", None, PASS),
        (DF + "/dev/md0 29987418112 29987418112 0 100% /scratch\n", None, drained("/scratch")),
        (
            DF + "/dev/nvme1n1p1 203056560 203040176 0 100% /var\n/dev/nvme2n1 9999999 9999999 0 100% /tmp\n",
            None,
            ("fail", ("fs:/tmp", "drain"), ("fs:/var", "drain")),
        ),
        (DF + "/dev/loop0 65536 65536 0 100% /snap/core20/2379\n", None, PASS),
        (DFT + "/dev/sr0 iso9660 4.0G 4.0G 0 100% /mnt/iso\n", None, PASS),
        (DFT + "overlay overlay 194G 190G 3.7G 99% /var/lib/docker/overlay2/x/merged\n", None, PASS),
        (DFT + "efivarfs efivarfs 256K 250K 0 100% /sys/firmware/efi/efivars\n", None, PASS),
        (DFH + "/dev/root       194G  192G  2.1G  99% /\n", None, noted("/")),
        (DFH + "/dev/root       194G  194G   20M 100% /\n", None, drained("/")),
        (DFH + "/dev/nvme0n1p15 105M  100M   5.0M 96% /boot/efi\n", None, noted("/boot/efi")),
        (DFH + "fs-1.efs.us-east-1.amazonaws.com:/  8.0E  1.0T  8.0E   1% /home\n", None, PASS),
        (DFH + "10.0.0.41@tcp:/abcdefgh  1.2T  1.2T  0 100% /fsx\n", None, noted("/fsx")),
        (
            "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 100 100 0 100% /a dir with blanks\n",
            None,
            drained("/a dir with blanks"),
        ),
        (
            DFH + "/dev/mapper/vg.01-a_very_long_name_of_a_volume\n                100G  100G    0 100% /\n",
            None,
            drained("/"),
        ),
        (DF + "/dev/nvme0n1p1 203056560 1868\n", None, NODE_NONE),
        ("", None, NODE_NONE),
        (DF + "tmpfs 996146880 996146880 0 100% /dev/shm\n", IDLE, noted("/dev/shm")),
        (DF + "tmpfs 996146880 996146880 0 100% /dev/shm\n", BUSY, PASS),
        (DF + "tmpfs 996146880 96146880 900000000 10% /dev/shm\n", IDLE, noted("/dev/shm")),
        (DF + "tmpfs 996146880 12 996146868 1% /dev/shm\n", IDLE, PASS),
        (DF + "tmpfs 996146880 96146880 900000000 10% /dev/shm\n", None, PASS),
        (DF + "tmpfs 199229376 199229376 0 100% /run\n", None, drained("/run")),
        (DF + "/dev/a 100 100 0 100% /\n/dev/a 100 100 0 100% /var/lib/bind\n", None, drained("/")),
        (DF + "df: /fsx: Stale file handle\n/dev/a 1000000000 100 999999000 1% /\n", None, drained("/fsx")),
    ],
)
def test_df(tmp_path, text, context, expected):
    assert ask(tmp_path, df=text, context=context) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DFI + "/dev/nvme0n1p1 13107200 301234 12805966 3% /\n", PASS),
        (DFI + "/dev/nvme0n1p1 13107200 13107200 0 100% /\n", drained("/")),
        (DFI + "/dev/nvme0n1p1 13107200 12400000 707200 95% /\n", noted("/")),
        (DFI + "/dev/nvme0n1p15 0 0 0 - /boot/efi\n", PASS),
        (DFI + "/dev/loop0 100 100 0 100% /snap/x\n", PASS),
        (
            "Filesystem Type Inodes IUsed IFree IUse% Mounted on\n/dev/a xfs 13M 13M 0 100% /scratch\n",
            drained("/scratch"),
        ),
    ],
)
def test_inodes(tmp_path, text, expected):
    assert ask(tmp_path, df_inodes=text) == expected
    assert ask(tmp_path, stdout=text, context={"command": "df -i", "exit_code": 0}) == expected


LS = "total 8\n-rw------- 1 {owner} users {size} {time} nccl-a1b2c3\n"


@pytest.mark.parametrize(
    ("owner", "size", "time", "context", "expected"),
    [
        ("user1", "519993213952", "Jul 13 22:10", IDLE, noted("/dev/shm")),
        ("user1", "485G", "2026-07-13 22:10", IDLE, noted("/dev/shm")),
        ("1001", "519993213952", "2026-07-13 22:10:00.000000000 +0000", IDLE, noted("/dev/shm")),
        ("user1", "519993213952", "Jul 13 22:10", BUSY, PASS),
        ("user1", "519993213952", "Jul 13 22:10", {"jobs_on_node": [{"id": 1, "user": "user2"}]}, noted("/dev/shm")),
        ("user1", "519993213952", "Jul 13 22:10", {"jobs_on_node": [{"id": 1, "user": "user1"}]}, PASS),
        ("user1", "32", "Jul 13 22:10", IDLE, PASS),
        ("root", "519993213952", "Jul 13 22:10", IDLE, PASS),
    ],
)
def test_shared_memory_that_stayed(tmp_path, owner, size, time, context, expected):
    assert ask(tmp_path, ls=LS.format(owner=owner, size=size, time=time), context=context) == expected


@pytest.mark.parametrize(
    ("command", "stderr", "expected"),
    [
        ("stat -t /fsx", "stat: cannot statx '/fsx': Cannot send after transport endpoint shutdown", drained("/fsx")),
        (
            "touch /scratch/.probe",
            "touch: cannot touch '/scratch/.probe': Read-only file system",
            ("fail", ("fs:/scratch", "reboot")),
        ),
        ("touch /tmp/.probe", "touch: cannot touch '/tmp/.probe': No space left on device", drained("/tmp")),
        ("ls /scratch", "ls: reading directory '/scratch': Input/output error", ("fail", ("fs:/scratch", "replace"))),
        ("df -kP", "df: /run/user/1000/doc: Operation not permitted", NODE_NONE),
        ("ps -e", "error: /proc must be mounted", NODE_NONE),
    ],
)
def test_probes_that_say_why_they_failed(tmp_path, command, stderr, expected):
    assert ask(tmp_path, stdout="", stderr=stderr, context={"command": command, "exit_code": 1}) == expected


def test_what_cannot_be_looked_at_does_not_spoil_the_rest(tmp_path):
    table = DF + "/dev/nvme0n1p1 203056560 100040176 103016384  50% /\n"
    denied = {"command": "df -kP", "exit_code": 1}
    assert ask(tmp_path, df=table, stderr="df: /run/user/1000/doc: Operation not permitted\n", context=denied) == PASS
    assert (
        ask(tmp_path, df=table, stderr="", context={"command": "df -kP", "timed_out": True, "exit_code": None})
        == NODE_NONE
    )


def test_a_conviction_holds_though_the_probe_was_stopped(tmp_path):
    full = DF + "/dev/nvme0n1p1 203056560 203040176 0 100% /\n"
    hung = {"command": "df -kP", "timed_out": True, "exit_code": None}
    assert ask(tmp_path, df=full, context=hung) == ("fail", ("fs:/", "drain"), ("node", "none"))


def test_files_in_a_place_that_is_meant_to_keep_them(tmp_path):
    text = LS.format(owner="user1", size="519993213952", time="Jul 13 22:10")
    for folder, expected in (("/scratch/data", PASS), ("/tmp", noted("/tmp")), ("/dev/shm/", noted("/dev/shm"))):
        asked = {**IDLE, "command": f"ls -l {folder}", "exit_code": 0}
        assert ask(tmp_path, ls=text, context=asked) == expected

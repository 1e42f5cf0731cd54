"""Captures of group `system`: mounts against fstab, local disks by type, arrays.

The rows are neighbours of captures: what is nearly the same and must be answered otherwise stands beside it.
"""

from __future__ import annotations

import json

import pytest
from system_answers import NODE_NONE, NODE_REPLACE, PASS, ask, drained, noted

ROOT = "/dev/nvme0n1p1 / ext4 rw,relatime,discard 0 0\n"
FSTAB = "# a comment\nUUID=1 / ext4 defaults 0 1\nUUID=2 none swap sw 0 0\n"
TURNED = ("fail", ("fs:/scratch", "reboot"))


@pytest.mark.parametrize(
    ("mounts", "fstab", "expected"),
    [
        (ROOT, FSTAB, PASS),
        (ROOT + "/dev/md0 /scratch ext4 ro 0 0\n", FSTAB + "/dev/md0 /scratch ext4 defaults 0 2\n", TURNED),
        (ROOT + "/dev/md0 /scratch xfs ro 0 0\n", FSTAB + "/dev/md0\t/scratch\txfs\trw,nofail 0 2\n", TURNED),
        (ROOT + "/dev/md0 /scratch ext4 ro 0 0\n", FSTAB + "/dev/md0 /scratch ext4 ro,noatime 0 2\n", PASS),
        (ROOT + "/dev/md0 /scratch ext4 rw 0 0\n", FSTAB + "/dev/md0 /scratch ext4 ro 0 2\n", PASS),
        (ROOT.replace("rw", "ro"), FSTAB, ("fail", ("fs:/", "reboot"))),
        (ROOT + "/dev/loop0 /snap/x squashfs ro 0 0\n", FSTAB, PASS),
        (ROOT + "overlay /merged overlay ro,lowerdir=x 0 0\ntmpfs /sys/fs/cgroup tmpfs ro 0 0\n", FSTAB, PASS),
        (ROOT + "/dev/sr0 /mnt/iso iso9660 ro 0 0\n", FSTAB + "/dev/sr0 /mnt/iso iso9660 defaults 0 0\n", PASS),
        (ROOT, FSTAB + "/dev/md0 /scratch ext4 defaults 0 2\n", drained("/scratch")),
        (ROOT, FSTAB + "/dev/md0 /scratch ext4 defaults,nofail 0 2\n", noted("/scratch")),
        (ROOT, FSTAB + "/dev/md0 /scratch ext4 noauto 0 2\n", PASS),
        (ROOT, FSTAB + "a@tcp:/x /fsx lustre _netdev,x-systemd.automount 0 0\n", PASS),
        (
            ROOT + "systemd-1 /fsx autofs rw 0 0\n",
            FSTAB + "a@tcp:/x /fsx lustre _netdev,x-systemd.automount 0 0\n",
            ("pass", ("fs:/fsx", "none")),
        ),
        (
            ROOT + "systemd-1 /fsx autofs rw 0 0\na@tcp:/x /fsx lustre rw 0 0\n",
            FSTAB + "a@tcp:/x /fsx lustre _netdev,x-systemd.automount 0 0\n",
            PASS,
        ),
        (ROOT + "/dev/b /a\\040b ext4 rw 0 0\n", FSTAB + "/dev/b /a\\040b ext4 defaults 0 2\n", PASS),
        (
            ROOT + "/dev/b /scratch ext4 rw 0 0\n/dev/b /scratch ext4 ro 0 0\n",
            FSTAB + "/dev/b /scratch/ ext4 defaults 0 2\n",
            TURNED,
        ),
        (ROOT + "/dev/b /scratch ext4 ro,errors=remount-ro 0 0\n", None, TURNED),
        (ROOT + "/dev/b /scratch ext4 ro,emergency_ro 0 0\n", None, TURNED),
        (ROOT + "/dev/b /data ext4 ro 0 0\n", None, ("unknown", ("fs:/data", "none"))),
        (ROOT + "/dev/nvme0n1p1 /etc/hosts ext4 ro 0 0\n", None, PASS),
        (
            "/dev/b on / type ext4 (rw,relatime)\n/dev/c on /scratch type ext4 (ro)\n",
            FSTAB + "/dev/c /scratch ext4 defaults\n",
            TURNED,
        ),
        ("cut", FSTAB, NODE_NONE),
        ("", FSTAB, NODE_NONE),
    ],
)
def test_mounts_against_fstab(tmp_path, mounts, fstab, expected):
    assert ask(tmp_path, mounts=mounts, **({} if fstab is None else {"fstab": fstab})) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("36 1 259:1 / /scratch rw,relatime shared:1 - ext4 /dev/md0 rw,stripe=1024", PASS),
        ("36 1 259:1 / /scratch rw,relatime shared:1 - ext4 /dev/md0 ro,stripe=1024", TURNED),
        ("36 1 259:1 / /scratch ro,relatime shared:1 - ext4 /dev/md0 rw", PASS),
        ("36 1 259:1 /etc /scratch ro,relatime - ext4 /dev/md0 rw", PASS),
        ("36 1 7:1 / /snap/x ro,nodev,relatime shared:9 - squashfs /dev/loop1 ro", PASS),
        ("36 1 0:44 / /merged ro - overlay overlay ro,lowerdir=a", PASS),
        ("36 1 259:1 / /scratch rw", NODE_NONE),
    ],
)
def test_mountinfo(tmp_path, line, expected):
    assert ask(tmp_path, mountinfo=line + "\n") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"filesystems": [{"source": "/dev/a", "fstype": "ext4", "size": "1.7T", "used": "1.7T", "avail": "0", '
            '"use%": "100%", "target": "/"}]}',
            drained("/"),
        ),
        ('{"filesystems": [{"source": "/dev/a", "fstype": "ext4", "use%": "94%", "target": "/"}]}', noted("/")),
        (
            '{"filesystems": [{"target": "/", "source": "/dev/a", "fstype": "ext4", "options": "rw", "children": '
            '[{"target": "/snap/x", "source": "/dev/loop0", "fstype": "squashfs", "options": "ro", "use%": "100%"}]}]}',
            PASS,
        ),
        ('TARGET="/" SOURCE="/dev/a" FSTYPE="ext4" OPTIONS="rw,relatime"\n', PASS),
        ("TARGET SOURCE FSTYPE OPTIONS\n/ /dev/a ext4 rw\n├─/proc proc proc rw\n", PASS),
        ('{"filesystems": [', NODE_NONE),
    ],
)
def test_findmnt(tmp_path, text, expected):
    assert ask(tmp_path, findmnt=text) == expected


STORE, EBS = "Amazon EC2 NVMe Instance Storage", "Amazon Elastic Block Store"


def blocks(local, *, model=True, size=3_800_000_000_000, ebs=1):
    rows = [{"name": "nvme0n1", "size": 214748364800, "type": "disk", **({"model": EBS} if model else {})}] * min(
        ebs, 1
    )
    rows += [
        {"name": f"nvme{n + 1}n1", "size": size, "type": "disk", **({"model": STORE} if model else {})}
        for n in range(local)
    ]
    return json.dumps({"blockdevices": rows})


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("p5.48xlarge", blocks(8), PASS),
        ("p5.48xlarge", blocks(7), NODE_REPLACE),
        ("p5en.48xlarge", blocks(8, model=False), PASS),
        ("p5en.48xlarge", blocks(7, model=False), NODE_REPLACE),
        ("p5en.48xlarge", blocks(8, model=False, size="3.5T"), PASS),
        ("p4d.24xlarge", blocks(8, size=1_000_000_000_000), PASS),
        ("p4d.24xlarge", blocks(6, size=1_000_000_000_000), NODE_REPLACE),
        ("p5.4xlarge", blocks(1), PASS),
        ("g5.48xlarge", blocks(2), PASS),
        ("g6e.48xlarge", blocks(3, size=1_900_000_000_000), NODE_REPLACE),
        ("g6.xlarge", blocks(1, size=250_000_000_000), PASS),
        ("p9.48xlarge", blocks(8), NODE_NONE),
        (None, blocks(3), PASS),
        ("hpc7a.96xlarge", blocks(0), PASS),
        ("p5.48xlarge", '{"blockdevices": [', NODE_NONE),
        ("p5.48xlarge", "", NODE_NONE),
    ],
)
def test_local_disks_by_type(tmp_path, kind, text, expected):
    assert ask(tmp_path, lsblk=text, instance_type=kind) == expected


def text_blocks(local):
    head = "NAME          MAJ:MIN RM   SIZE RO TYPE  MOUNTPOINTS\n"
    root = (
        "nvme0n1       259:0    0   200G  0 disk  \n├─nvme0n1p1   259:1    0 199.9G  0 part  /\n"
        "└─nvme0n1p15  259:2    0    99M  0 part  /boot/efi\n                                            /boot/copy\n"
    )
    rows = "".join(
        f"nvme{n + 1}n1       259:{n + 3}    0   3.5T  0 disk  \n└─md0           9:0    0  27.6T  0 raid0 /scratch\n"
        for n in range(local)
    )
    return head + root + rows


def test_lsblk_as_a_table(tmp_path):
    assert ask(tmp_path, lsblk=text_blocks(8), instance_type="p5.48xlarge") == PASS
    assert ask(tmp_path, lsblk=text_blocks(7), instance_type="p5.48xlarge") == NODE_REPLACE
    models = (
        "NAME    SIZE TYPE MODEL\n"
        + f"nvme0n1 200G disk {EBS}\n"
        + "".join(f"nvme{n}n1 3.5T disk {STORE}\n" for n in range(1, 9))
    )
    assert ask(tmp_path, lsblk=models, instance_type="p5.48xlarge") == PASS
    assert (
        ask(tmp_path, lsblk=models.replace("nvme8n1 3.5T disk " + STORE, ""), instance_type="p5.48xlarge")
        == NODE_REPLACE
    )
    names = "NAME TYPE\n" + "".join(f"nvme{n}n1 disk\n" for n in range(9))
    assert ask(tmp_path, lsblk=names, instance_type="p5.48xlarge") == PASS
    assert ask(tmp_path, lsblk=names.replace("nvme8n1 disk\n", ""), instance_type="p5.48xlarge") == NODE_NONE
    assert (
        ask(
            tmp_path,
            lsblk=names.replace("nvme8n1 disk\n", "").replace("nvme7n1 disk\n", ""),
            instance_type="p5.48xlarge",
        )
        == NODE_REPLACE
    )
    pairs = "".join(f'NAME="nvme{n}n1" TYPE="disk" SIZE="3.5T" MODEL="{STORE}"\n' for n in range(8))
    assert ask(tmp_path, lsblk=pairs, instance_type="p5.48xlarge") == PASS


def test_nvme_list_as_json(tmp_path):
    rows = [{"DevicePath": f"/dev/nvme{n}n1", "ModelNumber": STORE if n else EBS, "PhysicalSize": 10} for n in range(9)]
    assert ask(tmp_path, lsblk=json.dumps({"Devices": rows}), instance_type="p5.48xlarge") == PASS
    assert ask(tmp_path, lsblk=json.dumps({"Devices": rows[:-1]}), instance_type="p5.48xlarge") == NODE_REPLACE


def test_a_list_that_was_not_finished_proves_no_absence(tmp_path):
    cut = text_blocks(5) + "nvme6n1       259"
    assert ask(tmp_path, lsblk=cut, instance_type="p5.48xlarge") == NODE_NONE
    stopped = {"command": "lsblk", "timed_out": True, "exit_code": None}
    assert ask(tmp_path, lsblk=text_blocks(5), instance_type="p5.48xlarge", context=stopped) == NODE_NONE
    ended = {"command": "mountpoint /scratch", "exit_code": 32}
    assert ask(tmp_path, stdout="/scratch is not a mountpoint\n", context=ended) == drained("/scratch")


def test_disks_that_do_not_answer_or_take_no_writes(tmp_path):
    dead = blocks(8).replace('"size": 3800000000000', '"size": "0B"', 1)
    assert ("disk:nvme1n1", "replace") in ask(tmp_path, lsblk=dead, instance_type="p5.48xlarge")
    closed = json.dumps(
        {
            "blockdevices": [
                {"name": "nvme3n1", "type": "disk", "size": "3.5T", "ro": True},
                {"name": "loop0", "type": "loop", "ro": True},
            ]
        }
    )
    assert ask(tmp_path, lsblk=closed) == ("fail", ("disk:nvme3n1", "replace"))


MD = "Personalities : [raid0] [raid1] [raid6] [raid5] [raid4] [raid10] \n{}\nunused devices: <none>\n"


def stripe(count):
    members = " ".join(f"nvme{n + 1}n1[{n}]" for n in range(count))
    return f"md0 : active raid0 {members}\n      29687411712 blocks super 1.2 512k chunks\n      "


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        (stripe(8), PASS),
        (stripe(7), NODE_REPLACE),
        (stripe(4), PASS),
        ("", PASS),
        ("md1 : active raid1 nvme2n1[1] nvme1n1[0]\n", NODE_NONE),
        ("md219 : inactive sdb[2](S) sda[0](S)\n        7932 blocks super external:imsm\n", PASS),
        (stripe(7).replace("active raid0", "inactive").replace("]", "](S)"), ("fail", ("disk:md0", "replace"))),
        (stripe(8).replace("nvme3n1[2]", "nvme3n1[2](F)"), ("fail", ("disk:md0", "replace"))),
        (stripe(8).replace("active", "broken"), ("fail", ("disk:md0", "replace"))),
        (
            "md0 : inactive nvme1n1[0](S) nvme2n1[1](S)\n      8761499679 blocks super 1.2\n",
            ("fail", ("disk:md0", "drain")),
        ),
        ("md1 : active raid1 nvme2n1[1] nvme1n1[0]\n      100 blocks super 1.2 [2/2] [UU]\n", PASS),
        (
            "md1 : active raid1 nvme2n1[1] nvme1n1[0](F)\n      100 blocks super 1.2 [2/1] [_U]\n",
            ("warn", ("disk:md1", "warn")),
        ),
        (
            "md1 : active raid5 sdc1[2] sdb1[1]\n      100 blocks level 5, 64k chunk, algorithm 2 [3/2] [_UU]\n",
            ("warn", ("disk:md1", "warn")),
        ),
        (
            "md1 : active raid5 sdc1[3] sdg1[4](F) sdf1[1]\n      100 blocks level 5 [3/1] [_U_]\n",
            ("fail", ("disk:md1", "replace")),
        ),
        ("md1 : active raid6 a[3] b[4] c[1]\n      100 blocks level 6 [5/3] [_UUU_]\n", ("warn", ("disk:md1", "warn"))),
        (
            "md1 : active raid10 a[3] b[2] c[1]\n      100 blocks super 1.2 2 near-copies [4/3] [_UUU]\n",
            ("warn", ("disk:md1", "warn")),
        ),
        (
            "md1 : active raid1 b[2] a[0]\n      100 blocks [2/1] [U_]\n      [==>....]  recovery = 12.6% (1/2) finish=4min speed=2K/sec\n",
            ("warn", ("disk:md1", "warn")),
        ),
        (
            "md1 : active raid1 b[1] a[0]\n      100 blocks [2/2] [UU]\n      [==>....]  resync = 12.6% (1/2) finish=4min speed=2K/sec\n",
            ("warn", ("disk:md1", "warn")),
        ),
        (
            "md1 : active raid1 b[1] a[0]\n      100 blocks [2/2] [UU]\n      [==>....]  check = 12.6% (1/2) finish=4min speed=2K/sec\n",
            PASS,
        ),
        ("md1 : active (auto-read-only) raid1 b[1] a[0]\n      100 blocks [2/2] [UU]\n", PASS),
        ("md1 : active (read-only) raid1 b[1] a[0]\n      100 blocks [2/2] [UU]\n", ("fail", ("disk:md1", "drain"))),
        (
            "md1 : active raid1 c[2](S) b[1] a[0]\n      100 blocks [2/2] [UU]\n      bitmap: 0/1 pages [0KB], 65536KB chunk\n",
            PASS,
        ),
    ],
)
def test_arrays(tmp_path, arrays, expected):
    assert ask(tmp_path, mdstat=MD.format(arrays), instance_type="p5.48xlarge") == expected


def test_a_tree_holds_the_same_files(tmp_path):
    tree = {
        "proc/mdstat": MD.format(stripe(8)),
        "proc/meminfo": "MemTotal: 2113929216 kB\n",
        "proc/self/mounts": ROOT,
        "etc/fstab": FSTAB,
    }
    assert ask(tmp_path, tree=json.dumps(tree), instance_type="p5.48xlarge") == PASS
    tree["proc/mdstat"] = MD.format(stripe(8).replace("nvme3n1[2]", "nvme3n1[2](F)"))
    assert ask(tmp_path, tree=json.dumps(tree), instance_type="p5.48xlarge")[0] == "fail"

"""Which device-mapper devices are the node's own: its kernel log convicts it for those alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_node import P5, here

from slurm_ext.gate import collect, own_disks, replay, rules
from slurm_ext.gate.model import Facts, KernelLine
from slurm_ext.hooks import evidence
from slurm_ext.verdict import FAIL, WARN

FILES = {
    "sys/block/dm-0/dev": "253:0\n",
    "sys/block/dm-0/slaves/nvme1n1/x": "",
    "sys/block/dm-0/slaves/nvme2n1/x": "",
    "proc/self/mountinfo": "30 1 259:1 / / rw - xfs /dev/nvme0n1p1 rw\n40 30 253:0 / /scratch rw - ext4 /dev/mapper/vg-lv rw\n",
    "etc/fstab": "# comment\n/dev/nvme0n1p1 / xfs defaults 0 0\n/dev/mapper/vg-lv /scratch/ ext4 nofail 0 0\n",
    "var/log/kmsg.log": "3,1,5000000,-;EXT4-fs (dm-0): Remounting filesystem read-only\n",
    "proc/sys/kernel/random/boot_id": "b1\n",
}
ON_LOOP = {"sys/block/dm-0/slaves/loop3/x": ""}
STACKED = {
    **{name: text for name, text in FILES.items() if "slaves" not in name},
    "sys/block/dm-0/slaves/dm-1/x": "",
    "sys/block/dm-1/dev": "253:1\n",
    "sys/block/dm-1/slaves/md0/x": "",
}


@pytest.mark.parametrize(
    ("files", "scratch", "own"),
    [
        (FILES, (), ["dm-0"]),
        (STACKED, (), ["dm-0"]),
        (FILES | {"etc/fstab": ""}, (), []),
        (FILES | {"etc/fstab": ""}, ("/scratch",), ["dm-0"]),
        (FILES | {"etc/fstab": ""}, ("/scratch/jobs",), ["dm-0"]),
        (FILES | {"etc/fstab": ""}, ("/scratch2",), []),
        (FILES | ON_LOOP, (), []),
        (STACKED | {"sys/block/dm-1/slaves/loop0/x": ""}, (), []),
        ({name: text for name, text in FILES.items() if "slaves" not in name}, (), []),
        (FILES | {"sys/block/dm-0/dev": "253:7\n"}, (), []),
        (FILES | {"proc/self/mountinfo": FILES["proc/self/mountinfo"][:-1]}, (), []),
        (FILES | {"proc/self/mountinfo": FILES["proc/self/mountinfo"].replace("/scratch", "/")}, (), ["dm-0"]),
    ],
)
def test_own_is_what_the_node_mounted_and_what_lies_on_disks(tmp_path, files, scratch, own):
    told = here(tmp_path, files, phase="health", scratch=scratch)
    assert own_disks.find(told.root, scratch) == own
    assert collect._host(told.root, here=told)["own"] == own


def test_a_log_that_names_none_is_not_asked_further(tmp_path, monkeypatch):
    monkeypatch.setattr(own_disks, "find", lambda *_: 1 / 0)
    files = FILES | {"var/log/kmsg.log": "3,1,5000000,-;EXT4-fs (md0): Remounting filesystem read-only\n"}
    told = here(tmp_path, files, phase="health")
    assert collect._host(told.root, here=told)["own"] == []


@pytest.mark.parametrize(("own", "verdict"), [(("dm-0",), FAIL), ((), WARN)])
def test_the_verdict_and_its_replay(tmp_path, own, verdict):
    line = KernelLine("EXT4-fs (dm-0): Remounting filesystem read-only", 5.0, True)
    facts = Facts(kernel=(line,), own_devices=own, boot_id="b1")
    (item,) = rules._kernel(facts)
    assert (item.verdict, item.finding.target) == (verdict, "disk:dm-0")
    context = {"boot_id": "b1", **({"own_devices": list(own)} if own else {})}
    assert replay_of(tmp_path, evidence.kmsg(facts.kernel or ()), context) == verdict


def replay_of(folder, text, context):
    import json

    (folder / "kmsg").write_text(text)
    (folder / "context.json").write_text(json.dumps(context))
    files = {"kmsg": "kmsg", "context": "context.json"}
    (folder / "case.json").write_text(json.dumps({"group": "kernel", "instance_type": P5, "files": files}))
    return replay.judge(str(folder)).verdict


@given(st.text(), st.text())
def test_any_text_is_read(mountinfo, fstab):
    assert all(len(one) == 2 for one in own_disks._mounted(mountinfo))
    assert all(place.startswith("/") for place in own_disks._fstab(fstab))

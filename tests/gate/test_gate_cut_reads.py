"""What is cut, or fails while it is read, is never taken for something that is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from efa_live_tree import Node, said
from live_node import P5, found, healthy, here, process

from slurm_ext.aws import catalogue
from slurm_ext.gate import (
    collect,
    efa_live_read,
    gpu_nvlink,
    mount_rules,
    read_kernel,
    system_jobs,
    system_services,
    system_storage,
)
from slurm_ext.gate.file_tree import Unread
from slurm_ext.verdict import FAIL, UNKNOWN, WARN


@pytest.fixture
def p5(tmp_path):
    return Node(tmp_path, P5)


def failing(monkeypatch, name: str, ending: str, error: str = "EIO") -> None:
    real = getattr(efa_live_read, name)

    def broken(*words):
        return Unread(error) if "/".join(map(str, words)).endswith(ending) else real(*words)

    monkeypatch.setattr(efa_live_read, name, broken)


@pytest.mark.parametrize("name", ["names_in", "open_entry"])
def test_a_map_of_efa_nodes_that_fails_names_no_device_without_one(p5, monkeypatch, name):
    failing(monkeypatch, name, "class/infiniband_verbs" if name == "names_in" else "infiniband_verbs/uverbs7")
    assert said(p5.look("epilog")) == set()


def test_a_folder_of_the_bus_that_fails_makes_no_device_missing(p5, monkeypatch):
    for ending in ("bus/pci/devices", "0000:4f:00.0"):
        failing(monkeypatch, "names_in" if ending[0] == "b" else "open_entry", ending)
        assert {verdict for _, _, verdict, _ in said(p5.look("epilog"))} <= {UNKNOWN, WARN}


def test_without_sysfs_nothing_is_known_of_efa(p5):
    (p5.root / "sys/class").rename(p5.root / "sys/no-class")
    assert {one for one in said(p5.look("health")) if one[2] == FAIL} == set()
    assert "efa.unreadable" in {one[0] for one in said(p5.look("health"))}


def test_a_module_that_cannot_be_looked_at_may_be_loaded(p5, monkeypatch):
    real = os.stat

    def broken(path, *words, **more):
        if str(path).endswith("sys/module/efa"):
            raise PermissionError(13, "no")
        return real(path, *words, **more)

    monkeypatch.setattr(efa_live_read.os, "stat", broken)
    assert not any(name.startswith("sys/module") for name in efa_live_read.read(str(p5.root)).tree)


TABLE = "/dev/root / ext4 rw 0 0\n10.0.0.1@tcp:/fs /fsx lustre rw 0 0\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "proc/self/mounts"
    path.parent.mkdir(parents=True)
    path.write_text(TABLE)
    return path


def test_a_table_of_mounts_that_is_too_long_is_not_known(table, monkeypatch):
    root = str(table.parents[2])
    assert collect._mounts(root, ["/fsx"]) == TABLE.splitlines()
    monkeypatch.setattr(collect, "MOUNTS_CHARS", 30)
    assert collect._mounts(root, ["/fsx"]) is None


@pytest.mark.parametrize("text", ["", "\n", "10.0.0.1@tcp:/fs /fsx lustre rw 0 0\n", "\x00\x7fnoise of / any / kind"])
def test_a_table_of_mounts_without_a_root_is_none(table, text):
    table.write_text(text)
    assert collect._mounts(str(table.parents[2]), ["/fsx"]) is None


@pytest.mark.parametrize("text", ["", "\n", "noise\n" * 500, "6,0,0;no comma before\n"])
def test_a_kernel_log_without_a_record_cannot_be_read(tmp_path, text):
    path = tmp_path / "var/log/kmsg.log"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert read_kernel.records(str(tmp_path)) == (None, False, False)
    path.write_text(text + "30,7,99,-;systemd[1]: a program's record counts as well\n")
    assert read_kernel.records(str(tmp_path))[0] == []


def test_a_mount_that_one_reading_passed_over_is_found_by_the_next(table, monkeypatch):
    readings = []
    real = open

    def passing_over(path, *words, **more):
        table.write_text(TABLE if readings else TABLE.splitlines(keepends=True)[0])
        readings.append(path)
        return real(path, *words, **more)

    monkeypatch.setattr(collect, "open", passing_over, raising=False)
    assert sorted(collect._mounts(str(table.parents[2]), ["/fsx"]) or ()) == sorted(TABLE.splitlines())
    assert len(readings) == 2
    assert len(collect._mounts(str(table.parents[2]), ["/other"]) or ()) == 2  # it is not there: read three times
    assert len(readings) == 2 + collect.MOUNT_READINGS


MOUNTINFO = "30 1 259:1 / / rw - xfs /dev/nvme0n1p1 rw\n31 30 9:0 / /nvme rw - xfs /dev/md0 rw\n"
FSTAB = "/dev/nvme0n1p1 / xfs defaults 0 0\n/dev/md0 /nvme xfs defaults 0 0\n"


def test_a_table_of_mounts_that_is_cut_lets_no_mount_of_fstab_be_missing():
    short = MOUNTINFO.splitlines(keepends=True)[0]
    assert [item.finding.id for item in system_storage.mounts(short, FSTAB, ())] == ["fs.not-mounted"]
    for cut in range(len(short), len(MOUNTINFO)):
        text = MOUNTINFO[: cut + 1]
        assert system_storage.mounts(text, FSTAB, ()) == [], text


def test_an_image_that_was_turned_read_only_is_a_note():
    for source, verdict in (("/dev/loop3", WARN), ("/dev/nbd0p1", WARN), ("/dev/nvme1n1", FAIL), ("/dev/dm-1", FAIL)):
        line = f"40 30 7:3 / /mnt/image rw,nosuid - ext4 {source} ro,errors=remount-ro\n"
        (item,) = mount_rules.judge(mount_rules.parse_mountinfo(line) or (), None)
        assert (item.finding.id, item.verdict) == ("fs.read-only", verdict), source


def test_a_stripe_that_is_short_convicts_no_disk_where_the_disks_cannot_be_listed():
    text = healthy()["proc/mdstat"].replace(" nvme8n1[7]", "")
    for nvme in (None, ()):
        (item,) = system_storage.arrays(text, catalogue.host(P5), nvme)
        assert (item.finding.id, item.verdict) == ("disk.nvme-missing", UNKNOWN)


def test_a_service_that_a_list_of_processes_may_have_left_out_does_not_convict(tmp_path, monkeypatch):
    text = healthy()["etc/fmslurm-lab/systemctl-show.txt"]
    block = next(part for part in text.split("\n\n") if "Id=munge.service" in part)
    down = text.replace(block, block.replace("ActiveState=active", "ActiveState=inactive"))
    files = healthy() | process(1, "systemd") | process(2, "sh") | {system_services.LAB_ANSWER: down}
    told = [one for one in found(here(tmp_path, files, phase="health")) if one[0] == "service.munge-down"]
    assert [one[1] for one in told] == [FAIL]
    monkeypatch.setattr(system_jobs, "MOST_PROCESSES", 1)
    told = [one for one in found(here(tmp_path, files, phase="health")) if one[0] == "service.munge-down"]
    assert [one[1] for one in told] == [WARN]


def test_a_topology_that_is_cut_blames_no_gpu():
    names = [f"GPU{at}" for at in range(8)]
    rows = ["\t".join([name, *(" X " if other == name else "NV18" for other in names)]) for name in names]
    whole = "\n".join(["\t" + "\t".join(names), *rows]) + "\n"
    assert gpu_nvlink.judge_topo(whole, gpu_type="h100") == []
    for cut in range(whole.index("GPU0\t", 10), len(whole)):
        items = gpu_nvlink.judge_topo(whole[:cut], gpu_type="h100")
        assert {item.verdict for item in items} <= {UNKNOWN}, whole[cut - 20 : cut]


def test_a_probe_file_that_somebody_else_removed_does_not_make_scratch_missing(tmp_path, monkeypatch):
    real = os.fsync

    def cleared(descriptor):
        for path in Path(tmp_path).iterdir():
            path.unlink()
        real(descriptor)

    monkeypatch.setattr(collect.os, "fsync", cleared)
    assert collect._scratch(str(tmp_path))["error"] == ""
    assert collect._scratch(str(tmp_path / "none"))["error"] == "ENOENT"


def test_an_entry_of_lustre_that_was_just_removed_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("")
    real = os.scandir

    class Removing:
        def __init__(self, path):
            self._listed = list(real(path))

        def __enter__(self):
            for entry in self._listed:
                os.unlink(entry.path)
            return iter(self._listed)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(collect.os, "scandir", Removing)
    assert collect._mount(str(tmp_path))["error"] == ""

"""A file of the kernel that is there and cannot be read: unknown, with its name and why; one that is not there says nothing."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from efa_live_tree import Node
from hypothesis import given
from hypothesis import strategies as st
from live_node import NO_JOB, P5, found, healthy, here, look

from slurm_ext.config.model import Settings
from slurm_ext.gate import checks, local, probes, read_small, results, system_host, unread_rules
from slurm_ext.gate.model import Facts, conclude
from slurm_ext.verdict import PASS, UNKNOWN

SYSTEM = "sys/devices/system"
SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"

#: File or folder -> the finding where it cannot be read, and the phases in which it is read.
READ = {
    f"{SYSTEM}/cpu/online": ("host.cpus-unreadable", probes.PHASES),
    f"{SYSTEM}/cpu/present": ("host.cpus-unreadable", probes.PHASES),
    f"{SYSTEM}/node/online": ("host.cpus-unreadable", probes.PHASES),
    "proc/meminfo": ("host.memory-unreadable", probes.PHASES),
    f"{SYSTEM}/edac/mc": ("memory.counters-unreadable", probes.PHASES),
    f"{SYSTEM}/edac/mc/mc0/ue_count": ("memory.counters-unreadable", probes.PHASES),
    "proc/mdstat": ("raid.unreadable", probes.PHASES),
    "proc/self/mountinfo": ("fs.mounts-unreadable", probes.PHASES),
    "sys/class/nvme": ("disk.nvme-unreadable", probes.PHASES),
    "sys/class/nvme/nvme3/state": ("disk.nvme-unreadable", probes.PHASES),
    "sys/class/nvme/nvme3/model": ("disk.nvme-unreadable", probes.PHASES),
    "sys/block/nvme3n1/size": ("disk.nvme-unreadable", ("epilog", "health")),
    f"{SYSTEM}/clocksource/clocksource0/current_clocksource": ("clock.source-unreadable", probes.PHASES),
    "proc/sys/kernel/random/boot_id": ("host.boot-id-unreadable", probes.PHASES),
    SCOPE: ("cgroup.unreadable", probes.PHASES),
    "proc/loadavg": ("host.load-unreadable", ("health",)),
    "proc/interrupts": ("host.machine-checks-unreadable", ("health",)),
    "etc/fstab": ("fs.mounts-unreadable", ("health",)),
}
FOLDERS = (f"{SYSTEM}/edac/mc", "sys/class/nvme", SCOPE)


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Take away how long ago the machine of the tests booted."""
    monkeypatch.setattr(system_host, "SETTLED_S", 0.0)


def fault(told: probes.Here, name: str, kind: str) -> None:
    """Put something in the place of a file or folder: another kind of it, a link to itself; or leave it out."""
    path = told.path(name)
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if kind == "another kind" and name in FOLDERS:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write("no folder")
    elif kind == "another kind":
        os.mkdir(path)
    elif kind == "link":
        os.symlink(os.path.basename(path), path)
    elif kind == "pipe":
        os.mkfifo(path)


@pytest.mark.parametrize("phase", probes.PHASES)
@pytest.mark.parametrize("kind", ["another kind", "link", "pipe"])
@pytest.mark.parametrize("name", READ)
def test_what_cannot_be_read_is_unknown_and_says_so(tmp_path, name, kind, phase):
    told = here(tmp_path, healthy() | NO_JOB, phase=phase, job_id="7", window=(1.0, 2.0))
    fault(told, name, kind)
    id_, phases = READ[name]
    items = [item for item in look(told).items if item.finding.id == id_]
    assert len(items) == (phase in phases)
    for item in items:
        assert (item.verdict, item.finding.target, item.finding.action) == (UNKNOWN, "node", "none")
        assert item.finding.evidence[0].startswith(f"/{name}: E")
    assert conclude(look(told).items).verdict == (UNKNOWN if phase in phases else PASS)


@pytest.mark.parametrize("phase", probes.PHASES)
@pytest.mark.parametrize("name", READ)
def test_what_is_not_there_says_nothing_of_that_kind(tmp_path, name, phase):
    told = here(tmp_path, healthy() | NO_JOB, phase=phase, job_id="7", window=(1.0, 2.0))
    fault(told, name, "absent")
    assert not [one for one in found(told) if one[0] == READ[name][0]]


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.EPERM, errno.ENODEV])
def test_an_error_in_the_middle_of_a_file_is_told_by_its_name(tmp_path, monkeypatch, error):
    real = read_small.read

    def broken(path: str, most: int = 4096) -> str | OSError:
        return OSError(error, "no") if path.endswith("proc/mdstat") else real(path, most)

    monkeypatch.setattr(read_small, "read", broken)
    told = here(tmp_path, healthy(), phase="prolog")
    (item,) = look(told).items
    assert (item.finding.id, item.verdict) == ("raid.unreadable", UNKNOWN)
    assert item.finding.evidence == (f"/proc/mdstat: {errno.errorcode[error]} ({os.strerror(error)})",)


def test_a_counter_that_is_no_number_is_not_known(tmp_path):
    told = here(tmp_path, healthy() | {f"{SYSTEM}/edac/mc/mc0/ue_count": "many\n"}, phase="prolog")
    assert found(told) == [("memory.counters-unreadable", UNKNOWN, "node", "none")]


def test_a_file_system_that_does_not_tell_its_space_is_not_known(tmp_path, monkeypatch):
    def statvfs(_path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("slurm_ext.gate.system_quick.os.statvfs", statvfs)
    files = read_small.Files("/")
    from slurm_ext.gate import system_quick

    told = here(tmp_path, {}, phase="health")._replace(root="/")
    assert system_quick._spaces(told, files) == ()
    (item,) = unread_rules.judge(files.unread)
    assert item.finding.id == "disk.space-unreadable"
    assert item.finding.evidence[0] == "/: EIO (Input/output error)"


@pytest.mark.parametrize("name", READ)
def test_the_list_of_checks_could_not_tell(tmp_path, name):
    told = here(tmp_path, healthy() | NO_JOB, phase="health")
    fault(told, name, "another kind")
    probed = look(told)
    verdict = conclude(probed.items)
    seen = local.Look(verdict, Facts(kernel=(), probed={"system": probed}), (), 0.1, {}, probed.items)
    rows = {row.check: row for row in results.of_look(seen, Settings(), "health")}
    source = next(one for one in unread_rules.SOURCES if name.startswith(one.begins))
    for row in checks.by_probe()["system"]:
        if row.id.startswith(source.checks or ("\0",)) and "health" in row.phases:
            assert rows[row.id].result == UNKNOWN, row.id
            assert name in rows[row.id].why


def test_many_files_are_counted():
    unread = {f"sys/class/nvme/nvme{number}/state": "EIO" for number in range(9)}
    (item,) = unread_rules.judge(unread)
    assert len(item.finding.evidence) == 5
    assert item.finding.evidence[-1] == "and 5 more files"


@given(st.dictionaries(st.text(max_size=30) | st.sampled_from(list(READ)), st.text(max_size=10) | st.just("EIO")))
def test_whatever_could_not_be_read_is_never_a_failure(unread):
    for item in unread_rules.judge(unread):
        assert (item.verdict, item.finding.action) == (UNKNOWN, "none")


@pytest.mark.parametrize("phase", probes.PHASES)
@pytest.mark.parametrize("part", ["device/p2p", "ports/1/state"])
def test_a_file_of_an_efa_device_that_cannot_be_read_is_unknown(tmp_path, phase, part):
    node = Node(tmp_path, P5)
    path = node.root / "sys/class/infiniband" / min(node.names) / part
    path = path if path.exists() else path.resolve()
    path.unlink()
    path.mkdir()
    found = [item for item in node.look(phase).items if item.finding.id == "efa.unreadable"]
    assert len(found) == (part == "device/p2p" or phase != "prolog")  # a prolog asks for no port
    for item in found:
        assert (item.verdict, item.finding.target) == (UNKNOWN, "node")
        assert item.finding.evidence[0].endswith(f"{part}: EISDIR")


@pytest.mark.parametrize("phase", probes.PHASES)
@pytest.mark.parametrize("name", ["sys/fs/lustre/health_check", "sys/kernel/debug/lnet/nis"])
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT])
def test_a_file_of_lustre_that_cannot_be_read_is_unknown(tmp_path, monkeypatch, phase, name, error):
    real = read_small.read

    def broken(path: str, most: int = 4096) -> str | OSError:
        return OSError(error, "no") if path.endswith(name) else real(path, most)

    monkeypatch.setattr(read_small, "read", broken)
    told = here(tmp_path, healthy(), phase=phase, job_id="7", window=(1.0, 2.0))
    items = [item for item in look(told, "lustre").items if item.finding.id == "lustre.unreadable"]
    is_set_so = error == errno.ENOENT or (error == errno.EPERM and "/debug/" in name)
    assert [(item.verdict, item.finding.target) for item in items] == ([] if is_set_so else [(UNKNOWN, "node")])
    for item in items:
        assert item.finding.evidence[0] == f"/{name}: {errno.errorcode[error]}"


@pytest.mark.parametrize("phase", probes.PHASES)
@pytest.mark.parametrize("text", ["", "\n", "\x00\x01\x7f\x1b" * 40, "a line of something else\n" * 30])
@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("proc/mdstat", "raid.unreadable"),
        ("proc/self/mountinfo", "fs.mounts-unreadable"),
        ("proc/sys/kernel/random/boot_id", "host.boot-id-unreadable"),
        ("proc/meminfo", "host.memory-unreadable"),
        (f"{SYSTEM}/cpu/online", "host.cpus-unreadable"),
    ],
)
def test_a_file_of_another_form_is_unknown_in_every_hook(tmp_path, name, id_, text, phase):
    told = here(tmp_path, healthy() | NO_JOB | {name: text}, phase=phase, job_id="7", window=(1.0, 2.0))
    assert (id_, UNKNOWN) in [one[:2] for one in found(told)]

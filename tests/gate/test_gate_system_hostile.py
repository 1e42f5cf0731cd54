"""The node's own probe against files that are unreadable, huge, garbage or planted, and against its own errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from live_node import NO_JOB, P5, found, healthy, here, job, process, stat

import slurm_ext
from slurm_ext.aws import catalogue
from slurm_ext.gate import (
    local,
    model,
    probe_lustre,
    probe_system,
    probes,
    process_rules,
    read_folder,
    read_small,
    system_host,
    system_jobs,
    system_quick,
    system_services,
    system_storage,
)
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

SHAPE = catalogue.host(P5)
NONE_HERE = process_rules.Jobs(())
MIB = 1 << 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(system_jobs, "APART_S", 0.0)


def kinds() -> list[str]:
    """Return one path of each kind that a healthy tree has."""
    by_kind = {re.sub(r"\d+", "#", path): path for path in healthy()}
    return sorted(by_kind.values())


@pytest.mark.parametrize("path", [one for one in kinds() if "etc/fmslurm-lab" not in one])
def test_garbage_in_any_file_convicts_nobody(tmp_path, path):
    told = here(tmp_path, healthy() | NO_JOB, phase="prolog")
    for content in (b"", b"\xff\xfe\x00garbage\n" * 50, b"9" * 3 * MIB, b"-1\n", None):
        (tmp_path / "root" / path).unlink()
        if content is not None:
            (tmp_path / "root" / path).write_bytes(content)
        for phase in probes.PHASES:
            for name in probes.of_phase(phase):
                items = found(told._replace(phase=phase), name) if name != "efa" else []
                assert FAIL not in {verdict for _, verdict, *_ in items}, (content, phase, items)


@pytest.mark.parametrize("name", ["space.json", "systemctl-show.txt"])
@pytest.mark.parametrize("content", ["[]", "{", '{"/": 3}', '{"/": ["a", 1, 2, 3]}', "", "Id=munge.service"])
def test_what_a_lab_says_may_be_garbage(tmp_path, name, content):
    files = healthy() | {f"etc/fmslurm-lab/{name}": content}
    for phase in probes.PHASES:
        found(here(tmp_path, files, phase=phase))


@pytest.mark.parametrize("how", ["folder", "fifo", "link", "loop"])
@pytest.mark.parametrize(
    "path", ["proc/meminfo", "proc/mdstat", "proc/self/mountinfo", "sys/devices/system/cpu/online"]
)
def test_another_thing_in_a_files_place_is_not_read(tmp_path, path, how):
    told = here(tmp_path, healthy() | {path: None}, phase="prolog")
    place = tmp_path / "root" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    secret = tmp_path / "secret"
    secret.write_text("MemTotal: 1 kB\nmd0 : inactive nvme1n1[0]\n")
    if how == "folder":
        place.mkdir()
    elif how == "fifo":
        os.mkfifo(place)  # opening one to read must not wait for a writer
    else:
        place.symlink_to(secret if how == "link" else place)
    assert {verdict for _, verdict, *_ in found(told)} <= {UNKNOWN}


def plant(folder) -> None:
    """Put into a folder what a user may: links, a FIFO, a folder, a sparse file, a name of odd bytes."""
    folder.mkdir(parents=True)
    (folder / "link").symlink_to("/etc/shadow")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "to-root").symlink_to("/")
    os.mkfifo(folder / "fifo")
    (folder / "inside").mkdir()
    (folder / "inside" / "large").write_bytes(b"x" * 4096)
    with open(folder / "sparse", "wb") as stream:
        stream.truncate(1 << 40)
    with open(os.fsencode(folder) + b"/\xff\xfe", "wb") as stream:
        stream.write(b"x" * 4096)


@pytest.mark.parametrize("name", ["dev/shm", "tmp"])
def test_nothing_that_users_plant_is_opened_or_followed(tmp_path, monkeypatch, name):
    told = here(tmp_path, healthy() | NO_JOB, phase="health")
    plant(tmp_path / "root" / name)
    opened: list[str] = []
    real = os.open

    def watched(path, *args, **more):
        opened.append(os.fspath(path) if not isinstance(path, int) else "")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", watched)
    full = '{"/dev/shm": [1073741824, 1024, 99, 9]}'
    (tmp_path / "root" / system_quick.LAB_SPACE).write_text(full)
    found(told)
    inside = str(tmp_path / "root" / name)
    assert [path for path in opened if path.startswith(inside) and path != inside] == []
    listed = {entry.name: entry for entry in read_folder.entries(inside)}
    assert {entry for entry in listed if listed[entry].is_file} == {"sparse", "\udcff\udcfe"}
    assert listed["sparse"].held_bytes < 4096


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "shm").symlink_to("/")
    assert read_folder.entries(str(tmp_path / "shm")) is None
    assert read_folder.entries(str(tmp_path / "absent")) is None
    assert read_folder.entries("a\0b") is None


def test_shared_memory_of_users_without_a_job(tmp_path, monkeypatch):
    shm = '{"/dev/shm": [107374182400, 53687091200, 99, 9]}'
    files = healthy() | NO_JOB | {system_quick.LAB_SPACE: shm}
    left = [read_folder.Entry("psm2_shm", 1000, 200 * MIB, True), read_folder.Entry("link", 1000, 0, False)]
    monkeypatch.setattr(system_storage.read_folder, "entries", lambda path: left if path.endswith("shm") else [])
    wanted = [("disk.shm-leftover", WARN, "fs:/dev/shm", "warn")]
    assert found(here(tmp_path, files, phase="prolog")) == wanted
    group = "/system.slice/slurmstepd.scope/job_41/step_batch/user/task_0"
    busy = files | job(41, (77,)) | process(77, "python3", group=group)
    busy |= {"sys/fs/cgroup/system.slice/slurmstepd.scope/job_41/step_batch/slurm/cgroup.procs": "60\n"}
    busy |= {"proc/60/stat": stat(60, "slurmstepd", "S")}
    assert found(here(tmp_path, busy, phase="prolog")) == []  # whose it is, is not known: the job's user is root here
    left[0] = left[0]._replace(uid=0)
    assert found(here(tmp_path, files, phase="prolog")) == []


def test_ten_gigabytes_in_tmp(tmp_path, monkeypatch):
    left = [read_folder.Entry("dump", 1000, 11 << 30, True)]
    monkeypatch.setattr(system_storage.read_folder, "entries", lambda path: left if path.endswith("/tmp") else [])
    told = here(tmp_path, healthy() | NO_JOB, phase="health")
    assert found(told) == [("disk.leftover", WARN, "fs:/tmp", "warn")]


class Said:
    """What statvfs says of one file system."""

    def __init__(self, fsid: int, blocks: int, left: int) -> None:
        self.f_fsid, self.f_frsize, self.f_blocks, self.f_bfree, self.f_bavail = fsid, 4096, blocks, left, left
        self.f_files, self.f_ffree = 1000, 900


def test_a_full_var_is_seen_on_a_real_node_and_one_file_system_once(tmp_path, monkeypatch):
    systems = {"/": Said(1, 1 << 20, 1 << 19), "/tmp": Said(1, 1 << 20, 1 << 19), "/var/log": Said(2, 1 << 20, 0)}
    systems |= {"/var/spool/slurmd": Said(2, 1 << 20, 0), "/dev/shm": Said(1, 1 << 20, 1 << 19)}

    def statvfs(path: str) -> Said:
        if path not in systems:
            raise FileNotFoundError(2, path)
        return systems[path]

    monkeypatch.setattr(system_quick.os, "statvfs", statvfs)
    told = here(tmp_path, {}, phase="health")._replace(root="/")
    spaces = system_quick._spaces(told, read_small.Files("/"))
    assert [space.path for space in spaces] == ["/", "/var/spool/slurmd"]  # nothing is mounted at /dev/shm
    items = system_storage.space(spaces, NONE_HERE, phase="health")
    assert [(item.finding.id, item.verdict, item.finding.target) for item in items] == [
        ("disk.full", FAIL, "fs:/var/spool/slurmd")
    ]
    items = system_storage.space(spaces, NONE_HERE, phase="prolog")
    assert [item.verdict for item in items] == [WARN]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(first=st.integers(0, 150), length=st.integers(1, 150), phase=st.sampled_from(probes.PHASES))
def test_read_errors_in_the_middle_of_sysfs_convict_nobody(tmp_path, monkeypatch, first, length, phase):
    told = here(tmp_path, healthy() | NO_JOB, phase=phase)
    count = 0
    real = os.read

    def fails(descriptor: int, size: int) -> bytes:
        nonlocal count
        count += 1
        if first <= count < first + length:
            raise OSError(5, "Input/output error")
        return real(descriptor, size)

    with monkeypatch.context() as patched:
        patched.setattr(read_small.os, "read", fails)
        items = found(told) + (found(told, "lustre") if phase != "prolog" else [])
    assert FAIL not in {verdict for _, verdict, *_ in items}, items


def test_a_look_that_hangs_is_unknown_in_time(tmp_path, monkeypatch):
    def hangs(_here: probes.Here) -> system_quick.Seen:
        time.sleep(600)
        raise AssertionError("never")

    told = here(tmp_path, healthy("m7i.large"), phase="prolog", scratch=(), lustre=())
    monkeypatch.setattr(system_quick, "read", hangs)
    seen = local.look(told.settings, "n0", phase="prolog", job_window=None, deadline_s=1.0)
    assert seen.seconds < 60
    assert ("system.no-answer", UNKNOWN) in {(item.finding.id, item.verdict) for item in seen.items}
    assert seen.verdict.verdict == UNKNOWN


def test_an_error_of_ours_is_unknown(tmp_path, monkeypatch):
    told = here(tmp_path, healthy("m7i.large"), phase="health", scratch=(), lustre=())
    monkeypatch.setattr(system_host, "judge", lambda *_: 1 / 0)
    seen = local.look(told.settings, "n0", phase="health", job_window=None, deadline_s=60.0)
    assert ("system.no-answer", UNKNOWN) in {(item.finding.id, item.verdict) for item in seen.items}


def test_a_process_list_that_is_too_long_says_nothing_of_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(system_jobs, "MOST_PROCESSES", 3)
    files = {key: text for pid in range(2, 8) for key, text in process(pid, "sh").items()}
    told = here(tmp_path, files, phase="health")
    listed = system_jobs.scan(told)
    assert not listed.whole
    assert system_jobs.live(told, listed) is None
    assert system_jobs.jobs_of(told, system_quick.Seen(), None).ids is None


def test_a_stuck_process_has_no_command_line_read(tmp_path, monkeypatch):
    told = here(tmp_path, healthy() | NO_JOB | process(77, "python3", "D", wchan="nv_wait"), phase="health")
    read: list[str] = []
    real = read_small.read
    monkeypatch.setattr(read_small, "read", lambda path, most=4096: (read.append(path), real(path, most))[1])
    assert found(told) == [("process.unkillable", FAIL, "node", "reboot")]
    assert not [path for path in read if path.endswith(("/77/cmdline", "/77/environ", "/77/maps", "/77/stack"))]


@given(st.text(max_size=300))
def test_any_text_as_a_process(text):
    row = system_jobs.parse_stat(text)
    assert row is None or isinstance(row.pid, int)
    system_jobs.fields(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=15), st.sampled_from("RSDZTI"), st.integers(2, 2**22))
def test_names_of_programs_may_hold_brackets_and_blanks(name, state, pid):
    row = system_jobs.parse_stat(stat(pid, name, state, start_ticks=500, threads=3))
    assert row is not None
    assert (row.pid, row.comm, row.state, row.threads, row.is_kernel) == (pid, name, state, 3, False)
    assert system_jobs.parse_stat(stat(pid, name, state, kernel=True)).is_kernel


WORDS = (
    "0",
    "0-191",
    "0-95",
    "active",
    "inactive",
    "raid0",
    "raid1",
    "raid5",
    "(F)",
    "(S)",
    "[2/1]",
    "[U_]",
    "[UU]",
    "md0",
    ":",
)
WORDS += (
    "nvme1n1[0]",
    "nvme2n1[1](F)",
    "blocks",
    "100",
    "recovery = 5%",
    "resync=DELAYED",
    "super",
    "1.2",
    "(read-only)",
)
LINES = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), max_size=6)


@given(LINES)
def test_what_is_plainly_well_of_arrays_is_no_failure_by_the_rules(lines):
    text = "Personalities : [raid0] [raid1]\n" + "\n".join(f"md{n} : {line}" for n, line in enumerate(lines)) + "\n"
    if system_quick._arrays_well(text, SHAPE):
        assert FAIL not in {item.verdict for item in system_storage.arrays(text, SHAPE)}


OPTIONS = st.lists(
    st.sampled_from(("rw", "ro", "relatime", "errors=remount-ro", "shutdown", "emergency_ro")), min_size=1, max_size=3
)
KINDS = st.sampled_from(("ext4", "xfs", "btrfs", "nfs4", "tmpfs", "squashfs", "overlay"))


@given(OPTIONS, OPTIONS, KINDS, st.sampled_from(("/", "/data", "/nvme")))
def test_what_is_plainly_well_of_mounts_is_no_failure_by_the_rules(options, above, kind, point):
    line = f"27 1 259:1 / {point} {','.join(options)} shared:1 - {kind} /dev/x {','.join(above)}\n"
    if not system_quick._read_only(line):
        assert FAIL not in {item.verdict for item in system_storage.mounts(line, None, ())}


@example("", "0-191", "0-\N{SUPERSCRIPT TWO}")
@example("", "\N{SUPERSCRIPT TWO}", "")
@given(st.text(max_size=200), st.text(max_size=100), st.text(max_size=20))
def test_what_is_plainly_well_of_memory_and_processors_is_no_failure_by_the_rules(memory, online, numa):
    for text in (memory, f"MemTotal: {online} kB\n{memory}", f"MemTotal: 2097152000 kB\n{memory}"):
        seen = system_quick.Seen(online=online, present=online, numa=numa, meminfo=text, boot_s=2e9)
        system_quick.odd(seen, SHAPE)
        system_quick.odd(seen, None)
        if system_quick._memory_well(text, SHAPE):
            want = system_host.host_rules.expected(SHAPE, {})
            assert FAIL not in {item.verdict for item in system_host._memory(seen, want, NONE_HERE)}


@given(st.text(max_size=400), st.sampled_from((P5, "m7i.large", "p6e-gb200.36xlarge")))
def test_any_answer_of_systemd(text, name):
    items = system_services.judge(text, name, frozenset(), munge_answers=False)
    assert all(isinstance(item, model.Judged) for item in items)


@given(st.text(max_size=300))
def test_any_table_of_interrupts(text):
    system_host.machine_checks(text)
    system_host.machine_checks("MCE: " + text)


def test_only_what_is_certain_convicts_before_and_after_a_job():
    ids = (
        "host.memory-missing",
        "raid.broken",
        "process.unkillable",
        "service.munge-down",
        "disk.full",
        "host.socket-missing",
    )
    items = [model.judged(FAIL, id_, "node", "replace", "x") for id_ in ids]
    for phase in ("prolog", "epilog"):
        assert {item.verdict for item in probe_system.narrowed(items, phase, scratch=True)} == {WARN}
    sure = [model.judged(FAIL, id_, "node", "replace", "x") for id_ in ("fs.read-only", "disk.nvme-missing")]
    assert [item.verdict for item in probe_system.narrowed(sure, "prolog", scratch=True)] == [FAIL, FAIL]
    assert [item.verdict for item in probe_system.narrowed(sure, "prolog", scratch=False)] == [FAIL, WARN]
    assert [item.verdict for item in probe_system.narrowed(sure, "health", scratch=False)] == [FAIL, WARN]
    kept = [item.finding for item in probe_system.narrowed(items, "prolog", scratch=True)]
    assert kept == [item.finding for item in items]  # the advice stays


def test_the_quick_look_loads_no_rule(tmp_path):
    told = here(tmp_path, healthy(), phase="prolog")
    home = str(Path(slurm_ext.__file__).parents[1])
    code = (
        "import sys; from slurm_ext.gate import local, probe_system, probes; from slurm_ext.config.model import Settings\n"
        f"here = probes.Here({told.root!r}, 'n0', 'prolog', Settings(), '7')\n"
        "assert probe_system.look(here).items == ()\n"
        "long = [name for name in sys.modules if name.endswith(('_rules', 'system_host', 'lustre_live', 'system_jobs'))]\n"
        "assert long in ([], ['slurm_ext.gate.kernel_rules']), long\n"
        "assert not {'subprocess', 'ctypes', 'pwd'} & (set(sys.modules) - {'subprocess'}), sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-IS", "-c", f"import sys; sys.path[:0] = {home!r},\n{code}"], check=True, timeout=300
    )


def test_one_event_is_told_once():
    from slurm_ext.gate.told_once import told_once

    log = model.judged(WARN, "memory.dimm-uncorrected", "node", "warn", "EDAC MC0: 1 UE")
    counted = model.judged(FAIL, "memory.dimm-uncorrected", "node", "replace", "2 uncorrected")
    joined = told_once([log, counted])
    assert [(item.verdict, item.finding.action) for item in joined] == [(FAIL, "replace")]
    assert joined[0].finding.evidence == ("2 uncorrected", "EDAC MC0: 1 UE")
    said = model.judged(WARN, "lustre.evicted", "ost:a", "warn", "evicted by a")
    dated = model.judged("pass", "lustre.evicted-old", "ost:a", "none", "long ago")
    assert told_once([said, dated]) == [dated]
    assert told_once([said, said]) == [said]
    assert probe_lustre.well(probe_lustre.Seen()) is False

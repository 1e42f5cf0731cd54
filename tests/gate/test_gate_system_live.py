"""The node itself, live: healthy nodes of every type say nothing, and every finding can be made."""

from __future__ import annotations

import json

import pytest
from live_node import MOUNTS, NO_JOB, P5, TYPES, found, healthy, here, job, look, process, stepd

from slurm_ext.aws import catalogue
from slurm_ext.gate import probes, system_checks, system_host, system_jobs, system_services, unread_rules
from slurm_ext.lab import hardware, hardware_host
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

CPU = "sys/devices/system/cpu"
MC = "sys/devices/system/edac/mc/mc0"
NVME = "sys/class/nvme"
GIB = 1 << 30


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Take away what depends on the machine of the tests: how long ago it booted, and the wait between two looks."""
    monkeypatch.setattr(system_host, "SETTLED_S", 0.0)
    monkeypatch.setattr(system_jobs, "APART_S", 0.0)


@pytest.mark.parametrize("phase", probes.PHASES)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("idle", [{}, NO_JOB], ids=["unknown-jobs", "no-job"])
def test_a_healthy_node_of_every_type_says_nothing(tmp_path, name, phase, idle):
    window = (1.0, 2.0) if phase == "epilog" else None
    told = here(tmp_path, healthy(name) | idle, phase=phase, job_id="7", window=window)
    assert found(told) == []
    assert found(told, "lustre") == []


def test_a_lab_builds_what_the_probe_holds_for_well(tmp_path):
    row = catalogue.CATALOGUE[P5]
    hardware.build_root(tmp_path / "root", row, "n0", "i-1", MOUNTS)
    told = here(tmp_path / "other", {}, phase="health")
    assert found(told._replace(root=str(tmp_path / "root"))) == []


def meminfo(**change: int | None) -> dict[str, str]:
    """Return a node's /proc/meminfo with some values (kB) changed; None takes a line out."""
    lines = []
    for line in healthy()["proc/meminfo"].splitlines():
        name, _, _ = line.partition(":")
        if name in change:
            if change[name] is not None:
                lines.append(f"{name}: {change[name]} kB")
        else:
            lines.append(line)
    return {"proc/meminfo": "\n".join(lines) + "\n"}


def share(part: float) -> int:
    return int(catalogue.CATALOGUE[P5].memory_mib * 1024 * part)


def without_disk(number: int) -> dict[str, str | None]:
    return {f"{NVME}/nvme{number}/{part}": None for part in ("model", "state")}


def mount_line(options: str, above: str, point: str = "/", kind: str = "ext4") -> dict[str, str]:
    line = f"99 27 259:1 / {point} {options},relatime shared:1 - {kind} /dev/nvme0n1p1 {above},seclabel\n"
    return {"proc/self/mountinfo": healthy()["proc/self/mountinfo"] + line}


def space(point: str, left: int, inodes_left: int = 90_000_000) -> dict[str, str]:
    told = {"/": [200 * GIB, 150 * GIB, 100_000_000, 99_000_000], point: [200 * GIB, left, 100_000_000, inodes_left]}
    return {"etc/fmslurm-lab/space.json": json.dumps(told)}


def unit(name: str, active: str, load: str = "loaded", enabled: str = "enabled") -> dict[str, str]:
    text = healthy()["etc/fmslurm-lab/systemctl-show.txt"]
    blocks = [block for block in text.split("\n\n") if f"Id={name}.service" not in block]
    blocks.append(f"Id={name}.service\nLoadState={load}\nActiveState={active}\nSubState=dead\nUnitFileState={enabled}")
    listed = process(1, "systemd", uid=0)  # a list of processes that is whole
    return {"etc/fmslurm-lab/systemctl-show.txt": "\n\n".join(blocks) + "\n", **listed}


ONE_SOCKET = {
    **{f"{CPU}/{name}": "0-95\n" for name in ("online", "present")},
    **{f"{CPU}/cpu{number}/topology/physical_package_id": "0\n" for number in range(96)},
    f"{CPU}/cpu0/topology/thread_siblings_list": "0,48\n",
}
MDSTAT = healthy()["proc/mdstat"]
STRIPE_OF_7 = MDSTAT.replace(" nvme8n1[7]", "")
MIRROR = "Personalities : [raid1]\nmd1 : active raid1 nvme2n1[1] nvme1n1[0]\n      1000 blocks super 1.2 [2/1] [U_]\n"
DEEP = {"start_ticks": 100, "wchan": "nv_wait_for_gsp"}

WAY_OUT = "ens32\t00000000\t0100000A\t0003\t0\t0\t512\t00000000\t0\t0\t0\n"

#: Files changed -> phase, id, verdict, target, action.
BAD = [
    ({f"{CPU}/online": "0-95\n"}, "prolog", ("host.cpu-count", WARN, "node", "warn")),
    (ONE_SOCKET, "health", ("host.socket-missing", WARN, "node", "replace")),
    ({"sys/devices/system/node/online": "0\n"}, "prolog", ("host.numa", WARN, "node", "warn")),
    ({f"{CPU}/online": "all of them\n"}, "prolog", ("host.cpus-unreadable", UNKNOWN, "node", "none")),
    (meminfo(MemTotal=share(0.8)), "prolog", ("host.memory-missing", WARN, "node", "replace")),
    (meminfo(MemTotal=share(0.8)), "health", ("host.memory-missing", FAIL, "node", "replace")),
    (meminfo(MemTotal=share(0.93)), "prolog", ("host.memory-short", WARN, "node", "warn")),
    (meminfo(HardwareCorrupted=8), "prolog", ("host.memory-poisoned", WARN, "node", "warn")),
    (meminfo(MemAvailable=share(0.2)) | NO_JOB, "prolog", ("host.memory-held", WARN, "node", "warn")),
    ({"proc/meminfo": "none\n"}, "prolog", ("host.memory-unreadable", UNKNOWN, "node", "none")),
    (meminfo(SwapTotal=8 << 20, SwapFree=4 << 20), "health", ("host.swapped", WARN, "node", "warn")),
    ({"proc/loadavg": "90.00 80.0 70.0 1/2 3\n"} | NO_JOB, "health", ("host.load", WARN, "node", "warn")),
    ({"proc/interrupts": " CPU0 CPU1\nMCE: 0 2  Machine check\n"}, "health", ("host.machine-checks", WARN, "node", "warn")),
    ({f"{MC}/ue_count": "2\n"}, "prolog", ("memory.dimm-uncorrected", FAIL, "node", "replace")),
    (
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"},
        "prolog",
        ("clock.slow-source", WARN, "node", "warn"),
    ),
    (without_disk(8), "prolog", ("disk.nvme-missing", FAIL, "node", "replace")),
    ({f"{NVME}/nvme8/state": "dead\n"}, "prolog", ("disk.dead", FAIL, "disk:nvme8n1", "replace")),
    ({f"{NVME}/nvme8/state": "resetting\n"}, "prolog", ("disk.nvme-state", WARN, "disk:nvme8", "warn")),
    ({"sys/block/nvme8n1/size": "0\n"}, "epilog", ("disk.dead", FAIL, "disk:nvme8n1", "replace")),
    ({"sys/block/nvme8n1/ro": "1\n"}, "health", ("disk.read-only", FAIL, "disk:nvme8n1", "replace")),
    ({"sys/block/sda/device/state": "offline\n"}, "health", ("disk.offline", WARN, "disk:sda", "warn")),
    ({"proc/mdstat": STRIPE_OF_7}, "prolog", ("raid.short-stripe", WARN, "node", "warn")),
    ({"proc/mdstat": STRIPE_OF_7} | without_disk(8), "prolog", ("disk.nvme-missing", FAIL, "node", "replace")),
    ({"proc/mdstat": MIRROR}, "prolog", ("raid.degraded", WARN, "disk:md1", "warn")),
    ({"proc/mdstat": MDSTAT.replace("[7]", "[7](F)")}, "prolog", ("raid.broken", WARN, "disk:md0", "replace")),
    ({"proc/mdstat": MDSTAT.replace("[7]", "[7](F)")}, "health", ("raid.broken", FAIL, "disk:md0", "replace")),
    (
        {"proc/mdstat": MDSTAT.replace("active raid0", "activ")},
        "prolog",
        ("probe.output-cut", UNKNOWN, "node", "none"),
    ),
    (
        {"proc/net/route": "Iface\tDestination\tGateway\n"},
        "health",
        ("network.no-default-route", WARN, "node", "warn"),
    ),
    (
        {"proc/net/route": f"Iface\tDestination\n{WAY_OUT}", "sys/class/net/ens32/operstate": "down\n"},
        "health",
        ("network.link-down", WARN, "nic:ens32", "warn"),
    ),
    ({f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave\n"}, "health", ("host.cpu-governor", WARN, "node", "warn")),
    ({"proc/mdstat": "no such thing\n"}, "health", ("raid.unreadable", UNKNOWN, "node", "none")),
    (mount_line("rw", "ro"), "prolog", ("fs.read-only", FAIL, "fs:/", "reboot")),
    (mount_line("ro", "ro", "/data") | {"etc/fstab": "/dev/x /data ext4 rw 0 0\n"}, "health",
     ("fs.read-only", WARN, "fs:/data", "reboot")),
    ({"etc/fstab": "efs:/ /efs nfs4 rw 0 0\n"}, "health", ("fs.not-mounted", WARN, "fs:/efs", "drain")),
    ({"proc/self/mountinfo": "nothing of the kind\n"}, "health", ("fs.mounts-unreadable", UNKNOWN, "node", "none")),
    (space("/", 0), "prolog", ("disk.full", WARN, "fs:/", "drain")),
    (space("/", 0), "health", ("disk.full", WARN, "fs:/", "drain")),
    (space("/", 0) | NO_JOB, "health", ("disk.full", FAIL, "fs:/", "drain")),
    (space("/var/log", 0) | NO_JOB, "health", ("disk.full", WARN, "fs:/var/log", "drain")),
    (space("/", 100 * GIB, 0) | NO_JOB, "health", ("disk.no-inodes", FAIL, "fs:/", "drain")),
    (space("/tmp", 10 * GIB), "prolog", ("disk.nearly-full-space", WARN, "fs:/tmp", "warn")),
    (space("/var/log", 100 * GIB, 1000), "prolog", ("disk.nearly-full-inodes", WARN, "fs:/var/log", "warn")),
    ({"etc/fmslurm-lab/space.json": json.dumps({"/dev/shm": [64 << 20, 64 << 20, 9, 9]})}, "prolog",
     ("disk.shm-small", WARN, "fs:/dev/shm", "warn")),
    ({"etc/fmslurm-lab/space.json": json.dumps({"/dev/shm": [GIB, 1 << 20, 99, 9]})} | NO_JOB, "prolog",
     ("disk.shm-leftover", WARN, "fs:/dev/shm", "warn")),
    (NO_JOB | job(41, (77,)) | process(77, "python3"), "prolog", ("process.leftover", WARN, "node", "warn")),
    (NO_JOB | job(41, (77,)) | process(77, "python3"), "health", ("process.leftover", WARN, "node", "warn")),
    ({f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{n}/cgroup.events": "populated 0\n" for n in range(200)},
     "prolog", ("cgroup.leftover", WARN, "node", "warn")),
    (NO_JOB | process(77, "python3", "D", **DEEP), "health", ("process.unkillable", FAIL, "node", "reboot")),
    (NO_JOB | process(77, "python3", "D", **DEEP), "epilog", ("process.unkillable", WARN, "node", "reboot")),
    (NO_JOB | process(77, "python3", "D", start_ticks=100, wchan="io_schedule"), "health",
     ("process.in-kernel", UNKNOWN, "node", "none")),
    (NO_JOB | {k: v for n in range(30) for k, v in process(100 + n, "sh", "Z").items()}, "health",
     ("process.zombies", WARN, "node", "warn")),
    (unit("munge", "failed"), "health", ("service.munge-down", FAIL, "node", "drain")),
    (unit("nvidia-fabricmanager", "failed"), "health", ("service.fabricmanager-down", FAIL, "node", "drain")),
    (unit("nvidia-fabricmanager", "inactive", "not-found"), "health",
     ("service.fabricmanager-down", WARN, "node", "drain")),
    (unit("chronyd", "failed"), "health", ("service.chronyd-down", WARN, "node", "warn")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "phase", "wanted"), BAD, ids=[f"{n}-{row[2][0]}-{row[1]}" for n, row in enumerate(BAD)]
)
def test_every_finding_can_be_made(tmp_path, files, phase, wanted):
    window = (1.0, 2.0) if phase == "epilog" else None
    assert found(here(tmp_path, healthy() | files, phase=phase, job_id="7", window=window)) == [wanted]


def test_what_grew_while_the_job_ran_is_told_of_in_its_epilog(tmp_path):
    kept = look(here(tmp_path, healthy(), phase="prolog", job_id="7")).kept
    kept = json.loads(json.dumps(kept))  # as the job's file keeps it
    assert kept["memory_errors"] == {"mc0": [0, 0]}
    grown = healthy() | {f"{MC}/ue_count": "2\n", f"{MC}/ce_count": "5000\n"}
    told = here(tmp_path, grown, phase="epilog", job_id="7", window=(1.0, 2.0), baseline=kept)
    items = look(told).items
    assert [(item.finding.id, item.verdict) for item in items] == [
        ("memory.dimm-uncorrected", FAIL),
        ("memory.many-corrected", WARN),
    ]
    assert "2 of them while the job ran" in items[0].finding.evidence[0]
    moved = kept | {"boot_s": kept["boot_s"] - 30.0}
    told = here(tmp_path, healthy(), phase="epilog", job_id="7", window=(1.0, 2.0), baseline=moved)
    assert found(told) == [("clock.jumped", WARN, "node", "warn")]
    assert "+30.0 s" in look(told).items[0].finding.evidence[0]


def test_errors_that_were_there_before_the_job_are_not_its_own():
    assert system_host.errors({"mc0": (5000, 0)}, {"mc0": [4999, 0]}) == []
    assert system_host.errors({"mc0": (5000, 0)}, None) == []  # no prolog kept anything
    for kept in ("", [], {"mc0": 3}, {"mc0": [None, None]}, {"mc1": [0, 0]}):
        assert system_host.errors({"mc0": (5000, 0)}, kept) == []


def test_a_clock_before_this_program_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_ext.gate.system_quick.time.time", lambda: 1000.0)
    assert found(here(tmp_path, healthy(), phase="prolog")) == [("clock.impossible", WARN, "node", "warn")]


@pytest.mark.parametrize(
    "files",
    [without_disk(8), {f"{NVME}/nvme8/state": "dead\n"}, {"sys/block/nvme8n1/ro": "1\n"}, {"proc/mdstat": STRIPE_OF_7}],
)
@pytest.mark.parametrize("phase", probes.PHASES)
def test_without_scratch_folders_a_lost_disk_is_a_note(tmp_path, files, phase):
    told = here(tmp_path, healthy() | files, phase=phase, scratch=())
    assert {verdict for _, verdict, *_ in found(told)} <= {WARN}


@pytest.mark.parametrize("phase", probes.PHASES)
def test_a_type_that_nobody_knows_is_not_compared(tmp_path, phase):
    files = healthy("p9.48xlarge") | {f"{CPU}/online": "0-3\n", f"{CPU}/present": "0-3\n"} | meminfo(MemTotal=4 << 20)
    files |= unit("nvidia-fabricmanager", "failed") | without_disk(1)
    assert [one for one in found(here(tmp_path, files, phase=phase)) if one[1] != WARN] == []


def test_disks_of_a_type_without_a_figure_are_not_counted(tmp_path):
    assert catalogue.host("p6e-gb200.36xlarge").nvme_count is None
    files = healthy("p6e-gb200.36xlarge")
    assert not any("nvme3" in name for name in files)
    assert found(here(tmp_path, files, phase="health")) == []


def test_what_is_not_there_says_nothing(tmp_path):
    only = {"sys/class/dmi/id/product_name": f"{P5}\n"}
    for phase in probes.PHASES:
        assert found(here(tmp_path, only, phase=phase)) == []


def test_a_job_that_runs_is_left_alone(tmp_path):
    group = "/system.slice/slurmstepd.scope/job_41/step_batch/user/task_0"
    files = healthy() | NO_JOB | job(41, (77, 78)) | stepd(60, 41)
    files |= process(77, "python3", group=group) | process(78, "python3", "D", group=group, **DEEP)
    for phase in ("prolog", "health"):
        assert found(here(tmp_path, files, phase=phase, job_id="55")) == []


def test_a_user_cannot_make_it_look_as_if_a_job_ran_here(tmp_path):
    """Anybody may call a program slurmstepd and give it a step's words; root alone may start it."""
    left = healthy() | NO_JOB | job(41, (77,)) | process(77, "python3", group="/system.slice/slurmstepd.scope/job_41")
    faked = process(60, "slurmstepd", uid=1000) | {"proc/60/cmdline": "slurmstepd: [41.0]\0"}
    bad = [("process.leftover", WARN, "node", "warn")]
    assert found(here(tmp_path / "alone", left, phase="prolog", job_id="7")) == bad
    assert found(here(tmp_path / "faked", left | faked, phase="prolog", job_id="7")) == bad
    assert found(here(tmp_path / "real", left | stepd(60, 41), phase="prolog", job_id="7")) == []


def test_a_process_that_ran_meanwhile_only_waits_for_its_disk(tmp_path, monkeypatch):
    told = here(tmp_path, healthy() | NO_JOB | process(77, "python3", "D", **DEEP), phase="health")

    def runs(_seconds: float) -> None:
        path = tmp_path / "root/proc/77/status"
        path.write_text(path.read_text().replace("switches:\t7", "switches:\t8"))

    monkeypatch.setattr(system_jobs.time, "sleep", runs)
    assert found(told) == []


def test_what_the_job_of_this_epilog_left_is_its_own(tmp_path):
    files = (
        healthy() | NO_JOB | job(7, (77,)) | process(77, "python3", group="/system.slice/slurmstepd.scope/job_7/step_0")
    )
    told = here(tmp_path, files, phase="epilog", job_id="7", window=(1.0, 2.0))
    assert found(told) == [("process.leftover", WARN, "node", "warn")]
    assert "job 7, which is over" in look(told).items[0].finding.evidence[0]
    # In its prolog, what runs in its group may be Slurm's own (PrologFlags=RunInJob).
    assert found(here(tmp_path, files, phase="prolog", job_id="7")) == []


def test_control_groups_of_version_1(tmp_path):
    base = "sys/fs/cgroup/freezer/slurm/uid_1000"
    files = healthy() | {"sys/fs/cgroup/freezer/slurm/tasks": "", f"{base}/job_41/step_0/cgroup.procs": "77\n"}
    files |= process(77, "python3")
    assert found(here(tmp_path, files, phase="prolog", job_id="7")) == [("process.leftover", WARN, "node", "warn")]
    assert found(here(tmp_path, files | stepd(60, 41), phase="prolog", job_id="7")) == []


@pytest.mark.parametrize("name", [one for one in TYPES if not catalogue.has_nvswitch(one)])
def test_a_fabric_manager_that_the_type_does_not_need_may_rest(tmp_path, name):
    files = healthy(name) | unit("nvidia-fabricmanager", "failed")
    assert [one for one in found(here(tmp_path, files, phase="health")) if "fabric" in one[0]] == []


def test_a_service_that_nobody_starts_at_boot_is_not_missed(tmp_path):
    """Slurm authenticates by itself there, and munge is only installed."""
    files = healthy() | unit("munge", "inactive", enabled="disabled")
    assert found(here(tmp_path, files, phase="health")) == []
    assert found(here(tmp_path, healthy() | unit("munge", "inactive"), phase="health")) == [
        ("service.munge-down", FAIL, "node", "drain")
    ]
    files = healthy() | unit("nvidia-fabricmanager", "inactive", enabled="disabled")
    assert found(here(tmp_path, files, phase="health")) == [("service.fabricmanager-down", FAIL, "node", "drain")]


def test_a_machine_that_has_just_booted_may_wait_for_its_services():
    texts = [
        unit("nvidia-fabricmanager", state)["etc/fmslurm-lab/systemctl-show.txt"] for state in ("inactive", "failed")
    ]
    judged = [
        [item.verdict for item in system_services.judge(text, P5, frozenset(), munge_answers=False, booting=booting)]
        for text in texts
        for booting in (True, False)
    ]
    assert judged == [[], [FAIL], [FAIL], [FAIL]]


def test_imex_that_is_started_for_each_job_convicts_nobody(tmp_path):
    name = "p6e-gb200.36xlarge"
    text = healthy(name)["etc/fmslurm-lab/systemctl-show.txt"]
    block = next(part for part in text.split("\n\n") if "Id=nvidia-imex" in part)
    files = healthy(name) | {
        "etc/fmslurm-lab/systemctl-show.txt": text.replace(block, block.replace("State=active", "State=inactive"))
    }
    assert found(here(tmp_path, files, phase="health")) == [("service.imex-down", WARN, "node", "drain")]


def test_a_service_that_runs_without_systemd_is_up(tmp_path):
    files = healthy() | unit("nvidia-fabricmanager", "inactive", "not-found") | process(9, "nv-fabricmanage", uid=0)
    assert found(here(tmp_path, files, phase="health")) == []
    files = healthy() | unit("munge", "failed") | process(9, "munged", uid=998)
    assert found(here(tmp_path, files, phase="health")) == []


def test_views_that_are_read_only_by_design_are_no_fault(tmp_path):
    lines = healthy()["proc/self/mountinfo"]
    lines += "90 27 259:1 / /opt/ro ro,relatime shared:1 - xfs /dev/nvme0n1p1 rw,attr2\n"  # a bind mount
    lines += "91 27 0:80 / /sw ro,relatime shared:1 - nfs4 10.0.0.1:/sw ro,vers=4.1\n"
    lines += "92 27 0:81 / /merged ro,relatime - overlay overlay ro,lowerdir=/a\n"
    for phase in probes.PHASES:
        told = here(tmp_path, healthy() | {"proc/self/mountinfo": lines}, phase=phase)
        assert found(told) == []


def test_scratch_and_lustre_are_tried_apart_and_not_told_twice(tmp_path):
    lines = healthy()["proc/self/mountinfo"].replace("- xfs /dev/md0 rw", "- xfs /dev/md0 ro")
    lines = lines.replace("- lustre 198.18.255.254@tcp:/fsxlab rw", "- lustre 198.18.255.254@tcp:/fsxlab ro")
    for phase in probes.PHASES:
        assert found(here(tmp_path, healthy() | {"proc/self/mountinfo": lines}, phase=phase)) == []


def test_each_row_of_the_list_has_a_finding_in_the_table_above():
    made = {row[2][0] for row in BAD} | {"memory.many-corrected", "clock.jumped", "clock.impossible"}
    made |= {"disk.leftover"}  # in the tests of hostile files
    made |= {source.id for source in unread_rules.SOURCES}  # in the tests of files that cannot be read
    listed = [row.id for row in system_checks.CHECKS]
    assert [id_ for id_ in listed if not any(one.startswith(id_) for one in made)] == []
    assert [one for one in made if not any(one.startswith(id_) for id_ in listed)] == []


def test_the_labs_files_are_few_and_shared(tmp_path):
    hardware_host.build(tmp_path, catalogue.CATALOGUE[P5], MOUNTS)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) < 100
    assert len({path.stat().st_ino for path in files}) < 60

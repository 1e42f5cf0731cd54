"""Evidence is there before a drain, is judged again as it was, fits, hides what users wrote, and never holds a hook."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from simulated_node import ROW, Node, csv, folders

from slurm_ext.gate import local, replay
from slurm_ext.gate.model import decisive
from slurm_ext.hooks import bundle, bundle_earlier, evidence, evidence_mask, evidence_read
from slurm_ext.hooks.environment import HookJob
from slurm_ext.lab import hardware
from slurm_ext.verdict import Finding

JOB = HookJob("77", "c", 0, "n0", uid=1000, gpu_ids=("0", "1"))

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root, and trust only what root owns")


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "node")


def look(node: Node, phase: str = "prolog") -> local.Look:
    return local.look(node.settings, "n0", phase=phase, job_window=None, deadline_s=90.0)


def save(node: Node, seen: local.Look | None = None, **more: object) -> Path:
    """Look, save with time enough for a busy machine, and return the bundle."""
    path = bundle.save(node.settings, JOB, "n0", seen or look(node), **{"deadline_s": 60.0, **more})
    return Path(path) if path else Path("/nonexistent")


def told(path: Path) -> dict[str, object]:
    return json.loads((path / "context.json").read_text())["bundle"]


def _efa_gone(node: Node) -> None:
    gone = sorted((node.root / "sys/class/infiniband").iterdir())[0]
    gone.unlink() if gone.is_symlink() else shutil.rmtree(gone)


def _disk_gone(node: Node) -> None:
    node.gate(nvme_dirs=(str(node.folder / "nvme"),))
    shutil.rmtree(node.root / "sys/class/nvme/nvme3")
    shutil.rmtree(node.root / "sys/block/nvme3n1")


def _disk_dead(node: Node) -> None:
    node.gate(nvme_dirs=(str(node.folder / "nvme"),))
    node.write("sys/class/nvme/nvme3/state", "dead\n")


def _read_only(node: Node) -> None:
    mounts = (node.root / "proc/self/mountinfo").read_text()
    node.write(
        "proc/self/mountinfo",
        mounts + "99 1 259:0 / /data rw,relatime - ext4 /dev/nvme0n1p9 ro,errors=remount-ro\n",
    )


LOST = "Unable to determine the device handle for GPU0: 0000:53:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
FAULTS = {
    "gpu.lost": lambda node: node.smi(LOST, code=15),
    "gpu.row-remap-failure": lambda node: node.smi(csv({(3, "remapped_rows.failure"): "1"})),
    "gpu.recovery-action": lambda node: node.smi(csv({(3, "gpu_recovery_action"): "Reboot"})),
    "gpu.ecc-uncorrected": lambda node: node.smi(csv({(3, "ecc.errors.uncorrected.volatile.total"): "2"})),
    "gpu.missing": lambda node: node.smi(csv(gpus=7)),
    "gpu.xid-79": lambda node: node.kernel(
        "NVRM: Xid (PCI:0000:64:00): 79, pid=1234, name=secret_model, GPU has fallen off the bus."
    ),
    "nvswitch.sxid-20034": lambda node: node.kernel(
        "nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    ),
    "efa.driver-not-bound": _efa_gone,
    "disk.scratch-missing": lambda node: node.gate(nvme_dirs=(str(node.folder / "gone"),)),
    "disk.scratch-full": lambda node: node.gate(nvme_dirs=(str(node.folder / "nvme"),), min_free_percent=100.0),
    "disk.nvme-missing": _disk_gone,
    "disk.dead": _disk_dead,
    "fs.not-mounted": lambda node: node.gate(lustre_mounts=(str(node.folder / "nvme"),)),
    "fs.read-only": _read_only,
    "memory.dimm-uncorrected": lambda node: node.write("sys/devices/system/edac/mc/mc0/ue_count", "3\n"),
}


def test_a_healthy_node_has_no_bundle(node):
    seen = look(node)
    assert seen.verdict.verdict == "pass"
    assert bundle.save(node.settings, JOB, "n0", seen) == ""
    assert not (node.folder / "share/evidence").exists()


@pytest.mark.parametrize("id_", FAULTS)
def test_a_replay_of_the_bundle_finds_what_convicted_the_node(node, id_):
    FAULTS[id_](node)
    seen = look(node)
    found = decisive(seen.verdict)
    assert (seen.verdict.verdict, found.id) == ("fail", id_), seen.verdict
    path = save(node, seen)
    assert path.parent == node.folder / "share/evidence/n0"
    assert path.name.endswith(f"Z-{id_}")
    assert told(path)["replay"] == "same"
    again = replay.judge(str(path))
    assert again.verdict == "fail"
    assert (found.id, found.target, found.action) in {(one.id, one.target, one.action) for one in again.findings}


def test_what_a_bundle_says_of_itself(node):
    FAULTS["gpu.xid-79"](node)
    path = save(node)
    about = told(path)
    assert (about["node"], about["instance_id"], about["job"]["id"]) == ("n0", "i-0123456789abcdef0", "77")
    assert about["finding"]["id"] == "gpu.xid-79"
    case = json.loads((path / "case.json").read_text())
    assert "expected" not in case
    assert (case["group"], case["instance_type"]) == ("kernel", "p5.48xlarge")
    for name in (*case["files"].values(), *case["also"].values()):
        assert (path / name).stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(path)) == sorted(
        {"case.json", *case["files"].values(), *case["also"].values()}
    )  # what lies there is listed


def test_names_that_users_chose_are_hidden_unless_the_site_says_otherwise(node):
    FAULTS["gpu.xid-79"](node)
    seen = look(node)
    data = {"gate": {"reason": "NVRM: Xid (PCI:0000:64:00): 79, pid=1, name=secret_model", "x": ["/home/alice/a"]}}
    path = save(node, seen, data=data)
    whole = "".join(file.read_text() for file in path.iterdir())
    assert "secret_model" not in whole
    assert "alice" not in whole
    assert json.loads((path / json.loads((path / "case.json").read_text())["also"]["more measured"]).read_text())
    shutil.rmtree(path)
    node.settings = node.settings._replace(observe=node.settings.observe._replace(mask=False))
    assert "secret_model" in "".join(file.read_text() for file in save(node, seen, data=data).iterdir())


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        (
            "NVRM: Xid (PCI:0000:64:00): 31, pid=7, name=my prog, Ch 8, MMU",
            "NVRM: Xid (PCI:0000:64:00): 31, pid=7, name=-, Ch 8, MMU",
        ),
        ("python3[12]: segfault at 0 ip 1", "-[12]: segfault at 0 ip 1"),
        ("Out of memory: Killed process 9 (train.py) total-vm", "Out of memory: Killed process 9 (-) total-vm"),
        ("oom-kill:x,task=py,pid=3,uid=1000", "oom-kill:x,task=-,pid=3,uid=-"),
        ("CPU: 1 PID: 3 Comm: python3 Not tainted", "CPU: 1 PID: 3 Comm: - Not tainted"),
        ("INFO: task python:12 blocked for more than 120 s", "INFO: task -:12 blocked for more than 120 s"),
        ("10.0.0.1:/x /home/alice/data nfs4", "10.0.0.1:/x /home/-/data nfs4"),
        ("/memory/slurm/uid_1000/job_7", "/memory/slurm/uid_-/job_7"),
        ("//s/x /mnt cifs username=u,password=geheim,rw", "//s/x /mnt cifs username=u,password=-,rw"),
        ("nvme nvme1: I/O 3 QID 4 timeout, aborting", "nvme nvme1: I/O 3 QID 4 timeout, aborting"),
    ],
)
def test_what_is_hidden_and_what_is_not(line, masked):
    assert evidence_mask.mask(line) == masked
    assert json.loads(json.dumps(evidence_mask.mask_all({"a": [line]}))) == {"a": [masked]}


def test_what_grew_over_a_job_is_replayed_from_both_readings(node):
    counters = "clocks_event_reasons_counters.hw_thermal_slowdown"
    began = look(node)
    kept = {**began.kept, "gpu": {**began.kept["gpu"], "at_s": time.time() - 600}}
    node.smi(csv({(3, counters): "400000000 us"}))
    of_job = local.Job("77", 1000, ("3",), kept)
    seen = local.look(node.settings, "n0", phase="epilog", job_window=None, deadline_s=90.0, job=of_job)
    found = decisive(seen.verdict)
    assert (found.id, found.target, found.action) == ("gpu.hw-thermal", "gpu:3", "drain")
    path = save(node, seen, before=kept)
    assert told(path)["replay"] == "same"
    assert (replay.judge(str(path)).verdict, replay.judge(str(path)).rule) == ("fail", "gpu.hw-thermal")
    shutil.rmtree(path)
    assert told(save(node, seen))["replay"] != "same"  # with the last reading alone nobody can tell


def test_the_state_of_lustre_is_kept(node):
    shutil.rmtree(node.root)
    hardware.build_root(node.root, ROW, "n0", "i-0123456789abcdef0", {"/fsx": "lustre"})
    (state,) = node.root.glob("proc/fs/lustre/osc/*OST0000*/state")
    said = state.read_text()
    node.write(str(state.relative_to(node.root)), said.replace("current_state: FULL", "current_state: DISCONN"))
    seen = look(node)
    path = save(node, seen, finding=next(one for one in seen.verdict.findings if one.id == "lustre.import-bad"))
    assert (told(path)["replay"], json.loads((path / "case.json").read_text())["group"]) == ("same", "lustre")


def test_a_burn_in_is_told_by_what_it_measured(node):
    finding = Finding("burnin.slow", "node:n0", "drain", ("0.1 GB/s",))
    path = save(node, finding=finding, data={"burnin": {"busbw_gbs": 0.1}})
    assert path.name.endswith("-burnin.slow")
    assert json.loads((path / "measured.json").read_text())["burnin"] == {"busbw_gbs": 0.1}
    assert replay.judge(str(path)).verdict == "unknown"
    assert "also-gpu-smi_csv.csv" in os.listdir(path)


@pytest.fixture
def small(tmp_path):
    """A file system of 64 KiB, or none that can be written, in place of a folder."""
    mounted: list[Path] = []

    def mount(folder: Path, options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no mount here: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("options", ["size=8k,mode=755", "ro,mode=755"], ids=["full", "read-only"])
def test_a_share_that_takes_nothing_leaves_it_on_the_node_and_says_so(node, small, options):
    FAULTS["gpu.xid-79"](node)
    small(node.folder / "share", options)
    with contextlib.suppress(OSError):
        (node.folder / "share/ledger").mkdir(mode=0o755)
    path = save(node)
    assert path.parent == node.folder / "state/evidence"
    assert replay.judge(str(path)).verdict == "fail"
    assert "the share did not take it" in bundle.words(str(path), node.settings.site.share)
    assert not [name for name in os.listdir(node.folder / "share") if name.startswith(".")]


def test_with_room_nowhere_the_drain_goes_on_without(node, small):
    FAULTS["gpu.xid-79"](node)
    seen = look(node)
    for name in ("share", "state"):
        small(node.folder / name, "size=8k,mode=755")
    assert bundle.save(node.settings, JOB, "n0", seen, deadline_s=60.0) == ""
    assert "not saved" in bundle.words("", "")


def test_a_share_that_hangs_is_given_up_within_the_deadline(node, monkeypatch):
    FAULTS["gpu.xid-79"](node)
    seen = look(node)
    monkeypatch.setattr(bundle.shared, "is_share", lambda share: signal.pause())
    started = time.monotonic()
    path = bundle.save(node.settings, JOB, "n0", seen, deadline_s=4.0)
    assert time.monotonic() - started < 60.0
    assert Path(path).parent == node.folder / "state/evidence"


def test_a_tree_that_hangs_costs_its_own_part_alone(node, monkeypatch):
    FAULTS["gpu.xid-79"](node)
    seen = look(node)
    monkeypatch.setattr(evidence_read, "_efa", lambda root: signal.pause())
    path = Path(bundle.save(node.settings, JOB, "n0", seen, deadline_s=40.0))
    assert told(path)["replay"] == "same"
    assert "efa tree" not in json.loads((path / "case.json").read_text())["also"]


def test_an_error_of_ours_is_no_reason_not_to_drain(node, monkeypatch):
    FAULTS["gpu.xid-79"](node)
    seen = look(node)
    monkeypatch.setattr(evidence, "choose", lambda *args, **named: 1 / 0)
    assert bundle.save(node.settings, JOB, "n0", seen) == ""


def test_a_share_that_is_not_there_or_not_roots_is_not_written(node):
    FAULTS["gpu.xid-79"](node)
    seen = look(node)
    (node.folder / "share").chmod(0o777)
    assert save(node, seen).parent == node.folder / "state/evidence"
    (node.folder / "share/ledger").rmdir()
    (node.folder / "share").rmdir()
    assert save(node, seen).parent == node.folder / "state/evidence"
    assert not (node.folder / "share").exists()


def test_the_empty_folder_below_an_unmounted_share_keeps_no_evidence(node):
    FAULTS["gpu.xid-79"](node)
    (node.folder / "share/ledger").rmdir()
    path = save(node)
    assert path.parent == node.folder / "state/evidence"
    assert "on the node" in bundle.words(str(path), node.settings.site.share)
    assert os.listdir(node.folder / "share") == []


def test_links_planted_on_the_share_lead_nowhere(node, tmp_path):
    FAULTS["gpu.xid-79"](node)
    (tmp_path / "elsewhere").mkdir(mode=0o777)
    os.chown(tmp_path / "elsewhere", 1000, 1000)
    (node.folder / "share/evidence").mkdir(mode=0o755)
    (node.folder / "share/evidence/n0").symlink_to(tmp_path / "elsewhere")
    assert save(node).parent == node.folder / "state/evidence"
    assert os.listdir(tmp_path / "elsewhere") == []


def test_it_fits(node):
    line = "nvme nvme1: I/O 3 QID 4 timeout, aborting " + "x" * 900
    (node.root / "var/log/kmsg.log").write_text(
        "".join(f"4,{n},{n * 1000},-;{line}\n" for n in range(4000))
        + "4,4001,9000000,-;NVRM: Xid (PCI:0000:64:00): 79, pid=1, GPU has fallen off the bus.\n"
    )
    path = save(node)
    assert sum(file.stat().st_size for file in path.iterdir()) <= bundle.BUNDLE_BYTES
    assert told(path)["cut"]
    assert replay.judge(str(path)).rule == "gpu.xid-79"  # the newest lines stay


def test_old_bundles_and_too_many_go_and_nothing_else(node):
    FAULTS["gpu.xid-79"](node)
    above = node.folder / "share/evidence/n0"
    names = [f"2020010{n}T000000Z-gpu.old" for n in range(1, 6)]
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - 60))
    names += [f"{now}-x-{n:02}" for n in range(bundle.KEPT)]
    for name in (*names, "notes", f".20200101T000000Z-gpu.x.{'0' * 12}"):
        (above / name).mkdir(parents=True, mode=0o755)
        (above / name / "case.json").write_text("{}")
    path = save(node)
    left = [found.name for found in folders(above)]
    assert "notes" in left
    assert path.name in left
    assert not [name for name in left if name.startswith(("2020", ".2020"))]
    assert len(left) == bundle.KEPT + 1


def test_one_incident_has_one_bundle(node):
    FAULTS["gpu.ecc-uncorrected"](node)
    first = save(node)
    assert {save(node), save(node, look(node, "health")), save(node, look(node, "epilog"))} == {first}
    assert [found.name for found in folders(node.folder / "share/evidence/n0")] == [first.name]
    node.smi(csv({(4, "ecc.errors.uncorrected.volatile.total"): "2"}))
    other = save(node)
    assert other.name != first.name, "another GPU"
    node.write("proc/sys/kernel/random/boot_id", "0c" * 16 + "\n")
    third = save(node)
    assert third not in (first, other), "another boot"
    late = third.with_name(time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - 700)) + "-gpu.ecc-uncorrected")
    third.rename(late)
    assert save(node) not in (first, other, late), "ten minutes later"


def test_a_bundle_that_is_not_judged_as_it_was_keeps_no_better_one_away(node):
    FAULTS["gpu.ecc-uncorrected"](node)
    first = save(node)
    said = (first / "context.json").read_text()
    (first / "context.json").write_text(said.replace('"replay": "same"', '"replay": "not tried"'))
    assert told(first)["replay"] == "not tried"
    better = save(node)
    assert better != first
    assert save(node) == better


def test_an_earlier_bundle_that_says_nothing_of_itself_is_no_reason_to_save_none(node):
    FAULTS["gpu.ecc-uncorrected"](node)
    first = save(node)
    for text in ("", "{", '{"bundle": {"finding": {"id": 1}}}', "[]"):
        (first / "context.json").write_text(text)
        again = save(node)
        assert again != first
        shutil.rmtree(again)
    (first / "context.json").unlink()
    (first / "context.json").symlink_to("/etc/passwd")
    assert save(node) != first


def test_two_hooks_that_save_in_one_second_do_not_meet(node, monkeypatch):
    monkeypatch.setattr(bundle_earlier, "find", lambda *_: "")
    FAULTS["gpu.xid-79"](node)
    seen = look(node)
    paths = {save(node, seen) for _ in range(3)}
    assert len(paths) == 3
    assert all(replay.judge(str(path)).rule == "gpu.xid-79" for path in paths)


def test_in_the_health_check_there_is_no_job(node):
    FAULTS["gpu.xid-79"](node)
    path = Path(bundle.save(node.settings, None, "n0", look(node, "health"), deadline_s=60.0))
    assert told(path)["job"] is None

"""The live look, on file trees below a root and with a stand-in nvidia-smi that is a program like any other."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.config.model import Settings
from slurm_ext.gate import local, rules
from slurm_ext.gate.model import Facts, Probe, conclude, decisive
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

ROW = "{n}, 00000000:{b:02X}:00.0, Enabled, Disabled, 0, No, No, 16, 16, P0, None"
TABLE = "\n".join(
    [
        "index, pci.bus_id, persistence_mode, mig.mode.current, ecc.errors.uncorrected.volatile.total, remapped_rows.pending, "
        "remapped_rows.failure, pcie.link.width.current, pcie.link.width.max, pstate, gpu_recovery_action",
        *(ROW.format(n=n, b=0x53 + n) for n in range(8)),
    ]
)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def node(tmp_path):
    """Return a healthy p5.48xlarge below a root of its own, and the settings that look at it."""
    root = tmp_path / "root"
    (root / "var/log").mkdir(parents=True)
    (root / "var/log/kmsg.log").write_text("6,0,0,-;Linux version 6.8.0\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "etc/fmslurm-lab").mkdir(parents=True)
    (root / "etc/fmslurm-lab/chronyc-tracking.txt").write_text("Leap status     : Normal\n")
    (root / "table.csv").write_text(TABLE + "\n")
    program(root / "usr/bin/nvidia-smi", f"#!/bin/sh\nexec cat {root}/table.csv\n")
    for number in range(32):
        device = root / f"sys/class/infiniband/rdmap{number}s0/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1d0f\n")
    fs = tmp_path / "lustre"
    fs.mkdir()
    (root / "proc/self/mounts").write_text(f"/dev/root / xfs rw 0 0\n198.18.255.254@tcp:/fsx {fs} lustre rw 0 0\n")
    scratch = tmp_path / "nvme"
    scratch.mkdir()
    plain = Settings()
    return plain._replace(
        site=plain.site._replace(root=str(root), instance_type="p5.48xlarge"),
        gate=plain.gate._replace(nvme_dirs=(str(scratch),), lustre_mounts=(str(fs),), min_free_percent=0.0),
    )


def look(settings, deadline_s=60.0, phase="prolog", window=None):
    return local.look(settings, "n0", phase=phase, job_window=window, deadline_s=deadline_s)


def test_a_healthy_node_passes(node):
    seen = look(node)
    assert seen.verdict.verdict == PASS, seen.verdict
    assert 0 < seen.seconds < 60.0
    assert "8 GPUs, 32 EFA devices" in seen.words()


def kernel(node, *texts):
    boot_us = time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6
    with open(os.path.join(node.site.root, "var/log/kmsg.log"), "a") as stream:
        for number, text in enumerate(texts, 1):
            stream.write(f"3,{number},{boot_us:.0f},-;{text}\n")


def test_an_xid_of_this_boot_convicts_and_is_evidence_in_the_jobs_window(node):
    line = "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    kernel(node, line)
    seen = look(node, phase="epilog", window=(time.time() - 60, time.time() + 1))
    finding = decisive(seen.verdict)
    assert seen.verdict.verdict == FAIL
    assert (finding.id, finding.target, finding.action) == ("gpu.xid-79", "gpu@0000:53:00", "reboot")
    assert seen.in_window == (line,)
    earlier = look(node, phase="epilog", window=(time.time() - 900, time.time() - 800))
    assert line not in earlier.in_window  # a machine that was started so lately has said other things then


def test_a_lost_gpu(node):
    root = node.site.root
    program(
        Path(root, "usr/bin/nvidia-smi"),
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU 0000:B9:00.0: GPU is lost.  Reboot' >&2\nexit 15\n",
    )
    seen = look(node)
    assert (seen.verdict.verdict, seen.verdict.rule) == (FAIL, "gpu.lost")


def test_a_tool_that_hangs_and_ignores_signals_is_unknown_in_time_and_leaves_nothing(node):
    pid_file = Path(node.site.root, "pid")
    program(
        Path(node.site.root, "usr/bin/nvidia-smi"),
        f"#!/bin/sh\ntrap '' TERM INT HUP\necho $$ > {pid_file}.$$\nmv {pid_file}.$$ {pid_file}\nwhile :; do sleep 60; done\n",
    )
    started = time.monotonic()
    seen = look(node, deadline_s=3.0)
    assert time.monotonic() - started < 40.0
    assert (seen.verdict.verdict, seen.verdict.rule) == (UNKNOWN, "gpu.smi-timeout")
    if pid_file.exists():  # else it was ended before it came so far
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


def test_an_old_driver_is_asked_again_without_the_new_field(node):
    old = "\n".join(line.rpartition(",")[0] for line in TABLE.splitlines())
    Path(node.site.root, "old.csv").write_text(old + "\n")
    program(
        Path(node.site.root, "usr/bin/nvidia-smi"),
        '#!/bin/sh\ncase "$*" in *gpu_recovery_action*) '
        'echo "Field \\"gpu_recovery_action\\" is not a valid field to query."; exit 2;; esac\n'
        f"exec cat {node.site.root}/old.csv\n",
    )
    assert look(node).verdict.verdict == PASS


def test_a_missing_tool_is_no_fault_of_the_node(node, monkeypatch):
    os.unlink(os.path.join(node.site.root, "usr/bin/nvidia-smi"))
    monkeypatch.setattr("slurm_ext.command.smi_path", lambda root: "/nonexistent/nvidia-smi")
    assert look(node).verdict.verdict == UNKNOWN
    plain = node._replace(site=node.site._replace(instance_type="c5.large"))
    assert look(plain).verdict.verdict == PASS


def test_disabled_findings_are_gone(node):
    kernel(node, "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.")
    off = node._replace(gate=node.gate._replace(disabled=("gpu.xid-",)))
    assert look(off).verdict.verdict == PASS


def facts(**change):
    return Facts(smi=None, kernel=(), efa_devices=32)._replace(**change)


def judge(settings, row="p5.48xlarge", **change):
    return conclude(rules.judge(facts(**change), settings, catalogue.find(row)))


@pytest.mark.parametrize(
    ("probe", "verdict", "rule"),
    [
        (Probe("/s", "", 50.0), PASS, "gate.local"),
        (Probe("/s", "", 0.5), FAIL, "disk.scratch-full"),
        (Probe("/s", "ENOSPC", 0.0), FAIL, "disk.scratch-full"),
        (Probe("/s", "ENOENT"), FAIL, "disk.scratch-missing"),
        (Probe("/s", "EROFS", 50.0), FAIL, "disk.scratch-read-only"),
        (Probe("/s", "EIO"), FAIL, "disk.scratch-error"),
        (Probe("/s", "EACCES"), UNKNOWN, "disk.scratch-unreadable"),
        (Probe("/s", "timeout", None, 10.0), UNKNOWN, "disk.scratch-hang"),
    ],
)
def test_scratch(probe, verdict, rule):
    found = conclude(rules.judge(facts(scratch=(probe,)), Settings(), None), rule="gate.local")
    assert (found.verdict, found.rule) == (verdict, rule)


@pytest.mark.parametrize(
    ("probe", "mounts", "verdict", "rule"),
    [
        (Probe("/fsx", "", 50.0), ("a@tcp:/fsx /fsx lustre rw 0 0",), PASS, "gate.local"),
        (Probe("/fsx", "", 50.0), ("/dev/root / ext4 rw 0 0",), FAIL, "fs.not-mounted"),
        (Probe("/fsx", "ESHUTDOWN"), ("a@tcp:/fsx /fsx lustre rw 0 0",), FAIL, "fs.stat-error"),
        (Probe("/fsx", "timeout", None, 10.0), ("a@tcp:/fsx /fsx lustre rw 0 0",), UNKNOWN, "fs.hang"),
        (Probe("/fsx", "", 50.0), None, UNKNOWN, "fs.mounts-unreadable"),
        (Probe("/fsx", "", 50.0), ("a@tcp:/fsx /fsx lustre ro 0 0",), WARN, "fs.read-only"),
        (Probe("/my fs", "", 50.0), ("a@tcp:/fsx /my\\040fs lustre rw 0 0",), PASS, "gate.local"),
    ],
)
def test_lustre(probe, mounts, verdict, rule):
    found = conclude(rules.judge(facts(lustre=(probe,), mounts=mounts), Settings(), None), rule="gate.local")
    assert (found.verdict, found.rule) == (verdict, rule)


def test_a_clock_without_a_daemon_is_a_note_and_a_lost_log_holds_no_job():
    off = Settings()._replace(gate=Settings().gate._replace(disabled=("gpu.smi-absent",)))
    assert judge(off, clock_synchronised=False).verdict == WARN
    assert judge(off, kernel_lost=True).verdict == WARN
    assert judge(off, kernel=None).verdict == UNKNOWN


def test_the_real_machine_can_be_looked_at():
    seen = local.look(Settings(), "n0", phase="health", job_window=None, deadline_s=10.0)
    assert seen.facts.boot_id
    assert seen.facts.clock_synchronised in (True, False)
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL

"""What the kernel says of the machine around the GPUs: each line by its kind, and several lines of one event as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import kernel_host, kernel_log, kernel_rules
from slurm_ext.gate.model import conclude
from slurm_ext.verdict import VERDICTS

NODE_NOTE, NODE_WARN, NODE_REPLACE = ("pass", "node", "none"), ("warn", "node", "warn"), ("fail", "node", "replace")


def told(*texts):
    items = kernel_rules.judge([kernel_log.parse_line(f"4,{n},{n}000000,-;{t}") for n, t in enumerate(texts)])
    return sorted((item.verdict, item.finding.target, item.finding.action) for item in items)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvme nvme3: I/O 12 QID 5 timeout, reset controller", ("warn", "disk:nvme3", "warn")),
        (
            "nvme nvme3: I/O tag 12 (100c) opcode 0x2 QID 5 timeout, aborting req_op:READ",
            ("warn", "disk:nvme3", "warn"),
        ),
        (
            "nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
            ("warn", "disk:nvme3", "warn"),
        ),
        ("nvme nvme3: Device not ready; aborting reset, CSTS=0x1", ("fail", "disk:nvme3", "replace")),
        (
            "I/O error, dev nvme3n1, sector 8814 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2",
            ("fail", "disk:nvme3n1", "replace"),
        ),
        ("blk_update_request: critical medium error, dev nvme3n1, sector 88", ("fail", "disk:nvme3n1", "replace")),
        ("Buffer I/O error on dev nvme3n1, logical block 7, async page read", ("fail", "disk:nvme3n1", "replace")),
        ("block nvme1n1: no available path - failing I/O", ("fail", "disk:nvme1n1", "replace")),
        ("md/raid0:md0: Disk failure on nvme3n1 detected, failing array.", ("fail", "disk:md0", "replace")),
        ("md/raid1:md127: Disk failure on nvme0n1p2, disabling device.", ("warn", "disk:md127", "warn")),
        ("EXT4-fs (md0): Remounting filesystem read-only", ("fail", "disk:md0", "reboot")),
        ("EXT4-fs error (device md0): Remounting filesystem read-only", ("fail", "disk:md0", "reboot")),
        ("Aborting journal on device md0-8.", ("fail", "disk:md0", "reboot")),
        (
            "XFS (nvme1n1): Corruption of in-memory data detected.  Shutting down filesystem",
            ("fail", "disk:nvme1n1", "reboot"),
        ),
        ("XFS (md0): Filesystem has been shut down due to log error (0x2).", ("fail", "disk:md0", "reboot")),
        ("BTRFS info (device nvme1n1): forced readonly", ("fail", "disk:nvme1n1", "reboot")),
        ("EXT4-fs error (device md0): ext4_find_entry:1463: inode #2: reading", ("warn", "disk:md0", "warn")),
        (
            "XFS (md0): Metadata CRC error detected at xfs_agf_read_verify, xfs_agf block 0x1",
            ("warn", "disk:md0", "warn"),
        ),
        ("EDAC MC4: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0", NODE_REPLACE),
        ("EDAC MC4: 1 CE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0", NODE_NOTE),
        ("mce: [Hardware Error]: Machine check events logged", NODE_NOTE),
        ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090", NODE_NOTE),
        ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400", NODE_REPLACE),
        ("[Hardware Error]: Corrected error, no action required.", NODE_NOTE),
        ("[Hardware Error]: Deferred error, no action required.", NODE_WARN),
        ("[Hardware Error]: Uncorrected, software restartable error.", NODE_REPLACE),
        ("{1}[Hardware Error]: event severity: corrected", NODE_NOTE),
        ("{1}[Hardware Error]: event severity: recoverable", NODE_WARN),
        ("{1}[Hardware Error]: event severity: fatal", NODE_REPLACE),
        ("Memory failure: 0x1f40a2: Killing python3:77 due to hardware memory corruption", NODE_REPLACE),
        ("Memory failure: 0x1f40a2: recovery action for dirty LRU page: Recovered", NODE_WARN),
        (
            "Task in /slurm/uid_7/job_4711/step_0 killed as a result of limit of /slurm/uid_7/job_4711",
            ("pass", "job:4711", "none"),
        ),
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/docker/3fc2,task=python3,pid=1,uid=0",
            NODE_NOTE,
        ),
        ("Out of memory: Killed process 123 (python3) total-vm:812330120kB, anon-rss:1kB", NODE_WARN),
        ("INFO: task python3:120331 blocked for more than 120 seconds.", NODE_WARN),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:120331]", NODE_WARN),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", NODE_WARN),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", ("warn", "node", "reboot")),
        ("mce: CPU12: Core temperature is above threshold, cpu clock is throttled (total events = 1)", NODE_WARN),
        ("VFS: file-max limit 1000000 reached", NODE_WARN),
        ("ena 0000:00:05.0 ens5: Keep alive watchdog timeout.", ("warn", "nic:ens5", "warn")),
        ("traps: python3[25] general protection fault ip:7f7c7 sp:7f7c1 error:0 in libc.so.6[7f7c+d3]", NODE_NOTE),
        (
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
            ("fail", "node", "reboot"),
        ),
        ("nvidia: probe of 0000:a4:00.0 failed with error -1", ("fail", "gpu@0000:a4:00", "reboot")),
        ("nvidia 0000:a4:00.0: probe with driver nvidia failed with error -1", ("fail", "gpu@0000:a4:00", "reboot")),
        (
            "nvidia 0000:b9:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
            ("fail", "gpu@0000:b9:00", "reboot"),
        ),
        (
            "nvidia 0000:b9:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, id=b900",
            ("warn", "gpu@0000:b9:00", "warn"),
        ),
        (
            "efa 0000:4f:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            ("pass", "efa:0000:4f:00.0", "none"),
        ),
        ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", ("fail", "gpu@0000:18:00", "reboot")),
    ],
)
def test_one_line(text, expected):
    assert told(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "I/O error, dev loop7, sector 0 op 0x0:(READ)",
        "EXT4-fs (nvme1n1): mounted filesystem with ordered data mode. Quota mode: none.",
        "XFS (md0): Ending clean mount",
        "nvme nvme3: 32/0/0 default/read/poll queues",
        "md/raid1:md127: Operation continuing on 1 devices.",
        "EDAC MC: Ver: 3.0.0",
        "mce: CPU supports 32 MCE banks",
        "MCE: In-kernel MCE decoding enabled.",
        "nfs: server fs01 not responding, still trying",
        "pcieport 0000:97:01.0: AER: Corrected error received: 0000:9c:00.0",
        "ena 0000:00:05.0: Elastic Network Adapter (ENA) found at mem 80004000, mac addr 0a:00:00:00:00:00",
        "NVRM: GPU at PCI:0000:53:00: GPU-7f54",
        "NVRM: The NVIDIA GPU driver is loaded",
        "systemd[1]: Finished Rotate log files; error, dev nvme3n1, sector 5",
        "python3 wrote: I/O error, dev nvme3n1, sector 8814",
    ],
)
def test_what_says_nothing_of_the_machine(text):
    assert told(text) == []


def test_a_gpu_that_left_the_bus_is_named_on_the_first_of_three_lines():
    lines = (
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert told(*lines) == [("fail", "gpu@0000:18:00", "reboot")]
    assert told(lines[0], *(line.replace("NVRM: ", "") for line in lines[1:])) == []
    assert told(lines[0].replace("0000:18:00.0", "18:00.0"), *lines[1:]) == [("fail", "gpu@0000:18:00", "reboot")]


USERS = ("loop3", "loop12p1", "nbd0", "zram0", "ram1", "sr0", "fuse", "dm-3", "vda1", "ubda", "nvme", "mdX", "md_x")
TURNED = (
    "EXT4-fs ({}): Remounting filesystem read-only",
    "EXT4-fs error (device {}): ext4_find_entry:1463: Remounting filesystem read-only",
    "EXT3-fs ({}): error: Remounting filesystem read-only",
    "F2FS-fs ({}): Remounting filesystem read-only",
    "Aborting journal on device {}-8.",
    "XFS ({}): Corruption of in-memory data (0x8) detected at x. Shutting down filesystem.",
    "XFS ({}): Filesystem has been shut down due to log error (0x2).",
    "BTRFS info (device {}): forced readonly",
    "BTRFS error (device {} state EA): x: forced readonly",
)


@pytest.mark.parametrize("line", TURNED)
def test_an_image_that_a_user_wrote_does_not_convict_the_node(line):
    for name in USERS:
        assert [item[0] for item in told(line.format(name))] in ([], ["warn"]), name
    for name in ("nvme1n1", "nvme1n1p2", "sda", "sda1", "xvdf", "md0", "md127p1"):
        assert told(line.format(name)) == [("fail", f"disk:{name}", "reboot")], name


def test_a_device_mapper_device_convicts_where_it_is_the_nodes_own():
    line = TURNED[0].format("dm-3")
    assert kernel_host.judge(line, ("dm-0",)).verdict == "warn"
    found = kernel_host.judge(line, ("dm-0", "dm-3"))
    assert (found.verdict, found.finding.id, found.finding.target) == ("fail", "disk.read-only", "disk:dm-3")


@pytest.mark.parametrize(
    ("status", "operation", "verdict"),
    [
        *(
            ("operation not supported", f" op {op} flags 0x800", "warn")
            for op in ("0x9:(WRITE_ZEROES)", "0x3:(DISCARD)")
        ),
        *(("critical target", f" op {op} flags 0x0", "warn") for op in ("0x3:(DISCARD)", "0x5:(SECURE_ERASE)")),
        *(("I/O", f" op {op}", "warn") for op in ("0x3:(DISCARD)", "0x9:(WRITE_ZEROES)", "0x", "0xd:(ZONE_RESET)")),
        *(("critical medium", f" op {op}", "fail") for op in ("0x0:(READ)", "0x1:(WRITE)", "0x2:(FLUSH)")),
        *((status, " op 0x1:(WRITE) flags 0x800", "fail") for status in ("I/O", "protection", "critical target")),
        *((status, "", "fail") for status in ("I/O", "critical medium", "protection")),
        *((status, "", "warn") for status in ("critical target", "operation not supported", "critical nexus")),
        ("operation not supported", " op 0x1:(WRITE)", "warn"),
        ("critical nexus", " op 0x1:(WRITE)", "warn"),
        ("critical space allocation", " op 0x1:(WRITE)", "warn"),
        ("device resource", " op 0x0:(READ)", "warn"),
    ],
)
@pytest.mark.parametrize(
    "form", ["blk_update_request: {} error, dev {}, sector 2048{}", "{} error, dev {}, sector 9{}"]
)
def test_a_request_convicts_by_what_was_asked_and_what_became_of_it(form, status, operation, verdict):
    action = "replace" if verdict == "fail" else "warn"
    for disk in ("nvme1n1", "sda", "xvdf"):
        assert told(form.format(status, disk, operation)) == [(verdict, f"disk:{disk}", action)]


def test_a_disk_that_dies_is_one_event_of_its_controller():
    assert told(
        "nvme nvme3: I/O 12 QID 5 timeout, reset controller",
        "nvme nvme3: Removing after probe failure status: -19",
        "I/O error, dev nvme3n1, sector 8814 op 0x1:(WRITE)",
        "Buffer I/O error on dev nvme3n1p1, logical block 7",
    ) == [("fail", "disk:nvme3", "replace")]
    assert told(
        "EXT4-fs error (device md0): x: Detected aborted journal", "EXT4-fs (md0): Remounting filesystem read-only"
    ) == [("fail", "disk:md0", "reboot")]
    assert told("nvme nvme3: I/O 1 QID 5 timeout, aborting", "nvme nvme30: I/O 1 QID 5 timeout, aborting") == [
        ("warn", "disk:nvme3", "warn"),
        ("warn", "disk:nvme30", "warn"),
    ]


def test_a_corrected_error_beside_one_that_was_not_is_no_news():
    assert told(
        "mce: [Hardware Error]: Machine check events logged",
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400",
    ) == [NODE_REPLACE]


def test_a_page_that_is_given_up_is_of_the_error_that_killed_a_program():
    lines = (
        "Memory failure: 0x1f40a2: Killing python3:77 due to hardware memory corruption",
        "Memory failure: 0x1f40a2: recovery action for dirty LRU page: Recovered",
    )
    assert told(*lines) == [NODE_REPLACE]
    assert told(lines[1]) == [NODE_WARN]


def test_an_efa_device_that_fell_silent_is_one_event():
    assert told(
        "infiniband rdmap79s0: Failed to process command REG_MR (opcode 7) comp_status 1 err -22",
        "infiniband rdmap79s0: The device didn't send any completion for admin cmd",
        "infiniband rdmap80s0: Failed to process command REG_MR (opcode 7) comp_status 1 err -22",
    ) == [("fail", "efa:rdmap79s0", "replace"), ("warn", "efa:rdmap80s0", "warn")]


LOST = "Lustre: fs-OST0002-osc-ffff90a1c0a8e000: Connection to fs-OST0002 (at 10.0.0.41@tcp) was lost; in progress operations wait"
BACK = "Lustre: fs-OST0002-osc-ffff90a1c0a8e000: Connection restored to fs-OST0002 (at 10.0.0.41@tcp)"
EVICTED = "LustreError: 167-0: fs-OST0002-osc-ffff90a1c0a8e000: This client was evicted by fs-OST0002; in progress operations fail."


def test_a_connection_of_lustre_that_came_back_is_history():
    assert told(LOST, BACK) == [("pass", "ost:fs-OST0002", "none")]
    assert told(LOST) == told(LOST, BACK, LOST) == [("warn", "ost:fs-OST0002", "warn")]
    assert told(BACK) == []
    assert told(LOST, EVICTED, BACK) == [("warn", "ost:fs-OST0002", "warn")]


BUG = "LustreError: 4412:0:(osc_cache.c:3095:osc_page_gang_lookup()) "


def test_an_assertion_of_lustre_that_failed_needs_a_reboot():
    assert told(f"{BUG}ASSERTION( ext != NULL ) failed: ", f"{BUG}LBUG") == [("fail", "node", "reboot")]
    assert told(f"{BUG}LBUG in another's words", "LBUG", "a program says LustreError: LBUG") == []


def test_a_carrier_that_is_lost_again_and_again_flaps():
    assert told(*["ens32: lost carrier"] * 2) == []
    assert told(*["mlx5_core 0000:9c:00.0 ib6: Link is Down"] * 3) == [("warn", "nic:ib6", "warn")]
    assert told(*["ena 0000:00:05.0 ens5: Link is Down"] * 4) == [("warn", "nic:ens5", "warn")]
    assert told(*["veth1a2b3c: lost carrier"] * 9, *["docker0: lost carrier"] * 9) == []


@given(st.lists(st.text()))
def test_whatever_the_kernel_says_is_judged(texts):
    items = [item for text in texts if (item := kernel_host.judge(text))] + kernel_host.judge_links(texts)
    assert conclude(kernel_host.one_event(items)).verdict in VERDICTS


@pytest.mark.parametrize(
    "part", ["nvme ", "EXT4-fs (", "XFS (md0): ", "Lustre: x-osc-", "rcu: INFO: ", "CPU 1 ", "[Hardware Error]: CPU 1"]
)
def test_long_lines_take_no_longer_than_their_length(part):
    text = part * 200_000
    kernel_host.judge(text)
    kernel_host.judge_links([text])

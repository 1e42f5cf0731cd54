"""What findings about the host, its clock, services, processes and EC2's own word mean. Table. Checked on 2026-11-30."""

from __future__ import annotations

from slurm_ext.gate import meanings_pages as page
from slurm_ext.gate.meanings_model import NO, UNKNOWN, YES, Meaning

_TIME = "`chronyc tracking`, `chronyc sources`; on EC2 the source 169.254.169.123 is always there."

MEANINGS: tuple[Meaning, ...] = (
    Meaning("host.socket-missing", "A whole processor is missing.", "replace", YES, (page.EC2_TYPES,)),
    Meaning(
        "host.cpu-count",
        "Fewer processors run than this type has: some may be turned off, or hyper-threading is.",
        "warn",
        NO,
        (page.EC2_TYPES,),
    ),
    Meaning("host.cpus-unreadable", "The number of processors could not be read.", "none", UNKNOWN),
    Meaning(
        "host.numa",
        "The machine has another number of memory regions (NUMA nodes) than its type.",
        "warn",
        NO,
        (page.EC2_TYPES,),
    ),
    Meaning("host.memory-missing", "Far less memory is here than this type has.", "replace", YES, (page.EC2_TYPES,)),
    Meaning(
        "host.memory-short",
        "Less memory is here than Slurm was told.",
        "warn",
        NO,
        (page.SLURM_CONF,),
        ("Correct RealMemory in slurm.conf, or find what reserves it.",),
    ),
    Meaning(
        "host.memory-held",
        "Memory is in use, and no job is here.",
        "warn",
        NO,
        (page.PROC,),
        ("`ps -eo rss,pid,user,cmd --sort -rss | head`; `df /dev/shm`.",),
    ),
    Meaning(
        "host.memory-poisoned", "The kernel took memory pages out of use after errors.", "warn", NO, (page.KERNEL_RAS,)
    ),
    Meaning(
        "host.memory-unreadable",
        "The table of memory (/proc/meminfo) cannot be read, or has another form.",
        "none",
        UNKNOWN,
    ),
    Meaning("host.load-unreadable", "The load (/proc/loadavg) is there and cannot be read.", "none", UNKNOWN),
    Meaning(
        "host.machine-checks-unreadable",
        "The counts of interrupts, machine checks among them (/proc/interrupts), are there and cannot be read.",
        "none",
        UNKNOWN,
    ),
    Meaning(
        "host.boot-id-unreadable",
        "The kernel's id of this boot is there and cannot be read: what was found on which boot is not known.",
        "none",
        UNKNOWN,
    ),
    Meaning(
        "memory.counters-unreadable",
        "The error counters of a memory controller are there and cannot be read.",
        "none",
        UNKNOWN,
    ),
    Meaning("clock.source-unreadable", "The name of the kernel's clock is there and cannot be read.", "none", UNKNOWN),
    Meaning("cgroup.unreadable", "The control groups of jobs are there and cannot be listed.", "none", UNKNOWN),
    Meaning("host.swapped", "Memory lies in swap: whatever comes back from there is slow.", "warn", NO, (page.PROC,)),
    Meaning(
        "host.machine-checks",
        "The processor reported hardware errors (machine checks) since boot.",
        "warn",
        NO,
        (page.KERNEL_RAS,),
    ),
    Meaning("clock.impossible", "The wall clock says a year that has passed long ago.", "warn", NO, (page.EC2_TIME,)),
    Meaning("clock.jumped", "The wall clock was set while the job ran.", "warn", NO, (page.EC2_TIME,)),
    Meaning(
        "clock.slow-source",
        "The kernel fell back to a slow clock: every look at the time costs much more.",
        "warn",
        NO,
        (page.EC2_TIME,),
    ),
    Meaning(
        "cgroup.leftover",
        "Many control groups of jobs that are over are still there.",
        "warn",
        NO,
        (page.SLURM_SCRIPTS,),
    ),
    Meaning("host.load", "The machine is busy, and no job is here.", "warn", NO, (page.PROC,)),
    Meaning("host.no-reference", "What the machine should have is not known.", "none", UNKNOWN, (page.EC2_TYPES,)),
    Meaning(
        "clock.unsynchronised",
        "No time daemon disciplines the clock: logs and certificates drift apart.",
        "warn",
        NO,
        (page.EC2_TIME, page.ADJTIMEX),
        (_TIME,),
    ),
    Meaning(
        "clock.offset",
        "The clock is wrong.",
        "drain",
        "where it is so far off that munge refuses messages; else a warning",
        (page.EC2_TIME, page.CHRONY),
        (_TIME,),
    ),
    Meaning(
        "clock.uncertain", "How wrong the clock may be is more than it should be.", "warn", NO, (page.CHRONY,), (_TIME,)
    ),
    Meaning(
        "clock.unknown-word", "The time daemon uses a word that nobody here knows.", "none", UNKNOWN, (page.CHRONY,)
    ),
    Meaning(
        "process.unkillable",
        "Processes hang in the kernel and cannot be ended: what they hold is lost until a reboot.",
        "reboot",
        YES,
        (page.KERNEL_HUNG,),
    ),
    Meaning(
        "process.in-kernel",
        "Processes wait in the kernel; whether they hang one look cannot tell.",
        "none",
        UNKNOWN,
        (page.KERNEL_HUNG,),
    ),
    Meaning(
        "process.hung-task",
        "The kernel reported tasks that did not move for two minutes.",
        "warn",
        NO,
        (page.KERNEL_HUNG,),
    ),
    Meaning("process.zombies", "Many ended processes were not collected by their parent.", "warn", NO, (page.PROC,)),
    Meaning(
        "process.leftover",
        "Processes of users run here, and no job of theirs is here.",
        "warn",
        NO,
        (page.SLURM_SCRIPTS,),
        ("pam_slurm_adopt and ProctrackType=proctrack/cgroup keep them out.",),
    ),
    Meaning("service.failed", "Services have failed that no check of ours needs.", "warn", NO, (page.SYSTEMD,)),
    Meaning("service.some-failed", "Some unit has failed.", "warn", NO, (page.SYSTEMD,), ("`systemctl --failed`.",)),
    Meaning(
        "service.system-state",
        "systemd is in a state that says neither running nor failed.",
        "none",
        UNKNOWN,
        (page.SYSTEMD,),
    ),
    Meaning(
        "service.fabricmanager-down",
        "The fabric manager does not run: NVLink between GPUs is not set up.",
        "drain",
        YES,
        (page.FABRIC_MANAGER,),
        ("`systemctl restart nvidia-fabricmanager`; its version must be that of the driver.",),
    ),
    Meaning(
        "service.imex-down",
        "IMEX does not run: memory cannot be shared between nodes over NVLink.",
        "drain",
        "on types whose NVLink spans nodes",
        (page.IMEX,),
    ),
    Meaning(
        "service.",
        "A service that jobs need does not run.",
        "warn",
        NO,
        (page.SYSTEMD,),
        ("`systemctl status NAME`, `journalctl -u NAME`.",),
    ),
    Meaning(
        "ec2.spot-interruption", "EC2 takes this spot instance back within two minutes.", "drain", YES, (page.EC2_SPOT,)
    ),
    Meaning(
        "ec2.scheduled-event",
        "EC2 has scheduled a stop, reboot, retirement or maintenance of this instance.",
        "replace",
        "where it is near; an event days away warns",
        (page.EC2_EVENTS,),
        ("Replace it before the date that the event names.",),
    ),
    Meaning(
        "ec2.event-unknown", "EC2 announces something that no table of ours knows.", "none", UNKNOWN, (page.EC2_EVENTS,)
    ),
    Meaning(
        "ec2.status-impaired",
        "EC2's own check of the machine below, or of the instance, fails.",
        "replace",
        YES,
        (page.EC2_STATUS,),
    ),
    Meaning("ec2.status-unclear", "EC2's own check says neither ok nor impaired.", "none", UNKNOWN, (page.EC2_STATUS,)),
    Meaning("probe.failed", "The command whose output was captured failed.", "none", UNKNOWN),
    Meaning("probe.none", "The capture holds no file of a kind that can be judged.", "none", UNKNOWN),
    Meaning(
        "system.no-answer",
        "The look at the node's own files did not end in time, or ended in an error of ours.",
        "none",
        UNKNOWN,
        steps=(
            "`fmslurm gate check` says whether it is so again; `ps -eo stat,pid,wchan:32,cmd | grep ^D` what hangs.",
        ),
    ),
    Meaning("probe.output-cut", "A captured output ends in the middle.", "none", UNKNOWN),
    Meaning("probe.unreadable", "A captured output has a form that nobody here knows.", "none", UNKNOWN),
    Meaning(
        "node.type-unknown",
        "No table here has this instance type, so its GPUs, EFA devices, disks and memory are compared with nothing.",
        "none",
        NO,
        (page.EC2_TYPES,),
        ("A release of fmslurm that knows the type; where the name is wrong, correct site.instance_type.",),
    ),
    Meaning(
        "node.manual",
        "A person drained the node through fmslurm; no proof of health undoes it.",
        "drain",
        "a person's word",
        (),
        ("`fmslurm node resume NODE --reason ...`.",),
    ),
)

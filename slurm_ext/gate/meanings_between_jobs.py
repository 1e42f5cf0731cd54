"""What findings of the looks between jobs mean: EFA's loopback, DCGM's watches, container runtimes. Table. Checked on 2026-11-30."""

from __future__ import annotations

from slurm_ext.gate import meanings_pages as page
from slurm_ext.gate.meanings_model import NO, UNKNOWN, YES, Meaning

_BY_HAND = (
    "By hand, on the idle node: `FI_EFA_ENABLE_SHM_TRANSFER=0 fi_pingpong -p efa -e rdm -d DEVICE-rdm` in one shell, the same "
    "with `127.0.0.1` behind it in another; `/opt/amazon/efa/test/efa_test.sh` does it for one device."
)

_WATCHED = ("`dcgmi health -c` says it again; `dcgmi diag -r 2 -j` on the idle node says more.",)


def _watch(id_: str, means: str) -> Meaning:
    return Meaning(id_, f"DCGM's watches complain of {means}.", "warn", NO, (page.DCGM_HEALTH,), _WATCHED)


MEANINGS: tuple[Meaning, ...] = (
    Meaning(
        "efa.loopback-failed",
        "Traffic of this EFA device with itself failed twice, while it passed over most other devices of the node.",
        "replace",
        YES,
        (page.EFA, page.EFA_NCCL),
        (_BY_HAND,),
    ),
    Meaning(
        "efa.loopback-unsteady",
        "Traffic of this EFA device with itself failed, and passed when it was tried again.",
        "warn",
        NO,
        (page.EFA,),
        (_BY_HAND,),
    ),
    Meaning(
        "efa.loopback-none",
        "Traffic of the node with itself passes over none of the EFA devices that were tried.",
        "warn",
        NO,
        (page.EFA_NCCL,),
        (
            "The security group must let its own members in and out, all traffic, and every interface must have it: without "
            "that no node passes.",
            _BY_HAND,
        ),
    ),
    Meaning(
        "efa.loopback-many",
        "Traffic of the node with itself fails on more than a quarter of its EFA devices: rather a setting than so many faults.",
        "warn",
        NO,
        (page.EFA_NCCL,),
        ("Compare the security groups of the interfaces that fail with those of the others.", _BY_HAND),
    ),
    Meaning(
        "efa.loopback-not-tested",
        "EFA's loopback could not be made, on this device or at all: fi_pingpong or fi_info ended otherwise than by traffic.",
        "none",
        UNKNOWN,
        (page.EFA_NCCL,),
        (_BY_HAND,),
    ),
    Meaning(
        "efa.loopback-overdue",
        "EFA's loopback has been due for more than two intervals (gate.slow_every_h), and none came to its end here.",
        "none",
        NO,
        (page.EFA_NCCL,),
        ("The evidence says what keeps it: a job, a burn-in, a program on the GPUs, or what an earlier check left.",),
    ),
    Meaning(
        "efa.loopback-stays",
        "EFA's loopback did not end in time for a job: something of it may still be on the devices.",
        "none",
        UNKNOWN,
        (page.EFA_NCCL,),
    ),
    _watch("dcgm-health.memory", "a GPU's memory, by what nvidia-smi has no value of"),
    _watch("dcgm-health.pcie", "a GPU's PCIe link: packets that were sent again"),
    _watch("dcgm-health.nvlink", "a GPU's NVLinks"),
    _watch("dcgm-health.sm", "a GPU's processors"),
    _watch("dcgm-health.pmu", "a GPU's power management unit"),
    _watch("dcgm-health.mcu", "a GPU's microcontroller"),
    _watch("dcgm-health.inforom", "a GPU's infoROM"),
    _watch("dcgm-health.thermal", "heat"),
    _watch("dcgm-health.power", "power, or that it cannot be read"),
    _watch("dcgm-health.driver", "the driver"),
    _watch("dcgm-health.connectx", "a ConnectX adapter"),
    _watch("dcgm-health.other", "what has no system of its own: NVSwitch, IMEX, the fabric, a part of a GPU under MIG"),
    Meaning(
        "dcgm-health.contradicted",
        "DCGM's watches call a GPU broken, and nvidia-smi, asked in the same look, read the very value as good.",
        "warn",
        NO,
        (page.DCGM_HEALTH,),
        ("DCGM's values are up to ten minutes old. If it stays, restart the daemon (nvidia-dcgm) on the idle node.",),
    ),
    Meaning(
        "dcgm-health.no-answer",
        "What DCGM's watches say could not be read.",
        "none",
        UNKNOWN,
        (page.DCGM_HEALTH,),
        ("`dcgmi health -c -j` on the node; gate.dcgm_health: off asks no more.",),
    ),
    Meaning(
        "dcgm-health.unknown",
        "DCGM's watches call something a failure in words that no table of ours has.",
        "none",
        UNKNOWN,
        (page.DCGM_HEALTH,),
        _WATCHED,
    ),
    Meaning(
        "container.hangs",
        "A container runtime took a connection, or was started, and gave no answer in time: jobs in containers will wait for it.",
        "warn",
        NO,
        (page.DOCKER_PING, page.ENROOT),
        (
            "`curl --max-time 3 --unix-socket /run/docker.sock http://docker/_ping`, `ctr version`, `enroot version`, by hand.",
            "`systemctl restart docker` (or containerd) on the idle node; a mount that hangs holds these daemons, too.",
        ),
    ),
    Meaning(
        "container.down",
        "A container runtime that the site names (gate.container_runtimes) does not run here, or is not installed.",
        "warn",
        NO,
        (page.DOCKER_PING, page.ENROOT),
        ("`systemctl status docker containerd`; or take it out of gate.container_runtimes.",),
    ),
    Meaning(
        "container.error",
        "A container runtime answers otherwise than it should.",
        "warn",
        NO,
        (page.DOCKER_PING, page.ENROOT),
        ("The evidence has its words; the same by hand says more.",),
    ),
    Meaning(
        "container.no-answer",
        "The look at container runtimes did not end, or ended in an error of ours.",
        "none",
        UNKNOWN,
    ),
)

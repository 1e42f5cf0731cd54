"""What findings about NVLink and its fabric, heat and clocks, and DCGM's diagnostic mean. Table. Checked on 2026-11-30."""

from __future__ import annotations

from slurm_ext.gate import meanings_pages as page
from slurm_ext.gate.meanings_model import NO, UNKNOWN, YES, Meaning

MEANINGS: tuple[Meaning, ...] = (
    Meaning(
        "gpu.fabric-not-ready",
        "The GPU has not joined the NVLink fabric. A minute after boot that is normal; later every CUDA call fails with "
        "'system not yet initialized'.",
        "drain",
        "yes, once the time for the fabric after boot is over; before that it is unknown",
        (page.FABRIC_MANAGER,),
        ("`systemctl status nvidia-fabricmanager`; its version must be that of the driver.",),
    ),
    Meaning(
        "gpu.fabric-failed",
        "The NVLink fabric was set up with an error for this GPU.",
        "drain",
        YES,
        (page.FABRIC_MANAGER,),
        (
            "`systemctl restart nvidia-fabricmanager` while no job runs; /var/log/fabricmanager.log says why. Again: reboot.",
        ),
    ),
    Meaning(
        "gpu.nvlink-down",
        "NVLinks of a GPU are inactive that its type has: collectives inside the node become slow or fail.",
        "reset-gpu",
        YES,
        (page.FABRIC_MANAGER, page.GPU_DEBUG),
    ),
    Meaning(
        "gpu.nvlink-topology",
        "Two GPUs that NVLink should connect talk over PCIe.",
        "reset-gpu",
        YES,
        (page.FABRIC_MANAGER,),
    ),
    Meaning(
        "gpu.nvlink-unreadable",
        "The state of the NVLinks could not be read.",
        "none",
        UNKNOWN,
        (page.NVIDIA_SMI,),
    ),
    Meaning(
        "gpu.topology-unreadable",
        "The matrix of connections (`nvidia-smi topo -m`) could not be read.",
        "none",
        UNKNOWN,
        (page.NVIDIA_SMI,),
    ),
    Meaning(
        "gpu.slowed-now",
        "A GPU is slowed at this moment by its heat or by the power brake; how long it lasts one reading cannot tell.",
        "warn",
        NO,
        (page.NVIDIA_SMI, page.GPU_DEBUG),
    ),
    Meaning(
        "gpu.fabric-health",
        "The driver says that the way of a GPU through the NVLink fabric is not healthy, or has less bandwidth.",
        "drain",
        "yes where it is unhealthy; less bandwidth is a warning",
        (page.FABRIC_MANAGER, page.NVML),
    ),
    Meaning(
        "gpu.hw-thermal",
        "The GPU slows itself down because it is too hot.",
        "drain",
        "where it stands at the time of the look or grew while a job ran",
        (page.NVIDIA_SMI,),
    ),
    Meaning(
        "gpu.hw-power-brake",
        "The server tells the GPU to slow down for lack of power: nothing on the node can mend that.",
        "drain",
        "where it stands at the time of the look or grew while a job ran",
        (page.NVIDIA_SMI,),
    ),
    Meaning(
        "gpu.sw-power-cap",
        "GPUs run at their power limit, as busy GPUs do.",
        "none",
        NO,
        (page.NVIDIA_SMI,),
    ),
    Meaning(
        "gpu.throttled",
        "Clocks were held back while the burn-in ran.",
        "warn",
        NO,
        (page.NVIDIA_SMI,),
    ),
    Meaning(
        "gpu.clock-low",
        "Clocks were lower on this node than on the others while the burn-in ran.",
        "warn",
        NO,
        (page.NVIDIA_SMI,),
    ),
    Meaning("gpu.hot", "A GPU is at the temperature at which it slows itself down.", "warn", NO, (page.NVIDIA_SMI,)),
    Meaning(
        "gpu.sw-thermal", "A GPU was slowed by software for its heat while the job ran.", "warn", NO, (page.NVIDIA_SMI,)
    ),
    Meaning(
        "gpu.nvlink-speed", "Some NVLinks of a GPU run slower than its others.", "warn", NO, (page.FABRIC_MANAGER,)
    ),
    Meaning("gpu.nvlink-errors", "NVLinks of a GPU count errors.", "warn", NO, (page.FABRIC_MANAGER,)),
    Meaning(
        "dcgm.skipped", "DCGM's diagnostic skipped every test, as it does under MIG.", "none", NO, (page.DCGM, page.MIG)
    ),
    Meaning("dcgm.no-answer", "DCGM's diagnostic gave no answer that could be read.", "none", UNKNOWN, (page.DCGM,)),
    Meaning(
        "dcgm.not-tested",
        "A test of DCGM's diagnostic was not done, or says nothing that is known.",
        "none",
        UNKNOWN,
        (page.DCGM,),
    ),
    Meaning(
        "dcgm.stays",
        "DCGM's diagnostic did not end in time for a job: something of it may still be on the GPUs.",
        "none",
        UNKNOWN,
        (page.DCGM,),
    ),
    Meaning(
        "dcgm.overdue",
        "Slow checks have been due for more than two intervals (gate.slow_every_h), and none came to its end here.",
        "none",
        NO,
        (page.DCGM,),
        (
            "The evidence says what keeps it: a job, a burn-in, a program on the GPUs, or what an earlier check left.",
            "End what is left over; a node that is always busy is tested when it is taken out of use.",
        ),
    ),
    Meaning(
        "dcgm.",
        "A test of DCGM's diagnostic failed or complained; the rest of the id is the test's name.",
        "drain",
        "where the test failed with an error that DCGM calls one of the hardware",
        (page.DCGM,),
        ("`dcgmi diag -r 2 -j` on the idle node shows it again.",),
    ),
    Meaning("gpu.clocks-unread", "Clocks could not be read while the burn-in ran.", "none", NO, (page.NVIDIA_SMI,)),
    Meaning(
        "gpu.clocks-set-low",
        "A GPU's application clocks were set lower than by default, or than on most GPUs here: it holds up all ranks of a job.",
        "warn",
        NO,
        (page.EC2_GPU_SETTINGS, page.NVIDIA_SMI),
        (
            "`nvidia-smi -i N -rac` puts the default back; `-ac MEMORY,GRAPHICS` sets what the site wants, on all GPUs alike.",
        ),
    ),
    Meaning(
        "gpu.clocks-held",
        "The driver says that a clock that was set holds down a few GPUs of this node at this moment, and not the others.",
        "warn",
        NO,
        (page.NVIDIA_SMI, page.NVML),
        ("`nvidia-smi -i N -rgc` takes away a lock of the clock, `-rac` an application clock.",),
    ),
    Meaning(
        "gpu.power-limit-low",
        "A GPU's power limit was set lower than by default, or than on most GPUs here: under load it runs slower than they do.",
        "warn",
        NO,
        (page.NVIDIA_SMI,),
        (
            "`nvidia-smi -i N -pl WATTS` with the default that `nvidia-smi -q -d POWER` tells.",
            "Wanted: `gate.disabled: [gpu.power-limit-low]`.",
        ),
    ),
)

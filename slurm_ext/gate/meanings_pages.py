"""The pages that the meanings of findings point to, by name. Addresses only.

Those in SEEN stood in an index of public pages, or in a public repository that names them, on CHECKED_ON. The others are the
vendors' long-standing addresses, written down from memory and not opened: a page that has moved is found by its last part.
"""

from __future__ import annotations

CHECKED_ON = "2026-11-30"

_NVIDIA = "https://docs.nvidia.com"
XID = f"{_NVIDIA}/deploy/xid-errors/analyzing-xid-catalog.html"
GPU_DEBUG = f"{_NVIDIA}/deploy/gpu-debug-guidelines/index.html"
GPU_MEMORY = f"{_NVIDIA}/deploy/a100-gpu-mem-error-mgmt/index.html"
PAGE_RETIREMENT = f"{_NVIDIA}/deploy/dynamic-page-retirement/visibility.html"
NVIDIA_SMI = f"{_NVIDIA}/deploy/nvidia-smi/index.html"
NVML = f"{_NVIDIA}/deploy/nvml-api/index.html"
PERSISTENCE = f"{_NVIDIA}/deploy/driver-persistence/persistence-mode-legacy.html"
FABRIC_MANAGER = f"{_NVIDIA}/datacenter/tesla/fabric-manager-user-guide"
MIG = f"{_NVIDIA}/datacenter/tesla/mig-user-guide/index.html"
DCGM = f"{_NVIDIA}/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html"
DCGM_HEALTH = f"{_NVIDIA}/datacenter/dcgm/latest/user-guide/feature-overview.html"
IMEX = f"{_NVIDIA}/multi-node-nvlink-systems/imex-guide"
NCCL = f"{_NVIDIA}/deeplearning/nccl/user-guide/docs/troubleshooting.html"
NCCL_VARIABLES = f"{_NVIDIA}/deeplearning/nccl/user-guide/docs/env.html"
CUDA_COMPATIBILITY = f"{_NVIDIA}/deploy/cuda-compatibility/minor-version-compatibility.html"

_AWS = "https://docs.aws.amazon.com"
EFA = f"{_AWS}/AWSEC2/latest/UserGuide/efa.html"
EFA_NCCL = f"{_AWS}/AWSEC2/latest/UserGuide/efa-start-nccl-base.html"
EFA_METRICS = f"{_AWS}/AWSEC2/latest/UserGuide/efa-working-monitor.html"
EFA_DRIVER = "https://github.com/amzn/amzn-drivers/tree/master/kernel/linux/efa"
OFI_NCCL = "https://github.com/aws/aws-ofi-nccl"
EC2_EVENTS = f"{_AWS}/AWSEC2/latest/APIReference/API_InstanceStatusEvent.html"
EC2_STATUS = f"{_AWS}/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html"
EC2_SPOT = f"{_AWS}/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"
EC2_STORE = f"{_AWS}/AWSEC2/latest/UserGuide/InstanceStorage.html"
EC2_TYPES = f"{_AWS}/ec2/latest/instancetypes/ac.html"
EC2_GPU_SETTINGS = f"{_AWS}/AWSEC2/latest/UserGuide/optimize_gpu.html"
EC2_PROCESSOR = f"{_AWS}/AWSEC2/latest/UserGuide/processor_state_control.html"
EC2_ROUTES = f"{_AWS}/vpc/latest/userguide/VPC_Route_Tables.html"
EC2_TIME = f"{_AWS}/AWSEC2/latest/UserGuide/set-time.html"
FSX = f"{_AWS}/fsx/latest/LustreGuide/troubleshooting.html"
FSX_EFA = f"{_AWS}/eks/latest/userguide/fsx-csi-tuning-efa.html"
FSX_SPACE = f"{_AWS}/fsx/latest/LustreGuide/performance.html"
PARALLELCLUSTER = f"{_AWS}/parallelcluster/latest/ug/slurm-protected-mode-v3.html"
PCS = f"{_AWS}/pcs/latest/userguide/what-is-service.html"

DOCKER_PING = "https://docs.docker.com/reference/api/engine/version/v1.47/#tag/System/operation/SystemPing"
ENROOT = "https://github.com/NVIDIA/enroot"

LUSTRE_HEALTH = "https://wiki.lustre.org/Lustre_Health_Checks"
LUSTRE_EVICTION = "https://wiki.lustre.org/Lustre_Client_Eviction_Guide"
LUSTRE_RECOVERY = "https://wiki.lustre.org/Lustre_Recovery_Overview"
LUSTRE_MANUAL = "https://doc.lustre.org/lustre_manual.xhtml"

SLURM_SCRIPTS = "https://slurm.schedmd.com/prolog_epilog.html"
SLURM_NODES = "https://slurm.schedmd.com/scontrol.html"
SLURM_TROUBLE = "https://slurm.schedmd.com/troubleshoot.html"
SLURM_CONF = "https://slurm.schedmd.com/slurm.conf.html"
SLURM_REASONS = "https://slurm.schedmd.com/job_reason_codes.html"

KERNEL_RAS = "https://docs.kernel.org/admin-guide/RAS/main.html"
KERNEL_MD = "https://docs.kernel.org/admin-guide/md.html"
KERNEL_HUNG = "https://docs.kernel.org/admin-guide/sysctl/kernel.html"
KERNEL_SYSFS_NODE = "https://docs.kernel.org/admin-guide/mm/hugetlbpage.html"
ADJTIMEX = "https://man7.org/linux/man-pages/man2/adjtimex.2.html"
PROC = "https://man7.org/linux/man-pages/man5/proc.5.html"
MOUNT = "https://man7.org/linux/man-pages/man8/mount.8.html"
STATFS = "https://man7.org/linux/man-pages/man3/statvfs.3.html"
SYSTEMD = "https://www.freedesktop.org/software/systemd/man/latest/systemctl.html"
CHRONY = "https://chrony-project.org/doc/latest/chronyc.html"

SEEN = frozenset(
    (
        *(XID, PAGE_RETIREMENT, PERSISTENCE, FABRIC_MANAGER, IMEX, CUDA_COMPATIBILITY, DCGM),
        *(EFA, EFA_NCCL, EFA_METRICS, EC2_EVENTS, EC2_PROCESSOR, FSX_EFA, PARALLELCLUSTER),
        *(LUSTRE_HEALTH, LUSTRE_EVICTION, LUSTRE_RECOVERY),
    )
)

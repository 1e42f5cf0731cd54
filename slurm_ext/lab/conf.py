"""Pure: the text of every configuration file of a lab, for the Slurm version that is installed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.lab.model import LabNode, State

#: Keys that only newer versions know; an unknown key ends slurmctld. slurm.conf(5) of 23.02.
_SINCE: tuple[tuple[tuple[int, int], str], ...] = (((23, 2), "MaxBatchRequeue=20"),)

#: What a version adds to SchedulerParameters: from 25.11 on a requeued job need not wait out cred_expire.
# Long enough that the controller has set its exclusions before Slurm starts the job again by itself (1 s was not).
_SCHEDULER_SINCE: tuple[tuple[tuple[int, int], str], ...] = (((25, 11), "requeue_delay=30"),)

#: As ParallelCluster does: the operating system keeps the rest.
REAL_MEMORY_SHARE = 0.95

#: One spine, leaves of this many nodes: eight nodes sit under two leaf switches.
NODES_PER_LEAF = 4


def slurm_conf(state: State, version: tuple[int, int], hostname: str) -> str:
    """Return slurm.conf. Timeouts are short, so that a rehearsal shows in seconds what takes a cluster minutes."""
    home = state.dir
    head = state.head.name if state.mode == "netns" else hostname
    scheduler = ["nohold_on_prolog_fail", "batch_sched_delay=1", "sched_interval=5", "bf_interval=5"]
    scheduler += [word for since, word in _SCHEDULER_SINCE if version >= since]
    lines = [
        f"# A lab of fmslurm in {home}, for Slurm {state.slurm_version}; written by `fmslurm lab up`.",
        f"ClusterName={state.cluster}",
        f"SlurmctldHost={head}({state.head.address})",
        f"SlurmctldPort={state.controller_port}",
        f"SlurmdPort={state.nodes[0].port}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={home}/run/munge.socket",
        f"StateSaveLocation={home}/slurm/state",
        f"SlurmdSpoolDir={home}/slurm/spool/%n",
        f"SlurmctldPidFile={home}/run/slurmctld.pid",
        f"SlurmdPidFile={home}/run/slurmd.%n.pid",
        f"SlurmctldLogFile={home}/log/slurmctld.log",
        f"SlurmdLogFile={home}/log/slurmd.%n.log",
        # With a namespace of its own the controller listens on its one address. Not NoInAddrAny: srun would then listen
        # on what this machine's name resolves to, where no node reaches it; so would all daemons of a loopback lab.
        *(("CommunicationParameters=NoCtldInAddrAny",) if state.mode == "netns" else ()),
        "SlurmdParameters=config_overrides",
        f"ProctrackType=proctrack/{'cgroup' if state.cgroup else 'linuxproc'}",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "TopologyPlugin=topology/tree",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "PropagateResourceLimits=NONE",
        "PrologFlags=Alloc,DeferBatch",
        f"SchedulerParameters={','.join(scheduler)}",
        "JobRequeue=1",
        "ReturnToService=2",
        "MinJobAge=300",
        "InactiveLimit=0",
        "CompleteWait=0",
        "KillWait=3",
        "MessageTimeout=10",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=20",
        "UnkillableStepTimeout=60",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        *(word for since, word in _SINCE if version >= since),
        f"Include {home}/etc/slurm/nodes.conf",
        "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        f"Include {home}/etc/slurm/fmslurm.conf",
    ]
    return "\n".join(lines) + "\n"


def cgroup_conf(*, cgroup: bool, version: tuple[int, int]) -> str:
    """Return cgroup.conf: version 1 for proctrack/cgroup, else whatever lets slurmd start without any."""
    if cgroup:
        return "CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices=no\n"
    # slurmd loads a cgroup plugin though nothing uses it; `disabled` came with 24.05. cgroup.conf(5).
    return "CgroupPlugin=disabled\n" if version >= (24, 5) else "CgroupPlugin=cgroup/v1\n"


def nodes_conf(state: State, row: InstanceType, hostname: str, *, gres: bool) -> str:
    """Return the node lines: plain ones, or with the GPUs that `gres generate` would give them."""
    lines = ["# Node lines of the lab."]
    if gres and row.gpus:
        lines.append("GresTypes=gpu")
    shape = f"CPUs={row.vcpus} Sockets={row.sockets} CoresPerSocket={row.cores_per_socket}"
    shape += f" ThreadsPerCore={row.threads_per_core} RealMemory={int(row.memory_mib * REAL_MEMORY_SHARE)}"
    shape += f" Gres=gpu:{row.gpu_type}:{row.gpus}" if gres and row.gpus else ""
    for node in state.nodes:
        where = f"NodeAddr={node.address} Port={node.port}"
        # With a UTS namespace the node has its own name; on loopback Slurm must know whose host name to expect.
        where += f" NodeHostname={hostname}" if state.mode == "loopback" else ""
        lines.append(f"NodeName={node.name} {where} {shape} State=UNKNOWN")
    return "\n".join(lines) + "\n"


def gres_conf(state: State, row: InstanceType, *, gres: bool) -> str:
    """Return gres.conf; the device files are character devices in the lab's folder, since Slurm takes no plain ones."""
    if not (gres and row.gpus):
        return "# No GPUs yet: `fmslurm gres generate` writes them.\n"
    files = f"{state.dir}/dev/nvidia" + (f"[0-{row.gpus - 1}]" if row.gpus > 1 else "0")
    names = ",".join(node.name for node in state.nodes)
    return f"NodeName={names} Name=gpu Type={row.gpu_type} File={files}\n"


def topology_conf(state: State, *, ready: bool) -> str:
    """Return topology.conf: one flat switch to begin with, or the leaves and the spine that the EC2 answer describes."""
    if not ready:
        return f"SwitchName=flat Nodes={','.join(node.name for node in state.nodes)}\n"
    leaves = [state.nodes[i : i + NODES_PER_LEAF] for i in range(0, len(state.nodes), NODES_PER_LEAF)]
    lines = [f"SwitchName=leaf{i} Nodes={','.join(n.name for n in leaf)}" for i, leaf in enumerate(leaves)]
    lines.append(f"SwitchName=spine Switches={','.join(f'leaf{i}' for i in range(len(leaves)))}")
    return "\n".join(lines) + "\n"


def ec2_answer(state: State, network_nodes: int) -> str:
    """Return DescribeInstanceTopology's answer in the shape boto3 returns; NetworkNodes run from top to bottom."""
    instances = []
    for node in state.nodes:
        leaf = f"nn-{_hex(state.id, 'leaf', node.index // NODES_PER_LEAF)}"
        above = [f"nn-{_hex(state.id, 'layer', layer)}" for layer in range(network_nodes - 1)]
        instances.append(
            {
                "InstanceId": node.instance_id,
                "InstanceType": state.instance_type,
                "GroupName": "fmslurm-lab",
                "NetworkNodes": [*above, leaf],
                "AvailabilityZone": "us-east-2a",
                "ZoneId": "use2-az1",
            }
        )
    return json.dumps({"Instances": instances}, indent=1) + "\n"


def nodes_csv(nodes: Sequence[LabNode]) -> str:
    """Return nodes.csv: which node is which instance."""
    return "node,instance_id,address\n" + "".join(f"{n.name},{n.instance_id},{n.address}\n" for n in nodes)


def hosts_file(state: State, machine: str) -> str:
    """Return /etc/hosts as the nodes see it. `machine` is this machine's own host name.

    slurmctld looks up the name of the machine where an srun was started, and before each answer to one it does not find
    tries for ten seconds.
    """
    lines = ["127.0.0.1 localhost", f"{state.head.address} {state.head.name}"]
    lines += [f"{node.address} {node.name}" for node in state.nodes]
    taken = {"", "localhost", state.head.name, *(node.name for node in state.nodes)}
    if state.host_address and machine not in taken:
        short = machine.partition(".")[0]
        lines.append(f"{state.host_address} {machine}" + (f" {short}" if short not in {machine, *taken} else ""))
    return "\n".join(lines) + "\n"


def site_settings(state: State, *, python: str, slurm_bin: str) -> dict[str, Any]:
    """Return the lab's fmslurm.yaml as data: every room enforces, floors are those that `up` measured here.

    A pass of the burn-in is never reused, so that every start of a rehearsal shows one.
    """
    home = state.dir
    tiers: list[dict[str, str]] = [
        {"name": "nvme", "kind": "nvme", "url": f"{home}/nodes/%n/nvme"},
        {"name": "lustre", "kind": "lustre", "url": f"{home}/lustre"},
    ]
    if state.s3_port:
        tiers.append(
            {
                "name": "s3",
                "kind": "s3",
                "url": f"s3://{BUCKET}/checkpoints",
                "endpoint": f"http://{state.head.address}:{state.s3_port}",
                "credentials_file": f"{home}/s3/credentials",
            }
        )
    return {
        "site": {
            "type": "lab",
            "cluster": state.cluster,
            "backend": "cli",
            "share": f"{home}/share",
            "state_dir": f"{home}/nodes/%n/state",
            "run_dir": f"{home}/nodes/%n/run",
            "log_dir": f"{home}/nodes/%n/log",
            "prefix": f"{home}/opt/fmslurm",
            "root": f"{home}/nodes/%n/root",
            "slurm_bin": slurm_bin,
            "slurm_conf": f"{home}/etc/slurm/slurm.conf",
            "hook_dir": f"{home}/etc/hooks",
            "python": python,
            "munge_socket": f"{home}/run/munge.socket",
            "instance_type": state.instance_type,
        },
        "mode": {room: "enforce" for room in ("gate", "burnin", "resume", "staging", "topology")},
        "gate": {
            "deadline_s": 10.0,
            "nvme_dirs": [f"{home}/nodes/%n/nvme"],
            "lustre_mounts": [f"{home}/lustre"],
            "min_free_percent": 1.0,
        },
        "burnin": {
            "min_time_limit_min": 1,
            "reuse_pass_h": 0.0,
            "deadline_s": 60.0,
            "rendezvous_s": 30.0,
            "message_bytes": 1 << 20,
            "iterations": 3,
            "sustain_s": 0.3,
            "strict_sustain_s": 2.0,
            "late_s": 30.0,
            "floor_busbw_gbs": state.floors.get("busbw_gbs", 0.0),
            "pair_floor_busbw_gbs": state.floors.get("pair_busbw_gbs", 0.0),
            # Equal groups differ by a factor of two on this fabric: only a gap of three says anything.
            "relative_percent": 67.0,
            "nccl_library": f"{home}/lib/libnccl.so.2",
            "cuda_library": f"{home}/lib/libcuda.so.1",
            "transport": "socket",
            "addresses": f"{home}/share/addresses",
        },
        "drain": {"max_per_hour": 20, "max_percent_per_hour": 100.0, "first_boot_budget": 8},
        "resume": {"exclude_max_percent": 50.0, "poll_s": 1.0},
        "staging": {"tiers": tiers},
        "topology": {
            "apply": "restart",
            "min_interval_min": 0.0,
            "gres": "write",
            "source": "file",
            "source_file": f"{home}/ec2.json",
            "nodes_file": f"{home}/nodes.csv",
        },
    }


#: The bucket that `up` makes.
BUCKET = "fmslurm"


def _hex(*parts: object) -> str:
    # EC2 hashes these identifiers for each account; 17 hex digits as in its own.
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:17]

"""What is wrong with GPU definitions: a node's own facts against gres.conf and the catalogue, and ParallelCluster's lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gres.model import GresLine, NodeFacts, NodeLine, Trouble
from slurm_ext.gres.render import REAL_MEMORY_SHARE, parts, topology
from slurm_ext.slurm.hostlist import fold

_DRAINS = "slurmd registers fewer GPUs than slurm.conf has, and the node is drained or set INVALID"
_FAR = "jobs get processors of the other socket: copies and launches cross the link between sockets"


def node(facts: NodeFacts, row: InstanceType | None, lines: Sequence[GresLine], name: str) -> list[Trouble]:
    """Return what is wrong on one node: its facts against its type's row and against the lines of gres.conf for it."""
    found = _against_row(facts, row) if row is not None else []
    mine = [line for line in lines if line.name == "gpu" and (not line.nodes or name in line.nodes)]
    if mine:
        found += _against_lines(facts, mine)
    elif lines and facts.gpus and not any(line.autodetect not in ("", "off") for line in lines):
        found.append(
            Trouble(
                "gres.not-offered",
                f"gres.conf has no line of GPUs for {name}, which has {len(facts.gpus)}",
                "no job can ask for them",
                "Write the lines with `fmslurm gres generate`",
            )
        )
    return found


def _against_row(facts: NodeFacts, row: InstanceType) -> list[Trouble]:
    found = []
    if not _untold(facts) and len(facts.gpus) != row.gpus:
        found.append(
            Trouble(
                "gres.count",
                f"{row.name} has {row.gpus} GPUs, and the driver shows {len(facts.gpus)}",
                _DRAINS,
                "Look at the node with `fmslurm gate check`; a GPU that fell off needs a reboot or another instance",
            )
        )
    shape = (facts.sockets, facts.cores_per_socket, facts.threads_per_core)
    wanted = (row.sockets, row.cores_per_socket, row.threads_per_core)
    if facts.cpus and shape != wanted:
        seen = f"Sockets={shape[0]} CoresPerSocket={shape[1]} ThreadsPerCore={shape[2]}"
        found.append(
            Trouble(
                "gres.processors",
                f"the node has {seen}, and {row.name} is {topology(row)}",
                "slurmd registers another shape than slurm.conf has, and Cores= mean other processors",
                f"Put {seen} on its NodeName line, unless CPU options of the launch template are to be taken back",
            )
        )
    by_socket = _seen_split(facts)
    if sum(by_socket) == row.gpus and row.gpus_by_socket and by_socket != row.gpus_by_socket:
        found.append(
            Trouble(
                "gres.split",
                f"GPUs by socket are {by_socket} here, and the catalogue has {row.gpus_by_socket} for {row.name}",
                "the Cores= that `gres generate` writes are not this machine's",
                "Write the lines by hand as below, and tell us",
            )
        )
    return found


def _untold(facts: NodeFacts) -> bool:
    """Say whether GPUs may be there that the driver did not tell of: what it lacks then is no finding."""
    return any("driver/nvidia" in path for path in facts.unread)


def _seen_split(facts: NodeFacts) -> tuple[int, ...]:
    """Return how many GPUs each socket has, where the device numbers follow the sockets; empty where they do not."""
    nodes = [gpu.numa_node for gpu in facts.gpus]
    if not nodes or -1 in nodes or nodes != sorted(nodes):
        return ()
    return tuple(nodes.count(numa) for numa in sorted(facts.numa_cores) if facts.numa_cores[numa])


def _against_lines(facts: NodeFacts, lines: Sequence[GresLine]) -> list[Trouble]:
    found = []
    offered = {path: line for line in lines for path in line.files}
    by_path = {f"nvidia{gpu.number}": gpu for gpu in facts.gpus}
    for path, line in offered.items():
        gpu = by_path.get(path.rpartition("/")[2])
        if gpu is None and _untold(facts):
            continue
        if gpu is None or not gpu.has_file:
            what = "the driver shows no such GPU" if gpu is None else "there is no such device file"
            found.append(
                Trouble("gres.no-device", f"{line.where}: {path}: {what}", _DRAINS, "Correct File=, or mend the node")
            )
            continue
        if line.type and gpu.model and line.type.lower() not in gpu.model.lower().replace(" ", ""):
            found.append(
                Trouble(
                    "gres.type",
                    f"{line.where}: Type={line.type}, and {path} is a {gpu.model}",
                    "jobs that ask for one type get another",
                    "Correct Type=; with AutoDetect a wrong one drains the node",
                )
            )
        near = facts.numa_cores.get(gpu.numa_node, frozenset())
        if line.cores is not None and near and not line.cores <= near:
            found.append(
                Trouble(
                    "gres.far-cores",
                    f"{line.where}: {path} hangs at NUMA node {gpu.numa_node} (cores {ranges(near)}), "
                    f"and Cores={ranges(line.cores)}",
                    _FAR,
                    f"Cores={ranges(near)} for this file: the order of GPUs need not follow the order of sockets",
                )
            )
    if missing := [
        gpu.number for gpu in facts.gpus if f"nvidia{gpu.number}" not in {p.rpartition("/")[2] for p in offered}
    ]:
        shown = ", ".join(f"/dev/nvidia{number}" for number in missing)
        found.append(
            Trouble(
                "gres.left-out",
                f"no line offers {shown}",
                "these GPUs lie idle",
                "Add them to File= and to Gres= of the node",
            )
        )
    if any(line.cores is None for line in lines) and facts.sockets > 1:
        found.append(_no_cores(lines, facts))
    for line in lines:
        if line.cores is not None and (odd := _part_of_socket(line.cores, facts.cores_per_socket)):
            found.append(
                Trouble(
                    "gres.part-of-socket",
                    f"{line.where}: Cores={ranges(line.cores)} covers {odd}",
                    "slurmctld takes whole sockets only (SlurmdParameters=numa_node_as_socket: whole NUMA nodes); the node is drained",
                    f"Cover whole sockets of {facts.cores_per_socket} cores",
                )
            )
    if len({bool(line.type) for line in lines}) > 1:
        found.append(
            Trouble(
                "gres.mixed",
                "some lines have a Type= and some have none",
                "slurmctld refuses one of them",
                "Give all of them one",
            )
        )
    return found


def _no_cores(lines: Sequence[GresLine], facts: NodeFacts) -> Trouble:
    wanted = "; ".join(
        f"{_files(gpus)} Cores={ranges(facts.numa_cores[numa])}"
        for numa, gpus in _by_numa(facts).items()
        if facts.numa_cores.get(numa)
    )
    return Trouble(
        "gres.no-cores",
        f"{lines[0].where}: no Cores=, and the node has {facts.sockets} sockets",
        _FAR,
        f"This node shows: {wanted}" if wanted else "Its NUMA nodes cannot be read here",
        harmless=True,
    )


def _by_numa(facts: NodeFacts) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for gpu in facts.gpus:
        found.setdefault(gpu.numa_node, []).append(gpu.number)
    return found


def _files(gpus: Iterable[int]) -> str:
    return f"File=/dev/nvidia[{ranges(frozenset(gpus))}]"


def _part_of_socket(cores: frozenset[int], per_socket: int) -> str:
    """Return in words which socket is covered in part, empty where none is."""
    if per_socket <= 0:
        return ""
    for socket in sorted({core // per_socket for core in cores}):
        whole = set(range(socket * per_socket, (socket + 1) * per_socket))
        if not whole <= cores:
            return f"{len(whole & cores)} of {per_socket} cores of socket {socket}"
    return ""


def ranges(values: Iterable[int]) -> str:
    """Return numbers as `0-47,96`."""
    ordered, found = sorted(set(values)), list[str]()
    start = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or ordered[index] != ordered[index - 1] + 1:
            low, high = ordered[start], ordered[index - 1]
            found.append(str(low) if low == high else f"{low}-{high}")
            start = index
    return ",".join(found)


def parallelcluster(
    nodes: Sequence[NodeLine], lines: Sequence[GresLine], types: dict[str, InstanceType]
) -> list[Trouble]:
    """Return how ParallelCluster's generated lines differ from what GPUs need, and what each difference costs.

    Its files are written anew at every update: what can be set is set in the cluster's own configuration.
    """
    found = []
    for line in nodes:
        row = next((types[word] for word in line.features if word in types), None)
        if row is None or not row.gpus:
            continue
        names = fold(line.nodes)
        mine = [one for one in lines if one.name == "gpu" and set(one.nodes) & set(line.nodes)]
        if line.cpus and not line.sockets:
            found.append(
                Trouble(
                    "pcluster.no-sockets",
                    f"{line.where}: {names} has CPUs={line.cpus} alone",
                    "Slurm takes each CPU for a socket of its own: Cores= in gres.conf, --gpu-bind=closest and --cpu-bind by socket "
                    "mean nothing",
                    f"CustomSlurmSettings of the compute resource: {topology(row).replace(' ', ', ').replace('=', ': ')}",
                    harmless=True,
                )
            )
        if mine and any(part.cores for part in parts(row)) and all(one.cores is None for one in mine):
            found.append(
                Trouble(
                    "pcluster.no-cores",
                    f"{mine[0].where}: {names} has no Cores=",
                    _FAR,
                    "ParallelCluster writes this file and takes no Gres of yours: bind in the job (--cpu-bind, NCCL's own affinity)",
                    harmless=True,
                )
            )
        found += _counts(line, mine, row, names)
        wanted = int(row.memory_mib * REAL_MEMORY_SHARE)
        if line.real_memory > wanted:
            found.append(
                Trouble(
                    "pcluster.memory",
                    f"{line.where}: RealMemory={line.real_memory}, and 95 % of {row.name} is {wanted}",
                    "a node that registers less goes to INVALID",
                    "Leave SchedulableMemory out, or lower it",
                )
            )
        if any(one.autodetect not in ("", "off") for one in mine) and line.state in ("CLOUD", "FUTURE"):
            found.append(
                Trouble(
                    "pcluster.autodetect",
                    f"{mine[0].where}: AutoDetect for nodes of State={line.state}",
                    "a node that is powered down has nothing to detect",
                    "Use File= lines",
                )
            )
    return found


def _counts(line: NodeLine, mine: Sequence[GresLine], row: InstanceType, names: str) -> list[Trouble]:
    found = []
    words = [word.split("(")[0].split(":") for word in line.gres.split(",") if word.startswith("gpu")]
    offered = sum(int(word[-1]) for word in words if word[-1].isdigit())
    in_file = sum(len(one.files) or one.number for one in mine)
    kinds = {word[1] for word in words if len(word) == 3}
    if offered != row.gpus:
        found.append(
            Trouble(
                "pcluster.count",
                f"{line.where}: {names} offers {offered} GPUs, and {row.name} has {row.gpus}",
                "the rest lie idle" if offered < row.gpus else _DRAINS,
                "DisableGpu or another instance type of the compute resource would explain it",
            )
        )
    if mine and in_file != offered:
        found.append(
            Trouble(
                "pcluster.files",
                f"{mine[0].where}: {in_file} device files for {offered} GPUs of {names}",
                _DRAINS,
                "Update the cluster",
            )
        )
    if kinds - {row.gpu_type}:
        found.append(
            Trouble(
                "pcluster.type",
                f"{line.where}: {names} has gpu:{', '.join(sorted(kinds))}, and {row.name} has {row.gpu_type}",
                "jobs that ask for one type get another, or none",
                "Compare the catalogue with `fmslurm gres check --ec2`",
            )
        )
    return found

"""Many nodes' lines against one another: slurm.conf's nodes and gres.conf, ParallelCluster's generated files. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gres.model import GresLine, NodeLine, Trouble
from slurm_ext.gres.places import known_parts
from slurm_ext.gres.read_conf import gpus_in
from slurm_ext.gres.render import REAL_MEMORY_SHARE, topology
from slurm_ext.gres.rules import DRAINS, FAR, autodetect
from slurm_ext.slurm.hostlist import fold

#: Node states whose machine is not there to be asked when slurmctld needs to know its GPUs.
ABSENT = ("CLOUD", "FUTURE")


class Lines:
    """The lines of gres.conf by node; those without NodeName= hold for every node."""

    def __init__(self, lines: Iterable[GresLine]) -> None:
        self.of_all: list[GresLine] = []
        self.by_node: dict[str, list[GresLine]] = defaultdict(list)
        for line in lines:
            if not line.nodes:
                self.of_all.append(line)
            for node in line.nodes:
                self.by_node[node].append(line)

    def here(self, node: str) -> list[GresLine]:
        """Return all lines that hold for a node."""
        return [*self.by_node.get(node, ()), *self.of_all]

    def gpus(self, node: str) -> list[GresLine]:
        """Return those of its GPUs."""
        return [line for line in self.here(node) if line.name == "gpu"]


def offered(lines: Iterable[GresLine]) -> dict[str, int]:
    """Return how many GPUs of each type lines of gres.conf offer, types in lower case."""
    found: dict[str, int] = {}
    for line in lines:
        if line.name == "gpu" and (line.files or line.multiple_files or line.number):
            kind = line.type.lower()
            found[kind] = found.get(kind, 0) + line.amount
    return found


def cluster(nodes: Sequence[NodeLine], lines: Sequence[GresLine]) -> list[Trouble]:
    """Return where the nodes of a slurm.conf and the lines of its gres.conf do not go together, like nodes told of once."""
    whole = Lines(lines)
    known = {name for node in nodes for name in node.nodes}
    found = []
    if stale := sorted(whole.by_node.keys() - known):
        words = f"gres.conf has lines of {_few(stale)}, and slurm.conf has no such nodes"
        cost = "nothing, until a node of that name is added"
        found.append(Trouble("gres.no-node", words, cost, "Take the lines out", harmless=True))
    groups: dict[Trouble, list[str]] = {}
    for node in nodes:
        for name in node.nodes:
            for trouble in _of_node(node, whole.here(name)):
                groups.setdefault(trouble, []).append(name)
    return found + [trouble._replace(words=f"{_few(names)}: {trouble.words}") for trouble, names in groups.items()]


def _of_node(node: NodeLine, here: Sequence[GresLine]) -> list[Trouble]:
    wanted, has = gpus_in(node.gres), offered(here)
    mine = [line for line in here if line.name == "gpu"]
    found = []
    if detects := autodetect(here):
        if any(word in node.state for word in ABSENT) and (wanted or mine):
            words = f"AutoDetect={detects} for nodes of State={node.state}"
            cost = "a node that is powered down has nothing to detect"
            found.append(Trouble("gres.autodetect", words, cost, "Use File= lines, and AutoDetect=off for these nodes"))
        return found
    if wanted and not mine:
        words = f"Gres={node.gres} in slurm.conf, and no line of gres.conf"
        found.append(
            Trouble("gres.no-line", words, DRAINS, "Write the lines with `fmslurm gres generate` or `gres apply`")
        )
    elif mine and not wanted:
        words = f"{_words(has)} in gres.conf, and no Gres= of GPUs in slurm.conf"
        found.append(Trouble("gres.not-in-slurm", words, "no job can ask for them", "Add Gres= to the NodeName line"))
    elif sum(wanted.values()) != sum(has.values()):
        words = f"{_words(wanted)} in slurm.conf, and {_words(has)} in gres.conf"
        less = sum(has.values()) < sum(wanted.values())
        cost = DRAINS if less else "GPUs that slurm.conf does not count lie idle"
        found.append(Trouble("gres.counts", words, cost, "Make both say what the node has"))
    elif "" not in wanted and wanted != has:
        words = f"{_words(wanted)} in slurm.conf, and {_words(has)} in gres.conf"
        found.append(Trouble("gres.types", words, DRAINS, "Write the types alike"))
    if node.cpus and not node.sockets and not node.cores_per_socket and any(line.cores for line in mine):
        words = f"Cores= in gres.conf, and CPUs={node.cpus} alone in slurm.conf"
        cost = "Slurm takes each CPU for a socket of its own, and Cores= mean others than they say"
        found.append(Trouble("gres.no-sockets", words, cost, "Give Sockets, CoresPerSocket and ThreadsPerCore"))
    most = node.sockets * node.cores_per_socket
    if most and any(line.cores and max(line.cores) >= most for line in mine):
        words = f"Cores= in gres.conf go beyond the {most} cores of Sockets={node.sockets} in slurm.conf"
        found.append(Trouble("gres.cores", words, DRAINS, "Make both say what the node has"))
    return found


def parallelcluster(
    nodes: Sequence[NodeLine], lines: Sequence[GresLine], find: Callable[[str], InstanceType | None]
) -> list[Trouble]:
    """Return how ParallelCluster's generated lines differ from what GPUs need, and what each difference costs.

    Its files are written anew at every update: what can be set is set in the cluster's own configuration. `find` looks a type up.
    """
    found, whole = [], Lines(lines)
    for line in nodes:
        row = next((row for word in line.features if (row := find(word)) is not None), None)
        if row is None or not row.gpus or not line.nodes:
            continue
        names, here = fold(line.nodes), whole.here(line.nodes[0])
        mine = [one for one in here if one.name == "gpu"]
        if line.cpus and not line.sockets and row.sockets:
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
        if mine and any(part.cores for part in known_parts(row)) and all(one.cores is None for one in mine):
            found.append(
                Trouble(
                    "pcluster.no-cores",
                    f"{mine[0].where}: {names} has no Cores=",
                    FAR,
                    "ParallelCluster writes this file and takes no Gres of yours: bind in the job (--cpu-bind, NCCL's own affinity)",
                    harmless=True,
                )
            )
        found += _counts(line, mine, row, names)
        wanted = int(row.memory_mib * REAL_MEMORY_SHARE)
        if line.real_memory > wanted > 0:
            found.append(
                Trouble(
                    "pcluster.memory",
                    f"{line.where}: RealMemory={line.real_memory}, and 95 % of {row.name} is {wanted}",
                    "a node that registers less goes to INVALID",
                    "Leave SchedulableMemory out, or lower it",
                )
            )
        if autodetect(here) and line.state in ABSENT:
            where = next(one.where for one in here if one.autodetect)
            found.append(
                Trouble(
                    "pcluster.autodetect",
                    f"{where}: AutoDetect for nodes of State={line.state}",
                    "a node that is powered down has nothing to detect",
                    "Use File= lines",
                )
            )
    if stale := sorted(whole.by_node.keys() - {name for line in nodes for name in line.nodes}):
        words = f"gres lines of {_few(stale)}, which no partition file has"
        cost = "nothing by itself: these files are of different updates"
        found.append(Trouble("pcluster.stale", words, cost, "Update the cluster", harmless=True))
    return found


def _counts(line: NodeLine, mine: Sequence[GresLine], row: InstanceType, names: str) -> list[Trouble]:
    found, wanted, in_file = [], gpus_in(line.gres), sum(offered(mine).values())
    count = sum(wanted.values())
    if count != row.gpus:
        found.append(
            Trouble(
                "pcluster.count",
                f"{line.where}: {names} offers {count} GPUs, and {row.name} has {row.gpus}",
                "the rest lie idle" if count < row.gpus else DRAINS,
                "DisableGpu or another instance type of the compute resource would explain it",
            )
        )
    if in_file != count:
        where = mine[0].where if mine else line.where
        found.append(
            Trouble(
                "pcluster.files",
                f"{where}: {in_file} device files for {count} GPUs of {names}",
                DRAINS,
                "Update the cluster",
            )
        )
    if other := wanted.keys() - {row.gpu_type, ""}:
        found.append(
            Trouble(
                "pcluster.type",
                f"{line.where}: {names} has gpu:{', '.join(sorted(other))}, and {row.name} has {row.gpu_type}",
                "jobs that ask for one type get another, or none",
                "Compare the catalogue with `fmslurm gres check --ec2`",
            )
        )
    return found


def _words(gpus: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}".strip() for kind, count in sorted(gpus.items())) or "no GPU"


def _few(names: Sequence[str]) -> str:
    """Return nodes as a hostlist that a person can read."""
    text = fold(names)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(names)} nodes)"

"""What is wrong on one node: its own facts against gres.conf and the catalogue's row of its type. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gres.model import Gpu, GresLine, NodeFacts, Trouble
from slurm_ext.gres.places import numa_as_sockets, seen_parts, seen_split, socket_cores
from slurm_ext.gres.read_conf import ranges
from slurm_ext.gres.render import topology

_NUMBERED = re.compile(r".*/nvidia([0-9]{1,4})")

DRAINS = "slurmd registers fewer GPUs than slurm.conf has, and the node is drained or set INVALID"
FAR = "jobs get processors of the other socket: copies and launches cross the link between sockets"

#: What names a GPU's model (a100, l40s, b200); other types are the site's own words and are compared with nothing.
_MODEL = re.compile(r"[a-z]{1,2}\d{1,4}[a-z]{0,2}")


def node(
    facts: NodeFacts, row: InstanceType | None, lines: Sequence[GresLine], name: str, *, numa_as_socket: bool = False
) -> list[Trouble]:
    """Return what is wrong on one node: its facts against its type's row and against the lines of gres.conf for it.

    `numa_as_socket`: slurm.conf has SlurmdParameters=numa_node_as_socket.
    """
    found = _against_row(facts, row) if row is not None else []
    if numa_as_socket:
        facts = numa_as_sockets(facts)
    here = [line for line in lines if not line.nodes or name in line.nodes]
    mine, detects = [line for line in here if line.name == "gpu"], autodetect(here)
    if mine:
        found += _against_lines(facts, mine)
    elif lines and facts.gpus and not detects:
        found.append(
            Trouble(
                "gres.not-offered",
                f"gres.conf has no line of GPUs for {name}, which has {len(facts.gpus)}",
                "no job can ask for them",
                "Write the lines with `fmslurm gres generate`",
            )
        )
    return found


def autodetect(lines: Sequence[GresLine]) -> str:
    """Return what detects the GPUs of a node, whose lines and those of all nodes these are; empty where nothing does."""
    own = [line.autodetect for line in lines if line.autodetect and line.nodes]
    found = (own or [line.autodetect for line in lines if line.autodetect] or [""])[-1]
    return "" if found == "off" else found


def _against_row(facts: NodeFacts, row: InstanceType) -> list[Trouble]:
    found = []
    if not _untold(facts) and len(facts.gpus) != row.gpus:
        found.append(
            Trouble(
                "gres.count",
                f"{row.name} has {row.gpus} GPUs, and the driver shows {len(facts.gpus)}",
                DRAINS,
                "Look at the node with `fmslurm gate check`; a GPU that fell off needs a reboot or another instance",
            )
        )
    shape = (facts.sockets, facts.cores_per_socket, facts.threads_per_core)
    wanted = (row.sockets, row.cores_per_socket, row.threads_per_core)
    if facts.cpus and row.sockets and shape != wanted:
        seen = f"Sockets={shape[0]} CoresPerSocket={shape[1]} ThreadsPerCore={shape[2]}"
        if not facts.cores_per_socket:
            seen = f"{facts.sockets} sockets of different size with {facts.cpus} processors"
        found.append(
            Trouble(
                "gres.processors",
                f"the node has {seen}, and {row.name} is {topology(row)}",
                "slurmd registers another shape than slurm.conf has, and Cores= mean other processors",
                f"Put {seen} on its NodeName line, unless CPU options of the launch template are to be taken back"
                if facts.cores_per_socket
                else "Look which processors are offline",
            )
        )
    by_socket = seen_split(facts)
    if sum(by_socket) == row.gpus and row.gpus_by_socket and by_socket != row.gpus_by_socket:
        found.append(
            Trouble(
                "gres.split",
                f"GPUs by socket are {by_socket} here, and the catalogue has {row.gpus_by_socket} for {row.name}",
                "the Cores= that `gres generate` writes without this node's facts are not this machine's",
                "`fmslurm gres show --here --json` on the node, and give that to `fmslurm gres generate --facts`; tell us",
            )
        )
    return found


def _untold(facts: NodeFacts) -> bool:
    """Say whether GPUs may be there that the driver did not tell of: what it lacks then is no finding."""
    return any("driver/nvidia" in path for path in facts.unread)


def _against_lines(facts: NodeFacts, lines: Sequence[GresLine]) -> list[Trouble]:
    found = _among_lines(facts, lines)
    parted = any(line.multiple_files for line in lines)  # MIG: what its lines offer is not compared with GPUs
    by_name = {f"nvidia{gpu.number}": gpu for gpu in facts.gpus}
    offered = set()
    for line in lines:
        for path in line.files:
            offered.add(path.rpartition("/")[2])
            found += _against_file(facts, line, path, by_name.get(path.rpartition("/")[2]))
    missing = [gpu.number for gpu in facts.gpus if f"nvidia{gpu.number}" not in offered]
    if missing and offered and not parted:
        shown = ", ".join(f"/dev/nvidia{number}" for number in missing)
        found.append(
            Trouble(
                "gres.left-out",
                f"no line offers {shown}",
                "these GPUs lie idle",
                "Add them to File= and to Gres= of the node",
            )
        )
    if any(line.cores is None for line in lines) and facts.sockets > 1 and not parted:
        found.append(_no_cores(lines, facts))
    return found


def _against_file(facts: NodeFacts, line: GresLine, path: str, gpu: Gpu | None) -> list[Trouble]:
    if gpu is None and _untold(facts):
        return []
    if gpu is None or not gpu.has_file:
        what = "the driver shows no such GPU" if gpu is None else "there is no such device file"
        return [Trouble("gres.no-device", f"{line.where}: {path}: {what}", DRAINS, "Correct File=, or mend the node")]
    found = []
    if gpu.model and _is_other_model(line.type, gpu.model):
        found.append(
            Trouble(
                "gres.type",
                f"{line.where}: Type={line.type}, and {path} is a {gpu.model}",
                "jobs that ask for one type get another",
                "Correct Type=; with AutoDetect a wrong one drains the node",
            )
        )
    near = socket_cores(facts, gpu)
    if line.cores is not None and near and not line.cores <= near:
        found.append(
            Trouble(
                "gres.far-cores",
                f"{line.where}: {path} hangs at NUMA node {gpu.numa_node} (cores {ranges(near)}), "
                f"and Cores={ranges(line.cores)}",
                FAR,
                f"Cores={ranges(near)} for this file: the order of GPUs need not follow the order of sockets",
            )
        )
    return found


def _is_other_model(kind: str, model: str) -> bool:
    """Say whether a Type= names another model than the driver does; `b200` is no `GB200`."""
    wanted = kind.lower()
    return _MODEL.fullmatch(wanted) is not None and wanted not in re.split(r"[\s_-]+", model.lower())


def _among_lines(facts: NodeFacts, lines: Sequence[GresLine]) -> list[Trouble]:
    """Return what is wrong with the lines by themselves."""
    found, seen = [], dict[str, str]()
    for line in lines:
        for path in line.files:
            if path in seen:
                words = f"{line.where}: {path} stands in {seen[path]}, too"
                found.append(Trouble("gres.twice", words, "two jobs get one GPU", "Name each device file once"))
            seen[path] = line.where
        if not line.files and not line.multiple_files and not line.autodetect:
            words = f"{line.where}: {line.amount} GPUs without File="
            found.append(
                Trouble("gres.no-file", words, "slurmd takes no GPU without one (gres.conf(5))", "Write File= lines")
            )
        if line.files and line.number not in (0, len(line.files)):
            words = f"{line.where}: Count={line.number} and {len(line.files)} files"
            found.append(Trouble("gres.count-files", words, "Slurm takes neither", "Leave Count= out"))
        if line.cores is not None and (odd := _part_of_socket(line.cores, facts)):
            found.append(
                Trouble(
                    "gres.part-of-socket",
                    f"{line.where}: Cores={ranges(line.cores)} covers {odd}",
                    "slurmctld takes whole sockets only (SlurmdParameters=numa_node_as_socket: whole NUMA nodes); the node is drained",
                    f"Cover whole sockets of {facts.cores_per_socket} cores",
                )
            )
    listed = [int(match[1]) for line in lines for path in line.files if (match := _NUMBERED.fullmatch(path))]
    if listed != sorted(listed):
        found.append(
            Trouble(
                "gres.order",
                f"{lines[0].where}: device files stand in the order {', '.join(map(str, listed))}",
                "Slurm counts them as they stand, and CUDA_VISIBLE_DEVICES is that count: jobs see other GPUs than they got",
                "Put the lines in the order of the devices, a line for each run at one socket",
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
    shown = (f"File=/dev/nvidia[{ranges(part.numbers)}] Cores={part.cores}" for part in seen_parts(facts))
    wanted = "; ".join(shown)
    return Trouble(
        "gres.no-cores",
        f"{lines[0].where}: no Cores=, and the node has {facts.sockets} sockets",
        FAR,
        f"This node shows: {wanted}" if wanted else "At which sockets its GPUs hang cannot be read here",
        harmless=True,
    )


def _part_of_socket(cores: frozenset[int], facts: NodeFacts) -> str:
    """Return in words which socket is covered in part, or is none; empty where all is whole."""
    size = facts.cores_per_socket
    if size <= 0:
        return ""
    if facts.sockets and max(cores) >= facts.sockets * size:
        return f"core {max(cores)}, and the node has {facts.sockets * size}"
    for socket in sorted({core // size for core in cores}):
        whole = set(range(socket * size, (socket + 1) * size))
        if not whole <= cores:
            return f"{len(whole & cores)} of {size} cores of socket {socket}"
    return ""

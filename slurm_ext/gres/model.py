"""What a node really has, what gres.conf says it has, and what is wrong, as data."""

from __future__ import annotations

from slurm_ext.typed import NamedTuple


class Gpu(NamedTuple):
    """One GPU as the node shows it: device number, model, PCI address, NUMA node (-1: none told), and whether its file is there."""

    number: int
    model: str = ""
    bus: str = ""
    numa_node: int = -1
    has_file: bool = True


class NodeFacts(NamedTuple):
    """A node's own facts. Cores are Slurm's logical ones: socket 0 has the first `cores_per_socket`, and so on.

    `numa_cores`: NUMA node -> its logical cores. `unread` names what could not be read.
    """

    instance_type: str
    gpus: tuple[Gpu, ...]
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    cpus: int
    numa_cores: dict[int, frozenset[int]]
    unread: tuple[str, ...] = ()


class Part(NamedTuple):
    """GPUs of one node that share a socket: their device numbers, and the socket's cores (empty: not known)."""

    numbers: tuple[int, ...]
    cores: str = ""


class GresLine(NamedTuple):
    """One line of gres.conf: keys in lower case, hostlists and file lists expanded; `where` is file and line."""

    where: str
    nodes: tuple[str, ...]  # empty: every node
    name: str = ""
    type: str = ""
    files: tuple[str, ...] = ()
    number: int = 0  # Count=, 0 where it does not say
    cores: frozenset[int] | None = None
    autodetect: str = ""
    multiple_files: bool = False  # MultipleFiles=: parts of GPUs (MIG), whose files are no GPUs of their own

    @property
    def amount(self) -> int:
        """Return how many of its kind the line offers: Count=, else a file each, else one (gres.conf(5))."""
        return self.number or len(self.files) or 1


class NodeLine(NamedTuple):
    """One NodeName line of slurm.conf, as far as GPUs concern it; 0 where it does not say."""

    where: str
    nodes: tuple[str, ...]
    cpus: int = 0
    sockets: int = 0
    cores_per_socket: int = 0
    threads_per_core: int = 0
    real_memory: int = 0
    state: str = ""
    gres: str = ""
    features: tuple[str, ...] = ()


class Trouble(NamedTuple):
    """One thing that is wrong: a short id, what is seen, what it costs, and what to do. `harmless`: it only costs speed."""

    id: str
    words: str
    cost: str
    remedy: str
    harmless: bool = False

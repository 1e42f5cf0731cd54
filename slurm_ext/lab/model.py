"""What a lab is made of, as data: options, nodes, and the state that `lab.json` holds. Times in seconds, sizes in MiB.

The state is written before and after each stage of `up`, so a lab that was killed half-way still says what it meant to be.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_ext.errors import LackingError, UsageError

SCHEMA = 1
#: Survives a reboot of the machine, so that `down` finds its journal; `up` refuses a folder that is not empty and no lab.
DEFAULT_DIR = "/var/tmp/fmslurm-lab"  # noqa: S108
DEMO_DIR = "/var/tmp/fmslurm-demo"  # noqa: S108

#: netns: every node has network, UTS, PID and mount namespaces of its own. loopback: all on 127.0.0.1, a port each.
MODES = ("netns", "loopback")

#: The environment variable that marks every process a lab started; its value is the lab's folder.
MARK = "FMSLURM_LAB"
HARDWARE = "FMSLURM_LAB_HARDWARE"

#: Always said on screen, so that no figure of a lab is taken for one of real hardware.
SIMULATED = "hardware is simulated: GPUs, NVLink, EFA, NVMe, Lustre and EC2 are stand-ins; Slurm, munge and S3 are real"

#: A unix socket's path has 107 characters; the longest of ours below the folder needs about 30.
MAX_DIR_CHARS = 72


@dataclass(frozen=True)
class LabOptions:
    """What `lab up` may be told. `s3` is wait, background or off; `mode` is auto or one of MODES."""

    dir: str = DEFAULT_DIR
    nodes: int = 8
    prefix: str = ""
    instance_type: str = "p5.48xlarge"
    mode: str = "auto"
    cgroup: bool = False
    ready: bool = False
    s3: str = "wait"
    timeout_s: float = 90.0
    keep_logs: bool = False  # of a start that failed


@dataclass(frozen=True)
class LabNode:
    """One node: its address and slurmd's port, what EC2 would call it, and the process that holds its namespaces."""

    name: str
    index: int
    address: str
    port: int
    instance_id: str
    holder: Pid | None = None
    down: bool = False  # by the fault node-death


@dataclass(frozen=True)
class Pid:
    """A process, with its start time (clock ticks since boot, proc(5)) so that a reused number is not mistaken for it."""

    pid: int
    start: int


@dataclass(frozen=True)
class State:
    """lab.json."""

    dir: str
    id: str
    mode: str
    why_mode: str
    prefix: str
    cluster: str
    slurm_version: str
    instance_type: str
    cgroup: bool
    subnet: str
    head: LabNode
    nodes: tuple[LabNode, ...]
    controller_port: int
    s3_port: int = 0  # 0: no S3 server in this lab
    s3_ports: tuple[int, ...] = ()
    link: str = ""  # the one network link outside the lab's namespaces
    host_address: str = ""
    stage: str = "planned"
    standins: str = ""  # "built", or why not
    floors: dict[str, float] = field(default_factory=dict)
    faults: tuple[dict[str, Any], ...] = ()
    created: float = 0.0
    schema: int = SCHEMA

    def node(self, name: str) -> LabNode:
        """Return a node (or the head node) by name. Raise UsageError where the lab has none of that name."""
        for node in (*self.nodes, self.head):
            if node.name == name:
                return node
        raise UsageError(f"this lab has no node {name!r}", remedy=f"Its nodes: {', '.join(n.name for n in self.nodes)}")

    def with_node(self, changed: LabNode) -> State:
        """Return the state with one node (or the head) replaced by its new self."""
        if changed.name == self.head.name:
            return replace(self, head=changed)
        return replace(self, nodes=tuple(changed if node.name == changed.name else node for node in self.nodes))


def dump(state: State) -> bytes:
    """Return lab.json's text."""
    return (json.dumps(asdict(state), indent=1) + "\n").encode()


def parse(text: str | bytes) -> State:
    """Return the state that `dump` wrote. Raise ValueError where the text is another shape."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError("not a lab.json of this version")
    try:
        data["head"] = _node(data["head"])
        data["nodes"] = tuple(_node(entry) for entry in data["nodes"])
        data["s3_ports"] = tuple(data["s3_ports"])
        data["faults"] = tuple(data["faults"])
        return State(**data)
    except (KeyError, TypeError) as exc:
        raise ValueError(f"not a lab.json of this version: {exc}") from exc


def load(directory: str) -> State:
    """Read lab.json of a lab's folder. Raise LackingError where there is no lab or its file cannot be read."""
    path = Path(directory) / "lab.json"
    try:
        return parse(path.read_bytes())
    except FileNotFoundError as exc:
        raise LackingError(f"no lab in {directory}", remedy="Start one with `fmslurm lab up`") from exc
    except (OSError, ValueError) as exc:
        raise LackingError(f"{path} cannot be read: {exc}", remedy="Run `fmslurm lab down`, then `up` again") from exc


def _node(entry: dict[str, Any]) -> LabNode:
    holder = entry.pop("holder")
    return LabNode(**entry, holder=Pid(**holder) if holder else None)

"""Which programs hold GPUs, from --query-compute-apps, the default table or the XML of nvidia-smi, and whether they may.

Pure. Without a job on the node only the node's own services may hold a GPU: a next job would find memory in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.process_rules import Jobs, Process, is_person
from slurm_ext.gate.smi import pci_address
from slurm_ext.gate.tables import listed, words_of
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN

#: Services of a node that open GPUs: DCGM, persistence, fabric and IMEX daemons, MPS, monitoring, the X server.
SERVICES = words_of(
    "nv-hostengine dcgm dcgm-exporter dcgmi nvidia-dcgm nvidia-persistenced nv-fabricmanager nvidia-fabricmanager"
    " nv-fabricmanage nvidia-imex nvlsm nvsm_core nvidia-smi nvidia-cuda-mps-server nvidia-cuda-mps-control nvidia-cuda-mps"
    " Xorg X Xwayland gnome-shell gnome-session gdm-x-session lightdm sddm mutter gpud nvtop nvitop node_exporter telegraf"
    " nvidia_gpu_exporter nvidia-settings datadog-agent amazon-cloudwatch-agent cdi-generate nvidia-container-cli"
    " dcvserver dcvagent dcvxgrabber dcvglxtest dcgm_exporter"
)

#: An idle GPU holds a few MiB to some hundred (driver, MIG); above this something has not been given back.
IDLE_MEMORY_MIB = 1024.0

_SERVES_A_USER = pattern(r"cuda-mps|X(?:org|wayland)?\b|gnome|mutter|gdm")
_ROW = pattern(
    r"\|\s+(\d+)\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(\d+)\s+((?:M\+)?[CG](?:\+[CG])?)\s+(\S.*?)\s+(\d+MiB|N/A)\s*\|"
)
_GPU_LINE = pattern(r"\|\s+(\d+)\s+\S.*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_MEMORY = pattern(r"(\d+)MiB\s*/\s*(\d+)MiB")
_ADDRESS = pattern(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d")
_XML_GPU = pattern(r'<gpu id="([^"]+)">(.*?)(?:</gpu>|$)', 16)  # 16: re.DOTALL
_XML_PROCESS = pattern(r"<process_info>(.*?)</process_info>", 16)
_XML_FIELD = pattern(r"<(\w+)>([^<]*)</\1>")


class Holder(NamedTuple):
    """One program on one GPU: by address where that is told, else by nvidia-smi's index."""

    pid: int | None
    name: str
    memory: str = ""
    pci: str = ""
    number: int | None = None

    @property
    def target(self) -> str:
        """Return the GPU as findings name it, or the node where the list does not tell the GPU."""
        return f"gpu@{self.pci}" if self.pci else f"gpu:{self.number}" if self.number is not None else "node"


class Table(NamedTuple):
    """What the default table holds: programs, and memory in use (MiB) by GPU index."""

    holders: tuple[Holder, ...] = ()
    used_mib: tuple[tuple[int, float], ...] = ()
    complete: bool = False


def parse_apps(text: str) -> tuple[list[Holder], bool] | None:
    """Return the rows of --query-compute-apps as CSV, with or without header and units, and whether all could be read.

    None where it is no such list.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    names = [name.split("[")[0].strip() for name in lines[0].split(",")]
    if "pid" in names:
        lines = lines[1:]
    else:
        names = []
    holders: list[Holder] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if names:
            row = _named(cells, names)
        elif line.strip().lower().startswith("no running"):
            continue
        else:
            row = _guessed(cells)
        if row is None:
            return (holders, False) if names or (holders and line is lines[-1]) else None
        holders.append(row)
    return holders, True


def _named(cells: list[str], names: Sequence[str]) -> Holder | None:
    name_at = next((at for at, name in enumerate(names) if name in ("process_name", "name")), None)
    extra = len(cells) - len(names)
    if extra > 0 and name_at is not None:  # a comma in the program's name
        cells = [*cells[:name_at], ",".join(cells[name_at : name_at + extra + 1]), *cells[name_at + extra + 1 :]]
    if len(cells) != len(names):
        return None
    row = dict(zip(names, cells, strict=True))
    if not row["pid"].isdecimal():
        return None
    name = row.get("process_name", row.get("name", ""))
    memory = row.get("used_gpu_memory", row.get("used_memory", ""))
    return Holder(int(row["pid"]), name, memory, pci_address(row.get("gpu_bus_id", "")))


def _guessed(cells: Sequence[str]) -> Holder | None:
    """Return a row without its header by the form of its cells: the first bare number is the process."""
    pid = next((int(cell) for cell in cells if cell.isdecimal()), None)
    told = any(cell.endswith("MiB") or cell == "[N/A]" or _ADDRESS.fullmatch(cell) for cell in cells)
    if (
        pid is None
        or len(cells) < 2
        or not (told or (len(cells) < 5 and cells[0].isdecimal() and "/" in "".join(cells)))
    ):
        return None
    pci = next((pci_address(cell) for cell in cells if _ADDRESS.fullmatch(cell)), "")
    memory = next((cell for cell in cells if cell.endswith("MiB") or cell == "[N/A]"), "")
    rest = [cell for cell in cells if not cell.isdecimal() and cell != memory and not _ADDRESS.fullmatch(cell)]
    name = next((cell for cell in rest if not cell.startswith(("GPU-", "MIG-", "NVIDIA", "Tesla"))), "")
    return Holder(pid, name, memory, pci)


def parse_table(text: str) -> Table:
    """Return the default table; complete where its list of processes was reached."""
    holders, used, number = [], [], None
    listing = complete = False
    for line in text.splitlines():
        listing = listing or "Processes:" in line
        if not listing:
            if found := _GPU_LINE.match(line):
                number = int(found[1])
            elif number is not None and (memory := _MEMORY.search(line)):
                used.append((number, float(memory[1])))
                number = None
        elif found := _ROW.match(line):
            holders.append(Holder(int(found[2]), found[4].strip(), found[5], number=int(found[1])))
            complete = True
        elif "No running processes" in line:
            complete = True
    return Table(tuple(holders), tuple(used), complete)


def parse_xml(text: str) -> list[Holder]:
    """Return the programs in the answer of `nvidia-smi -q -x`."""
    holders = []
    for gpu in _XML_GPU.finditer(text):
        for entry in _XML_PROCESS.finditer(gpu[2]):
            row = {field[1]: field[2].strip() for field in _XML_FIELD.finditer(entry[1])}
            if row.get("pid", "").isdecimal():
                name = row.get("process_name", "")
                holders.append(Holder(int(row["pid"]), name, row.get("used_memory", ""), pci_address(gpu[1])))
    return holders


def is_service(name: str) -> bool:
    """Return whether a program is one of the node's own services, by its name (nvidia-smi cuts long paths in front)."""
    words = name.replace("\\ ", " ").split() or [""]
    last = words[0].rsplit("/", 1)[-1]
    if last.startswith("...") and len(last) > 8:
        return any(service.endswith(last[3:]) for service in SERVICES)
    return last in SERVICES


def serves(name: str, user: int | None) -> bool:
    """Return whether a program is a service of the node: by its name where the system runs it, else only what serves users.

    A name alone is anybody's to choose; X and MPS servers do run as the user they serve. `user` is None where not known.
    """
    return is_service(name) and (user is None or not is_person(str(user)) or bool(_SERVES_A_USER.search(name)))


def judge(holders: Sequence[Holder], jobs: Jobs, processes: Sequence[Process] = ()) -> list[Judged]:
    """Return which GPUs are held by programs that no job of this node owns; `processes` names what nvidia-smi could not."""
    by_pid = {process.pid: process for process in processes if process.pid is not None}
    left: dict[str, list[str]] = {}
    open_: dict[str, list[str]] = {}
    for holder in holders:
        process = by_pid.get(holder.pid) if holder.pid is not None else None
        name = holder.name
        if process is not None and (name.startswith("[") or not name.strip("-") or "..." in name):
            name = process.command or name
        # A name alone is anybody's to choose; X and MPS servers do run as the user they serve.
        trusted = process is None or not is_person(process.user) or _SERVES_A_USER.search(name)
        if trusted and (is_service(name) or (process is not None and is_service(process.command))):
            continue
        words = f"pid {holder.pid} {name} {holder.memory}".strip()
        if jobs.ids is None or (jobs.none_here and "insufficient permissions" in name.lower()):
            open_.setdefault(holder.target, []).append(words)
        elif jobs.none_here or (process is not None and jobs.foreign(process)):
            left.setdefault(holder.target, []).append(words)
    items = [
        judged(FAIL, "gpu.leftover-processes", target, "drain", f"no job here owns {listed(words)}")
        for target, words in left.items()
    ]
    return items + [
        judged(UNKNOWN, "gpu.processes-unattributed", target, "none", f"whose they are is not known: {listed(words)}")
        for target, words in open_.items()
        if target not in left
    ]


def judge_memory(table: Table, jobs: Jobs) -> list[Judged]:
    """Return the GPUs whose memory is in use though no program is listed and no job is on the node."""
    if not table.complete or not jobs.none_here:
        return []
    held = {holder.number for holder in table.holders}
    return [
        judged(
            FAIL, "gpu.memory-leak", f"gpu:{number}", "reset-gpu", f"{used:.0f} MiB in use, and no program is listed"
        )
        for number, used in table.used_mib
        if used > IDLE_MEMORY_MIB and number not in held
    ]

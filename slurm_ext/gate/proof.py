"""What must have been read, and well, for a finding to be proven gone: one rule for each finding that can drain. Pure.

That no finding stands is no proof: a value that came back as `[N/A]`, a GPU that is not listed, a file that could not be read say
nothing at all, and most often of just the thing that is broken. So each rule names positive readings: this very target was
there, and this very value was read and is good. A finding without a rule is not proven gone by any look.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gate.model import Facts, Gpu
from slurm_ext.typed import NamedTuple

#: What proves a finding gone that no look between jobs can show.
PERSON = "a person's word (fmslurm node resume): no look between jobs shows whether it is gone"
BURNIN = "a burn-in that passes with this node (fmslurm burnin run)"
SLOW = "DCGM's diagnostic, run to its end since the drain"
LOOPBACK = "EFA's loopback (gate.efa_loopback), passed over this device since the drain"

#: How the driver says that it is loaded, and how long (seconds) after the boot that is still a part of it.
_LOADED = "NVRM: loading NVIDIA "
LOADED_BY_S = 600.0

#: Other than these nothing is a healthy GPU's registration with its fabric (nvidia-smi's own words).
_FABRIC = ("Completed", "Success")


class Case(NamedTuple):
    """A finding (id and target), what the node showed now, and its type's row (None: no table of ours has it).

    `gpu`: which GPU its target numbered when the node was drained (`gpu_of`).
    """

    finding: str
    target: str
    facts: Facts
    row: InstanceType | None = None
    gpu: str = ""


#: Returns which reading is missing, in words; empty: it was made, and is good.
Reader = Callable[[Case], str]


class Rule(NamedTuple):
    """For the finding `id` (all that begin so, where it ends in - or .): the readings that prove it gone, all of them.

    `needs`: what proves it in the place of a look (PERSON, BURNIN, SLOW).
    """

    id: str
    reads: tuple[Reader, ...] = ()
    needs: str = ""


def missing(case: Case) -> str:
    """Return in words which reading is missing to prove a finding gone; empty where all were made and are good."""
    rule = rule_of(case.finding)
    if rule is None:
        return f"no rule says what must be read to prove {case.finding} gone; it needs {PERSON}"
    if rule.needs:
        return f"it needs {rule.needs}"
    return next((said for read in rule.reads if (said := read(case))), "")


def rule_of(finding: str) -> Rule | None:
    """Return the rule of a finding, the nearest of its families where it has none of its own; None where nothing is said of it."""
    found = [one for one in RULES if one.id == finding or (one.id.endswith(("-", ".")) and finding.startswith(one.id))]
    return max(found, key=lambda one: len(one.id), default=None)


def gpu_of(facts: Facts, target: str) -> str:
    """Return address and UUID of the GPU that a target numbers now, as far as they are listed; empty where none surely is."""
    gpus = facts.smi.gpus if facts.smi is not None and target.startswith("gpu:") else ()
    found = [gpu for gpu in gpus if gpu.target == target]
    return f"{found[0].pci} {found[0].uuid}".strip() if len(found) == 1 and found[0].pci else ""


def _list_whole(case: Case) -> str:
    smi = case.facts.smi
    if smi is None:
        return "there is no nvidia-smi"
    if smi.timed_out or not smi.complete or smi.excerpt or smi.exit_code != 0 or not smi.gpus:
        return "nvidia-smi gave no whole answer"
    if case.row is None or not case.row.gpus:
        # With one GPU less the numbers of the others change, so that another answers in its place. An address stays.
        if not case.gpu and not case.target.startswith("gpu@"):
            return f"how many GPUs belong here is not known, since no table has this instance type; it needs {PERSON}"
    elif len(smi.gpus) < case.row.gpus:
        return f"nvidia-smi lists {len(smi.gpus)} of {case.row.gpus} GPUs"
    blank = next((gpu for gpu in smi.gpus if gpu.trouble or not gpu.pci), None)
    return f"nvidia-smi tells nothing of {blank.target}" if blank is not None else ""


def _about(case: Case) -> tuple[Gpu, ...]:
    """Return the GPUs that a finding is about: its target, or all of them where it is about the node."""
    gpus = case.facts.smi.gpus if case.facts.smi is not None else ()
    if not case.target.startswith("gpu"):
        return gpus
    if case.gpu and (case.row is None or not case.row.gpus):
        pci, _, uuid = case.gpu.partition(" ")
        return tuple(gpu for gpu in gpus if gpu.pci == pci and (not uuid or gpu.uuid == uuid))
    return tuple(gpu for gpu in gpus if case.target in (gpu.target, f"gpu@{gpu.pci}"))


def _listed(case: Case) -> str:
    if said := _list_whole(case):
        return said
    which = f"{case.target} ({case.gpu})" if case.gpu else case.target
    return "" if _about(case) else f"{which} is not listed by nvidia-smi"


def _value(words: str, read: Callable[[Gpu], object], *good: object) -> tuple[Reader, ...]:
    """Return the readers of one value of the GPUs that a finding is about: read, and one of `good` where any are named."""

    def reader(case: Case) -> str:
        for gpu in _about(case):
            value = read(gpu)
            if value is None or value == "":
                return f"{words} of {gpu.target} could not be read"
            if good and value not in good:
                return f"{words} of {gpu.target} is {value}"
        return ""

    return (_listed, reader)


def _programs(case: Case) -> str:
    return "which programs are on the GPUs could not be read" if case.facts.holders is None else ""


def _links(case: Case) -> str:
    from slurm_ext.aws import gpu_types
    from slurm_ext.gate import gpu_nvlink

    state = case.facts.links.state if case.facts.links is not None else None
    if state is None:
        return "the states of the NVLinks could not be read"
    wanted = gpu_types.NVLINKS.get(case.row.gpu_type) if case.row is not None else None
    if wanted is None:
        return "how many NVLinks belong here is not known"
    up = gpu_nvlink.up(state)
    short = next((gpu for gpu in _about(case) if up.get(-1 if gpu.number is None else gpu.number, 0) < wanted), None)
    return f"not all {wanted} NVLinks of {short.target} were read as up" if short is not None else ""


def _log(case: Case) -> str:
    if case.facts.kernel is None:
        return "the kernel log could not be read"
    return "the kernel log of this boot has lost its older lines" if case.facts.kernel_lost else ""


def _gpu_log(case: Case) -> str:
    """A log that has lost its oldest lines alone is whole for GPUs, where the driver was loaded after them.

    Nothing speaks of a GPU before its driver is there, and it is loaded while the node boots: a line that says so much later
    is of a driver that was loaded anew.
    """
    said = _log(case)
    if not said or case.facts.kernel is None or case.facts.kernel_cut:
        return said
    first = next((line for line in case.facts.kernel if "NVRM" in line.text or "SXid" in line.text), None)
    if first is None or not first.text.startswith(_LOADED) or not first.since_boot or first.at_s is None:
        return f"{said}, and no line says that the GPUs' driver was loaded after them"
    return "" if first.at_s <= LOADED_BY_S else f"{said}, and the driver was loaded {first.at_s:.0f} s after the boot"


def _scratch(case: Case) -> str:
    return _answers(case, "scratch", "was written to and told its space")


def _mount(case: Case) -> str:
    return _answers(case, "lustre", "answered")


def _answers(case: Case, which: str, words: str) -> str:
    probes = case.facts.scratch if which == "scratch" else case.facts.lustre
    found = any(f"fs:{one.path}" == case.target and not one.error and one.free_percent is not None for one in probes)
    return "" if found else f"nothing says that {case.target} {words}"


def _mount_or_table(case: Case) -> str:
    """A mount that is asked by a file call answers; any other stands in the kernel's table, and takes writes."""
    is_asked = any(f"fs:{one.path}" == case.target for one in case.facts.lustre)
    return _mount(case) if is_asked else _read("system", "mounts")(case)


def _device(case: Case) -> str:
    """A GPU is listed, an EFA device has been read; what else is on the bus is known by the kernel's words alone."""
    if case.target.startswith("gpu"):
        return _listed(case)
    return _read("efa", "devices")(case) if case.target.startswith("efa:") else ""


def _disk(case: Case) -> str:
    """The kernel may name a part of a disk; the disk's own state is what can be read."""
    begin, middle, end = case.target.rpartition("p")
    is_part = bool(middle) and end.isdigit() and begin.startswith("disk:nvme")
    return _read("system", "disks")(case._replace(target=begin) if is_part else case)


def _service(case: Case) -> str:
    return _read("system", "services")(case._replace(target=case.finding))


def _read(probe: str, what: str, *, node: bool = False) -> Reader:
    """Return the reader of what a probe said that it read and found good: this target, or the node where that is enough."""

    def reader(case: Case) -> str:
        probed = case.facts.probed.get(probe)
        kept = probed.kept.get("read") if probed is not None else None
        listed = kept.get(what) if isinstance(kept, dict) else None
        wanted = "node" if node else case.target
        if isinstance(listed, list) and wanted in listed:
            return ""
        whose = "" if node or what == "services" else f" of {case.target}"
        return f"{_WORDS[what]}{whose} was not read, or not as good"

    return reader


#: What a probe may say that it has read.
_WORDS = {
    "edac": "the error counters of the memory",
    "memory": "the size of the memory, against that of its type,",
    "nvme": "the number of local disks, against that of the type,",
    "disks": "state, size and mode",
    "arrays": "the state in /proc/mdstat",
    "mounts": "the line in the table of mounts",
    "space": "the space",
    "processes": "the list of processes",
    "services": "what systemd says of the service",
    "count": "the number of EFA devices, against those attached,",
    "devices": "ports and counters",
    "functions": "the device on the bus",
    "files": "the device files of all EFA devices",
    "health": "Lustre's health_check",
    "connections": "the connection",
    "networks": "LNet's list of networks",
}

_NODE_LISTED = (_listed,)

#: What a run of NCCL over several nodes shows.
_OF_BURNIN = (
    *("busbw-", "mnnvl-", "nccl-", "ofi-", "perf.", "rank-"),
    *("efa-counters-still", "run-hung", "wrong-results"),
)

RULES: tuple[Rule, ...] = (
    # GPUs, by nvidia-smi.
    Rule("gpu.missing", _NODE_LISTED),
    Rule("gpu.driver-", _NODE_LISTED),
    Rule("gpu.lost", _NODE_LISTED),
    Rule("gpu.requires-reset", _NODE_LISTED),
    Rule("gpu.ecc-uncorrected", _value("the count of uncorrected ECC errors", lambda gpu: gpu.ecc_uncorrected, 0)),
    Rule("gpu.sram-threshold", _value("the SRAM threshold", lambda gpu: gpu.sram_threshold, False)),
    Rule("gpu.row-remap-failure", _value("the failure of row remapping", lambda gpu: gpu.remap_failure, False)),
    Rule("gpu.row-remap-pending", _value("the pending row remap", lambda gpu: gpu.remap_pending, False)),
    Rule("gpu.unrepairable-memory", _value("unrepairable memory", lambda gpu: gpu.unrepairable, False)),
    Rule("gpu.retired-pages-full", _value("the count of retired pages", lambda gpu: gpu.retired_pages)),
    Rule("gpu.retired-pages-pending", _value("the pending page retirement", lambda gpu: gpu.retired_pending, False)),
    Rule("gpu.repair-pending", _value("the pending repair", lambda gpu: gpu.repair_pending, False)),
    Rule("gpu.recovery-action", _value("the recovery action", lambda gpu: gpu.recovery, "None")),
    Rule(
        "gpu.fabric-",
        (
            *_value("the fabric state", lambda gpu: gpu.fabric_state, _FABRIC[0]),
            *_value("the fabric status", lambda gpu: gpu.fabric_status, _FABRIC[1]),
        ),
    ),
    Rule("gpu.fabric-health", _value("the fabric health", lambda gpu: gpu.fabric_health or None)),
    Rule("gpu.leftover-processes", (_programs, *_value("the memory in use", lambda gpu: gpu.memory_used_mib))),
    Rule("gpu.memory-leak", (_programs, *_value("the memory in use", lambda gpu: gpu.memory_used_mib))),
    Rule("gpu.nvlink-down", (_listed, _links)),
    Rule("gpu.mig-enabled", _value("the MIG mode", lambda gpu: gpu.mig, False)),
    Rule("gpu.nvlink-topology", needs=PERSON),
    Rule("gpu.hw-", needs=PERSON),  # only a job's load shows heat and the power brake
    # GPUs, NVSwitches and links, by the kernel log.
    Rule("gpu.xid-", (_gpu_log, _listed)),
    Rule("gpu.init-failed", (_gpu_log, _listed)),
    Rule("gpu.off-bus", (_gpu_log, _listed)),
    Rule("gpu.memory-manager-failed", (_gpu_log, _listed)),
    Rule("nvswitch.sxid-", (_gpu_log, _listed)),
    Rule("pcie.", (_log, _device)),
    # EFA.
    Rule("efa.missing", (_read("efa", "count", node=True),)),
    Rule("efa.none-there", (_read("efa", "count", node=True),)),
    Rule("efa.driver-not-loaded", (_read("efa", "count", node=True),)),
    Rule("efa.driver-not-bound", (_read("efa", "count", node=True), _read("efa", "functions"))),
    Rule("efa.off-bus", (_log, _read("efa", "count", node=True), _read("efa", "functions"))),
    Rule("efa.no-device-file", (_read("efa", "count", node=True), _read("efa", "files", node=True))),
    Rule("efa.device-file-shut", (_read("efa", "files", node=True),)),
    Rule("efa.port-down", (_read("efa", "devices"),)),
    Rule("efa.no-completion", (_log, _read("efa", "devices"))),
    Rule("efa.init-failed", (_log, _read("efa", "functions"))),
    Rule("efa.no-interrupt", (_log, _read("efa", "devices"))),
    Rule("efa.not-in-libfabric", needs=PERSON),
    Rule("efa.loopback-", needs=LOOPBACK),
    # The node itself.
    Rule("memory.dimm-uncorrected", (_log, _read("system", "edac", node=True))),
    Rule("host.memory-missing", (_read("system", "memory", node=True),)),
    Rule("host.socket-missing", needs=PERSON),
    Rule("disk.nvme-missing", (_read("system", "nvme", node=True),)),
    Rule("disk.dead", (_read("system", "disks"),)),
    Rule("disk.read-only", (_log, _disk)),
    Rule("disk.nvme-dead", (_log, _disk)),
    Rule("disk.error", (_log, _disk)),
    Rule("disk.scratch-", (_scratch,)),
    Rule("disk.full", (_read("system", "space"),)),
    Rule("disk.no-inodes", (_read("system", "space"),)),
    Rule("raid.", (_read("system", "arrays"),)),
    Rule("fs.read-only", (_mount_or_table,)),
    Rule("fs.not-mounted", (_mount_or_table,)),
    Rule("fs.stat-error", (_mount,)),
    Rule("fs.corrupt", needs=PERSON),
    Rule("fs.wrong-file-system", needs=PERSON),
    Rule("fs.mount-failed", needs=PERSON),
    Rule("process.unkillable", (_read("system", "processes", node=True),)),
    Rule("service.", (_service,)),
    Rule("clock.offset", needs=PERSON),
    # Lustre and its networks.
    Rule("lustre.lbug", (_read("lustre", "health", node=True),)),
    Rule("lustre.not-healthy", (_read("lustre", "health", node=True),)),
    Rule("lustre.import-bad", (_read("lustre", "connections"),)),
    Rule("lustre.target-error", needs=PERSON),
    Rule("lnet.", (_read("lustre", "networks", node=True),)),
    # What no look of this node shows.
    Rule("dcgm.", needs=SLOW),
    Rule("dcgm-health.", needs=PERSON),  # DCGM's watch forgets what it saw when its daemon starts anew
    Rule("burnin.", needs=BURNIN),
    *(Rule(id_, needs=BURNIN) for id_ in _OF_BURNIN),
    Rule("node.", needs=PERSON),
    Rule("slurm.", needs=PERSON),
    Rule("ec2.", needs="another instance: EC2 has said that this one ends"),
    Rule("job.", needs=PERSON),
)

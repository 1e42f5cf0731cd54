"""What the gate knows of a node (facts, units in the names) and what it makes of one fact (Judged). None means not known.

Standard library only, NamedTuples for their import cost: hooks import this.
"""

from collections.abc import Iterable, Mapping

from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict, strongest


class Gpu(NamedTuple):
    """One GPU as nvidia-smi tells it. Words are nvidia-smi's own; None: the field was absent, N/A or unreadable."""

    number: int | None = None  # nvidia-smi's index
    pci: str = ""  # domain:bus:device, lower case, four-digit domain
    minor: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
    recovery: str | None = None  # gpu_recovery_action: None, Reset, Reboot, ...
    ecc_uncorrected: int | None = None  # volatile: since the driver loaded
    sram_threshold: bool | None = None
    unrepairable: bool | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    remap_seen: bool = False  # the remap fields were in the output, readable or not
    retired_pages: int | None = None
    retired_pending: bool | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    low_power: bool | None = None  # in a performance state where links may be narrowed to save power
    fabric_state: str = ""
    fabric_status: str = ""
    sw_power_cap: bool | None = None
    power_brake_us: int | None = None  # time held down since the driver loaded
    hw_thermal_us: int | None = None
    inforom_valid: bool | None = None
    uuid: str = ""
    driver: str = ""
    vbios: str = ""
    ecc_corrected: int | None = None  # volatile
    remapped_corrected: int | None = None  # rows, over the GPU's life
    remapped_uncorrected: int | None = None
    sw_thermal_us: int | None = None
    sw_power_us: int | None = None
    tlimit_c: int | None = None  # degrees left before it slows itself down
    memory_used_mib: int | None = None
    trouble: str = ""  # a word in place of values: GPU is lost, GPU requires reset
    errors: int = 0  # values of health that came as an error (Unknown Error, ERR!)
    undecided: tuple[str, ...] = ()  # fields among them that would convict it, were they read
    slowed: str = ""  # what slows it at this moment: its heat, the power brake
    repair_pending: bool | None = None  # a channel or TPC waits for a reset to be repaired
    ecc_off: bool = False
    fabric_health: str = ""  # the summary, or the first part that is not well
    app_clock_mhz: int | None = None  # application clocks; from R590 on not told
    app_clock_default_mhz: int | None = None
    app_memory_mhz: int | None = None
    app_memory_default_mhz: int | None = None
    max_clock_mhz: int | None = None
    power_limit_w: int | None = None
    power_default_w: int | None = None
    held_by_set_clock: bool | None = None  # at this moment

    @property
    def target(self) -> str:
        """Return the finding target: by index where one is known, else by address."""
        return f"gpu:{self.number}" if self.number is not None else f"gpu@{self.pci}"


class Smi(NamedTuple):
    """One run of nvidia-smi. `attached` is its own count of GPUs; `complete` is false where the text ends too early."""

    gpus: tuple[Gpu, ...] = ()
    attached: int | None = None
    complete: bool = True
    excerpt: bool = False  # the text itself says that parts were left out
    exit_code: int | None = 0
    timed_out: bool = False
    elapsed_s: float = 0.0
    said: str = ""  # stderr, and stdout where it is no table
    read_at_s: float | None = None  # when, where the output has a time
    text: str = ""  # what it printed, for whoever saves evidence; live looks only
    bound: int | None = None  # GPUs in the driver's own list in /proc, asked where nvidia-smi lists too few


class GpuHolder(NamedTuple):
    """One program that has a GPU open, as `nvidia-smi --query-compute-apps` lists it. `job`, `user`, `start`: see process_owner."""

    pid: int
    uuid: str = ""  # of the GPU, or of the MIG instance
    name: str = ""
    job: str = ""
    user: int | None = None
    start: int = 0


class Links(NamedTuple):
    """What `nvidia-smi nvlink` said: the state of each link (-s), and its error counters (-e). None: not known."""

    state: str | None = None
    errors: str | None = None


class KernelLine(NamedTuple):
    """One kernel message. `at_s` is seconds since the epoch or, with `since_boot`, since boot; None where unknown."""

    text: str
    at_s: float | None = None
    since_boot: bool = False
    boot_id: str = ""


class Probe(NamedTuple):
    """What a bounded child found out about one folder or mount: `error` is the errno name, "timeout", or empty."""

    path: str
    error: str = ""
    free_percent: float | None = None
    seconds: float = 0.0
    asked: bool = True  # the site's settings name it; else it was only found


class Facts(NamedTuple):
    """Everything one local check gathered; a part that could not be read is None and its reason stands in `unread`."""

    smi: Smi | None = None
    holders: tuple[GpuHolder, ...] | None = None  # programs on the GPUs
    links: Links | None = None  # None: not asked for
    left: tuple[Smi | None, tuple[GpuHolder, ...] | None] | None = (
        None  # a second reading, where the first left a doubt
    )
    kernel: tuple[KernelLine, ...] | None = None
    kernel_lost: bool = False  # messages of this boot have left the ring
    kernel_cut: bool = False  # not the oldest alone, but some between
    own_devices: tuple[str, ...] = ()  # device-mapper devices that are the node's, where the kernel log tells of any
    boot_id: str = ""
    boot_age_s: float | None = None
    efa_devices: int | None = None
    mounts: tuple[str, ...] | None = None
    scratch: tuple[Probe, ...] = ()
    lustre: tuple[Probe, ...] = ()
    clock_synchronised: bool | None = None
    instance_type: str = ""
    vendor: str = ""  # who made the machine, by DMI; read only where the catalogue has no such type
    probed: Mapping[str, Any] = {}  # name of a probe -> Probed, see probes.py
    unread: tuple[str, ...] = ()


def covers(words: Iterable[str], id_: str) -> bool:
    """Return whether one of `words` is this finding's id, or a whole beginning: gpu, gpu.xid-, but no gpu.xid-7 for gpu.xid-79."""
    return any(
        word and id_.startswith(word) and (word[-1] in ".-" or id_[len(word) : len(word) + 1] in ("", ".", "-"))
        for word in words
    )


class Judged(NamedTuple):
    """One finding and what it means for a job that wants to start: `verdict` is pass, warn, fail or unknown.

    Advice and verdict are two things: a reset that waits for an idle node is a warning with the action reset-gpu.
    """

    finding: Finding
    verdict: str


def judged(verdict: str, id_: str, target: str, action: str, *evidence: str) -> Judged:
    """Return a Judged finding; evidence is kept as given, without empty lines."""
    return Judged(Finding(id_, target, action, tuple(line for line in evidence if line)), verdict)


def conclude(items: Iterable[Judged], *, rule: str = "gate") -> Verdict:
    """Return the verdict over all: one failure fails, else one unknown is unknown, else one warning warns, else pass."""
    listed = tuple(items)
    findings = tuple(item.finding for item in listed)
    for word in (FAIL, UNKNOWN, WARN):
        decisive = strongest(item.finding for item in listed if item.verdict == word)
        if decisive is not None:
            said = f": {decisive.evidence[0]}" if decisive.evidence else ""
            return Verdict(word, findings, f"{decisive.id} on {decisive.target}{said}", decisive.id)
    return Verdict(PASS, findings, "nothing speaks against starting a job", rule)


def decisive(verdict: Verdict) -> Finding | None:
    """Return the finding that decided a verdict, or None where none did (pass)."""
    return strongest(finding for finding in verdict.findings if finding.id == verdict.rule)

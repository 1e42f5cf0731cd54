"""All facts of one node -> what they say. Pure: facts, settings and the catalogue's row come in, Judged come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.config.model import Settings
from slurm_ext.gate.model import Facts, Judged, Probe, covers, judged
from slurm_ext.gate.probes import PROLOG
from slurm_ext.gate.smi import quiet
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: A GPU that nobody uses holds less than this (MiB): the driver's own share. See gpu_process_rules.
IDLE_MEMORY_MIB = 1024

#: What every boot says of the things that the rules look at: beginnings of messages that no rule has a word about.
_BOOT = ("Linux version ", "NVRM: loading NVIDIA ", "nvidia-nvlink: Nvlink Core is being initialized")

#: errno names with which a file server says that this client is cut off from it.
_CUT_OFF = ("ESHUTDOWN", "ESTALE", "ENOTCONN", "EIO", "EHOSTDOWN", "EREMOTEIO")


class Job(NamedTuple):
    """What the rules need of the job in whose name the gate looks; `phase` is probes'. `whole_node`: it had all the GPUs."""

    phase: str = PROLOG
    job_id: str = ""
    uid: int = -1
    whole_node: bool = True


def judge(
    facts: Facts,
    settings: Settings,
    row: InstanceType | None,
    job: Job = Job(),  # noqa: B008 - a NamedTuple
) -> list[Judged]:
    """Return what the facts say, without the findings that `gate.disabled` names. `row` is None for an unknown type."""
    items = [*_gpus(facts, row), *_held(facts, row, job), *_kernel(facts)]
    if row is None and (settings.site.instance_type != "auto" or facts.vendor):
        items += _type(facts, settings)
    if facts.links is not None:
        items += _links(facts, row)
    for probe in facts.scratch:
        items += scratch(probe, settings.gate.min_free_percent)
    for probe in facts.lustre:
        found = _lustre(probe, facts.mounts)
        items += found if probe.asked else [_noted(item) for item in found]
    for name, probed in facts.probed.items():
        items += probed.items if name != "dcgm" else _settled(probed.items, items, facts, row)
    if facts.clock_synchronised is False:
        items.append(judged(WARN, "clock.unsynchronised", "node", "warn", "no time daemon disciplines this clock"))
    if len(items) > 1:
        from slurm_ext.gate.told_once import told_once  # here: see _gpus

        items = told_once(items)
    return enabled(items, settings.gate.disabled)


def _settled(
    said: Sequence[Judged], others: Sequence[Judged], facts: Facts, row: InstanceType | None
) -> Sequence[Judged]:
    """Return what DCGM's watches say, held against what the node's own looks found."""
    if not any(item.finding.id.startswith("gpu.") for item in said):
        return said
    from slurm_ext.gate import dcgm_settle  # here: see _gpus

    return dcgm_settle.settle(said, others, facts, row)


def enabled(items: Iterable[Judged], disabled: Iterable[str]) -> list[Judged]:
    """Return the items whose id is not named, whole or by a whole beginning, in `disabled`."""
    words = tuple(disabled)
    return [item for item in items if not covers(words, item.finding.id)] if words else list(items)


def _gpus(facts: Facts, row: InstanceType | None) -> list[Judged]:
    expected = row.gpus if row else None
    if facts.smi is None:
        # Without the tool nothing is known about GPUs; where the type has none (or is no GPU type), nothing need be.
        return [judged(UNKNOWN, "gpu.smi-absent", "node", "none", "there is no nvidia-smi here")] if expected else []
    if quiet(facts.smi, expected_gpus=expected):
        return []
    from slurm_ext.gate import gpu_rules  # here: healthy GPUs need no rule, and a hook pays for what it imports

    items = gpu_rules.judge(facts.smi, expected_gpus=expected, boot_age_s=facts.boot_age_s)
    # Under MIG the driver never tells of remapped rows. A site that runs MIG must not have every job held up for it; the
    # GPU's ECC errors and its recovery action were read.
    return [item._replace(verdict=PASS) if item.finding.id == "gpu.remap-unreadable" else item for item in items]


def _type(facts: Facts, settings: Settings) -> list[Judged]:
    """Return whether what this node should have is known at all: told for EC2's instances and for a type that the site names."""
    from slurm_ext.gate import type_rules  # here: see _gpus

    if settings.site.instance_type == "auto" and facts.vendor != type_rules.EC2_VENDOR:
        return []
    return type_rules.judge(facts.instance_type, has_smi=facts.smi is not None)


def _held(facts: Facts, row: InstanceType | None, job: Job) -> list[Judged]:
    """Return what is on the GPUs that should not be: before a job, after it, or between jobs."""
    busy = facts.smi is not None and any((gpu.memory_used_mib or 0) > IDLE_MEMORY_MIB for gpu in facts.smi.gpus)
    if not facts.holders and not busy:
        return []
    from slurm_ext.gate import gpu_left

    if job.phase == PROLOG:
        return gpu_left.before(facts, job_id=job.job_id)
    # Elsewhere a screen, or the system itself (Grace), may hold memory of a GPU that no list of programs shows.
    compute_only = row is not None and row.nvlink_domain_gpus > 1 and row.arch == "x86_64"
    return gpu_left.after(
        facts, job_id=job.job_id, job_uid=job.uid, whole_node=job.whole_node, compute_only=compute_only
    )


def _links(facts: Facts, row: InstanceType | None) -> list[Judged]:
    """Return what NVLink says, where the type has it. Without an answer nothing is known, and nothing is held up for it."""
    if facts.links is None or row is None or row.nvlink_domain_gpus < 2:
        return []
    from slurm_ext.gate import gpu_nvlink

    items = []
    if facts.links.state is not None:
        mig = {gpu.number for gpu in facts.smi.gpus if gpu.mig and gpu.number is not None} if facts.smi else set()
        items += gpu_nvlink.judge_nvlink(
            facts.links.state, gpu_type=row.gpu_type, under_mig=mig, boot_age_s=facts.boot_age_s
        )
    if facts.links.errors is not None:
        items += gpu_nvlink.judge_errors(facts.links.errors)
    return items


def _kernel(facts: Facts) -> list[Judged]:
    if facts.kernel is None:
        return [judged(UNKNOWN, "kernel.unreadable", "node", "none", "the kernel log cannot be read")]
    items = []
    if not all(line.text.startswith(_BOOT) for line in facts.kernel):
        from slurm_ext.gate import kernel_rules  # here: see _gpus

        recovery = {gpu.pci: gpu.recovery for gpu in facts.smi.gpus if gpu.recovery} if facts.smi else {}
        items = kernel_rules.judge(facts.kernel, boot_id=facts.boot_id, recovery=recovery, own=facts.own_devices)
    if facts.kernel_lost:
        # Rings wrap on every node in time. The GPUs' own state was read besides, so this alone holds no job.
        line = "older messages of this boot have left the ring; what they said is not known"
        items.append(judged(WARN, "kernel.log-incomplete", "node", "none", line))
    return items


def scratch(probe: Probe, min_free_percent: float) -> list[Judged]:
    """Return what writing to a scratch folder, and its space, say."""
    target = f"fs:{probe.path}"
    if probe.error == "timeout":
        line = f"no answer within {probe.seconds:g} s"
        return [judged(UNKNOWN, "disk.scratch-hang", target, "drain", line)]
    if probe.error == "ENOSPC" or (not probe.error and (probe.free_percent or 0.0) < min_free_percent):
        free = f"{probe.free_percent:.1f} %" if probe.free_percent is not None else "nothing"
        line = f"{free} of the scratch folder is free, {min_free_percent:g} % are asked for"
        return [judged(FAIL, "disk.scratch-full", target, "drain", line)]
    if not probe.error:
        return []
    for names, id_, action, line in (
        (("ENOENT", "ENOTDIR"), "disk.scratch-missing", "drain", "the scratch folder does not exist"),
        (("EROFS",), "disk.scratch-read-only", "reboot", "the scratch folder is read-only"),
        (
            ("EIO", "ENODEV", "ENXIO"),
            "disk.scratch-error",
            "replace",
            f"writing to the scratch folder fails ({probe.error})",
        ),
    ):
        if probe.error in names:
            return [judged(FAIL, id_, target, action, line)]
    line = f"probing the scratch folder failed ({probe.error})"
    return [judged(UNKNOWN, "disk.scratch-unreadable", target, "none", line)]


def _noted(item: Judged) -> Judged:
    """Return a failure as a warning: nobody asks for this file system."""
    return item._replace(verdict=WARN) if item.verdict == FAIL else item


def _lustre(probe: Probe, mounts: Iterable[str] | None) -> list[Judged]:
    target = f"fs:{probe.path}"
    if probe.error == "timeout":
        return [judged(UNKNOWN, "fs.hang", target, "drain", f"no answer within {probe.seconds:g} s")]
    if probe.error in _CUT_OFF:
        return [judged(FAIL, "fs.stat-error", target, "drain", f"the file system does not answer ({probe.error})")]
    points = None if mounts is None else [line.split()[1:4] for line in mounts if len(line.split()) > 3]
    if points is None:
        return [judged(UNKNOWN, "fs.mounts-unreadable", target, "none", "the table of mounts cannot be read")]
    # /proc/mounts writes a space in a path as \040.
    here = [entry for entry in points if entry[0].replace("\\040", " ") == probe.path.rstrip("/")]
    if not here:
        return [judged(FAIL, "fs.not-mounted", target, "drain", "nothing is mounted here")]
    if probe.error:
        return [judged(UNKNOWN, "fs.unreadable", target, "none", f"probing the mount failed ({probe.error})")]
    if "ro" in here[-1][2].split(","):
        return [judged(WARN, "fs.read-only", target, "warn", "the file system is mounted read-only")]
    return []

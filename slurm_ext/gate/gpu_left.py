"""What is left on the GPUs when no job should hold them: programs, and memory that no program holds. Pure.

A program that is being killed and memory that is being given back look left for a moment, and so does a program that began
between two questions: only what two readings a while apart agree on counts. What belongs to another job is not left.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.gate.gpu_process_rules import IDLE_MEMORY_MIB, serves
from slurm_ext.gate.model import Facts, Gpu, GpuHolder, Judged, Smi, judged
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

Holders = tuple[GpuHolder, ...] | None


def doubtful(smi: Smi | None, holders: Holders, *, job_id: str) -> bool:
    """Return whether something seems left, so that a second look is worth its time."""
    return bool(strangers(holders or (), job_id=job_id)) or bool(_full(smi, holders))


def strangers(holders: Sequence[GpuHolder], *, job_id: str) -> list[GpuHolder]:
    """Return the programs that are neither a service of the node nor another job's than `job_id` (empty: any job's)."""
    return [
        holder
        for holder in holders
        if not serves(holder.name, holder.user) and (not holder.job or holder.job == job_id)
    ]


def before(facts: Facts, *, job_id: str) -> list[Judged]:
    """Return what is on the GPUs before a job starts. One look only, and the job may well run: a warning."""
    items = []
    if found := strangers(facts.holders or (), job_id=job_id):
        pids = ", ".join(f"{holder.pid} {holder.name.rsplit('/', 1)[-1]}" for holder in found[:8])
        for target, some in _by_gpu(found, facts.smi).items():
            line = f"{len(some)} programs hold GPUs before the job has started: pid {pids}"
            items.append(judged(WARN, "gpu.leftover-processes", target, "warn", line))
    for gpu in _full(facts.smi, facts.holders):
        line = f"{gpu.memory_used_mib} MiB in use before the job has started, and no program is listed"
        items.append(judged(WARN, "gpu.memory-in-use", gpu.target, "warn", line))
    return items


def after(facts: Facts, *, job_id: str, job_uid: int, whole_node: bool, compute_only: bool) -> list[Judged]:
    """Return what is left after a job (`job_id`), or between jobs (no job id).

    `whole_node`: the job had all GPUs, so that its owner has no other job on them. `compute_only`: a type without a screen
    and with memory of its own, where whoever holds memory is on the list.
    """
    if facts.left is None:
        if not doubtful(facts.smi, facts.holders, job_id=job_id):
            return []
        again: tuple[Smi | None, Holders] = (None, None)
    else:
        again = facts.left
    return [
        *_programs(facts, again, job_id=job_id, job_uid=job_uid, whole_node=whole_node),
        *_memory(facts, again, compute_only=compute_only),
    ]


def _programs(
    facts: Facts, again: tuple[Smi | None, Holders], *, job_id: str, job_uid: int, whole_node: bool
) -> list[Judged]:
    found = strangers(facts.holders or (), job_id=job_id)
    if not found:
        return []
    if again[1] is None:  # there was no time for a second look, or it could not be read
        return [
            judged(UNKNOWN, "gpu.processes-unattributed", target, "none", f"seen once: {_words(some)}")
            for target, some in _by_gpu(found, facts.smi).items()
        ]
    # By its start, too: a number may be another program's by the second look.
    still = {(holder.pid, holder.start, holder.uuid) for holder in again[1]}
    stayed = [holder for holder in found if (holder.pid, holder.start, holder.uuid) in still]
    items = []
    for target, some in _by_gpu(stayed, facts.smi).items():
        owned = [holder for holder in some if _is_of_job(holder, job_id, job_uid, whole_node)]
        if owned:
            line = f"left by job {job_id}, and still there at a second look: {_words(owned)}"
            items.append(judged(FAIL, "gpu.leftover-processes", target, "drain", line))
        else:
            items.append(judged(WARN, "gpu.leftover-processes", target, "warn", f"no job here owns {_words(some)}"))
    return items


def _is_of_job(holder: GpuHolder, job_id: str, job_uid: int, whole_node: bool) -> bool:
    if not job_id:
        return False
    return holder.job == job_id or (whole_node and not holder.job and job_uid > 0 and holder.user == job_uid)


def _memory(facts: Facts, again: tuple[Smi | None, Holders], *, compute_only: bool) -> list[Judged]:
    if again[0] is None or again[1] is None:
        return []
    still = {gpu.pci for gpu in _full(again[0], again[1])}
    word, action = (FAIL, "reset-gpu") if compute_only else (WARN, "warn")
    return [
        judged(
            word, "gpu.memory-leak", gpu.target, action, f"{gpu.memory_used_mib} MiB in use, and no program is listed"
        )
        for gpu in _full(facts.smi, facts.holders)
        if gpu.pci in still
    ]


def _full(smi: Smi | None, holders: Holders) -> list[Gpu]:
    """Return the GPUs whose memory is in use though no program is listed there."""
    if smi is None or holders is None:
        return []
    held = {holder.uuid for holder in holders}
    # A program in a MIG instance is listed by the instance's name, which tells no GPU.
    if any(uuid.startswith("MIG") or not uuid for uuid in held):
        return []
    return [
        gpu
        for gpu in smi.gpus
        if gpu.uuid and not gpu.mig and (gpu.memory_used_mib or 0) > IDLE_MEMORY_MIB and gpu.uuid not in held
    ]


def _by_gpu(holders: Sequence[GpuHolder], smi: Smi | None) -> dict[str, list[GpuHolder]]:
    names = {gpu.uuid: gpu.target for gpu in smi.gpus if gpu.uuid} if smi is not None else {}
    found: dict[str, list[GpuHolder]] = {}
    for holder in holders:
        found.setdefault(names.get(holder.uuid, "node"), []).append(holder)
    return found


def _words(holders: Sequence[GpuHolder]) -> str:
    return ", ".join(f"pid {holder.pid} {holder.name}" for holder in holders[:4])

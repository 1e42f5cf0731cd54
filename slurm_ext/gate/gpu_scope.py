"""Which GPUs are the job's, and what the others may decide for it. Pure: what Slurm, the driver and nvidia-smi say comes in.

The rule. What is wrong with a GPU of the job decides for the job. What is wrong with another GPU of a shared node is told as
a warning: the job does not use it, and a prolog that failed for it would take a node from a job that it does not hurt. That
GPU is not forgotten: it decides for the job that gets it, and with nobody's job in view (HealthCheckProgram) for the node.
What is wrong with the whole node, with its NVSwitches or with a GPU that cannot be told apart decides for every job with
GPUs, and so does a lost GPU where nvidia-smi then tells nothing of the others. For a job without GPUs nothing about GPUs
decides. Where it cannot be told which GPUs a job has, what fails is unknown, and drains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.gate.model import Judged, Smi
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: Of another job's GPU these say no more than that it is used.
_IN_USE = ("gpu.leftover-processes", "gpu.processes-unattributed", "gpu.memory-in-use", "gpu.memory-leak")

#: Ids of all that is about GPUs, whatever their target: the list of them, the driver, the fabric between them.
OF_GPUS = ("gpu.", "nvswitch.", "dcgm.")

#: How much of the node's GPUs a job has.
ALL, SOME, NONE, UNCLEAR = "all", "some", "none", "unclear"


class Scope(NamedTuple):
    """The job's GPUs: how much of the node's (`extent`), their addresses, and why not all that is known (empty: it is)."""

    extent: str
    pcis: frozenset[str] = frozenset()
    why: str = ""


def of_job(
    smi: Smi | None,
    job_gpus: Sequence[str],
    here: int,
    *,
    unclear: bool = False,
    managed: bool | None = None,
    minors: Mapping[str, int] | None = None,
    instances: Mapping[str, str] | None = None,
) -> Scope:
    """Return which of the node's `here` GPUs are the job's. `job_gpus` is what Slurm says of it, `unclear` that it also said
    what we cannot read; `managed` whether Slurm hands out GPUs at all (None: not known).

    Slurm's numbers are those of /dev/nvidiaN (`minors`: address -> N, as the driver lists them), and nvidia-smi's where
    the driver does not list them. `instances`: MIG instance -> UUID of its GPU (`nvidia-smi -L`).
    """
    if unclear:
        return Scope(UNCLEAR, why="Slurm names the job's GPUs in a form that is not known")
    if not job_gpus and managed is not False:
        return Scope(UNCLEAR, why="it cannot be read whether Slurm hands out GPUs") if managed is None else Scope(NONE)
    if not job_gpus or smi is None or not smi.gpus:
        return Scope(ALL)
    if len(job_gpus) >= here and not any(word.startswith("MIG-") for word in job_gpus):
        return Scope(ALL)
    found, missing = mine(smi, job_gpus, minors=minors, instances=instances)
    if missing:
        return Scope(SOME, found, f"{missing} is one of the job's, and no GPU that the driver lists")
    return Scope(ALL if len(found) >= here else SOME, found)


def mine(
    smi: Smi,
    job_gpus: Sequence[str],
    *,
    minors: Mapping[str, int] | None = None,
    instances: Mapping[str, str] | None = None,
) -> tuple[frozenset[str], str]:
    """Return the addresses of the job's GPUs, and the first of its words that names none here (empty: each does)."""
    by_number = minors or {gpu.pci: gpu.number for gpu in smi.gpus if gpu.number is not None}
    of_number = {number: pci for pci, number in by_number.items()}
    of_uuid = {gpu.uuid: gpu.pci for gpu in smi.gpus if gpu.uuid}
    found, missing = set(), ""
    for word in job_gpus:
        if word.isdecimal():
            pci = of_number.get(int(word))
        elif word.startswith("MIG-GPU-"):  # before R470: MIG-GPU-<uuid>/<instance>/<instance>
            pci = of_uuid.get(word[4:].split("/", 1)[0])
        elif word.startswith("MIG-"):
            pci = of_uuid.get((instances or {}).get(word, ""))
        else:
            pci = of_uuid.get(word)
        if pci:
            found.add(pci)
        else:
            missing = missing or word
    return frozenset(found), missing


def narrow(items: Sequence[Judged], smi: Smi | None, scope: Scope) -> list[Judged]:
    """Return the items as they stand for a job with these GPUs."""
    if scope.extent == ALL:
        return list(items)
    pci_of = {gpu.target: gpu.pci for gpu in smi.gpus} if smi is not None else {}
    narrowed = []
    for item in items:
        # For a job that has GPUs for certain, what is no single GPU's decides.
        target = item.finding.target
        pci = target[4:] if target.startswith("gpu@") else pci_of.get(target, "")
        others = bool(pci) if scope.extent == SOME else is_about_gpus(item)
        if not others or pci in scope.pcis or item.verdict == PASS:
            narrowed.append(item)
            continue
        if scope.why:
            word, line = UNKNOWN if item.verdict == FAIL else item.verdict, f"whose it is is not known: {scope.why}"
        elif item.finding.id in _IN_USE:
            continue
        else:
            word = WARN
            line = "this GPU is not one of the job's" if scope.extent == SOME else "the job has no GPUs"
        narrowed.append(Judged(item.finding._replace(evidence=(*item.finding.evidence, line)), word))
    return narrowed


def is_about_gpus(item: Judged) -> bool:
    """Return whether a finding is about GPUs."""
    return item.finding.target.startswith(("gpu", "nvswitch")) or item.finding.id.startswith(OF_GPUS)


def minors_in(informations: Mapping[str, str]) -> dict[str, int]:
    """Return the device numbers in the driver's files /proc/driver/nvidia/gpus/ADDRESS/information, by address."""
    found = {}
    for address, text in informations.items():
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Device Minor" and value.strip().isdecimal():
                found[address.lower().rsplit(".", 1)[0]] = int(value)
    return found


def instances_in(text: str) -> dict[str, str]:
    """Return the MIG instances in the answer of `nvidia-smi -L`, each with the UUID of its GPU."""
    found, card = {}, ""
    for line in text.splitlines():
        uuid = line.rpartition("(UUID: ")[2].rstrip(") ") if "(UUID: " in line else ""
        if uuid.startswith("GPU-"):
            card = uuid
        elif uuid.startswith("MIG-") and card:
            found[uuid] = card
    return found

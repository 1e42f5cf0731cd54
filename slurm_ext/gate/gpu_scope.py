"""Which GPUs are the job's, and what the others may decide for it. Pure but for the names of the job's MIG instances.

The rule. What is wrong with a GPU of the job decides for the job. What is wrong with another GPU of a shared node is told as
a warning: the job does not use it, and a prolog that failed for it would take a node from a job that it does not hurt. That
GPU is not forgotten: it decides for the job that gets it, and with nobody's job in view (HealthCheckProgram) for the node.
What is wrong with the whole node, with its NVSwitches or with a GPU that cannot be told apart decides for every job, and so
does a lost GPU where nvidia-smi then tells nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.gate.model import Judged, Smi
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: Of another job's GPU these say no more than that it is used.
_IN_USE = ("gpu.leftover-processes", "gpu.processes-unattributed", "gpu.memory-in-use", "gpu.memory-leak")


def mine(
    smi: Smi | None,
    job_gpus: Sequence[str],
    *,
    minors: Mapping[str, int] | None = None,
    instances: Mapping[str, str] | None = None,
) -> frozenset[str] | None:
    """Return the addresses of the job's GPUs; None where they cannot be told, or are all there are.

    Slurm's numbers are those of /dev/nvidiaN (`minors`: address -> N, as the driver lists them), and nvidia-smi's where
    the driver does not list them. `instances`: MIG instance -> UUID of its GPU (`nvidia-smi -L`).
    """
    if smi is None or not smi.gpus or not job_gpus:
        return None
    by_number = minors or {gpu.pci: gpu.number for gpu in smi.gpus if gpu.number is not None}
    of_number = {number: pci for pci, number in by_number.items()}
    of_uuid = {gpu.uuid: gpu.pci for gpu in smi.gpus if gpu.uuid}
    found = set()
    for word in job_gpus:
        if word.isdecimal():
            pci = of_number.get(int(word))
        elif word.startswith("MIG-GPU-"):  # before R470: MIG-GPU-<uuid>/<instance>/<instance>
            pci = of_uuid.get(word[4:].split("/", 1)[0])
        elif word.startswith("MIG-"):
            pci = of_uuid.get((instances or {}).get(word, ""))
        else:
            pci = of_uuid.get(word)
        if not pci:
            return None
        found.add(pci)
    return None if found >= {gpu.pci for gpu in smi.gpus} else frozenset(found)


def narrow(items: Sequence[Judged], smi: Smi | None, pcis: frozenset[str] | None) -> list[Judged]:
    """Return the items as they stand for a job with these GPUs (None: all of them)."""
    if pcis is None:
        return list(items)
    pci_of = {gpu.target: gpu.pci for gpu in smi.gpus} if smi is not None else {}
    narrowed = []
    for item in items:
        target = item.finding.target
        pci = target[4:] if target.startswith("gpu@") else pci_of.get(target, "")
        if not pci or pci in pcis or item.verdict == PASS:
            narrowed.append(item)
            continue
        if item.finding.id in _IN_USE:
            continue
        evidence = (*item.finding.evidence, "this GPU is not one of the job's")
        narrowed.append(Judged(item.finding._replace(evidence=evidence), WARN))
    return narrowed


def is_matter(items: Sequence[Judged]) -> bool:
    """Return whether it matters whose a GPU is: something about one GPU that is more than a note."""
    return any(item.verdict in (FAIL, WARN, UNKNOWN) and item.finding.target.startswith("gpu") for item in items)


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

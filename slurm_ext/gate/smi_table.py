"""nvidia-smi's default table and `nvidia-smi -L`, as captures have them, as Smi. Pure parsers that never raise.

Source: the tables in utkuozdemir/nvidia_gpu_exporter internal/captures (R590 to R610) and in public issue reports (R418 and
later). A GPU has two lines, since R450 a third one with its MIG mode. The live gate asks for CSV and does not import this.
"""

from __future__ import annotations

from slurm_ext.gate.model import Gpu, Smi
from slurm_ext.gate.smi import count, flag, pci_address
from slurm_ext.patterns import pattern

_FIRST = pattern(
    r"\|\s+(\d+)\s+(\S.*?)\s+(On|Off|N/A)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+\S+\s*\|\s*(.*?)\s*\|"
)
_MEMORY = pattern(r"\|\s*(\d+)MiB\s*/\s*\d+MiB\s*\|")
_MIG = pattern(r"\|\s+\|\s+\|\s+(Enabled|Disabled|N/A)\*?\s*\|\s*$")
_LISTED = pattern(r"GPU (\d+): (\S.*?) \(UUID: (\S+)\)\s*$")


def is_table(text: str) -> bool:
    """Say whether a text is the default table."""
    return "| NVIDIA-SMI" in text


def parse(text: str) -> Smi:
    """Return the GPUs of the default table."""
    gpus: list[Gpu] = []
    errors = 0
    complete = listing = False
    said = []
    for line in text.splitlines():
        listing = listing or "Processes:" in line or "MIG devices:" in line
        complete = complete or "Processes:" in line
        if listing:
            continue
        if found := _FIRST.match(line):
            said_ecc = found[5]
            gpus.append(
                Gpu(
                    number=int(found[1]),
                    pci=pci_address(found[4]),
                    persistence=flag({"On": "1", "Off": "0"}.get(found[3])),
                    ecc_uncorrected=count(said_ecc),
                    ecc_off=said_ecc == "Off",
                    errors=line.count("ERR!"),
                )
            )
        elif gpus and line.startswith("|"):
            errors = line.count("ERR!")
            memory, mode = _MEMORY.search(line), _MIG.match(line)
            gpus[-1] = gpus[-1]._replace(
                errors=gpus[-1].errors + errors,
                memory_used_mib=int(memory[1]) if memory else gpus[-1].memory_used_mib,
                mig=flag(mode[1]) if mode else gpus[-1].mig,
            )
        elif line.strip() and not line.startswith(("+", "|")):
            said.append(line)
    if not gpus and "No devices were found" in text:
        said = ["No devices were found"]
    return Smi(tuple(gpus), None, complete, said="\n".join(said[1:] if said[:1] and _is_date(said[0]) else said))


def _is_date(line: str) -> bool:
    """Return whether a line is the time that stands over the table: `Fri Jul  3 22:11:09 2026`."""
    words = line.split()
    return len(words) == 5 and words[3].count(":") == 2 and words[4].isdecimal()


def parse_list(text: str) -> Smi | None:
    """Return the GPUs that `nvidia-smi -L` lists, None where the text is none of it. Lines of MIG devices mark their GPU."""
    gpus: list[Gpu] = []
    said = []
    for line in text.splitlines():
        if found := _LISTED.match(line):
            gpus.append(Gpu(number=int(found[1]), uuid=found[3]))
        elif gpus and line.lstrip().startswith("MIG "):
            gpus[-1] = gpus[-1]._replace(mig=True)
        elif line.strip():
            said.append(line)
    return Smi(tuple(gpus), None, text.endswith("\n") or not gpus, said="\n".join(said)) if gpus else None

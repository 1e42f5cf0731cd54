"""What NVLink says: links up and their speed, error counters, and the topology between the GPUs of a machine. Pure.

Sources: NVIDIA's data sheets for links per GPU; `nvidia-smi nvlink -s` and `-e` as printed by R535 (Replay, Recovery and
CRC errors) and by R570 and later on NVLink 5 (Rx Errors and others, FEC bins): public issue reports and field guides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from slurm_ext.aws.gpu_types import NVLINKS
from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: So many of all pairs alike are the rule of a machine.
_RULE_SHARE = 0.7

#: Links train for a while after boot; what is down before that (seconds) is no fault (NVIDIA/NVSentinel#1701).
TRAINING_S = 300.0

#: What the names of GPUs on such boards hold; a card of the same generation (PCIe, NVL) has bridges or none.
_NAMES = (
    *(("A100-SXM", "a100"), ("A800-SXM", "a100"), ("H100 80GB HBM3", "h100"), ("H100 96GB HBM3", "h100")),
    *(("H100-SXM", "h100"), ("NVIDIA H200 (", "h200"), ("NVIDIA B200 (", "b200"), ("NVIDIA B300 SXM6 AC (", "b300")),
)

_NAME = pattern(r"GPU (\d+): (.*)")
_GPU = pattern(r"GPU (\d+):")
_LINK = pattern(r"\s*Link (\d+): (.*)", needs="Link")
_SPEED = pattern(r"([\d.]+) GB/s", needs="GB/s")
_COUNTER = pattern(r"\s*Link (\d+): ([A-Z][A-Za-z ]+): (\d+)\s*$", needs="Link")

#: Counters of `nvlink -e` that stay at zero on a sound link. FEC bins and packets count on every link.
_ERRORS = frozenset(
    (
        *("Replay Errors", "Recovery Errors", "CRC Errors"),
        *("Malformed packet Errors", "Buffer overrun Errors", "Rx Errors", "Rx remote Errors", "Rx General Errors"),
        *("Local link integrity Errors", "Tx discards", "Link recovery failed events", "Effective Errors"),
        "Symbol Errors",
    )
)


def judge_nvlink(
    text: str, *, gpu_type: str, under_mig: Collection[int] = (), boot_age_s: float | None = None
) -> list[Judged]:
    """Return what `nvidia-smi nvlink -s` says: every GPU must have all links of its generation, all of one speed.

    GPUs `under_mig` have no NVLink to speak of. `boot_age_s`: seconds since boot, None where that is not known.
    """
    links, last, inactive_words = _states(text)
    if not links:
        return [judged(UNKNOWN, "gpu.nvlink-unreadable", "node", "none", text.strip()[:200])]
    named = {int(found[1]): _links_of(found[2]) for line in text.splitlines() if (found := _NAME.match(line))}
    known = NVLINKS.get(gpu_type)
    usual = Counter(speed for states in links.values() for speed in states.values() if speed).most_common(1)
    early = boot_age_s is not None and boot_age_s < TRAINING_S
    items: list[Judged] = []
    for gpu, states in links.items():
        if gpu in under_mig:
            continue
        wanted = known if gpu_type else named.get(gpu)
        up = sum(bool(speed) for speed in states.values())
        expected = wanted if wanted is not None else len(states)
        if gpu == last and gpu not in inactive_words and wanted is not None and max(states, default=-1) + 1 < wanted:
            line = f"the list of links ends after {len(states)} of {wanted}"
            items.append(judged(UNKNOWN, "gpu.nvlink-unreadable", f"gpu:{gpu}", "none", line))
        elif up < expected:
            line = f"{up} of {expected} NVLinks are up"
            word, action = (UNKNOWN, "none") if early else (FAIL, "reset-gpu")
            items.append(judged(word, "gpu.nvlink-down", f"gpu:{gpu}", action, line))
        elif slow := sorted(link for link, speed in states.items() if speed and speed != usual[0][0]):
            line = f"links {', '.join(map(str, slow))} run at {states[slow[0]]} GB/s, the others at {usual[0][0]}"
            items.append(judged(WARN, "gpu.nvlink-speed", f"gpu:{gpu}", "warn", line))
    return items


def _links_of(name: str) -> int | None:
    """Return how many NVLinks a GPU with this name has on a board with NVSwitch; None for cards and for unknown names."""
    return next((NVLINKS[kind] for words, kind in _NAMES if words in name), None)


def _states(text: str) -> tuple[dict[int, dict[int, str]], int | None, set[int]]:
    """Return the speed of each link (empty: down) by GPU, the last GPU, and those that are said to have no link up."""
    links: dict[int, dict[int, str]] = {}
    none_up: set[int] = set()
    number: int | None = None
    lines = text.splitlines()
    if lines and not text.endswith("\n") and not lines[-1].endswith((">", "GB/s")):
        del lines[-1]  # cut in the middle of a word
    for line in lines:
        if found := _GPU.match(line):
            number = int(found[1])
            links[number] = {}
        elif number is not None and (found := _LINK.match(line)):
            speed = _SPEED.match(found[2].strip())
            links[number][int(found[1])] = speed[1] if speed else ""
        elif number is not None and "links are inactive" in line.lower():
            none_up.add(number)
    return links, number, none_up


def up(text: str) -> dict[int, int]:
    """Return how many links of each GPU `nvidia-smi nvlink -s` names with a speed."""
    return {gpu: sum(bool(speed) for speed in states.values()) for gpu, states in _states(text)[0].items()}


def judge_errors(text: str) -> list[Judged]:
    """Return which GPUs counted errors on their links since the driver loaded (`nvidia-smi nvlink -e`): a warning.

    NVIDIA names no number from which a link is bad; DCGM's health watch reports any (common/DcgmGPUHardwareLimits.h).
    """
    seen: dict[int, list[str]] = {}
    number: int | None = None
    for line in text.splitlines():
        if found := _GPU.match(line):
            number = int(found[1])
        elif number is not None and (found := _COUNTER.match(line)) and found[2] in _ERRORS and int(found[3][:18]):
            seen.setdefault(number, []).append(f"link {found[1]}: {found[3]} {found[2]}")
    return [
        judged(WARN, "gpu.nvlink-errors", f"gpu:{gpu}", "warn", ", ".join(words[:4]), f"{len(words)} counters")
        for gpu, words in seen.items()
    ]


def judge_topo(text: str, *, gpu_type: str) -> list[Judged]:
    """Return what `nvidia-smi topo -m` says: in a machine with NVSwitch each GPU reaches each other over all its links.

    Without a known type the machine's own rule counts: nearly all pairs are joined by the same number of links.
    """
    lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]  # a cell that was cut is another one
    rows = [re.split(r"\t+|\s{2,}", line.strip()) for line in lines if re.match(r"GPU\d+\s", line)]
    names = [row[0] for row in rows]
    if not rows:
        return [judged(UNKNOWN, "gpu.topology-unreadable", "node", "none", text.strip()[:200])]
    table = {row[0]: dict(zip(names, (cell.strip() for cell in row[1:]), strict=False)) for row in rows}
    cells = [cell for name, row in table.items() for other, cell in row.items() if other != name]
    usual, seen = Counter(cells).most_common(1)[0] if cells else ("", 0)
    known = NVLINKS.get(gpu_type)
    wanted = f"NV{known}" if known is not None else usual
    if known is None and not (usual.startswith("NV") and seen >= _RULE_SHARE * len(cells)):
        return []
    wrong = {name: {o for o, cell in row.items() if o != name and cell != wanted} for name, row in table.items()}
    # A GPU that has lost its links is seen so by all others, whose own links are well.
    culprits = [name for name in names if len(wrong[name]) * 2 >= max(len(names) - 1, 1)]
    culprits += [name for name in names if name not in culprits and wrong[name] - set(culprits)]
    items = []
    for name in sorted(culprits, key=names.index):
        ways = sorted({table[name][other] for other in wrong[name]})
        line = f"reaches others over {', '.join(ways)} in place of {wanted}"
        items.append(judged(FAIL, "gpu.nvlink-topology", f"gpu:{name[3:]}", "reset-gpu", line))
    return items

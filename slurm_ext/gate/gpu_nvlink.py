"""What NVLink says: links up and their speed, error counters, and the topology between the GPUs of a machine. Pure.

Sources: NVIDIA's data sheets for links per GPU; `nvidia-smi nvlink -s` and `-e` as printed by R535 (Replay, Recovery and
CRC errors) and by R570 and later on NVLink 5 (Rx Errors and others, FEC bins): public issue reports and field guides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: NVLinks of one GPU in a machine with NVSwitch, by gres type. Source: NVIDIA data sheets, `nvidia-smi nvlink -s`.
NVLINKS: Mapping[str, int] = {"a100": 12, "h100": 18, "h200": 18, "b200": 18, "b300": 18, "gb200": 18}

#: Links train for a while after boot; what is down before that (seconds) is no fault (NVIDIA/NVSentinel#1701).
TRAINING_S = 300.0

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
    wanted = NVLINKS.get(gpu_type)
    usual = Counter(speed for states in links.values() for speed in states.values() if speed).most_common(1)
    early = boot_age_s is not None and boot_age_s < TRAINING_S
    items: list[Judged] = []
    for gpu, states in links.items():
        if gpu in under_mig:
            continue
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
        elif number is not None and "inactive" in line.lower():
            none_up.add(number)
    return links, number, none_up


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
    """Return what `nvidia-smi topo -m` says: in a machine with NVSwitch each GPU reaches each other over all its links."""
    wanted = NVLINKS.get(gpu_type)
    rows = [re.split(r"\t+|\s{2,}", line.strip()) for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
    names = [row[0] for row in rows]
    if not rows:
        return [judged(UNKNOWN, "gpu.topology-unreadable", "node", "none", text.strip()[:200])]
    if wanted is None:
        return []
    items = []
    for row in rows:
        cells = [cell.strip() for cell in row[1 : 1 + len(names)] if cell.strip() != "X"]
        wrong = sorted({cell for cell in cells if cell != f"NV{wanted}"})
        if wrong:
            line = f"reaches others over {', '.join(wrong)} in place of NV{wanted}"
            items.append(judged(FAIL, "gpu.nvlink-topology", f"gpu:{row[0][3:]}", "reset-gpu", line))
    return items

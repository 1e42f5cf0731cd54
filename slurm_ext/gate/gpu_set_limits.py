"""What was set on a GPU and makes it slower than its siblings, or than it is by default: clocks, power limit. Pure.

One slow GPU holds up all ranks of a synchronous job, and nothing else shows it: the GPU is well. AWS advises to set application
clocks (`nvidia-smi -ac`) on its instances, so that a node where one GPU was missed is not rare. They are deprecated with CUDA
13.0 (docs.nvidia.com/deploy/nvml-api, deprecation notices), and drivers from R590 on, as captured, do not tell them; power limits
they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_ext.gate.model import Gpu, Judged, judged
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import WARN


class _Setting(NamedTuple):
    """One thing that can be set: its value, the default, and by what siblings are known as of the same kind."""

    id: str
    words: str
    unit: str
    value: Callable[[Gpu], int | None]
    default: Callable[[Gpu], int | None]
    kind: Callable[[Gpu], object]


_SETTINGS = (
    _Setting(
        "gpu.clocks-set-low",
        "the application clock is",
        "MHz",
        lambda gpu: gpu.app_clock_mhz,
        lambda gpu: gpu.app_clock_default_mhz,
        lambda gpu: gpu.max_clock_mhz,
    ),
    _Setting(
        "gpu.clocks-set-low",
        "the application clock of its memory is",
        "MHz",
        lambda gpu: gpu.app_memory_mhz,
        lambda gpu: gpu.app_memory_default_mhz,
        lambda gpu: gpu.max_clock_mhz,
    ),
    _Setting(
        "gpu.power-limit-low",
        "the power limit is",
        "W",
        lambda gpu: gpu.power_limit_w,
        lambda gpu: gpu.power_default_w,
        lambda gpu: gpu.power_default_w,
    ),
)


def judge_settings(gpus: Sequence[Gpu]) -> list[Judged]:
    """Return which GPUs were set lower than most of their siblings, or than their default. What is not told says nothing."""
    items: dict[tuple[str, str], Judged] = {}
    for setting in _SETTINGS:
        low = {gpu.target: line for gpu in gpus if (line := _low(setting, gpu, gpus))}
        if len(low) == len(gpus) > 1:
            low = {"node": f"on all {len(gpus)} GPUs {next(iter(low.values()))}"}
        for target, line in low.items():
            items.setdefault((setting.id, target), judged(WARN, setting.id, target, "warn", line))
    return [*items.values(), *_held(gpus)]


def _low(setting: _Setting, gpu: Gpu, gpus: Sequence[Gpu]) -> str:
    """Return in words how a GPU was set low; empty where it was not, or nothing is told of it."""
    value, default = setting.value(gpu), setting.default(gpu)
    if value is None:
        return ""
    if default is not None and value < default:
        return f"{setting.words} {value} {setting.unit}, {default} by default"
    others = [
        said
        for other in gpus
        if setting.kind(other) == setting.kind(gpu) and (said := setting.value(other)) is not None
    ]
    usual = max(others, key=lambda said: (others.count(said), said))
    if value < usual:
        return f"{setting.words} {value} {setting.unit}, {usual} on most GPUs here"
    return ""


def _held(gpus: Sequence[Gpu]) -> list[Judged]:
    """Return the few GPUs of which the driver says that a clock that was set holds them down at this moment.

    On all of them at work that is what the default application clock does, and no finding.
    """
    held = [gpu for gpu in gpus if gpu.held_by_set_clock]
    if not held or 2 * len(held) >= len(gpus):
        return []
    line = "held down by a clock that was set, which most GPUs here are not"
    return [judged(WARN, "gpu.clocks-held", gpu.target, "warn", line) for gpu in held]

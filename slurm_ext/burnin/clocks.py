"""What GPUs' clocks do under load: a child that asks nvidia-smi again and again, and what its samples mean.

Throttling shows only while a GPU works, so a look before and after is worth little: samples are taken all along and those of
the sustained traffic count. The child writes lines into the agent's own folder and nobody ever waits for it; it ends with
the agent, with that folder, or after LIFE_S. Bits of the reasons are those of nvml.h (nvmlClocksEventReasons).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_ext.command import clean_env, run
from slurm_ext.errors import CommandNotFoundError, UntrustedFileError
from slurm_ext.files import open_regular

NAME = "clocks.jsonl"

#: Reasons that hold a GPU back because something is wrong with it or its cooling or power. Software power capping (4) is
#: normal under load, and hardware slowdown (8) is also set while the performance state changes: neither counts.
SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x20, 0x40, 0x80
WORDS = {
    SW_THERMAL: "thermal slowdown by the driver",
    HW_THERMAL: "hardware thermal slowdown",
    POWER_BRAKE: "power brake",
}

#: A reason counts that was there in this share of the samples, or for this share of the time by the driver's own counter.
SAMPLES_SHARE, COUNTED_SHARE = 0.2, 0.05

EVERY_S, ASK_S, LIFE_S = 1.0, 5.0, 900.0

_COUNTERS = tuple(f"clocks_event_reasons_counters.{name}_slowdown" for name in ("hw_thermal", "hw_power_brake"))

#: What drivers answer, newest first; a field that one does not know makes it refuse the whole question.
_QUERIES = (
    ("index", "temperature.gpu", "clocks_event_reasons.active", "clocks.sm", *_COUNTERS),
    ("index", "temperature.gpu", "clocks_event_reasons.active", "clocks.sm"),
    ("index", "temperature.gpu", "clocks_throttle_reasons.active", "clocks.sm"),
    ("index", "temperature.gpu", "clocks_event_reasons.active"),
    ("index", "temperature.gpu", "clocks_throttle_reasons.active"),
)

_PR_SET_PDEATHSIG = 1


class Sample(NamedTuple):
    """One GPU at one time (monotonic seconds). None: not told. Counters are microseconds since the driver loaded."""

    at: float
    gpu: int
    sm_mhz: int | None = None
    reasons: int | None = None
    temperature: int | None = None
    thermal_us: int | None = None
    brake_us: int | None = None


def parse(text: str, at: float) -> list[Sample]:
    """Return the samples in nvidia-smi's CSV with a header, with or without units; rows that are cut are left out."""
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    names = [name.split(" [")[0] for name in lines[0]]
    found = []
    for cells in lines[1:]:
        row = dict(zip(names, cells, strict=False))
        if len(cells) == len(names) and (gpu := _number(row.get("index"))) is not None:
            reasons = row.get("clocks_event_reasons.active", row.get("clocks_throttle_reasons.active"))
            counters = [_number(row.get(name)) for name in _COUNTERS]
            figures = (_number(row.get("clocks.sm", row.get("clocks.current.sm"))), _number(reasons))
            found.append(Sample(at, gpu, *figures, _number(row.get("temperature.gpu")), *counters))
    return found


def _number(text: str | None) -> int | None:
    try:
        return int((text or "").split(" ")[0], 0)
    except ValueError:
        return None


def summary(samples: Iterable[Sample], *, since: float) -> list[dict[str, Any]]:
    """Return for each GPU the median clock (MHz), the reasons that held it back, and the highest temperature after `since`."""
    by_gpu: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.at >= since:
            by_gpu.setdefault(sample.gpu, []).append(sample)
    return [
        {
            "gpu": gpu,
            "sm_mhz": _middle([s.sm_mhz for s in taken if s.sm_mhz is not None]),
            "reasons": _reasons(taken),
            "temperature": max((s.temperature for s in taken if s.temperature is not None), default=None),
        }
        for gpu, taken in sorted(by_gpu.items())
    ]


def _middle(values: Sequence[int]) -> int | None:
    return sorted(values)[len(values) // 2] if values else None


def _reasons(taken: Sequence[Sample]) -> int | None:
    told = [s.reasons for s in taken if s.reasons is not None]
    if not told:
        return None
    held = sum(bit for bit in WORDS if sum(bool(r & bit) for r in told) >= max(1.0, SAMPLES_SHARE * len(told)))
    first, last = taken[0], taken[-1]
    span_us = (last.at - first.at) * 1e6
    for bit, before, after in (
        (HW_THERMAL, first.thermal_us, last.thermal_us),
        (POWER_BRAKE, first.brake_us, last.brake_us),
    ):
        if before is not None and after is not None and span_us > 0 and after - before >= COUNTED_SHARE * span_us:
            held |= bit
    return held


def ask(smi: str, at: Callable[[], float] = time.monotonic) -> Callable[[], list[Sample]]:
    """Return a function that asks nvidia-smi once more; it keeps the question that this driver understands."""
    known = list(_QUERIES)

    def once() -> list[Sample]:
        while known:
            argv = [smi, f"--query-gpu={','.join(known[0])}", "--format=csv"]
            ran = run(argv, timeout_s=ASK_S, env=clean_env(), max_output_bytes=1 << 20)
            if "not a valid field" not in ran.stdout + ran.stderr:
                return parse(ran.stdout, at()) if ran.returncode == 0 else []
            known.pop(0)
        return []

    return once


class Sampler:
    """The child; made and forgotten. Only agents start it, which supervise it as they do their workers."""

    def __init__(self, folder: str, smi: str) -> None:
        """Start to sample into `folder`; the child ends with us."""
        self._path = os.path.join(folder, NAME)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(smi, parent)

    def _live(self, smi: str, parent: int) -> None:
        """Be the child: never returns."""
        try:
            # Not to be killed at once: what it runs has a session of its own and must not be left behind.
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
            sample_into(self._path, ask(smi), going=lambda: os.getppid() == parent)
        except CommandNotFoundError:
            pass  # no samples: told as unread
        finally:
            os._exit(0)

    def summary(self, seconds: float) -> list[dict[str, Any]] | None:
        """Return the summary of the last `seconds`; None where no sample was taken in them."""
        found = summary(read(self._path), since=time.monotonic() - seconds)
        return found or None

    def close(self) -> None:
        """End the child; it is collected where it ends in a moment, and never waited for longer."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)
        give_up = time.monotonic() + 0.5
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < give_up:
                time.sleep(0.002)


def sample_into(path: str, once: Callable[[], list[Sample]], *, going: Callable[[], bool]) -> None:
    """Append a line for each sample until `going()` ends, the folder is gone, or LIFE_S has passed."""
    end = time.monotonic() + LIFE_S
    while going() and time.monotonic() < end:
        lines = "".join(json.dumps(sample._asdict()) + "\n" for sample in once())
        try:
            descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            with os.fdopen(descriptor, "a", encoding="ascii") as stream:
                stream.write(lines)
        except (OSError, UntrustedFileError):
            return
        time.sleep(EVERY_S)


def read(path: str) -> list[Sample]:
    """Return the samples of a file; one that is just being written is left out."""
    found = []
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except (OSError, UntrustedFileError):
        return []
    with contextlib.suppress(OSError), os.fdopen(descriptor, encoding="ascii", errors="replace") as stream:
        for line in stream:
            with contextlib.suppress(ValueError, TypeError):
                data = json.loads(line)
                if isinstance(data, Mapping):
                    found.append(Sample(**data))
    return found

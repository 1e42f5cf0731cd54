"""Figures beside what was promised of them: what `bench/burnin` and `bench/gate` print."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Promise(NamedTuple):
    """What a figure was promised to be: at most or at least `bound`; `unit` for the reader."""

    figure: str
    bound: float | None
    at_least: bool = False
    unit: str = ""


def run(bench: str, parts: Iterable[str], promises: Sequence[Promise], *, full: bool) -> None:
    """Measure the parts of a bench (modules `BENCH_PART` with `figures`), and print all; the last line is one JSON object."""
    found: dict[str, float] = {}
    for part in parts:
        started = time.monotonic()
        measured: Mapping[str, float] = importlib.import_module(f"{bench}_{part}").figures(full)
        print(f"({part}: {time.monotonic() - started:.0f} s)\n", flush=True)
        found |= measured
    print(f"{'figure':30} {'measured':>12}   promised, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for promise in promises:
        _print(promise, found.get(promise.figure))
    for name in sorted(found.keys() - {promise.figure for promise in promises}):
        print(f"{name:30} {found[name]:>12g}")
    print(json.dumps({"bench": bench, "figures": found}))


def _print(promise: Promise, value: float | None) -> None:
    if value is None:
        print(f"{promise.figure:30} {'-':>12}   not measured here")
        return
    words = ""
    if promise.bound is not None:
        kept = value >= promise.bound if promise.at_least else value <= promise.bound
        words = f"{'at least' if promise.at_least else 'at most'} {promise.bound:g} {promise.unit}".rstrip()
        words += "" if kept else "   MISSED"
    print(f"{promise.figure:30} {value:>12g}   {words}".rstrip())

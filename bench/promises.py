"""Figures beside what was promised of them: what `bench/burnin` and `bench/gate` print."""

from __future__ import annotations

import argparse
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


def main(bench: str, doc: str | None, parts: Sequence[str], promises: Sequence[Promise], *, more: str) -> int:
    """Read a bench's command line, measure what it asks for and print it; `more` says what `--full` does."""
    parser = argparse.ArgumentParser(prog=f"bench/{bench}", description=(doc or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help=more)
    parser.add_argument("--only", default=",".join(parts), help=f"some of {', '.join(parts)}, with commas")
    wanted = parser.parse_args()
    chosen = wanted.only.split(",")
    if unknown := [part for part in chosen if part not in parts]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(parts)}")
    run(bench, chosen, promises, full=wanted.full)
    return 0


def run(bench: str, parts: Iterable[str], promises: Sequence[Promise], *, full: bool) -> None:
    """Measure the parts of a bench (modules `BENCH_PART` with `figures`), and print all; the last line is one JSON object."""
    found: dict[str, float] = {}
    for part in parts:
        started = time.monotonic()
        measured: Mapping[str, float] = importlib.import_module(f"{bench}_{part}").figures(full)
        print(f"({part}: {time.monotonic() - started:.0f} s)\n", flush=True)
        found |= measured
    show(bench, found, promises)


def show(bench: str, found: Mapping[str, float], promises: Sequence[Promise]) -> None:
    """Print figures beside what was promised of them; the last line is one JSON object."""
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

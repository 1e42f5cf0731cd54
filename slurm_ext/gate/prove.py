"""Can every check of the live gate both pass and fail? Each is run by the gate's own code on a healthy node and on a broken one.

Needs no Slurm, no GPU and no compiler: the node is a tree in a temporary folder, and nvidia-smi a small script.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurm_ext.errors import UsageError
from slurm_ext.gate import (
    checks,
    prove_between_jobs,
    prove_dcgm,
    prove_efa,
    prove_gpu,
    prove_host,
    prove_idle,
    prove_kernel,
    prove_lustre,
    prove_probes,
)
from slurm_ext.gate.local import Look
from slurm_ext.gate.probes import Check
from slurm_ext.gate.prove_bench import Bench, Build
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import PASS

FIXTURES: tuple[Fixture, ...] = (
    *prove_gpu.FIXTURES,
    *prove_kernel.FIXTURES,
    *prove_dcgm.FIXTURES,
    *prove_host.FIXTURES,
    *prove_idle.FIXTURES,
    *prove_efa.FIXTURES,
    *prove_lustre.FIXTURES,
    *prove_between_jobs.FIXTURES,
    *prove_probes.FIXTURES,
)

PROVEN, NOT_PROVEN = "proven", "not proven"


class Proof(NamedTuple):
    """What became of one check: whether it passed on the healthy node and found the broken one, and why not where it did not."""

    check: str
    result: str
    good: bool
    bad: bool
    finding: str = ""
    verdict: str = ""
    phase: str = ""
    why: str = ""
    seconds: float = 0.0


def fixtures_of(row: Check, fixtures: Sequence[Fixture] = FIXTURES) -> list[Fixture]:
    """Return the fixtures of a row of the list of checks. Pure."""
    return [one for one in fixtures if one.check == row.id]


def chosen(names: Iterable[str]) -> list[Check]:
    """Return the rows that are meant by ids or beginnings, all where none is named. Raise UsageError for a name of none."""
    rows = list({row.id: row for row in checks.every()}.values())
    words = tuple(names)
    for word in words:
        if not any(_is_meant(row, word) for row in rows):
            raise UsageError(f"no check is called {word!r}", remedy="`fmslurm gate list` names them")
    return [row for row in rows if not words or any(_is_meant(row, word) for word in words)]


def _is_meant(row: Check, word: str) -> bool:
    return bool(word) and (row.id.startswith(word) or (row.id.endswith(("-", ".")) and word.startswith(row.id)))


def run(build: Build, names: Iterable[str] = (), fixtures: Sequence[Fixture] = FIXTURES) -> list[Proof]:
    """Prove the checks that are meant; `build` makes a healthy node's tree. The folder is gone afterwards."""
    rows = chosen(names)
    folder = Path(tempfile.mkdtemp(prefix="fmslurm-prove-"))
    try:
        bench = Bench(folder, build)
        bench.begin()
        good: dict[str, Look] = {}
        return [_prove(bench, row, fixtures_of(row, fixtures), good) for row in rows]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prove(bench: Bench, row: Check, mine: Sequence[Fixture], good: dict[str, Look]) -> Proof:
    if not mine:
        return Proof(row.id, NOT_PROVEN, good=False, bad=False, why="no fixture breaks a node for it")
    proofs = [_try(bench, one, good) for one in mine]
    return next((proof for proof in proofs if proof.result != PROVEN), proofs[0])


def _try(bench: Bench, one: Fixture, good: dict[str, Look]) -> Proof:
    started = time.monotonic()
    if one.phase not in good:
        good[one.phase] = bench.look(one.phase)
    try:
        one.apply(bench)
        broken = bench.look(one.phase)
    finally:
        bench.undo()
    found = [item for item in broken.items if item.finding.id.startswith(one.finding)]
    # A healthy node may have notes to tell; a check that is no more than a note must be silent there.
    alarms = [
        item.finding.id
        for item in good[one.phase].items
        if item.finding.id.startswith((one.check, one.finding)) and (item.verdict != PASS or one.verdict == PASS)
    ]
    wrong = _wrong(one, [(item.verdict, item.finding.target, item.finding.action) for item in found])
    why = f"the healthy node shows {alarms[0]}" if alarms else wrong
    return Proof(
        one.check,
        NOT_PROVEN if why else PROVEN,
        good=not alarms,
        bad=not wrong,
        finding=found[0].finding.id if found else one.finding,
        verdict=found[0].verdict if found else "",
        phase=one.phase,
        why=why,
        seconds=round(time.monotonic() - started, 3),
    )


def _wrong(one: Fixture, found: Sequence[tuple[str, str, str]]) -> str:
    """Return how what was found differs from what must be, or nothing. Pure."""
    if not found:
        return f"the broken node does not show {one.finding}"
    for verdict, target, action in found:
        if (
            (verdict == one.verdict if one.verdict else verdict != PASS)
            and one.target in ("", target)
            and one.action in ("", action)
        ):
            return ""
    verdict, target, action = found[0]
    wanted = " ".join(word for word in (one.verdict, one.target, one.action) if word)
    return f"the broken node shows {verdict} {target} {action}, not {wanted or 'a warning or more'}"

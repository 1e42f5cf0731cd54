"""DCGM's diagnostic as a slow check: one run of dcgmi, in its leader, and what it says of the node."""

from __future__ import annotations

import time

from slurm_ext.gate import dcgm_diag
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.slow_result import BROKE, DONE, ENDED, LATE
from slurm_ext.hooks import slow_program
from slurm_ext.hooks.slow_program import Program
from slurm_ext.hooks.slow_run import Order, Result
from slurm_ext.verdict import UNKNOWN


def run(order: Order, token: str) -> Result:
    """Run it to its end, to its limit, or until a job asks for the end."""
    try:
        program = Program(order.argv, token)
    except OSError as exc:
        return _trouble(order, BROKE, f"{order.argv[0]} cannot be started: {exc.strerror}")
    why = slow_program.wait([program], time.monotonic() + order.limit_s)
    program.end()  # dcgmi has DCGM stop the diagnostic when it is told to end
    if why == ENDED:
        return Result(ENDED, said="ended for a job")
    if why:
        return _trouble(order, LATE, f"no answer within {order.limit_s:.0f} s")
    # Its exit code says only that a test failed, or that DCGM broke; the output says which.
    items = tuple(dcgm_diag.judge(dcgm_diag.parse(program.said()[0])))
    if any(item.finding.id == "dcgm.no-answer" for item in items):
        return _trouble(order, BROKE, next(line for item in items for line in item.finding.evidence))
    return Result(DONE, items)


def _trouble(order: Order, outcome: str, said: str) -> Result:
    return Result(outcome, (no_answer(f"dcgmi diag {order.level}: {said}"),), said)


def no_answer(line: str) -> Judged:
    """Return that DCGM gave no answer, which convicts nobody."""
    return judged(UNKNOWN, "dcgm.no-answer", "node", "none", line)

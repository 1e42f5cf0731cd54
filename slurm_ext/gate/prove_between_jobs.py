"""Fixtures that prove what the looks between jobs find beside the node's own state: EFA's loopback, container runtimes."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_ext.config.model import at_node
from slurm_ext.gate import efa_loopback, slow_result
from slurm_ext.gate.efa_loopback import FAILED, PASSED, Try
from slurm_ext.gate.prove_bench import BOOT_ID, NODE, Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.gate.slow_result import DONE, EFA, Last
from slurm_ext.verdict import FAIL, WARN


def _loopback(bench: Bench, failed: int, passed: int) -> None:
    """Leave the result of a loopback in which so many devices failed twice."""
    bench.set("gate", efa_loopback=True)
    tries = {
        f"rdmap{79 + number}s0": Try(FAILED if number < failed else PASSED, "") for number in range(failed + passed)
    }
    items = tuple(efa_loopback.judge(tries, tries, devices=len(tries)))
    now, boot_id = time.time(), (bench.root / BOOT_ID).read_text().strip()
    run_dir = at_node(bench.settings.site.run_dir, NODE)
    slow_result.write(run_dir, Last(EFA, DONE, now - 60, now - 30, boot_id, items))


def _enroot(script: str) -> Callable[[Bench], None]:
    """Name enroot, and let it do this."""

    def apply(bench: Bench) -> None:
        bench.set("gate", container_runtimes=("enroot",), deadline_s=1.0)
        bench.write("usr/bin/enroot", f"#!/bin/sh\n{script}\n", 0o755)

    return apply


FIXTURES: tuple[Fixture, ...] = (
    Fixture(
        "efa.loopback-",
        "efa.loopback-failed",
        lambda bench: _loopback(bench, 1, 31),
        FAIL,
        target="efa:rdmap79s0",
        action="replace",
    ),
    Fixture("efa.loopback-", "efa.loopback-none", lambda bench: _loopback(bench, 4, 0), WARN, action="warn"),
    Fixture("container.hangs", "container.hangs", _enroot("exec sleep 60"), WARN, target="runtime:enroot"),
    Fixture("container.error", "container.error", _enroot("exit 1"), WARN, target="runtime:enroot"),
    Fixture(
        "container.down",
        "container.down",
        lambda bench: bench.set("gate", container_runtimes=("docker",)),
        WARN,
        target="runtime:docker",
    ),
)

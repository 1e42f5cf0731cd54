"""Fixtures that prove what the gate makes of DCGM: its last diagnostic, judged by the rules of the slow check, and its watches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from slurm_ext.config.model import at_node
from slurm_ext.gate import dcgm_diag, slow_result
from slurm_ext.gate.prove_bench import BOOT_ID, NODE, Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.gate.slow_result import DONE, Last
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

_WARNING = {"warning": "GPU 3 has fallen off the bus", "error_id": 120, "error_category": 1, "error_severity": 2}
_RESULT = {"entity_group": "GPU", "entity_id": 3, "status": "Fail", "warnings": [_WARNING]}
_ANSWER = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory", "results": [_RESULT]}]}]}}


def _failed(bench: Bench) -> None:
    bench.set("gate", slow_check="dcgm-r1")
    items = tuple(dcgm_diag.judge(dcgm_diag.parse(json.dumps(_ANSWER))))
    now, boot_id = time.time(), (bench.root / BOOT_ID).read_text().strip()
    slow_result.write(at_node(bench.settings.site.run_dir, NODE), Last("r1", DONE, now - 60, now - 30, boot_id, items))


def _watches(system: str, health: str, said: str) -> Callable[[Bench], None]:
    """Let DCGM's watches say this of one GPU."""
    errors = {"Errors": {"children": {system: {"value": health, "overflow": [said]}}}}
    gpu = {"children": {"3": {"value": health, "children": errors}}}
    answer = {"body": {"Overall Health": {"value": health}, "GPU": gpu}, "header": ["Health Monitor Report"]}
    return lambda bench: bench.write("usr/bin/dcgmi", f"#!/bin/sh\ncat <<'X'\n{json.dumps(answer)}\nX\n", 0o755)


_DOUBLE_BIT = "Detected 1 volatile double-bit ECC error(s) in GPU 3."
_HOT = "Detected clocks event due to thermal violation in GPU 3."

FIXTURES: tuple[Fixture, ...] = (
    Fixture("dcgm.", "dcgm.memory", _failed, FAIL, target="gpu:3", action="reboot"),
    Fixture("dcgm-health.", "dcgm-health.thermal", _watches("Thermal system", "Warning", _HOT), WARN, target="gpu:3"),
    Fixture(
        "dcgm-health.",
        "dcgm-health.contradicted",
        _watches("Memory system", "Failure", _DOUBLE_BIT),
        WARN,
        target="gpu:3",
    ),
    Fixture("dcgm-health.", "dcgm-health.unknown", _watches("Memory system", "Failure", "what?"), UNKNOWN),
    Fixture(
        "dcgm-health.",
        "dcgm-health.no-answer",
        lambda bench: bench.write("usr/bin/dcgmi", "#!/bin/sh\necho a new form\n", 0o755),
        UNKNOWN,
    ),
)

"""Fixture that proves what the gate makes of DCGM's last answer: judged by the rules of the slow check itself."""

from __future__ import annotations

import json
import time

from slurm_ext.config.model import at_node
from slurm_ext.gate import dcgm_diag, slow_result
from slurm_ext.gate.prove_bench import BOOT_ID, NODE, Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.gate.slow_result import DONE, Last
from slurm_ext.verdict import FAIL

_WARNING = {"warning": "GPU 3 has fallen off the bus", "error_id": 120, "error_category": 1, "error_severity": 2}
_RESULT = {"entity_group": "GPU", "entity_id": 3, "status": "Fail", "warnings": [_WARNING]}
_ANSWER = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory", "results": [_RESULT]}]}]}}


def _failed(bench: Bench) -> None:
    bench.set("gate", slow_check="dcgm-r1")
    items = tuple(dcgm_diag.judge(dcgm_diag.parse(json.dumps(_ANSWER))))
    now, boot_id = time.time(), (bench.root / BOOT_ID).read_text().strip()
    slow_result.write(at_node(bench.settings.site.run_dir, NODE), Last("r1", DONE, now - 60, now - 30, boot_id, items))


FIXTURES: tuple[Fixture, ...] = (Fixture("dcgm.", "dcgm.memory", _failed, FAIL, target="gpu:3", action="reboot"),)

"""What the tests of EFA and Lustre captures share: a folder of roles -> the verdict, and each finding's target and action."""

from __future__ import annotations

import json

from slurm_ext.captured import Case
from slurm_ext.gate.model import conclude

PASS: tuple[str, set[tuple[str, str]]] = ("pass", set())


def answer(judge, group, roles, *, instance_type="", context=None):
    """Return what a judge makes of texts by role; what is no text is written as JSON."""
    texts = {role: text if isinstance(text, str) else json.dumps(text) for role, text in roles.items()}
    verdict = conclude(judge(Case("x", group, instance_type, texts, context or {})))
    return verdict.verdict, {(finding.target, finding.action) for finding in verdict.findings}

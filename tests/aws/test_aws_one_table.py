"""Facts about instance types stand in slurm_ext/aws alone: gate, burn-in, GRES, topology and the lab ask there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import slurm_ext

HOUSE = Path(slurm_ext.__file__).parent

#: A type, or the beginning of one as a table of families would have it.
_TYPE = re.compile(
    r"\b(?:u-)?(?:p[3-9]|g[4-9]|gr6|trn[12]|hpc[67]|inf2|dl2q)[a-z]{0,3}\d?(?:-[a-z]{1,2}\d{3}[a-z]?)?\.(?:\d*x?large|metal)?"
)

#: Where types are named and no fact about one is: what a fleet measured, what releases break, whom fixtures play, how many GPUs
#: a fabric may have attached less (a judgement).
ALLOWED = {
    "burnin/rules.py": "floors in GB/s and where the alarm for TCP holds, with their sources",
    "gate/compatibility.py": "releases that do not go together, by type",
    "gate/efa_rules.py": "families whose instances often have fewer EFA devices than they may: a judgement without a source",
    "gate/prove_bench.py": "what the fixtures of `gate prove` play",
    "gate/prove_host.py": "what the fixtures of `gate prove` play",
    "gate/prove_efa.py": "what the fixtures of `gate prove` play",
    "lab/model.py": "what the lab's nodes play by default",
    "cli/lab.py": "what the lab's nodes play by default",
}


def texts(path: Path) -> list[str]:
    """Return the string constants of a module that are no documentation."""
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]


def test_the_pattern_sees_types_and_families() -> None:
    for text in (
        "p5.48xlarge",
        "g5.",
        "p6-b200.",
        "u-p6e-gb200.36xlarge",
        "trn1.32xlarge g6e.12xlarge",
        "p6e-gb300r.36xlarge",
    ):
        assert _TYPE.search(text), text
    for text in ("%p5, %r3", "p50 latency", "step 5.", "nvidia-smi"):
        assert not _TYPE.search(text), text


def test_no_other_room_has_a_table_of_instance_types() -> None:
    naming = {
        str(path.relative_to(HOUSE))
        for path in HOUSE.rglob("*.py")
        if path.parent.name != "aws" and any(_TYPE.search(text) for text in texts(path))
    }
    assert naming == set(ALLOWED)

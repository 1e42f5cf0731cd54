"""The ids of all findings and rules that the source can produce, found in its syntax tree and in no list of ours."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "slurm_ext"
SOURCES = ("gate/*.py", "burnin/*.py", "hooks/slow*.py", "slurm/act.py")

#: Function -> which of its arguments are ids.
MAKERS: dict[str, tuple[int, ...]] = {
    "judged": (1,),
    "Finding": (0,),
    "Verdict": (3,),
    "unknown": (0,),
    "_unknown": (0,),
    "_fail": (0,),
    "_some": (0,),
    "_one": (1, 4),
}
_DOTTED = re.compile(r"[a-z][a-z0-9]*\.[a-z0-9][a-z0-9-]*-?")
_BEGIN = re.compile(r"[a-z][a-z0-9]*\.([a-z0-9][a-z0-9-]*-)?")

#: Text of that form that is no id: files, columns, modules, acts on a node.
NO_IDS = re.compile(
    r"node\.(?:drain|resume)|.*\.(log|json|jsonl|svg|xml|conf|yaml|txt|so|py|md|sock|current|total|used|width|procs|controllers|max|events)"
)


class Ids(NamedTuple):
    """`whole`: id -> where; `begins`: the constant beginning of ids that are put together -> where; `ends`: the constant end
    of those whose beginning is put in; `words`: all constant text, of which such ids are made."""

    whole: dict[str, str]
    begins: dict[str, str]
    words: frozenset[str] = frozenset()
    ends: dict[str, str] = {}  # noqa: RUF012 (a NamedTuple)


def collect() -> Ids:
    """Walk the source: ids given to makers of findings, and every constant of the form `subject.what` of their subjects."""
    found = Ids({}, {}, ends={})
    trees = {
        path: ast.parse(path.read_text())
        for pattern in SOURCES
        for path in sorted(PACKAGE.glob(pattern))
        if not path.name.startswith(("meanings", "prove"))
    }
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                _call(node, f"{path.name}:{node.lineno}", found)
    words = {n.value for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    subjects = {id_.split(".")[0] for id_ in found.whole if "." in id_}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                if isinstance(first := node.values[0], ast.Constant) and _begins(str(first.value), subjects):
                    found.begins.setdefault(str(first.value), f"{path.name}:{node.lineno}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_id(node.value, subjects):
                where = found.begins if node.value.endswith("-") else found.whole
                where.setdefault(node.value, f"{path.name}:{node.lineno}")
    return found._replace(words=frozenset(word for word in words if isinstance(word, str)))


def _call(node: ast.Call, where: str, found: Ids) -> None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for place in MAKERS.get(name, ()):
        if len(node.args) > place:
            _expression(node.args[place], where, found)
    for word in node.keywords:
        if word.arg == "rule":
            _expression(word.value, where, found)


def _expression(node: ast.expr, where: str, found: Ids) -> None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found.whole.setdefault(node.value, where)
    elif isinstance(node, ast.IfExp):
        _expression(node.body, where, found)
        _expression(node.orelse, where, found)
    elif isinstance(node, ast.JoinedStr):
        first, last = node.values[0], node.values[-1]
        if isinstance(first, ast.Constant):
            found.begins.setdefault(str(first.value), where)
        else:
            found.ends.setdefault(str(last.value) if isinstance(last, ast.Constant) else "", where)


def _is_id(text: str, subjects: set[str]) -> bool:
    return bool(_DOTTED.fullmatch(text)) and text.split(".")[0] in subjects and not NO_IDS.fullmatch(text)


def _begins(text: str, subjects: set[str]) -> bool:
    return bool(_BEGIN.fullmatch(text)) and text.split(".")[0] in subjects

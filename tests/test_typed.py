"""The hook path's NamedTuple is typing's in all that anybody uses of it, and typing is not imported for it."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from slurm_ext import typed

BODY = '''
class Point(NamedTuple):
    """A point."""

    x: int
    y: int = 2
    name: "str | None" = None

    @property
    def total(self) -> int:
        """The sum."""
        return self.x + self.y

    def moved(self, by: int) -> "Point":
        """Another."""
        return self._replace(x=self.x + by)


class Named(Point):
    """A point of a kind."""

    def moved(self, by: int) -> "Point":
        """Twice as far."""
        return super().moved(2 * by)


class Empty(NamedTuple):
    """Nothing."""
'''


def classes(named_tuple: Any) -> dict[str, Any]:
    space: dict[str, Any] = {"NamedTuple": named_tuple, "__name__": __name__}
    exec(BODY, space)
    return space


OURS, TYPINGS = classes(typed.NamedTuple), classes(typing.NamedTuple)
Point = OURS["Point"]  # where pickle looks for it
CALLS = (
    "Point(1)",
    "Point(1, 3, name='a')",
    "Point(x=1, y=5)",
    "Point()",
    "Point(1, 2, 3, 4)",
    "Point(1, x=2)",
    "Point(1, z=2)",
    "Point(1)._replace(y=7, name='b')",
    "Point(1)._replace(z=7)",
    "Point(1)._asdict()",
    "Point._make([1, 2, None])",
    "Point._make([1])",
    "Point._fields",
    "Point._field_defaults",
    "Point.__match_args__",
    "Point.__doc__",
    "Point.__name__",
    "Point.__qualname__",
    "Point.__module__",
    "Point(1).total",
    "Point(1).moved(3)",
    "Named(1).moved(3)",
    "Named(1, 2)",
    "Named.__mro__[1].__name__",
    "type(Named(1).moved(3)).__name__",
    "Point(1) == (1, 2, None)",
    "hash(Point(1))",
    "Point(1) < Point(2)",
    "Point(1)[0], Point(1)[-1], len(Point(1)), list(Point(1))",
    "[*Point(1)]",
    "setattr(Point(1), 'x', 2)",
    "setattr(Point(1), 'other', 2)",
    "Point(1).nothing",
    "isinstance(Point(1), tuple), issubclass(Named, Point)",
    "Empty(), Empty._fields",
    "Empty(1)",
    "repr(Point(1, name='q'))",
)


def outcome(text: str, space: dict[str, Any]) -> Any:
    try:
        return eval(text, dict(space))
    except Exception as exc:  # noqa: BLE001 - which one is what is compared
        return type(exc)


@pytest.mark.parametrize("text", CALLS)
def test_it_does_what_typings_does(text: str) -> None:
    for _ in range(2):  # the first object of a class is made in another way than the rest
        assert outcome(text, OURS) == outcome(text, TYPINGS)


@pytest.mark.parametrize("text", CALLS)
def test_whatever_is_done_first_with_a_class(text: str) -> None:
    assert outcome(text, classes(typed.NamedTuple)) == outcome(text, TYPINGS)


def test_the_types_of_its_fields_can_be_asked_for() -> None:
    assert typing.get_type_hints(Point) == typing.get_type_hints(TYPINGS["Point"])


@pytest.mark.parametrize("body", ["x: int = 1\n    y: int", "_x: int = 1"])
def test_what_is_no_record_is_refused_as_typing_refuses_it(body: str) -> None:
    text = f"class Wrong(NamedTuple):\n    {body}\n"
    refused = []
    for named_tuple in (typed.NamedTuple, typing.NamedTuple):
        with pytest.raises((TypeError, ValueError)) as raised:
            exec(text, {"NamedTuple": named_tuple, "__name__": __name__})
        refused.append(raised.type)
    assert refused[0] is refused[1]


def test_copies_and_pickles_are_equal() -> None:
    point = Point(1, name="a")
    assert pickle.loads(pickle.dumps(point)) == copy.copy(point) == copy.deepcopy(point) == point
    assert json.dumps(point) == '[1, 2, "a"]'
    match point:
        case Point(x=1, y=2, name=name):
            assert name == "a"
        case _:
            pytest.fail("no match")


@pytest.mark.parametrize("hook", ["prolog", "epilog", "task_prolog"])
def test_no_hook_of_a_job_imports_typing(hook: str) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("this Python makes records by typing")
    root = Path(__file__).resolve().parent.parent
    text = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import slurm_ext.hooks.{hook}; print('typing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-IS", "-c", text], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "False\n"


def test_no_module_of_the_burnin_client_imports_typing() -> None:
    """A prolog that tests its job's nodes imports these, too."""
    root = Path(__file__).resolve().parent.parent
    modules = "slurm_ext.hooks.prolog, slurm_ext.hooks.partners, slurm_ext.hooks.nccl_check, slurm_ext.hooks.words"
    client = "slurm_ext.burnin.gate, slurm_ext.burnin.rules, slurm_ext.burnin.surroundings"
    text = f"import sys; sys.path.insert(0, {str(root)!r}); import {modules}, {client}; print('typing' in sys.modules)"
    done = subprocess.run([sys.executable, "-IS", "-c", text], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "False\n" or sys.version_info >= (3, 14)

"""topology.yaml -> plain values that know their line. Reads events, so no nesting and no alias can blow up. Pure.

As Slurm's reader has it (serializer_yaml.c, data.c): the text ends at its first NUL, every word without a tag is text, also `~` and
`null`, and of keys that stand twice the last one counts, as a rule.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

#: Deeper than any topology.yaml, and shallow enough for whoever walks it.
MAX_NESTING = 12
MAX_VALUES = 2_000_000


_NULL_TAG = "tag:yaml.org,2002:null"
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]+|[ \t\n\v\f\r]*[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9].*|inf|infinity|nan)", re.I | re.S)


class YamlError(ValueError):
    """The text is no YAML that Slurm would read; `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        """Keep where."""
        super().__init__(problem)
        self.line = line


class Value(NamedTuple):
    """A scalar, a list or a mapping, and its line. A mapping is a tuple of (key, its line, value): a key may come twice."""

    kind: str
    line: int
    text: str = ""
    items: tuple[Value, ...] = ()
    pairs: tuple[tuple[str, int, Value], ...] = ()
    null: bool = False
    #: Keys that stand here more than once, and their lines.
    again: tuple[tuple[str, int], ...] = ()

    def get(self, key: str) -> Value | None:
        """Return the last value of a key of a mapping, None where it is not there."""
        return next((value for name, _, value in reversed(self.pairs) if name == key), None)

    def is_true(self) -> bool:
        """Say whether Slurm takes a word for a yes: all but a no, a zero and nothing (data.c)."""
        text = self.text.lower()
        if self.null or not text or text[0] == "~" or text in ("null", "n", "no", "f", "false", "off"):
            return False
        if (number := self.integer()) is not None:
            return number != 0
        try:
            return not _FLOAT.fullmatch(text) or float(text) != 0
        except ValueError:
            return True

    def integer(self) -> int | None:
        """Return the number that Slurm reads in a word, None where it reads none."""
        if self.null or not _INTEGER.fullmatch(self.text):
            return None
        if self.text[:2].lower() == "0x":
            return int(self.text, 16)
        digits = self.text.strip(" \t\n\v\f\r")
        return int(digits[:21])  # what is longer is out of every range


class _Open:
    """A list or mapping that is not yet closed."""

    def __init__(self, kind: str, line: int) -> None:
        self.kind, self.line = kind, line
        self.items: list[Value] = []

    def close(self) -> Value:
        if self.kind == "list":
            return Value("list", self.line, items=tuple(self.items))
        flat = self.items
        found: dict[str, tuple[str, int, Value]] = {}
        again = []
        for key, value in zip(flat[::2], flat[1::2], strict=False):
            if key.kind != "scalar":
                raise YamlError(key.line, f"a {key.kind} for a key: Slurm's reader takes words alone")
            if key.text in found:
                again.append((key.text, key.line))
                value = _once_more(found[key.text][2], value)
            found[key.text] = key.text, key.line, value
        return Value("mapping", self.line, pairs=tuple(found.values()), again=tuple(again))


def _once_more(first: Value, second: Value) -> Value:
    """Return what Slurm's reader makes of two values of one key: a list takes the other in, a mapping lets no word in."""
    if first.kind == "list":
        return first._replace(items=(*first.items, second))
    return first if first.kind == "mapping" and second.kind == "scalar" else second


def read(text: str) -> Value:
    """Return the document. Raise YamlError for what is none, for aliases, and for what is nested too deep."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: list[Value] = []
    stack: list[_Open] = []
    total = 0
    try:
        for event in yaml.parse(text.partition("\0")[0], Loader=loader):
            mark = event.start_mark
            line = mark.line + 1 if mark else 1
            total += 1
            if total > MAX_VALUES:
                raise YamlError(line, "too many values")
            if isinstance(event, yaml.AliasEvent):
                raise YamlError(line, "an alias (*name): Slurm's reader takes none")
            if isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
                if len(stack) >= MAX_NESTING:
                    raise YamlError(line, "nested too deep")
                stack.append(_Open("list" if isinstance(event, yaml.SequenceStartEvent) else "mapping", line))
                continue
            if isinstance(event, yaml.ScalarEvent):
                value = Value("scalar", line, event.value, null=event.tag == _NULL_TAG)
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                value = stack.pop().close()
            elif isinstance(event, yaml.DocumentEndEvent):
                break  # Slurm reads no further, whatever follows
            else:
                continue
            (stack[-1].items if stack else found).append(value)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise YamlError(mark.line + 1 if mark else 1, exc.problem or "no YAML") from exc
    except (yaml.YAMLError, UnicodeError) as exc:
        raise YamlError(1, f"no YAML: {' '.join(str(exc).split())[:120]}") from exc
    if not found:
        return Value("scalar", 1, null=True)
    return found[0]

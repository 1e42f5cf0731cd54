"""`fmslurm.yaml` -> Settings, strictly: whatever is wrong is said at once, each with line, key, what was expected and the nearest key.

The file is parsed to nodes and never to Python objects, so each scalar is read by what its key expects: `gate: off` is the
word off, though YAML 1.1 calls it false, and `1:30` is no number of seconds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from slurm_ext.config import targets
from slurm_ext.config.model import Settings
from slurm_ext.config.rules import (
    ITEMS,
    SECTIONS,
    Key,
    check_number,
    check_together,
    check_word,
    keys,
    nearest,
    wrong_unit,
)
from slurm_ext.errors import ConfigError

#: Far beyond any real file; keeps a wrong path (a log, a disk image) from being read whole.
MAX_BYTES = 1 << 20

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?")
_CORE = "tag:yaml.org,2002:"


class Problem(NamedTuple):
    """One thing that is wrong in the file: where (1-based line, 0 for the file as a whole), with which key, and what."""

    line: int
    key: str
    what: str


class Parsed(NamedTuple):
    """What a file says: settings (defaults where something is wrong), all problems, and the line of each key that is set."""

    settings: Settings
    problems: tuple[Problem, ...]
    lines: Mapping[str, int]
    items: Mapping[str, int] = {}  # `section.key[0]` -> the line of that item of a list


class InvalidSettingsError(ConfigError):
    """The file cannot be used; `problems` has all there is to correct."""

    def __init__(self, path: str, problems: tuple[Problem, ...]) -> None:
        self.path, self.problems = path, problems
        super().__init__("\n".join(describe(path, problem) for problem in problems))


def describe(path: str, problem: Problem) -> str:
    """Return a problem as one line, `file:line: key: what`, as compilers do, so that editors jump to it."""
    at = f"{path}:{problem.line}" if problem.line else path
    return f"{at}: {problem.key}: {problem.what}" if problem.key else f"{at}: {problem.what}"


def load(path: str) -> Settings:
    """Return the settings in the file, `source_hash` its SHA-256. Raise ConfigError, which names everything wrong in it."""
    content = read_bytes(path)
    parsed = parse(content)
    if parsed.problems:
        raise InvalidSettingsError(path, parsed.problems)
    return parsed.settings


def origins(path: str) -> dict[str, str]:
    """Return for each `section.key` where its value comes from: `default` or `file:line`. Raise ConfigError as `load` does."""
    parsed = parse(read_bytes(path))
    if parsed.problems:
        raise InvalidSettingsError(path, parsed.problems)
    return where_from(path, parsed.lines)


def where_from(path: str, lines: Mapping[str, int]) -> dict[str, str]:
    """Return origins for all keys, given the lines of those that are set."""
    every = [f"{section}.{name}" for section in SECTIONS for name in keys(section)]
    return {name: f"{path}:{lines[name]}" if name in lines else "default" for name in every}


def read_bytes(path: str) -> bytes:
    """Return the file's content. Raise ConfigError where there is none or it is far too large."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        said = getattr(exc, "strerror", None) or str(exc)
        raise ConfigError(f"{path}: cannot be read: {said}", remedy="Name another file with FMSLURM_CONFIG") from exc
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes, so no fmslurm.yaml")
    return content


def parse(content: bytes) -> Parsed:
    """Read the content of a file. Nothing is raised: what is wrong is in `problems`, and its keys keep their defaults."""
    try:
        root = _compose(content)
    except _NotYamlError as exc:
        return Parsed(Settings(), (exc.problem,), {})
    reader = _Reader()
    settings = reader.settings(root)
    if not reader.problems:
        for key, what in check_together(settings):
            reader.problems.append(Problem(reader.line_of(key), key, what))
    problems = tuple(sorted(reader.problems, key=lambda problem: problem.line))
    return Parsed(
        settings._replace(source_hash=hashlib.sha256(content).hexdigest()), problems, reader.lines, reader.items
    )


class _NotYamlError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


def _compose(content: bytes) -> yaml.Node | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise _NotYamlError(Problem(line, "", f"byte 0x{content[exc.start]:02x} is no UTF-8 text")) from exc
    for number, written in enumerate(text.split("\n"), 1):
        if "\t" in written[: len(written) - len(written.lstrip())]:
            raise _NotYamlError(Problem(number, "", "a tab indents this line; YAML takes spaces only"))
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        said = " ".join(part for part in (exc.context, exc.problem) if part)
        raise _NotYamlError(Problem(mark.line + 1 if mark else 0, "", f"this is not YAML: {said}")) from exc
    except yaml.YAMLError as exc:
        raise _NotYamlError(Problem(0, "", f"this is not YAML: {' '.join(str(exc).split())}")) from exc
    except RecursionError as exc:
        raise _NotYamlError(Problem(0, "", "nested far too deep for a configuration")) from exc
    except (ValueError, OverflowError, AttributeError, IndexError) as exc:
        # PyYAML lets a few slip through, e.g. for an escape beyond Unicode.
        raise _NotYamlError(Problem(0, "", f"this is not YAML: {exc}")) from exc


class _Reader:
    """Walks the nodes of one file and collects problems and lines on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}
        self.items: dict[str, int] = {}

    def line_of(self, key: str) -> int:
        """Return the line of a key, of its item of a list, or of the list; 0 where none is in the file."""
        item = key[: key.index("]") + 1] if "]" in key else key
        return self.lines.get(key) or self.items.get(item) or self.lines.get(key.split("[")[0], 0)

    def wrong(self, node: yaml.Node, key: str, what: str) -> None:
        self.problems.append(Problem(node.start_mark.line + 1, key, what))

    def settings(self, root: yaml.Node | None) -> Settings:
        if root is None or _is_null(root):
            return Settings()
        if not isinstance(root, yaml.MappingNode):
            self.wrong(root, "", f"expected sections ({', '.join(SECTIONS)}), found {_kind(root)}")
            return Settings()
        sections: dict[str, Any] = {}
        for name, value in self.pairs(root, "", list(SECTIONS)):
            if _is_null(value):  # a section whose keys are all commented out
                continue
            sections[name] = SECTIONS[name](**self.values(value, name, name))
        return Settings(**sections)

    def pairs(self, node: yaml.MappingNode, at: str, known: list[str]) -> list[tuple[str, yaml.Node]]:
        """Return the known keys of a mapping with their nodes; unknown and repeated ones become problems."""
        found: dict[str, yaml.Node] = {}
        first: dict[str, int] = {}
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.wrong(key_node, at, f"a key is a word, not {_kind(key_node)}")
                continue
            name = str(key_node.value)
            full = f"{at}.{name}" if at else name
            line = key_node.start_mark.line + 1
            if name in first:
                self.wrong(key_node, full, f"is set twice, first in line {first[name]}")
                continue
            first[name] = line
            if name in known:
                found[name] = value
                self.lines[full] = line
            elif not at and (sections := [s for s in SECTIONS if name in keys(s)]):
                self.wrong(key_node, full, f"no section has this name; the key belongs in {' or '.join(sections)}:")
            else:
                what = "no such key" if at else "no such section"
                hint = nearest(name, known) or self.elsewhere(name) or f" There are: {', '.join(known)}"
                self.wrong(key_node, full, f"{what}.{hint}")
        return list(found.items())

    def elsewhere(self, name: str) -> str:
        sections = [section for section in SECTIONS if name in keys(section)]
        return f" {name} belongs in {' or '.join(sections)}" if sections else ""

    def values(self, node: yaml.Node, section: str, at: str) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, at, f"expected keys and values, found {_kind(node)}")
            return {}
        known = keys(section)
        read: dict[str, Any] = {}
        for name, value in self.pairs(node, at, list(known)):
            before = len(self.problems)
            taken = self.value(value, known[name], f"{at}.{name}")
            if len(self.problems) == before:
                read[name] = taken
        return read

    def value(self, node: yaml.Node, key: Key, at: str) -> Any:
        if not key.many:
            return self.scalar(node, key, at)
        if not isinstance(node, yaml.SequenceNode):
            hint = f"; write [{node.value}]" if isinstance(node, yaml.ScalarNode) and node.value else ""
            if key.kind == "target":  # which may be a secret
                self.wrong(node, at, f"expected {key.expected}; write each behind a dash: - mail: ADDRESS")
            else:
                self.wrong(node, at, f"expected {key.expected}, found {_kind(node)}{hint}")
            return None
        for number, item in enumerate(node.value):
            self.items[f"{at}[{number}]"] = item.start_mark.line + 1
        for section, (shape, kind) in ITEMS.items():
            if key.kind == kind:
                every = [self.item(item, section, f"{at}[{number}]") for number, item in enumerate(node.value)]
                return tuple(shape(**fields) for fields in every)
        return tuple(self.scalar(item, key, f"{at}[{number}]") for number, item in enumerate(node.value))

    def item(self, node: yaml.Node, section: str, at: str) -> dict[str, Any]:
        """Read one item of a list of mappings; of a target its address alone may stand there."""
        if section == "targets" and isinstance(node, yaml.ScalarNode) and not _is_null(node):
            found, wrong = targets.from_word(str(node.value))
            if wrong:
                self.wrong(node, at, wrong)
            return found
        return self.values(node, section, at)

    def scalar(self, node: yaml.Node, key: Key, at: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(node, at, f"expected {key.one}, found {_kind(node)}")
            return None
        text, quoted = str(node.value), node.style is not None
        if not str(node.tag).startswith(_CORE):
            self.wrong(node, at, f"a tag such as {node.tag} has no meaning here")
            return None
        if key.kind in ("int", "float"):
            return self.number(node, key, at, text, quoted)
        if key.kind == "bool":
            if quoted or text not in ("true", "false", "True", "False"):
                self.wrong(node, at, f"expected true or false, found {text!r}")
            return text in ("true", "True")
        if not quoted and not key.choices and node.tag != f"{_CORE}str":
            what = 'nothing; write "" for empty text' if _is_null(node) else f'{text}; write it in quotes: "{text}"'
            self.wrong(node, at, f"expected {key.one}, found {what}")
        elif what := check_word(key, text):
            self.wrong(node, at, what)
        return text

    def number(self, node: yaml.Node, key: Key, at: str, text: str, quoted: bool) -> float | int | None:
        form = _INTEGER if key.kind == "int" else _DECIMAL
        if quoted or not form.fullmatch(text):
            unit = wrong_unit(key, text)
            said = f'"{text}" in quotes' if quoted else text or "nothing"
            self.wrong(node, at, f"expected {key.one}, found {said}" + (f"; {unit}" if unit else ""))
            return None
        value: float | int = int(text) if key.kind == "int" else float(text)
        if what := check_number(key, value):
            self.wrong(node, at, what)
        return value


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_CORE}null" and node.style is None


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "keys and values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if _is_null(node) else f"{str(node.value)[:60]!r}"

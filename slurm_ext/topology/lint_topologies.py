"""Rules of topology.yaml: its shape, its topologies by name, and what each of them holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_ext.topology import lint_block, lint_rings, lint_tree
from slurm_ext.topology.lint_model import Unit
from slurm_ext.topology.lint_report import Report
from slurm_ext.topology.lint_yaml import Value, YamlError, read

#: kind -> keys of what it holds.
KINDS = {
    "tree": ("switches",),
    "block": ("block_sizes", "blocks"),
    "flat": ("alpha_step_rank",),
    "ring": ("rings",),
    "torus3d": ("toruses",),
}
_NEW = ("ring", "torus3d")
_KEYS = ("topology", "cluster_default", *KINDS)
_PAGE = 4096
#: Releases that measure the file by its first NUL: all of 25.05, and 25.11 up to this patch.
_PAGES_FIXED = ((25, 11), 6)


class Topology(NamedTuple):
    """One topology of a file: its kind, and its switches or blocks by name (what has children is no leaf)."""

    name: str
    kind: str
    units: Mapping[str, Unit] = {}


class Found(NamedTuple):
    """The topologies of a file, in order, and node -> root of the tree that is the default."""

    topologies: tuple[Topology, ...]
    roots: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(topology.name for topology in self.topologies)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return their kinds."""
        return tuple(topology.kind for topology in self.topologies)


def check(report: Report, text: str, file: str) -> Found:
    """Report what is wrong with a topology.yaml."""
    report.add("yaml.unread", file, 1)
    _pages(report, text, file)
    try:
        document = read(text)
    except YamlError as exc:
        report.add("yaml.parse", file, exc.line, what=exc)
        return Found((), {})
    if document.kind == "scalar":
        words = "one word" if document.text else "nothing in it"
        report.add("yaml.shape", file, document.line, what=f"{words}, where a list of topologies is wanted")
        return Found((), {})
    topologies = document.items if document.kind == "list" else (document,)
    if not topologies:
        report.add("yaml.shape", file, document.line, what="an empty list, where topologies are wanted")
    made: list[Topology] = []
    roots: dict[str, str] = {}
    defaults = [t for t in topologies if (flag := t.get("cluster_default")) and _word(flag) and flag.is_true()]
    for topology in topologies:
        if topology.kind != "mapping":
            report.add("yaml.shape", file, topology.line, what="a topology that is no mapping of keys")
            continue
        found = _topology(report, topology, file, made)
        if topology is (defaults or topologies)[0]:
            roots = found
    if len(defaults) > 1:
        report.add("yaml.defaults", file, defaults[1].line, count=len(defaults))
    elif not defaults and len(topologies) > 1:
        report.add("yaml.no-default", file, topologies[0].line, name=made[0].name if made else "unnamed")
    return Found(tuple(made), roots)


def _pages(report: Report, text: str, file: str) -> None:
    try:
        size = len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # no file ever held such text
        return
    release = report.given.release
    feature, patch = _PAGES_FIXED
    if not size or size % _PAGE or (release.feature == feature and release.patch >= patch):
        return
    doubt = "warning" if release.feature == feature and release.patch < 0 else ""
    report.add("yaml.pages", file, 1, severity=doubt, count=size, release=release.words())


def _keys(report: Report, value: Value, known: Iterable[str], where: str, file: str) -> None:
    for key, line in value.again:
        report.add("yaml.key-twice", file, line, key=key)
    for key, line, _ in value.pairs:
        if key not in known:
            report.add("yaml.unknown-key", file, line, where=where, key=key, known=", ".join(known))


def _topology(report: Report, topology: Value, file: str, made: list[Topology]) -> dict[str, str]:
    for key in ("topology", "cluster_default"):
        if (value := topology.get(key)) is not None and not _word(value):
            report.add("yaml.shape", file, value.line, what=f"{key} is no word")
    name_value = topology.get("topology")
    name = name_value.text if name_value is not None and _word(name_value) else ""
    if not name:
        report.add("yaml.unnamed", file, topology.line)
    elif any(other.name == name for other in made):
        report.add("yaml.duplicate", file, topology.line, name=name)
    made.append(Topology(name, ""))
    _keys(report, topology, _KEYS, "a topology", file)
    kinds = [(key, line, value) for key, line, value in topology.pairs if key in KINDS and _says_something(key, value)]
    for key, line, value in topology.pairs:
        if key in KINDS and value.kind != "mapping" and (key != "flat" or not _word(value)):
            report.add("yaml.shape", file, line, what=f"{key} is no mapping of keys")
    if len(kinds) != 1:
        what = " and ".join(key for key, _, _ in kinds) or "no kind (tree, block, flat)"
        report.add("yaml.kinds", file, topology.line, name=name or "without a name", what=what)
    roots: dict[str, str] = {}
    for kind, line, value in kinds:
        if kind in _NEW or (kind == "flat" and value.kind == "mapping"):
            report.add("yaml.new-kind", file, line, name=name, kind=kind if kind in _NEW else "flat with keys")
        if value.kind != "mapping":
            continue
        _keys(report, value, KINDS[kind], kind, file)
        if kind == "tree":
            units = _units(report, value.get("switches"), ("switch", "nodes", "children"), file)
            roots = lint_tree.check(report, units, file, line=line, yaml=True)
            made[-1] = Topology(name, kind, {unit.name: unit for unit in units})
        elif kind == "block":
            units = _units(report, value.get("blocks"), ("block", "nodes"), file)
            lint_block.check(report, units, _sizes(report, value, file), file, line=line, yaml=True)
            made[-1] = Topology(name, kind, {unit.name: unit for unit in units})
        elif kind == "ring":
            units = _units(report, value.get("rings"), ("ring", "nodes"), file)
            lint_rings.check(report, units, file, line=line)
        elif kind == "torus3d":
            lint_rings.check_tori(report, _tori(report, value.get("toruses"), file), file, line=line)
    return roots


def _tori(report: Report, value: Value | None, file: str) -> list[lint_rings.Torus]:
    tori = []
    for entry in _entries(report, value, "torus", file):
        _keys(report, entry, ("name", "nodes", "dims", "placements", "regions"), "a torus", file)
        words = _words(report, entry, ("name", "nodes"), file)
        regions = [
            lint_rings.Region(
                _dims(report, one, "anchor", file),
                _dims(report, one, "dims", file),
                _words(report, one, ("nodes",), file).get("nodes"),
            )
            for one in _entries(report, entry.get("regions"), "region", file)
        ]
        placements = [
            lint_rings.Placement(*(_dims(report, one, key, file) for key in ("dims", "anchor_seed", "anchor_spacing")))
            for one in _entries(report, entry.get("placements"), "placement", file)
        ]
        unit = Unit(words.get("name", ""), file, entry.line, words.get("nodes"))
        tori.append(lint_rings.Torus(unit, _dims(report, entry, "dims", file), regions, placements))
    return tori


def _dims(report: Report, value: Value, key: str, file: str) -> lint_rings.Dims:
    """Return x, y and z of a key, 0 where they are not said; sixteen bits of each, as Slurm keeps them."""
    found = value.get(key)
    if found is None:
        return 0, 0, 0
    if found.kind != "mapping":
        report.add("yaml.shape", file, found.line, what=f"{key} is no mapping of x, y and z")
        return 0, 0, 0
    sizes = []
    for axis in "xyz":
        word = found.get(axis)
        number = 0 if word is None else word.integer() if _word(word) else None
        if number is None:
            report.add("yaml.shape", file, found.line, what=f"{axis} of {key} is no number")
        sizes.append((number or 0) & 0xFFFF)
    return sizes[0], sizes[1], sizes[2]


def _word(value: Value) -> bool:
    return value.kind == "scalar"


def _says_something(kind: str, value: Value) -> bool:
    """Say whether a kind counts: an empty mapping does not, but for flat's, and neither does `flat: false`."""
    if kind == "flat":
        return value.kind == "mapping" or (_word(value) and value.is_true())
    return bool(value.pairs)


def _units(report: Report, value: Value | None, keys: tuple[str, ...], file: str) -> list[Unit]:
    units = []
    for entry in _entries(report, value, keys[0], file):
        _keys(report, entry, keys, f"a {keys[0]}", file)
        words = _words(report, entry, keys, file)
        if keys[0] not in words:
            report.add("yaml.shape", file, entry.line, what=f"a {keys[0]} without a name")
            continue
        units.append(Unit(words[keys[0]], file, entry.line, words.get("nodes"), words.get("children")))
    return units


def _entries(report: Report, value: Value | None, what: str, file: str) -> list[Value]:
    """Return the mappings of a list of them, or the one that stands in its place."""
    if value is None:
        return []
    if _word(value):
        found = "one word" if value.text else "nothing"
        report.add("yaml.shape", file, value.line, what=f"{found}, where a list of {what} is wanted")
        return []
    entries = []
    for entry in value.items if value.kind == "list" else (value,):
        if entry.kind == "mapping":
            entries.append(entry)
        else:
            report.add("yaml.shape", file, entry.line, what=f"a {what} that is no mapping of keys")
    return entries


def _words(report: Report, entry: Value, keys: tuple[str, ...], file: str) -> dict[str, str]:
    words: dict[str, str] = {}
    for key, line, held in entry.pairs:
        if key in keys and not _word(held):
            report.add("yaml.shape", file, line, what=f"{key} is no text")
        elif key in keys and not held.null:
            words[key] = held.text
    return words


def _sizes(report: Report, value: Value, file: str) -> lint_block.Sizes | None:
    sizes = value.get("block_sizes")
    if sizes is None or sizes.null or (sizes.kind == "list" and not sizes.items):
        return None
    words = sizes.items if sizes.kind == "list" else (sizes,)
    numbers = [word.integer() if _word(word) else None for word in words]
    if any(number is None or not -(1 << 31) <= number < 1 << 31 for number in numbers):
        report.add("yaml.shape", file, sizes.line, what="block_sizes is no list of numbers of 32 bits")
        return None
    return lint_block.Sizes("block_sizes", ",".join(map(str, numbers)), sizes.line)

"""Puts the items of a plan on disk and takes them out again; never over something that somebody else changed.

The manifest is written before anything else, with what is about to be: killed at any moment, the next run knows what is
ours and goes on.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

from slurm_ext.files import link_atomic, owner_is_trusted, write_atomic
from slurm_ext.site.manifest import Manifest, save
from slurm_ext.site.model import FILE, FOLDER, LINK, Conflict, Entry, Item, Plan

DIFF_LINES = 40

#: How files.write_atomic and we name what is not yet in its place.
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}")


class Change(NamedTuple):
    """What apply did, or would do, to one path: create, replace, keep or remove."""

    what: str
    path: str


def with_parents(plan: Plan, manifest: Manifest) -> Plan:
    """Return the plan with the folders on the way to its items that are missing, or that an earlier install made."""
    named = {item.path for item in plan.items}
    parents: dict[str, Item] = {}
    for item in plan.items:
        path = os.path.dirname(item.path)
        while path not in ("", "/") and path not in named and path not in parents:
            if not os.path.lexists(path) or path in manifest.entries:
                parents[path] = Item(path, FOLDER, mode=0o755)
            path = os.path.dirname(path)
    ordered = sorted(parents.values(), key=lambda item: item.path.count("/"))
    return plan._replace(items=(*ordered, *plan.items))


def conflicts(plan: Plan, manifest: Manifest) -> list[Conflict]:
    """Return what stands in the way: files that others made or changed, folders that others may write."""
    found = []
    for item in plan.items:
        conflict = _conflict(item, manifest.entries.get(item.path))
        if conflict is not None:
            found.append(conflict)
    return found


def _conflict(item: Item, entry: Entry | None) -> Conflict | None:
    try:
        state = os.lstat(item.path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if _kind(state) != item.kind:
        return Conflict(item.path, f"expected a {item.kind}, and a {_kind(state)} is there")
    if item.kind == FOLDER:
        if item.private and not owner_is_trusted(state):
            mode = stat.S_IMODE(state.st_mode)
            return Conflict(
                item.path, f"belongs to uid {state.st_uid} with mode {mode:04o}; root decides by what is there"
            )
        return None
    if item.seed:
        return None
    there, wanted = _content(item.path, item.kind), item.content
    if there == wanted or (entry is not None and _hash(there) in (entry.sha256, entry.also)):
        return None
    if item.placeholder_only and _is_placeholder(there):
        return None
    why = "was changed since install put it there" if entry is not None else "is there already and is not ours"
    lines = difflib.unified_diff(
        there.decode("utf-8", "replace").splitlines(),
        wanted.decode("utf-8", "replace").splitlines(),
        f"{item.path} (there)",
        f"{item.path} (ours)",
        lineterm="",
        n=1,
    )
    return Conflict(item.path, why, "\n".join(line for line, _ in zip(lines, range(DIFF_LINES), strict=False)))


def changes(plan: Plan, manifest: Manifest) -> list[Change]:
    """Return what has to be done: nothing but `keep` where the installation is complete."""
    done = [Change(_needed(item), item.path) for item in plan.items]
    return done + [Change("remove", path) for path in _obsolete(plan, manifest)]


def _obsolete(plan: Plan, manifest: Manifest) -> list[str]:
    """Return what an earlier install made and this plan lacks, but for the release before: hooks may still run from it."""
    wanted = {item.path for item in plan.items}
    spared = f"/releases/{_previous(plan, manifest)}"
    return [path for path in manifest.entries if path not in wanted and not f"{path}/".count(f"{spared}/")]


def _previous(plan: Plan, manifest: Manifest) -> str:
    return manifest.version if manifest.version != plan.version else manifest.previous


def _needed(item: Item) -> str:
    try:
        state = os.lstat(item.path)
    except (FileNotFoundError, NotADirectoryError):
        return "create"
    if item.kind == FOLDER or item.seed:
        return "keep"
    same_mode = item.kind == LINK or (stat.S_IMODE(state.st_mode) == item.mode and state.st_uid == os.geteuid())
    return "keep" if same_mode and _content(item.path, item.kind) == item.content else "replace"


def apply(plan: Plan, manifest: Manifest, path: str) -> tuple[Manifest, list[Change]]:
    """Do what `changes` says and return the new manifest, written to `path`, and what was done. Raise OSError.

    Call it only where `conflicts` found nothing. Releases that this plan no longer needs are removed, ours alone.
    """
    todo = changes(plan, manifest)
    entries = dict(manifest.entries)
    for item in plan.items:
        entries[item.path] = _entry(item, manifest.entries.get(item.path))
    coming = Manifest(plan.version, _previous(plan, manifest), entries, plan.fragment)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    save(path, coming)
    for item in plan.items:
        _put(item)
    gone = _obsolete(plan, manifest)
    stuck = {conflict.path for conflict in remove(entries[name] for name in gone)}
    for name in gone:
        if name not in stuck:
            del entries[name]
    final = coming._replace(entries={name: e._replace(also="") for name, e in entries.items()}, complete=True)
    save(path, final)
    return final, todo


def _entry(item: Item, known: Entry | None) -> Entry:
    exists = os.path.lexists(item.path)
    before = known.before if known is not None else None
    if known is None and exists and item.placeholder_only:
        before = _content(item.path, item.kind).decode("utf-8", "replace")
    made = known.made if known is not None else not exists
    if known is not None and not made and before is None and exists and item.kind == FILE and not item.seed:
        there = _content(item.path, item.kind)
        before = there.decode("utf-8", "replace") if there != item.content else None
    also = known.sha256 if known is not None and known.sha256 != _hash(item.content) else ""
    return Entry(item.path, item.kind, _hash(item.content), item.mode, os.geteuid(), made, before, also)


def _put(item: Item) -> None:
    needed = _needed(item)
    if needed == "keep":
        return
    if item.kind == FOLDER:
        os.makedirs(os.path.dirname(item.path), mode=0o755, exist_ok=True)
        os.mkdir(item.path, item.mode)
        os.chmod(item.path, item.mode)
    elif item.kind == LINK:
        link_atomic(item.path, item.content.decode())
    else:
        write_atomic(item.path, item.content, mode=item.mode)
        if os.stat(item.path).st_uid != os.geteuid():
            os.chown(item.path, os.geteuid(), -1)


def remove(entries: Iterable[Entry], *, keep: Callable[[Entry], bool] = lambda _: False) -> list[Conflict]:
    """Remove what install made, files before folders, and return what was left: changed by others, or not empty.

    A placeholder gets back what it held. Byte code that Python wrote beside our own modules goes with them.
    """
    left = []
    entries = list(entries)
    names = {entry.path for entry in entries}
    ordered = sorted(entries, key=lambda entry: (entry.kind == FOLDER, -entry.path.count("/"), entry.path))
    for entry in ordered:
        if keep(entry):
            continue
        if entry.kind == FOLDER:
            _drop_temporaries(entry.path, names)
        if conflict := _take(entry):
            left.append(conflict)
    return left


def _take(entry: Entry) -> Conflict | None:
    try:
        state = os.lstat(entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if _kind(state) != entry.kind:
        return Conflict(entry.path, f"is no longer a {entry.kind}")
    if entry.kind == FOLDER:
        if not entry.made:
            return None
        _drop_bytecode(entry.path)
        try:
            os.rmdir(entry.path)
        except OSError:
            return Conflict(entry.path, "still holds something")
        return None
    if not entry.made and entry.before is None:
        return None
    if _hash(_content(entry.path, entry.kind)) not in (entry.sha256, entry.also):
        return Conflict(entry.path, "was changed since install put it there")
    if entry.before is not None:
        write_atomic(entry.path, entry.before)
    else:
        os.unlink(entry.path)
    return None


def _drop_temporaries(folder: str, names: set[str]) -> None:
    """Remove what a killed write left beside one of our files."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            found = _TEMPORARY.fullmatch(name)
            if found and os.path.join(folder, found.group(1)) in names:
                os.unlink(os.path.join(folder, name))


def _drop_bytecode(folder: str) -> None:
    cache = os.path.join(folder, "__pycache__")
    try:
        names = os.listdir(cache)
    except OSError:
        return
    for name in names:
        if name.endswith(".pyc"):
            os.unlink(os.path.join(cache, name))
    with contextlib.suppress(OSError):
        os.rmdir(cache)


def _kind(state: os.stat_result) -> str:
    if stat.S_ISLNK(state.st_mode):
        return LINK
    if stat.S_ISDIR(state.st_mode):
        return FOLDER
    return FILE if stat.S_ISREG(state.st_mode) else "special file"


def _content(path: str, kind: str) -> bytes:
    if kind == LINK:
        return os.readlink(path).encode()
    with open(path, "rb") as stream:
        return stream.read()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_placeholder(content: bytes) -> bool:
    lines = (line.strip() for line in content.decode("utf-8", "replace").splitlines())
    return all(not line or line.startswith("#") for line in lines)

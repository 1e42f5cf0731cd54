"""Manifests: what belongs to a checkpoint, as JSON that needs no fmslurm to be read. Also the walk that finds it out.

Standard library only: trainers and hooks import this.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from slurm_ext.request import is_run_name
from slurm_ext.staging.model import (
    FILE,
    FOLDER,
    LINK,
    MAX_STEP,
    MAX_WORLD,
    OWN_PREFIX,
    SCHEMA,
    CheckpointRefused,
    Entry,
    Manifest,
    is_attempt,
)

#: A manifest beyond this is not read: a million files take about 150 bytes each.
MAX_BYTES = 256 << 20


def render(manifest: Manifest) -> bytes:
    """Return a manifest as JSON with one file per line, so that people can read and grep it."""
    head = {
        "schema": SCHEMA,
        "kind": "checkpoint" if manifest.shard < 0 else "shard",
        "run": manifest.run,
        "step": manifest.step,
        "attempt": manifest.attempt,
        "world": manifest.world,
        "shard": manifest.shard,
        "node": manifest.node,
        "checkpoint_dir": manifest.checkpoint_dir,
        "created": manifest.created,
        "bytes": manifest.size,
    }
    lines = [json.dumps(_entry_fields(entry), separators=(",", ":")) for entry in manifest.entries]
    body = ",\n".join(lines)
    return (json.dumps(head)[:-1] + ', "files": [' + (f"\n{body}\n" if body else "") + "]}\n").encode()


def _entry_fields(entry: Entry) -> dict[str, object]:
    """Return one entry as plain data; what is empty for its kind is left out."""
    fields: dict[str, object] = {"path": entry.path, "kind": entry.kind, "mode": entry.mode, "shard": entry.shard}
    if entry.kind == FILE:
        fields |= {"size": entry.size, "mtime_ns": entry.mtime_ns, "checksum": entry.checksum}
    if entry.kind == LINK:
        fields["target"] = entry.target
    if entry.key:
        fields["key"] = entry.key
    return fields


def parse(content: bytes) -> Manifest:
    """Return the manifest in `content`. Raise ValueError for anything we would not have written: it is hostile text."""
    try:
        data = json.loads(content)
        created = data.get("created") if isinstance(data, dict) else None
        created = float(created) if isinstance(created, (int, float)) else 0.0
    except (RecursionError, OverflowError) as exc:
        raise ValueError("nested too deeply, or a number too large") from exc
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError("not a manifest of a version that this fmslurm reads")
    manifest = Manifest(
        run=_text(data, "run", 64),
        step=_number(data, "step", MAX_STEP),
        attempt=_text(data, "attempt", 128),
        world=_number(data, "world", MAX_WORLD),
        shard=_number(data, "shard", MAX_WORLD, low=-1),
        node=_text(data, "node", 256),
        checkpoint_dir=_text(data, "checkpoint_dir", 4096),
        created=created,
        entries=tuple(_parse_entries(data.get("files"))),
    )
    if not is_run_name(manifest.run) or not is_attempt(manifest.attempt):
        raise ValueError("run or attempt is not a name")
    if manifest.world < 1 or manifest.shard >= manifest.world:
        raise ValueError(f"shard {manifest.shard} of {manifest.world}")
    if manifest.checkpoint_dir and not manifest.checkpoint_dir.startswith("/"):
        raise ValueError("checkpoint_dir is not absolute")
    return manifest


def _parse_entries(files: object) -> Iterator[Entry]:
    """Yield the entries of a manifest's `files`, each checked."""
    if not isinstance(files, list):
        raise ValueError("files is not a list")
    seen: set[str] = set()
    for fields in files:
        if not isinstance(fields, dict):
            raise ValueError("a file is not an object")
        path, kind = _text(fields, "path", 65536), fields.get("kind")
        if not is_inside(path) or path in seen or kind not in (FILE, LINK, FOLDER):
            raise ValueError(f"not a file of a checkpoint: {path!r}")
        seen.add(path)
        yield Entry(
            path=path,
            kind=kind,
            size=_number(fields, "size", 1 << 62) if kind == FILE else 0,
            mode=_number(fields, "mode", 0o7777) & 0o777,
            mtime_ns=_number(fields, "mtime_ns", 1 << 63, low=-(1 << 63)) if kind == FILE else 0,
            checksum=_text(fields, "checksum", 80) if kind == FILE else "",
            target=_text(fields, "target", 4096) if kind == LINK else "",
            shard=_number(fields, "shard", MAX_WORLD),
            key=_text(fields, "key", 1024),
        )


def _text(data: Mapping[str, object], name: str, limit: int) -> str:
    """Return a text field of limited length without NUL."""
    value = data.get(name, "")
    if not isinstance(value, str) or len(value) > limit or "\0" in value:
        raise ValueError(f"{name} is not a text of at most {limit} characters")
    return value


def _number(data: Mapping[str, object], name: str, high: int, *, low: int = 0) -> int:
    """Return a whole number within bounds."""
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is not a number from {low} to {high}")
    return value


def is_inside(path: str) -> bool:
    """Say whether a relative path stays inside its folder and is none of our own names."""
    parts = path.split("/")
    return all(part not in ("", ".", "..") and not part.startswith(OWN_PREFIX) for part in parts)


def walk(folder: str, *, shard: int = 0, skip_own: bool = False) -> tuple[Entry, ...]:
    """Return every name below `folder`, sorted, links as links and never followed.

    Raise CheckpointRefused for what no tier can hold (a device, a socket, a pipe) and for names that are ours; with
    `skip_own` those directly in `folder` are left out instead.
    """
    entries: list[Entry] = []
    pending = [""]
    while pending:
        below = pending.pop()
        with os.scandir(os.path.join(folder, below)) as names:
            for name in names:
                path = f"{below}/{name.name}" if below else name.name
                if skip_own and not below and name.name.startswith(OWN_PREFIX):
                    continue
                if not is_inside(path):
                    raise CheckpointRefused(
                        f"{path}: names that start with {OWN_PREFIX} are ours", reason="invalid", remedy="Rename it"
                    )
                entry = _entry(os.path.join(folder, path), path, shard)
                entries.append(entry)
                if entry.kind == FOLDER:
                    pending.append(path)
    return tuple(sorted(entries, key=lambda entry: entry.path))


def _entry(full: str, path: str, shard: int) -> Entry:
    """Return one name as an Entry."""
    state = os.lstat(full)
    mode = stat.S_IMODE(state.st_mode) & 0o777  # set-user-id and friends do not travel
    if stat.S_ISREG(state.st_mode):
        return Entry(path, FILE, state.st_size, mode, state.st_mtime_ns, shard=shard)
    if stat.S_ISLNK(state.st_mode):
        return Entry(path, LINK, mode=mode, target=os.readlink(full), shard=shard)
    if stat.S_ISDIR(state.st_mode):
        return Entry(path, FOLDER, mode=mode, shard=shard)
    raise CheckpointRefused(
        f"{path} is neither a file, a folder nor a link", reason="invalid", remedy="Keep it out of the checkpoint"
    )


def merge(shards: Sequence[Manifest]) -> Manifest:
    """Return the manifest of the whole checkpoint out of all its shards' manifests.

    Raise CheckpointRefused (reason `conflict`) where two shards hold one path with different content, and `invalid`
    where they are not the shards 0 .. world-1 of one save.
    """
    ordered = sorted(shards, key=lambda shard: shard.shard)
    first = ordered[0]
    if [shard.shard for shard in ordered] != list(range(first.world)) or any(
        (shard.step, shard.attempt, shard.world) != (first.step, first.attempt, first.world) for shard in ordered
    ):
        raise CheckpointRefused("these shards do not make one checkpoint", reason="invalid")
    entries: dict[str, Entry] = {}
    for shard in ordered:
        for entry in shard.entries:
            known = entries.setdefault(entry.path, entry)
            if known is entry or (entry.kind == FOLDER and known.kind == FOLDER):
                continue
            # Without checksums nobody knows whether two files of one size are the same.
            unknown = entry.kind == FILE and not entry.checksum
            same = (known.kind, known.size, known.checksum, known.target) == (
                entry.kind,
                entry.size,
                entry.checksum,
                entry.target,
            )
            if unknown or not same:
                raise CheckpointRefused(
                    f"shards {known.shard} and {entry.shard} both wrote {entry.path}, with different content",
                    reason="conflict",
                    remedy="Let each rank write names of its own, for example with its rank in the name",
                )
    return first._replace(
        shard=-1,
        node="",
        created=max(shard.created for shard in ordered),
        entries=tuple(sorted(entries.values(), key=lambda entry: entry.path)),
    )


def read(path: str) -> Manifest | None:
    """Return the manifest in a file, None where there is no such file. Raise ValueError for a file that is no manifest.

    The file may be hostile: a link is not followed, a pipe does not block, and what is too long is not read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise ValueError(f"{path}: {exc.strerror}") from exc
    with os.fdopen(descriptor, "rb") as stream:
        state = os.fstat(stream.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_BYTES:
            raise ValueError(f"{path}: not a regular file of at most {MAX_BYTES} bytes")
        return parse(stream.read(MAX_BYTES))


def missing(folder: str, manifest: Manifest) -> str:
    """Return what of a manifest is not there as it says (by name, kind and size), in words; empty where all is there."""
    for entry in manifest.entries:
        try:
            state = os.lstat(os.path.join(folder, entry.path))
        except OSError as exc:
            return f"{entry.path}: {exc.strerror}"
        if entry.kind == FILE and (not stat.S_ISREG(state.st_mode) or state.st_size != entry.size):
            return f"{entry.path}: {state.st_size} bytes, not {entry.size}"
        if entry.kind == FOLDER and not stat.S_ISDIR(state.st_mode):
            return f"{entry.path}: not a folder"
        if entry.kind == LINK and not stat.S_ISLNK(state.st_mode):
            return f"{entry.path}: not a link"
    return ""

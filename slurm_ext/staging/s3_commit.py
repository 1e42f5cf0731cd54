"""A checkpoint in S3: objects of an attempt under keys of their own, and one small object that makes it exist.

`PREFIX/UID/RUN/step-N/ATTEMPT/...` holds files and shard manifests and is never written by another attempt;
`PREFIX/UID/RUN/step-N/MANIFEST.json` is put last, with If-None-Match: of all who try, one wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from slurm_ext.staging import manifest as manifests
from slurm_ext.staging import s3
from slurm_ext.staging.checksum import of_descriptor
from slurm_ext.staging.commit import State
from slurm_ext.staging.local import Point, Progress, check_unchanged, no_point, no_progress
from slurm_ext.staging.model import (
    COMPLETE,
    COPIED,
    FILE,
    REFUSED,
    WAITING,
    CheckpointRefused,
    Entry,
    Manifest,
    shard_manifest_name,
    step_name,
)


def put_shard(
    store: s3.Store,
    uid: int,
    shard: Manifest,
    open_file: Callable[[Entry], int],
    *,
    point: Point = no_point,
    progress: Progress = no_progress,
) -> State:
    """Upload a shard's files and its manifest, then try to complete its checkpoint. Run again it sends what is missing.

    `open_file` returns a descriptor of an entry's file, opened as its owner and checked. Raise StoreError.
    """
    state = final_state(store, uid, shard)
    if state.state != WAITING:
        return state
    prefix = store.attempt_key(uid, shard)
    there = s3.list_sizes(store, prefix)
    if shard_manifest_name(shard.shard) not in there:
        entries = []
        for entry in shard.entries:
            if entry.kind == FILE:
                entry = _put_entry(store, prefix, entry, open_file, there, point, progress)
            entries.append(entry)
        point("sent files")
        declared = manifests.render(shard._replace(entries=tuple(entries)))
        s3.put_bytes(store, prefix + shard_manifest_name(shard.shard), declared)
        point("sent shard manifest")
    return try_commit(store, uid, shard, point=point)


def _put_entry(
    store: s3.Store,
    prefix: str,
    entry: Entry,
    open_file: Callable[[Entry], int],
    there: Mapping[str, int],
    point: Point,
    progress: Progress,
) -> Entry:
    """Upload one file unless the store has these very bytes; return its entry with checksum and, where odd, its key."""
    name = s3.object_name(entry.path)
    descriptor = open_file(entry)
    try:
        text = ""
        if there.get(name) == entry.size:
            text, _ = of_descriptor(descriptor)
            if not s3.holds(store, prefix + name, entry.size, text):
                text = ""
        if not text:
            text = s3.put_file(store, prefix + name, descriptor, entry.size, point=point, progress=progress)
        check_unchanged(descriptor, entry)
    finally:
        os.close(descriptor)
    point(f"sent {entry.path}")
    return entry._replace(checksum=text, key="" if name == entry.path else name)


def final_state(store: s3.Store, uid: int, shard: Manifest) -> State:
    """Say whether the step of a shard is complete in the store, taken by another attempt, or still open."""
    try:
        known = s3.read_manifest(store, uid, shard.run, shard.step)
    except ValueError as exc:
        return State(REFUSED, f"a manifest that cannot be read is in the store: {exc}")
    if known is None:
        return State(WAITING)
    if known.attempt == shard.attempt:
        return State(COMPLETE)
    return State(REFUSED, f"{step_name(shard.step)} is complete in the store already, from attempt {known.attempt}")


def try_commit(store: s3.Store, uid: int, shard: Manifest, *, point: Point = no_point) -> State:
    """Put the checkpoint's manifest if all shards are in, once for all who try; only shard 0's node should try."""
    prefix = store.attempt_key(uid, shard)
    if shard.shard != 0:
        state = final_state(store, uid, shard)
        return state if state.state != WAITING else State(COPIED, "waits for the node of shard 0")
    there = s3.list_sizes(store, prefix)
    absent = [number for number in range(shard.world) if shard_manifest_name(number) not in there]
    if absent:
        named = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
        return State(COPIED, f"waits for shard {named} of {shard.world}")
    try:
        shards = [s3.get_bytes(store, prefix + shard_manifest_name(number)) for number in range(shard.world)]
        whole = manifests.merge([manifests.parse(content or b"") for content in shards])
    except (ValueError, CheckpointRefused) as exc:
        return State(REFUSED, str(exc))
    for entry in whole.entries:
        if entry.kind == FILE and there.get(entry.key or entry.path) != entry.size:
            return State(REFUSED, f"incomplete though all shards are in: {entry.path}")
    point("ready to commit")
    key = store.step_key(uid, shard.run, shard.step) + s3.MANIFEST_OBJECT
    if s3.put_bytes(store, key, manifests.render(whole), only_new=True):
        point("committed")
        return State(COMPLETE)
    return final_state(store, uid, shard)  # a reply that was lost, or another attempt: the store says which

"""A checkpoint on the shared file system: shards gather under a hidden name, and one rename makes all of it visible.

`.incoming-step-N.ATTEMPT/` holds files and `.fmslurm-shard-K.json`, each written when its shard is in. Whoever finds
all of them there checks, writes `.fmslurm-manifest.json` and renames the folder to `step-N`. Any process may do so, any
number of times, at once: the manifest follows from the shards alone, and only one rename succeeds. Runs as the user.
Standard library only: trainers import this.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple

from slurm_ext.files import sync_folder
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.local import (
    Point,
    Progress,
    apply_modes,
    copy_tree,
    no_point,
    no_progress,
    remove_tree,
    write_durable,
)
from slurm_ext.staging.model import (
    COMMIT_PREFIX,
    COMPLETE,
    COPIED,
    FOLDER,
    MANIFEST,
    PART_PREFIX,
    REFUSED,
    WAITING,
    WRITING_PREFIX,
    CheckpointRefused,
    Manifest,
    incoming_name,
    shard_manifest_name,
    step_name,
)


class State(NamedTuple):
    """How far a shard, or the checkpoint it belongs to, has come in a tier, and why, in words."""

    state: str
    words: str = ""


def incoming_path(shard: Manifest) -> str:
    """Return the folder where a shard's checkpoint gathers."""
    return os.path.join(shard.checkpoint_dir, incoming_name(shard.step, shard.attempt))


def final_state(shard: Manifest) -> State:
    """Say whether the step of a shard is complete, taken by something else, or still open (`waiting`)."""
    folder = os.path.join(shard.checkpoint_dir, step_name(shard.step))
    try:
        known = manifests.read(os.path.join(folder, MANIFEST))
    except ValueError as exc:
        return State(REFUSED, f"{folder} has a manifest that cannot be read: {exc}")
    if known is not None:
        if known.attempt == shard.attempt:
            return State(COMPLETE, folder)
        return State(REFUSED, f"{folder} is complete already, from attempt {known.attempt}")
    if os.path.lexists(folder):
        return State(REFUSED, f"{folder} is there already and is not of fmslurm")
    return State(WAITING)


def shard_state(shard: Manifest) -> State:
    """Say where a shard is: `complete` with its checkpoint, `copied` and waiting for others, `refused`, or `waiting`.

    The gathering folder is looked at first: without this shard's manifest in it nobody can have made it visible.
    """
    if _same_shard(os.path.join(incoming_path(shard), shard_manifest_name(shard.shard)), shard):
        return State(COPIED)
    return final_state(shard)


def _same_shard(path: str, shard: Manifest) -> bool:
    """Say whether the manifest at `path` is of this very shard."""
    try:
        known = manifests.read(path)
    except ValueError:
        return False
    return known is not None and (known.attempt, known.shard, known.world) == (shard.attempt, shard.shard, shard.world)


def put_shard(source: str, shard: Manifest, *, point: Point = no_point, progress: Progress = no_progress) -> State:
    """Copy a shard from its folder on NVMe to where its checkpoint gathers, then try to complete the checkpoint.

    Run again after a crash it does what is missing. OSError (full, read-only, stale) is the caller's to handle.
    """
    state = shard_state(shard)
    if state.state == WAITING:
        incoming = incoming_path(shard)
        os.makedirs(incoming, exist_ok=True)
        sync_folder(shard.checkpoint_dir)
        point("made incoming")
        entries = copy_tree(source, incoming, shard.entries, point=point, progress=progress)
        _declare(incoming, shard._replace(entries=entries), point)
    elif state.state != COPIED:
        return state
    return try_commit(shard, point=point)


def adopt_shard(written: str, shard: Manifest, *, point: Point = no_point) -> State:
    """Move a shard that was written beside the gathering folder's files into it (same file system), then try to complete.

    Its entries already have checksums and its files are durable.
    """
    incoming = incoming_path(shard)
    for entry in sorted(shard.entries, key=lambda entry: entry.path):
        target = os.path.join(incoming, entry.path)
        if entry.kind == FOLDER:
            os.makedirs(target, mode=0o700, exist_ok=True)
        else:
            os.rename(os.path.join(written, entry.path), target)
            point(f"moved {entry.path}")
    for entry in shard.entries:
        if entry.kind == FOLDER:
            sync_folder(os.path.join(incoming, entry.path))
    _declare(incoming, shard, point)
    remove_tree(written)
    return try_commit(shard, point=point)


def _declare(incoming: str, shard: Manifest, point: Point) -> None:
    """Say that a shard is in, durably."""
    write_durable(incoming, shard_manifest_name(shard.shard), manifests.render(shard), point=point)


def try_commit(shard: Manifest, *, point: Point = no_point) -> State:
    """Make the checkpoint of a shard visible if all of its shards are in; say how far it is.

    `refused` is for good: the step is taken, or two shards hold one name with different content.
    """
    incoming = incoming_path(shard)
    gathered: list[Manifest] = []
    absent: list[int] = []
    for number in range(shard.world):
        try:
            one = manifests.read(os.path.join(incoming, shard_manifest_name(number)))
        except ValueError as exc:
            return State(REFUSED, str(exc))
        if one is None:
            absent.append(number)
        else:
            gathered.append(one)
    if absent:
        state = final_state(shard)
        if state.state != WAITING:
            return state
        named = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
        return State(COPIED, f"waits for shard {named} of {shard.world}")
    final = os.path.join(shard.checkpoint_dir, step_name(shard.step))
    try:
        whole = manifests.merge(gathered)
        _check(incoming, whole)
        write_durable(incoming, MANIFEST, manifests.render(whole), prefix=COMMIT_PREFIX, point=point)
        apply_modes(incoming, whole.entries)
        point("ready to commit")
        os.rename(incoming, final)
    except CheckpointRefused as exc:
        state = final_state(shard)  # somebody else may just have moved the folder away under our eyes
        return state if state.state == COMPLETE else State(REFUSED, str(exc))
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        state = final_state(shard)
        return state if state.state != WAITING else State(COPIED, "somebody else is completing it")
    point("committed")
    sync_folder(shard.checkpoint_dir)
    _tidy(final, COMMIT_PREFIX)  # of one who was about to commit at the same moment
    return State(COMPLETE, final)


def _tidy(folder: str, *prefixes: str) -> None:
    """Remove what starts with one of our prefixes directly in a folder."""
    with os.scandir(folder) as names:
        for name in list(names):
            if name.name.startswith(prefixes):
                remove_tree(name.path)


def _check(incoming: str, whole: Manifest) -> None:
    """Raise CheckpointRefused where the folder lacks something; take out what an interrupted copy left there."""
    _tidy(incoming, PART_PREFIX, WRITING_PREFIX)
    if lacking := manifests.missing(incoming, whole):
        raise CheckpointRefused(f"incomplete though all shards are in: {lacking}", reason="damaged")
    known = {entry.path for entry in whole.entries}
    for entry in manifests.walk(incoming, skip_own=True):
        if entry.path not in known and entry.kind != FOLDER:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(incoming, entry.path))

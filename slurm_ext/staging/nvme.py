"""A user's folder on a node's NVMe: made for him before his job, scanned by the agent, put together where it is whole.

Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Container

from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import LackingError
from slurm_ext.files import sync_folder
from slurm_ext.request import is_run_name
from slurm_ext.staging import find
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.commit import State
from slurm_ext.staging.identity import call_as, groups_of
from slurm_ext.staging.local import (
    apply_modes,
    link_tree,
    lock_folder,
    part_path,
    remove_tree,
    sync_tree,
    write_durable,
)
from slurm_ext.staging.model import (
    COMPLETE,
    MANIFEST,
    PART_PREFIX,
    REFUSED,
    WHOLE,
    WRITING_PREFIX,
    CheckpointRefused,
    Manifest,
    Shard,
    shard_name,
    slug,
)

#: A shard that somebody began to write, without a lock and untouched for this long, has no writer any more.
ORPHAN_AGE_S = 300.0

#: No user makes the agent read more shards than this in one look; the rest follows as these are done.
MAX_SHARDS = 10_000


def prepare_run_folder(settings: Settings, node: str, run: str, uid: int, *, timeout_s: float = 5.0) -> str:
    """Make a job's folder on NVMe (`TIER/uid/run`, mode 0700, the user's own) and return it; empty without such a tier.

    For root, before the job starts. Works in a child with a deadline. Raise LackingError where the tier's folder is not
    there or does not answer, ValueError for a run that is no name.
    """
    folder = find.nvme_run_folder(settings, node, run, uid)
    tier = find.tier_of(settings, "nvme")
    if not folder or tier is None:
        return ""
    root = at_node(tier.url, node)

    def make() -> bytes:
        parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # never made here: it may not be mounted
        with contextlib.suppress(FileExistsError):
            os.mkdir(str(uid), 0o700, dir_fd=parent)
        own = os.open(str(uid), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        if os.fstat(own).st_uid != uid:
            os.fchown(own, uid, groups_of(uid, uid)[0])
        return b"made"

    def make_run() -> bytes:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        sync_folder(os.path.dirname(folder))
        return b"made" if stat.S_ISDIR(os.lstat(folder).st_mode) else b""

    # Root makes the user's folder and no more: what lies below belongs to the user and is touched as the user.
    owner = os.geteuid()
    if call_as(owner, owner, make, timeout_s=timeout_s) is None or not call_as(uid, uid, make_run, timeout_s=timeout_s):
        raise LackingError(f"cannot make {folder}", remedy=f"See that {root} is mounted and writable")
    return folder


def users(root: str) -> list[tuple[int, int]]:
    """Return (uid, gid) of each user who has a folder on NVMe; a folder that is not of the user it names is left out."""
    found: list[tuple[int, int]] = []
    try:
        with os.scandir(root) as names:
            for name in names:
                if name.name.isdigit() and name.is_dir(follow_symlinks=False):
                    state = name.stat(follow_symlinks=False)
                    if str(state.st_uid) == name.name:
                        found.append((state.st_uid, state.st_gid))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def scan(user_folder: str, uid: int, done: Container[str], now: float) -> tuple[list[Shard], list[str]]:
    """Return the shards of a user that are not `done`, and the keys of all there are; remove what dead writers left.

    Runs as the user. `done` holds Shard keys whose manifests need no second look.
    """
    shards: list[Shard] = []
    keys: list[str] = []
    with os.scandir(user_folder) as names:
        runs = sorted(n.name for n in names if is_run_name(n.name) and n.is_dir(follow_symlinks=False))
    for run in runs:
        run_folder = os.path.join(user_folder, run)
        for step in find.steps_in(run_folder):
            for attempt, folder in find.attempts_of(run_folder, step):
                _remove_orphans(folder, now)
                for number, path in sorted(find.shards_of(folder)):
                    key = f"{uid}/{run}/step-{step}/{attempt}/{shard_name(number)}"
                    keys.append(key)
                    if key in done or len(shards) >= MAX_SHARDS:
                        continue
                    manifest = find.nvme_shard(path, step, number)
                    if manifest is None or manifest.run != run or slug(manifest.attempt) != attempt:
                        continue
                    shards.append(to_shard(manifest, uid, path))
    return shards, keys


def to_shard(manifest: Manifest, uid: int, path: str) -> Shard:
    """Return what a scan reports of a shard."""
    return Shard(
        uid=uid,
        run=manifest.run,
        step=manifest.step,
        attempt=manifest.attempt,
        shard=manifest.shard,
        world=manifest.world,
        size=manifest.size,
        checkpoint_dir=manifest.checkpoint_dir,
        created=manifest.created,
        path=path,
    )


def _remove_orphans(folder: str, now: float) -> None:
    """Remove shards whose writers died, and what an interrupted assembly left."""
    with os.scandir(folder) as names:
        left = [name for name in names if name.name.startswith((WRITING_PREFIX, PART_PREFIX))]
    for name in left:
        with contextlib.suppress(OSError):
            if now - name.stat(follow_symlinks=False).st_mtime < ORPHAN_AGE_S:
                continue
            lock = lock_folder(name.path)
            if lock is not None:
                remove_tree(name.path)
                os.close(lock)


def assemble(attempt_folder: str, step: int, world: int) -> State:
    """Show all shards of a checkpoint in one folder, `whole`, by hard links. Runs as the user, on the node that has them all.

    `refused` where two shards hold one name: what is right then is not known before their bytes are compared.
    """
    target = os.path.join(attempt_folder, WHOLE)
    if find.whole_manifest(target, step) is not None:
        return State(COMPLETE, target)
    shards = [find.nvme_shard(os.path.join(attempt_folder, shard_name(k)), step, k) for k in range(world)]
    present = [shard for shard in shards if shard is not None]
    if len(present) != world:
        return State(REFUSED, "a shard has gone")
    try:
        whole = manifests.merge(present)
    except CheckpointRefused as exc:
        return State(REFUSED, str(exc))
    building = part_path(attempt_folder)
    os.mkdir(building, 0o700)
    try:
        for shard in present:
            link_tree(os.path.join(attempt_folder, shard_name(shard.shard)), building, shard.entries)
        sync_tree(building, [entry for entry in whole.entries if entry.kind == "dir"])
        write_durable(building, MANIFEST, manifests.render(whole._replace(created=time.time())))
        apply_modes(building, whole.entries)
        os.rename(building, target)
    finally:
        remove_tree(building)
    sync_folder(attempt_folder)
    return State(COMPLETE, target)

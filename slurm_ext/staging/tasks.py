"""What the agent's children do: one task for one shard, as the shard's owner, or as root with paths walked as the owner."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from slurm_ext.config.model import Settings
from slurm_ext.staging import commit, find, nvme
from slurm_ext.staging.commit import State
from slurm_ext.staging.identity import acting_as, be_nice, become
from slurm_ext.staging.local import Point, Progress, lock_folder, open_checked
from slurm_ext.staging.model import COPIED, REFUSED, CheckpointRefused, Entry, Manifest, Shard
from slurm_ext.staging.plan import ASSEMBLE, LUSTRE, S3

BUSY = "busy"


def perform(kind: str, shard: Shard, gid: int, settings: Settings, point: Point, progress: Progress) -> State:
    """Do one task in this process, which is given up for it: it becomes the user's where the task allows. Any error is raised."""
    be_nice()
    if kind == S3:
        return to_s3(shard, gid, settings, point, progress)
    become(shard.uid, gid)
    if kind == LUSTRE:
        return to_shared(shard, settings, point, progress)
    if kind == ASSEMBLE:
        return nvme.assemble(os.path.dirname(shard.path), shard.step, shard.world)
    raise ValueError(f"no task is called {kind!r}")


def to_shared(shard: Shard, settings: Settings, point: Point, progress: Progress) -> State:
    """Copy a shard to the shared file system and complete its checkpoint there if it can be."""
    manifest = _manifest(shard, settings)
    if manifest is None:
        return State(REFUSED, "the shard has gone from NVMe, or its manifest is none")
    if not manifest.checkpoint_dir:
        return State(REFUSED, "the run names no checkpoint folder and the site has none")
    lock = lock_folder(shard.path)
    if lock is None:
        return State(COPIED, "another process moves it")
    try:
        return commit.put_shard(shard.path, manifest, point=point, progress=progress)
    except CheckpointRefused as exc:
        return State(REFUSED, str(exc))
    finally:
        os.close(lock)


def to_s3(shard: Shard, gid: int, settings: Settings, point: Point, progress: Progress) -> State:
    """Upload a shard and complete its checkpoint in S3 if it can be; credentials stay root's, paths are walked as the user."""
    # botocore is slow to import and its clients must not be forked: only the child that uploads ever has it.
    from slurm_ext.staging import s3, s3_commit

    tier = find.tier_of(settings, "s3")
    if tier is None:
        return State(REFUSED, "the site has no S3 tier")
    store = s3.connect(tier, settings)
    with acting_as(shard.uid, gid):
        manifest = _manifest(shard, settings)
    if manifest is None:
        return State(REFUSED, "the shard has gone from NVMe, or its manifest is none")

    def open_file(entry: Entry) -> int:
        with acting_as(shard.uid, gid):
            return open_checked(os.path.join(shard.path, entry.path), entry, uid=shard.uid)

    try:
        return s3_commit.put_shard(store, shard.uid, manifest, open_file, point=point, progress=progress)
    except CheckpointRefused as exc:
        return State(REFUSED, str(exc))


def _manifest(shard: Shard, settings: Settings) -> Manifest | None:
    """Return a shard's manifest as it is on disk, if it is still that of this shard, with its folder filled in."""
    manifest = find.nvme_shard(shard.path, shard.step, shard.shard)
    if manifest is None or (manifest.run, manifest.attempt, manifest.world) != (shard.run, shard.attempt, shard.world):
        return None
    folder = find.checkpoint_folder(settings, shard.run, manifest.checkpoint_dir, shard.uid)
    return manifest._replace(checkpoint_dir=folder)


def scan_as(user_folder: str, uid: int, gid: int, done: frozenset[str], now: float) -> Callable[[], bytes]:
    """Return the work of a child that scans one user's folder as that user; its answer is JSON for `read_scan`."""

    def work() -> bytes:
        become(uid, gid)
        shards, keys = nvme.scan(user_folder, uid, done, now)
        return json.dumps({"shards": shards, "keys": keys}).encode()

    return work


def read_scan(answer: bytes) -> tuple[list[Shard], list[str]]:
    """Return what a scan found."""
    data = json.loads(answer)
    return [Shard(*fields) for fields in data["shards"]], list(data["keys"])

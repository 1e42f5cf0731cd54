"""The one question that resume and hooks ask: which is the newest complete checkpoint of this run, and where?

Looks at NVMe and the shared file system as the user, in a child with a deadline, and never at S3 (that takes a network
and credentials: the agent and `fmslurm ckpt` do it). Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from slurm_ext.config.model import Settings, Tier, at_node
from slurm_ext.errors import LackingError
from slurm_ext.request import is_run_name
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.identity import call_as
from slurm_ext.staging.model import (
    MANIFEST,
    SHARD_MANIFEST,
    WHOLE,
    Found,
    Manifest,
    parse_shard,
    parse_step,
    shard_name,
    step_name,
)


def tier_of(settings: Settings, kind: str) -> Tier | None:
    """Return the first tier of a kind (nvme, lustre, s3), or None."""
    return next((tier for tier in settings.staging.tiers if tier.kind == kind), None)


def nvme_user_folder(settings: Settings, node: str, uid: int) -> str:
    """Return the folder of a user on a node's NVMe, empty where the site has no such tier."""
    tier = tier_of(settings, "nvme")
    return os.path.join(at_node(tier.url, node), str(uid)) if tier and tier.url else ""


def nvme_run_folder(settings: Settings, node: str, run: str, uid: int) -> str:
    """Return what a job gets as FMSLURM_NVME: its run's folder on NVMe, empty where the site has no such tier.

    Raise ValueError for a run that is no name.
    """
    if not is_run_name(run):
        raise ValueError(f"not a run name: {run!r}")
    folder = nvme_user_folder(settings, node, uid)
    return os.path.join(folder, run) if folder else ""


def checkpoint_folder(settings: Settings, run: str, checkpoint_dir: str, uid: int) -> str:
    """Return where a run's checkpoints lie on the shared file system: the user's own choice, else `TIER/uid/run`."""
    if checkpoint_dir:
        return checkpoint_dir
    tier = tier_of(settings, "lustre")
    return os.path.join(tier.url, str(uid), run) if tier and tier.url and is_run_name(run) else ""


def newest_complete(
    settings: Settings,
    node: str,
    run: str,
    checkpoint_dir: str,
    uid: int,
    *,
    single_node: bool = False,
    timeout_s: float = 5.0,
) -> Found | None:
    """Return the newest complete checkpoint of a run that `node` can reach without S3, or None where there is none.

    The *step* is decided by what every node of a job sees alike, the shared file system; NVMe then serves that step
    where this node holds it whole. Only with `single_node` may a newer step that lies on this NVMe alone win. An empty
    `node` looks at the shared file system only.

    Raise LackingError where the folders did not answer within `timeout_s` seconds: that is not the same as none.
    """
    nvme = nvme_run_folder(settings, node, run, uid) if node and is_run_name(run) else ""
    shared = checkpoint_folder(settings, run, checkpoint_dir, uid)

    def look() -> bytes:
        found = choose(nvme, shared, single_node=single_node)
        return json.dumps(found).encode()

    answer = call_as(uid, uid, look, timeout_s=timeout_s)
    if answer is None:
        raise LackingError(
            f"{shared or nvme} did not answer within {timeout_s:g} s as user {uid}",
            remedy="Look at the file system; whether there is a checkpoint is unknown",
        )
    fields = json.loads(answer)
    return Found(*fields) if fields is not None else None


def choose(nvme: str, shared: str, *, single_node: bool) -> Found | None:
    """Return the newest complete checkpoint in two folders (either may be empty); see `newest_complete`."""
    on_shared = next(iter_shared(shared), None) if shared else None
    on_nvme = list(iter_nvme(nvme)) if nvme else []
    if single_node:
        newest = next(iter(on_nvme), None)
        if newest is not None and (on_shared is None or newest.step > on_shared.step):
            return newest
    if on_shared is None:
        return None
    same = (one for one in on_nvme if (one.step, one.attempt) == (on_shared.step, on_shared.attempt))
    return next(same, on_shared)


def steps_in(folder: str) -> list[int]:
    """Return the steps that have a folder here, the newest first; none where there is no folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((step for name in names if (step := parse_step(name)) is not None), reverse=True)


def shared_step(folder: str, step: int) -> str:
    """Return where a step lies in a run's checkpoint folder."""
    return os.path.join(folder, step_name(step))


def iter_shared(folder: str) -> Iterator[Found]:
    """Yield complete checkpoints of a checkpoint folder, the newest first: manifest read, every file there in size."""
    for step in steps_in(folder):
        path = shared_step(folder, step)
        if (whole := whole_manifest(path, step)) is not None:
            yield Found(step, path, "lustre", whole.attempt, whole.world, whole.size)


def whole_manifest(path: str, step: int) -> Manifest | None:
    """Return the manifest of a checkpoint folder that has all it says; None where it is not whole."""
    try:
        whole = manifests.read(os.path.join(path, MANIFEST))
    except ValueError:
        return None
    if whole is None or whole.step != step or whole.shard >= 0 or manifests.missing(path, whole):
        return None
    return whole


def iter_nvme(run_folder: str) -> Iterator[Found]:
    """Yield the checkpoints that this node's NVMe holds whole, the newest first, of one step the latest attempt first."""
    for step in steps_in(run_folder):
        attempts: list[tuple[float, Found]] = []
        for _, folder in attempts_of(run_folder, step):
            path = os.path.join(folder, shard_name(0))
            shard = nvme_shard(path, step, 0)
            if shard is not None and shard.world > 1:
                path = os.path.join(folder, WHOLE)
                shard = whole_manifest(path, step)
            if shard is not None and not manifests.missing(path, shard):
                attempts.append((shard.created, Found(step, path, "nvme", shard.attempt, shard.world, shard.size)))
        yield from (found for _, found in sorted(attempts, key=lambda pair: pair[0], reverse=True))


def attempts_of(run_folder: str, step: int) -> Iterator[tuple[str, str]]:
    """Yield name and path of each attempt's folder of a step on NVMe."""
    try:
        with os.scandir(os.path.join(run_folder, step_name(step))) as names:
            for name in names:
                if not name.name.startswith(".") and name.is_dir(follow_symlinks=False):
                    yield name.name, name.path
    except (FileNotFoundError, NotADirectoryError):
        return


def shards_of(attempt_folder: str) -> Iterator[tuple[int, str]]:
    """Yield number and path of each complete shard in an attempt's folder on NVMe."""
    try:
        with os.scandir(attempt_folder) as names:
            for name in names:
                number = parse_shard(name.name)
                if number is not None and name.is_dir(follow_symlinks=False):
                    yield number, name.path
    except (FileNotFoundError, NotADirectoryError):
        return


def nvme_shard(path: str, step: int, shard: int) -> Manifest | None:
    """Return the manifest of a shard on NVMe, or None where there is none or it belongs to another place."""
    try:
        found = manifests.read(os.path.join(path, SHARD_MANIFEST))
    except ValueError:
        return None
    return found if found is not None and (found.step, found.shard) == (step, shard) else None

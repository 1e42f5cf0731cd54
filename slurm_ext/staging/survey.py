"""Which checkpoints of a run are there, in which tier, and how whole: what `fmslurm ckpt` shows. Looks as the owner."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError, LackingError
from slurm_ext.request import is_run_name
from slurm_ext.staging import find, plan
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.identity import call_as
from slurm_ext.staging.model import FILE, MANIFEST, OWN_PREFIX, Found, Manifest, parse_incoming, step_name

#: How a step is in a tier. `unknown` says that nobody could look, and is never the same as `no`.
WHOLE, PARTLY, DAMAGED, NO, UNKNOWN = "whole", "partly", "damaged", "no", "unknown"
NVME, LUSTRE, S3 = "nvme", "lustre", "s3"
TIMEOUT_S = 30.0


class Place(NamedTuple):
    """Whose checkpoints: the owner, the run (empty: not known), the checkpoint folder (empty: none), this node's name."""

    uid: int
    run: str
    folder: str
    node: str


class Sight(NamedTuple):
    """One step in one tier as one look found it."""

    step: int
    tier: str
    state: str
    attempt: str = ""
    path: str = ""
    size: int = 0
    files: int = 0
    created: float = 0.0
    words: str = ""


class Row(NamedTuple):
    """One step over all tiers. `nearest` is the nearest tier that has it whole, empty where none has."""

    step: int
    attempt: str
    size: int  # bytes
    files: int
    created: float  # seconds since the epoch
    tiers: dict[str, str]
    nearest: str
    path: str
    words: tuple[str, ...] = ()


class Survey(NamedTuple):
    """All steps, the newest first, and why a tier could not be looked at."""

    rows: tuple[Row, ...]
    unknown: dict[str, str]


def known_runs(settings: Settings, place: Place) -> list[str]:
    """Return the run of a place, or those that its checkpoint folder and this node's NVMe tell of."""
    if place.run:
        return [place.run]

    def look() -> bytes:
        runs = {m.run for m in _manifests_in(place.folder)}
        user_folder = find.nvme_user_folder(settings, place.node, place.uid)
        for run in _names(user_folder):
            for _, path in _nvme_shards(os.path.join(user_folder, run)):
                shard = find.nvme_shard(path, *_numbers(path))
                if shard is not None and shard.checkpoint_dir == place.folder:
                    runs.add(run)
                    break
        return json.dumps(sorted(runs)).encode()

    answer = call_as(place.uid, place.uid, look, timeout_s=TIMEOUT_S) if place.folder else b"[]"
    return [run for run in json.loads(answer or b"[]") if is_run_name(run)]


def _names(folder: str) -> list[str]:
    """Return the run names in a folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(name for name in os.listdir(folder) if is_run_name(name)) if folder else []
    return []


def _nvme_shards(run_folder: str) -> Iterator[tuple[int, str]]:
    """Yield (step, path) of all shards in a run's folder on NVMe."""
    for step in find.steps_in(run_folder):
        for _, attempt in find.attempts_of(run_folder, step):
            for _, path in find.shards_of(attempt):
                yield step, path


def _numbers(path: str) -> tuple[int, int]:
    """Return step and shard of a shard's path."""
    parts = path.split("/")
    return int(parts[-3].partition("-")[2]), int(parts[-1].partition("-")[2])


def _manifests_in(folder: str) -> Iterator[Manifest]:
    """Yield every manifest of a checkpoint folder that can be read, also of what is not whole yet."""
    for name in _listed(folder):
        for inner in _listed(os.path.join(folder, name)) if name.startswith((".incoming-", "step-")) else ():
            if inner == MANIFEST or inner.startswith(f"{OWN_PREFIX}shard-"):
                with contextlib.suppress(ValueError):
                    if (found := manifests.read(os.path.join(folder, name, inner))) is not None:
                        yield found
                        break


def _listed(folder: str) -> list[str]:
    """Return the names in a folder, none where it is no folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))
    return []


def look_shared(folder: str) -> list[Sight]:
    """Return the steps of a checkpoint folder; runs as the owner."""
    seen = []
    for step in find.steps_in(folder):
        path = os.path.join(folder, step_name(step))
        try:
            whole = manifests.read(os.path.join(path, MANIFEST))
        except ValueError as exc:
            seen.append(Sight(step, LUSTRE, DAMAGED, path=path, words=str(exc)))
            continue
        if whole is None:
            continue  # a folder of somebody else's that happens to be called so
        lacking = manifests.missing(path, whole)
        seen.append(_sight(whole, LUSTRE, DAMAGED if lacking else WHOLE, path, lacking))
    whole_steps = {sight.step for sight in seen}
    for name in _listed(folder):
        incoming = parse_incoming(name)
        if incoming is not None and incoming[0] not in whole_steps:
            seen.append(
                Sight(incoming[0], LUSTRE, PARTLY, incoming[1], words=f"attempt {incoming[1]} is not all there")
            )
    return seen


def look_nvme(run_folder: str) -> list[Sight]:
    """Return the steps of a run on this node's NVMe; runs as the owner."""
    whole = {found.step: found for found in reversed(list(find.iter_nvme(run_folder)))}
    seen = []
    for step in find.steps_in(run_folder):
        if step in whole:
            found = whole[step]
            path = found.path
            manifest = find.nvme_shard(path, step, 0) or find.whole_manifest(path, step)
            assert manifest is not None
            seen.append(_sight(manifest, NVME, WHOLE, path, ""))
        elif any(True for one, _ in _nvme_shards(run_folder) if one == step):
            seen.append(Sight(step, NVME, PARTLY, words="this node holds some of the shards"))
    return seen


def _sight(manifest: Manifest, tier: str, state: str, path: str, words: str) -> Sight:
    """Return what a manifest says as a Sight."""
    files = sum(1 for entry in manifest.entries if entry.kind == FILE)
    return Sight(manifest.step, tier, state, manifest.attempt, path, manifest.size, files, manifest.created, words)


def look_s3(settings: Settings, uid: int, run: str) -> list[Sight]:
    """Return the steps of a run in S3. Raise FmslurmError where that cannot be looked at."""
    from slurm_ext.staging import s3  # boto3 takes half a second to import

    tier = find.tier_of(settings, "s3")
    if tier is None:
        raise LackingError("the site has no S3 tier")
    store = s3.connect(tier, settings)
    seen = []
    for step in s3.list_steps(store, uid, run):
        path = f"s3://{store.bucket}/{store.step_key(uid, run, step)}"
        try:
            whole = s3.read_manifest(store, uid, run, step)
        except ValueError as exc:
            seen.append(Sight(step, S3, DAMAGED, path=path, words=str(exc)))
            continue
        seen.append(_sight(whole, S3, WHOLE, path, "") if whole is not None else Sight(step, S3, PARTLY, path=path))
    return seen


def survey(settings: Settings, place: Place) -> Survey:
    """Look at all tiers and return every step that any of them knows."""
    kinds = [tier.kind for tier in settings.staging.tiers] or ([LUSTRE] if place.folder else [])
    if place.folder and LUSTRE not in kinds:
        kinds.append(LUSTRE)
    runs = known_runs(settings, place)
    seen: list[Sight] = []
    unknown: dict[str, str] = {}

    def look() -> bytes:
        found = look_shared(place.folder) if place.folder else []
        for run in runs:
            folder = find.nvme_run_folder(settings, place.node, run, place.uid)
            found += look_nvme(folder) if folder else []
        return json.dumps(found).encode()

    answer = call_as(place.uid, place.uid, look, timeout_s=TIMEOUT_S)
    if answer is None:
        unknown |= {
            kind: f"no answer within {TIMEOUT_S:g} s as user {place.uid}" for kind in (NVME, LUSTRE) if kind in kinds
        }
    else:
        seen += [Sight(*fields) for fields in json.loads(answer)]
    if S3 in kinds:
        if not runs:
            unknown[S3] = "the run is not known; name it with --run"
        try:
            for run in runs:
                seen += look_s3(settings, place.uid, run)
        except FmslurmError as exc:
            unknown[S3] = exc.message
    return Survey(rows(seen, kinds, unknown), unknown)


def rows(seen: list[Sight], kinds: list[str], unknown: dict[str, str]) -> tuple[Row, ...]:
    """Return one row per step out of all sights; pure. `kinds` are the site's tiers, the nearest first."""
    by_step: dict[int, dict[str, Sight]] = {}
    for sight in seen:
        known = by_step.setdefault(sight.step, {})
        if sight.tier not in known or known[sight.tier].state != WHOLE:
            known[sight.tier] = sight
    out = []
    for step in sorted(by_step, reverse=True):
        sights = by_step[step]
        states = {kind: UNKNOWN if kind in unknown else sights[kind].state if kind in sights else NO for kind in kinds}
        nearest = plan.nearest({kind: state == WHOLE for kind, state in states.items()}, kinds)
        best = sights[nearest] if nearest else next(iter(sights.values()))
        words = tuple(f"{sight.tier}: {sight.words}" for sight in sights.values() if sight.words)
        out.append(Row(step, best.attempt, best.size, best.files, best.created, states, nearest, best.path, words))
    return tuple(out)


def latest(settings: Settings, place: Place, *, single_node: bool) -> Found | None:
    """Return the newest complete checkpoint without S3; see `find.newest_complete`."""
    return find.newest_complete(
        settings, place.node, place.run, place.folder, place.uid, single_node=single_node, timeout_s=TIMEOUT_S
    )

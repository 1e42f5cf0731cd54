"""From the nearest tier that holds a checkpoint whole to a folder of the user's: verified while copying, visible when whole."""

from __future__ import annotations

import contextlib
import os

from slurm_ext.config.model import Settings
from slurm_ext.errors import FindingError, LackingError
from slurm_ext.files import sync_folder
from slurm_ext.staging import find, s3
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.checksum import Checksum, of_descriptor
from slurm_ext.staging.identity import become
from slurm_ext.staging.local import (
    apply_modes,
    copy_link,
    copy_tree,
    open_checked,
    part_path,
    remove_tree,
    write_durable,
)
from slurm_ext.staging.model import (
    FILE,
    FOLDER,
    LINK,
    MANIFEST,
    CheckpointRefused,
    Entry,
    Manifest,
    incoming_name,
    step_name,
)
from slurm_ext.staging.survey import LUSTRE, S3, Place, Row, known_runs


def prepare(target_dir: str, step: int) -> tuple[str, str]:
    """Return the hidden folder to fill and the final one. Raise CheckpointRefused where the final one is there."""
    final = os.path.join(target_dir, step_name(step))
    if os.path.lexists(final):
        raise CheckpointRefused(f"{final} is there already", reason="exists", remedy="Choose another --to")
    hidden = os.path.join(target_dir, incoming_name(step, f"restore-{os.getpid()}"))
    os.makedirs(target_dir, exist_ok=True)
    os.mkdir(hidden)
    return hidden, final


def finish(hidden: str, final: str, whole: Manifest) -> str:
    """Make a restored checkpoint visible and return its path."""
    write_durable(hidden, MANIFEST, manifests.render(whole))
    apply_modes(hidden, whole.entries)
    os.rename(hidden, final)
    sync_folder(os.path.dirname(final))
    return final


def from_folder(source: str, whole: Manifest, target_dir: str) -> str:
    """Copy a complete checkpoint out of another folder, every checksum compared; return its path.

    Raise CheckpointRefused (`damaged`) for bytes that are not those of the manifest; nothing is visible then.
    """
    hidden, final = prepare(target_dir, whole.step)
    try:
        entries = copy_tree(source, hidden, whole.entries)
        return finish(hidden, final, whole._replace(entries=entries, shard=-1))
    except BaseException:
        remove_tree(hidden)
        raise


def from_store(store: s3.Store, uid: int, whole: Manifest, target_dir: str) -> str:
    """Download a complete checkpoint, every checksum compared; return its path. Raise StoreError, CheckpointRefused."""
    hidden, final = prepare(target_dir, whole.step)
    prefix = store.attempt_key(uid, whole)
    try:
        folders = [hidden]
        for entry in sorted(whole.entries, key=lambda entry: entry.path):
            target = os.path.join(hidden, entry.path)
            if entry.kind == FOLDER:
                os.makedirs(target, mode=0o700, exist_ok=True)
                folders.append(target)
            elif entry.kind == LINK:
                copy_link(target, entry, staging=hidden)
            else:
                _download(store, prefix + (entry.key or entry.path), target, entry, hidden)
        for folder in reversed(folders):
            sync_folder(folder)
        return finish(hidden, final, whole)
    except BaseException:
        remove_tree(hidden)
        raise


def _download(store: s3.Store, key: str, target: str, entry: Entry, staging: str) -> None:
    """Download one file to its place and compare its checksum before it gets its name."""
    temporary = part_path(staging)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        checksum = Checksum(entry.checksum.partition(":")[0])
        for block in s3.iter_blocks(store, key):
            checksum.update(block)
            view = memoryview(block)
            while view:
                view = view[os.write(descriptor, view) :]
        if checksum.text != entry.checksum:
            raise CheckpointRefused(f"{entry.path}: {checksum.text}, not {entry.checksum}", reason="damaged")
        os.fchmod(descriptor, entry.mode)
        os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    os.rename(temporary, target)


def verify_folder(path: str, whole: Manifest) -> list[str]:
    """Read every file of a checkpoint folder again; return what is wrong, one line each.

    A file without a recorded checksum (a shard that never left NVMe) is judged by its size alone.
    """
    wrong: list[str] = []
    for entry in whole.entries:
        single = whole._replace(entries=(entry,))
        if lacking := manifests.missing(path, single):
            wrong.append(lacking)
        elif entry.kind == FILE and entry.checksum:
            wrong += _verify_file(os.path.join(path, entry.path), entry)
        elif entry.kind == LINK and os.readlink(os.path.join(path, entry.path)) != entry.target:
            wrong.append(f"{entry.path}: the link points elsewhere")
    return wrong


def _verify_file(path: str, entry: Entry) -> list[str]:
    """Compare one file's bytes with its checksum."""
    try:
        state = os.lstat(path)
        descriptor = open_checked(path, entry._replace(mtime_ns=state.st_mtime_ns))  # bytes count here, not times
    except CheckpointRefused as exc:
        return [exc.message]
    try:
        text, _ = of_descriptor(descriptor, entry.checksum.partition(":")[0])
    except (OSError, LookupError) as exc:
        return [f"{entry.path}: {exc}"]
    finally:
        os.close(descriptor)
    return [] if text == entry.checksum else [f"{entry.path}: {text}, not {entry.checksum}"]


def verify_store(store: s3.Store, uid: int, whole: Manifest) -> list[str]:
    """Ask the store for size and checksum of every object; return what is wrong, one line each. Raise StoreError."""
    prefix = store.attempt_key(uid, whole)
    wrong: list[str] = []
    for entry in whole.entries:
        if entry.kind != FILE:
            continue
        held = s3.holds(store, prefix + (entry.key or entry.path), entry.size, entry.checksum)
        if held is False:
            wrong.append(f"{entry.path}: missing, or not of {entry.size} bytes with {entry.checksum}")
        elif held is None:
            wrong.append(f"{entry.path}: the store does not tell its checksum")
    return wrong


def fetch(settings: Settings, place: Place, row: Row, target: str) -> str:
    """Copy a checkpoint from its nearest tier into a folder, as its owner, and return its path there.

    Root's process becomes the owner's on the way: call it in a child. Raise as the tiers do.
    """
    if row.nearest == S3:
        store, whole = in_store(settings, place, row.step)
        become(place.uid, place.uid)  # with the store's keys in hand: the user's folders are written as the user
        return from_store(store, place.uid, whole, target)
    become(place.uid, place.uid)
    return from_folder(row.path, whole_in(row), target)


def wrong_in(tier: str, settings: Settings, place: Place, row: Row) -> list[str]:
    """Return what is wrong with a step that a tier says it holds whole. Root calls it in a child, as `fetch`."""
    if tier == S3:
        store, whole = in_store(settings, place, row.step)
        return verify_store(store, place.uid, whole)
    become(place.uid, place.uid)
    path = os.path.join(place.folder, step_name(row.step)) if tier == LUSTRE else row.path
    return verify_folder(path, whole_in(row._replace(path=path)))


def whole_in(row: Row) -> Manifest:
    """Return the manifest of a complete checkpoint in a folder. Raise FindingError where it has gone."""
    whole = manifests.read(os.path.join(row.path, MANIFEST)) or find.nvme_shard(row.path, row.step, 0)
    if whole is None:
        raise FindingError(f"{row.path} has gone")
    return whole


def in_store(settings: Settings, place: Place, step: int) -> tuple[s3.Store, Manifest]:
    """Return the store and the manifest of a complete checkpoint in it. Raise FindingError where it has gone."""
    tier = find.tier_of(settings, "s3")
    if tier is None:
        raise LackingError("the site has no S3 tier")
    store = s3.connect(tier, settings)
    for run in known_runs(settings, place):
        if (whole := s3.read_manifest(store, place.uid, run, step)) is not None:
            return store, whole
    raise FindingError(f"step {step} has gone from S3")

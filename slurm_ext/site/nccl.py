"""`fmslurm install --nccl`: NCCL's library on this machine's own disk, since GPU images of ParallelCluster carry none.

    <folder>/cu12-2.30.4/lib/libnccl.so.2     the library, 0755, root's
    <folder>/cu12-2.30.4/License.txt          as the wheel has it
    <folder>/cu12-2.30.4/fmslurm-nccl.json    what it is and where it came from; written last
    <folder>/current -> cu12-2.30.4           what the burn-in loads

A release is whole or not there: it is unpacked beside its place, checked, flushed and renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from slurm_ext import command
from slurm_ext.errors import FmslurmError, LackingError, UsageError
from slurm_ext.files import link_atomic, owner_is_trusted, sync_folder, write_atomic
from slurm_ext.site import nccl_wheel
from slurm_ext.site.nccl_releases import DEFAULT_VERSION, DRIVER_MIN, RELEASES, NcclRelease, cuda_for, find

NOTE = "fmslurm-nccl.json"
CURRENT = "current"
LIBRARY = "lib/libnccl.so.2"

#: A minute for a machine whose disk is busy.
LOAD_S = 60.0
SMI_S = 20.0

#: The unpacked library is about 1.4 times its wheel; both lie there for a moment.
ROOM_FACTOR = 2.6

_CHUNK = 4 << 20
_UNFINISHED = re.compile(r"\.cu\d+-[0-9.]+\.[0-9a-f]{12}")

Say = Callable[[str], None]


class Delivered(NamedTuple):
    """What lies in the folder now: release, library, version that it answers with, and whether anything was done."""

    release: str
    path: str
    version: int
    changed: bool


def choose(version: str, cuda: int, driver: str) -> NcclRelease:
    """Return the release for this machine. Raise UsageError for one that is not in the table, LackingError for no driver.

    `cuda` 0 follows from the driver (NVIDIA's own words: "570.133.20").
    """
    if not cuda:
        cuda = cuda_for(driver)
        if not cuda:
            oldest = min(DRIVER_MIN.values())
            said = f"driver {driver} is older than {oldest}" if driver else "no NVIDIA driver answers on this machine"
            raise LackingError(
                f"cannot tell which NCCL fits: {said}",
                remedy="Say --cuda 12 or --cuda 13 (for an image, what it will have)",
            )
    elif driver and cuda_for(driver) and cuda > cuda_for(driver):
        raise UsageError(
            f"driver {driver} runs no library of CUDA {cuda}: it needs {DRIVER_MIN[cuda]} or newer",
            remedy="Say --cuda 12, or install a newer driver first",
        )
    release = find(version or DEFAULT_VERSION, cuda)
    if release is None:
        known = ", ".join(dict.fromkeys(row.version for row in RELEASES))
        raise UsageError(f"NCCL {version} for CUDA {cuda} is not in the table", remedy=f"There are {known}")
    return release


def driver_here(root: str = "/") -> str:
    """Return the version of this machine's NVIDIA driver, empty where there is none or it does not answer in time."""
    try:
        said = command.run(
            [command.smi_path(root), "--query-gpu=driver_version", "--format=csv,noheader"], timeout_s=SMI_S
        )
    except FmslurmError:
        return ""
    words = said.stdout.split() if said.ok else []
    return words[0] if words and words[0][0].isdigit() else ""


def deliver(folder: str, release: NcclRelease, say: Say, *, wheel: str = "") -> Delivered:
    """Put a release into `folder` and make it the current one. `wheel` is its file where the machine cannot fetch it.

    Raise LackingError (no pip, no network, no room, a wheel that is not the one that was promised); then nothing changed.
    """
    _may_write(folder)
    with _alone(folder):
        return _deliver(folder, release, say, wheel)


def _deliver(folder: str, release: NcclRelease, say: Say, wheel: str) -> Delivered:
    place = os.path.join(folder, release.name)
    library = os.path.join(place, LIBRARY)
    if _is_whole(place, release):
        changed = _point(folder, release.name)
        return Delivered(release.name, library, _answers(library), changed)
    for name in os.listdir(folder):
        if _UNFINISHED.fullmatch(name):  # of a run that was killed: nobody else is at work here
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    temporary = os.path.join(folder, f".{release.name}.{os.urandom(6).hex()}")
    _room_for(folder, release)
    os.mkdir(temporary, 0o755)
    try:
        if not wheel:
            say(f"fetching {release.wheel} ({release.size_bytes >> 20} MiB)")
        checked = nccl_wheel.copy(wheel, release, temporary) if wheel else nccl_wheel.fetch(release, temporary)
        nccl_wheel.unpack(checked, temporary, LIBRARY)
        version = _answers(os.path.join(temporary, LIBRARY))
        for name in os.listdir(temporary):
            if name.endswith(".whl"):
                os.unlink(os.path.join(temporary, name))
        note = {"schema": 1, **release._asdict(), "library_sha256": _sha256(os.path.join(temporary, LIBRARY))}
        write_atomic(os.path.join(temporary, NOTE), json.dumps(note, indent=1) + "\n")
        if os.path.lexists(place):
            _remove(place)  # a broken one of ours, or an empty folder
        os.rename(temporary, place)
        sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _point(folder, release.name)
    return Delivered(release.name, library, version, True)


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Hold the folder's lock. Raise LackingError where another run has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as exc:
        raise LackingError(f"another install is at work in {folder}", remedy="Wait for its end") from exc
    finally:
        os.close(descriptor)


def installed(folder: str) -> str:
    """Return the name of the current release, empty where there is none that is whole."""
    try:
        name = os.readlink(os.path.join(folder, CURRENT))
    except OSError:
        return ""
    return name if "/" not in name and os.path.isfile(os.path.join(folder, name, NOTE)) else ""


def remove_all(folder: str) -> list[str]:
    """Take out every release of ours and return what was removed; what is not ours stays, and so does then the folder."""
    removed = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    link = os.path.join(folder, CURRENT)
    if os.path.islink(link):
        os.unlink(link)
    for name in names:
        place = os.path.join(folder, name)
        if os.path.isfile(os.path.join(place, NOTE)) and not os.path.islink(place):
            _remove(place)
            removed.append(place)
    with contextlib.suppress(OSError):  # what others put there stays
        os.rmdir(folder)
    return removed


def _remove(place: str) -> None:
    """Remove one release: its note goes last, so that a crash leaves something that is still known to be ours."""
    for path in (LIBRARY, "lib", "License.txt", NOTE, ""):
        full = os.path.join(place, path).rstrip("/")
        try:
            if os.path.isdir(full) and not os.path.islink(full):
                os.rmdir(full)
            else:
                os.unlink(full)
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise LackingError(
                f"{full} cannot be removed: {exc.strerror}", remedy="Somebody put files there: look at it"
            ) from exc


def _is_whole(place: str, release: NcclRelease) -> bool:
    """Say whether a release lies there unchanged: its note is of this wheel, and its library has the hash of that note."""
    try:
        with open(os.path.join(place, NOTE), encoding="utf-8") as stream:
            note = json.load(stream)
        if note.get("sha256") != release.sha256:
            return False
        return bool(note.get("library_sha256") == _sha256(os.path.join(place, LIBRARY)))
    except (OSError, ValueError, AttributeError):
        return False


def _may_write(folder: str) -> None:
    """Make the folder; root loads what lies there, so nobody else may write it."""
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    except OSError as exc:
        raise LackingError(f"{folder} cannot be made: {exc.strerror}", remedy="Say --nccl-to another folder") from exc
    may_write(folder)


def may_write(folder: str) -> None:
    """Raise LackingError where a folder, or the nearest one above it that is there, cannot hold what root loads."""
    asked = folder
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    try:
        state = os.stat(folder)
    except OSError as exc:
        raise LackingError(f"{folder} cannot be used: {exc.strerror}", remedy="Say --nccl-to another folder") from exc
    if not stat.S_ISDIR(state.st_mode):
        raise LackingError(f"{folder} is no folder", remedy="Say --nccl-to another one")
    if folder == asked and not owner_is_trusted(state):
        raise LackingError(
            f"{folder} may be written by others, and root would load what lies there",
            remedy=f"chmod go-w {folder}; chown root {folder}",
        )


def _room_for(folder: str, release: NcclRelease) -> None:
    free = shutil.disk_usage(folder).free
    wanted = int(release.size_bytes * ROOM_FACTOR)
    if free < wanted:
        raise LackingError(
            f"{folder} has {free >> 20} MiB free, {wanted >> 20} are needed",
            remedy="Say --nccl-to a folder on another disk",
        )


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _answers(library: str) -> int:
    """Load the library in a child and return its version code. Raise LackingError where it does not load here."""

    def ask() -> bytes:
        try:
            loaded = ctypes.CDLL(library)
        except OSError as exc:
            return f"cannot load {library}: {exc}".encode()
        version = ctypes.c_int()
        code = loaded.ncclGetVersion(ctypes.byref(version))
        return str(version.value).encode() if code == 0 else f"{library}: ncclGetVersion says {code}".encode()

    said = (command.call_bounded(ask, timeout_s=LOAD_S) or b"it did not answer").decode("utf-8", "replace")
    if not said.isdigit():
        raise LackingError(said, remedy="This machine's C library may be too old for it; say --nccl-version another")
    return int(said)


def _point(folder: str, name: str) -> bool:
    """Make `current` point to a release; say whether it pointed elsewhere before."""
    link = os.path.join(folder, CURRENT)
    try:
        if os.readlink(link) == name:
            return False
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise LackingError(f"{link} is no link of ours", remedy="Move it away and run it again") from exc
    link_atomic(link, name)
    return True

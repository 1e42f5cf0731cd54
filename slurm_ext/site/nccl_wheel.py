"""The wheel that NCCL's library comes in: fetched by pip or brought as a file, checked before a byte of it is used."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import zipfile
from typing import IO

from slurm_ext import command
from slurm_ext.errors import LackingError
from slurm_ext.site.nccl_releases import NcclRelease

#: 350 MB over a slow proxy.
FETCH_S = 1800.0

_CHUNK = 4 << 20
_IN_WHEEL = "nvidia/nccl/lib/libnccl.so.2"


def fetch(release: NcclRelease, folder: str) -> str:
    """Let pip fetch the wheel from the index this machine is set up for; pip itself refuses another hash."""
    wanted = os.path.join(folder, "wanted.txt")
    with open(wanted, "w", encoding="ascii") as stream:
        stream.write(f"{release.package}=={release.version} --hash=sha256:{release.sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    own = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.lower().endswith("_proxy") or k == "HOME"}
    try:
        said = command.run(
            [*pip, "--disable-pip-version-check", "--no-cache-dir", "--dest", folder, "-r", wanted],
            timeout_s=FETCH_S,
            env=command.clean_env(TMPDIR=folder, **own),
        )
    finally:
        os.unlink(wanted)
    if not said.ok:
        raise LackingError(
            f"cannot fetch {release.wheel}: {said.words()}",
            remedy=f"Bring the file here by other means and say --wheel FILE (sha256 {release.sha256})",
        )
    return os.path.join(folder, release.wheel)


def look_at(wheel: str, release: NcclRelease) -> None:
    """Raise LackingError where a file cannot be this release's wheel by kind and size; its content is not read."""
    os.close(_open(wheel, release))


def _open(wheel: str, release: NcclRelease) -> int:
    """Open it, which ends at once whatever it is: a device or a FIFO would be read for ever."""
    try:
        descriptor = os.open(wheel, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as exc:
        raise LackingError(f"{wheel} cannot be read: {exc.strerror}", remedy="Say --wheel FILE") from exc
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_size != release.size_bytes:
        os.close(descriptor)
        said = f"it has {state.st_size} bytes, not {release.size_bytes}"
        raise LackingError(
            f"{wheel} is not {release.wheel}: {said if stat.S_ISREG(state.st_mode) else 'it is no regular file'}",
            remedy="It was cut short or is another release: fetch it again, or say --nccl-version",
        )
    return descriptor


def copy(wheel: str, release: NcclRelease, place: str) -> str:
    """Copy the wheel to where nobody else may write, and check the copy's hash: what is unpacked is what was checked."""
    target = os.path.join(place, "checked.whl")
    digest, left = hashlib.sha256(), release.size_bytes
    try:
        with os.fdopen(_open(wheel, release), "rb") as source, open(target, "xb") as own:
            while left > 0 and (chunk := source.read(min(left, _CHUNK))):
                digest.update(chunk)
                own.write(chunk)
                left -= len(chunk)
    except OSError as exc:
        raise LackingError(
            f"{wheel} cannot be copied: {exc.strerror}", remedy="Say --wheel FILE, or --nccl-to"
        ) from exc
    if digest.hexdigest() != release.sha256:
        raise LackingError(
            f"{wheel} is not {release.wheel}: its sha256 is {digest.hexdigest()}, not {release.sha256}",
            remedy="It was cut short or is another release: fetch it again, or say --nccl-version",
        )
    return target


def unpack(wheel: str, place: str, library: str) -> None:
    """Take library and licence out of a wheel whose hash was checked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            licence = next(name for name in archive.namelist() if name.lower().endswith("license.txt"))
            os.mkdir(os.path.join(place, "lib"), 0o755)
            for name, target, mode in ((_IN_WHEEL, library, 0o755), (licence, "License.txt", 0o644)):
                with archive.open(name) as source:
                    _copy(source, os.path.join(place, target), mode)
    except (zipfile.BadZipFile, KeyError, StopIteration) as exc:
        raise LackingError(f"{wheel} has no {_IN_WHEEL} or no licence: {exc!r}", remedy="Fetch it again") from exc
    except OSError as exc:
        raise LackingError(
            f"cannot unpack into {place}: {exc.strerror}", remedy="Say --nccl-to another folder"
        ) from exc


def _copy(source: IO[bytes], target: str, mode: int) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as stream:
        shutil.copyfileobj(source, stream, _CHUNK)
        os.fchmod(descriptor, mode)
        stream.flush()
        os.fsync(descriptor)

"""The files by which dcgm-exporter knows which job has which GPU: one line of ours added by the prolog, taken by the epilog.

As NVIDIA/dcgm-exporter reads them (README.md "How to include HPC jobs in metric labels",
internal/pkg/transformation/hpc.go, checked at d5e5f51): a file for each GPU, named by DCGM's number of it (`0`), or by
number and GPU instance for a part of one (`0.7`); each line one job. A name of another form, a UUID too, is not read there,
so UUIDs are turned into numbers; an empty line would become a job without a name. The lines of others are never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Sequence

from slurm_ext.command import call_bounded
from slurm_ext.config.model import Settings, at_node
from slurm_ext.files import owner_is_trusted
from slurm_ext.gate.model import Gpu, Smi
from slurm_ext.hooks.environment import HookJob
from slurm_ext.patterns import pattern

#: How long (seconds) the child may wait for another hook's edit, and for the folder.
TIMEOUT_S = 2.0

#: A file of more bytes, or a folder of more files, is none of this convention.
FILE_BYTES, FILES_MAX = 64 << 10, 4096

_FILE = pattern(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_OLD_MIG = pattern(r"MIG-(GPU-[0-9a-fA-F-]{36})/(\d{1,3})/\d{1,3}")
_TEMPORARY = ".fmslurm-"


def begin(settings: Settings, job: HookJob, smi: Smi | None) -> str:
    """Say which GPUs are a job's that starts; return in words what could not be said."""
    names, without = file_names(job.gpu_ids, smi.gpus if smi is not None else ())
    trouble = add(at_node(settings.gate.dcgm_job_mapping_dir, job.node), job.job_id, names) if names else ""
    return "; ".join(part for part in (*without, trouble) if part)


def end(settings: Settings, job: HookJob) -> str:
    """Take back what was said of a job that has ended; return in words what could not be."""
    return remove(at_node(settings.gate.dcgm_job_mapping_dir, job.node), job.job_id)


def file_names(ids: Iterable[str], gpus: Sequence[Gpu]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the file names of a job's GPUs, and in words which have none. `gpus` is what nvidia-smi listed. Pure."""
    number = {uuid.lower(): str(gpu.number) for gpu in gpus if gpu.number is not None and (uuid := gpu.uuid)}
    parted = {str(gpu.number) for gpu in gpus if gpu.mig}
    names: dict[str, None] = {}
    without: list[str] = []
    for id_ in ids:
        name = id_ if id_.isdigit() else number.get(id_.lower(), "")
        if found := _OLD_MIG.fullmatch(id_):
            whole = number.get(found[1].lower(), "")
            name = f"{whole}.{int(found[2])}" if whole else ""
        elif name in parted:  # its metrics are told by instance, and which one is the job's is not known
            without.append(f"{id_}: MIG is on, and the job's part is told by no number")
            continue
        if name:
            names[name] = None
        else:
            without.append(f"{id_}: its number is not known")
    return tuple(names), tuple(without)


def add(folder: str, job_id: str, names: Sequence[str]) -> str:
    """Add the job's line to the files of its GPUs; return why not where that failed. A folder that is missing is let be."""
    return _bounded(folder, job_id, tuple(names))


def remove(folder: str, job_id: str) -> str:
    """Take the job's lines out of every file, and files that are empty then; return why not where that failed."""
    return _bounded(folder, job_id, None)


def _bounded(folder: str, job_id: str, names: tuple[str, ...] | None) -> str:
    answer = call_bounded(lambda: _guarded(folder, job_id, names), timeout_s=TIMEOUT_S)
    return f"{folder} does not answer" if answer is None else answer.decode("utf-8", "replace")


def _guarded(folder: str, job_id: str, names: tuple[str, ...] | None) -> bytes:
    try:
        return "; ".join(_edit(folder, job_id.encode("ascii"), names)).encode()
    except FileNotFoundError:
        return b""  # nobody made the folder: nobody reads it
    except OSError as exc:
        return f"{folder}: {exc.strerror}".encode()


def _edit(folder: str, own: bytes, names: tuple[str, ...] | None) -> list[str]:
    """Edit under a lock on the folder itself, so that no other hook's line is lost; return what could not be done."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not owner_is_trusted(os.fstat(directory)):
            return [f"{folder} belongs to another user, or others may write it"]
        fcntl.flock(directory, fcntl.LOCK_EX)  # the caller gives this child up in time; the lock goes with it
        there = os.listdir(directory)
        for name in there:
            if name.startswith(_TEMPORARY):  # of a hook that was killed in the middle: nobody else has the lock
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)
        troubles = []
        wanted = [name for name in there if _FILE.fullmatch(name)][:FILES_MAX] if names is None else names
        for name in wanted:
            try:
                _edit_file(directory, name, own, adds=names is not None)
            except OSError as exc:
                troubles.append(f"{name}: {exc.strerror or exc}")
        return troubles
    finally:
        os.close(directory)


def _edit_file(directory: int, name: str, own: bytes, *, adds: bool) -> None:
    lines = _lines(directory, name)
    others = [line for line in lines if line.strip() != own]
    if adds:
        if others == lines:
            _write(directory, name, b"\n".join([*lines, own]) + b"\n")
    elif others == lines:
        return
    elif any(line.strip() for line in others):
        _write(directory, name, b"\n".join(others) + b"\n")
    else:
        os.unlink(name, dir_fd=directory)


def _lines(directory: int, name: str) -> list[bytes]:
    """Return a file's lines, none where it is missing. Raise OSError for a link, for what is no file, and for a large one."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        return []
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size > FILE_BYTES:
            raise OSError(0, "no plain file of this convention")
        return stream.read(FILE_BYTES).splitlines()


def _write(directory: int, name: str, content: bytes) -> None:
    temporary = f"{_TEMPORARY}{name}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o644, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, 0o644)  # whatever the umask says: the exporter need not be root
            stream.write(content)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise

"""What a trainer uses: open a step, write files into the folder you get, close it, go on training.

    from slurm_ext.staging import Checkpoints

    checkpoints = Checkpoints()  # what the job was given; every argument can be given instead
    restored = checkpoints.restore()
    with checkpoints.step(120, shard=rank, world=size) as folder:
        ...write files into folder, with names that no other shard uses...

Closing returns once the shard is durable on NVMe; the node's agent moves it on. Without an agent (plain sbatch) it is
written to the checkpoint folder itself, hidden until every shard is in. Standard library only; starts no thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from slurm_ext.files import sync_folder
from slurm_ext.request import is_checkpoint_dir, is_run_name
from slurm_ext.staging import find
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.checksum import of_descriptor
from slurm_ext.staging.commit import State, adopt_shard, final_state, incoming_path, try_commit
from slurm_ext.staging.local import lock_folder, open_checked, remove_tree, sync_tree, write_durable
from slurm_ext.staging.model import (
    COMPLETE,
    COPIED,
    FILE,
    MANIFEST,
    MAX_STEP,
    MAX_WORLD,
    REFUSED,
    SHARD_MANIFEST,
    WRITING_PREFIX,
    CheckpointRefused,
    Entry,
    Manifest,
    is_attempt,
    shard_name,
    slug,
    step_name,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)

#: NVMe is passed over where less than this many times our last shard would fit; a disk with less than this is full.
_HEADROOM, _RESERVE_BYTES = 1.1, 1 << 20


class Restore(NamedTuple):
    """Where to start from: the step, and the folder that holds all of its files."""

    step: int
    path: str


class Saved(NamedTuple):
    """What became of the last step: `where` is nvme, folder or skipped; `reason` says why in words, empty where all is well."""

    step: int
    where: str
    bytes: int = 0
    seconds: float = 0.0  # from closing to durable
    reason: str = ""


class Checkpoints:
    """The checkpoints of one run, as its trainer sees them; one object per process.

    Arguments win over the environment: `run` (FMSLURM_RUN_ID), `directory` (FMSLURM_CKPT_DIR), `nvme` (FMSLURM_NVME; an
    empty text turns NVMe off), `attempt` (FMSLURM_ATTEMPT, else the Slurm job). `on_full` (FMSLURM_CKPT_ON_FULL) says what
    follows where NVMe is full: `lustre` writes to the checkpoint folder, `skip` leaves the step out; neither: CheckpointRefused.
    """

    def __init__(
        self,
        *,
        run: str = "",
        directory: str = "",
        nvme: str | None = None,
        attempt: str = "",
        shard: int = 0,
        world: int = 1,
        on_full: tuple[str, ...] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environment is None else environment
        self.environment = env
        job_run, job_attempt = _job_names(env)
        self.run = run or env.get("FMSLURM_RUN_ID", "") or job_run
        self.directory = directory or env.get("FMSLURM_CKPT_DIR", "")
        self.nvme = env.get("FMSLURM_NVME", "") if nvme is None else nvme
        self.attempt = attempt or env.get("FMSLURM_ATTEMPT", "") or job_attempt
        self.shard, self.world = shard, world
        policy = env.get("FMSLURM_CKPT_ON_FULL", "lustre,skip")
        self.on_full = tuple(policy.split(",")) if on_full is None else on_full
        self.node = env.get("SLURMD_NODENAME", "") or os.uname().nodename
        self.last: Saved | None = None  # what became of the last step
        self.skipped = 0  # steps left out since NVMe and folder were full
        self._last_bytes = 0
        self._open: list[Manifest] = []  # written to the folder, not yet complete when we looked
        if not is_run_name(self.run):
            raise CheckpointRefused(f"not a run name: {self.run!r}", reason="invalid", remedy="Give run=NAME")
        if not is_attempt(self.attempt):
            raise CheckpointRefused(f"not an attempt: {self.attempt!r}", reason="invalid")
        if self.directory and not is_checkpoint_dir(self.directory):
            raise CheckpointRefused(
                f"not an absolute folder: {self.directory!r}", reason="invalid", remedy="Give directory=/full/path"
            )
        if not self.nvme and not self.directory:
            raise CheckpointRefused(
                "there is nowhere to write to: neither FMSLURM_NVME nor a checkpoint folder is set",
                reason="invalid",
                remedy="Give directory=DIR, or submit with --fm-ckpt DIR",
            )

    @contextlib.contextmanager
    def step(self, step: int, *, shard: int | None = None, world: int | None = None) -> Iterator[str]:
        """Yield an empty folder for this shard of the step; on exit make it durable and hand it over.

        An exception in the body leaves nothing behind and goes on up; but where the disk ran full and `on_full` has
        `skip`, the step is skipped, counted in `skipped` and said on stderr, and training goes on. Raise
        CheckpointRefused with a reason. `last` tells what became of the step.
        """
        manifest = self._manifest(step, shard, world)
        try:
            with self._shard(manifest, on_nvme=self._on_nvme(manifest)) as folder:
                yield folder
        except CheckpointRefused as exc:
            self._skip_if_full(manifest, exc)

    def save(
        self, step: int, write: Callable[[str], object], *, shard: int | None = None, world: int | None = None
    ) -> Saved:
        """Save a step by calling `write(folder)`; where NVMe runs full meanwhile, call it again for the checkpoint folder.

        Return what became of it. Raise as `step` does.
        """
        manifest = self._manifest(step, shard, world)
        on_nvme = self._on_nvme(manifest)
        try:
            try:
                with self._shard(manifest, on_nvme=on_nvme) as folder:
                    write(folder)
            except CheckpointRefused as exc:
                if exc.reason != "full" or not on_nvme or not self.directory or "lustre" not in self.on_full:
                    raise
                with self._shard(manifest, on_nvme=False) as folder:
                    write(folder)
        except CheckpointRefused as exc:
            self._skip_if_full(manifest, exc)
        assert self.last is not None
        return self.last

    @contextlib.contextmanager
    def _shard(self, manifest: Manifest, *, on_nvme: bool) -> Iterator[str]:
        """Yield the folder for one shard and close it in one place; CheckpointRefused (`full`) where that place is full."""
        writing = ""
        lock: int | None = None
        try:
            writing = self._open_writing(manifest, on_nvme=on_nvme)
            lock = lock_folder(writing)  # says to the agent that somebody writes here
            yield writing
            started = time.monotonic()
            closed = self._close_nvme(writing, manifest) if on_nvme else self._close_folder(writing, manifest)
            self._last_bytes = closed.size
            reason = "" if on_nvme or not self.nvme else "NVMe is full or cannot be written"
            where = "nvme" if on_nvme else "folder"
            self.last = Saved(manifest.step, where, closed.size, time.monotonic() - started, reason)
        except CheckpointRefused:
            raise
        except Exception as exc:
            # Libraries wrap what the disk said (torch raises RuntimeError), so the disk itself is asked, too.
            place = self.nvme if on_nvme else self.directory
            if not (isinstance(exc, OSError) and exc.errno in _FULL) and not _is_full(place):
                raise
            raise CheckpointRefused(
                f"{place} is full: {exc}", reason="full", remedy="Make room, or save less often"
            ) from exc
        finally:
            if writing:
                remove_tree(writing)
            if lock is not None:
                os.close(lock)

    def _skip_if_full(self, manifest: Manifest, exc: CheckpointRefused) -> None:
        """Count and say that a step was left out where policy has it so; else raise."""
        if exc.reason != "full" or "skip" not in self.on_full:
            raise exc
        self.skipped += 1
        self.last = Saved(manifest.step, "skipped", reason=exc.message)
        sys.stderr.write(
            f"fmslurm: checkpoint of step {manifest.step} skipped ({self.skipped} so far): {exc.message}\n"
        )

    def restore(self) -> Restore | None:
        """Return where to start from, or None for a fresh start.

        What the prolog decided (FMSLURM_RESTORE_DIR, the same on all nodes; set but empty means none) counts. Without it
        the checkpoint folder is looked at here: then let one rank ask and tell the others.
        """
        told = self.environment.get("FMSLURM_RESTORE_DIR")
        if told:
            step = self.environment.get("FMSLURM_RESUME_STEP", "")
            return Restore(int(step) if step.isdigit() else _step_of(told), told)
        if told is not None or not self.directory:
            return None
        found = next(find.iter_shared(self.directory), None)
        return Restore(found.step, found.path) if found is not None else None

    def _manifest(self, step: int, shard: int | None, world: int | None) -> Manifest:
        """Return the manifest of a shard without its files yet."""
        number = self.shard if shard is None else shard
        size = self.world if world is None else world
        if not 0 <= step <= MAX_STEP or not 1 <= size <= MAX_WORLD or not 0 <= number < size:
            raise CheckpointRefused(f"step {step}, shard {number} of {size}", reason="invalid")
        return Manifest(self.run, step, self.attempt, size, number, self.node, self.directory)

    def _on_nvme(self, manifest: Manifest) -> bool:
        """Say whether this shard goes to NVMe: it can be written, and a shard like the last one would fit there."""
        if not self.nvme:
            return False
        try:
            os.makedirs(self._attempt_folder(manifest), mode=0o700, exist_ok=True)
            free_bytes = _free_bytes(self.nvme)
        except OSError as exc:
            if self.directory and (exc.errno not in _FULL or "lustre" in self.on_full):
                return False
            if exc.errno in _FULL:
                return True  # opening it says so
            raise CheckpointRefused(f"{self.nvme}: {exc.strerror}", reason="unwritable") from exc
        # Nothing is known before the first save: then writing shows whether it fits.
        fits = not self._last_bytes or free_bytes > self._last_bytes * _HEADROOM
        return fits or not self.directory or "lustre" not in self.on_full

    def _attempt_folder(self, manifest: Manifest) -> str:
        """Return the folder of this attempt's shards of a step on NVMe."""
        return os.path.join(self.nvme, step_name(manifest.step), slug(manifest.attempt))

    def _open_writing(self, manifest: Manifest, *, on_nvme: bool) -> str:
        """Make and return the hidden folder that the trainer writes into; refuse a step that is taken."""
        if on_nvme:
            parent = self._attempt_folder(manifest)
            if os.path.lexists(os.path.join(parent, shard_name(manifest.shard))):
                raise CheckpointRefused(
                    f"step {manifest.step}, shard {manifest.shard} is saved already by this attempt", reason="exists"
                )
        else:
            self._finish_open()
            parent = incoming_path(manifest)
            state = final_state(manifest)
            if state.state in (COMPLETE, REFUSED):
                raise CheckpointRefused(state.words, reason="exists")
        os.makedirs(parent, exist_ok=True)
        writing = os.path.join(parent, f"{WRITING_PREFIX}{manifest.shard}.{os.getpid()}")
        remove_tree(writing)
        os.mkdir(writing, 0o700)
        return writing

    def _close_nvme(self, writing: str, manifest: Manifest) -> Manifest:
        """Make a shard on NVMe durable and visible, and wake the agent."""
        entries = manifests.walk(writing, shard=manifest.shard)
        manifest = manifest._replace(entries=entries, created=time.time())
        sync_tree(writing, entries)
        write_durable(writing, SHARD_MANIFEST, manifests.render(manifest))
        parent = os.path.dirname(writing)
        os.rename(writing, os.path.join(parent, shard_name(manifest.shard)))
        for folder in (parent, os.path.dirname(parent), self.nvme):
            sync_folder(folder)
        self._wake_agent()
        return manifest

    def _close_folder(self, writing: str, manifest: Manifest) -> Manifest:
        """Make a shard in the checkpoint folder durable, and all of the checkpoint visible if it is the last one."""
        entries = tuple(self._with_checksum(writing, e) for e in manifests.walk(writing, shard=manifest.shard))
        manifest = manifest._replace(entries=entries, created=time.time())
        sync_tree(writing, entries)
        sync_folder(self.directory)
        state = adopt_shard(writing, manifest)
        if state.state == REFUSED:
            raise CheckpointRefused(state.words, reason="conflict")
        if state.state == COPIED:
            self._open.append(manifest._replace(entries=()))
        return manifest

    @staticmethod
    def _with_checksum(folder: str, entry: Entry) -> Entry:
        """Return an entry with the checksum of its file, which is still in the page cache."""
        if entry.kind != FILE:
            return entry
        descriptor = open_checked(os.path.join(folder, entry.path), entry)
        try:
            return entry._replace(checksum=of_descriptor(descriptor)[0])
        finally:
            os.close(descriptor)

    def _finish_open(self) -> None:
        """Look again at steps whose other shards were not in: on a file system whose views lag, nobody may have seen all."""
        still_open: list[Manifest] = []
        for manifest in self._open:
            with contextlib.suppress(OSError):
                state: State = try_commit(manifest)
                if state.state == COPIED:
                    still_open.append(manifest)
        self._open = still_open[-8:]

    def _wake_agent(self) -> None:
        """Tell the agent that there is something; where it is down it finds the shard by itself later."""
        path = self.environment.get("FMSLURM_CKPT_SOCKET", "")
        if not path:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(b"1", path)


def _free_bytes(folder: str) -> int:
    """Return how much an ordinary user may still write here."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _is_full(folder: str) -> bool:
    """Say whether practically nothing more can be written here."""
    with contextlib.suppress(OSError):
        return _free_bytes(folder) < _RESERVE_BYTES
    return False


def _job_names(env: Mapping[str, str]) -> tuple[str, str]:
    """Return names for run and attempt out of Slurm's own variables; `manual` outside a job."""
    job = env.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return "manual", "manual"
    restarts = env.get("SLURM_RESTART_COUNT", "0")
    return f"job-{job}", f"job-{job}-{restarts if restarts.isdigit() else 0}"


def _step_of(path: str) -> int:
    """Return the step that a restored folder belongs to, by its manifest; -1 where it has none."""
    for name in (MANIFEST, SHARD_MANIFEST):
        with contextlib.suppress(ValueError):
            if (found := manifests.read(os.path.join(path, name))) is not None:
                return found.step
    return -1

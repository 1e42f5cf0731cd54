"""What staging speaks of: files, shards, checkpoints, and where they lie. Frozen data and the names of things on disk.

Standard library only: trainers and hooks import this.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_ext.errors import EXIT_FINDING, FmslurmError

SCHEMA = 1

#: Every file of ours in a folder that users own starts so; a checkpoint that holds such a name itself is refused.
OWN_PREFIX = ".fmslurm-"
MANIFEST = ".fmslurm-manifest.json"  # of a whole checkpoint; written last
SHARD_MANIFEST = ".fmslurm-shard.json"  # in a shard's folder on NVMe
PART_PREFIX = ".fmslurm-part-"  # a file that is being copied
COMMIT_PREFIX = ".fmslurm-commit-"  # a whole checkpoint's manifest that is being written
WRITING_PREFIX = ".fmslurm-writing-"  # a shard that is being written
INCOMING_PREFIX = ".incoming-step-"  # a checkpoint that waits for shards
WHOLE = "whole"  # on NVMe: all shards of a checkpoint in one folder, where one node has them all

FILE, LINK, FOLDER = "file", "link", "dir"

#: Where a shard is on its way into a tier.
WAITING, COPIED, COMPLETE, REFUSED = "waiting", "copied", "complete", "refused"

MAX_STEP = 10**15
MAX_WORLD = 1_000_000


class CheckpointRefused(FmslurmError):
    """A checkpoint could not be taken; `reason` is one of full, exists, invalid, conflict, unwritable, damaged."""

    exit_code = EXIT_FINDING

    def __init__(self, message: str, *, reason: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason


class Entry(NamedTuple):
    """One name in a checkpoint. `checksum` is `algorithm:hex`, empty where nobody has read the bytes yet."""

    path: str  # relative, with slashes; odd bytes as surrogate escapes
    kind: str = FILE
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    checksum: str = ""
    target: str = ""  # of a link
    shard: int = 0
    key: str = ""  # in S3, where the path cannot be one


class Manifest(NamedTuple):
    """A whole checkpoint (`shard` is -1) or one shard of it. `world` is the number of shards that make it whole."""

    run: str
    step: int
    attempt: str  # cluster/jobid-restarts, or `manual`
    world: int = 1
    shard: int = -1
    node: str = ""
    checkpoint_dir: str = ""  # where the user wants it on the shared file system; empty: the site's own folder
    created: float = 0.0  # seconds since the epoch
    entries: tuple[Entry, ...] = ()

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(entry.size for entry in self.entries)


class Shard(NamedTuple):
    """A complete shard on a node's NVMe, as a scan reports it; its file list stays on disk."""

    uid: int
    run: str
    step: int
    attempt: str
    shard: int
    world: int
    size: int  # bytes
    checkpoint_dir: str
    created: float
    path: str  # the shard's folder

    @property
    def key(self) -> str:
        """Return what identifies this shard in markers and in the status file."""
        return f"{self.uid}/{self.run}/{step_name(self.step)}/{slug(self.attempt)}/{shard_name(self.shard)}"


class Found(NamedTuple):
    """The newest complete checkpoint: `path` holds all of its files, in the tier named (`nvme`, `lustre` or `s3`)."""

    step: int
    path: str
    tier: str
    attempt: str = ""
    world: int = 1
    size: int = 0  # bytes


_SLUG = re.compile(r"[^A-Za-z0-9.-]")
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,15})")
_SHARD = re.compile(r"shard-(0|[1-9][0-9]{0,6})")
_INCOMING = re.compile(r"\.incoming-step-(0|[1-9][0-9]{0,15})\.([A-Za-z0-9._-]{1,128})")
_ATTEMPT = re.compile(r"[A-Za-z0-9._/-]{1,128}")


def step_name(step: int) -> str:
    """Return the folder name of a step."""
    return f"step-{step}"


def shard_name(shard: int) -> str:
    """Return the folder name of a shard on NVMe."""
    return f"shard-{shard}"


def incoming_name(step: int, attempt: str) -> str:
    """Return the hidden name of a checkpoint on the shared file system until it is whole."""
    return f"{INCOMING_PREFIX}{step}.{slug(attempt)}"


def shard_manifest_name(shard: int) -> str:
    """Return the name of a shard's manifest among the shards of others."""
    return f"{OWN_PREFIX}shard-{shard}.json"


def parse_step(name: str) -> int | None:
    """Return the step that a folder name stands for, or None."""
    found = _STEP.fullmatch(name)
    return int(found.group(1)) if found else None


def parse_shard(name: str) -> int | None:
    """Return the shard that a folder name stands for, or None."""
    found = _SHARD.fullmatch(name)
    return int(found.group(1)) if found else None


def parse_incoming(name: str) -> tuple[int, str] | None:
    """Return step and attempt (as its slug) of a checkpoint that is not whole yet, or None."""
    found = _INCOMING.fullmatch(name)
    return (int(found.group(1)), found.group(2)) if found else None


def is_attempt(text: str) -> bool:
    """Say whether text may name an attempt: `cluster/jobid-restarts` or a word, at most 128 characters, no `..`."""
    return _ATTEMPT.fullmatch(text) is not None and ".." not in text and not text.startswith((".", "/"))


def slug(attempt: str) -> str:
    """Return an attempt as one path component: `lab/12-0` becomes `lab_12-0`."""
    return _SLUG.sub("_", attempt)

"""The kernel's ring from its oldest record to its end, of which only messages that a rule looks at are kept.

Bounded whatever the kernel does: so many bytes are read, so many messages kept. Standard library only: hooks import this.
"""

from __future__ import annotations

import os

from slurm_ext.gate import kernel_log
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

#: Messages that any rule looks at; the rest of a ring of thousands of lines is not kept.
OF_INTEREST = pattern(
    r"NVRM|nvidia[-: ]|infiniband|efa |nvme|Lustre|EDAC|oom-kill|segfault|EXT4-fs|XFS|\bib\w+: |Linux version"
    r"|blocked for more than|lockup|LOCKUP|detected stall|Hardware Error|event severity|Memory failure|Out of memory"
    r"|BUG: |Oops: |/O error|error, dev |Aborting journal|Disk failure|BTRFS|F2FS|above threshold|Trigger reset"
    r"|Keep alive watchdog|file-max|kernel BUG at|general protection|expedited stall|killed as|traps: "
    r"|lost carrier|[Ll]ink is [Dd]own|link down"
)

#: Raw records can be this long (bytes), see dev-kmsg.
_RECORD_BYTES = 8192

#: The ring is 16 MiB at most by default (CONFIG_LOG_BUF_SHIFT up to 25 allows 32); a storm that goes on while we read is cut.
MAX_BYTES = 64 << 20

#: Messages kept: a storm repeats itself, and the rules merge what repeats. The first and the last tell what happened.
MAX_KEPT = 10_000

#: So much of one message is kept (characters): the longest that a rule reads is a quarter of it.
MESSAGE_CHARS = 1200


class Ring(NamedTuple):
    """The messages of interest, None where they cannot be read; whether the oldest of this boot are gone, and whether some
    between were not read or not kept."""

    records: list[str] | None
    lost: bool = False
    cut: bool = False


class _Kept:
    """The first and the last messages of interest, MAX_KEPT of them, in order; and whether the ring had lost its start."""

    def __init__(self) -> None:
        self.first: list[str] = []
        self.last: list[str] = []
        self.lost: bool | None = None
        self.dropped = False
        self.sound = False  # one record at least had the form of one

    def add(self, record: str) -> None:
        if self.lost is None:
            self.lost = kernel_log.kmsg_gap([record])
        if not self.sound:
            self.sound = kernel_log.is_record(record)
        if not OF_INTEREST.search(record):
            return
        if len(self.first) < MAX_KEPT // 2:
            self.first.append(record[:MESSAGE_CHARS])
            return
        self.last.append(record[:MESSAGE_CHARS])
        if len(self.last) >= MAX_KEPT:
            del self.last[: MAX_KEPT // 2]
            self.dropped = True


def records(root: str) -> Ring:
    """Return the raw records of interest, and what of this boot is gone.

    A ring without a single record is none: the kernel's first message is there before any process is.
    """
    kept = _Kept()
    try:
        cut = _ring("/dev/kmsg", kept) if root == "/" else _file(os.path.join(root, "var/log/kmsg.log"), kept)
    except OSError:
        return Ring(None)
    if not kept.sound:
        return Ring(None)
    return Ring(kept.first + kept.last, bool(kept.lost), kept.dropped or cut)


def _ring(path: str, kept: _Kept) -> bool:
    """Read the device, where one read is one record; say whether it was given up before its end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    left = MAX_BYTES
    try:
        while left > 0:
            try:
                raw = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return False
            except BrokenPipeError:  # EPIPE: records were overwritten while we read; the next read goes on after them
                left -= 1
                kept.dropped = kept.dropped or kept.lost is not None  # before the first record it is the ring's start
                continue
            if not raw:
                return False
            left -= len(raw)
            kept.add(raw.decode("utf-8", "replace").split("\n", 1)[0])
        return True
    finally:
        os.close(descriptor)


def _file(path: str, kept: _Kept) -> bool:
    """Read a simulated node's log; say whether it was given up before its end."""
    left = MAX_BYTES
    with open(path, encoding="utf-8", errors="replace") as stream:
        while left > 0 and (line := stream.readline(_RECORD_BYTES)):
            left -= len(line)
            kept.add(line.rstrip("\n"))
    return left <= 0

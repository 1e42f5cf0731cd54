"""Lustre as this client sees it: its connections to the servers, and the networks that carry them. No file of it is touched.

Whether a mount answers is asked by a child of its own for each (collect.py). Here the prolog reads one small file for each
connection (in one child with the probe of the node itself) and is done where all say FULL or IDLE; anything else, the epilog
and the health check load the long rules.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from slurm_ext.gate import read_small
from slurm_ext.gate.probes import HEALTH, PROLOG, Here, Probed
from slurm_ext.typed import NamedTuple

#: Where releases keep a client's connections (lustre/obdclass: procfs, debugfs from 2.9 on, sysfs for single values).
PLACES = ("proc/fs/lustre", "sys/kernel/debug/lustre", "sys/fs/lustre")
KINDS = ("mdc", "osc", "mgc")

#: LNet's own list of interfaces.
NIS = ("sys/kernel/debug/lnet/nis", "proc/sys/lnet/nis")

#: AWS's driver of LNet over EFA (FSx for Lustre, "Configuring EFA clients").
EFA_MODULE = "sys/module/kefalnd"

#: A client of the largest file systems has some thousand connections; more are not read.
MOST = 2048
_FILE_BYTES = 1 << 14
_GOOD = ("current_state: FULL", "current_state: IDLE")


class Seen(NamedTuple):
    """What the quick look read: `states` by folder, a text or the errno name of what could not be read."""

    mounts: tuple[tuple[str, str], ...] = ()  # mount point, source
    states: dict[str, str] = {}  # noqa: RUF012 (a NamedTuple)
    unread: dict[str, str] = {}  # noqa: RUF012
    health: str = ""
    nis: str | None = None
    has_efa: bool = False
    files: dict[str, str] = {}  # noqa: RUF012 (other files that are there and could not be read, with why)


def __getattr__(name: str) -> object:
    if name != "CHECKS":
        raise AttributeError(name)
    from slurm_ext.gate.lustre_checks import CHECKS  # for people: no hook needs them

    return CHECKS


def look(here: Here) -> Probed:
    """Look at Lustre, in the child."""
    mounts = mounted(read_small.text(here.path("proc/self/mountinfo"), 1 << 20) or "")
    if not mounts:
        return Probed()  # that one should be there is asked with its file call
    seen = read(here, mounts)
    if here.phase == PROLOG and well(seen):
        return Probed()
    from slurm_ext.gate import lustre_live

    kept = {"read": lustre_live.readings(here, seen)} if here.phase == HEALTH else {}
    return Probed(tuple(lustre_live.judge(here, seen)), kept)


def mounted(mountinfo: str) -> tuple[tuple[str, str], ...]:
    """Return mount point and source of each Lustre in /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        front, dash, back = line.partition(" - lustre ")
        words = front.split()
        if dash and len(words) >= 5 and back:
            found.append((words[4].replace("\\040", " "), back.split()[0]))
    return tuple(found)


def read(here: Here, mounts: tuple[tuple[str, str], ...]) -> Seen:
    """Read one small file for each connection, in the first place that has any."""
    states: dict[str, str] = {}
    unread: dict[str, str] = {}
    files = read_small.Files(here.root)
    for place in PLACES:
        for kind in KINDS:
            for name in (files.names(f"{place}/{kind}") or ())[:MOST]:
                folder = f"{place}/{kind}/{name}"
                said = read_small.read(here.path(f"{folder}/state"), _FILE_BYTES)
                if isinstance(said, str):
                    states[folder] = said
                elif not isinstance(said, (FileNotFoundError, NotADirectoryError)):
                    unread[folder] = error_name(said)
        if states or unread:
            break
    health = _first(files, [f"{place}/health_check" for place in reversed(PLACES)], 1024)
    nis = _first(files, NIS, 1 << 16)
    # A kernel that is locked down shuts debugfs to root as well (kernel_lockdown(7)): that is set so, and no fault.
    shut = {name: why for name, why in files.unread.items() if not (why == "EPERM" and "/debug/" in name)}
    return Seen(mounts, states, unread, (health or "").strip(), nis, os.path.isdir(here.path(EFA_MODULE)), shut)


def _first(files: read_small.Files, names: Sequence[str], most: int) -> str | None:
    """Return the text of the first file that can be read; the others, if any, are another release's and are forgotten then."""
    for name in names:
        if (text := files.text(name, most)) is not None:
            for other in names:
                files.unread.pop(other, None)
            return text
    return None


def error_name(error: OSError) -> str:
    """Return the errno name of an error."""
    import errno

    return errno.errorcode.get(error.errno or 0, str(error.errno))


def well(seen: Seen) -> bool:
    """Return whether all is plainly well: every connection in use, and LNet up on the network that it was given. Pure."""
    connected = bool(seen.states) and not seen.unread and all(text.startswith(_GOOD) for text in seen.states.values())
    if not connected or seen.files or seen.health not in ("", "healthy"):
        return False
    if seen.nis is None:
        return True
    rows = [line.split()[:2] for line in seen.nis.splitlines()[1:]]
    up = [row[0].partition("@")[2].rstrip("0123456789") for row in rows if row[1:] == ["up"]]
    return any(kind != "lo" for kind in up) and (not seen.has_efa or "efa" in up)

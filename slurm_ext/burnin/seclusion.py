"""Files that NCCL reads whatever the environment says, hidden from a worker: it has a view of the file system of its own.

NCCL_CONF_FILE takes the place of the user's file only, and before 2.23 of nothing: /etc/nccl.conf is read by every release,
and what it sets (P2P off, another algorithm) would be measured, and blamed on nodes (NCCL's src/misc/param.cc).
"""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Sequence

_CLONE_NEWNS = 0x0002_0000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x4_0000

SYSTEM_FILE, USER_FILE = "/etc/nccl.conf", ".nccl.conf"


def configuration_files() -> tuple[str, ...]:
    """Return the files that NCCL in this process would take settings from."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir  # what NCCL looks up itself; HOME means nothing to it
    except KeyError:
        return (SYSTEM_FILE,)
    return (SYSTEM_FILE, os.path.join(home, USER_FILE))


def hide(paths: Sequence[str]) -> tuple[str, ...]:
    """Have this process, and no other, see these files as empty. Return those that it still sees as they are.

    Needs root, and is final. Only for a process that has one thread.
    """
    there = [path for path in paths if os.path.exists(path)]
    if not there:
        return ()
    libc = ctypes.CDLL(None)
    nothing = ctypes.c_void_p()
    if libc.unshare(_CLONE_NEWNS) != 0:
        return tuple(there)
    # Else the mounts below would show in every namespace that ours is shared with.
    if libc.mount(b"none", b"/", nothing, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), nothing) != 0:
        return tuple(there)
    flags = ctypes.c_ulong(_MS_BIND)
    return tuple(p for p in there if libc.mount(b"/dev/null", os.fsencode(p), nothing, flags, nothing) != 0)

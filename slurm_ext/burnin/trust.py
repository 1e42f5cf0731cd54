"""May root load this library? Only where nobody but root could have put it there: the file, its links, all folders above."""

from __future__ import annotations

import os
import stat

_LINKS_MAX = 40


def refused(path: str) -> str:
    """Return why a library at `path` is not to be loaded, empty where it may be, or is not there.

    For root alone: other users load at their own risk. A bare name is searched by the loader, whose configuration is root's.
    """
    return why_untrusted(path) if os.geteuid() == 0 and "/" in path else ""


def why_untrusted(path: str) -> str:
    """Return what somebody other than root (or we) could replace on the way to a file; empty: nothing, or it is missing.

    A folder that all may write is fine where it is sticky (as /tmp): there only the owner removes an entry.
    """
    here, rest, links = "/", os.path.abspath(path).split("/")[1:], 0
    try:
        if word := _foreign("/", os.lstat("/")):
            return word
        while rest:
            name = rest.pop(0)
            if name in ("", ".", ".."):
                here = os.path.dirname(here) if name == ".." else here
                continue
            child = os.path.join(here, name)
            state = os.lstat(child)
            if word := _foreign(child, state):
                return word
            if not stat.S_ISLNK(state.st_mode):
                here = child
                continue
            links += 1
            if links > _LINKS_MAX:
                return f"{path} goes through too many links"
            target = os.readlink(child)
            here = "/" if target.startswith("/") else here
            rest = target.split("/") + rest
    except (FileNotFoundError, NotADirectoryError):
        return ""  # the loader says so in its own words
    except OSError as exc:
        return f"{exc.filename or path} cannot be looked at: {exc.strerror}"
    return ""


def _foreign(path: str, state: os.stat_result) -> str:
    if state.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to uid {state.st_uid}"
    if stat.S_ISLNK(state.st_mode):
        return ""  # a link's own mode means nothing
    sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
    if state.st_mode & 0o022 and not sticky:
        return f"{path} may be written by others (mode {stat.S_IMODE(state.st_mode):04o})"
    return ""

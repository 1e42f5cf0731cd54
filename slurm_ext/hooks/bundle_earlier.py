"""Was this incident's evidence saved a moment ago? A drain has up to three hooks: prolog, epilog and health check of one fault."""

from __future__ import annotations

import json
import os
import time

from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted
from slurm_ext.typed import Any, NamedTuple

#: Bundles of one finding, target and boot within this time (seconds) are one incident's: the first is kept.
SAME_S = 600.0

#: So many of the newest bundles of the finding are looked into, and so much of what each says of itself (bytes).
MOST, MAX_BYTES = 4, 1 << 20

#: What a bundle says of its replay where it comes to the same.
SAME = "same"


class Incident(NamedTuple):
    """What a bundle is about, and what a replay of it came to when it was saved."""

    finding: str
    target: str
    boot_id: str
    replay: str


def find(above: str, name: str, context: str, now: float) -> str:
    """Return the bundle in `above` that was saved of the same incident, empty where there is none. `name` is the new one's.

    `context` is what the new bundle would say of itself (context.json). One that is judged again as it was is not left out
    for one that is not.
    """
    mine = incident(context)
    if mine is None:
        return ""
    end = name[16:]  # the time, and then a dash with the finding
    oldest, newest = (time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(max(at, 0))) for at in (now - SAME_S, now))
    try:
        names = [one for one in os.listdir(above) if _is_numbered(one[16:], end) and oldest <= one[:16] <= newest]
    except OSError:
        return ""
    for one in sorted(names, reverse=True)[:MOST]:
        path = os.path.join(above, one)
        theirs = incident(_context(path))
        if theirs is not None and theirs[:3] == mine[:3] and theirs.replay in (SAME, mine.replay):
            return path
    return ""


def _is_numbered(name: str, end: str) -> bool:
    """Say whether a name is `end`, or that with the number of a second one of one moment: `-gpu.lost`, `-gpu.lost-2`."""
    return name == end or (name.startswith(f"{end}-") and name[len(end) + 1 :].isdecimal())


def _context(path: str) -> str:
    try:
        return read_trusted(os.path.join(path, "context.json"), max_bytes=MAX_BYTES).decode("utf-8", "replace")
    except (OSError, UntrustedFileError):
        return ""


def incident(context: str) -> Incident | None:
    """Return what a bundle says of itself, None where finding, target or boot is not known. Pure."""
    try:
        told: Any = json.loads(context)["bundle"]
        found = Incident(told["finding"]["id"], told["finding"]["target"], told["boot_id"], told["replay"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return found if all(isinstance(part, str) and part for part in found) else None

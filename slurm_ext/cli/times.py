"""Times as people write them on a command line: a span from now (2h, 3d) or a moment (2026-12-24, 2026-12-24T18:00)."""

from __future__ import annotations

import datetime
import re
import time

from slurm_ext.errors import UsageError

_SPAN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([mhdw])")
_SPAN_S = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}

#: Nothing is put off for longer (days).
MOST_D = 366.0


def until_s(text: str, now: float) -> float:
    """Return a moment in the future as seconds since the epoch. Raise UsageError for other text, the past, and after a year.

    `now` in seconds since the epoch. A moment without a zone is local time; a date alone is its end.
    """
    found = _SPAN.fullmatch(text.strip().lower())
    moment = now + float(found[1]) * _SPAN_S[found[2]] if found else _moment(text.strip())
    if moment is None:
        raise UsageError(f"{text!r} is no time", remedy="Write 2h, 3d, 2w, 2026-12-24 or 2026-12-24T18:00")
    if moment <= now:
        raise UsageError(f"{text!r} is past", remedy="Name a time to come")
    if moment > now + MOST_D * 86_400:
        raise UsageError(f"{text!r} is more than a year away", remedy="Name a nearer time, and renew it then")
    return moment


def _moment(text: str) -> float | None:
    try:
        parsed = datetime.datetime.fromisoformat(text.replace("Z", "+00:00").replace("z", "+00:00"))
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            parsed += datetime.timedelta(hours=23, minutes=59, seconds=59)
        return parsed.timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def local(seconds: float) -> str:
    """Return a time for people, in local time to the minute; nothing for 0."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""

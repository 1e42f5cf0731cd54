"""When is a notice tried again, when is it given up, and how many does a target get? Pure: counts and the clock come in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.notices.model import PAGE, Delivery

#: Pauses after the first, second, ... failed try (seconds): six tries within an hour, and then it is lost.
PAUSES_S = (10.0, 30.0, 120.0, 600.0, 1_800.0)
TRIES = len(PAUSES_S) + 1

#: A target gets so many messages of each severity within so long (seconds); what is more is folded into the last of them.
LIMIT, WINDOW_S = 30, 3_600.0

#: A target that asks for a longer pause than this (seconds) does not get one.
RETRY_AFTER_MAX_S = 600.0


class Choice(NamedTuple):
    """What to send to a target now: one delivery, or several in one message; none: nothing, or not yet."""

    one: Delivery | None = None
    folded: tuple[Delivery, ...] = ()


def due_again_s(tries: int, now: float, *, retry_after_s: float = 0.0) -> float | None:
    """Return when a delivery that was tried `tries` times is tried again, None where it is given up."""
    if tries >= TRIES:
        return None
    return now + max(PAUSES_S[max(tries, 1) - 1], min(max(retry_after_s, 0.0), RETRY_AFTER_MAX_S))


def choose(due: Sequence[Delivery], sent_lately: dict[str, int], *, limit: int = LIMIT) -> Choice:
    """Return what to send of the deliveries of one target that are due, oldest first. `sent_lately`: severity -> how many it
    took within the window. Pages come first, and notices never use up their number."""
    pages = [one for one in due if one.severity == PAGE]
    for severity, waiting in ((PAGE, pages), ("", [one for one in due if one.severity != PAGE])):
        if not waiting:
            continue
        room = limit - sent_lately.get(severity or waiting[0].severity, 0)
        if room > 1 or (room == 1 and len(waiting) == 1):
            return Choice(waiting[0])
        if room == 1:
            return Choice(folded=tuple(waiting))
    return Choice()

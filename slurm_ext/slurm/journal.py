"""Every automatic act is an event first: intent, written where it survives; then the act; then done or failed.

Standard library only: hooks import this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from slurm_ext import events, shared
from slurm_ext.errors import FmslurmError
from slurm_ext.events import Event


class Journal:
    """Writes the events of one act to this machine's trail and to the node's trail on the share."""

    def __init__(self, events_path: str, share: str, node: str) -> None:
        """Take the local trail's path (empty: none), the shared folder (empty: none) and the node the events are about."""
        self.events_path, self.share, self.node = events_path, share, node

    def write(self, event: Event) -> bool:
        """Write one event to both places; say whether at least one has it on disk."""
        event = event._replace(time=event.time or events.stamp())
        local = False
        if self.events_path:
            with contextlib.suppress(OSError, FmslurmError):
                events.append(self.events_path, event, durable=True)
                local = True
        # The copy that outlives a terminated instance.
        return shared.append_event(self.share, self.node, event) or local

    def do(self, event: Event, act: Callable[[], None], confirm: Callable[[], str]) -> tuple[bool, str]:
        """Write the intent, act, confirm by reading, write the end; return (done, why not).

        `confirm` returns an empty text where the act took hold, else what is to be seen instead. An intent that can be
        written nowhere stops the act.
        """
        if not self.write(event._replace(phase="intent")):
            return False, "the intent could be written nowhere, so nothing was done"
        try:
            act()
            wrong = confirm()
        except FmslurmError as exc:
            wrong = str(exc)
        end = event._replace(phase="failed" if wrong else "done", time="")
        if wrong:
            end = end._replace(evidence=(*event.evidence, wrong))
        self.write(end)
        return not wrong, wrong

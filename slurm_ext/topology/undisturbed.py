"""Finish what was begun: who asks this process to end meanwhile is heard afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

#: Ctrl-C, systemd and `kill`, and a terminal that is gone.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put off the signals that end this process until the block is done. Only in the main thread; programs started inside get
    signals as ever, which a mask would not give them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {number: signal.signal(number, lambda got, _: heard.append(got)) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for one in heard[:1]:
            os.kill(os.getpid(), one)

"""A token bucket of our own, as large as the one AWS keeps for us: who never asks faster is not turned away.

EC2 gives non-mutating calls 100 tokens and 20 more a second, for each API, account and region (Amazon EC2 developer guide,
"Request throttling", checked 2026-11-30). Others in the account draw from the same bucket, so a call may be refused all the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

CAPACITY, REFILL_PER_S = 100.0, 20.0


class TokenBucket:
    """Tokens that threads take one by one; who comes when there is none waits for the next."""

    def __init__(
        self,
        capacity: float = CAPACITY,
        refill_per_s: float = REFILL_PER_S,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start full. `clock` counts seconds and never runs backwards; `sleep` waits for as many."""
        self._capacity, self._refill_per_s = capacity, refill_per_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._tokens, self._at = capacity, clock()

    def take(self, *, until: float) -> bool:
        """Take a token, waiting for one; return False at once where that would last beyond `until` (on the clock)."""
        with self._lock:
            now = self._fill()
            wait_s = max(1.0 - self._tokens, 0.0) / self._refill_per_s
            if now + wait_s > until:
                return False
            # Below zero: promised to those who wait, each behind the one before.
            self._tokens -= 1.0
        if wait_s > 0:
            self._sleep(wait_s)
        return True

    def drain(self) -> None:
        """Count the bucket as empty: AWS has just said that it is."""
        with self._lock:
            self._fill()
            self._tokens = min(self._tokens, 0.0)

    def _fill(self) -> float:
        now = self._clock()
        self._tokens = min(self._capacity, self._tokens + max(now - self._at, 0.0) * self._refill_per_s)
        self._at = now
        return now

"""Time for tests."""

from __future__ import annotations


class Clock:
    """Time that passes only while somebody sleeps on it."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

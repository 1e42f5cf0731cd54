"""Regular expressions that are compiled when they are first used: a hook imports some eighty and uses a dozen.

Compiling one takes as long as importing a small module. Standard library only: hooks import this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_ext.typed import Any, cast


class _Lazy:
    """Stands in for a compiled pattern."""

    def __init__(self, pattern: str, flags: int, needs: str) -> None:
        self.pattern, self._flags, self._needs = pattern, flags, needs
        self._compiled: re.Pattern[str] | None = None

    def _ready(self) -> re.Pattern[str]:
        if self._compiled is None:
            self._compiled = re.compile(self.pattern, self._flags)
        return self._compiled

    def match(self, text: str) -> re.Match[str] | None:
        return self._ready().match(text) if self._needs in text else None

    def search(self, text: str) -> re.Match[str] | None:
        return self._ready().search(text) if self._needs in text else None

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._ready().fullmatch(text) if self._needs in text else None

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._ready().finditer(text) if self._needs in text else iter(())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._ready(), name)


def pattern(text: str, flags: int = 0, *, needs: str = "") -> re.Pattern[str]:
    """Return a pattern for match, search, fullmatch, finditer (without positions) and all else, compiled on its first use.

    `needs` is a text without which it cannot match: where that is missing it is not compiled and does not match.
    A pattern that is no expression shows only when it is used: the tests compile every one.
    """
    return cast("re.Pattern[str]", _Lazy(text, flags, needs))

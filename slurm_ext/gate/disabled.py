"""Does `gate.disabled` name checks that exist? A word that names none switches nothing off, and somebody believes it does. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from slurm_ext.gate import checks, meanings
from slurm_ext.gate.model import covers


@cache
def _known() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return all ids that a word may name or begin, and the families that a word may belong to."""
    ids = frozenset({row.id for row in checks.every()} | {row.id for row in meanings.every()})
    return ids, tuple(id_ for id_ in ids if id_.endswith(("-", ".")))


def names_something(word: str) -> bool:
    """Say whether a word of `gate.disabled` is a finding's id, a whole beginning of one, or one of a family (gpu.xid-79)."""
    ids, families = _known()
    return any(covers((word,), id_) for id_ in ids) or word.startswith(families)


def wrong(words: Iterable[str]) -> list[tuple[int, str]]:
    """Return for each word that names no check its place in the list, and what is wrong with it and what to do."""
    found = []
    for place, word in enumerate(words):
        if not names_something(word):
            near = meanings.closest(word, most=1)
            hint = f"Did you mean {near[0]}?" if near else "`fmslurm gate list` shows all."
            found.append((place, f"no check is called {word!r}. {hint}" if word else "empty: it names no check"))
    return found

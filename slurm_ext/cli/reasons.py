"""The reason that a person gives for what a command does: others read it later, so it must say something."""

from __future__ import annotations

from slurm_ext.errors import UsageError


def said(reason: str) -> str:
    """Return a reason without blanks around it. Raise UsageError for one that says nothing."""
    if not (words := reason.strip()):
        raise UsageError("--reason: says nothing", remedy="Say why in a few words: others will read them")
    return words

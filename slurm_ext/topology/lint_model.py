"""What the linter of topology files speaks of: releases, rules, findings, and what it was given to read. Pure data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

#: Worst first. fatal: slurmctld does not start. error: it starts, and jobs do not, or are placed wrongly. warning: it works
#: worse than it could. note: worth knowing.
SEVERITIES = ("fatal", "error", "warning", "note")

_RELEASE = re.compile(r"(?<!\d)(\d{2})\.(\d{1,2})(?:\.(\d{1,3}))?")


class Release(NamedTuple):
    """A Slurm release; a negative `patch` means that nobody knows it."""

    major: int
    minor: int
    patch: int = -1

    @property
    def feature(self) -> tuple[int, int]:
        """Return the feature release."""
        return self.major, self.minor

    def words(self) -> str:
        """Return e.g. 25.11.2, or 25.11."""
        return f"{self.major:02}.{self.minor:02}" + (f".{self.patch}" if self.patch >= 0 else "")


def release(text: str) -> Release | None:
    """Return the release in text like `25.11.2` or `slurm-wlm 24.11.5-1`, or None where there is none."""
    found = _RELEASE.search(text)
    return Release(int(found[1]), int(found[2]), int(found[3]) if found[3] else -1) if found else None


class Rule(NamedTuple):
    """One thing that may be wrong: `severities` holds from which feature release on it is how bad ("" where it is not).

    `reason` and `remedy` may hold {names} that the place which finds it fills in; `source` is where the claim comes from.
    """

    id: str
    severities: tuple[tuple[tuple[int, int], str], ...]
    reason: str
    remedy: str
    source: str

    def severity(self, feature: tuple[int, int]) -> str:
        """Return how bad it is in a feature release; older ones are like the oldest known, newer ones like the newest."""
        found = self.severities[0][1]
        for since, word in self.severities:
            if feature >= since:
                found = word
        return found


class Finding(NamedTuple):
    """One thing that is wrong, where, how bad, why, and what to do."""

    file: str
    line: int
    rule: str
    severity: str
    reason: str
    remedy: str
    source: str


class Given(NamedTuple):
    """What a person knows beside the files: the target release, and the nodes of the cluster (empty: unknown)."""

    release: Release
    nodes: frozenset[str] = frozenset()
    weights: Mapping[str, int] = {}


class Unit(NamedTuple):
    """A switch or block as a file has it; `nodes` and `children` are hostlists, None where the key is not there."""

    name: str
    file: str
    line: int
    nodes: str | None = None
    children: str | None = None

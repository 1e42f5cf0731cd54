"""Faults of single Slurm releases that concern topology, as one table. Pure.

Read in Slurm's repository: the tags that have the commit which names the ticket.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from slurm_ext.topology.lint_report import Report

_OLDEST = (22, 5)


class Fault(NamedTuple):
    """A fault of a feature release, until the patch that is without it; it matters to files of some kinds."""

    feature: tuple[int, int]
    fixed_in: int
    kinds: tuple[str, ...]
    what: str
    ticket: str
    #: So bad that the release is better not used.
    avoid: bool = False


FAULTS = (
    Fault((25, 11), 3, ("tree", "block"), "nodes drop out of the topology at power-down, and new files may be ignored", "T24405", True),
    Fault((25, 11), 3, ("block",), "slurmctld may crash when it places a job on blocks", "T24552", True),
    Fault((25, 11), 2, ("block",), "slurmctld crashes at --consolidate-segments", "T24299"),
    Fault((25, 11), 6, ("block",), "jobs of many segments are scheduled slowly", "T25027"),
    Fault((25, 5), 1, ("tree",), "a job may get more nodes than it asked for at most", "T22897"),
    Fault((24, 5), 1, ("block",), "slurmctld may crash when it places a job on blocks", "T20103", True),
    Fault((24, 5), 3, ("tree",), "distances between switches are counted wrongly", "T20547"),
)  # fmt: skip


def check(report: Report, file: str, kinds: Collection[str]) -> None:
    """Report what is known of the release that files of these kinds are for; without its patch, as notes."""
    release = report.given.release
    if release.feature < _OLDEST:
        report.add("release.old", file, 0, release=release.words())
    for fault in FAULTS:
        if fault.feature != release.feature or release.patch >= fault.fixed_in or not set(fault.kinds) & set(kinds):
            continue
        fixed = f"{release.major:02}.{release.minor:02}.{fault.fixed_in}"
        if release.patch < 0:
            report.add("release.unknown-patch", file, 0, what=fault.what, fixed=fixed, ticket=fault.ticket)
        else:
            rule = "release.unsupported" if fault.avoid else "release.fault"
            report.add(rule, file, 0, release=release.words(), what=fault.what, fixed=fixed, ticket=fault.ticket)

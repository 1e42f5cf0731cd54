"""What a tree of so many switches costs slurmctld, pure: the formula, and what was measured to check it.

topology/tree keeps the distance of each switch to each, and fills the table by three loops over all switches, one inside the
other (switch_record.c; topology_tree.c before 24.05): at each start, each reconfigure, and each time that a switch is added
live. So the time grows with the cube of the number, whatever the shape of the tree.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Feature release -> nanoseconds for each switch cubed. Two runs each of `bench/reconfigure --full` on one virtual core of an Intel
#: Xeon that others used too fitted 1.53 and 1.17 (22.05.8), 1.46 and 1.04 (24.11.5), 1.39 and 1.62 (26.05.5): what differs is the
#: hour, not the release. A busy machine, or another one, takes up to twice as long, or half.
NS_PER_SWITCH_CUBED: Mapping[tuple[int, int], float] = {(22, 5): 1.5, (24, 11): 1.5, (26, 5): 1.5}


def predict(switches: int, version: tuple[int, int] | None = None) -> float:
    """Return the processor's seconds that slurmctld of a feature release spends on a tree of so many switches.

    A release that was not measured is taken for the next older one that was, None for the slowest.
    """
    if version is None:
        factor = max(NS_PER_SWITCH_CUBED.values())
    else:
        measured = [since for since in NS_PER_SWITCH_CUBED if since <= version] or [min(NS_PER_SWITCH_CUBED)]
        factor = NS_PER_SWITCH_CUBED[max(measured)]
    return factor * 1e-9 * switches**3


def seconds(switches: int, version: tuple[int, int] | None = None) -> str:
    """Return in words how long so many switches take: `about 1.5 s`, `about 3 min`; with no more digits than it is good for."""
    spent = predict(switches, version)
    if spent < 0.1:
        return "less than 0.1 s"
    return (
        f"about {spent:.1f} s"
        if spent < 10
        else f"about {spent:.0f} s"
        if spent < 120
        else f"about {spent / 60:.0f} min"
    )

"""Floors of one's own: what a survey measured, with a gap below it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A simulated fabric varies by a factor of two between equal groups: only a gap of three says anything there.
LAB_GAP = 3.0


def from_survey(measured: Mapping[str, Any], *, gap: float = LAB_GAP) -> dict[str, float]:
    """Return `busbw_gbs` (all nodes) and `pair_busbw_gbs` (the slowest pair), each divided by `gap`.

    `measured` is that of an Outcome of a survey. A figure that was not measured is absent: two nodes have no pairs apart
    from themselves, so theirs is the pair's. Raise ValueError where a group did not end well.
    """
    floors: dict[str, float] = {}
    for done in measured.get("rounds", []):
        for group in done["groups"]:
            if group["outcome"] != "ok" or not group["busbw_gbs"]:
                raise ValueError(f"{', '.join(group['nodes'])}: {group['outcome']}, nothing to measure a floor by")
            pair = done["kind"] == "pairs" or len(measured.get("nodes", [])) == 2
            name = "pair_busbw_gbs" if pair else "busbw_gbs"
            figure = round(float(group["busbw_gbs"]) / gap, 6)
            floors[name] = min(figure, floors.get(name, figure))
    return floors

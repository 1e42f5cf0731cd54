"""`scontrol show topology` line by line: switches and blocks with their order and sizes. Pure, standard library only."""

from __future__ import annotations

import re

from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import TopologyUnit
from slurm_ext.slurm.parse import integer

_KINDS = {"SwitchName": "switch", "BlockName": "block", "AggregatedBlock": "blocks"}
_LINE = re.compile(r"(\w+)=(\S+)")


def units(text: str) -> list[TopologyUnit]:
    """Return the lines of an answer as units, in its order; a line that begins with no name is passed over.

    Of a unit of a kind that we do not know (a ring, a torus), only the name is told: its kind is other.
    """
    found = []
    for line in text.splitlines():
        raw = _LINE.findall(line)
        if not raw or not (raw[0][0] in _KINDS or raw[0][0].endswith("Name")):
            continue
        fields = dict(raw)
        found.append(
            TopologyUnit(
                raw[0][1],
                _KINDS.get(raw[0][0], "other"),
                _names(fields.get("Nodes", "")),
                _names(fields.get("Switches", "")),
                integer(fields.get("Level", ""), 0),
                integer(fields.get("BlockSize", ""), 0),
            )
        )
    return found


def _names(text: str) -> tuple[str, ...]:
    try:
        return tuple(expand(text))
    except HostlistError:
        return ()

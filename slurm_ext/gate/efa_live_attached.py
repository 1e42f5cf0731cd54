"""How many EFA devices this node should have: what was attached, as far as the node itself can know. Pure, but for the record.

Nobody tells a node how many interfaces its launch template asked for. What it can know: the functions on the PCI bus, and
the most that it ever saw on this very instance, which an epilog writes down. Only where both leave it open does the type's
maximum stand in, and the finding says so. Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os

from slurm_ext.errors import FmslurmError
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.gate.model import Judged, judged
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import WARN

RECORD = "efa-attached.json"
_RECORD_BYTES = 4096


class Seen(NamedTuple):
    """What is known of a node's EFA. None: not looked, or not known. `maximum` is the most the type can have.

    `wanted` says that the type is bought for EFA and the site trains over it, so that no device at all is a fault.
    """

    present: int
    on_bus: int | None = None
    recorded: int | None = None
    maximum: int | None = None
    wanted: bool = False


class Number(NamedTuple):
    """How many there should be (None: nothing tells), whether that is what was attached, and what is to be said of it."""

    number: int | None
    attached: bool
    items: tuple[Judged, ...] = ()


def judge(seen: Seen) -> Number:
    """Return how many devices there should be."""
    # What an epilog saw once may have been more than there can be: a device on its way out beside its successor.
    recorded = min(seen.recorded or 0, seen.maximum or seen.recorded or 0)
    floor = max(recorded, seen.on_bus or 0)
    if not seen.wanted or not seen.maximum:
        return Number(floor or None, True)
    if floor >= seen.maximum:
        return Number(floor, True)
    if _chosen(floor, seen.maximum):
        line = (
            f"{floor} EFA devices are attached, {seen.maximum} are possible; how many were asked for is not known here"
        )
        return Number(floor, True, (judged(WARN, "efa.fewer-than-possible", "node", "warn", line),))
    if seen.maximum == 1 and not seen.present and seen.on_bus == 0:
        line = "no EFA device is attached, one is possible: traffic to other nodes goes over TCP"
        return Number(None, True, (judged(WARN, "efa.none-attached", "node", "warn", line),))
    return Number(seen.maximum, False)


def _chosen(count: int, maximum: int) -> bool:
    """Say whether so many of the possible ones are somebody's choice: one, or a whole part by a power of two.

    A device that died leaves another number; a dead PCIe switch of a p5 takes 4 of 32, which is an eighth's complement.
    """
    return count == 1 < maximum or (count > 0 and any(count * part == maximum for part in (2, 4, 8, 16)))


def read_record(state_dir: str, instance: str) -> int | None:
    """Return the most devices ever seen on this instance; None where nothing is recorded of it."""
    if not instance:
        return None
    try:
        told = json.loads(read_trusted(os.path.join(state_dir, RECORD), max_bytes=_RECORD_BYTES))
        count = told["devices"] if told["instance"] == instance else None
    except (OSError, FmslurmError, ValueError, TypeError, KeyError):
        return None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= 1024 else None


def write_record(state_dir: str, instance: str, devices: int) -> None:
    """Write down how many devices this instance has; a state folder that is not there or full costs nothing."""
    if not instance or not devices:
        return
    try:
        write_passing(os.path.join(state_dir, RECORD), json.dumps({"instance": instance, "devices": devices}) + "\n")
    except OSError:
        return

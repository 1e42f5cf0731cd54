"""How often each finding drained a node, and how often a person said that it was known or wrong: the false-alarm rate of a check.

Counted from the ledger of drains and from the acknowledgements on the share. For commands only; no hook imports this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from slurm_ext import shared
from slurm_ext.files import read_trusted
from slurm_ext.slurm import acks, ledger
from slurm_ext.slurm.acks import Ack
from slurm_ext.typed import Any, NamedTuple

#: So many drains are read at most, the newest: more than the ledger keeps.
DRAINS_MAX = 20_000

#: How long (seconds) the share may take: a person waits, and there may be thousands of small files.
TIMEOUT_S = 20.0


class Drained(NamedTuple):
    """One drain of the ledger: when (seconds since the epoch), which node, for which finding."""

    time: float
    node: str
    finding: str


class Rate(NamedTuple):
    """How one finding did: drains and on how many nodes, acknowledgements, and when it last drained (epoch seconds)."""

    finding: str
    drains: int
    nodes: int
    acks: int
    last_s: float

    @property
    def percent(self) -> float | None:
        """Return the share of drains that a person acknowledged, None where it drained nothing."""
        return min(100.0 * self.acks / self.drains, 100.0) if self.drains else None


def rates(drained: Iterable[Drained], acknowledged: Iterable[Ack]) -> list[Rate]:
    """Return one row for each finding, the most acknowledged first. Pure.

    Acknowledgements of one node for one finding count once: a person who prolongs one has not been disturbed again.
    """
    by_finding: dict[str, list[Drained]] = {}
    for drain in drained:
        by_finding.setdefault(drain.finding, []).append(drain)
    known: dict[str, set[str]] = {}
    for ack in acknowledged:
        known.setdefault(ack.finding, set()).add(ack.node)
    found = []
    for finding in {*by_finding, *known}:
        drains = by_finding.get(finding, [])
        nodes = {drain.node for drain in drains}
        last_s = max((drain.time for drain in drains), default=0.0)
        found.append(Rate(finding, len(drains), len(nodes), len(known.get(finding, ())), last_s))
    return sorted(found, key=lambda rate: (-rate.acks, -rate.drains, rate.finding))


def read(share: str, *, since_s: float, timeout_s: float = TIMEOUT_S) -> tuple[list[Drained], list[Ack]] | None:
    """Return drains and acknowledgements since a moment (epoch seconds); None where the share does not answer."""

    def work() -> list[list[Any]] | None:
        if not shared.is_share(share):
            return None
        folder = ledger.folder_of(share)
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
        except FileNotFoundError:
            return []
        return [row for name in names[-DRAINS_MAX:] if (row := _row(os.path.join(folder, name), since_s)) is not None]

    listed = shared.bounded(work, timeout_s) if share else None
    every = acks.read_all(share, timeout_s=timeout_s) if listed is not None else None
    if not isinstance(listed, list) or every is None:
        return None
    given = [ack for some in every.values() for ack in some if ack.at_s >= since_s]
    return [Drained(*row) for row in listed], given


def _row(path: str, since_s: float) -> list[Any] | None:
    """Return one entry of the ledger as plain data; None where it is older, or no entry. Runs in the child."""
    try:
        data = json.loads(read_trusted(path, max_bytes=ledger.ENTRY_BYTES))
        at_s = float(data["time"])
        return None if at_s < since_s else [at_s, str(data["node"]), str(data.get("finding") or "unknown")]
    except Exception:  # noqa: BLE001 - torn, untrusted, of another form: not counted
        return None

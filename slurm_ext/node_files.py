"""What each node tells of itself: one JSON file a node in a folder of the share, written there by the node, read all together.

As with all of the share: in bounded children, and absence is tolerated. Standard library only: hooks import this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from slurm_ext import shared
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    class Record(Protocol):
        """What a node tells, by the node's name."""

        @property
        def node(self) -> str: ...

    Told = TypeVar("Told", bound=Record)


def write(share: str, folder: str, node: str, data: Mapping[str, Any], *, timeout_s: float) -> bool:
    """Write a node's file in a folder of the share; say whether it is there."""
    if not share or not shared.NODE_NAME.fullmatch(node):
        return False

    def work() -> bool:
        if not shared.is_share(share):
            return False
        write_atomic(os.path.join(share, folder, f"{node}.json"), json.dumps(data) + "\n")
        return True

    return shared.bounded(work, timeout_s) is True


def read_all(
    share: str,
    folder: str,
    from_data: Callable[[object], Told | None],
    to_data: Callable[[Told], dict[str, Any]],
    *,
    most: int,
    max_bytes: int,
    timeout_s: float,
) -> dict[str, Told] | None:
    """Return node -> what it told; None where the share does not answer.

    Of `most` files at most, each of `max_bytes` at most; a file that `from_data` refuses, or that tells of another node than it is
    named after, is passed over.
    """

    def work() -> list[dict[str, Any]] | None:
        if not shared.is_share(share):
            return None
        above = os.path.join(share, folder)
        try:
            names = sorted(name for name in os.listdir(above) if name.endswith(".json") and not name.startswith("."))
        except FileNotFoundError:
            return []
        found = []
        for name in names[:most]:
            try:
                record = from_data(json.loads(read_trusted(os.path.join(above, name), max_bytes=max_bytes)))
            except (OSError, ValueError, RecursionError, UntrustedFileError):
                continue
            if record is not None and name == f"{record.node}.json":
                found.append(to_data(record))
        return found

    listed = shared.bounded(work, timeout_s) if share else None
    if not isinstance(listed, list):
        return None
    records = (from_data(data) for data in listed)
    return {record.node: record for record in records if record is not None}

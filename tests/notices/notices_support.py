"""What tests of notices share: a journal's database, facts, and a clock's zero."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from slurm_ext.notices.model import Fact
from slurm_ext.notices.queue import Queue
from slurm_ext.resume.journal import Journal

AT = 1_900_000_000.0


def journal(folder: Path) -> Journal:
    return Journal(str(folder / "controller.db"))


def queue(opened: Journal) -> Queue:
    return Queue(opened.db)


def drained(node: str, at_s: float = AT, **more: object) -> Fact:
    fact = Fact(
        "node.drained", f"node.drained:{node}:{at_s:.0f}", node, at_s, f"gpu.xid-79 gpu:1 of {node}", lines=(node,)
    )
    return fact._replace(**more)


def opened(name: str, at_s: float = AT, **more: object) -> Fact:
    return Fact("breaker.open", f"breaker.open:{name}", "n1", at_s, "two are allowed")._replace(**more)


def rows(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return (kind, state) of all deliveries."""
    found = db.execute(
        "SELECT kind, state FROM deliveries JOIN notices ON notices.id=deliveries.notice ORDER BY deliveries.id"
    )
    return [(kind, state) for kind, state in found]

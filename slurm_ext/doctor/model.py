"""What doctor knows of a cluster (Facts), and what it says of it (Result)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.slurm.model import Node, Version

if TYPE_CHECKING:
    from slurm_ext.doctor.notify import Notices
    from slurm_ext.doctor.topology import Watched

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"


class Result(NamedTuple):
    """One check: id, state (ok, warn, fail, unknown), what is so, and what to do about it."""

    id: str
    state: str
    text: str
    remedy: str = ""


class KeyAge(NamedTuple):
    """One key of the site: its short name, how old it is and how long it still lives, in days."""

    id: str
    age_d: float
    left_d: float


class Facts(NamedTuple):
    """Everything the rules look at. None means that the probe could not tell, and `errors` says why."""

    settings: Settings
    config_path: str = ""
    backend: str = ""
    version: Version | None = None
    slurm_config: Mapping[str, str] | None = None
    nodes: tuple[Node, ...] | None = None
    hooks: Mapping[str, tuple[str, ...]] | None = None  # Prolog, Epilog -> executable files that Slurm would run
    snapshot_hash: str | None = None
    share_problem: str | None = None
    heartbeat_age_s: float | None = None
    off: Mapping[str, str] | None = None  # room (or all) -> why
    munge: bool | None = None
    keys: tuple[KeyAge, ...] | None = ()  # this machine's, newest first; none where there is no folder of them
    openssl: bool = True  # the program that makes certificates is there
    nccl: str | None = None  # empty where the library loads here, else why not; None on no compute node that lacks it
    nccl_nodes: Mapping[str, str] = {}  # what nodes last told by their burn-ins: empty where it loaded, else why not
    ledger: bool = True  # that of drains can be read
    held_back: tuple[str, ...] = ()  # nodes that are convicted and in use, since the breaker is open
    notices: Notices | None = None  # doctor/notify.py
    watched: Watched | None = None  # doctor/topology.py
    errors: Mapping[str, str] = {}

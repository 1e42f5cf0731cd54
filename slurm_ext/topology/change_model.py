"""What a change of topology is decided from, and what is decided: levels, what runs, what is remembered, limits, the plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.slurm.conf_file import Held
from slurm_ext.slurm.model import Version
from slurm_ext.topology.drift import Move

#: Each is more than the one before. file: written, and Slurm is told nothing, since it has all of it already.
NOTHING, FILE, NODE_UPDATE, RECONFIGURE, RESTART = "nothing", "file", "node-update", "reconfigure", "restart"
LEVELS = (NOTHING, FILE, NODE_UPDATE, RECONFIGURE, RESTART)

#: `topology.apply: never` allows none.
NEVER = "never"


def rank(level: str) -> int:
    """Return how much a level is: more than another's is more of a change."""
    return LEVELS.index(level)


class Seen(NamedTuple):
    """What runs: `plugin` as Slurm has it (topology/tree), `paths` by the names of the topologies that are wanted, `known` the
    nodes that Slurm has at all, `held` the file that is to be replaced, `wins` a file that Slurm would read in its place, `beside`
    somebody else's file that Slurm reads now and would read no more, `stale` how many switches of the running tree have no node
    below, `controllers` where slurmctlds listen."""

    version: Version
    plugin: str
    paths: Mapping[str, Mapping[str, tuple[str, ...]]]
    known: frozenset[str]
    held: Held
    wins: str = ""
    beside: str = ""
    stale: int = 0
    controllers: tuple[tuple[str, int], ...] = ()


class Refusal(NamedTuple):
    """When Slurm last did not take a topology (epoch seconds), how often it did not, and what was seen."""

    at: float
    times: int
    words: str


class Past(NamedTuple):
    """What is remembered: when Slurm was last made to read a file, since when it differs and by what digest, what Slurm refused
    (`digest version` -> Refusal), and the digest of a file that was written and not yet confirmed."""

    acted_at: float = 0.0
    differs_since: float = 0.0
    differs: str = ""
    refused: Mapping[str, Refusal] = {}
    unconfirmed: str = ""


class Limits(NamedTuple):
    """How far it may go: the highest of LEVELS (or `never`), seconds between two reconfigures, whether a difference must have
    been seen before (a daemon) or not (a person), and what a person overrides: the file's owner and a refusal (`force`), places that
    are lost (`accept_loss`), and waiting (`at_once`)."""

    ceiling: str = NEVER
    interval_s: float = 1800.0
    settle: bool = True
    force: bool = False
    accept_loss: bool = False
    at_once: bool = False


class Plan(NamedTuple):
    """What to do. `blocked`: why it may not be done (with a remedy); `wait_until`: when it may, as epoch seconds; `updates`:
    hostlist and string for each node update; `later`: what a person has to do before Slurm uses the file."""

    level: str
    why: str
    moves: Mapping[str, tuple[Move, ...]] = {}
    updates: tuple[tuple[str, str], ...] = ()
    writes: bool = False
    blocked: str = ""
    remedy: str = ""
    wait_until: float = 0.0
    waits_for: str = ""
    later: str = ""

    @property
    def acts(self) -> bool:
        """Say whether something is to be done now."""
        return self.level != NOTHING and not self.blocked and not self.wait_until

    @property
    def differs(self) -> bool:
        """Say whether Slurm, or its file, is not as it should be."""
        return self.level != NOTHING

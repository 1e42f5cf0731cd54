"""No sequence of findings, times, nodes, crashes and people ever drains more than the breaker allows, overwrites a foreign
reason, or clears one. The real acts, the real ledger in a real folder, a Slurm in memory, and a share whose clock we move.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slurm_ext import shared
from slurm_ext.config.model import Drain, Settings
from slurm_ext.errors import FmslurmError, SlurmError
from slurm_ext.hooks import act as hook_act
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm import act, ledger
from slurm_ext.slurm.act import MANUAL, Context
from slurm_ext.slurm.breaker import WINDOW_S, drain_limit
from slurm_ext.slurm.model import Job, Node
from slurm_ext.verdict import REASON_PREFIX, Finding, is_ours

NAMES = tuple(f"n{number}" for number in range(8))
FINDINGS = (
    Finding("gpu.lost", "gpu:3", "reboot", ("GPU is lost",)),
    Finding("gpu.xid-95", "gpu@0000:53:00", "reset-gpu", ('it said "so"',)),
    Finding("efa.missing", "node", "replace", ()),
    Finding(MANUAL, "node", "drain", ("not a person at all",)),
)
FOREIGN = ("ticket 4711", "NHC: check_hw", "Action:Replace", "fmslurm is broken", "Not responding", "fmslurm:")

name = st.sampled_from(NAMES)
START = 1_900_000_000.0


class Killed(BaseException):
    """The hook's process ended here."""


class MemorySlurm:
    """Nodes in memory. It notes each of our acts and what it met; people act through `by`."""

    name = "memory"

    def __init__(self, names: Sequence[str], now: Callable[[], float]) -> None:
        self.now = now
        self.table = {one: Node(one, "IDLE", partitions=("gpu",)) for one in names}
        self.met: list[tuple[str, str, str]] = []  # act, node, the reason that stood there
        self.drains: list[
            tuple[float, str, bool]
        ] = []  # automatic ones, by the share's clock; at a first job since boot?
        self.first_boot = False
        self.meanwhile: Callable[[], None] | None = None
        self.trouble = ""  # silent, refuses, killed-before, killed-after
        self.by_hand = False

    def nodes(self, names: Sequence[str] | None = None) -> list[Node]:
        if self.trouble == "silent":
            raise SlurmError("Unable to contact slurm controller")
        found = [node for node in self.table.values() if names is None or node.name in names]
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return found

    def jobs(self, job_ids: Sequence[str] | None = None) -> list[Job]:
        if self.trouble == "silent":
            raise SlurmError("Unable to contact slurm controller")
        return []

    def drain(self, node: str, reason: str) -> None:
        if self.trouble == "killed-before":
            raise Killed
        if self.trouble == "refuses":
            raise SlurmError("Invalid user id")
        self._note("drain", node)
        self.by(node, ("DRAIN",), reason, "root")
        if not self.by_hand:
            self.drains.append((self.now(), node, self.first_boot))
        if self.trouble == "killed-after":
            raise Killed

    def resume_node(self, node: str) -> None:
        self._note("resume", node)
        self.by(node, (), "", "")

    def prolog_failed(self, node: str) -> None:
        """Drain it as slurmctld does after a prolog's exit 1: it leaves a reason that is there."""
        if node in self.table and not self.table[node].drained:
            self.by(node, ("DRAIN",), "Prolog error", "slurm")
        self.drains.append((self.now(), node, self.first_boot))

    def by(self, node: str, flags: tuple[str, ...], reason: str, user: str) -> None:
        one = self.table[node]
        self.table[node] = one._replace(flags=flags, reason=reason, reason_user=user, reason_time=int(self.now()))

    def _note(self, what: str, node: str) -> None:
        one = self.table[node]
        self.met.append((what, node, one.reason if one.drained else ""))


def in_process(work: Callable[[], Any], timeout_s: float) -> Any:
    """Do a share's work here: what children add, time, is tried elsewhere."""
    try:
        return json.loads(json.dumps(work()))
    except (OSError, FmslurmError, ValueError):
        return None


class Cluster(RuleBasedStateMachine):
    """A cluster with hooks, people, time and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="breaker-"))
        (self.folder / "share/ledger").mkdir(mode=0o755, parents=True)
        (self.folder / "share").chmod(0o755)
        self.clock = START
        self.slurm = MemorySlurm(NAMES, lambda: self.clock)
        self.patches = contextlib.ExitStack()
        write = ledger._write

        def dated(path: str, *arguments: Any) -> None:
            write(path, *arguments)
            os.utime(path, (self.clock, self.clock))

        self.patches.enter_context(mock.patch.object(ledger, "_write", dated))
        self.patches.enter_context(mock.patch.object(shared, "bounded", in_process))
        self.patches.enter_context(mock.patch.object(os, "fsync", return_value=None))
        self.patches.enter_context(mock.patch.object(hook_act, "connect", return_value=self.slurm))

    @initialize(per_hour=st.integers(0, 3), percent=st.sampled_from((0.0, 1.0, 25.0, 50.0)), boot=st.integers(0, 2))
    def limits(self, per_hour: int, percent: float, boot: int) -> None:
        plain = Settings()
        self.settings = plain._replace(
            site=plain.site._replace(share=str(self.folder / "share"), log_dir=str(self.folder / "log")),
            mode=plain.mode._replace(gate="enforce"),
            drain=Drain(max_per_hour=per_hour, max_percent_per_hour=percent, first_boot_budget=boot),
        )

    def teardown(self) -> None:
        self.patches.close()
        shutil.rmtree(self.folder)

    # --- what happens

    @rule(
        node=st.one_of(name, st.just("gone")),
        finding=st.sampled_from(FINDINGS[:3]),
        first_boot=st.booleans(),
        skew_s=st.sampled_from((0.0, 0.0, -3_600.0, 3_600.0, -90_000.0)),
        trouble=st.sampled_from(("", "", "", "silent", "refuses", "killed-before", "killed-after")),
        meanwhile=st.one_of(st.none(), st.tuples(name, st.sampled_from(FOREIGN))),
    )
    def a_hook_convicts(
        self,
        node: str,
        finding: Finding,
        first_boot: bool,
        skew_s: float,
        trouble: str,
        meanwhile: tuple[str, str] | None,
    ) -> None:
        self.slurm.trouble, self.slurm.first_boot = trouble, first_boot
        if meanwhile is not None:
            self.slurm.meanwhile = lambda: self.slurm.by(meanwhile[0], ("DRAIN",), meanwhile[1], "ada")
        job = HookJob("7", "c", 0, node, (node,), "gpu", 1000, 1000, 8, True)
        try:
            with mock.patch.object(hook_act.time, "time", return_value=self.clock + skew_s):
                done = hook_act.drain(self.settings, job, node, finding, first_boot=first_boot)
        except Killed:
            return
        finally:
            self.slurm.trouble, self.slurm.meanwhile = "", None
        # The prolog exits 1 where it drained, and where Slurm was silent and the ledger allows it.
        if not done.done and not done.suppressed:
            self.slurm.prolog_failed(node)

    @rule(nodes=st.permutations(NAMES), first_boot=st.booleans())
    def many_hooks_convict(self, nodes: Sequence[str], first_boot: bool) -> None:
        for node in nodes:
            self.a_hook_convicts(node, FINDINGS[0], first_boot, 0.0, "", None)

    @rule(seconds=st.one_of(st.integers(1, 120), st.sampled_from((600, 1_799, 1_800, 3_599, 3_600, 3_601))))
    def time_passes(self, seconds: int) -> None:
        self.clock += seconds

    @rule(node=name, reason=st.sampled_from(FOREIGN))
    def a_person_drains(self, node: str, reason: str) -> None:
        self.slurm.by(node, ("DRAIN",), reason, "ada")

    @rule(node=name)
    def a_person_resumes(self, node: str) -> None:
        self.slurm.by(node, (), "", "")

    @rule(node=name, meanwhile=st.one_of(st.none(), st.sampled_from(FOREIGN)))
    def a_person_drains_through_us(self, node: str, meanwhile: str | None) -> None:
        if meanwhile is not None:
            self.slurm.meanwhile = lambda: self.slurm.by(node, ("DRAIN",), meanwhile, "ada")
        self.slurm.by_hand = True
        act.drain_by_hand(self.slurm, self.settings, node, "noise (by ada)", self.told())
        self.slurm.by_hand, self.slurm.meanwhile = False, None

    @rule(node=name, by_hand=st.booleans(), meanwhile=st.one_of(st.none(), st.sampled_from(FOREIGN)))
    def we_resume(self, node: str, by_hand: bool, meanwhile: str | None) -> None:
        if meanwhile is not None:
            self.slurm.meanwhile = lambda: self.slurm.by(node, ("DRAIN",), meanwhile, "ada")
        before = self.slurm.table[node]
        act.undrain_node(self.slurm, self.settings, node, "proof", self.told(), by_hand=by_hand)
        self.slurm.meanwhile = None
        if before.reason.startswith(f"{REASON_PREFIX}{MANUAL} ") and not by_hand:
            assert self.slurm.table[node].drained

    @rule()
    def the_ledger_is_removed(self) -> None:
        shutil.rmtree(self.folder / "share/ledger", ignore_errors=True)

    @precondition(lambda self: not (self.folder / "share/ledger").exists())
    @rule()
    def the_ledger_is_made_anew(self) -> None:
        # A person reset the breaker: what was before counts no more, but for what Slurm still shows (see the tables).
        (self.folder / "share/ledger").mkdir(mode=0o755)
        self.slurm.drains = []

    @rule()
    def the_share_is_full(self) -> None:
        job = HookJob("7", "c", 0, "n0", ("n0",), "gpu", 1000, 1000, 8, True)
        before = len(self.slurm.drains)
        with mock.patch.object(os, "link", side_effect=OSError(28, "No space left on device")):
            hook_act.drain(self.settings, job, "n0", FINDINGS[0])
        assert len(self.slurm.drains) == before

    def told(self) -> Context:
        return Context("gate", self.clock, str(self.folder / "log/events.jsonl"), mode="enforce")

    # --- what must hold

    @invariant()
    def never_more_than_the_breaker_allows(self) -> None:
        if not hasattr(self, "settings"):
            return
        limit = drain_limit(self.settings.drain, len(NAMES))
        budget = self.settings.drain.first_boot_budget
        for at, _, _ in self.slurm.drains:
            within = [(node, first) for when, node, first in self.slurm.drains if at - WINDOW_S < when <= at]
            assert len({node for node, first in within if not first}) <= limit, (limit, self.slurm.drains)
            assert len({node for node, _ in within}) <= limit + budget, (limit, budget, self.slurm.drains)

    @invariant()
    def no_foreign_reason_was_met(self) -> None:
        for what, node, reason in self.slurm.met:
            # Slurm's own word after an exit 1 of ours is ours to undo, by our record.
            assert not reason or is_ours(reason) or reason == act.PROLOG_ERROR, (what, node, reason)


Cluster.TestCase.settings = hypothesis_settings(
    max_examples=int(os.environ.get("FMSLURM_BREAKER_EXAMPLES", "100")), stateful_step_count=40, deadline=None
)
TestCluster = Cluster.TestCase

"""Drains under faults: two hooks of one node, trails that cannot be written, clocks that jump, a name that Slurm does not know."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from folder_slurm import NOW, FolderSlurm

from slurm_ext import events, shared
from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings
from slurm_ext.hooks import act as hook_act
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm import act, ledger, suppressed
from slurm_ext.slurm.act import Context
from slurm_ext.verdict import Finding

FINDING = Finding("gpu.lost", "gpu:3", "reboot", ("GPU is lost",))
NODES = tuple(f"n{number}" for number in range(6))


class Site:
    """One share and one Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "share/ledger").mkdir(mode=0o755, parents=True)
        plain = Settings()
        self.settings = plain._replace(
            site=plain.site._replace(share=str(folder / "share"), log_dir=str(folder / "log"), type="parallelcluster")
        )
        self.slurm = FolderSlurm.create(folder / "slurm", NODES)
        self.local = str(folder / "log/events.jsonl")

    def drain(self, node: str, *, now: float = NOW, first_boot: bool = False) -> act.Outcome:
        told = Context("gate", now, self.local, mode="enforce", job="7")
        return act.drain_node(self.slurm, self.settings, node, FINDING, now=now, context=told, first_boot=first_boot)

    def drained(self) -> list[str]:
        return [node.name for node in self.slurm.nodes() if node.drained]

    def counted(self) -> set[str]:
        return {entry.node for entry in ledger.entries(self.settings.site.share) or ()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_two_hooks_of_one_node_are_one_drain(site: Site) -> None:
    gate, opener = os.pipe()
    results = site.folder / "results"
    results.mkdir()
    pids = []
    for number in range(6):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(opener)
                os.read(gate, 1)
                (results / str(number)).write_text(site.drain("n0").result)
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(gate)
    os.close(opener)
    for pid in pids:
        os.waitpid(pid, 0)
    said = {path.read_text() for path in results.iterdir()}
    assert said <= {"done", "already"}
    assert len(list(results.iterdir())) == 6
    assert site.counted() == {"n0"}
    # It took one of two: another node still goes, a third does not.
    assert [site.drain(node).result for node in ("n1", "n2")] == ["done", "breaker-open"]


def test_a_full_disk_of_the_node_costs_the_local_trail_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = events.append

    def full(path: str, event: events.Event, *, durable: bool = False) -> events.Event:
        if path == site.local:
            raise OSError(28, "No space left on device")
        return real(path, event, durable=durable)

    monkeypatch.setattr(events, "append", full)
    assert site.drain("n0").result == "done"
    on_share = list(events.read(f"{site.settings.site.share}/nodes/n0/events.jsonl"))
    assert [event.phase for event in on_share] == ["intent", "done"]
    assert "capacity block" in str(on_share[0].data["afterwards"])


def test_no_trail_at_all_is_no_drain_and_it_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(events, "append", full)
    assert site.drain("n0").result == "failed"
    assert site.drained() == []
    assert site.counted() == {"n0"}


@pytest.mark.parametrize("jump_s", [-86_400.0 * 365, -3_600.0, 3_600.0, 86_400.0 * 365])
def test_a_clock_that_jumps_changes_no_count(site: Site, jump_s: float) -> None:
    assert site.drain("n0").result == "done"
    assert site.drain("n1", now=NOW + jump_s).result == "done"
    # Slurm shows none of them any more: the ledger alone counts.
    for node in ("n0", "n1"):
        site.slurm.resume_node(node)
    assert site.drain("n2", now=NOW - jump_s).result == "breaker-open"
    assert site.drain("n3", now=NOW + jump_s).result == "breaker-open"


def test_what_slurm_shows_counts_where_the_ledger_was_begun_anew(site: Site) -> None:
    assert [site.drain(node).result for node in ("n0", "n1")] == ["done", "done"]
    for path in Path(site.settings.site.share, "ledger").iterdir():
        path.unlink()
    assert site.drain("n2").result == "breaker-open"
    site.slurm.set_node("n1", reason="ticket 4711")
    assert site.drain("n2").result == "done"


def test_nodes_that_are_powered_down_are_no_part_of_one_per_cent(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.settings = site.settings._replace(
        drain=site.settings.drain._replace(max_per_hour=0, max_percent_per_hour=50.0)
    )
    for node in NODES[2:]:
        site.slurm.set_node(node, flags=("CLOUD", "POWERED_DOWN"))
    assert [site.drain(node).result for node in NODES[:2]] == ["done", "breaker-open"]


def test_a_node_that_was_renamed_is_drained_under_no_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.drain("old-name").result == "failed"
    assert site.counted() == set()
    # Its hook then fails, by which Slurm drains whatever it calls the node now: only where the ledger has room.
    monkeypatch.setattr(hook_act, "connect", lambda *_a, **_k: site.slurm)
    done = [
        hook_act.drain(site.settings, HookJob("7", "c", 0, name), name, FINDING) for name in ("old-0", "old-1", "old-2")
    ]
    assert [(one.done, one.suppressed) for one in done] == [(False, False), (False, False), (False, True)]
    assert site.slurm.acts() == []


def test_the_page_names_who_is_in_use_though_convicted(site: Site) -> None:
    results = [site.drain(node).result for node in NODES]
    assert results == ["done", "done"] + ["breaker-open"] * 4
    local = [event for event in events.read(site.local) if event.event == "breaker.open"]
    (page,) = local
    assert page.rule == "breaker.open"
    assert page.data["nodes"] == ["n2"]
    assert "n2" in page.reason
    assert "2 are allowed" in page.reason
    found = suppressed.read_all(site.settings.site.share, now=NOW)
    assert found is not None
    assert [(one.node, one.finding, one.job) for one in found.values()] == [
        (node, "gpu.lost", "7") for node in NODES[2:]
    ]


def test_without_a_ledger_there_is_a_page_too(site: Site) -> None:
    os.rmdir(f"{site.settings.site.share}/ledger")
    snapshot.push(site.settings, site.settings.site.share)  # it is the share all the same
    assert [site.drain(node).result for node in NODES[:3]] == ["no-ledger"] * 3
    (page,) = [event for event in events.read(site.local) if event.event == "breaker.open"]
    assert page.rule == "breaker.no-ledger"


def test_a_dead_share_drains_nothing_and_says_so_here(site: Site) -> None:
    gone = site.settings._replace(site=site.settings.site._replace(share=str(site.folder / "gone")))
    told = Context("gate", time.time(), site.local, mode="enforce")
    outcome = act.drain_node(site.slurm, gone, "n0", FINDING, now=time.time(), context=told)
    assert outcome.result == "no-ledger"
    assert [event.decision for event in events.read(site.local)] == ["suppressed"]
    assert shared.heartbeat(gone.site.share) is None

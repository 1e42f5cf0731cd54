"""EFA's loopback as a slow check, with real processes and connections: what it finds, what it leaves, how a job ends it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pingpong
import pytest
from test_hooks_slow import until

from slurm_ext.gate import slow_result
from slurm_ext.gate.slow_result import BROKE, DONE, EFA, ENDED, Last
from slurm_ext.hooks import slow, slow_due, slow_efa, slow_end, slow_place, slow_run, slow_state
from slurm_ext.hooks.slow_run import Order
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

DEVICES = [f"rdmap{number}s0" for number in range(79, 84)]


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    yield str(folder)
    assert slow.end_running(str(folder), 20.0)
    slow_place.forget(node_of(str(folder)))


def node_of(run_dir: str) -> str:
    return f"e{zlib.crc32(run_dir.encode()):08x}"


def start(run_dir: str, behaviours: dict[str, str], *, limit_s: float = 300.0) -> Path:
    folder = Path(run_dir).parent / "efa"
    argv = pingpong.install(folder, behaviours)
    assert slow_run.start(Order(node_of(run_dir), run_dir, argv, EFA, "boot-1", limit_s), idle=str)
    return folder


def last(run_dir: str) -> Last:
    until(lambda: slow_result.read(run_dir, EFA) is not None, "a result", timeout_s=120.0)
    until(lambda: not (Path(run_dir) / slow.RUNNING).exists(), "it is over")
    found = slow_result.read(run_dir, EFA)
    assert found is not None
    return found


def findings(found: Last) -> list[tuple[str, str, str, str]]:
    return [(item.verdict, *item.finding[:3]) for item in found.items]


def test_traffic_passes_over_each_device_and_not_through_memory(run_dir: str) -> None:
    folder = start(run_dir, dict.fromkeys(DEVICES, "pass"))
    found = last(run_dir)
    assert (found.outcome, found.items) == (DONE, ())
    assert found.passed == tuple(f"efa:{device}" for device in DEVICES)
    ran = (folder / "ran").read_text().splitlines()
    assert len(ran) == 2 * len(DEVICES), "a server and a client for each device, listed twice or not"
    assert all(line.endswith("|0") for line in ran), "shared memory is off"
    assert slow_result.read(run_dir) is None, "DCGM's result is another's"
    assert slow_state.begun_s(run_dir, EFA) is not None


def test_one_device_that_fails_twice_convicts_and_one_that_failed_once_does_not(run_dir: str) -> None:
    start(run_dir, {**dict.fromkeys(DEVICES, "pass"), "rdmap90s0": "error", "rdmap91s0": "pass", "rdmap92s0": "pass"})
    assert findings(last(run_dir)) == [(FAIL, "efa.loopback-failed", "efa:rdmap90s0", "replace")]


def test_a_device_that_passes_the_second_time(run_dir: str) -> None:
    start(run_dir, {**dict.fromkeys(DEVICES, "pass"), "rdmap90s0": "once"})
    found = last(run_dir)
    assert findings(found) == [(WARN, "efa.loopback-unsteady", "efa:rdmap90s0", "warn")]
    assert "efa:rdmap90s0" not in found.passed


def test_changed_data_is_a_failure(run_dir: str) -> None:
    start(run_dir, {**dict.fromkeys(DEVICES, "pass"), "rdmap90s0": "changed"})
    assert findings(last(run_dir)) == [(FAIL, "efa.loopback-failed", "efa:rdmap90s0", "replace")]


def test_where_no_traffic_comes_through_at_all_it_is_the_sites_and_soon_given_up(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_efa, "TRY_S", 1.0)
    folder = start(run_dir, dict.fromkeys([*DEVICES, "rdmap90s0"], "hang"))
    found = last(run_dir)
    assert (found.outcome, findings(found)) == (DONE, [(WARN, "efa.loopback-none", "node", "warn")])
    tried = {line.split(" -d ")[1].split()[0] for line in (folder / "ran").read_text().splitlines()}
    assert len(tried) == 4


@pytest.mark.parametrize("how", ["no-domain", "nothing"])
def test_what_says_nothing_of_traffic_is_not_known(run_dir: str, how: str) -> None:
    start(run_dir, {"rdmap79s0": how})
    found = last(run_dir)
    assert (found.outcome, findings(found)) == (
        BROKE,
        [(UNKNOWN, "efa.loopback-not-tested", "node", "none")],
    )


def test_a_tool_that_refuses_our_options_is_asked_once(run_dir: str) -> None:
    folder = Path(run_dir).parent / "efa"
    folder.mkdir()
    (folder / "refuse").touch()
    start(run_dir, dict.fromkeys(DEVICES, "pass"))
    found = last(run_dir)
    assert (found.outcome, findings(found)) == (
        BROKE,
        [(UNKNOWN, "efa.loopback-not-tested", "node", "none")],
    )
    assert len((folder / "ran").read_text().splitlines()) == 1


def test_without_a_device_or_a_tool_nothing_is_known(run_dir: str) -> None:
    start(run_dir, {})
    found = last(run_dir)
    assert (found.outcome, findings(found)) == (BROKE, [(UNKNOWN, "efa.loopback-not-tested", "node", "none")])
    assert "fi_info lists no EFA device" in found.said


def test_a_tool_that_cannot_be_started_is_not_known(run_dir: str) -> None:
    order = Order(node_of(run_dir), run_dir, ("/nonexistent/fi_info", "/nonexistent/fi_pingpong"), EFA, "b", 5.0)
    assert slow_run.start(order, idle=str)
    assert "cannot be started" in last(run_dir).said


def test_a_job_ends_it_at_any_moment_and_nothing_of_it_stays(run_dir: str) -> None:
    folder = start(run_dir, dict.fromkeys(DEVICES, "hang"))
    until(lambda: (folder / "ran").exists() and len((folder / "ran").read_text().splitlines()) > 1, "both talk")
    who = slow_state.running(run_dir)
    assert who is not None
    assert slow.end_running(run_dir, 20.0)
    assert slow_end.alive(who) == []
    assert last(run_dir).outcome == ENDED
    assert last(run_dir).items == ()


def test_what_stays_of_it_is_named_as_what_it_is(run_dir: str) -> None:
    from slurm_ext.config.model import Settings
    from slurm_ext.gate.local import Look
    from slurm_ext.gate.model import Facts, conclude

    me = slow_end.read(os.getpid())
    assert me is not None
    look = Look(conclude(()), Facts(), (), 0.0)
    for level, id_ in ((EFA, "efa.loopback-stays"), ("r1", "dcgm.stays")):
        who = slow_state.Running(999_999_999, me.start, "ab" * 16, slow_state.machine_boot_id(), level)
        slow_state.write_running(run_dir, who)
        assert slow_end.stays(look, Settings(), run_dir).verdict.rule == id_
    slow_state.remove_running(run_dir)


def test_the_tools_are_those_of_the_efa_installer_and_both(tmp_path: Path) -> None:
    assert slow_due.efa_tools(str(tmp_path)) == ()
    folder = tmp_path / "opt/amazon/efa/bin"
    pair = pingpong.install(folder, {})
    assert slow_due.efa_tools(str(tmp_path)) == pair
    (folder / "fi_pingpong").chmod(0o777)
    assert slow_due.efa_tools(str(tmp_path)) == (), "others may write it"

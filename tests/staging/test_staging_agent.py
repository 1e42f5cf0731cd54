"""The agent: moves what is whole, as its owner, once, again after any crash, and never more than the mode allows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from staging_site import StagingSite
from staging_trees import picture, write_tree

from slurm_ext import events
from slurm_ext.config import snapshot
from slurm_ext.errors import LackingError
from slurm_ext.staging import find, nvme
from slurm_ext.staging.agent import Agent

ROOT = Path(__file__).parents[2]
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")

#: How often the agent is killed at a random moment; `make soak` kills it for hours.
KILLS = int(os.environ.get("FMSLURM_SOAK_KILLS", "12"))


def _once(site: StagingSite, node: str = "n0") -> int:
    agent = Agent(lambda: site.settings, node)
    try:
        return agent.run_once()
    finally:
        agent.close()


def _start(site: StagingSite, node: str = "n0", *more: str) -> subprocess.Popen[bytes]:
    """Start the real daemon, with the settings as a pushed snapshot."""
    return subprocess.Popen([ROOT / "bin" / "fmslurm-agent", *_arguments(site, node), *more])


def _arguments(site: StagingSite, node: str = "n0") -> list[str]:
    path = site.root / "snapshot.json"
    snapshot.write(str(path), site.settings)
    return ["--config", str(path), "--node", node]


def _await(what: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Wait for something that another process does; look often, since there is nothing to wait on."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def _events(site: StagingSite, node: str = "n0") -> list[events.Event]:
    return list(events.read(str(site.root / "log" / node / "events.jsonl")))


def test_one_round_moves_all_there_is(site: StagingSite) -> None:
    checkpoints = site.trainer()
    with checkpoints.step(5) as folder:
        write_tree(folder)
        before = picture(folder)
    assert _once(site) == 0
    assert picture(site.shared / "ckpt" / "step-5") == before
    told = _events(site)
    assert [event.phase for event in told if event.event == "ckpt.move"] == ["intent", "done"]
    assert [(event.job, event.data["tier"]) for event in told if event.event == "ckpt.complete"] == [("12", "lustre")]
    status = json.loads((site.root / "run" / "n0" / "staging.json").read_text())
    assert status["shards"][0]["tiers"]["lustre"]["state"] == "complete"
    assert _once(site) == 0
    assert len(_events(site)) == len(told)  # a second round finds nothing to do


@pytest.mark.parametrize("mode", ["off", "shadow", "warn"])
def test_only_enforce_moves_anything(make_site: Callable[..., StagingSite], mode: str) -> None:
    site = make_site(mode=mode)
    with site.trainer().step(5):
        pass
    assert _once(site) == 4
    assert list(site.shared.iterdir()) == []
    assert [event.dry_run for event in _events(site)] == ([] if mode == "off" else [True])


def test_a_checkpoint_of_two_nodes_is_visible_once_both_are_in(make_site: Callable[..., StagingSite]) -> None:
    site = make_site(nodes=("n0", "n1"))
    for rank, node in enumerate(("n0", "n1")):
        with site.trainer(node).step(5, shard=rank, world=2) as folder:
            Path(folder, f"rank-{rank}").write_bytes(bytes([rank]))
    assert _once(site, "n0") == 4
    assert not (site.shared / "ckpt" / "step-5").exists()
    assert _once(site, "n1") == 0
    assert sorted(picture(site.shared / "ckpt" / "step-5")) == ["rank-0", "rank-1"]
    assert _once(site, "n0") == 0


def test_a_second_agent_of_a_node_is_refused(site: StagingSite) -> None:
    agent = Agent(lambda: site.settings, "n0")
    try:
        with pytest.raises(LackingError, match="runs already"):
            Agent(lambda: site.settings, "n0")
    finally:
        agent.close()
    done = _start(site, "n0", "--once")
    assert done.wait(120) == 0  # the lock goes with its holder


def test_a_client_wakes_the_agent_and_sigterm_ends_it(site: StagingSite) -> None:
    checkpoints = site.trainer()
    seldom = "from slurm_ext.staging import __main__, agent; agent.SCAN_EVERY_S = 3600.0; sys.exit(__main__.main(sys.argv[1:]))"
    daemon = subprocess.Popen([sys.executable, "-c", f"import sys; {seldom}", *_arguments(site)], cwd=ROOT)
    try:
        _await((site.root / "run" / "n0" / "staging.json").exists)
        with checkpoints.step(5) as folder:
            Path(folder, "a").write_bytes(b"x")
        _await((site.shared / "ckpt" / "step-5").exists)  # woken: a look without a word comes in an hour
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0


def test_killed_at_random_moments_and_run_again_everything_ends_staged(site: StagingSite) -> None:
    checkpoints, pictures, generator = site.trainer(), {}, random.Random(5)
    for step in range(6):
        with checkpoints.step(step) as folder:
            write_tree(folder, seed=step)
            pictures[step] = picture(folder)

    def visible_are_whole() -> int:
        folder = site.shared / "ckpt"
        names = [name for name in os.listdir(folder) if name.startswith("step-")] if folder.exists() else []
        for name in names:
            assert picture(folder / name) == pictures[int(name.partition("-")[2])]
        return len(names)

    before = 0
    for _ in range(KILLS):
        daemon = _start(site)
        time.sleep(generator.uniform(0.02, 0.3))  # the moment of the kill is what is tried here
        daemon.kill()
        daemon.wait()
        now = visible_are_whole()
        assert now >= before
        before = now
    # A child of a killed agent may live for an instant; its lock on the shard goes with it.
    _await(lambda: _start(site, "n0", "--once").wait(120) == 0)
    assert visible_are_whole() == 6
    assert [name for name in os.listdir(site.shared / "ckpt") if not name.startswith("step-")] == []


@needs_root
def test_a_users_checkpoint_is_moved_as_that_user(site: StagingSite) -> None:
    folder = nvme.prepare_run_folder(site.settings, "n0", "run", NOBODY)
    assert (os.stat(folder).st_uid, os.stat(os.path.dirname(folder)).st_mode & 0o777) == (NOBODY, 0o700)
    _as_nobody(
        "from slurm_ext.staging import Checkpoints\n"
        f"c = Checkpoints(run='run', directory={str(site.shared / 'ckpt')!r}, nvme={folder!r}, attempt='lab/1-0')\n"
        "with c.step(5) as f:\n"
        "    open(f + '/a', 'wb').write(b'x' * 1000)\n"
    )
    assert _once(site) == 0
    final = site.shared / "ckpt" / "step-5"
    assert {path.lstat().st_uid for path in (final, *final.rglob("*"))} == {NOBODY}
    found = find.newest_complete(site.settings, "n0", "run", str(site.shared / "ckpt"), NOBODY)
    assert found is not None
    assert (found.step, found.tier) == (5, "nvme")


_ATTACKS = """
import os, shutil
from slurm_ext.staging import Checkpoints

attack, shard, step, secret, target = {attack!r}, {shard!r}, {step!r}, {secret!r}, {target!r}
with Checkpoints(run="run", directory=target, nvme={nvme!r}, attempt="lab/1-0").step(5) as folder:
    os.mkdir(folder + "/sub")
    for name in ("/key", "/sub/key"):
        with open(folder + name, "wb") as stream:
            stream.write(b"of the user !")
if attack == "file":
    os.unlink(shard + "/key")
    os.symlink(secret + "/key", shard + "/key")
elif attack == "folder":
    shutil.rmtree(shard + "/sub")
    os.symlink(secret, shard + "/sub")
elif attack == "shard":
    os.rename(shard, shard + ".away")
    os.symlink(secret, shard)
elif attack == "step":
    os.rename(step, step + ".away")
    os.symlink(secret, step)
elif attack == "manifest":
    os.unlink(shard + "/.fmslurm-shard.json")
    os.symlink(secret + "/key", shard + "/.fmslurm-shard.json")
elif attack == "target":
    os.symlink(secret, target)
"""


@needs_root
@pytest.mark.parametrize("attack", ["file", "folder", "shard", "step", "manifest", "foreign", "target"])
def test_no_link_of_a_user_makes_root_read_or_write_elsewhere(site: StagingSite, attack: str) -> None:
    secret = site.root / "secret"
    secret.mkdir(mode=0o700)
    (secret / "key").write_bytes(b"of root alone")
    (secret / "key").chmod(0o600)
    folder = nvme.prepare_run_folder(site.settings, "n0", "run", NOBODY)
    shard = f"{folder}/step-5/lab_1-0/shard-0"
    target = str(site.shared / "ckpt")
    _as_nobody(
        _ATTACKS.format(
            attack=attack, shard=shard, step=f"{folder}/step-5", secret=str(secret), target=target, nvme=folder
        )
    )
    if attack == "foreign":
        os.chown(f"{shard}/key", 0, 0)
        os.chmod(f"{shard}/key", 0o600)
    _once(site)
    everything = [path for path in site.shared.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not any(b"of root alone" in path.read_bytes() for path in everything)
    assert not (site.shared / "ckpt" / "step-5").exists()
    assert sorted(path.name for path in secret.iterdir()) == ["key"]


@needs_root
def test_a_link_that_is_part_of_a_checkpoint_stays_a_link(site: StagingSite) -> None:
    with site.trainer().step(5) as folder:
        Path(folder, "shadow").symlink_to("/etc/shadow")
    assert _once(site) == 0
    assert os.readlink(site.shared / "ckpt" / "step-5" / "shadow") == "/etc/shadow"


def test_a_folder_that_cannot_be_written_is_tried_again_and_said_once(site: StagingSite) -> None:
    (site.shared / "ckpt").write_bytes(b"a file where the folder should be")
    with site.trainer().step(5):
        pass
    assert _once(site) == 4
    assert _once(site) == 4
    names = [event.event for event in _events(site)]
    assert names.count("ckpt.tier-down") == 2  # once by each of the two agents
    (site.shared / "ckpt").unlink()
    assert _once(site) == 0


def test_a_mover_that_stands_still_is_ended_and_tried_again(site: StagingSite) -> None:
    with site.trainer().step(5) as folder:
        Path(folder, "a").write_bytes(b"x")

    def hang(name: str) -> None:
        if name == "copied a":
            signal.pause()

    agent = Agent(lambda: site.settings, "n0", point=hang, stall_s=0.2)
    try:
        assert agent.run_once() == 4
        (progress,) = (one for (kind, _), one in agent.known.items() if kind == "lustre")
        assert "nothing moved" in progress.words
    finally:
        agent.close()
    assert _once(site) == 0


def test_the_newest_complete_one_is_the_same_for_every_node(make_site: Callable[..., StagingSite]) -> None:
    site = make_site(nodes=("n0", "n1"))
    trainer = site.trainer("n0")
    with trainer.step(5):
        pass
    assert _once(site, "n0") == 0
    with trainer.step(6):  # on the NVMe of n0 alone
        pass
    asked = ("run", str(site.shared / "ckpt"), os.geteuid())
    on_n0, on_n1 = (find.newest_complete(site.settings, node, *asked) for node in ("n0", "n1"))
    assert on_n0 is not None
    assert on_n1 is not None
    assert (on_n0.step, on_n0.tier) == (5, "nvme")
    assert (on_n1.step, on_n1.tier) == (5, "lustre")
    alone = find.newest_complete(site.settings, "n0", *asked, single_node=True)
    assert alone is not None
    assert (alone.step, alone.tier) == (6, "nvme")
    head = find.newest_complete(site.settings, "", *asked)
    assert head is not None
    assert head.tier == "lustre"
    assert find.newest_complete(site.settings, "n1", "other", str(site.shared / "none"), os.geteuid()) is None


def test_no_answer_is_not_none(site: StagingSite) -> None:
    with pytest.raises(LackingError, match="did not answer"):
        find.newest_complete(site.settings, "n0", "run", str(site.shared), os.geteuid(), timeout_s=0.0)


def test_nvme_that_is_not_mounted_is_not_made(site: StagingSite) -> None:
    (site.nvme / "n0").rmdir()
    with pytest.raises(LackingError):
        nvme.prepare_run_folder(site.settings, "n0", "run", os.geteuid())
    assert not (site.nvme / "n0").exists()


def _as_nobody(code: str) -> None:
    """Run Python code as another user, as a job would."""
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            exec(code, {})
            ended = 0
        finally:
            if ended:
                traceback.print_exc()
            os._exit(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

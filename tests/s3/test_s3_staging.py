"""Checkpoints in a real S3 server: complete only by the manifest, one winner, killed anywhere and run again, restored bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from s3_support import Gate

from slurm_ext.config import snapshot
from slurm_ext.config.model import Mode, Settings, Site, Staging, Tier
from slurm_ext.errors import ConfigError, UntrustedFileError
from slurm_ext.staging import CheckpointRefused, Checkpoints, find, nvme, restore, s3, s3_commit
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.agent import Agent
from slurm_ext.staging.checksum import of_bytes
from slurm_ext.staging.identity import call_as
from slurm_ext.staging.local import Point, open_checked
from slurm_ext.staging.model import COMPLETE, COPIED, FILE, LINK, REFUSED, WAITING, Entry, Manifest

sys.path.insert(0, str(Path(__file__).parents[1] / "staging"))
from staging_trees import killed_at, picture, write_tree

pytestmark = pytest.mark.s3
ROOT = Path(__file__).parents[2]
UID = os.geteuid()


def _shard(folder: Path, number: int = 0, world: int = 1, attempt: str = "lab/12-0", step: int = 5) -> Manifest:
    folder.mkdir(parents=True, exist_ok=True)
    return Manifest("run", step, attempt, world, number, entries=manifests.walk(str(folder), shard=number))


def _put(store: s3.Store, folder: Path, shard: Manifest, point: Point = lambda _: None) -> str:
    def open_file(entry: Entry) -> int:
        return open_checked(os.path.join(folder, entry.path), entry, uid=UID)

    return s3_commit.put_shard(store, UID, shard, open_file, point=point).state


def test_up_and_down_again_bit_for_bit(store: s3.Store, tmp_path: Path) -> None:
    folder = tmp_path / "shard"
    folder.mkdir()
    write_tree(str(folder))
    shard = _shard(folder)
    assert _put(store, folder, shard) == COMPLETE
    assert s3.list_steps(store, UID, "run") == [5]
    whole = s3.read_manifest(store, UID, "run", 5)
    assert whole is not None
    assert restore.verify_store(store, UID, whole) == []
    path = restore.from_store(store, UID, whole, str(tmp_path / "back"))
    assert picture(path) == picture(folder)
    assert next(find.iter_shared(str(tmp_path / "back"))).step == 5
    with pytest.raises(CheckpointRefused):
        restore.from_store(store, UID, whole, str(tmp_path / "back"))
    assert os.listdir(tmp_path / "back") == ["step-5"]


def test_a_checkpoint_is_there_when_the_last_shard_is_in(store: s3.Store, tmp_path: Path) -> None:
    shards = []
    for number in range(3):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / f"rank-{number}").write_bytes(bytes([number]) * 1000)
        shards.append((folder, _shard(folder, number, 3)))
    assert _put(store, *shards[0]) == COPIED
    assert _put(store, *shards[2]) == COPIED
    assert s3.read_manifest(store, UID, "run", 5) is None
    assert _put(store, *shards[1]) == COPIED  # in, but the node of shard 0 decides
    assert s3.read_manifest(store, UID, "run", 5) is None
    assert _put(store, *shards[0]) == COMPLETE
    assert _put(store, *shards[2]) == COMPLETE
    whole = s3.read_manifest(store, UID, "run", 5)
    assert whole is not None
    assert [entry.path for entry in whole.entries] == ["rank-0", "rank-1", "rank-2"]


def test_of_two_attempts_one_wins_and_nothing_is_mixed(store: s3.Store, tmp_path: Path) -> None:
    folder = tmp_path / "shard"
    folder.mkdir()
    (folder / "a").write_bytes(b"first")
    first = _shard(folder)
    assert _put(store, folder, first) == COMPLETE
    (folder / "a").write_bytes(b"second")
    assert _put(store, folder, _shard(folder, attempt="lab/12-1")) == REFUSED
    whole = s3.read_manifest(store, UID, "run", 5)
    assert whole is not None
    assert whole.attempt == "lab/12-0"
    assert s3.get_bytes(store, store.attempt_key(UID, whole) + "a") == b"first"


def test_of_many_who_commit_at_once_one_wins(store: s3.Store) -> None:
    won: list[bool] = []
    start = threading.Barrier(6)

    def try_it(number: int) -> None:
        start.wait()
        try:
            won.append(s3.put_bytes(store, f"{store.prefix}one", b"%d" % number, only_new=True))
        except s3.StoreError:
            won.append(False)

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1


def test_killed_at_every_step_of_an_upload(tier: Tier, tmp_path: Path) -> None:
    folder = tmp_path / "shard"
    folder.mkdir()
    for name in ("a", "b", "sub/c"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode() * 1000)
    shard = _shard(folder)

    def upload(point: Point) -> None:
        own = s3.connect(tier, Settings())  # in the child: a client does not survive a fork
        _put(own, folder, shard, point)

    number = 0
    while killed_at(number, upload):
        own = s3.connect(tier, Settings())
        whole = s3.read_manifest(own, UID, "run", 5)
        if whole is not None:
            assert restore.verify_store(own, UID, whole) == []
        own.client.close()
        number += 1
    assert number >= 4
    own = s3.connect(tier, Settings())
    assert _put(own, folder, shard) == COMPLETE
    whole = s3.read_manifest(own, UID, "run", 5)
    assert whole is not None
    assert picture(restore.from_store(own, UID, whole, str(tmp_path / "back"))) == picture(folder)
    own.client.close()


def test_a_large_file_goes_in_parts_and_leaves_none_where_it_fails(
    store: s3.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12 << 20))
    key = store.prefix + "large"
    with open(path, "rb") as stream:
        text = s3.put_file(store, key, stream.fileno(), path.stat().st_size)
        assert text == of_bytes(path.read_bytes())
        assert s3.holds(store, key, path.stat().st_size, text) is True
        assert b"".join(s3.iter_blocks(store, key)) == path.read_bytes()

        def fail(name: str) -> None:
            if name == "sent part 2":
                raise OSError("the disk died")

        with pytest.raises(OSError, match="the disk died"):
            s3.put_file(store, store.prefix + "other", stream.fileno(), path.stat().st_size, point=fail)
    left = store.client.list_multipart_uploads(Bucket=store.bucket, Prefix=store.prefix).get("Uploads", [])
    assert left == []


def test_a_damaged_object_is_seen_and_not_restored(store: s3.Store, tmp_path: Path) -> None:
    folder = tmp_path / "shard"
    folder.mkdir()
    (folder / "a").write_bytes(b"right")
    shard = _shard(folder)
    assert _put(store, folder, shard) == COMPLETE
    whole = s3.read_manifest(store, UID, "run", 5)
    assert whole is not None
    s3.put_bytes(store, store.attempt_key(UID, whole) + "a", b"wrong")
    assert restore.verify_store(store, UID, whole)
    with pytest.raises(CheckpointRefused, match="crc"):
        restore.from_store(store, UID, whole, str(tmp_path / "back"))
    assert os.listdir(tmp_path / "back") == []


def test_a_file_that_changes_while_it_goes_up_is_no_checkpoint(store: s3.Store, tmp_path: Path) -> None:
    folder = tmp_path / "shard"
    folder.mkdir()
    (folder / "a").write_bytes(b"right")
    shard = _shard(folder)
    (folder / "a").write_bytes(b"later!")
    with pytest.raises(CheckpointRefused):
        _put(store, folder, shard)
    assert s3_commit.final_state(store, UID, shard).state == WAITING


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    path.chmod(0o644)
    with pytest.raises(UntrustedFileError):
        s3.read_credentials(str(path))
    path.chmod(0o600)
    assert s3.read_credentials(str(path)) == {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    path.write_text("nothing")
    with pytest.raises(ConfigError):
        s3.read_credentials(str(path))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b/p", ("b", "p/")),
        ("s3://b", ("b", "")),
        ("s3://b/p/q/", ("b", "p/q/")),
        ("http://b", None),
        ("s3://", None),
    ],
)
def test_places(url: str, expected: tuple[str, str] | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError):
            s3.parse_url(url)
    else:
        assert s3.parse_url(url) == expected


@pytest.mark.parametrize("path", ["a/b.pt", "größe"])
def test_keys_are_the_paths_themselves(path: str) -> None:
    assert s3.object_name(path) == path


@pytest.mark.parametrize("path", [os.fsdecode(b"\xff"), "new\nline", "deep/" * 200 + "x"])
def test_what_cannot_be_a_key_gets_one_of_ours(path: str) -> None:
    assert s3.object_name(path).startswith(".fmslurm-name-")


def _settings(root: Path, tier: Tier) -> Settings:
    for name in ("nvme", "shared"):
        (root / name).mkdir(exist_ok=True)
    return Settings(
        site=Site(state_dir=f"{root}/state", run_dir=f"{root}/run", log_dir=f"{root}/log"),
        mode=Mode(staging="enforce"),
        staging=Staging(tiers=(Tier("nvme", "nvme", f"{root}/nvme"), Tier("l", "lustre", f"{root}/shared"), tier)),
    )


def _await(what: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _daemon(root: Path, settings: Settings) -> subprocess.Popen[bytes]:
    snapshot.write(str(root / "snapshot.json"), settings)
    return subprocess.Popen([ROOT / "bin" / "fmslurm-agent", "--config", root / "snapshot.json", "--node", "n0"])


def _states(root: Path) -> list[dict[str, dict[str, object]]]:
    try:
        return [shard["tiers"] for shard in json.loads((root / "run" / "staging.json").read_text())["shards"]]
    except FileNotFoundError:
        return []


def test_s3_goes_down_and_comes_back_and_the_job_notices_nothing(
    gate: Callable[[], Gate], tier: Tier, store: s3.Store, tmp_path: Path
) -> None:
    door = gate()
    settings = _settings(tmp_path, tier._replace(endpoint=door.endpoint))
    folder = nvme.prepare_run_folder(settings, "n0", "run", UID)
    checkpoints = Checkpoints(
        run="run",
        directory=f"{tmp_path}/shared/ckpt",
        nvme=folder,
        attempt="lab/12-0",
        environment={"FMSLURM_CKPT_SOCKET": f"{tmp_path}/run/agent.sock"},
    )
    door.shut()
    daemon = _daemon(tmp_path, settings)
    try:
        for step in (1, 2):
            with checkpoints.step(step) as mine:
                Path(mine, "a").write_bytes(b"%d" % step * 1000)
        _await(lambda: any(tiers.get("s3", {}).get("failures") for tiers in _states(tmp_path)))
        _await(lambda: len(list((tmp_path / "shared" / "ckpt").glob("step-*"))) == 2)  # not held up by S3
        assert s3.list_steps(store, UID, "run") == []
        door.open()
        _await(lambda: len([s for s in (1, 2) if s3.read_manifest(store, UID, "run", s)]) == 2)
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(120) == 0
    told = [json.loads(line)["event"] for line in (tmp_path / "log" / "events.jsonl").read_text().splitlines()]
    assert told.count("ckpt.tier-down") == 1
    assert told.count("ckpt.tier-back") == 1


def test_the_agent_killed_while_it_uploads_ends_well_when_it_runs_again(
    tier: Tier, store: s3.Store, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, tier)
    folder = nvme.prepare_run_folder(settings, "n0", "run", UID)
    checkpoints = Checkpoints(run="run", directory=f"{tmp_path}/shared/ckpt", nvme=folder, attempt="a", environment={})
    with checkpoints.step(1) as mine:
        write_tree(mine)
        before = picture(mine)
    for delay_s in (0.2, 0.5, 0.8):
        daemon = _daemon(tmp_path, settings)
        time.sleep(delay_s)  # the moment of the kill is what is tried here
        daemon.kill()
        daemon.wait()
        whole = s3.read_manifest(store, UID, "run", 1)
        assert whole is None or restore.verify_store(store, UID, whole) == []
    daemon = _daemon(tmp_path, settings)
    try:
        _await(lambda: s3.read_manifest(store, UID, "run", 1))
    finally:
        daemon.terminate()
        daemon.wait(120)
    whole = s3.read_manifest(store, UID, "run", 1)
    assert whole is not None
    assert picture(restore.from_store(store, UID, whole, str(tmp_path / "back"))) == before
    assert sum(entry.kind == FILE for entry in whole.entries) >= 8


@pytest.mark.skipif(UID != 0, reason="acting as another user needs root")
def test_root_uploads_nothing_that_the_user_could_not_read(tier: Tier, store: s3.Store, open_folder: Path) -> None:
    nobody, root = 65534, open_folder
    secret = root / "secret"
    secret.write_bytes(b"of root alone")
    secret.chmod(0o600)
    settings = _settings(root, tier)
    folder = nvme.prepare_run_folder(settings, "n0", "run", nobody)

    def save() -> bytes:
        for step, name in enumerate(("kept", "swapped", "owned")):
            with Checkpoints(run="run", nvme=folder, attempt="a", environment={}).step(step) as mine:
                Path(mine, "a").write_bytes(b"of the user !")
                if name == "kept":
                    Path(mine, "link").symlink_to(secret)
            if name == "swapped":
                victim = Path(folder, f"step-{step}", "a", "shard-0", "a")
                victim.unlink()
                victim.symlink_to(secret)
        return b"saved"

    assert call_as(nobody, nobody, save, timeout_s=120.0) == b"saved"
    os.chown(f"{folder}/step-2/a/shard-0/a", 0, 0)
    agent = Agent(
        lambda: settings._replace(staging=settings.staging._replace(tiers=(settings.staging.tiers[0], tier))), "n0"
    )
    try:
        agent.run_once()
    finally:
        agent.close()
    assert [step for step in range(3) if s3.read_manifest(store, nobody, "run", step)] == [0]
    kept = s3.read_manifest(store, nobody, "run", 0)
    assert kept is not None
    assert [entry.target for entry in kept.entries if entry.kind == LINK] == [str(secret)]
    for key in s3.list_sizes(store, store.prefix):
        assert b"of root alone" not in (s3.get_bytes(store, store.prefix + key) or b"")

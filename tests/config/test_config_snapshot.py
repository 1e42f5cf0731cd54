"""The pushed snapshot: trusted or refused, last good kept, a dead share never holds a hook."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from slurm_ext import shared
from slurm_ext.config import modes, snapshot
from slurm_ext.config.model import ROOMS, Gate, Mode, Settings, Staging, Tier
from slurm_ext.config.modes import Heartbeat, Off
from slurm_ext.config.snapshot import LAST_GOOD_FILE, SNAPSHOT_FILE, View, from_json, hook_settings, push, read, view
from slurm_ext.errors import ConfigError, UntrustedFileError

NOW = 1_900_000_000.0
SITE = Settings(
    mode=Mode(gate="enforce", canary="n[1-3]"),
    gate=Gate(deadline_s=7.5, nvme_dirs=("/nvme",)),
    staging=Staging(tiers=(Tier("nvme", "nvme", "/nvme/%n"), Tier("s3", "s3", "s3://bucket/x"))),
    source_hash="a" * 64,
)


@pytest.fixture
def share(tmp_path: Path) -> Path:
    folder = tmp_path / "share"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "state"


def seen(share: Path, local: Path, now: float = NOW, timeout_s: float = 60.0) -> View:
    return view(str(share), str(local), timeout_s=timeout_s, now=now)


def test_what_is_pushed_is_what_is_read(share: Path) -> None:
    first = push(SITE, str(share))
    second = push(SITE, str(share))
    assert (first.generation, second.generation) == (1, 2)
    assert read(str(share / SNAPSHOT_FILE)) == second
    assert (share / SNAPSHOT_FILE).stat().st_mode & 0o777 == 0o644
    assert [path.name for path in (share / "config").iterdir()] == ["snapshot.json"]


def test_a_push_without_a_share_says_so() -> None:
    with pytest.raises(ConfigError, match=r"site\.share"):
        push(SITE, "")


def test_a_push_repairs_a_broken_snapshot(share: Path) -> None:
    (share / "config").mkdir(mode=0o755)
    (share / SNAPSHOT_FILE).write_text("{")
    push(SITE, str(share))
    assert read(str(share / SNAPSHOT_FILE)).gate == SITE.gate


def spoil_mode(path: Path) -> None:
    path.chmod(0o666)


def spoil_group(path: Path) -> None:
    path.chmod(0o664)


def spoil_owner(path: Path) -> None:
    os.chown(path, 12345, -1)


def spoil_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def spoil_link(path: Path) -> None:
    path.rename(path.with_name("real.json"))
    path.symlink_to("real.json")


def spoil_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def spoil_size(path: Path) -> None:
    path.write_bytes(b" " * (5 << 20))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_mode,
        spoil_group,
        pytest.param(spoil_owner, marks=needs_root),
        spoil_folder,
        spoil_link,
        spoil_fifo,
        spoil_size,
    ],
)
def test_what_others_could_have_written_is_refused(spoil, share: Path, local: Path) -> None:
    push(SITE, str(share))
    spoil(share / SNAPSHOT_FILE)
    with pytest.raises(UntrustedFileError):
        read(str(share / SNAPSHOT_FILE))
    assert seen(share, local).settings.mode == Mode(*("off",) * len(ROOMS))


def test_a_missing_snapshot_is_a_config_error(share: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(str(share / SNAPSHOT_FILE))


def altered(**changes: object) -> str:
    data = json.loads(snapshot.to_json(SITE, pushed=NOW))
    for path, value in changes.items():
        section, name = path.split("__")
        data["settings"][section][name] = value
    data["hash"] = snapshot._hash(data["settings"])
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "{}",
        '{"schema": 1}',
        '{"schema": 1, "settings": 3, "generation": 1, "source_hash": "", "hash": ""}',
        snapshot.to_json(SITE, pushed=NOW).decode().replace('"schema": 1', '"schema": 2'),
        snapshot.to_json(SITE, pushed=NOW).decode().replace("7.5", "8.5"),
        altered(gate__deadline_s="7.5"),
        altered(gate__deadline_s=True),
        altered(gate__deadline_s=-1),
        altered(gate__deadline_s=float("nan")),
        altered(gate__nvme_dirs="/nvme"),
        altered(gate__nvme_dirs=["nvme"]),
        altered(mode__gate="on"),
        altered(mode__gate=False),
        altered(mode__canary="n["),
        altered(burnin__min_nodes=2.0),
        altered(burnin__port_range=[5000, 4000]),
        altered(staging__tiers=[{"name": "a", "kind": "s3", "url": "/x"}]),
        altered(staging__tiers=[3]),
        "[" * 100_000,
    ],
)
def test_an_invalid_snapshot_is_a_config_error_and_the_last_good_one_holds(text: str, share: Path, local: Path) -> None:
    with pytest.raises(ConfigError):
        from_json(text)
    push(SITE, str(share))
    assert seen(share, local).settings.gate == SITE.gate
    (share / SNAPSHOT_FILE).write_text(text)
    after = seen(share, local)
    assert after.settings == SITE._replace(generation=1)
    assert "last good" in after.why


@given(st.text(max_size=50) | st.binary(max_size=50))
def test_no_content_raises_anything_else(content: str | bytes) -> None:
    with pytest.raises(ConfigError):
        from_json(content)


@budget(max_examples=100)
@given(
    st.sampled_from(["gate__deadline_s", "mode__gate", "gate__nvme_dirs", "staging__tiers", "burnin__port"]), st.data()
)
def test_no_value_raises_anything_else(at: str, data: st.DataObject) -> None:
    anything = st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda s: st.lists(s, max_size=2)
    )
    with contextlib.suppress(ConfigError):
        from_json(altered(**{at: data.draw(anything)}))


def test_keys_of_a_newer_version_are_ignored() -> None:
    assert from_json(altered(gate__brand_new=5)) == SITE


def test_without_any_snapshot_every_room_is_off(share: Path, local: Path) -> None:
    for where in (share, share / "missing"):
        found = seen(where, local)
        assert {getattr(found.settings.mode, room) for room in ROOMS} == {"off"}
        assert "every room off" in found.why
    settings, why = hook_settings("", str(local))
    assert settings.mode.gate == "off"
    assert "no share" in why
    assert not local.exists()


def test_a_share_that_is_gone_leaves_the_last_good_settings_and_switches(share: Path, local: Path) -> None:
    push(SITE, str(share))
    snapshot.write_atomic(str(share / "config/off/burnin.json"), json.dumps({"until": NOW + 60}))
    assert seen(share, local).settings.mode.burnin == "off"
    share.rename(share.with_name("unmounted"))
    after = seen(share, local)
    assert after.settings.gate == SITE.gate
    assert after.off == (Off("burnin", NOW + 60),)
    assert "last good" in after.why


def test_the_folder_below_a_share_that_is_not_mounted_clears_no_switch(share: Path, local: Path) -> None:
    push(SITE, str(share))
    snapshot.write_atomic(str(share / "config/off/burnin.json"), json.dumps({"until": NOW + 60}))
    assert seen(share, local).settings.mode.burnin == "off"
    share.rename(share.with_name("unmounted"))
    share.mkdir(mode=0o755)
    for _ in range(2):
        after = seen(share, local)
        assert (after.settings.mode.burnin, after.settings.gate) == ("off", SITE.gate)


def test_passing_hooks_write_nothing(share: Path, local: Path) -> None:
    push(SITE, str(share))
    seen(share, local)
    before = (local / LAST_GOOD_FILE).stat()
    seen(share, local)
    after = (local / LAST_GOOD_FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"off": 3}', '{"snapshot": 3, "off": [[1]]}', "[" * 100_000])
def test_a_broken_cache_counts_as_none(content: str, share: Path, local: Path) -> None:
    local.mkdir(mode=0o755)
    (local / LAST_GOOD_FILE).write_text(content)
    assert seen(share, local).settings.mode.gate == "off"
    push(SITE, str(share))
    assert seen(share, local).settings.gate == SITE.gate


def test_a_cache_that_cannot_be_written_fails_nothing(share: Path, tmp_path: Path) -> None:
    push(SITE, str(share))
    (tmp_path / "file").write_text("")
    assert seen(share, tmp_path / "file").settings.gate == SITE.gate


def test_switches_and_heartbeat_come_along(share: Path, local: Path) -> None:
    push(SITE, str(share))
    snapshot.write_atomic(str(share / "config/off/all.json"), json.dumps({"until": NOW + 1, "reason": "r", "by": "b"}))
    snapshot.write_atomic(
        str(share / "controller/heartbeat.json"), json.dumps({"time": NOW, "mode": "enforce", "pid": 7})
    )
    found = seen(share, local)
    assert found.off == (Off("all", NOW + 1, "r", "b"),)
    assert found.heartbeat == Heartbeat(NOW, "enforce", 7)
    assert found.settings.mode.gate == "off"
    assert seen(share, local, now=NOW + 1).settings.mode.gate == "enforce"


def _unusable(path: Path, how: str) -> None:
    if how == "cut":
        snapshot.write_atomic(str(path), "{")
    elif how == "no time":
        snapshot.write_atomic(str(path), json.dumps({"until": "soon"}))
    elif how == "a link":
        path.symlink_to("/dev/null")
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a folder":
        path.mkdir()
    else:
        path.write_text(json.dumps({"until": NOW - 1}))
        path.chmod(0o666)


@pytest.mark.parametrize("how", ["cut", "no time", "a link", "a pipe", "a folder", "writable by others"])
def test_a_switch_that_cannot_be_used_keeps_its_room_off(share: Path, local: Path, how: str) -> None:
    """Whoever threw it wanted less to be done: a full disk at three in the morning must not turn it round."""
    push(SITE, str(share))
    (share / "config/off").mkdir(parents=True, exist_ok=True)
    _unusable(share / "config/off/gate.json", how)
    found = seen(share, local)
    assert found.settings.mode.gate == "off"
    assert found.settings.mode.burnin == SITE.mode.burnin
    (switch,) = found.off
    assert switch.until == snapshot.UNTIL_MENDED_S
    assert "config/off/gate.json" in switch.reason
    assert "`fmslurm on gate`" in switch.reason
    mode, why = modes.effective_mode(found.settings, "gate", node="n1", off=found.off, now=NOW)
    assert mode == "off"
    assert "cannot be used" in why
    if how != "a folder":
        assert shared.clear_switch(str(share), "gate") is True
        assert seen(share, local).settings.mode.gate == "enforce"


def test_a_folder_of_switches_that_cannot_be_read_leaves_the_last_known_ones(
    share: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(SITE, str(share))
    snapshot.write_atomic(str(share / "config/off/gate.json"), json.dumps({"until": NOW + 9, "reason": "r"}))
    assert seen(share, local).settings.mode.gate == "off"

    def broken(share: str) -> tuple[Off, ...]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(snapshot, "read_off", broken)
    assert seen(share, local).settings.mode.gate == "off"
    assert seen(share, local.parent / "another").settings.mode.gate == "enforce"


def test_a_share_that_hangs_holds_nobody(share: Path, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child stops itself where a dead file server would hold it; what a hook sees is the same."""
    push(SITE, str(share))
    seen(share, local)
    pids = tmp_pids = share.parent / "pids"
    look = snapshot._look_at

    def stop_and_look(where: str) -> dict[str, object]:
        tmp_pids.write_text(str(os.getpid()))
        os.kill(os.getpid(), 19)  # SIGSTOP: only SIGKILL and SIGCONT reach it now
        return look(where)

    monkeypatch.setattr(snapshot, "_look_at", stop_and_look)
    begin = time.monotonic()
    found = seen(share, local, timeout_s=2.0)
    assert time.monotonic() - begin < 40.0
    assert found.settings == SITE._replace(generation=1)
    assert "no answer within 2 s" in found.why
    assert not Path(f"/proc/{pids.read_text()}").exists()

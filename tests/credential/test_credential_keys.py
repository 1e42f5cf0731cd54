"""The site's keys on disk: who may read them, how they are made, replaced and brought to a node."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from slurm_ext import command, credential_tls, keys
from slurm_ext.credential_tls import KeyAuthenticator, NoKeyError
from slurm_ext.errors import CommandNotFoundError, LackingError, UntrustedFileError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "keys")


def files(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_new_key_is_roots_alone(folder: str) -> None:
    made = keys.create(folder)
    (key,) = made.added
    assert files(folder) == [os.path.basename(key.path)]
    assert stat.S_IMODE(os.stat(key.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert credential_tls.read_keys(folder) == (key,)
    assert abs(time.time() - key.created) < 60
    assert key.expires - key.created == keys.KEY_DAYS * 86_400
    assert KeyAuthenticator(folder).ids() == (key.id,)


def test_there_is_only_one_first_key(folder: str) -> None:
    keys.create(folder)
    with pytest.raises(UsageError, match="rotate"):
        keys.create(folder)
    with pytest.raises(UsageError, match="create"):
        keys.rotate(folder + "-other")


def test_two_are_valid_at_once_and_the_newest_comes_first(folder: str) -> None:
    (first,) = keys.create(folder).added
    change = keys.rotate(folder)
    (second,) = change.added
    assert (change.kept, change.removed) == ((first,), ())
    assert KeyAuthenticator(folder).ids() == (second.id, first.id)
    change = keys.finish(folder)
    assert (change.kept, change.removed) == ((second,), (first,))
    assert [key.id for key in credential_tls.read_keys(folder)] == [second.id]


def test_a_rotation_that_is_not_ended_is_not_begun_again(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may hold the older key alone: a third one would push it out."""
    (first,) = keys.create(folder).added
    (second,) = keys.rotate(folder).added
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=f"{second.id} is new beside {first.id}.*--finish"):
            keys.rotate(folder, dry_run=dry_run)
    assert KeyAuthenticator(folder).ids() == (second.id, first.id)
    # One that has expired serves no node any more.
    monkeypatch.setattr("slurm_ext.keys.VALID_KEYS", 1)
    monkeypatch.setattr("slurm_ext.keys.time.time", lambda: second.expires + 1)
    change = keys.rotate(folder, dry_run=True)
    assert change.removed == (second, first)


def test_a_dry_run_changes_nothing(folder: str, tmp_path: Path) -> None:
    keys.create(folder, dry_run=True)
    assert not os.path.exists(folder)
    keys.create(folder)
    before = files(folder)
    keys.rotate(folder, dry_run=True)
    keys.finish(folder, dry_run=True)
    assert keys.sync(str(tmp_path / "node/keys"), folder, dry_run=True).added
    assert files(folder) == before
    assert not (tmp_path / "node").exists()


def test_a_node_comes_to_hold_exactly_what_the_folder_holds(folder: str, tmp_path: Path) -> None:
    node = str(tmp_path / "node" / "keys")
    (first,) = keys.create(folder).added
    assert [k.id for k in keys.sync(node, folder).added] == [first.id]
    assert keys.sync(node, folder).added == ()
    (second,) = keys.rotate(folder).added
    keys.sync(node, folder)
    assert KeyAuthenticator(node).ids() == (second.id, first.id)
    keys.finish(folder)
    assert [k.id for k in keys.sync(node, folder).removed] == [first.id]
    assert KeyAuthenticator(node).ids() == (second.id,)
    with pytest.raises(UsageError):
        keys.sync(node, str(tmp_path / "empty"))
    assert KeyAuthenticator(node).ids() == (second.id,)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_key_that_others_may_read_or_write_is_refused(folder: str, mode: int) -> None:
    (key,) = keys.create(folder).added
    os.chmod(key.path, mode)
    with pytest.raises(UntrustedFileError, match="root's eyes"):
        KeyAuthenticator(folder)
    with pytest.raises(UntrustedFileError):
        keys.rotate(folder)


def test_a_key_of_another_user_is_refused(folder: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    (key,) = keys.create(folder).added
    os.chown(key.path, 65534, 65534)
    with pytest.raises(UntrustedFileError):
        KeyAuthenticator(folder)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_folder_that_others_may_change_is_refused(folder: str, mode: int) -> None:
    keys.create(folder)
    os.chmod(folder, mode)
    with pytest.raises(UntrustedFileError, match="may change"):
        KeyAuthenticator(folder)


def test_links_pipes_and_a_linked_folder_are_refused(folder: str, tmp_path: Path) -> None:
    (key,) = keys.create(folder).added
    elsewhere = str(tmp_path / "elsewhere.pem")
    os.rename(key.path, elsewhere)
    os.symlink(elsewhere, key.path)
    with pytest.raises(UntrustedFileError, match="symbolic link"):
        KeyAuthenticator(folder)
    os.unlink(key.path)
    os.mkfifo(key.path, 0o600)
    with pytest.raises(UntrustedFileError, match="is no regular file"):
        KeyAuthenticator(folder)
    os.unlink(key.path)
    os.rename(elsewhere, key.path)
    os.symlink(folder, tmp_path / "linked")
    with pytest.raises(UntrustedFileError):
        KeyAuthenticator(str(tmp_path / "linked"))
    with pytest.raises(LackingError):
        keys.finish(str(tmp_path / "linked"))


def test_what_is_no_key_is_named_and_other_files_are_let_be(folder: str) -> None:
    with pytest.raises(NoKeyError):
        KeyAuthenticator(folder)
    keys.create(folder)
    Path(folder, "README").write_text("hands off")
    Path(folder, ".channel-x.pem.abc").write_text("half")
    assert len(KeyAuthenticator(folder).ids()) == 1
    bad = Path(folder, "channel-bad.pem")
    bad.touch(0o600)
    for text in ("", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        bad.write_text(text)
        with pytest.raises(LackingError, match=r"channel-bad\.pem is no key"):
            KeyAuthenticator(folder)


def test_a_private_part_of_another_key_is_named(folder: str) -> None:
    (one,) = keys.create(folder).added
    other = keys.make_pem(days=2)
    mixed = other[: other.index(b"-----BEGIN CERTIFICATE")] + one.pem[one.pem.index(b"-----BEGIN CERTIFICATE") :]
    Path(one.path).write_bytes(mixed)
    authenticator = KeyAuthenticator(folder)
    with pytest.raises(LackingError, match="does not fit"):
        authenticator.side(server=True, theirs=authenticator.ids())


def test_without_openssl_the_remedy_is_named(folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command, "CLEAN_ENV", {"PATH": str(tmp_path)})
    with pytest.raises(CommandNotFoundError, match="openssl") as caught:
        keys.create(folder)
    assert caught.value.exit_code == 3
    assert "Install the package openssl" in str(caught.value)
    fake = tmp_path / "openssl"
    fake.write_text("#!/bin/sh\necho -----BEGIN PRIVATE KEY-----\necho broken >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(LackingError, match="broken") as failed:
        keys.create(folder)
    assert "PRIVATE" not in str(failed.value)
    assert files(folder) == []


def test_two_writers_do_not_meet(folder: str) -> None:
    keys.create(folder)
    problems: list[str] = []

    def rotate() -> None:
        try:
            keys.rotate(folder)
        except LackingError as exc:
            problems.append(exc.message)

    threads = [threading.Thread(target=rotate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [f"somebody else is changing the keys in {folder}"]
    assert len(credential_tls.read_keys(folder)) == 2


def test_a_write_that_fails_leaves_what_was_there(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = keys.create(folder).added

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slurm_ext.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.rotate(folder)
    monkeypatch.undo()
    assert credential_tls.read_keys(folder) == (key,)
    assert files(folder) == [os.path.basename(key.path)]


def test_an_expired_key_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = keys.create(folder).added
    monkeypatch.setattr("slurm_ext.credential_tls.time.time", lambda: key.expires + 1)
    with pytest.raises(LackingError, match="has expired"):
        KeyAuthenticator(folder)


def test_a_key_shows_its_secret_to_nobody(folder: str) -> None:
    (key,) = keys.create(folder).added
    body = key.pem.decode().splitlines()[1]
    assert body not in repr(key) + str(key) + f"{key}" + repr([key]) + repr(keys.Change((key,)))

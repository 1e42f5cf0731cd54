"""`fmslurm key`: what it says, writes into the trail, and never shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FMSLURM = [sys.executable, "-m", "slurm_ext.cli"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "fmslurm.yaml").write_text(f"site:\n  state_dir: {tmp_path}/state\n  log_dir: {tmp_path}/log\n")
    return tmp_path


def key(site: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FMSLURM, "key", *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "FMSLURM_CONFIG": f"{site}/fmslurm.yaml", **env},
    )


def data(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_from_the_first_key_to_the_second(site: Path) -> None:
    assert data(key(site, "show", "--json"))["keys"] == []
    assert "would make" in key(site, "create", "--dry-run").stdout
    assert not (site / "state").exists()
    made = data(key(site, "create", "--json", "--reason", "new site"))
    assert (made["schema"], made["dry_run"], made["new"], len(list(made["added"]))) == (1, False, True, 1)  # type: ignore[call-overload]
    again = key(site, "create")
    assert (again.returncode, "rotate" in again.stderr) == (2, True)
    turned = data(key(site, "rotate", "--json"))
    assert turned["kept"] == made["added"]
    shown = list(data(key(site, "show", "--json"))["keys"])  # type: ignore[call-overload]
    assert [(k["id"], k["state"]) for k in shown] == [
        (turned["added"][0], "newest"),  # type: ignore[index]
        (made["added"][0], "valid"),  # type: ignore[index]
    ]
    assert all(0 <= k["age_d"] < 1 and len(k["fingerprint"]) == 64 for k in shown)
    assert data(key(site, "rotate", "--finish", "--json"))["removed"] == made["added"]
    table = key(site).stdout.splitlines()
    assert table[0].split() == ["KEY", "STATE", "AGE", "EXPIRES"]
    assert len(table) == 2


def test_a_nodes_folder_follows(site: Path) -> None:
    data(key(site, "create", "--json"))
    node = f"{site}/node/keys"
    assert "new:" in key(site, "sync", f"{site}/state/keys", "--dir", node).stdout
    assert os.listdir(node) == os.listdir(f"{site}/state/keys")
    usage = key(site, "sync", "--help").stdout
    assert ("SOURCE" in usage.splitlines()[0], usage.count(" DIR")) == (True, 1), "two folders, two names"
    missing = key(site, "sync", f"{site}/nowhere", "--dir", node)
    assert (missing.returncode, missing.stdout) == (2, "")


def test_the_trail_knows_who_and_why_and_no_secret(site: Path) -> None:
    said = [key(site, "create", "--reason", "new site"), key(site, "rotate"), key(site, "show", "--json"), key(site)]
    trail = Path(f"{site}/log/events.jsonl").read_text()
    events = [json.loads(line) for line in trail.splitlines()]
    assert [(e["event"], e["phase"]) for e in events] == [
        ("key.create", "intent"),
        ("key.create", "done"),
        ("key.rotate", "intent"),
        ("key.rotate", "done"),
    ]
    assert events[0]["reason"] == "new site"
    for path in Path(f"{site}/state/keys").glob("*.pem"):
        for line in path.read_text().splitlines():
            if not line.startswith("-----"):
                assert line not in trail + "".join(done.stdout + done.stderr for done in said)


def test_no_openssl_is_exit_3_with_a_remedy(site: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("mount") is None:
        pytest.skip("needs root and unshare, to hide the program")
    openssl = shutil.which("openssl", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    assert openssl is not None
    plain = tmp_path / "none"
    plain.touch(0o644)
    script = f"mount --bind {plain} {os.path.realpath(openssl)} && exec {' '.join(FMSLURM)} key create"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "FMSLURM_CONFIG": f"{site}/fmslurm.yaml"},
    )
    assert done.returncode == 3, done.stderr
    assert "Install the package openssl" in done.stderr


def test_a_file_that_others_may_read_is_exit_3(site: Path) -> None:
    data(key(site, "create", "--json"))
    (path,) = Path(f"{site}/state/keys").glob("*.pem")
    path.chmod(0o644)
    for words in (["show"], ["rotate"]):
        done = key(site, *words)
        assert (done.returncode, "root's eyes" in done.stderr) == (3, True)

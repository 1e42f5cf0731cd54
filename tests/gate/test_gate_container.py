"""Container runtimes: real sockets and programs, what they answer, and what is nobody's affair."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config.model import Settings
from slurm_ext.gate import container_runtime, probe_container, probes
from slurm_ext.gate.container_runtime import DOWN, ERROR, HANGS, WELL, Answer
from slurm_ext.verdict import WARN

OK = b"HTTP/1.0 200 OK\r\nApi-Version: 1.47\r\nContent-Length: 2\r\n\r\nOK"


def here(tmp_path: Path, *named: str, deadline_s: float = 10.0) -> probes.Here:
    (tmp_path / "run").mkdir(exist_ok=True)
    plain = Settings()
    gate = plain.gate._replace(container_runtimes=named, deadline_s=deadline_s)
    settings = plain._replace(site=plain.site._replace(run_dir=str(tmp_path / "run")), gate=gate)
    return probes.Here(str(tmp_path / "root"), "n0", "health", settings)


def look(place: probes.Here) -> tuple[list[tuple[str, str, str]], list[str]]:
    probed = probe_container.look(place)
    return [(one.verdict, one.finding.id, one.finding.target) for one in probed.items], probed.kept["asked"]


Serve = Callable[..., None]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Let something listen as a runtime's daemon: it takes connections and answers each with some bytes, or with None never."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []
    kept: list[socket.socket] = []

    def begin(runtime: str, answer: bytes | None, *, process: str = "dockerd") -> None:
        path = tmp_path / "root" / container_runtime.SOCKETS[runtime]
        path.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        listener.listen(5)
        listeners.append(listener)
        (tmp_path / "root/run/docker.pid").write_text("77")
        (tmp_path / "root/proc/77").mkdir(parents=True, exist_ok=True)
        (tmp_path / "root/proc/77/comm").write_text(f"{process}\n")

        def run() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                kept.append(link)
                if answer is None:
                    continue
                if runtime == "docker":
                    asked = link.recv(4096)
                    assert asked.startswith(b"GET /_ping HTTP/1.0\r\n")
                if answer:
                    link.sendall(answer)
                link.close()

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()

    yield begin
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(30)
    for link in kept:
        link.close()


def test_daemons_that_run_are_found_and_answer(tmp_path: Path, serve: Serve) -> None:
    serve("docker", OK)
    serve("containerd", b"")
    assert look(here(tmp_path)) == ([], ["docker", "containerd"])


def test_where_nothing_runs_nothing_is_asked_and_nothing_found(tmp_path: Path) -> None:
    assert look(here(tmp_path)) == ([], [])


def test_a_daemon_that_hangs_is_told_of(tmp_path: Path, serve: Serve) -> None:
    serve("docker", None)
    assert look(here(tmp_path, deadline_s=1.0)) == ([(WARN, "container.hangs", "runtime:docker")], ["docker"])


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 500 Internal Server Error\r\n\r\n", b"what?\n"])
def test_a_daemon_that_answers_otherwise_is_told_of(tmp_path: Path, serve: Serve, answer: bytes) -> None:
    serve("docker", answer)
    assert look(here(tmp_path)) == ([(WARN, "container.error", "runtime:docker")], ["docker"])


def test_a_socket_of_systemds_starts_no_daemon_that_nobody_named(tmp_path: Path, serve: Serve) -> None:
    serve("docker", None, process="another-program")
    assert look(here(tmp_path, deadline_s=1.0)) == ([], [])
    assert look(here(tmp_path, "docker", deadline_s=1.0))[0] == [(WARN, "container.hangs", "runtime:docker")]


def test_a_socket_that_was_left_behind_is_down_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "root/run/containerd/containerd.sock"
    path.parent.mkdir(parents=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # the whole path may be longer than an address can be
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    assert look(here(tmp_path)) == ([], [])
    assert look(here(tmp_path, "containerd", "docker")) == (
        [(WARN, "container.down", "runtime:containerd"), (WARN, "container.down", "runtime:docker")],
        ["containerd", "docker"],
    )


def test_what_is_no_socket_is_not_connected_to(tmp_path: Path) -> None:
    path = tmp_path / "root/run/containerd/containerd.sock"
    path.parent.mkdir(parents=True)
    path.symlink_to("/nonexistent")
    assert look(here(tmp_path)) == ([(WARN, "container.error", "runtime:containerd")], ["containerd"])


def program(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / "root/usr/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_programs_are_asked_for_their_version_in_folders_of_ours(tmp_path: Path) -> None:
    # As enroot does: its folders are made first, for root alone.
    said = (
        f'umask 077; mkdir -p "$ENROOT_RUNTIME_PATH" "$ENROOT_CACHE_PATH/x" "$HOME/y"; env >{tmp_path}/env; echo 3.5.0'
    )
    program(tmp_path, "enroot", said)
    program(tmp_path, "apptainer", "echo 1.3.4-1.el9")
    assert look(here(tmp_path, "enroot", "apptainer")) == ([], ["enroot", "apptainer"])
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    ours = str(tmp_path / "run/container-probe")
    assert {value for name, value in env.items() if name.startswith("ENROOT_")} == {ours}
    assert (env["HOME"], env["TMPDIR"]) == (ours, ours)
    assert os.listdir(tmp_path / "run") == [], "nothing of it is left"


@pytest.mark.parametrize(
    ("script", "id_"),
    [("exit 3", "container.error"), ("echo usage; exit 0", "container.error"), ("exec sleep 60", "container.hangs")],
)
def test_a_program_that_fails_or_hangs_is_told_of(tmp_path: Path, script: str, id_: str) -> None:
    program(tmp_path, "enroot", script)
    assert look(here(tmp_path, "enroot", deadline_s=1.0))[0] == [(WARN, id_, "runtime:enroot")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_program_that_a_user_may_write_is_not_run(tmp_path: Path) -> None:
    program(tmp_path, "enroot", f"touch {tmp_path}/ran; echo 3.5.0")
    (tmp_path / "root/usr/bin/enroot").chmod(0o777)
    assert look(here(tmp_path, "enroot"))[0] == [(WARN, "container.down", "runtime:enroot")]
    assert not (tmp_path / "ran").exists()


CASES: list[tuple[Answer, str]] = [
    (Answer("docker", WELL), ""),
    (Answer("docker", HANGS, "x"), "container.hangs"),
    (Answer("docker", ERROR, "x"), "container.error"),
    (Answer("docker", DOWN, "x"), "container.down"),
    (Answer("docker", DOWN, "x", named=False), ""),
    (Answer("docker", HANGS, "x", named=False), "container.hangs"),
]


@pytest.mark.parametrize(("answer", "id_"), CASES)
def test_no_answer_ever_convicts(answer: Answer, id_: str) -> None:
    items = container_runtime.judge([answer])
    assert [(item.verdict, item.finding.action, item.finding.id) for item in items] == (
        [(WARN, "warn", id_)] if id_ else []
    )


@given(st.text(max_size=200))
def test_any_answer_is_read(text: str) -> None:
    how, said = container_runtime.read_ping(text)
    assert how in (WELL, ERROR)
    assert (how == WELL) is (said == "")
    assert "\n" not in said


@given(st.none() | st.integers(-15, 255), st.text(max_size=80), st.text(max_size=80))
def test_any_version_is_read(code: Any, out: str, err: str) -> None:
    how, said = container_runtime.read_version(code, out, err)
    assert (how == WELL) is (said == "")
    assert how == ERROR or code == 0

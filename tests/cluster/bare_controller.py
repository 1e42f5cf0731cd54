"""A slurmctld alone, with as many defined nodes as wanted and no slurmd: what it makes of topology files."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slurm_ext.slurm import parse

WAIT_S = 60.0
_READY = "Running as primary controller"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BareController:
    """One folder with a munged of its own; `starts` and `running` begin with fresh state each time.

    `wait_s` is how long anything may take: a bench with thousands of switches needs more than a test.
    """

    def __init__(self, folder: Path, wait_s: float = WAIT_S) -> None:
        folder.chmod(0o755)  # munged wants its socket where all may reach it
        self.folder = folder
        self.wait_s = wait_s
        self.munge = folder / "munge.socket"
        self._munged: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BareController:
        key = self.folder / "munge.key"
        subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True, timeout=WAIT_S)
        argv = ["munged", "--foreground", f"--socket={self.munge}", f"--key-file={key}", "--num-threads=2"]
        argv += [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "log", "seed")]
        self._munged = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert _until(self.munge.exists, self._munged), (self.folder / "munge.log").read_text()
        return self

    def __exit__(self, *_: object) -> None:
        if self._munged is not None:
            _stop(self._munged)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def write(self, files: Mapping[str, str], nodes: str, *, more: str = "", partitions: str = "") -> str:
        """Write slurm.conf and topology files, take away older ones, and return the text of slurm.conf."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        for name in ("topology.conf", "topology.yaml"):
            (self.folder / name).unlink(missing_ok=True)
        for name, text in files.items():
            (self.folder / name).write_bytes(text.encode())
        text = "\n".join(
            (
                "ClusterName=bare",
                f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
                f"SlurmctldPort={free_port()}",
                f"SlurmdPort={free_port()}",
                "SlurmUser=root",
                f"StateSaveLocation={self.folder}/state",
                f"SlurmctldPidFile={self.folder}/slurmctld.pid",
                f"SlurmctldLogFile={self.folder}/slurmctld.log",
                "AuthType=auth/munge",
                "CredType=cred/munge",
                f"AuthInfo=socket={self.munge}",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "MailProg=/bin/true",
                "SelectType=select/cons_tres",
                "ReturnToService=2",
                "SlurmctldDebug=info",
                more,
                f"NodeName={nodes} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN",
                partitions or "PartitionName=all Nodes=ALL Default=YES",
                "",
            )
        )
        self.conf.write_text(text)
        return text

    @contextmanager
    def running(self) -> Iterator[bool]:
        """Start slurmctld, yield whether it came up, and stop it."""
        log = self.folder / "slurmctld.log"
        log.unlink(missing_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        with open(self.folder / "slurmctld.out", "wb") as out:
            argv = ["slurmctld", "-D", "-f", str(self.conf)]
            # Some files make it abort, and its core shall not lie in the checkout.
            process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=self.env(), cwd=self.folder)
        try:
            yield _until(lambda: log.exists() and _READY in log.read_text(errors="replace"), process, self.wait_s)
        finally:
            _stop(process)

    def said(self) -> str:
        """Return what slurmctld logged and printed."""
        files = [self.folder / name for name in ("slurmctld.log", "slurmctld.out")]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "SLURM_CONF": str(self.conf)}

    def ask(self, *argv: str) -> str:
        """Return what a command of Slurm's prints."""
        done = subprocess.run(argv, env=self.env(), capture_output=True, text=True, timeout=self.wait_s, check=False)
        assert done.returncode == 0, (argv, done.stdout, done.stderr, self.said())
        return done.stdout

    def places(self, *name: str) -> Mapping[str, tuple[str, ...]]:
        """Return node -> switches or blocks above it, of the topology of a name."""
        return parse.topology(self.ask("scontrol", "--oneliner", "show", "topology", *name))


def _until(condition, process: subprocess.Popen[bytes], wait_s: float = WAIT_S) -> bool:
    """Wait until a condition holds; False where the process ends first."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if process.poll() is not None:
            return bool(condition())
        if time.monotonic() > deadline:
            raise AssertionError(f"{process.args} neither came up nor ended within {wait_s:.0f} s")
        time.sleep(0.01)
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait(WAIT_S)

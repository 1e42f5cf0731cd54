"""A site with a real slurmctld as a daemon, a file of places that a test changes, and `fmslurm topology` run as a person would."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bare_controller import BareController

from slurm_ext.config.snapshot import LEDGER_FOLDER, OFF_FOLDER

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")
WAIT_S = 120.0


class TopologySite:
    """`folder` is everything's. Places are by node: its path, and where it matters its zone and clique."""

    def __init__(self, controller: BareController) -> None:
        # Apart from Slurm's own folder, which a test may close.
        self.controller, self.folder = controller, controller.folder.with_name(f"{controller.folder.name}-site")
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("state", "run", "log", "bin", f"share/{LEDGER_FOLDER}", f"share/{OFF_FOLDER}", "share/places"):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        self.places: dict[str, dict[str, object]] = {}
        self.settings: dict[str, dict[str, object]] = {
            "site": {
                "type": "plain",
                "slurm_conf": str(controller.conf),
                "slurm_bin": str(self.folder / "bin"),
                "share": str(self.folder / "share"),
                **{f"{name}_dir": str(self.folder / name) for name in ("state", "run", "log")},
            },
            "mode": {"topology": "enforce"},
            "topology": {
                "apply": "restart",
                "source": "file",
                "source_file": str(self.folder / "places.json"),
                "restart_command": [str(self.folder / "bin" / "restart-slurmctld")],
            },
        }
        for program in ("scontrol", "squeue", "scancel", "sinfo"):
            (self.folder / "bin" / program).symlink_to(str(shutil.which(program)))
        self.script("restart-slurmctld", f"exec {shutil.which('slurmctld')} -f {controller.conf}")

    @property
    def conf(self) -> Path:
        return self.controller.folder / "topology.conf"

    @property
    def yaml(self) -> Path:
        return self.controller.folder / "topology.yaml"

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in self.controller.folder.glob("topology.*"):
            path.unlink()

    def script(self, name: str, *lines: str) -> None:
        """Put a program of the site's own in place; commands of Slurm's can be replaced so."""
        path = self.folder / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text("\n".join(("#!/bin/sh", *lines, "")))
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def put(self, path: str, *nodes: str, **more: str) -> None:
        """Let nodes sit at a path (`spine/leaf`, empty: nowhere)."""
        for node in nodes:
            self.places[node] = {"node": node, "path": path.split("/") if path else [], **more}

    def write(self) -> dict[str, str]:
        """Write places and configuration, and return the environment that names it."""
        rows = [dict(place) for place in self.places.values()]
        for path, data in (
            (self.folder / "places.json", {"schema": 1, "nodes": rows}),
            (self.folder / "fmslurm.yaml", self.settings),  # JSON is YAML, too
        ):
            path.with_suffix(".new").write_text(json.dumps(data))
            path.with_suffix(".new").rename(path)
        config = str(self.folder / "fmslurm.yaml")
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "FMSLURM_CONFIG": config}

    @contextmanager
    def background(self, *arguments: str) -> Iterator[Callable[[], str]]:
        """Run `fmslurm topology ...` until the block ends; what is yielded waits for its next line."""
        argv = [FMSLURM, "topology", *arguments]
        process = subprocess.Popen(argv, env=self.write(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines: queue.Queue[str] = queue.Queue()
        assert process.stdout is not None
        reader = threading.Thread(
            target=lambda: [lines.put(line.strip()) for line in process.stdout or ()], daemon=True
        )
        reader.start()
        try:
            yield lambda: lines.get(timeout=WAIT_S)
        finally:
            process.kill()
            process.wait(WAIT_S)
            reader.join(WAIT_S)
            process.stdout.close()

    def run(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `fmslurm topology ...`, and hold its exit code (None: any)."""
        env = self.write()
        done = subprocess.run(
            [FMSLURM, "topology", *arguments], env=env, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr, self.said())
        return done

    def apply(self, *arguments: str, code: int | None = 0) -> str:
        """Run `fmslurm topology apply` and return what it said."""
        done = self.run("apply", *arguments, code=code)
        return done.stdout + done.stderr

    def events(self, name: str = "") -> list[Mapping[str, object]]:
        found = [json.loads(line) for line in (self.folder / "log" / "events.jsonl").read_text().splitlines()]
        return [event for event in found if not name or event["event"] == name]

    def said(self) -> str:
        return self.controller.said()[-3000:]

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Run slurmctld as systemd's units do: in the background, where 23.11 and later survive a bad reconfigure."""
        log = self.controller.folder / "slurmctld.log"
        log.unlink(missing_ok=True)
        (self.controller.folder / "state").mkdir(exist_ok=True)
        try:
            self.start()
            yield
        finally:
            self.stop()

    def start(self) -> None:
        argv = ["slurmctld", "-f", str(self.controller.conf)]
        subprocess.run(
            argv, env=self.controller.env(), cwd=self.controller.folder, check=True, timeout=WAIT_S, capture_output=True
        )
        deadline = time.monotonic() + WAIT_S
        while not self.is_up():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def is_up(self) -> bool:
        done = subprocess.run(
            ["scontrol", "ping"], env=self.controller.env(), capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        return " is UP" in done.stdout

    def stop(self) -> None:
        """End slurmctld, whichever process it is by now."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + WAIT_S
        while self.pids():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def pids(self) -> list[int]:
        wanted = os.fsencode(self.controller.conf)
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if words[0].endswith(b"slurmctld") and wanted in words and state != "Z":
                found.append(int(entry.name))
        return found

    def reconfigures(self) -> int:
        """Return how often slurmctld was told to read its files again."""
        return self.controller.said().count("Processing Reconfiguration Request")

    def leaves(self, *name: str) -> dict[str, str]:
        """Return node -> the switch or block nearest to it, as Slurm has it."""
        paths = self.controller.places(*name)
        return {node: path[-1] for node, path in paths.items()}

    def together(self, *name: str) -> set[frozenset[str]]:
        """Return the sets of nodes that Slurm has below one leaf."""
        groups: dict[str, set[str]] = {}
        for node, leaf in self.leaves(*name).items():
            groups.setdefault(leaf, set()).add(node)
        return {frozenset(nodes) for nodes in groups.values()}


def sets(*groups: Sequence[str]) -> set[frozenset[str]]:
    return {frozenset(group) for group in groups}

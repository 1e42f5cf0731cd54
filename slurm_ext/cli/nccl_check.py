"""`fmslurm nccl-check -- COMMAND`: run a step and say whether NCCL inside it really went over EFA. Runs as the user."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import click

from slurm_ext.burnin import in_job
from slurm_ext.burnin.efa_look import EfaLook
from slurm_ext.burnin.in_job import NodeFacts, Report
from slurm_ext.cli.instance import instance_type
from slurm_ext.cli.output import say_text
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.model import at_node
from slurm_ext.errors import EXIT_FINDING, UsageError
from slurm_ext.verdict import FAIL, one_line

#: The first word comes as soon as the network is known: nobody wants to hear of TCP after a week of training.
LOOK_EVERY_S = 5.0

#: How long the first task waits at its end for the other nodes' words.
GATHER_S = 15.0

#: What a task's end may be asked for by; passed on to the command, which decides.
_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)

_SUBSYSTEMS = ("INIT", "NET", "ENV")


@click.command("nccl-check", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--dir", "folder", default="", help="where NCCL writes its logs: seen by all nodes, mounted in the container"
)
@click.option("--keep", is_flag=True, help="leave the logs there")
@click.option("--strict", is_flag=True, help="exit 1 where the transport is refuted, though the command ended well")
@click.option("--json", "report_file", default="", metavar="FILE", help="write the report there as JSON, too")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def nccl_check(folder: str, keep: bool, strict: bool, report_file: str, command: tuple[str, ...]) -> int:
    """Run COMMAND and say whether NCCL inside it went over EFA, by its own log and EFA's counters.

    In each task: srun ... fmslurm nccl-check -- python train.py. Around srun, or for a container that has no fmslurm:
    fmslurm nccl-check --dir /fsx/me/nccl -- srun ... (then without counters). The exit code is COMMAND's.
    """
    inside = "SLURM_PROCID" in os.environ and "SLURMD_NODENAME" in os.environ
    place = _Place(os.environ, folder, inside=inside)
    environment = _environment(os.environ, place.logs)
    if inside and os.environ.get("SLURM_LOCALID", "0") != "0":
        # One task of each node tells for all; the others are just the command.
        place.make()
        try:
            os.execvpe(command[0], command, environment)  # noqa: S606 - the user's own command, as the user
        except OSError as exc:
            raise UsageError(f"cannot run {command[0]}: {exc.strerror}") from exc
    place.make()
    if place.speaks and (own := os.environ.get("NCCL_DEBUG_FILE")):
        _say(
            f"NCCL's log goes to {environment['NCCL_DEBUG_FILE']} and not to {one_line(own, 200)}; --keep leaves it there"
        )
    try:
        code, last = _run(command, environment, place)
        _finish(last, report_file)
    finally:
        if not keep and place.speaks:
            shutil.rmtree(place.top, ignore_errors=True)
    if strict and code == 0 and last is not None and last.verdict == FAIL:
        return EXIT_FINDING
    return code


class _Place:
    """Who this process is in the step, and where logs and words of the nodes lie."""

    def __init__(self, environ: Mapping[str, str], folder: str, *, inside: bool) -> None:
        self.inside = inside
        self.node = environ.get("SLURMD_NODENAME", "") if inside else "here"
        self.nodes = int(environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
        self.speaks = not inside or environ.get("SLURM_PROCID") == "0"
        step = f"{environ.get('SLURM_JOB_ID', 'none')}.{environ.get('SLURM_STEP_ID', str(os.getpid()))}"
        base = folder or environ.get("SLURM_SUBMIT_DIR") or tempfile.gettempdir()
        self.top = Path(base).absolute() / f"fmslurm-nccl-{step}"
        self.logs = self.top / self.node
        self.settings = site_settings()

    @property
    def root(self) -> str:
        """Return where this node's /sys is."""
        return at_node(self.settings.site.root, self.node)

    def make(self) -> None:
        """Make the folder for the logs. Raise UsageError where that cannot be."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise UsageError(f"{self.logs} cannot be made: {exc.strerror}", remedy="Say --dir FOLDER") from exc

    def instance_type(self) -> str:
        """Return the type of the step's nodes; empty outside of it, where this machine is another."""
        return instance_type(self.settings, self.node) if self.inside else ""


def _environment(environ: Mapping[str, str], logs: Path) -> dict[str, str]:
    """Return the command's environment: its own, with NCCL's log switched on."""
    wanted = dict(environ)
    if wanted.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        wanted["NCCL_DEBUG"] = "INFO"
    wanted["NCCL_DEBUG_SUBSYS"] = _subsystems(wanted.get("NCCL_DEBUG_SUBSYS", ""))
    wanted["NCCL_DEBUG_FILE"] = str(logs / "nccl.%h.%p")
    return wanted


def _subsystems(asked: str) -> str:
    """Return what was asked for with what is needed here. A list that begins with ^ names what is not to be logged."""
    but = asked.startswith("^")
    named = [word for word in asked.removeprefix("^").upper().split(",") if word]
    if but and "ALL" not in named:
        left_out = [word for word in named if word not in _SUBSYSTEMS]
        return f"^{','.join(left_out)}" if left_out else "ALL"
    if "ALL" in named and not but:
        return "ALL"
    return ",".join(dict.fromkeys((*(() if but else named), *_SUBSYSTEMS)))


def _run(command: tuple[str, ...], environment: dict[str, str], place: _Place) -> tuple[int, Report | None]:
    """Run the command in the foreground, with our terminal and our streams; return its code and the last report."""
    look = EfaLook(str(place.logs), place.root)

    def facts() -> list[NodeFacts]:
        data = look.facts()
        # Outside of the step this machine's counters are not the job's, and the logs are of many nodes.
        return [in_job.from_json({**data, "node": place.node})] if place.inside else in_job.by_host(data)

    with _Forwarding() as forwarding:
        try:
            # In our process group, as the shell would have started it: signals of the terminal reach it by themselves.
            child = subprocess.Popen(command, env=environment)
        except OSError as exc:
            raise UsageError(f"cannot run {command[0]}: {exc.strerror}") from exc
        forwarding.to = child.pid
        _watch(child, facts, place)
        code = child.wait()
    return (128 - code if code < 0 else code), _gather(facts(), place)


class _Forwarding:
    """Passes signals on to the command for as long as it runs."""

    def __init__(self) -> None:
        self.to = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Forwarding:
        for number in _FORWARDED:
            self._before[number] = signal.signal(number, self._pass)
        return self

    def _pass(self, number: int, _frame: FrameType | None) -> None:
        if self.to:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.to, number)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]


def _watch(child: subprocess.Popen[bytes], facts: Callable[[], list[NodeFacts]], place: _Place) -> None:
    """Look at the log until the command ends, and say at once where its network is not what it should be."""
    ended = os.pidfd_open(child.pid)
    said: set[str] = set()
    try:
        while not select.select([ended], [], [], LOOK_EVERY_S)[0]:
            for one in facts():
                started = any(process.networks or process.net_unmet for process in one.processes)
                if one.node in said or not started:
                    continue
                said.add(one.node)
                seen = in_job.report([one._replace(efa_bytes=None)], expected=1, instance_type=place.instance_type())
                if seen.verdict == FAIL:
                    _say(f"{one.node}: {seen.lines[0]}")
    finally:
        os.close(ended)


def _gather(facts: list[NodeFacts], place: _Place) -> Report | None:
    """Leave this node's word; the first task collects all of them and returns the report."""
    if not place.inside:
        return in_job.report(facts, expected=max(1, len(facts)), instance_type=place.instance_type())
    mine = facts[0]
    word = place.top / f"{place.node}.json"
    if not place.speaks:
        fresh = word.with_suffix(".new")
        fresh.write_text(json.dumps(in_job.to_json(mine)))
        fresh.rename(word)
        return None
    found = {place.node: mine}
    give_up = time.monotonic() + GATHER_S
    while len(found) < place.nodes and time.monotonic() < give_up:
        for path in place.top.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                one = in_job.from_json(json.loads(path.read_text()))
                found[one.node] = one
        time.sleep(0.2)  # other nodes' files on a share have no event that could be awaited
    return in_job.report(list(found.values()), expected=place.nodes, instance_type=place.instance_type())


def _finish(last: Report | None, report_file: str) -> None:
    """Say the report on stderr, which is no program's input, and write it where it was asked for."""
    if last is None:
        return
    for number, line in enumerate(last.lines):
        _say(line if number else f"{last.verdict}: {line}")
    if report_file:
        Path(report_file).write_text(json.dumps({"schema": 1, **last._asdict()}) + "\n")


def _say(line: str) -> None:
    say_text(f"nccl-check: {line}", err=True)

"""The questions to nvidia-smi: each a program in a session of its own, all at once, bounded, with what came back as facts.

A driver that does not know a field answers nothing at all: it is asked again without the fields of that feature, and which
those are is remembered in the run folder for as long as the driver stays the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence

from slurm_ext import command
from slurm_ext.command import Result
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.gate import process_owner, smi
from slurm_ext.gate.model import GpuHolder, Links, Smi

#: An nvidia-smi that was killed in D state is left behind after so long (seconds).
ABANDON_S = 0.5

#: Eight GPUs answer in some kilobytes; more than this is no answer.
MAX_BYTES = 1 << 20

#: Which GPUs are the job's is asked only on a shared node, and may take so long (seconds).
LIST_S = 2.0

#: Below the run folder: `DRIVER GROUP,GROUP`, the groups of fields that this driver does not know.
REMEMBERED = "smi-without"

#: Passed on to nvidia-smi: the lab's stand-in finds its node by it. Nothing else of slurmd's environment is.
_LAB = "FMSLURM_LAB_HARDWARE"

_OF_DRIVER = "proc/driver/nvidia/gpus"  # a folder for each GPU that the driver has taken

_APPS = ("--query-compute-apps=pid,gpu_uuid,process_name", "--format=csv,noheader")


class Question:
    """One question, which is being answered from here on."""

    def __init__(self, root: str, arguments: Sequence[str], patience_s: float) -> None:
        self._began, self._patience_s, self.seconds = time.monotonic(), patience_s, 0.0
        self._child = None
        with contextlib.suppress(CommandNotFoundError):
            self._child = command.start([command.smi_path(root), *arguments], env=_env())

    def left_s(self) -> float:
        """Return how long (seconds) it may still take; what has ended by then is read in any case."""
        return max(self._patience_s - (time.monotonic() - self._began), 0.1)

    def answer(self) -> Result | None:
        """Wait for what it says; None where there is no such program."""
        if self._child is None:
            return None
        said = command.finish(self._child, timeout_s=self.left_s(), max_output_bytes=MAX_BYTES, abandon_s=ABANDON_S)
        self.seconds = time.monotonic() - self._began
        return said


class Cards:
    """The question about all GPUs, with the fields that this driver is known to know."""

    def __init__(self, root: str, run_dir: str, patience_s: float) -> None:
        self._root, self._path = root, os.path.join(run_dir, REMEMBERED)
        self._driver, self._without = _remembered(self._path)
        self._question = Question(root, _argv(self._without), patience_s)

    def answer(self) -> Smi | None:
        """Wait for the answer, ask again where a field was refused, and return it; None where there is no nvidia-smi."""
        said, without = self._question.answer(), self._without
        if said is None:
            return None
        while (fewer := smi.refused(said.stdout + said.stderr, without)) is not None and set(fewer) != set(without):
            without = fewer
            again = Question(self._root, _argv(without), self._question.left_s())
            said = again.answer() or said
        found = parsed(said, self._question.seconds)
        self._remember(found, without)
        return found

    def _remember(self, found: Smi, without: tuple[str, ...]) -> None:
        driver = next((gpu.driver for gpu in found.gpus if gpu.driver), "")
        if not driver or (set(without) == set(self._without) and driver == (self._driver or driver)):
            return
        from slurm_ext.files import write_atomic  # here: only after another driver has come

        with contextlib.suppress(OSError):
            if driver != self._driver and self._driver:
                os.unlink(self._path)  # what the other one did not know this one may: the next look asks for all
            else:
                write_atomic(self._path, f"{driver} {','.join(without)}\n")


def counters(root: str, run_dir: str, patience_s: float) -> Question:
    """Ask for what of the GPUs is counted, with the fields that this driver is known to know, and for nothing else."""
    without = _remembered(os.path.join(run_dir, REMEMBERED))[1]
    return Question(root, (f"--query-gpu={','.join(smi.counted(without))}", "--format=csv"), patience_s)


def parsed(said: Result, seconds: float) -> Smi:
    """Return what one run said, with how it ended after so many seconds."""
    found = smi.parse_csv(said.stdout)
    words = "\n".join(part for part in (found.said, said.stderr.strip()[:4000]) if part)
    return found._replace(
        exit_code=said.returncode,
        timed_out=said.timed_out,
        elapsed_s=round(max(seconds, said.seconds), 3),
        complete=found.complete and not said.timed_out and not said.truncated,
        said=words,
        text=said.stdout,
    )


def _env() -> dict[str, str]:
    return command.clean_env(**({_LAB: os.environ[_LAB]} if _LAB in os.environ else {}))


def _argv(without: Sequence[str]) -> tuple[str, str]:
    return f"--query-gpu={','.join(smi.fields(without))}", "--format=csv"


def _remembered(path: str) -> tuple[str, tuple[str, ...]]:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            driver, _, groups = stream.read(200).strip().partition(" ")
    except OSError:
        return "", ()
    return driver, tuple(group for group in groups.split(",") if group in smi.GROUPS)


def apps(root: str, patience_s: float) -> Question:
    """Ask which programs have a GPU open."""
    return Question(root, _APPS, patience_s)


def holders(said: Result | None) -> tuple[GpuHolder, ...] | None:
    """Return the programs in an answer, with the job and the user that each belongs to; None where it cannot be read."""
    if said is None or not said.ok or said.truncated or (said.stdout and not said.stdout.endswith("\n")):
        return None  # what is cut off the list is not gone from the GPU
    found = []
    for line in said.stdout.splitlines():
        pid, _, rest = line.partition(",")
        if not line.strip() or line.lower().startswith("no running"):
            continue
        if not pid.strip().isdecimal() or len(pid) > 10:
            return None
        uuid, _, name = rest.partition(",")
        found.append(_known(GpuHolder(int(pid), uuid.strip(), name.strip()[:200])))
    return tuple(found)


def _known(holder: GpuHolder) -> GpuHolder:
    """Return a program with its job, user and start as the kernel tells them: a name is anybody's to choose."""
    owner = process_owner.of(holder.pid)
    return holder if owner is None else holder._replace(**owner._asdict())


def links(root: str, patience_s: float) -> Mapping[str, Question]:
    """Ask for the state of the NVLinks and for their errors."""
    return {
        "state": Question(root, ("nvlink", "-s"), patience_s),
        "errors": Question(root, ("nvlink", "-e"), patience_s),
    }


def said_of(links_: Mapping[str, Question]) -> Links:
    """Return the texts; one that ended in an error, in no time or too long is None: nothing is known from it."""
    texts = {}
    for name, question in links_.items():
        said = question.answer()
        texts[name] = said.stdout if said is not None and said.ok and not said.truncated else None
    return Links(**texts)


def bound(root: str) -> int | None:
    """Return how many GPUs the driver holds by its own files, whatever nvidia-smi says; None where they cannot be listed."""
    folder = os.path.join(root, _OF_DRIVER)
    raw = command.call_bounded(lambda: json.dumps(len(os.listdir(folder))).encode(), timeout_s=LIST_S)
    return json.loads(raw) if raw is not None else None


def minors(root: str) -> Mapping[str, int]:
    """Return the device number of each GPU by its address, as the driver's own files say; empty where they cannot be read."""
    from slurm_ext.gate import gpu_scope

    folder = os.path.join(root, _OF_DRIVER)

    def read() -> bytes:
        texts = {}
        for name in os.listdir(folder)[:64]:
            with open(os.path.join(folder, name, "information"), encoding="utf-8", errors="replace") as stream:
                texts[name] = stream.read(4096)
        return json.dumps(texts).encode()

    raw = command.call_bounded(read, timeout_s=LIST_S)
    return gpu_scope.minors_in(json.loads(raw)) if raw is not None else {}


def instances(root: str) -> Mapping[str, str]:
    """Return the MIG instances, each with the UUID of its GPU; empty where nvidia-smi does not tell."""
    from slurm_ext.gate import gpu_scope

    said = Question(root, ("-L",), LIST_S).answer()
    return gpu_scope.instances_in(said.stdout) if said is not None and said.ok else {}

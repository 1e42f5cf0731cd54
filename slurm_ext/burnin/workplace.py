"""What an agent has on its own node: its workers, their station, the folder of their logs, and the note that says so."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from slurm_ext.burnin import rail_nics, surroundings, transport
from slurm_ext.burnin.efa_look import EfaLook
from slurm_ext.burnin.model import BurninJob
from slurm_ext.burnin.nccl import candidates
from slurm_ext.burnin.pool import Pool
from slurm_ext.burnin.station import Send, Station
from slurm_ext.burnin.succession import Voice
from slurm_ext.burnin.worker import WorkerPlan
from slurm_ext.channel import Hub
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import read_trusted, write_passing

#: In the burn-in's folder on this node: what the leader does now.
PROGRESS = "progress.json"

#: Voices of attempts that are so old (seconds) are nobody's concern.
VOICE_KEPT_S = 86_400.0


class Workplace:
    """All that an agent must clean up behind it, and the one voice that must outlive it."""

    def __init__(self, job: BurninJob, settings: Settings) -> None:
        self._job, self._settings = job, settings
        # The hooks know by this file what of a burn-in is still there when its job ends.
        self._note = os.path.join(
            at_node(settings.site.run_dir, job.node), "burnin", f"{job.job_id}-{job.restarts}.json"
        )
        self.folder = self._note.removesuffix(".json") + ".d"
        self._voice_file = self._note.removesuffix(".json") + ".voice"
        self._pool: Pool | None = None
        self._efa: EfaLook | None = None
        self._prove_round = -1
        self._mnnvl = ""

    def open(self, hub: Hub, send: Send, *, address: str, abort_s: float, prove: bool) -> Station:
        """Make the folder, the pool and the station, which answers through `send`. OSError where a file is in the way."""
        job, burnin, site = self._job, self._settings.burnin, self._settings.site
        os.makedirs(os.path.dirname(self._note), mode=0o755, exist_ok=True)
        _own_folder(self.folder)
        plan = WorkerPlan(
            0,
            burnin.cuda_library or "libcuda.so.1",
            tuple(candidates(burnin.nccl_library, site.prefix)),
            abort_s * 0.8,
        )
        environment = surroundings.worker_environment(
            site, burnin, node=job.node, address=address, log_folder=self.folder
        )
        self._pool = Pool(
            {gpu: plan._replace(gpu=gpu) for gpu in range(job.gpus)},
            environment,
            watch=hub.register,
            unwatch=hub.unregister,
            changed=self._write_note,
        )
        if prove:
            self._efa = EfaLook(
                self.folder,
                at_node(site.root, job.node),
                clocks_s=burnin.strict_sustain_s if job.strict else 0.0,
                imex=transport.spans_nodes(job.instance_type),
            )
        root = at_node(site.root, job.node)
        station = Station(
            job.node,
            job.gpus,
            self._pool,
            send,
            abort_s=abort_s,
            facts=self._facts,
            nics=lambda pci: rail_nics.near(root, pci),
        )
        # Contexts take seconds on real cards: open them while the other nodes are still on their way. Where an earlier pass
        # is likely to do, they are opened with the first round, if there is one.
        for gpu in range(0 if job.reusable else job.gpus):
            self._pool.start(gpu)
        return station

    def on_order(self, message: Mapping[str, Any]) -> None:
        """Take note of an order: the first run of a cohort is the one whose transport must be proven."""
        if message.get("t") == "round" and message.get("prove"):
            self._prove_round = int(message["round"])
            if str(message.get("mnnvl", "")) != self._mnnvl:
                self._mnnvl = str(message.get("mnnvl", ""))
                self.begin_anew(others=True)

    def begin_anew(self, *, others: bool) -> None:
        """Take that a new round begins, and whether its workers are others, and so are their logs."""
        if self._efa is not None:
            self._efa.begin(others=others)

    def read(self, gpu: int) -> tuple[list[dict[str, Any]], str]:
        """Return what a worker said, and how it ended (empty: it lives)."""
        return self._pool.read(gpu) if self._pool is not None else ([], "")

    def _facts(self, number: int) -> Mapping[str, Any]:
        """Return what NCCL's logs and EFA's counters say of a round."""
        return self._efa.facts() if self._efa is not None and number == self._prove_round else {}

    def _write_note(self, pids: tuple[int, ...]) -> None:
        processes = [[pid, ticks] for pid in (os.getpid(), *pids) if (ticks := _start_ticks(pid)) is not None]
        note = {"schema": 1, "job_id": self._job.job_id, "processes": processes}
        with contextlib.suppress(OSError):
            write_passing(self._note, json.dumps(note))

    def tell_progress(self, phase: str, waiting: tuple[str, ...]) -> None:
        """Leave beside the note what goes on; the hook, which may wait for the share, passes it on to who asks."""
        data = {"schema": 1, "phase": phase, "waiting": waiting[:8], "absent": len(waiting), "since": time.time()}
        path = os.path.join(self.folder, PROGRESS)
        with contextlib.suppress(OSError):
            write_passing(path, json.dumps(data))

    def voice(self) -> Voice:
        """Return this node's voice in the attempt, as an earlier agent of it may have left it."""
        with contextlib.suppress(OSError, ValueError, UntrustedFileError):
            return Voice.from_json(json.loads(read_trusted(self._voice_file)))
        return Voice()

    def keep(self, voice: Voice) -> bool:
        """Write a voice down before it is given; say whether it is there. Old ones of other attempts go."""
        try:
            write_passing(self._voice_file, json.dumps(voice.to_json()))
        except OSError:
            return False
        folder = os.path.dirname(self._voice_file)
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if name.endswith(".voice") and time.time() - os.stat(path).st_mtime > VOICE_KEPT_S:
                    os.unlink(path)
        return True

    def end_workers(self) -> None:
        """Kill them, and wait for none."""
        if self._pool is not None:
            self._pool.close()

    def close(self) -> None:
        """End what is still there; the note stays where a worker cannot die."""
        import shutil  # here: it brings every kind of archive along, and the verdict need not wait for that

        self.end_workers()
        if self._efa is not None:
            self._efa.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self._pool is None or not self._pool.undead():
                os.unlink(self._note)


def _own_folder(path: str) -> None:
    """Make a folder, or take one that is there already: NotADirectoryError for a link, which would lead elsewhere."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None


def _start_ticks(pid: int) -> int | None:
    """Return when a process began (clock ticks since boot): with its pid it can be mistaken for no other."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None

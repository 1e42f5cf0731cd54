"""`fmslurm-controller`: one instance per machine, one tick every `resume.poll_s`, questions of users answered in between."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from slurm_ext.config import snapshot, yaml_file
from slurm_ext.config.locate import DEFAULT_PATH
from slurm_ext.config.model import Notify, Settings
from slurm_ext.errors import EXIT_INTERNAL, EXIT_LACKING, EXIT_OK, FmslurmError, LackingError
from slurm_ext.notices.desk import Desk
from slurm_ext.notices.look import file_hash
from slurm_ext.resume import telling
from slurm_ext.resume.controller import Controller
from slurm_ext.resume.journal import Journal
from slurm_ext.resume.push import Push
from slurm_ext.resume.serve import Server
from slurm_ext.slurm import connect

#: One call to Slurm may take this long (seconds): a tick must end before the heartbeat counts as stale.
CALL_TIMEOUT_S = 8.0
#: Between two ticks notices are seen to so often (seconds).
NOTICES_S = 2.0
#: Old rows are dropped this often (seconds).
HOUSEKEEPING_S = 300.0


def here(path: str) -> str:
    """Return a state path for this daemon: where nodes share a machine, `%n` stands for the controller itself."""
    return path.replace("%n", "controller")


def journal_path(settings: Settings) -> str:
    """Return the path of the controller's database."""
    return os.path.join(here(settings.site.state_dir), "controller.db")


def socket_path(settings: Settings) -> str:
    """Return the path of the socket that answers users."""
    return os.path.join(here(settings.site.run_dir), "controller.sock")


def lock(settings: Settings) -> int:
    """Take the lock that only one controller holds, and return its descriptor. Raise LackingError where another has it."""
    path = os.path.join(here(settings.site.state_dir), "controller.lock")
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise LackingError(f"another fmslurm-controller runs already (pid {other or 'unknown'})") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


class Loop:
    """The loop: ticks, housekeeping, and an end at SIGTERM between two of them."""

    def __init__(self, settings: Settings, config_path: str = "") -> None:
        """Open journal and socket and ask Slurm for the cluster's name. Raise FmslurmError where something lacks.

        `config_path`: the file that the settings are from; it is read again once what was pushed is of another content.
        """
        self.settings, self.config_path = settings, config_path
        self.stopping = False
        self.slurm = connect(settings, timeout_s=CALL_TIMEOUT_S)
        cluster = settings.site.cluster or self.slurm.cluster_name()
        self.journal = Journal(journal_path(settings))
        self.controller = Controller(settings, self.slurm, self.journal, cluster=cluster)
        self.server = Server(socket_path(settings), self.controller)
        self.desk = Desk(
            self.journal.db,
            self.controller.events_path,
            config_path=config_path,
            own_facts=telling.Teller(self.journal).facts,
        )
        self._kept_at = 0.0
        self._push = Push()
        self._said: dict[str, str] = {}

    def current(self) -> Settings:
        """Return the settings that hold now: the file as it was at the start, overruled by what was pushed since."""
        share = self.settings.site.share
        if not share:
            return self.settings
        pushed = snapshot.view(share, here(self.settings.site.state_dir)).settings
        if not pushed.generation:
            return self.settings
        return pushed._replace(notify=self._notify(pushed.source_hash))

    def _notify(self, pushed: str) -> Notify:
        """Return whom to tell: no snapshot says so, since it may be secret, so it is read from the file that was pushed."""
        if pushed != self.settings.source_hash and file_hash(self.config_path) == pushed:
            fresh = yaml_file.load(self.config_path)
            self.settings = self.settings._replace(notify=fresh.notify, source_hash=fresh.source_hash)
        return self.settings.notify

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ask the loop to end after the step it is in."""
        self.stopping = True

    def once(self) -> bool:
        """Do one tick; say whether Slurm answered."""
        answered = self._tick()
        self._notices()
        return answered

    def _notices(self) -> None:
        try:
            self.desk.step(self.controller.settings, self.controller.cluster, time.time())
            self._said.pop("notices", None)
        except FmslurmError as exc:
            self._say(str(exc), about="notices")
        except Exception as exc:  # noqa: BLE001 - whatever breaks in telling must not keep jobs from coming back
            self._say(f"notices broke: {type(exc).__name__}: {exc}", about="notices")

    def _tick(self) -> bool:
        try:
            self.controller.use(self.current())
            self.controller.tick()
            self._push.refresh(self.slurm, self.controller.settings.site.share, time.monotonic(), self._say)
            if time.time() - self._kept_at > HOUSEKEEPING_S:
                self._kept_at = time.time()
                before = self._kept_at - self.settings.observe.retention_d * 86400
                self.journal.prune(before)
                self.desk.queue.prune(before, self._kept_at)
        except FmslurmError as exc:
            self._say(str(exc))
            return False
        self._said.pop("", None)
        return True

    def run(self) -> None:
        """Tick until told to stop."""
        while not self.stopping:
            started = time.monotonic()
            self.once()
            until = started + max(self.controller.settings.resume.poll_s, 0.1)
            while not self.stopping and (now := time.monotonic()) < until:
                self.server.serve(until=min(until, now + NOTICES_S), stop=lambda: self.stopping)
                if time.monotonic() < until:  # a site that looks at Slurm seldom is told of nodes in time all the same
                    self._notices()

    def close(self) -> None:
        """Close socket and database."""
        self.desk.close()
        self.server.close()
        self.journal.close()

    def _say(self, line: str, *, about: str = "") -> None:
        if line != self._said.get(about):  # a dead slurmctld is worth one line, not one a second
            self._said[about] = line
            sys.stderr.write(f"fmslurm-controller: {line}\n")
            sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon and return its exit code."""
    parser = argparse.ArgumentParser(prog="fmslurm-controller", description="Requeues jobs that died of bad nodes.")
    parser.add_argument("--config", default=os.environ.get("FMSLURM_CONFIG", DEFAULT_PATH), help="fmslurm.yaml")
    parser.add_argument("--once", action="store_true", help="one tick, then end")
    chosen = parser.parse_args(argv)
    try:
        settings = yaml_file.load(chosen.config)
        held = lock(settings)
        loop = Loop(settings, chosen.config)
    except FmslurmError as exc:
        sys.stderr.write(f"fmslurm-controller: {exc}\n")
        return exc.exit_code
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, loop.stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        if chosen.once:
            return EXIT_OK if loop.once() else EXIT_LACKING
        loop.run()
    except Exception as exc:  # a person gets a line; systemd starts us again, and the journal goes on
        sys.stderr.write(f"fmslurm-controller: internal error: {type(exc).__name__}: {exc}\n")
        if os.environ.get("FMSLURM_TRACE"):
            raise
        return EXIT_INTERNAL
    finally:
        loop.close()
        os.close(held)
    return EXIT_OK

"""The main job, played and checked: `fmslurm lab demo` (what `make demo` runs).

Everything is done as a person would: by commands of fmslurm and Slurm, in the lab's environment. What is promised is
looked up afterwards in Slurm, in the trail and in the files, never taken from what a command said it would do.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

from slurm_ext.errors import LackingError, UsageError
from slurm_ext.lab import clean, demo_checks, floors, journal, model
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions
from slurm_ext.lab.show import Show
from slurm_ext.lab.stage import RUN, SOURCE, STEPS, BrokenStoryError, Stage

NODES_OF_JOB = 4
SLOW_LINK_RATE = "20mbit"


class Demo(Stage):
    """One showing, scene by scene. `whole` is the newest step that was whole on Lustre before the job's last start."""

    whole: int | None = None

    def play(self) -> None:
        """Play all scenes in order."""
        self.show.title("fmslurm: one training job, a lost GPU, a slow link, and what the cluster does about them")
        self.show.say(model.SIMULATED, "note")
        self.scene_lab()
        self.scene_install()
        self.scene_topology()
        reference = self.start_reference()
        try:
            self.scene_submit()
            first = self.scene_first_attempt()
            slow = self.scene_prepare_slow_spare(first)
            culprit = self.scene_gpu_fault(first)
            self.scene_slow_spare(slow, culprit)
            self.scene_finish(culprit, slow)
            demo_checks.weights(self, reference)
            demo_checks.why_and_checkpoints(self, culprit, slow)
        finally:
            if reference.poll() is None:
                reference.kill()
            reference.wait(timeout=10)

    def scene_lab(self) -> None:
        """Bring up the cluster."""
        self.show.title("1. A cluster")
        options = LabOptions(dir=self.directory, s3="background")
        self.lab = Lab.up(options, lambda line: self.show.say(line))
        self.show.moment(
            f"Slurm {self.lab.slurm_version} is up with {len(self.lab.nodes)} nodes ({self.lab.state.mode})"
        )
        measured = ", ".join(f"{name} {figure:.3g}" for name, figure in sorted(floors.measure(self.lab).items()))
        self.show.say(f"floors of this simulated fabric, a third of what it does now: {measured}")

    def scene_install(self) -> None:
        """Install fmslurm."""
        self.show.title("2. Install")
        self.fmslurm("install", timeout_s=120)
        self.show.moment("hooks, configuration and daemons are in place")

    def scene_topology(self) -> None:
        """Generate topology and GRES, load them, compare node by node, and ask doctor."""
        assert self.lab is not None
        self.show.title("3. Where the nodes sit, and what they offer")
        slurm = self.lab.path("etc/slurm")
        self.fmslurm("topology", "generate", "-o", str(slurm / "topology.conf"))
        self.fmslurm(
            *("gres", "generate", "--device-dir", str(self.lab.path("dev"))),
            *("--output", str(slurm / "gres.conf"), "--nodes-output", str(slurm / "nodes.conf")),
        )
        self.lab.restart()
        for line in self.fmslurm("topology", "show").stdout.splitlines():
            self.show.quote(line)
        agreed = self.fmslurm("topology", "check", check=False)
        self.show.promise(
            "scontrol show topology agrees node by node", agreed.ok, agreed.stdout.strip() or agreed.words()
        )
        gpus = self.run("sinfo", "-h", "-N", "-o", "%G").stdout.split()
        kept = len(gpus) == len(self.lab.nodes) and all(word.startswith("gpu:h100:8") for word in gpus)
        self.show.promise("every node offers 8 H100", kept, gpus[0] if gpus else "nothing")
        self.lab.wait_s3(timeout_s=60)
        found = self.fmslurm("doctor", check=False)
        for line in found.stdout.splitlines():
            self.show.quote(line)
        failed = [" ".join(line.split()) for line in found.stdout.splitlines() if line.startswith("fail")]
        seen = "" if found.ok else "; ".join(failed) or found.words()
        self.show.promise("fmslurm doctor is green", found.ok, seen)

    def start_reference(self) -> subprocess.Popen[bytes]:
        """Start the uninterrupted run, outside of Slurm, whose weights the job's must equal bit for bit."""
        assert self.lab is not None
        argv = [sys.executable, str(SOURCE / "examples/train.py"), "--local", str(NODES_OF_JOB), "--steps", str(STEPS)]
        argv += ["--port", str(_free_port()), "--out", str(self.lab.path("reference.npy"))]
        with open(self.lab.path("log/reference.log"), "wb") as log:
            # Its own session: the demo ends it by pid, and Ctrl-C at the terminal reaches only the demo. The job's own
            # environment: a BLAS told to use another processor's kernels rounds otherwise. But there are no GPUs here.
            env = {name: value for name, value in self.env().items() if name != "LD_LIBRARY_PATH"}
            return subprocess.Popen(
                argv, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def scene_submit(self) -> None:
        """Submit the job."""
        assert self.lab is not None
        self.show.title("4. Submit")
        folder = self.lab.path("lustre", "checkpoints")
        folder.mkdir(exist_ok=True)
        result = self.fmslurm(
            *("submit", "--fm-resume", f"--fm-run={RUN}", f"--fm-ckpt={folder}", f"-N{NODES_OF_JOB}"),
            *("--gpus-per-node=8", "--exclusive", "--time=20", f"--output={self.lab.path('lustre', 'train.log')}"),
            str(SOURCE / "examples/train.sbatch"),
        )
        words = result.stdout.split()
        if not words or not words[-1].isdigit():
            raise BrokenStoryError(f"sbatch said {result.stdout!r}")
        self.job = words[-1]
        self.show.moment(f"job {self.job} is queued")

    def scene_first_attempt(self) -> list[str]:
        """Wait for the gate to pass and the first checkpoint to be whole on Lustre; return the job's nodes."""
        self.show.title("5. The gate")
        outcome = self.wait("the gate of the first attempt", lambda: demo_checks.passed_burnin(self, "0"), 60)
        self.show.moment(f"the gate passed: {demo_checks.bandwidth(self, outcome)}")
        fields = self.wait("the job to run", lambda: self._running(), 60)
        nodes = self.expand(fields["nodes"])
        leaf = demo_checks.leaves(self, nodes)
        self.show.promise(
            "the job runs on nodes of one leaf switch", len(leaf) == 1, f"{fields['nodes']} on {', '.join(leaf)}"
        )
        step = self.wait("the first whole checkpoint on Lustre", lambda: demo_checks.newest_on_lustre(self), 60)
        self.show.moment(f"step {step} is whole on Lustre while the job goes on")
        return nodes

    def _running(self) -> dict[str, str] | None:
        fields = self.job_fields()
        return fields if fields.get("state") == "RUNNING" and fields.get("reason") in ("None", "(null)", "") else None

    def scene_prepare_slow_spare(self, first: list[str]) -> str:
        """Make the link of one spare slow: no local check can see it."""
        assert self.lab is not None
        spares = [node for node in self.lab.nodes if node not in first]
        slow = spares[1]
        self.fmslurm("lab", "fault", "--dir", self.directory, slow, "slow-link", "--rate", SLOW_LINK_RATE)
        self.show.moment(f"spare {slow} now has a link of {SLOW_LINK_RATE}; nobody knows")
        return slow

    def scene_gpu_fault(self, first: list[str]) -> str:
        """Take a GPU from one node in mid-training; see it drained and the job back in the queue without it."""
        self.show.title("6. A GPU falls off the bus")
        culprit = first[2]
        began = time.monotonic()
        self.show.moment(f"GPU 3 of {culprit} falls off the bus")
        self.fmslurm("lab", "fault", "--dir", self.directory, culprit, "gpu-xid", "--gpu", "3")
        cause = self.wait("the cause to be attributed", lambda: demo_checks.cause(self), 60)
        self.show.moment(f"cause: {cause.reason}")
        named = demo_checks.culprits(cause)
        self.show.promise(
            "the cause is attributed to that node alone", named == [culprit], ", ".join(named) or "nobody"
        )
        reason = self.wait(f"{culprit} to be drained", lambda: self.reason(culprit), 60)
        why = reason.startswith("fmslurm: gpu.") and ("lost" in reason or "xid-79" in reason)
        self.show.promise("the node is drained with a reason that says why", why, reason)
        fields = self.wait("the job to be back in the queue", lambda: self._requeued(culprit), 60)
        seconds = time.monotonic() - began
        self.show.moment(f"the job is {fields['state']} again, {seconds:.1f} s after the fault, without {culprit}")
        self.show.promise(
            "back in the queue with that node excluded", culprit in self.expand(fields["excluded"]), fields["excluded"]
        )
        return culprit

    def _requeued(self, culprit: str) -> dict[str, str] | None:
        fields = self.job_fields()
        back = fields.get("state") in ("PENDING", "CONFIGURING", "RUNNING") and self.restarts() > 0
        return fields if back and culprit in self.expand(fields.get("excluded", "")) else None

    def scene_slow_spare(self, slow: str, culprit: str) -> None:
        """See the burn-in name the slow spare, and only it drain."""
        self.show.title("7. The next start meets the slow link")
        found = self.wait("the burn-in to name a node", lambda: demo_checks.burnin_conviction(self), 120)
        named = demo_checks.culprits(found)
        self.show.moment(f"burn-in: {found.reason}")
        self.show.promise("the burn-in names exactly the slow node", named == [slow], ", ".join(named) or "nobody")
        self.whole = demo_checks.newest_on_lustre(
            self
        )  # the job has not run since the fault: nothing newer is under way
        self.wait(f"{slow} to be drained", lambda: self.reason(slow), 60)
        drained = self.drained()
        self.show.promise(
            "only the two bad nodes are drained", set(drained) == {slow, culprit}, ", ".join(sorted(drained))
        )

    def scene_finish(self, culprit: str, slow: str) -> None:
        """Wait for the job to complete on good nodes, from its newest checkpoint."""
        self.show.title("8. On good nodes, from the newest checkpoint")
        fields = self.wait("the job to run on good nodes", lambda: self._running(), 120)
        nodes = self.expand(fields["nodes"])
        self.show.moment(f"the job runs on {fields['nodes']}")
        self.show.promise("it runs without the bad nodes", not {culprit, slow} & set(nodes), fields["nodes"])
        self.wait("the job to complete", lambda: self.job_fields().get("state") == "COMPLETED", 120)
        self.show.moment("the job is COMPLETED")
        demo_checks.restored(self, self.whole)


def _free_port() -> int:
    """Return a TCP port of loopback that nobody listens on: two demos may run on one machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def play(directory: str, *, keep: bool, as_json: bool) -> int:
    """Play the demo in `directory` and take everything down; return 0 where every promise was kept, 1 where not.

    Ctrl-C and SIGTERM at any moment clean up, too. `keep` leaves the lab standing for a look around.
    """
    if os.geteuid():
        raise LackingError(
            "the demo makes network namespaces and runs slurmctld", remedy="Run it as root: sudo make demo"
        )
    with clean.stopped_once():
        return _play(directory, keep=keep, as_json=as_json)


def _play(directory: str, *, keep: bool, as_json: bool) -> int:
    show = Show()
    demo = Demo(os.path.realpath(directory), show)
    others = False
    made: list[dict[str, Any]] = []
    try:
        demo.play()
    except UsageError:
        others = demo.lab is None  # somebody's lab is in that folder, another demo perhaps: it is not ours to take down
        raise
    except BrokenStoryError as exc:
        show.promise("the story is told to its end", False, str(exc))
        demo_checks.explain(demo)
    finally:
        with clean.undisturbed():
            if keep and demo.lab is not None:
                env, down = f"{demo.directory}/env.sh", f"fmslurm lab down --dir {demo.directory}"
                show.say(f"the lab stays up: . {env}; take it down with {down}")
            elif not others:
                show.say("taking the cluster down")
                made = journal.read(demo.directory)  # gone with the folder, and still what must not be left
                with contextlib.suppress(FileNotFoundError):
                    clean.down(demo.directory)
    if not keep:
        left = clean.leftovers(demo.directory, made)
        left += [f"folder {demo.directory}"] if os.path.lexists(demo.directory) else []
        show.promise("the cluster is taken down without a trace", not left, ", ".join(left))
    good = show.summary(model.SIMULATED)
    if as_json:
        told = {
            "schema": 1,
            "kept": good,
            "seconds": round(show.elapsed(), 1),
            "promises": [promise._asdict() for promise in show.promises],
            "moments": [{"at_s": round(moment.at_s, 1), "text": moment.text} for moment in show.moments],
        }
        sys.stdout.write(json.dumps(told) + "\n")
    return 0 if good else 1

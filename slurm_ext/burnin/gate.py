"""What the prolog hook calls: start this node's agent, wait for its outcome until the deadline, and never touch a GPU.

The agent lives in a session of its own and may be wedged in the kernel: this side only reads a pipe, and goes in time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from slurm_ext.burnin.model import BurninJob, Outcome, outcome_from_json, unknown
from slurm_ext.command import clean_env, collect, leave
from slurm_ext.config.model import Burnin, Settings, at_node
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import open_regular
from slurm_ext.spawn import Program, spawn

#: How much earlier than this side the agent has to be done, at most (seconds); a tenth of a short deadline.
MARGIN_S = 2.0

#: Where the EFA installer puts the plugin and libfabric; on the search path for images that forgot ldconfig.
EFA_LIBRARIES = (
    "/opt/amazon/ofi-nccl/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/efa/lib:/opt/amazon/efa/lib64"
)

_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_START = (
    "import os, sys; os.chdir('/'); sys.path.insert(0, sys.argv[1]); from slurm_ext.burnin.agent import main; main()"
)

#: How often (seconds) a waiting caller is asked whether to go on.
LOOK_EVERY_S = 0.5

#: How the wait for an agent ended: it said something (or its last), was late, or nobody waits any more.
SAID, LATE, LEFT = "said", "late", "left"

#: Rules of an outcome that says something of this node's agent alone.
OF_THIS_NODE = ("burnin.cannot-start", "burnin.agent-died")

#: An outcome with the rounds of 1,024 nodes is far below this.
_ANSWER_MAX = 4 << 20


def work_s(burnin: Burnin, *, nodes: int = 1, strict: bool = False) -> float:
    """Return how long (seconds) nodes that are all there may take until their verdict: the deadline of the burn-in itself."""
    from slurm_ext.burnin import rules

    extra_s = max(0.0, burnin.strict_sustain_s - burnin.sustain_s) if strict else 0.0
    return rules.deadline_for(burnin.deadline_s, nodes, group_nodes=burnin.group_nodes, extra_sustain_s=extra_s)


def longest_s(settings: Settings, *, nodes: int = 1, strict: bool = False) -> float:
    """Return a hook's whole wait (seconds): the burn-in itself, and then as a witness for nodes that come late.

    This is what a hook gives `run_burnin` as `deadline_s`. With less, nodes that passed wait less, or not at all, for others.
    """
    late_s = settings.burnin.late_s if nodes > 1 else 0.0
    return work_s(settings.burnin, nodes=nodes, strict=strict) + late_s


def run_burnin(
    job: BurninJob,
    settings: Settings,
    *,
    deadline_s: float,
    survey: bool = False,
    cgroups: bool = True,
    meanwhile: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Run the burn-in with the other nodes of the job and return its outcome within `deadline_s` (seconds, see `longest_s`).

    What a hook has to know of `measured`: `absent` (never came, or lost), `tested` (who took part), `passed` (whether these
    passed together), `acts` (the node whose hook acts for the job; none: by its own rule). A pass with `absent` lets this
    hook go while the leader waits for the rest. Rule burnin.ended-elsewhere: the attempt is over, nothing is to be done.

    `meanwhile` is called every LOOK_EVERY_S while there is no outcome; where it says no, the outcome is burnin.left.
    `survey` measures all nodes and pairs and judges nothing; `cgroups` False leaves the agent in the caller's cgroup.
    Never raises for what may go wrong outside: then the verdict is unknown.
    """
    started = time.monotonic()
    deadline = started + deadline_s
    margin = min(MARGIN_S, deadline_s / 10)
    config = {
        "job": job._asdict(),
        "site": settings.site._asdict(),
        "burnin": settings.burnin._asdict(),
        "deadline_s": max(0.1, deadline_s - margin),
        "survey": survey,
        "cgroups": cgroups,
    }
    try:
        agent = _start(json.dumps(config).encode(), at_node(settings.site.log_dir, job.node))
    except (OSError, UntrustedFileError) as exc:
        return _here(unknown("burnin.cannot-start", f"cannot start the agent of {job.node}: {exc}"), job.node)
    answer, how = _wait(agent, deadline, meanwhile)
    if how == LATE:
        # Stopped, starved or in the kernel's hands: the whole session goes, and nobody waits for its end.
        _kill(agent.pid)
        collect(agent, within_s=0.05)
    outcome = _here(_parse(answer, how, deadline_s, job.node), job.node)
    return outcome._replace(seconds=time.monotonic() - started)


def _start(config: bytes, log_dir: str) -> Program:
    """Start the agent, which must outlive this process when it has to: so not through `command.run`.

    This process waits for the outcome, not for the agent: whoever lives longer than it collects it, init or the next call.
    """
    os.makedirs(log_dir, mode=0o755, exist_ok=True)
    log = open_regular(os.path.join(log_dir, "burnin.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        agent = spawn(
            [sys.executable, "-I", "-S", "-c", _START, _PACKAGE_ROOT],
            env=clean_env(LD_LIBRARY_PATH=EFA_LIBRARIES),
            feed=True,
            stderr=log,
        )
    finally:
        os.close(log)
    leave(agent)
    assert agent.stdin is not None
    try:
        unsent = memoryview(config)
        while unsent:
            unsent = unsent[agent.stdin.write(unsent) or 0 :]
    except BrokenPipeError:
        pass  # it died at once; the closed pipe of its answer tells
    finally:
        agent.stdin.close()
    return agent


def _wait(agent: Program, deadline: float, meanwhile: Callable[[], bool]) -> tuple[bytes, str]:
    """Read one line until the agent closes its side, the deadline passes or the caller leaves; return it, and how it ended.

    An agent whose answer nobody reads any more sees that, and goes.
    """
    assert agent.stdout is not None
    descriptor = agent.stdout.fileno()
    answer = bytearray()
    how = LATE
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], min(left, LOOK_EVERY_S))[0]:
            if meanwhile():
                continue
            how = LEFT
            break
        chunk = os.read(descriptor, 65536)
        answer += chunk
        if not chunk or answer.endswith(b"\n") or len(answer) > _ANSWER_MAX:
            how = SAID
            break
    agent.stdout.close()
    return bytes(answer), how


def _kill(session: int) -> None:
    try:
        os.killpg(session, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _here(outcome: Outcome, node: str) -> Outcome:
    """Return the outcome with this node as the suspect where its own agent is what failed: the same job, sent back to it,
    would meet the same again. That is no conviction."""
    if outcome.verdict.rule not in OF_THIS_NODE or outcome.measured.get("suspects"):
        return outcome
    return outcome._replace(measured={**outcome.measured, "suspects": [node]})


def _parse(answer: bytes, how: str, deadline_s: float, node: str) -> Outcome:
    if how == LEFT:
        return unknown("burnin.left", f"the hook of {node} left its burn-in")
    if how == LATE:
        return unknown("burnin.deadline", f"the agent of {node} gave no answer within {deadline_s:.0f} s")
    try:
        return outcome_from_json(json.loads(answer))
    except (ValueError, TypeError):
        return unknown("burnin.agent-died", f"the agent of {node} ended without an answer; see burnin.log")

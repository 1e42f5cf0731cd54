"""Is a slow check due on this node, and may it begin? The first is pure; the second looks at this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from slurm_ext.command import clean_env, run, smi_path
from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError
from slurm_ext.gate.slow_result import BROKE, DONE, EFA, HOUR_S, LATE, Last, ended_try
from slurm_ext.hooks import leftovers, slow_end
from slurm_ext.typed import NamedTuple

OFF, R1, R2 = "off", "r1", "r2"

#: After one that was ended for a job, and after one that broke or was late (seconds): not sooner again.
AGAIN_ENDED_S, AGAIN_BROKE_S = 600.0, 3_600.0

#: A node that is out waits for proof: so often (seconds) the check is made again there.
AGAIN_OUT_S = 1_800.0

_NODE = b"SLURMD_NODENAME="

#: How long nvidia-smi may take to say which programs use the GPUs (seconds).
SMI_S = 15.0


class Now(NamedTuple):
    """What a decision rests on. Times are seconds since the epoch; `out_since` is when we drained this node, None where it is
    in use or somebody else's; `booted_s` is when this boot began, None where that is not known."""

    now: float
    boot_id: str
    booted_s: float | None = None
    out_since: float | None = None


def level(settings: Settings, last: Last | None, begun_s: float | None, now: Now) -> str:
    """Return which level is due (r1, r2), empty where none is. `begun_s`: when one was begun last, whatever became of it. Pure.

    r2 loads the GPUs for minutes: it runs only where it is configured and the node is out already.
    """
    chosen = settings.gate.slow_check
    if chosen == OFF:
        return ""
    wanted = R2 if chosen == "dcgm-r2" and now.out_since is not None else R1
    return wanted if _is_due(settings, wanted, last, begun_s, now) else ""


def efa(settings: Settings, last: Last | None, begun_s: float | None, now: Now) -> bool:
    """Say whether EFA's loopback is due: as `level` is. Pure."""
    return settings.gate.efa_loopback and _is_due(settings, EFA, last, begun_s, now)


def _is_due(settings: Settings, wanted: str, last: Last | None, begun_s: float | None, now: Now) -> bool:
    if last is not None and last.boot_id != now.boot_id:
        last = None
    if begun_s is not None and (begun_s > now.now or (now.booted_s is not None and begun_s < now.booted_s)):
        begun_s = None  # of another boot, or the clock was turned back
    if begun_s is None:
        return True
    age_s = now.now - begun_s
    ended = ended_try(last)
    if last is None or max(last.ended_s, ended[0] if ended else 0.0) < begun_s:  # it runs, or it could not write a word
        return age_s >= AGAIN_BROKE_S
    pause_s = settings.gate.slow_every_h * HOUR_S
    if ended is not None:
        pause_s = min(pause_s, AGAIN_ENDED_S)
    elif last.outcome in (LATE, BROKE):
        pause_s = min(pause_s, AGAIN_BROKE_S)
    elif now.out_since is not None:
        is_proof = last.began_s >= now.out_since and last.level == wanted
        pause_s = min(pause_s, AGAIN_OUT_S) if is_proof else 0.0
    return age_s >= pause_s


def is_proof(last: Last | None, now: Now, *, level: str = "") -> bool:
    """Say whether the last slow check was made after this node was taken out, on this boot, to its end. Pure."""
    if last is None or last.outcome != DONE or last.boot_id != now.boot_id or now.out_since is None:
        return False
    return last.began_s >= now.out_since and (not level or last.level == level)


def dcgmi_path(root: str) -> str:
    """Return the dcgmi to run; empty: none."""
    from slurm_ext.gate import ask_dcgm

    return ask_dcgm.path(root)


def efa_tools(root: str) -> tuple[str, ...]:
    """Return fi_info and fi_pingpong of the EFA installer (or, for the machine itself, of its libfabric); empty: not both."""
    from slurm_ext.gate import efa_live_node

    found = tuple(efa_live_node.tool(root, name) for name in ("fi_info", "fi_pingpong"))
    return tuple(path for path in found if path is not None) if all(found) else ()


def argv(dcgmi: str, wanted: str) -> tuple[str, ...]:
    """Return the command line of a level."""
    return (dcgmi, "diag", "-r", wanted.removeprefix("r"), "-j")


def not_idle(run_dir: str, root: str, node: str, over: Callable[[Sequence[str]], Collection[str]] | None = None) -> str:
    """Return in words why this node is not idle, empty where it is: a job, its prolog, a burn-in, or a program on the GPUs.

    `over` says which of some job ids Slurm holds to be over: an epilog that was killed leaves its job's file behind.
    """
    try:
        if here := _jobs(run_dir, over):
            return here
        if burning := [one for one in leftovers.named(run_dir) if _lives(one)]:
            return f"a burn-in is here: pid {burning[0].pid}"
    except OSError as exc:
        return f"{exc.filename} cannot be read ({exc.strerror})"
    if prologs := _prologs(node):
        return f"a prolog runs: pid {prologs[0]}"
    try:
        said = run(
            [smi_path(root), "--query-compute-apps=pid", "--format=csv,noheader"], timeout_s=SMI_S, env=clean_env()
        )
    except FmslurmError as exc:
        return f"which programs use the GPUs is not known: {exc}"
    if not said.ok:
        return f"which programs use the GPUs is not known: {said.words()}"
    busy = [line for line in said.stdout.split() if line.isdigit()]
    return f"programs use the GPUs: pid {', '.join(busy[:4])}" if busy else ""


def _jobs(run_dir: str, over: Callable[[Sequence[str]], Collection[str]] | None) -> str:
    """Return in words which job is here, empty where none is: Slurm is asked about files whose job has no step here."""
    try:
        names = os.listdir(os.path.join(run_dir, "jobs"))
    except FileNotFoundError:
        return ""
    jobs = sorted(name[:-5] for name in names if name.endswith(".json") and name[:-5].isdigit())
    if not jobs:
        return ""
    steps = _steps()
    if here := next((job for job in jobs if job in steps), ""):
        return f"a job is here: {here}"
    try:
        gone = over(jobs) if over is not None else ()
    except FmslurmError as exc:
        return f"a job may be here: {jobs[0]}; {exc}"
    here = next((job for job in jobs if job not in gone), "")
    return f"a job is here: {here}" if here else ""


def _steps() -> set[str]:
    """Return the jobs that have a step on this machine, by the titles of slurmstepd: `slurmstepd: [JOB.STEP]`."""
    found = set()
    for process in slow_end.processes():
        if process.name == "slurmstepd" and _is_roots(process.pid):
            title = _words(process.pid, "cmdline")[:1]
            found.add(title[0].partition(b"[")[2].partition(b".")[0].decode("ascii", "replace") if title else "")
    return found


def _lives(one: leftovers.Process) -> bool:
    found = slow_end.read(one.pid)
    return found is not None and found.start == one.start and found.state not in "ZX"


def _is_roots(pid: int) -> bool:
    """Say whether a process is root's, or ours where we are not: what users name their programs says nothing."""
    try:
        return os.stat(f"/proc/{pid}").st_uid in (0, os.geteuid())
    except OSError:
        return False


def _prologs(node: str) -> list[int]:
    """Return prologs and epilogs of ours that run on this machine, but for those of another node that slurmd plays here."""
    found = []
    for process in slow_end.processes():
        words = _words(process.pid, "cmdline")
        is_hook = any(word.endswith(b"fmslurm-hook") for word in words[:4]) and {b"prolog", b"epilog"} & set(words[:6])
        if is_hook and _is_roots(process.pid):
            names = [word.partition(b"=")[2] for word in _words(process.pid, "environ") if word.startswith(_NODE)]
            if not names or names[0] == node.encode():
                found.append(process.pid)
    return found


def _words(pid: int, name: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read(64 << 10).split(b"\0")
    except OSError:
        return []

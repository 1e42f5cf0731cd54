"""What the checks measured when a job began, kept for its epilog: one file for each job below the run folder, root's alone.

A count that stands still is no fault of the job that ends now; only with the count from its beginning can its epilog tell.
A baseline that is missing, of another attempt, or of another boot is none: nothing is then said to have grown.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping

from slurm_ext.files import read_trusted
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.jobfile import path_of
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import Finding

FOLDER, SCHEMA = "baselines", 1

#: The counters of 8 GPUs and 32 EFA devices are some 20 KiB; what is larger is not kept.
MAX_BYTES = 256 << 10

#: So many files may lie there; the oldest, whose epilog never ran, go.
FILES_MAX = 256

#: An attempt's prolog runs when the attempt has started; Slurm's clock and this node's may differ by so much (seconds).
CLOCKS_S = 120.0

#: A clock that is disciplined drifts by less than this (seconds) in a job's time.
JUMP_S = 5.0


class Baseline(NamedTuple):
    """One attempt's beginning. `began_s`: CLOCK_BOOTTIME; `at_s`: seconds since the epoch, as the clock stood then.

    `found`: what the look showed already, `id target` each. `kept`: by name of a probe, see gate/probes.py.
    """

    job_id: str
    restarts: int
    boot_id: str
    began_s: float
    at_s: float
    found: tuple[str, ...] = ()
    kept: Mapping[str, Any] = {}


def boot_id(root: str) -> str:
    """Return the id of this boot, empty where it cannot be read."""
    try:
        with open(os.path.join(root, "proc/sys/kernel/random/boot_id"), encoding="ascii", errors="replace") as stream:
            return stream.read(64).strip()
    except OSError:
        return ""


def names(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return findings by what makes them the same one again."""
    return tuple(dict.fromkeys(f"{finding.id} {finding.target}" for finding in findings))


def _path(run_dir: str, job_id: str) -> str:
    return os.path.join(run_dir, FOLDER, os.path.basename(path_of(run_dir, job_id)))


def write(run_dir: str, baseline: Baseline) -> str:
    """Write a job's baseline over an older one; return why not where that failed. Then no older one is left either."""
    text = json.dumps({"schema": SCHEMA, **baseline._asdict()}, separators=(",", ":"))
    path = _path(run_dir, baseline.job_id)
    try:
        if len(text) > MAX_BYTES:
            raise ValueError(f"{len(text)} bytes, {MAX_BYTES} are allowed")
        _replace(path, text)
    except (OSError, ValueError) as exc:
        remove(run_dir, baseline.job_id)
        return str(exc)
    return ""


def _replace(path: str, text: str) -> None:
    # Of this boot only, so nothing is flushed to a disk; whoever reads sees all of it or nothing.
    temporary = path + "~"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, 0o600)
    except FileExistsError:
        os.unlink(temporary)
        descriptor = os.open(temporary, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, path)


def read(run_dir: str, job: HookJob, boot: str) -> tuple[Baseline | None, str]:
    """Return the baseline of this attempt on this boot, or None and why there is none.

    `job.restarts` is what the prolog knew, where that is known: Slurm 22.05 shows a requeued job's epilog the next count.
    """
    try:
        data = json.loads(read_trusted(_path(run_dir, job.job_id), max_bytes=MAX_BYTES * 2))
        found = Baseline(
            str(data["job_id"]),
            int(data["restarts"]),
            str(data["boot_id"]),
            float(data["began_s"]),
            float(data["at_s"]),
            tuple(str(name) for name in data["found"]),
            {str(name): kept for name, kept in data["kept"].items() if isinstance(kept, dict)},
        )
        if data.get("schema") != SCHEMA:
            return None, "another form"
    except FileNotFoundError:
        return None, "none was written"
    except Exception as exc:  # noqa: BLE001 - untrusted, cut, another form: for the epilog all the same
        return None, f"cannot be used: {type(exc).__name__}: {exc}"[:200]
    if found.job_id != job.job_id or found.restarts != job.restarts:
        return None, f"of another attempt (job {found.job_id}, {found.restarts} restarts)"
    if not boot or found.boot_id != boot:
        return None, "of another boot"
    if job.start_s is not None and found.at_s < job.start_s - CLOCKS_S:
        return None, "from before this attempt started"
    return found, ""


def kept_as_of_now(found: Baseline, *, now: float, boottime: float) -> Mapping[str, Any]:
    """Return what was kept, its times (`at_s`) by the clock as it stands now. `boottime`: CLOCK_BOOTTIME at `now`. Pure.

    A clock that was set back since would make hours into minutes, and a GPU that was held down for one into a slow one.
    """
    jumped = now - (boottime - found.began_s) - found.at_s
    if abs(jumped) < JUMP_S:
        return found.kept
    return {
        name: {**kept, "at_s": kept["at_s"] + jumped} if type(kept.get("at_s")) in (int, float) else kept
        for name, kept in found.kept.items()
    }


def remove(run_dir: str, job_id: str) -> None:
    """Remove a job's baseline, and the oldest of those that no epilog came for."""
    with contextlib.suppress(OSError):
        os.unlink(_path(run_dir, job_id))
    with contextlib.suppress(OSError):
        with os.scandir(os.path.join(run_dir, FOLDER)) as entries:
            aged = sorted((entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in entries)
        for _, path in aged[:-FILES_MAX]:
            os.unlink(path)

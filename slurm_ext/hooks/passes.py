"""Which node sets passed their burn-in here lately, and what makes that void: this node's own word, kept by root.

A node answers for itself alone (boot, driver, NCCL, how the jobs since then ended); the agents' first message carries it,
and nothing is left out unless every node of the job says so. Times are seconds of CLOCK_BOOTTIME: within one boot no change
of the clock makes a pass younger or older. Two files, so that no writer undoes another: passes are written by prologs, the
mark that voids them by epilogs and health checks.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence

from slurm_ext import __version__
from slurm_ext.config.model import Settings, at_node
from slurm_ext.digest import sha256_hex
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import PASS, Verdict

FOLDER, PASSED, VOID = "burnin", "passed.json", "void.json"
SCHEMA = 1

#: Node sets that one node remembers: jobs of many sizes take turns on it.
KEPT = 16

#: How long (seconds) the child that looks at libraries may take: they may lie on a file system that hangs.
LOOK_S = 2.0

#: Where a library that is loaded by its bare name lies, and what changes when the loader's view or EFA's software does.
SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/opt/amazon/efa_installed_packages",
    "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
    "/usr/lib/aarch64-linux-gnu/libnccl.so.2",
    "/usr/lib64/libnccl.so.2",
    "/usr/local/lib/libnccl.so.2",
    "/usr/local/cuda/lib64/libnccl.so.2",
)

#: Where the driver says its version: the module's text, or the parameter of the open and the proprietary one alike.
DRIVER_FILES = ("proc/driver/nvidia/version", "sys/module/nvidia/version")


class Pass(NamedTuple):
    """One burn-in that passed. `began`: CLOCK_BOOTTIME when its prolog began. `stack`: what it ran on and was judged by."""

    nodes: str
    began: float
    boot_id: str
    stack: str
    strict: bool
    attempt: str
    findings: tuple[str, ...] = ()


class Void(NamedTuple):
    """Passes that began before `at` (CLOCK_BOOTTIME of boot `boot_id`) count no more, and why."""

    at: float
    boot_id: str
    why: str


class Now(NamedTuple):
    """This node as it is: what a pass must match. `findings` are what its local look shows."""

    boot_id: str
    stack: str
    findings: tuple[str, ...]
    at: float


def of_nodes(nodes: Iterable[str]) -> str:
    """Return the text that names a set of nodes, in whatever order."""
    return sha256_hex("\n".join(sorted(set(nodes))).encode())


def of_findings(verdict: Verdict) -> tuple[str, ...]:
    """Return what a look found, so that the same again is nothing new. What says that all is well is no finding."""
    found = verdict.findings if verdict.verdict != PASS else ()
    return tuple(sorted({f"{finding.id} {finding.target}" for finding in found}))


def standing(
    passes: Sequence[Pass], void: Void | None, now: Now, nodes: Iterable[str], *, strict: bool, reuse_s: float
) -> tuple[Pass | None, str]:
    """Return the pass of these nodes that still holds here, or None, and why (not) in words. `reuse_s` is in seconds. Pure."""
    if reuse_s <= 0:
        return None, "burnin.reuse_pass_h is 0"
    if not now.boot_id or not now.stack:
        return None, "this node's boot, driver or NCCL cannot be read"
    name = of_nodes(nodes)
    why = "these nodes have not passed together here"
    for one in sorted((one for one in passes if one.nodes == name), key=lambda one: -one.began):
        if one.boot_id != now.boot_id:
            why = "this node was booted since these nodes passed"
        elif not 0 <= now.at - one.began <= reuse_s:
            why = f"these nodes passed {(now.at - one.began) / 3600:.1f} h ago"
        elif one.stack != now.stack:
            why = "driver, NCCL or what is measured changed since these nodes passed"
        elif strict and not one.strict:
            why = "these nodes passed, but not the strict burn-in"
        elif void is not None and void.boot_id in ("", now.boot_id) and one.began <= void.at:
            why = f"these nodes passed, but since then: {void.why}"
        elif new := sorted(set(now.findings) - set(one.findings)):
            why = f"these nodes passed, but since then: {new[0]}"
        else:
            return one, f"these nodes passed together {age(now.at - one.began)} ago ({one.attempt})"
    return None, why


def age(seconds: float) -> str:
    """Return a span of time in words."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def boottime() -> float:
    """Return the seconds since this machine was booted, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def stack(settings: Settings, node: str) -> str:
    """Return the text that changes with the driver, NCCL, EFA's software, or what a burn-in is judged by; empty: not known.

    Looks at files only, in a child that is given up after LOOK_S seconds.
    """
    from slurm_ext.command import call_bounded

    answer = call_bounded(lambda: _stack(settings, node), timeout_s=LOOK_S)
    return answer.decode("ascii", "replace") if answer else ""


def _stack(settings: Settings, node: str) -> bytes:
    root, burnin = at_node(settings.site.root, node), settings.burnin
    driver = ""
    for name in DRIVER_FILES:
        try:
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as stream:
                driver = driver or stream.readline().strip()
        except OSError:
            continue
    prefix = settings.site.prefix
    below = os.path.join(prefix, "current")
    candidates = [burnin.cuda_library, burnin.nccl_library, os.path.join(below, "nccl", "libnccl.so.2")]
    candidates.append(os.path.join(prefix, "nccl", "current", "lib", "libnccl.so.2"))  # what install --nccl placed
    try:  # the packaged wheel's place; a release of ours has one Python
        pythons = sorted(os.listdir(os.path.join(below, "venv", "lib")))
    except OSError:
        pythons = []
    packaged = "site-packages/nvidia/nccl/lib/libnccl.so.2"
    candidates += [os.path.join(below, "venv", "lib", python, packaged) for python in pythons]
    files = []
    for path in (*candidates, *SYSTEM_FILES):
        try:
            state = os.stat(path) if path.startswith("/") else None
        except OSError:
            continue
        if state is not None:
            files.append([os.path.realpath(path), state.st_size, state.st_mtime_ns])
    terms = [
        __version__,
        burnin.transport,
        burnin.message_bytes,
        burnin.floor_busbw_gbs,
        burnin.pair_floor_busbw_gbs,
        burnin.sustain_s,
        burnin.strict_sustain_s,
    ]
    return sha256_hex(json.dumps([driver, files, terms]).encode()).encode()


def read(run_dir: str) -> tuple[tuple[Pass, ...], Void | None]:
    """Return what this node remembers. What root did not write, or has another form, is not there."""
    passes = []
    for item in _load(run_dir, PASSED).get("passes") or ():
        try:
            one = Pass(**{**item, "findings": tuple(item["findings"])})
            passes.append(one._replace(began=float(one.began), strict=one.strict is True))
        except (TypeError, KeyError, ValueError):
            continue
    said = _load(run_dir, VOID)
    try:
        void = Void(float(said["at"]), str(said["boot_id"]), str(said["why"])) if said else None
    except (TypeError, KeyError, ValueError):
        void = Void(boottime(), "", f"{VOID} cannot be read")  # somebody wanted it void: better once too often
    return tuple(passes), void


def remember(run_dir: str, one: Pass) -> str:
    """Write a pass down, the oldest go; return why not where that failed: then it is not reused, and no more."""
    from slurm_ext.files import write_atomic

    earlier, _ = read(run_dir)
    kept = [old for old in earlier if old.nodes != one.nodes and old.boot_id == one.boot_id]
    kept = sorted(kept, key=lambda old: old.began)[-(KEPT - 1) :]
    data = {"schema": SCHEMA, "passes": [each._asdict() for each in (*kept, one)]}
    try:
        write_atomic(os.path.join(run_dir, FOLDER, PASSED), json.dumps(data))
    except OSError as exc:
        return str(exc)
    return ""


def forget(run_dir: str, *, boot_id: str, why: str) -> None:
    """Make void all passes that began before now; where the mark cannot be written, the passes themselves go."""
    from slurm_ext.files import write_atomic

    # Without a pass, too: a burn-in may be under way whose pass must not count, since it began before now.
    if not os.path.isdir(os.path.join(run_dir, FOLDER)):
        return
    mark = {"schema": SCHEMA, "at": boottime(), "boot_id": boot_id, "why": why[:200], "time": time.time()}
    try:
        write_atomic(os.path.join(run_dir, FOLDER, VOID), json.dumps(mark))
    except OSError:  # a full disk lets files be removed
        try:
            os.unlink(os.path.join(run_dir, FOLDER, PASSED))
        except OSError:
            return


def news(run_dir: str, verdict: Verdict) -> str:
    """Return the first thing a look found that was not there when the last pass was written down; empty: nothing new."""
    passes, _ = read(run_dir)
    if not passes:
        return ""
    known = set(max(passes, key=lambda one: one.began).findings)
    return next((text for text in of_findings(verdict) if text not in known), "")


def _load(run_dir: str, name: str) -> Mapping[str, Any]:
    from slurm_ext.files import read_trusted

    try:
        data = json.loads(read_trusted(os.path.join(run_dir, FOLDER, name)))
    except FileNotFoundError:
        return {}
    except Exception:  # noqa: BLE001 - untrusted, cut or no JSON
        return {"broken": True} if name == VOID else {}
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {"broken": True}

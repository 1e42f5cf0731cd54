"""Evidence that leaves the node before it is drained: ParallelCluster terminates a drained node, and its disks with it.

A bundle is a folder in the form of a captured case (case.json and files by role), so `fmslurm gate replay` judges it again:
`<share>/evidence/<node>/<time>-<finding>/`; where the share does not take it, below the node's own state folder. All of it
is done by bounded children, within one deadline. Root's alone; of users' text only what a rule looks at, see evidence_mask.
Imported only where a node is convicted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Mapping

from slurm_ext import __version__, shared
from slurm_ext.command import ABANDON_S, call_bounded
from slurm_ext.config.model import Settings, at_node
from slurm_ext.files import owner_is_trusted, sync_folder
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import decisive
from slurm_ext.hooks import bundle_earlier, evidence, evidence_read
from slurm_ext.hooks.environment import HookJob
from slurm_ext.hooks.evidence import Capture, stamp
from slurm_ext.hooks.evidence_mask import mask_all
from slurm_ext.typed import Any
from slurm_ext.verdict import Finding

FOLDER, SCHEMA = "evidence", 1

#: How long (seconds) all of it may take, and which part of that each step may: reading, trying the replay, share, own disk.
DEADLINE_S = 3.0
_PARTS = (0.3, 0.3, 0.25, 0.15)

#: A bundle is at most so large; what is over is cut, the longest text first.
BUNDLE_BYTES = 2 << 20

#: So many bundles are kept of a node, the newest.
KEPT = 20

_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[A-Za-z0-9._-]{1,100}")


def save(
    settings: Settings,
    job: HookJob | None,
    node: str,
    look: Look,
    *,
    finding: Finding | None = None,
    data: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    share: str = "",
    deadline_s: float = DEADLINE_S,
) -> str:
    """Save what convicted this node and return where: below the share, else below the state folder, else nowhere (empty).

    `finding` is what it is about, where that is not the look's own (a burn-in's); `data` is what else was measured, `before`
    what the job's prolog kept (Look.kept). Never raises.
    """
    try:
        share = share or settings.site.share
        return _save(settings, job, node, look, finding, data or {}, before or {}, share, deadline_s)
    except Exception:  # noqa: BLE001 - evidence is worth a lot, and less than the drain that it is evidence for
        return ""


def words(path: str, share: str) -> str:
    """Return where a bundle is, for the event: a person must know when it lies on the node alone."""
    if not path:
        return "not saved: neither the share nor the state folder took it"
    return (
        path
        if share and path.startswith(os.path.join(share, ""))
        else f"{path} (on the node: the share did not take it)"
    )


def _save(
    settings: Settings,
    job: HookJob | None,
    node: str,
    look: Look,
    finding: Finding | None,
    data: Mapping[str, Any],
    before: Mapping[str, Any],
    share: str,
    deadline_s: float,
) -> str:
    now = time.time()
    about = finding or decisive(look.verdict)
    if about is None:
        return ""
    # A child that hangs in the kernel is waited for a moment more before it is left behind.
    limits = [part * max(deadline_s - ABANDON_S, deadline_s / 4) for part in _PARTS]
    root = at_node(settings.site.root, node)
    raw = evidence_read.read_again(root, limits[0]) | {"min_free_percent": str(settings.gate.min_free_percent)}
    masked = settings.observe.mask
    chosen, said, made = evidence.choose(
        look, raw, about, now, before=before.get("gpu"), masked=masked, timeout_s=limits[1]
    )
    hide = mask_all if masked else (lambda told: told)
    measured = {"measured": json.dumps(hide(dict(data)), indent=1, default=str)} if data else {}
    if about.id.startswith("burnin."):
        chosen, said = Capture("burnin", measured), "a burn-in is judged by its nodes together"
    else:
        made["measured"] = Capture("more", measured)
    context = {
        "node": node,
        "time": stamp(now),
        "finding": about._asdict(),
        "verdict": look.verdict.verdict,
        "findings": [f"{one.id} {one.target}" for one in look.verdict.findings][:64],
        "boot_id": look.facts.boot_id,
        "instance_id": raw.get("instance_id", "").strip(),
        "driver": raw.get("driver", "").splitlines()[:1],
        "job": {"id": job.job_id, "attempt": job.attempt, "gpus": job.gpu_ids, "start_s": job.start_s}
        if job is not None and job.job_id != "0"
        else None,
        "in_window": list(look.in_window[-40:]),
        "replay": said,
        "version": __version__,
        "config": settings.source_hash[:12],
    }
    files = folder_of(chosen, made, hide(context), look.facts.instance_type)
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{re.sub(r'[^A-Za-z0-9._-]', '-', about.id)[:80]}"
    keep_s = settings.observe.retention_d * 86_400
    above = os.path.join(share, FOLDER, node) if share and shared.NODE_NAME.fullmatch(node) else ""
    if (
        above
        and not shared.is_silent()
        and (path := _bounded(lambda: _write(above, name, files, now, keep_s, share), limits[2]))
    ):
        return path
    local = os.path.join(at_node(settings.site.state_dir, node), FOLDER)
    return _bounded(lambda: _write(local, name, files, now, keep_s, ""), limits[3])


def folder_of(
    chosen: Capture, made: Mapping[str, Capture], context: Mapping[str, Any], instance_type: str
) -> dict[str, str]:
    """Return a bundle's files by name: what the case is judged by, and beside it what else was seen. Pure."""
    files: dict[str, str] = {}
    roles: dict[str, str] = {}
    also: dict[str, str] = {}
    for role, text in chosen.texts.items():
        roles[role] = f"{role}.{_ending(role)}"
        files[roles[role]] = text
    for capture in made.values():
        for role, text in capture.texts.items():
            if text and files.get(f"{role}.{_ending(role)}") != text:
                name = f"also-{capture.group}-{role}.{_ending(role)}"
                also[f"{capture.group} {role}"] = name
                files[name] = text
    cut = _cut(files)
    told = {**chosen.context, "bundle": {**context, "cut": cut}}
    files["context.json"] = json.dumps(told, indent=1, default=str) + "\n"
    case = {
        "schema": SCHEMA,
        "group": chosen.group,
        "instance_type": instance_type or None,
        "files": {**roles, "context": "context.json"},
        "also": also,
        "source": "saved by fmslurm before a drain",
        "origin": "captured",
    }
    files["case.json"] = json.dumps(case, indent=1) + "\n"
    return files


def _ending(role: str) -> str:
    return "json" if role.startswith("tree") or role == "measured" else "csv" if role == "smi_csv" else "txt"


def _cut(files: dict[str, str]) -> list[str]:
    """Cut texts in place so that all fit, first what is beside the case; return the names of what was cut."""
    cut = []
    for name in sorted(files, key=lambda name: (not name.startswith("also-"), -len(files[name]))):
        size = sum(len(text.encode("utf-8", "replace")) for text in files.values())
        limit = evidence_read.TEXT_BYTES
        own = len(files[name].encode("utf-8", "replace"))
        if size > BUNDLE_BYTES - (64 << 10):
            limit = max(min(limit, own - (size - BUNDLE_BYTES + (64 << 10))), 0)
        if own > limit:
            # The newest lines of a log, the first rows of a table.
            text = files[name].encode("utf-8", "replace")
            part = text[len(text) - limit :] if "kmsg" in name else text[:limit]
            files[name] = part.decode("utf-8", "ignore")
            cut.append(name)
    return cut


def _bounded(work: Callable[[], str], timeout_s: float) -> str:
    def guarded() -> bytes:
        try:
            return work().encode()
        except (OSError, ValueError):
            return b""

    return (call_bounded(guarded, timeout_s=timeout_s) or b"").decode("utf-8", "replace")


def _write(above: str, name: str, files: Mapping[str, str], now: float, keep_s: float, share: str) -> str:
    """Write a folder, whole or not at all, and take old ones away; return its path, or that of this incident's first."""
    if share and not shared.is_share(share):
        return ""
    os.makedirs(above, mode=0o700, exist_ok=True)
    if not owner_is_trusted(os.stat(above)):
        return ""
    if earlier := bundle_earlier.find(above, name, files["context.json"], now):
        return earlier
    temporary = os.path.join(above, f".{name}.{os.urandom(6).hex()}")
    os.mkdir(temporary, 0o700)
    try:
        for file, text in files.items():
            descriptor = os.open(
                os.path.join(temporary, file),
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(descriptor)
        path = _place(temporary, os.path.join(above, name))
    except BaseException:
        _remove(temporary)
        raise
    sync_folder(above)
    with contextlib.suppress(OSError):
        _prune(above, now, keep_s, os.path.basename(path))
    return path


def _place(temporary: str, path: str) -> str:
    """Give a folder its name, or the next one that is free: two hooks may save in one second."""
    for number in range(1, 100):
        wanted = path if number == 1 else f"{path}-{number}"
        try:
            os.rename(temporary, wanted)  # a folder that holds something is never replaced
            return wanted
        except OSError as exc:
            if exc.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
    raise FileExistsError(path)


def _prune(above: str, now: float, keep_s: float, own: str) -> None:
    """Remove bundles that are too old or too many, and what a killed hook left half-written; nothing of another name."""
    names = sorted(os.listdir(above))
    kept = [name for name in names if _NAME.fullmatch(name)]
    oldest = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(max(now - keep_s, 0)))
    gone = [name for name in kept[: max(len(kept) - KEPT, 0)] + [name for name in kept if name[:16] < oldest]]
    for name in names:
        half = (
            name.startswith(".")
            and _NAME.fullmatch(name[1:])
            and name[1:17] < time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(max(now - 3600, 0)))
        )
        if (name in gone or half) and name != own:
            _remove(os.path.join(above, name))


def _remove(folder: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)

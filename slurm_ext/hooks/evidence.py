"""What convicted a node, as captures that `fmslurm gate replay` judges: texts by role, and a context, one group each.

Some of it the look has kept (nvidia-smi's answer, the kernel's lines, mounts), the rest is read once more, each part in a
bounded child of its own. Which group tells the finding again is tried out, not guessed. Imported only where a node is convicted.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_ext.command import call_all_bounded, call_bounded
from slurm_ext.config.model import Settings
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import Facts, KernelLine, Probe
from slurm_ext.gate.probes import PROLOG, Here
from slurm_ext.hooks.evidence_mask import mask
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import Finding

#: One text is cut to so many bytes; no view of a node is longer.
TEXT_BYTES = 256 << 10

#: So many of the kernel's lines are kept, the newest.
KERNEL_LINES = 2000

#: Small files that a person or a rule of group system wants, with the role that they have there.
_SYSTEM = {
    "mdstat": "proc/mdstat",
    "meminfo": "proc/meminfo",
    "load": "proc/loadavg",
    "fstab": "etc/fstab",
    "mountinfo": "proc/self/mountinfo",
}

#: What tells a finding of group system, by the beginning of its id; the other views lie beside it. Others: all of them.
_TOLD_BY = {
    "disk.scratch-": ("scratch",),
    "disk.full": ("df",),
    "disk.no-inodes": ("df_inodes",),
    "disk.": ("lsblk",),
    "raid.": ("mdstat",),
    "fs.": ("mountinfo",),
    "memory.": ("memory_errors",),
    "host.memory": ("meminfo",),
}

#: The first part of a finding's id -> the group that most likely tells it.
_LIKELY = {"gpu": "gpu", "nvswitch": "kernel", "efa": "efa", "lustre": "lustre", "lnet": "lustre", "fs": "lustre"}
GROUPS = ("gpu", "kernel", "efa", "lustre", "system")


class Capture(NamedTuple):
    """One folder of evidence before it is written: `texts` by role, `context` without what is told of the case itself."""

    group: str
    texts: Mapping[str, str]
    context: Mapping[str, Any] = {}


def likely(finding: Finding, facts: Facts) -> tuple[str, ...]:
    """Return the groups in the order in which they are tried: a line of the kernel's own tells where it is from. Pure."""
    first = _LIKELY.get(finding.id.partition(".")[0], "system")
    if finding.evidence and any(line.text == finding.evidence[0] for line in facts.kernel or ()):
        first = "kernel"
    return (first, *(group for group in GROUPS if group != first))


def captures(look: Look, raw: Mapping[str, str], finding: Finding, now: float) -> dict[str, Capture]:
    """Return a capture of each group from what was seen. `now` in seconds since the epoch. Pure."""
    facts = look.facts
    kernel = kmsg(facts.kernel or ())
    boot = {"boot_id": facts.boot_id} if facts.boot_id else {}
    smi: dict[str, str] = {}
    run: dict[str, Any] = {}
    if facts.smi is not None:
        smi = {"smi_csv": facts.smi.text}
        if stderr := facts.smi.said.removeprefix(facts.smi.text.strip()[:2000]).strip():
            smi["stderr"] = stderr
        run = {"command": "nvidia-smi --query-gpu --format=csv", "exit_code": facts.smi.exit_code}
        run |= {"timed_out": facts.smi.timed_out, "elapsed_s": facts.smi.elapsed_s, "now": stamp(now)}
        if facts.links is not None and facts.links.state is not None and finding.id.startswith("gpu.nvlink"):
            smi["nvlink"] = facts.links.state
        if facts.boot_age_s is not None:
            run["boot_time"] = stamp(now - facts.boot_age_s)
    mounts = {"mounts": "\n".join(facts.mounts) + "\n"} if facts.mounts else {}
    of_lustre = _failed(facts.lustre, finding)
    recovery = {"smi_csv": facts.smi.text} if facts.smi is not None and facts.smi.text else {}
    views = {role: raw[role] for role in (*_SYSTEM, "lsblk", "df", "df_inodes", "memory_errors") if raw.get(role)}
    if facts.scratch:
        least = float(raw.get("min_free_percent", "0"))
        views["scratch"] = json.dumps(
            {"min_free_percent": least, "probes": [probe._asdict() for probe in facts.scratch]}
        )
    roles = next((told for prefix, told in _TOLD_BY.items() if finding.id.startswith(prefix)), tuple(views))
    return {
        "gpu": Capture("gpu", smi, run | boot),
        "kernel": Capture("kernel", {"kmsg": kernel, **recovery}, boot),
        "efa": Capture("efa", {"tree": raw["efa"]} if raw.get("efa") else {}, run_times(run)),
        "lustre": Capture(
            "lustre",
            {**({"tree": raw["lustre"]} if raw.get("lustre") else {}), **mounts, **of_lustre[0]},
            {**of_lustre[1], "now": stamp(now)},
        ),
        "system": Capture(
            "system", {role: views[role] for role in roles if role in views}, {"now": stamp(now), **boot}
        ),
        "more": Capture("more", {role: text for role, text in (views | mounts).items() if role not in roles}),
    }


def run_times(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of a run's context."""
    return {key: run[key] for key in ("now", "boot_time") if key in run}


def kmsg(lines: Sequence[KernelLine]) -> str:
    """Return kernel lines as raw /dev/kmsg records, the newest KERNEL_LINES of them; lines without a time stay bare."""
    written = []
    for number, line in enumerate(lines[-KERNEL_LINES:]):
        if line.at_s is not None and line.since_boot:
            written.append(f"4,{number},{round(line.at_s * 1e6)},-;{line.text}")
        else:
            written.append(line.text)
    return "\n".join(written) + "\n" if written else ""


def _failed(probes: Iterable[Probe], finding: Finding) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the words and the context of a probe of a mount, as stat(1) would say them."""
    for probe in probes:
        if finding.target != f"fs:{probe.path}":
            continue
        if not probe.error:
            return {}, {"mount": probe.path}
        command = f"stat {probe.path}"
        if probe.error == "timeout":
            return {}, {"command": command, "timed_out": True, "elapsed_s": probe.seconds, "mount": probe.path}
        number = next((number for number, name in errno.errorcode.items() if name == probe.error), 0)
        words = f"stat: cannot statx '{probe.path}': {os.strerror(number) if number else probe.error}\n"
        return {"stderr": words}, {"command": command, "exit_code": 1, "mount": probe.path}
    return {}, {}


def stamp(at_s: float) -> str:
    """Return a time as captures have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def read_again(root: str, timeout_s: float) -> dict[str, str]:
    """Read what the look has not kept, all parts at once within `timeout_s` seconds; a part that hangs is missing."""
    works: dict[str, Callable[[], bytes]] = {
        "efa": lambda: _efa(root),
        "disks": lambda: json.dumps(_disks(root)).encode(),
        "lustre": lambda: _lustre(root),
        "instance_id": lambda: _text(root, "sys/class/dmi/id/board_asset_tag", 64),
        "driver": lambda: _text(root, "proc/driver/nvidia/version", 4096),
    }
    for role, path in _SYSTEM.items():
        works[role] = lambda path=path: _text(root, path, TEXT_BYTES)  # type: ignore[misc]
    answers = call_all_bounded(works, timeout_s=timeout_s)
    found = {name: answer.decode("utf-8", "replace") for name, answer in answers.items() if answer}
    return {**found, **json.loads(found.pop("disks", "{}"))}


def _text(root: str, name: str, limit: int) -> bytes:
    try:
        descriptor = os.open(os.path.join(root, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        parts, left = [], limit
        while left > 0 and (part := stream.read(left)):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def _efa(root: str) -> bytes:
    from slurm_ext.gate import efa_live_read

    tree = efa_live_read.read(root).tree
    plain = {path: text if isinstance(text, str) else {"error": text.error} for path, text in tree.items()}
    return json.dumps(plain, indent=0).encode()


def _disks(root: str) -> dict[str, str]:
    """Return the local disks as `lsblk -P` prints them, space as df does, and what the memory controllers counted."""
    from slurm_ext.gate import system_quick

    rows = []
    for name in sorted(os.listdir(os.path.join(root, "sys/block"))[:512]):
        if name.startswith("nvme"):
            told = {
                "NAME": name,
                "TYPE": "disk",
                "SIZE": str(int(_text(root, f"sys/block/{name}/size", 32) or b"0") * 512),
                "RO": _word(root, f"sys/block/{name}/ro"),
                "MODEL": _word(root, f"sys/class/nvme/{name.rpartition('n')[0]}/model"),
                "STATE": _word(root, f"sys/class/nvme/{name.rpartition('n')[0]}/state"),
            }
            rows.append(" ".join(f'{key}="{value}"' for key, value in told.items()))
    seen = system_quick.read(_here(root))
    df = ["Filesystem 1024-blocks Used Available Capacity Mounted on"]
    inodes = ["Filesystem Inodes IUsed IFree IUse% Mounted on"]
    for one in (*seen.spaces, *((seen.shm,) if seen.shm is not None else ())):
        sizes = f"{one.size >> 10} {one.used >> 10} {one.available >> 10} {one.used_percent:.0f}%"
        df.append(f"{one.key or '-'} {sizes} {one.path}")
        counts = f"{one.inodes} {one.inodes - one.inodes_free} {one.inodes_free} {one.inodes_percent:.0f}%"
        inodes.append(f"{one.key or '-'} {counts} {one.path}")
    return {
        **({"lsblk": "\n".join(rows) + "\n"} if rows else {}),
        **({"df": "\n".join(df) + "\n", "df_inodes": "\n".join(inodes) + "\n"} if len(df) > 1 else {}),
        **({"memory_errors": json.dumps(seen.memory_errors)} if seen.memory_errors else {}),
    }


def _word(root: str, name: str) -> str:
    return _text(root, name, 256).decode("utf-8", "replace").strip().replace('"', "")


def _lustre(root: str) -> bytes:
    """Return the state of Lustre's connections as a captured tree, nothing where none is mounted."""
    from slurm_ext.gate import lustre_live, probe_lustre

    mounts = probe_lustre.mounted(_text(root, "proc/self/mountinfo", TEXT_BYTES).decode("utf-8", "replace"))
    if not mounts:
        return b""
    here = _here(root)
    seen = probe_lustre.read(here, mounts)
    tree = lustre_live.tree(here, seen)
    plain: dict[str, Any] = {
        path: said if isinstance(said, str) else {"error": said.error} for path, said in tree.items()
    }
    return json.dumps(plain | ({"sys/kernel/debug/lnet/nis": seen.nis} if seen.nis else {}), indent=0).encode()


def _here(root: str) -> Here:
    plain = Settings()
    return Here(root, "", PROLOG, plain._replace(site=plain.site._replace(root=root)))


def choose(
    look: Look, raw: Mapping[str, str], finding: Finding, now: float, *, masked: bool, timeout_s: float
) -> tuple[Capture, str, dict[str, Capture]]:
    """Return the capture that a replay tells the finding from, what the replay said ("same" where it does), and all captures."""
    made = captures(look, raw, finding, now)
    if masked:
        made = {
            name: one._replace(texts={role: mask(text) for role, text in one.texts.items()})
            for name, one in made.items()
        }
    order = likely(finding, look.facts)
    work = lambda: _told(made, order, finding, look.facts.instance_type).encode()  # noqa: E731
    answer = call_bounded(work, timeout_s=timeout_s)
    group, _, said = (answer or b"").decode("utf-8", "replace").partition(" ")
    if group not in made:
        return made[order[0]], "a replay did not answer in time", made
    return made[group], said, made


def _told(made: Mapping[str, Capture], order: Sequence[str], finding: Finding, instance_type: str) -> str:
    """Return the first group whose replay has the finding, and "same"; else the likely one and what its replay says."""
    from slurm_ext.captured import Case
    from slurm_ext.gate import replay

    first = close = ""
    for group in order:
        if not made[group].texts and not made[group].context.get("timed_out"):
            continue
        capture = made[group]
        verdict = replay.judge_case(Case("", group, instance_type, capture.texts, capture.context))
        about = [one for one in verdict.findings if (one.target, one.action) == (finding.target, finding.action)]
        if any(one.id == finding.id for one in about):
            return f"{group} same"
        if about and not close:
            close = f"{group} the same target and action, as {about[0].id}"
        first = first or f"{group} {verdict.verdict}: {verdict.reason}"
    return close or first or f"{order[0]} nothing was seen that a replay could judge"

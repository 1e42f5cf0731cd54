"""What convicted a node, as captures that `fmslurm gate replay` judges: texts by role, and a context, one group each.

Some of it the look has kept (nvidia-smi's answer, the kernel's lines, mounts), the rest is read once more, each part in a
bounded child of its own. Which group tells the finding again is tried out, not guessed. Imported only where a node is convicted.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence

from slurm_ext.command import call_bounded
from slurm_ext.gate import gpu_growth
from slurm_ext.gate.local import Look
from slurm_ext.gate.model import Facts, KernelLine, Probe
from slurm_ext.hooks.evidence_mask import mask
from slurm_ext.hooks.evidence_read import SYSTEM
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import Finding

#: So many of the kernel's lines are kept, the newest.
KERNEL_LINES = 2000

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

#: The counters of a GPU whose growth may convict: our name -> nvidia-smi's.
_COUNTERS = {
    f"{ours}_us": f"clocks_event_reasons_counters.{theirs}"
    for ours, theirs in (
        ("hw_thermal", "hw_thermal_slowdown"),
        ("power_brake", "hw_power_brake_slowdown"),
        ("sw_thermal", "sw_thermal_slowdown"),
    )
}

#: Findings that two readings tell.
_OF_GROWTH = ("gpu.hw-", "gpu.sw-thermal")

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


def captures(
    look: Look, raw: Mapping[str, str], finding: Finding, now: float, before: Mapping[str, Any] | None = None
) -> dict[str, Capture]:
    """Return a capture of each group from what was seen. `now` in seconds since the epoch. Pure.

    `before` is what the job's prolog kept of the GPUs.
    """
    before = before or {}
    facts = look.facts
    kernel = kmsg(facts.kernel or ())
    boot = {"boot_id": facts.boot_id} if facts.boot_id else {}
    own = {"own_devices": list(facts.own_devices)} if facts.own_devices else {}
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
        if finding.id.startswith(_OF_GROWTH) and (two := readings(before, gpu_growth.keep(facts.smi), now)):
            smi = two
        if facts.boot_age_s is not None:
            run["boot_time"] = stamp(now - facts.boot_age_s)
    mounts = {"mounts": "\n".join(facts.mounts) + "\n"} if facts.mounts else {}
    of_lustre = _failed(facts.lustre, finding)
    recovery = {"smi_csv": facts.smi.text} if facts.smi is not None and facts.smi.text else {}
    views = {role: raw[role] for role in (*SYSTEM, "lsblk", "df", "df_inodes", "memory_errors") if raw.get(role)}
    if facts.scratch:
        least = float(raw.get("min_free_percent", "0"))
        views["scratch"] = json.dumps(
            {"min_free_percent": least, "probes": [probe._asdict() for probe in facts.scratch]}
        )
    roles = next((told for prefix, told in _TOLD_BY.items() if finding.id.startswith(prefix)), tuple(views))
    return {
        "gpu": Capture("gpu", smi, run | boot),
        "kernel": Capture("kernel", {"kmsg": kernel, **recovery}, boot | own),
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


def readings(before: Mapping[str, Any], after: Mapping[str, Any], now: float) -> dict[str, str]:
    """Return two readings of the GPUs' counters, when a job began and now, as nvidia-smi would print them. Pure.

    `before` and `after` are what the gate keeps of them (gpu_growth.keep), `before` with its time `at_s`.
    """
    gpus, began = before.get("gpus"), before.get("at_s")
    if not isinstance(gpus, Mapping) or type(began) not in (int, float) or not after:
        return {}
    tables = []
    for at_s, counted in ((began, gpus), (now, after)):
        lines = [", ".join(("index", "uuid", "driver_version", "timestamp", *_COUNTERS.values()))]
        for name, one in counted.items():
            told = [str(one.get(field, "[N/A]")) for field in _COUNTERS]
            number = str(one.get("target", "")).partition(":")[2]
            when = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(at_s))
            lines.append(", ".join((number, str(name), str(one.get("driver", "")), when, *told)))
        tables.append("\n".join(lines) + "\n")
    return {"smi_csv": tables[0], "smi_csv_second": tables[1]}


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


def choose(
    look: Look,
    raw: Mapping[str, str],
    finding: Finding,
    now: float,
    *,
    before: Mapping[str, Any] | None = None,
    masked: bool,
    timeout_s: float,
) -> tuple[Capture, str, dict[str, Capture]]:
    """Return the capture that a replay tells the finding from, what the replay said ("same" where it does), and all captures."""
    made = captures(look, raw, finding, now, before)
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

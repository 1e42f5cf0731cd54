"""Judge a captured folder of group `system`: each role by the rules that the live gate uses. Never its right answer."""

from __future__ import annotations

import json
from collections.abc import Callable

from slurm_ext.aws import catalogue
from slurm_ext.captured import Case
from slurm_ext.gate import (
    block_rules,
    clock_rules,
    disk_rules,
    ec2_events,
    gpu_process_rules,
    host_rules,
    kernel_log,
    kernel_rules,
    mount_rules,
    process_rules,
    rules,
    service_rules,
    system_host,
    tables,
)
from slurm_ext.gate.case_context import FILES, files_in, jobs_of, references, role_of, tool_of
from slurm_ext.gate.model import Judged, Probe, judged
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, UNKNOWN

#: Findings that something is not in the list: a list that was not finished does not prove them.
_ABSENCE = ("disk.nvme-missing", "fs.not-mounted", "host.socket-missing", "host.memory-missing")

#: Exit codes that are an answer: systemctl tells states with 1, 3 and 4, the others a part that they could not read.
_ANSWERS = {"systemctl": (1, 3, 4), "findmnt": (1,), "lsblk": (32, 64), "ls": (1, 2), "df": (1,), "ps": (1,)}
_NO_UNIT = pattern(r"Unit \S+ could not be found")
_DENIED = pattern(r"^\w+: .*: (?:Operation not permitted|Permission denied)$")


def judge(case: Case) -> list[Judged]:
    """Return what the folder says. A probe that failed adds an unknown, and convicts by what it printed before only."""
    return _Reader(case).judge()


class _Reader:
    """One folder with what all roles need: jobs, times, the type's shape."""

    def __init__(self, case: Case) -> None:
        self.case = case
        context = case.context
        self.command = str(context.get("command") or "")
        self.tool = tool_of(self.command)
        self.texts = self._texts()
        now = tables.moment_s(context.get("now"))
        self.now_s = now
        self.jobs = jobs_of(context, now)
        self.shape = catalogue.host(case.instance_type)
        self.want = host_rules.expected(self.shape, references(context))
        self.processes = (process_rules.parse_ps(self.texts.get("ps", ""), self.command) or ([], True))[0]

    def _texts(self) -> dict[str, str]:
        """Return the texts by role: stdout under the role of the tool that wrote it, a tree's files under theirs."""
        texts = {role: text for role, text in self.case.texts.items() if role not in ("stdout", "stderr", "tree")}
        if self.case.texts.get("stdout", "").strip() and (role := role_of(self.command)) and role not in texts:
            texts[role] = self.case.texts["stdout"]
        if self.tool == "systemctl" and _NO_UNIT.search(self.case.texts.get("stderr", "")):
            texts["systemctl"] = texts.get("systemctl", "") + "\n" + self.case.texts["stderr"]
        for path, content in files_in(self.case.texts.get("tree", "")).items():
            role = next((role for end, role in FILES.items() if f"/{path}".endswith(end)), "")
            if role and isinstance(content, str):
                texts.setdefault(role, content)
        return texts

    def judge(self) -> list[Judged]:
        readers: dict[str, Callable[[str], list[Judged] | None]] = {
            "ps": self._ps,
            "compute_apps": self._apps,
            "smi_table": self._smi_table,
            "smi_q_xml": lambda text: gpu_process_rules.judge(
                gpu_process_rules.parse_xml(text), self.jobs, self.processes
            ),
            "df": lambda text: self._df(text, "space"),
            "df_inodes": lambda text: self._df(text, "inodes"),
            "ls": self._ls,
            "findmnt": self._findmnt,
            "lsblk": self._lsblk,
            "mdstat": self._mdstat,
            "chronyc": lambda text: clock_rules.judge(text, self.now_s),
            "timedatectl": lambda text: clock_rules.judge(text, self.now_s),
            "systemctl": self._systemctl,
            "meminfo": self._meminfo,
            "lscpu": self._lscpu,
            "load": lambda text: host_rules.judge_load(text, self.want, self.jobs),
            "events": self._events,
            "scratch": self._scratch,
            "memory_errors": self._memory_errors,
            **dict.fromkeys(("dmesg", "journal", "kmsg", "syslog"), self._kernel),
        }
        items: list[Judged] = []
        read = 0
        failed = self._failed()
        for role, text in self.texts.items():
            if role not in readers:
                continue
            read += 1
            found = readers[role](text)
            if found is None:
                found = [] if failed else [self._unreadable(role, text)]
            items += found
        if {"mounts", "mountinfo", "fstab"} & set(self.texts):
            read += 1
            items += self._mounts()
        words = (self.case.texts.get("stderr", ""), self._stray(), self.case.texts.get("stdout", ""))
        said = disk_rules.judge_errors("\n".join(words if failed else words[:2]), self._points())
        items += said
        if failed and not said:
            items = [item for item in items if item.verdict == FAIL and item.finding.id not in _ABSENCE]
            items.append(judged(UNKNOWN, "probe.failed", "node", "none", failed))
        if not read and not items:
            line = f"nothing here can be judged{': ' + self.command if self.command else ''}"
            items.append(judged(UNKNOWN, "probe.none", "node", "none", line))
        return list({(item.finding.id, item.finding.target): item for item in reversed(items)}.values())[::-1]

    def _failed(self) -> str:
        """Return why the run of the probe is no whole answer, or nothing."""
        context, words = self.case.context, self.command or "the probe"
        if context.get("timed_out"):
            return f"{words}: no answer within {context.get('elapsed_s', 'its')} s"
        stderr = [line for line in self.case.texts.get("stderr", "").splitlines() if line.strip()]
        code = context.get("exit_code", 0)
        if code in (0, None) and ("exit_code" not in context or code == 0):
            if stderr and not self.case.texts.get("stdout", "").strip() and not self.texts:
                return f"{words}: {stderr[0][:200]}"
            return ""
        if (
            code in _ANSWERS.get(self.tool, ())
            and self.texts
            and all(_DENIED.match(line) or _NO_UNIT.search(line) for line in stderr)
        ):
            return ""
        return f"{words} ended with {code}: {stderr[0][:200] if stderr else 'no words'}"

    def _unreadable(self, role: str, text: str) -> Judged:
        line = (text.strip().splitlines() or ["nothing"])[0]
        return judged(UNKNOWN, "probe.unreadable", "node", "none", f"{role} cannot be read: {line[:120]}")

    def _stray(self) -> str:
        """Return the error lines that stand among a tool's rows."""
        texts = (self.texts.get(role, "") for role in ("df", "df_inodes", "ls"))
        return "\n".join(line for text in texts for line in text.splitlines() if line.startswith(("df: ", "ls: ")))

    def _points(self) -> list[tuple[str, str]]:
        found = mount_rules.parse_mounts(self.texts.get("mounts", "")) or []
        found += mount_rules.parse_mountinfo(self.texts.get("mountinfo", "")) or []
        return [(mount.target, mount.fstype) for mount in found]

    def _ps(self, text: str) -> list[Judged] | None:
        found = process_rules.parse_ps(text, self.command)
        if found is None:
            return None
        return process_rules.judge(found[0], self.jobs) + ([] if found[1] else disk_rules.cut("the last row of ps"))

    def _apps(self, text: str) -> list[Judged] | None:
        found = gpu_process_rules.parse_apps(text)
        if found is None:
            return None
        holders, whole = found
        numbers = {
            row.pid: row.number for row in gpu_process_rules.parse_table(self.texts.get("smi_table", "")).holders
        }
        placed = [
            one if one.pci or one.pid not in numbers else one._replace(number=numbers[one.pid]) for one in holders
        ]
        items = gpu_process_rules.judge(placed, self.jobs, self.processes)
        return items + ([] if whole else disk_rules.cut("a row of the programs on GPUs cannot be read"))

    def _smi_table(self, text: str) -> list[Judged] | None:
        table = gpu_process_rules.parse_table(text)
        if not table.complete and not table.used_mib:
            return None
        items = gpu_process_rules.judge_memory(table, self.jobs)
        if "compute_apps" not in self.texts:  # the query names the same programs, and their GPUs by address
            items += gpu_process_rules.judge(table.holders, self.jobs, self.processes)
            if not table.complete:
                items += disk_rules.cut("the table ends before its list of processes")
        return items

    def _df(self, text: str, what: str) -> list[Judged] | None:
        found = disk_rules.parse_df(text)
        if found is None:
            return None
        counts_inodes = any("inodes" in line.lower() for line in text.splitlines()[:2])
        items = disk_rules.judge(found[0], self.jobs, "inodes" if counts_inodes else what)
        return items + ([] if found[1] else disk_rules.cut("a row of df cannot be read"))

    def _ls(self, text: str) -> list[Judged] | None:
        entries = disk_rules.parse_ls(text)
        if entries is None:
            return None
        folders = [word for word in self.command.split() if word.startswith("/")]
        folder = folders[0].rstrip("/") if folders else disk_rules.SHM
        return disk_rules.judge_leftover_files(entries, folder, self.jobs)

    def _findmnt(self, text: str) -> list[Judged] | None:
        found = mount_rules.parse_findmnt(text)
        if found is None:
            return None
        items = disk_rules.judge(found[1], self.jobs)
        if not {"mounts", "mountinfo"} & set(self.texts):
            wanted = mount_rules.parse_fstab(self.texts["fstab"]) if "fstab" in self.texts else None
            items += mount_rules.judge(found[0], wanted, whole=len(found[0]) > 1)
        return items

    def _mounts(self) -> list[Judged]:
        """Return what the table of mounts says; mountinfo tells more than mounts and comes first."""
        role = next((role for role in ("mountinfo", "mounts") if role in self.texts), "")
        if not role:
            return [] if "findmnt" in self.texts or "df" in self.texts else [self._unreadable("mounts", "")]
        read = mount_rules.parse_mountinfo if role == "mountinfo" else mount_rules.parse_mounts
        found = read(self.texts[role])
        if not found:
            return [self._unreadable(role, self.texts[role])]
        wanted = mount_rules.parse_fstab(self.texts["fstab"]) if "fstab" in self.texts else None
        told = self.case.context.get("expected_mounts")
        asked = [mount_rules.Wanted(str(point), "", "", ()) for point in told] if isinstance(told, list) else []
        lines = self.texts[role].splitlines()
        whole = "grep" not in self.command and (self.texts[role].endswith("\n") or len(lines[-1].split()) >= 6)
        items = mount_rules.judge(found, wanted, whole=whole)
        if not whole and not items and wanted is not None:
            items = disk_rules.cut("the table of mounts is not whole")
        return items + [item for entry in asked for item in mount_rules.absent(entry, found)]

    def _lsblk(self, text: str) -> list[Judged] | None:
        found = block_rules.parse_lsblk(text)
        if found is None:
            return None
        told = references(self.case.context)
        count = int(told["nvme"]) if "nvme" in told else self.shape.nvme_count if self.shape else None
        items = block_rules.judge_disks(found, expected=count, disk_gb=self.shape.nvme_gb if self.shape else 0)
        if count is None and self.case.instance_type and not items:
            line = f"how many local disks {self.case.instance_type} has is not known"
            items.append(judged(UNKNOWN, "disk.no-reference", "node", "none", line))
        return items

    def _scratch(self, text: str) -> list[Judged] | None:
        """Judge what a live look found out about the scratch folders, as a bundle of evidence has it."""
        try:
            told = json.loads(text)
            probes, least = [Probe(**probe) for probe in told["probes"]], float(told["min_free_percent"])
            return [item for probe in probes for item in rules.scratch(probe, least)]
        except (KeyError, TypeError, ValueError, RecursionError):
            return None

    def _memory_errors(self, text: str) -> list[Judged] | None:
        """Judge the memory controllers' counts of corrected and uncorrected errors since boot, likewise."""
        try:
            counts = {str(name): (int(few), int(bad)) for name, (few, bad) in json.loads(text).items()}
        except (AttributeError, TypeError, ValueError, RecursionError):
            return None
        return system_host.errors(counts, None)

    def _mdstat(self, text: str) -> list[Judged] | None:
        found = block_rules.parse_mdstat(text)
        return (
            None
            if found is None
            else block_rules.judge_arrays(found, expected=self.shape.nvme_count if self.shape else None)
        )

    def _systemctl(self, text: str) -> list[Judged] | None:
        whole = service_rules.judge_system(text)
        if whole is not None:
            return whole
        units = service_rules.parse(text, self.command)
        if units is None or any(not unit.active and unit.load not in ("not-found", "masked") for unit in units):
            return None
        return service_rules.judge(units, self.case.instance_type)

    def _meminfo(self, text: str) -> list[Judged] | None:
        values = host_rules.parse_meminfo(text)
        return None if values is None else host_rules.judge_memory(values, self.want, self.jobs)

    def _lscpu(self, text: str) -> list[Judged] | None:
        cpus = host_rules.parse_lscpu(text)
        return None if cpus is None else host_rules.judge_cpus(cpus, self.want)

    def _events(self, text: str) -> list[Judged] | None:
        status = ec2_events.parse(text, str(self.case.context.get("instance_id") or ""))
        return None if status is None else ec2_events.judge(status, self.now_s)

    def _kernel(self, text: str) -> list[Judged]:
        lines = kernel_log.parse(text)
        boot_id = str(self.case.context.get("boot_id", "")) or kernel_log.last_boot(lines)
        boot_s = self.case.time_s("boot_time")
        found = kernel_rules.judge(lines, boot_id=boot_id, boot_time_s=boot_s)
        return found + process_rules.judge_hung(
            [line.text for line in lines if kernel_log.same_boot(line, boot_id, boot_s)]
        )

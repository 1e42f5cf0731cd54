"""Judge a captured folder of group `lustre` by the rules of the live gate. Never its right answer."""

from __future__ import annotations

from slurm_ext.captured import Case
from slurm_ext.gate import (
    disk_rules,
    kernel_log,
    kernel_rules,
    lnet,
    lustre_df,
    lustre_facts,
    lustre_mounts,
    lustre_rules,
    mount_rules,
)
from slurm_ext.gate.file_tree import parse_tree
from slurm_ext.gate.lnet import Lnet
from slurm_ext.gate.lustre_facts import Client
from slurm_ext.gate.lustre_rules import Window
from slurm_ext.gate.model import Judged, judged
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

_NO_TOOL = ("command not found", "not found")
#: A call that took this long waited for a server. Our own choice, without a source.
SLOW_S = 5.0
_LOGS = ("kmsg", "dmesg", "journal", "syslog")


def judge(case: Case) -> list[Judged]:
    """Return what the folder says of Lustre."""
    return _Reader(case).judge()


class _Reader:
    """One folder with what its roles share: the mount point, the times, the client and LNet."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.texts = dict(case.texts)
        self.command = str(case.context.get("command", ""))
        self.mount = str(case.context.get("mount") or case.context.get("expected_mount") or "")
        self.client: Client | None = None
        self.lnet: Lnet | None = None
        self.mounts: list[mount_rules.Mount] | None = None
        self._name_stdout()

    def _name_stdout(self) -> None:
        """Give a stdout the role that its command tells."""
        text = self.texts.get("stdout", "")
        role = ""
        if "lfs df" in self.command or text.lstrip().startswith("UUID"):
            role = "df_inodes" if " -i" in self.command else "df"
        elif "lnetctl" in self.command or "list_nids" in self.command:
            role = "lnet"
        elif "findmnt" in self.command:
            role = "findmnt"
        elif "mountinfo" in self.command:
            role = "mountinfo"
        elif "/mounts" in self.command or self.command.split()[-1:] == ["mount"]:
            role = "mounts"
        if role and text.strip() and role not in self.texts:
            self.texts[role] = self.texts.pop("stdout")

    def judge(self) -> list[Judged]:
        """Return the findings of all roles."""
        items: list[Judged] = []
        before = len(self.texts)
        items += self._mounts()
        items += self._run()
        items += self._trees()
        items += self._lnet()
        for role in ("df", "df_inodes"):
            if role in self.texts:
                items += self._df(self.texts[role])
        logs = [self.texts[role] for role in _LOGS if role in self.texts]
        if logs:
            lines = [line for text in logs for line in kernel_log.parse(text)]
            boot_id = str(self.case.context.get("boot_id", "")) or kernel_log.last_boot(lines)
            boot = self._moment("boot_time")
            told = {item.finding.target for item in items}  # the state's history knows when, and of which job
            logged = kernel_rules.judge(lines, boot_id=boot_id, boot_time_s=boot)
            items += [i for i in logged if i.finding.id != "lustre.evicted" or i.finding.target not in told]
        wanted = str(self.case.context.get("expected_lnet") or self.case.context.get("expected_net") or "")
        count = next(
            (self.case.context[k] for k in ("expected_lnet_interfaces", "expected_efa") if k in self.case.context), None
        )
        moved = lustre_rules.judge_transport(
            self.client,
            self.lnet,
            wanted=wanted,
            mount=self.mount,
            interfaces=count if isinstance(count, int) and wanted else None,
        )
        if moved:  # the same interfaces, told by what their loss means
            items = [i for i in items if i.finding.id not in ("lnet.interface-down", "lnet.degraded")]
        items += moved
        if not before:
            items.append(judged(UNKNOWN, "lustre.no-probe", "node", "none", "no file of a kind that can be judged"))
        return _plain(items)

    def _moment(self, *keys: str) -> float | None:
        for key in keys:
            value = self.case.context.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
            if (parsed := self.case.time_s(key)) is not None:
                return parsed
        return None

    def _mounts(self) -> list[Judged]:
        found: list[mount_rules.Mount] | None = None
        whole = True
        for role in ("mountinfo", "mounts", "findmnt"):
            if role not in self.texts or found is not None:
                continue
            text = self.texts[role]
            if role == "findmnt":
                read = mount_rules.parse_findmnt(text) if text.strip() else ([], [])
                found = read[0] if read is not None else None
                whole = len(self.command.split()) < 3 or not any(
                    word.startswith("/") for word in self.command.split()[1:]
                )
            else:
                found = mount_rules.parse_mountinfo(text) if role == "mountinfo" else mount_rules.parse_mounts(text)
                if not text.strip():
                    found = None
            if found is None:
                return [judged(UNKNOWN, "fs.mounts-unreadable", "node", "warn", f"{role} cannot be read")]
        if found is None:
            return []
        self.mounts = found
        wanted = mount_rules.parse_fstab(self.texts["fstab"]) if "fstab" in self.texts else None
        several = self.case.context.get("expected_mounts")
        if isinstance(several, list):
            wanted_at = [self.mount, *(str(point) for point in several)]
            return [item for point in wanted_at for item in lustre_mounts.judge(found, wanted, point)]
        expected = self.mount or ("" if whole else next((w for w in self.command.split()[1:] if w.startswith("/")), ""))
        return lustre_mounts.judge(found, wanted, expected)

    def _points(self) -> list[str]:
        points = [mount.target for mount in self.mounts or () if mount.fstype == "lustre"]
        points += [self.mount] if self.mount else []
        return points or [word for word in self.command.split()[1:] if word.startswith("/")]

    def _run(self) -> list[Judged]:
        """Return what the run of a command says by its end and its words."""
        context, said = self.case.context, self.case.texts.get("stderr", "")
        out = self.texts.get("stdout", "")
        points = self._points()
        if context.get("timed_out"):
            target = f"fs:{points[0]}" if points else "node"
            if "lnetctl" in self.command or "lctl" in self.command.split()[:1]:
                return [judged(UNKNOWN, "lnet.timeout", "node", "warn", f"{self.command} did not end within its time")]
            line = f"no answer within {context.get('elapsed_s', 'its time')} s: {self.command}"
            return [judged(UNKNOWN, "fs.hang", target, "drain", line)]
        code = context.get("exit_code", 0)
        if code in (126, 127) or (code and any(words in said for words in _NO_TOOL)):
            return [judged(UNKNOWN, "lustre.tool-missing", "node", "warn", said.strip()[:200] or f"exit code {code}")]
        if "lfs check" in self.command:
            rows = lustre_df.parse_check(f"{out}\n{said}")
            if rows is not None:
                return lustre_df.judge_check(rows)
        if "get_param" in self.command and (client := lustre_facts.parse_parameters(out)) is not None:
            self.client = client
            return lustre_rules.judge(client, self._window(), self.mount)
        mounted = None if self.mounts is None else any(mount.fstype == "lustre" for mount in self.mounts)
        if "lnetctl" not in self.command:
            others = [mount.target for mount in self.mounts or () if mount.target != "/"]
            found = [
                item
                for text in (said, out if code else "", self.texts.get("ls", ""))
                for item in lustre_mounts.judge_errors(text, points, others, mounted=mounted)
            ]
            found = found or lustre_mounts.judge_listing(f"{out}\n{self.texts.get('ls', '')}", (points or [""])[0])
            if found:
                return found
        if "quota" in self.command and any("*" in word for word in out.split()):
            target = f"fs:{points[0]}" if points else "node"
            return [judged(WARN, "fs.quota", target, "warn", "a quota is exceeded (marked with * by lfs quota)")]
        if "is not a mountpoint" in f"{out}{said}" and points:
            return [judged(FAIL, "fs.not-mounted", f"fs:{points[0]}", "drain", "not a mount point")]
        if (
            "lnetctl" in self.command
            and "lnet" not in self.texts
            and (parsed := lnet.parse(f"{out}\n{said}")) is not None
        ):
            self.lnet = parsed
            return lnet.judge(parsed)
        if code:
            line = said.strip()[:200] or f"{self.command} ended with {code}"
            return [judged(UNKNOWN, "lustre.probe-failed", "node", "warn", line)]
        elapsed = context.get("elapsed_s")
        if isinstance(elapsed, int | float) and elapsed >= SLOW_S and points:
            line = f"{self.command} took {elapsed:g} s"
            return [judged(WARN, "fs.slow", f"fs:{points[0]}", "warn", line)]
        return []

    def _window(self) -> Window:
        end = self._moment("job_end")
        return Window(self._moment("now"), self._moment("job_start"), end)

    def _trees(self) -> list[Judged]:
        for role in ("tree_after", "tree", "tree_before"):
            if role in self.texts:
                tree = parse_tree(self.texts[role])
                if tree is None:
                    return [judged(UNKNOWN, "lustre.output-cut", "node", "none", f"{role} is no tree")]
                self.client = lustre_facts.read(tree)
                window = self._window()
                if window.job_start_s is None and "tree_before" in self.texts and role == "tree_after":
                    before = parse_tree(self.texts["tree_before"])
                    earlier = lustre_facts.read(before) if before is not None else Client()
                    window = window._replace(job_start_s=earlier.read_at_s)
                return lustre_rules.judge(self.client, window, self.mount)
        return []

    def _lnet(self) -> list[Judged]:
        if "lnet" not in self.texts:
            return []
        self.lnet = lnet.parse(self.texts["lnet"])
        if self.lnet is None:
            return [judged(UNKNOWN, "lnet.output-unknown", "node", "warn", "no list of LNet's networks")]
        return lnet.judge(self.lnet, peers_only="peer show" in self.command)

    def _df(self, text: str) -> list[Judged]:
        usage = lustre_df.parse(text)
        if usage is not None:
            items = lustre_df.judge(usage)
            return [i for i in items if i.finding.id != "lustre.output-cut" or not self.case.context.get("timed_out")]
        table = disk_rules.parse_df(text)
        if table is None:
            if text.strip():
                return [judged(UNKNOWN, "lustre.output-unknown", "node", "warn", "no table of space")]
            return [judged(UNKNOWN, "lustre.output-unknown", "node", "warn", "the table of space is empty")]
        items = []
        for usage_of in table[0]:
            if disk_rules.is_network(usage_of) and (usage_of.used_percent or 0.0) >= lustre_df.NEARLY_FULL:
                line = f"{usage_of.used_percent:g} % is used"
                items.append(judged(WARN, "fs.nearly-full", f"fs:{usage_of.target}", "warn", line))
        return items if table[1] else [*items, *disk_rules.cut("the table of space is cut")]


def _plain(items: list[Judged]) -> list[Judged]:
    """Return the findings without those that another view tells nearer to the cause."""
    failed = {item.finding.target for item in items if item.verdict == FAIL}
    kept = [
        item
        for item in items
        if item.verdict == FAIL or item.finding.target not in failed or item.finding.target == "node"
    ]
    if any(item.finding.id != "lustre.probe-failed" and item.verdict != PASS for item in kept):
        kept = [item for item in kept if item.finding.id != "lustre.probe-failed"]  # its reason is told
    found: dict[tuple[str, str], Judged] = {}
    for item in kept:
        found.setdefault((item.finding.id, item.finding.target), item)
    return list(found.values())

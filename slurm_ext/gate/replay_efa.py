"""Judge a captured folder of group `efa` by the rules of the live gate. Never its right answer."""

from __future__ import annotations

from slurm_ext.aws import catalogue, efa_types
from slurm_ext.captured import Case
from slurm_ext.gate import efa_counters, efa_facts, efa_log, efa_rules, kernel_log, kernel_rules, rdma_text
from slurm_ext.gate.efa_facts import Efa
from slurm_ext.gate.efa_rules import Wanted
from slurm_ext.gate.file_tree import Tree, parse_tree
from slurm_ext.gate.model import Judged, judged
from slurm_ext.verdict import FAIL, PASS, UNKNOWN

#: Which role a stdout is, by a word of the command that printed it.
_COMMANDS = (
    ("fi_info", "fi_info"),
    ("lspci", "lspci"),
    ("rdma", "rdma_link"),
    ("ibv_dev", "rdma_link"),
    ("ulimit", "memlock"),
    ("dmesg", "dmesg"),
    ("/dev/infiniband", "ls"),
)
_NO_TOOL = ("command not found", "No such file or directory", "not found", "cannot open shared object")


def judge(case: Case) -> list[Judged]:
    """Return what the folder says of EFA."""
    wanted = _wanted(case)
    texts = _by_role(case)
    if wanted.number is None and "tree_after" in texts and (first := parse_tree(texts.get("tree_before", ""))):
        # What is compared is the window: the first reading tells how many devices there are.
        wanted = wanted._replace(number=len(efa_facts.read(first).devices) or None)
    items: list[Judged] = []
    views = 0
    kernel: list[str] | None = None
    efa: Efa | None = None
    for role in ("tree", "tree_after"):
        if role in texts:
            views += 1
            tree = parse_tree(texts[role])
            if tree is None:
                items.append(_cut(f"{role} is no tree"))
                continue
            efa = efa_facts.read(_with_ls(tree, texts.get("ls", "")))
            items += efa_rules.judge_tree(efa, wanted) or _empty(efa, wanted)
            items += efa_counters.judge(efa.devices)
            kernel = [device.name for device in efa.devices] if efa.looked else kernel
    if "tree_before" in texts and "tree_after" in texts and efa is not None:
        items = _with_growth(items, texts["tree_before"], efa, case)
    elif "tree_before" in texts:
        items.append(judged(UNKNOWN, "efa.no-second-reading", "node", "none", "only a first reading is there"))
    if "rdma_link" in texts:
        views += 1
        items += _rdma(texts["rdma_link"], wanted, case)
        ports, whole = rdma_text.parse_rdma(texts["rdma_link"]) or ([], False)
        if kernel is None and whole and ports:
            kernel = list(dict.fromkeys(port.device for port in rdma_text.efa_ports(ports)))
    if "lspci" in texts:
        views += 1
        found = _lspci(texts["lspci"], wanted, case, kernel)
        # A device that the bus does not have cannot be in sysfs either: one event, told by the nearer view.
        items += [item for item in found if kernel is None or item.finding.id != "efa.missing"]
    if "ls" in texts and efa is None:
        views += 1
        items += efa_rules.judge_nodes(texts["ls"], wanted)
    if "fi_info" in texts:
        views += 1
        items += _fi_info(texts["fi_info"], wanted, case, kernel)
    if "memlock" in texts:
        views += 1
        items += efa_rules.judge_memlock(texts["memlock"])
    logs = [texts[role] for role in ("kmsg", "dmesg", "journal", "syslog") if role in texts]
    if logs:
        views += 1
        lines = [line for text in logs for line in kernel_log.parse(text)]
        boot_id = str(case.context.get("boot_id", "")) or kernel_log.last_boot(lines)
        boot = _moment(case, "boot_time")
        items += efa_log.judge_lines([one.text for one in lines if kernel_log.same_boot(one, boot_id, boot)])
        told = {item.finding.target for item in items}
        logged = kernel_rules.judge(lines, boot_id=boot_id, boot_time_s=boot)
        items += [item for item in logged if item.finding.target not in told or item.finding.target == "node"]
    if not views:
        items.append(judged(UNKNOWN, "efa.no-probe", "node", "none", "no file of a kind that can be judged"))
    return _one_event(items)


def _wanted(case: Case) -> Wanted:
    """Return how many devices there should be: as attached where the context says so, else the type's maximum."""
    now, boot = _moment(case, "now"), _moment(case, "boot_time")
    age = now - boot if now is not None and boot is not None else None
    gpus = catalogue.find(case.instance_type) is not None
    for key in ("expected_efa", "expected_efa_devices", "expected_efa_count", "expected_devices"):
        count = case.context.get(key)
        if isinstance(count, int) and not isinstance(count, bool):
            return Wanted(count, case.instance_type, True, age, gpus)
    return Wanted(efa_types.efa_devices(case.instance_type), case.instance_type, False, age, gpus)


def _moment(case: Case, key: str) -> float | None:
    value = case.context.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else case.time_s(key)


def _by_role(case: Case) -> dict[str, str]:
    """Return the texts with stdout under the role that its command gives it."""
    texts = dict(case.texts)
    command = str(case.context.get("command", ""))
    if "stdout" in texts or ("stderr" in texts and not set(texts) - {"stderr"}):
        for word, role in _COMMANDS:
            if word in command and role not in texts:
                texts[role] = texts.pop("stdout", "") or ""
                break
    return texts


def _with_ls(tree: Tree, listing: str) -> Tree:
    """Return the tree with the nodes that `ls /dev/infiniband` lists."""
    names = [line.split()[-1].rpartition("/")[2] for line in listing.splitlines() if line.split()]
    nodes = {f"dev/infiniband/{name}": "" for name in names if name.startswith(("uverbs", "rdma_cm"))}
    if not listing or ("No such file" not in listing and not nodes and "total" not in listing):
        return tree
    return {**tree, "dev/infiniband/": "", **nodes}


def _empty(efa: Efa, wanted: Wanted) -> list[Judged]:
    """Return what a tree says that holds no list of RDMA devices at all."""
    if efa.looked or efa.unlisted:
        return []
    if wanted.number and efa.module is True:
        return efa_rules.judge_count((), wanted, "sysfs", probed=True)
    if wanted.number and (efa.module is False or efa.on_bus):
        return [judged(FAIL, "efa.driver-not-loaded", "node", "drain", "the EFA driver is not loaded")]
    if wanted.number == 0:
        return efa_rules.judge_count((), wanted, "sysfs")
    return [judged(UNKNOWN, "efa.unreadable", "node", "none", "the tree holds no list of RDMA devices")]


def _with_growth(items: list[Judged], before_text: str, after: Efa, case: Case) -> list[Judged]:
    before_tree = parse_tree(before_text)
    if before_tree is None:
        return [*items, _cut("tree_before is no tree")]
    before = efa_facts.read(before_tree)
    interval = case.context.get("interval_s")
    if not isinstance(interval, int | float) or isinstance(interval, bool):
        start, end = _moment(case, "job_start"), _moment(case, "job_end") or _moment(case, "now")
        interval = end - start if start is not None and end is not None else None
    grown = efa_counters.judge_growth(before.devices, after.devices, interval)
    # A refusal of before the window is not of this window.
    earlier = {device.name: device.counters.get("cmds_err", 0) for device in before.devices}
    stale = {
        f"efa:{device.name}"
        for device in after.devices
        if device.counters.get("cmds_err", 0) <= earlier.get(device.name, 0)
    }
    kept = [item for item in items if item.finding.id != "efa.command-error" or item.finding.target not in stale]
    if any(device.unread for device in before.devices) and not any(device.unread for device in after.devices):
        kept += efa_counters.judge_unread(before.devices)
    if any(item.finding.id == "efa.missing" for item in grown):  # it was there: neither late nor without a name
        kept = [
            i
            for i in kept
            if i.finding.id != "efa.late" and (i.finding.id, i.finding.target) != ("efa.missing", "node")
        ]
    return kept + grown


def _failed(case: Case, tool: str) -> list[Judged]:
    """Return the finding of a run of a tool that says nothing of the node."""
    stderr, code = case.texts.get("stderr", ""), case.context.get("exit_code", 0)
    if case.context.get("timed_out"):
        return [judged(UNKNOWN, "efa.tool-timeout", "node", "warn", f"{tool} did not end within its time")]
    said = f"{stderr}\n{case.texts.get('stdout', '')}"
    if code in (126, 127) or (code and any(words in said for words in _NO_TOOL)):
        return [judged(UNKNOWN, "efa.tool-missing", "node", "warn", f"{tool} cannot be run", stderr.strip()[:200])]
    if "Permission denied" in said or "Operation not permitted" in said:
        return [judged(UNKNOWN, "efa.no-permission", "node", "warn", f"{tool} may not look", stderr.strip()[:200])]
    return []


def _cut(line: str) -> Judged:
    return judged(UNKNOWN, "efa.output-cut", "node", "none", line)


def _rdma(text: str, wanted: Wanted, case: Case) -> list[Judged]:
    failed = _failed(case, "rdma") if "fi_info" not in str(case.context.get("command", "")) else []
    parsed = rdma_text.parse_rdma(text)
    if failed:
        return failed
    if parsed is None and (devices := rdma_text.parse_devices(text)) is not None:
        names = [name for name in devices if efa_facts.is_efa_name(name)]
        if devices and not names and wanted.number is None:
            return [judged(UNKNOWN, "efa.none", "node", "none", "RDMA devices, and none is EFA")]
        return efa_rules.judge_count(names, wanted, "the list of RDMA devices")
    if parsed is None:
        return [judged(UNKNOWN, "efa.output-unknown", "node", "none", "no list of RDMA links", text.strip()[:120])]
    ports, whole = parsed
    mine = rdma_text.efa_ports(ports)
    if ports and not mine and wanted.number is None:
        return [judged(UNKNOWN, "efa.none", "node", "none", "RDMA devices, and none is EFA")]
    if not whole:
        bad = [item for item in efa_rules.judge_ports(mine, Wanted(len(mine))) if item.verdict == FAIL]
        return [*bad, _cut("the list of RDMA links is cut")]
    return efa_rules.judge_ports(mine, wanted)


def _lspci(text: str, wanted: Wanted, case: Case, kernel: list[str] | None) -> list[Judged]:
    failed = _failed(case, "lspci") if "lspci" in str(case.context.get("command", "lspci")) else []
    functions = rdma_text.parse_lspci(text)
    if failed:
        return failed
    if functions is None or not text.strip():
        return [judged(UNKNOWN, "efa.output-unknown", "node", "none", "no list of PCI functions")]
    items = efa_rules.judge_bus(functions, wanted)
    told = {item.finding.target for item in items}
    if kernel:
        line = "on the PCI bus, but the driver made no RDMA device of it"
        for function in functions:
            name = efa_facts.name_at(function.address)
            if name not in kernel and f"efa:{function.address}" not in told:
                # What the driver made nothing of has no name but its address.
                items.append(judged(FAIL, "efa.driver-not-bound", f"efa:{function.address}", "drain", line))
    return items


def _fi_info(text: str, wanted: Wanted, case: Case, kernel: list[str] | None) -> list[Judged]:
    stderr = case.texts.get("stderr", "")
    parsed = rdma_text.parse_fi_info(text if text.strip() else stderr)
    if parsed.error is None and not parsed.is_fi_info:
        failed = _failed(case, "fi_info")
        if failed:
            return failed
        return [judged(UNKNOWN, "efa.output-unknown", "node", "none", "no output of fi_info", text.strip()[:120])]
    if parsed.error not in (None, 61):
        return [judged(UNKNOWN, "efa.libfabric-error", "node", "warn", text.strip()[:200] or stderr.strip()[:200])]
    mine = list(dict.fromkeys(entry.device for entry in parsed.entries if entry.provider == "efa"))
    down = efa_rules.judge_links([entry.device for entry in parsed.entries if entry.up is False])
    if case.context.get("timed_out") or (not parsed.complete and wanted.number and len(mine) < wanted.number):
        return [*down, _cut("the output of fi_info is cut")]
    others = [entry.provider for entry in parsed.entries if entry.provider != "efa"]
    return [*efa_rules.judge_libfabric(mine, wanted, kernel=kernel, others=others), *down]


def _one_event(items: list[Judged]) -> list[Judged]:
    """Return the findings without those that tell one event again: a gone device is gone in every view."""
    unbound = {_named(item.finding.target) for item in items if item.finding.id == "efa.driver-not-bound"}
    missing = {item.finding.target for item in items if item.finding.id == "efa.missing"} | unbound
    if any(item.verdict != PASS and item.finding.id != "efa.no-reference" for item in items):
        items = [item for item in items if item.finding.id != "efa.no-reference"]  # something else is known, or is not
    kept: dict[tuple[str, str], Judged] = {}
    told_of_node = any(item.finding.id in ("efa.missing", "efa.none-there", "efa.driver-not-loaded") for item in items)
    for item in items:
        id_, target = item.finding.id, item.finding.target
        if (
            id_ == "efa.not-in-libfabric"
            and item.verdict != FAIL
            and (target in missing or (target == "node" and told_of_node))
        ):
            continue
        if id_ == "efa.missing" and target in unbound:
            continue
        kept.setdefault((id_, target), item)
    return list(kept.values())


def _named(target: str) -> str:
    """Return a target by the name that the kernel gives to the device at an address, where it is one."""
    name = efa_facts.name_at(target.removeprefix("efa:"))
    return f"efa:{name}" if name else target

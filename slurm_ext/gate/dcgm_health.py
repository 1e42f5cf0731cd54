"""What DCGM's own health watches say: `dcgmi health -c -j`, read by its structure, and what it means for a node. Pure.

Sources, github.com/NVIDIA/DCGM at v3.1.6 to v4.6.0: dcgmi/Health.cpp (body > GPU > children > ID > children > Errors > children >
SYSTEM, with value Healthy, Warning, Failure and the texts in overflow, cut into lines of 54 characters and joined by commas: no
numbers of errors, and the worst word of a system's incidents stands for all), modules/health/DcgmHealthWatch.cpp (which incidents
there are, and how bad), dcgmlib/dcgm_errors.h (their numbers and texts), dcgmlib/src/dcgm_errors.c (severities). What has no name
in Health.cpp (Xids of every system, NVSwitch, IMEX) comes as the system "Internal error".

An incident that nvidia-smi or the kernel's log tells of, too, has their id here, and comes out as one finding with theirs. Xids
are theirs alone to judge: DCGM keeps each until its daemon is restarted, a user's own and one that a reset has mended, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_ext.gate import dcgm_diag
from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any, NamedTuple
from slurm_ext.verdict import PASS, UNKNOWN, WARN, one_line

MAX_CHARS = 1 << 20
_HEALTHY, _WARNING, _FAILURE = "Healthy", "Warning", "Failure"

#: dcgmi's fixed sentences for what is its own (Health.cpp, Command.cpp); what follows them differs.
_OFF = "Error: Health watches not enabled"
_ABSENT = ("Error: Unable to connect to host engine", "Error: unable to establish a connection to the specified host")


class Known(NamedTuple):
    """One incident by a part of its text: DCGM's number and severity for it, and whose finding it is (empty: its system's own).

    `action`: advised in the place of what the severity says.
    """

    text: str
    error: int
    severity: int
    id: str = ""
    action: str = ""


#: Every incident that the health module makes (4.6; 3.x has fewer). Severities are those of dcgm_errors.c where nvidia-smi has a
#: value of its own for the same thing, which can prove it gone; counters and what is set up wrong are a person's to look at.
KNOWN: tuple[Known, ...] = (
    Known("volatile double-bit ECC error", 4, dcgm_diag.ISOLATE, "gpu.ecc-uncorrected"),
    Known("or more retired pages have been detected", 7, dcgm_diag.ISOLATE, "gpu.retired-pages-full"),
    Known("retired pages due to DBEs have been detected", 8, dcgm_diag.ISOLATE, "gpu.retired-pages-full"),
    Known("faulty memory elements", 52, dcgm_diag.ISOLATE, "gpu.unrepairable-memory", "replace"),
    Known("row remapping failed", 80, dcgm_diag.RESET, "gpu.row-remap-failure"),
    Known("(GPU_RESET)", 125, dcgm_diag.RESET, "gpu.recovery-action"),
    Known("(NODE_REBOOT)", 126, dcgm_diag.ISOLATE, "gpu.recovery-action"),
    Known("(DRAIN_P2P)", 127, dcgm_diag.RESET, "gpu.recovery-action"),
    Known("(DRAIN_AND_RESET)", 128, dcgm_diag.RESET, "gpu.recovery-action"),
    Known("pending retired page", 6, dcgm_diag.TRIAGE, "gpu.retired-pages-pending", "reset-gpu"),
    Known("corrupt InfoROM", 9, dcgm_diag.TRIAGE, "gpu.inforom-corrupt", "replace"),
    Known("is currently down", 14, dcgm_diag.TRIAGE, "gpu.nvlink-down"),
    Known("NvLink errors", 71, dcgm_diag.TRIAGE, "gpu.nvlink-errors"),  # 13 and 70, too
    Known("exceeds minimum threshold on GPU", 119, dcgm_diag.TRIAGE, "gpu.nvlink-errors"),  # 121, too
    Known("Fabric Health:", 33, dcgm_diag.TRIAGE, "gpu.fabric-health"),
    Known("Fabric State is", 123, dcgm_diag.MONITOR),
    Known("PCIe replays per minute", 3, dcgm_diag.TRIAGE),
    Known("due to thermal violation", 10, dcgm_diag.MONITOR),
    Known("Cannot reliably read the power usage", 11, dcgm_diag.MONITOR),
    Known("due to power violation", 12, dcgm_diag.MONITOR),
    Known("which is above the threshold", 36, dcgm_diag.TRIAGE),
    Known("errors on NvSwitch", 15, dcgm_diag.TRIAGE),  # 16, too; the kernel's SXid says which
    Known("IMEX", 122, dcgm_diag.TRIAGE),
    Known("exceeded uncorrectable row remap limit", 132, dcgm_diag.TRIAGE),
)

#: The id of what is a system's own, by its name in Health.cpp.
_SYSTEMS: Mapping[str, str] = {
    "PCIe system": "dcgm-health.pcie",
    "NVLINK system": "dcgm-health.nvlink",
    "PMU system": "dcgm-health.pmu",
    "MCU system": "dcgm-health.mcu",
    "Memory system": "dcgm-health.memory",
    "SM system": "dcgm-health.sm",
    "InfoROM system": "dcgm-health.inforom",
    "Thermal system": "dcgm-health.thermal",
    "Power system": "dcgm-health.power",
    "Driver": "dcgm-health.driver",
    "ConnectX system": "dcgm-health.connectx",
}
_OTHER = "dcgm-health.other"

#: `(triggered by XID 79: GPU 3 has fallen off the bus)`, behind the incident that it made.
_BY_XID = pattern(r"\(triggered by XID (\d{1,6})\b(?:[^()]|\([^()]*\))*\)?", needs="triggered by XID")
_XID = pattern(r"(?:Detected XID|\(XID|<XID) (\d{1,6})", needs="XID")
_BEHIND_CHARS = 80


class System(NamedTuple):
    """What one system of an entity came to, in DCGM's words."""

    name: str
    health: str
    text: str = ""


class Entity(NamedTuple):
    """One GPU (or what else DCGM watches), and its systems that are not well."""

    target: str
    is_gpu: bool
    health: str
    systems: tuple[System, ...] = ()


class Report(NamedTuple):
    """One answer. `is_off`: DCGM watches nothing; `is_absent`: its daemon does not run; `error`: neither, and no report."""

    overall: str = ""
    entities: tuple[Entity, ...] = ()
    is_off: bool = False
    is_absent: bool = False
    error: str = ""


def parse(text: str) -> Report:
    """Return what dcgmi said. Never raises: what has another form is an error in words."""
    if len(text) > MAX_CHARS:
        return Report(error="the answer is too long to be read")
    data = dcgm_diag.object_in(text)
    if data is None:
        if _OFF in text:
            return Report(is_off=True)
        if any(sentence in text for sentence in _ABSENT):
            return Report(is_absent=True)
        return Report(error=f"no JSON: {one_line(text, 160)}" if text.strip() else "it said nothing")
    body = _dict(data.get("body"))
    overall = _word(body.get("Overall Health"))
    if not overall:
        return Report(error="it tells no overall health")
    found = [entity for group, value in body.items() if group != "Overall Health" for entity in _entities(group, value)]
    return Report(overall, tuple(found))


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: object) -> str:
    word = _dict(value).get("value")
    return one_line(word, 40) if isinstance(word, str) else ""


def _children(value: object) -> Mapping[str, Any]:
    return _dict(_dict(value).get("children"))


def _entities(group: str, value: object) -> Iterator[Entity]:
    for number, entity in _children(value).items():
        is_gpu = group == "GPU" and number.isascii() and number.isdigit() and len(number) < 4
        told = _children(_children(entity).get("Errors"))
        systems = tuple(System(one_line(name, 40), _word(one), _text(one)) for name, one in told.items())
        target = f"gpu:{int(number)}" if is_gpu else "node"
        yield Entity(target, is_gpu, _word(entity), systems)


def _text(value: object) -> str:
    lines = _dict(value).get("overflow")
    return one_line(
        " ".join(line for line in lines[:64] if isinstance(line, str)) if isinstance(lines, list) else "", 4096
    )


def judge(report: Report) -> list[Judged]:
    """Return what a report means; one that could not be read convicts nobody."""
    if report.error:
        return [no_answer(report.error)]
    items = [item for entity in report.entities for item in _of_entity(entity)]
    if report.overall not in (_HEALTHY, _WARNING, _FAILURE) or (report.overall != _HEALTHY and not items):
        items.append(_unknown("node", f"the overall health is {report.overall}, and nothing says why"))
    return items


def no_answer(why: str) -> Judged:
    """Return that DCGM's watches could not be read."""
    return judged(UNKNOWN, "dcgm-health.no-answer", "node", "none", f"dcgmi health: {why}")


def _unknown(target: str, why: str) -> Judged:
    return judged(UNKNOWN, "dcgm-health.unknown", target, "none", why)


def _of_entity(entity: Entity) -> list[Judged]:
    items = [item for system in entity.systems for item in _of_system(entity, system)]
    if entity.health == _FAILURE and not items:
        items.append(_unknown(entity.target, "DCGM calls it a failure, and does not say what it is"))
    if entity.is_gpu:
        return items
    # MIG's parts of a GPU, switches, whatever comes: never a GPU's finding, and nobody is convicted by it.
    return [
        item._replace(verdict=WARN, finding=item.finding._replace(id=_OTHER, action="warn"))
        if item.finding.id.startswith("gpu.") and item.verdict != PASS
        else item
        for item in items
    ]


def _of_system(entity: Entity, system: System) -> list[Judged]:
    if system.health == _HEALTHY:
        return []
    if system.health not in (_WARNING, _FAILURE):
        return [_unknown(entity.target, f"the health of {system.name} is {system.health or 'not told'}")]
    said = f"DCGM watches {system.name}: {system.text or 'it says no more'}"
    own = _SYSTEMS.get(system.name, _OTHER)
    text = _BY_XID.sub(r"<XID \1>", system.text)
    items = [
        judged(PASS, f"gpu.xid-{int(code)}", entity.target, "none", said)
        for code in dict.fromkeys(found[1] for found in _XID.finditer(text))
    ]
    for one in KNOWN:
        if not _is_told(one.text, text):
            continue
        verdict, action = dcgm_diag.means(one.error, one.severity)
        if system.health == _WARNING:
            verdict, action = WARN, "warn"
        items.append(judged(verdict, one.id or own, entity.target, one.action or action, said))
    if items:
        return items
    if system.health == _FAILURE:
        return [_unknown(entity.target, f"a failure that no table of ours has: {said}")]
    return [judged(WARN, own, entity.target, "warn", said)]


def _is_told(part: str, text: str) -> bool:
    """Say whether an incident is told of by itself, and not only as the name of an Xid."""
    begin = text.find(part)
    while begin >= 0:
        behind = text[begin + len(part) : begin + len(part) + _BEHIND_CHARS]
        mark = behind.find("<XID")
        if mark < 0 or ", " in behind[:mark]:
            return True
        begin = text.find(part, begin + 1)
    return False

"""Evidence put in order for the rules: the last run's hits, kernel signs in its window, what events mean, who is where. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_ext.resume import kernel, signatures
from slurm_ext.resume.kernel import Sign
from slurm_ext.resume.logs import Locator, Said, runs, time_of, year_of
from slurm_ext.resume.model import Earlier, Evidence, NodeEvent, SlurmFacts
from slurm_ext.resume.signatures import Hit

_PROGRESS = re.compile(
    r"\biter(?:ation)?\s*:?\s+\d+|\bstep[:= ]+\s*\d+|'loss': *[\d.]+|\bloss[=: ]+\s*[\d.]+|^\s*\d+%\|"
    r".*\[\d+:\d\d[\d:]*<|Epoch\s*[\d(].*[\d/]"
)
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using \S+?:(\d+\.\d+\.\d+\.\d+)<")
_TIME_LIMIT = re.compile(r"DUE TO TIME LIMIT")

#: Without the job's run time, a kernel line that is older than this before the end is about somebody else.
WINDOW_S = 3 * 3600.0

CAPACITY = re.compile(
    r"Insufficient\w*Capacity|UnfulfillableCapacity|LimitedInstanceCapacity|"
    r"MaxSpotInstanceCountExceeded|SpotMaxPriceTooLow|VcpuLimitExceeded|"
    r"InstanceLimitExceeded|ReservationCapacityExceeded|Failed RunInstances|\(Code:\w+\)|"
    r"ResumeTimeout reached|launch.*(?:timed out|failed)"
)
SPOT = re.compile(
    r"instance-action|[Ss]pot.*(?:interrupt|terminat|reclaim|notice)|BidEvictedEvent|"
    r"Server\.SpotInstanceTermination|spot-instance-terminated|rebalance"
)
MAINTENANCE = re.compile(
    r"system-reboot|instance-reboot|instance-retirement|instance-stop\b|system-maintenance|"
    r"scheduled_events_check|[Ss]cheduled (?:for )?(?:maintenance|reboot|retirement)|"
    r"[Cc]apacity [Bb]lock.*(?:end|expir)|[Mm]aintenance (?:window|reservation)|planned (?:reboot|maintenance)"
)
_DONE = re.compile(r"\[(?:Completed|Canceled)\]", re.IGNORECASE)
_NOT_BEFORE = re.compile(r"NotBefore=(\S+)")
LOST = re.compile(
    r"[Nn]ot responding|unexpectedly rebooted|\bDOWN\b|ec2_health_check|\bimpaired\b|"
    r"instance_state.*(?:terminated|stopped)|Kill task failed|Duplicate jobid|kernel panic",
    re.IGNORECASE,
)
PROLOG = re.compile(r"[Pp]rolog (?:error|fail)|Prolog failure|Epilog error|launch failed")
SERVICE = re.compile(
    r"(?:fabricmanager|fabric manager|persistenced|nvidia-\w+|gdrcopy|efa|lustre|munge|slurmd|enroot|"
    r"containerd|docker)\S*[: ].*(?:[Ff]ailed|[Ii]nactive|dead|not running)",
)
NODE_FAULT = re.compile(
    r"Kill task failed|Duplicate jobid|Not responding|unexpectedly rebooted|ERROR: nhc|"
    r"check_\w+[: ].*(?:fail|ERROR)|GPU is lost|fallen off the bus|[Uu]ncorrectable|"
    r"Xid \d+|row remap.* fail|"
    r"hardware (?:error|fault|failure)|StatusCheckFailed|system.status.*(?:impaired|failed)|read-only file system",
    re.IGNORECASE,
)
DISK_FULL = re.compile(
    r"disk.*(?:full|100 ?%)|100% .*(?:/|nvme)|no space left|DiskPressure|use(?:d|%)?=100", re.IGNORECASE
)


class Facts(NamedTuple):
    """What the rules look at."""

    slurm: SlurmFacts
    locator: Locator
    last: tuple[Said, ...]
    hits: tuple[Hit, ...]
    before: tuple[tuple[tuple[Said, ...], tuple[Hit, ...]], ...]  # earlier runs in the same log, oldest first
    earlier: tuple[Earlier, ...]
    signs: tuple[Sign, ...]
    events: tuple[tuple[str, NodeEvent], ...]
    instances: dict[str, str]  # instance id -> node
    addresses: dict[str, str]  # IP address -> node
    progressed: bool
    end: float | None

    def at(self, node: str) -> list[NodeEvent]:
        """Return the events of one node."""
        return [event for name, event in self.events if name == node]

    @property
    def several(self) -> bool:
        """True where the job ran on more than one node, so that hosts can be compared."""
        return len(self.slurm.nodes) > 1


def put_in_order(evidence: Evidence) -> Facts:
    """Return the facts of the last run of a job, and what earlier runs in the same log show."""
    slurm = evidence.slurm
    parts = runs(evidence.log)
    end = evidence.end_time if evidence.end_time is not None else _end(evidence)
    year = year_of(evidence.log, end)
    if slurm.last_start is not None and parts:
        stamps = [when for line in parts[-1] if (when := time_of(line, year=year)) is not None]
        if stamps and max(stamps) < slurm.last_start:
            parts.append(())  # everything printed is older than the last start: that run said nothing
    locator = Locator(slurm.nodes, slurm.ranks_per_node, evidence.log)
    last = tuple(locator.locate(line, year=year) for line in (parts[-1] if parts else ()))
    former = Locator(slurm.previous_nodes or slurm.nodes, slurm.ranks_per_node, evidence.log)
    before = []
    for part in parts[:-1]:
        said = tuple(former.locate(line, year=year) for line in part)
        before.append((said, tuple(signatures.scan(said))))
    cut = next((index for index, one in enumerate(last) if _TIME_LIMIT.search(one.text)), len(last))
    progress = [index for index, one in enumerate(last) if is_progress(one.text)]
    survived = progress[-3] if len(progress) >= 3 else -1
    hits = [hit for hit in signatures.scan(last) if hit.place < cut]
    # An error that three further steps followed did not end the run.
    fatal = tuple(hit for hit in hits if hit.place > survived)
    begin = None if end is None else end - (slurm.elapsed_s + 120 if slurm.elapsed_s > 0 else WINDOW_S)
    current = set(slurm.nodes)
    signs = [
        sign
        for node, about in evidence.nodes.items()
        if not current or node in current
        for sign in kernel.read(node, about.kernel)
        if sign.time is None or begin is None or begin <= sign.time <= (end or 0) + 900
    ]
    addresses = {}
    for one in last:
        if (found := _BOOTSTRAP.search(one.text)) and one.node:
            addresses[found.group(1)] = one.node
    return Facts(
        slurm,
        locator,
        last,
        fatal,
        tuple(before),
        evidence.earlier,
        tuple(sorted(signs, key=lambda sign: sign.time if sign.time is not None else float("inf"))),
        tuple((node, event) for node, about in evidence.nodes.items() for event in about.events),
        {about.instance_id: node for node, about in evidence.nodes.items() if about.instance_id},
        addresses,
        bool(progress),
        end,
    )


def is_progress(text: str) -> bool:
    """Say whether a line reports a training step."""
    return bool(_PROGRESS.search(text)) and not re.search(
        r"rror|Exception|[Ll]oading|[Rr]estor|[Ss]aving|loss[=: ]+nan", text
    )


def _end(evidence: Evidence) -> float | None:
    """Return when the run ended, as far as its own last lines tell."""
    year = year_of(evidence.log)
    stamps = [when for line in evidence.log[-200:] if (when := time_of(line, year=year)) is not None]
    if stamps:
        return max(stamps)
    stamps = [
        event.time
        for about in evidence.nodes.values()
        for event in about.events
        if event.time is not None and not MAINTENANCE.search(event.text)  # announced long before
    ]
    if not stamps:
        stamps = [
            when for about in evidence.nodes.values() for line in about.kernel if (when := time_of(line)) is not None
        ]
    return max(stamps) if stamps else None


def planned(event: NodeEvent, end: float | None) -> bool:
    """Say whether an event announces maintenance that was due by the end of the run (and was not called off)."""
    if not MAINTENANCE.search(event.text) or _DONE.search(event.text):
        return False
    if end is not None and (found := _NOT_BEFORE.search(event.text)):
        due = time_of(found.group(1))
        return due is None or due <= end + 3600
    return True


def first_cause(facts: Facts) -> Hit | None:
    """Return the earliest hit that points at a cause: in time where both carry a stamp, else in print order."""
    pointing = [hit for hit in facts.hits if hit.signature.role == "R"]
    if not pointing:
        return None
    first = pointing[0]
    for hit in pointing[1:]:
        if hit.said.time is not None and first.said.time is not None and hit.said.time < first.said.time - 1:
            first = hit
    return first


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|i-[0-9a-f]{8,}|\b\d[\d.:,_-]*\b|\[[^\]]{0,40}\]|'/[^']*'")


def root_of(rule: str, hit: Hit | None, last: tuple[Said, ...]) -> str:
    """Return a text that is the same for two runs that died of the same thing: rule, innermost own frame, line without numbers."""
    if hit is None:
        return rule
    frame = ""
    for one in reversed(last[max(0, hit.place - 40) : hit.place]):
        if (found := _FRAME.search(one.text)) and "site-packages" not in found.group(1):
            frame = f" {found.group(1)}:{found.group(2)}"
            break
    text = hit.said.text.replace(hit.said.node, "#") if hit.said.node else hit.said.text
    return f"{rule}{frame} {' '.join(_VOLATILE.sub('#', text).split())[:160]}"


def died_before(facts: Facts, root: str) -> bool:
    """Say whether an earlier run died of the same root."""
    if any(past.root == root for past in facts.earlier):
        return True
    return any(root_of(hit.signature.name, hit, said) == root for said, hits in facts.before for hit in hits)

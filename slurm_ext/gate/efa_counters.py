"""What EFA's counters say: at one moment, and as growth between two readings. Pure. Thresholds carry their source.

Counters begin at zero when the driver is loaded, so a number alone tells nothing of now, with two exceptions: a command
without completion closes the admin queue for good (amzn-drivers efa_com.c clears the running bit in every such branch),
and a refused command is worth a word. Growth per second is what counts. A work request in error or a silent remote end
names this device, yet the other end may be the cause: that is why growth never fails a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.gate.efa_facts import Device
from slurm_ext.gate.file_tree import DENIED
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import listed
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Growth per second from which a counter is worth a word, and the finding's id. Drops and retransmissions: AWS's limits in
#: aws/eks-node-monitoring-agent monitors/networking/efa/efa.go. It takes 100 for the rest as well; our 1 is
#: stricter and our own choice, without a source: an event that stops a transfer is no packet. AWS names all of these as
#: signs of a degraded network (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-working-monitor.html).
LIMITS: Mapping[str, tuple[float, str]] = {
    "rx_drops": (100.0, "efa.drops"),
    "retrans_pkts": (1000.0, "efa.retransmissions"),
    "retrans_bytes": (1_000_000.0, "efa.retransmissions"),
    "retrans_timeout_events": (1.0, "efa.retransmission-timeouts"),
    "rdma_read_wr_err": (1.0, "efa.work-request-errors"),
    "rdma_write_wr_err": (1.0, "efa.work-request-errors"),
    "unresponsive_remote_events": (1.0, "efa.unresponsive-remote"),
    "impaired_remote_conn_events": (1.0, "efa.impaired-connections"),
}

#: Without a time between two readings, growth is taken as that of a minute.
INTERVAL_S = 60.0

#: Counters are 64 bits wide; only one that was beyond the half can have gone round.
_WRAP = 1 << 64


def judge(devices: Sequence[Device]) -> list[Judged]:
    """Return what one reading of the counters says."""
    items = []
    for device in devices:
        if count := device.counters.get("no_completion_cmds"):
            line = f"{count} admin commands were never completed: the device no longer answers its driver"
            items.append(judged(FAIL, "efa.no-completion", f"efa:{device.name}", "replace", line))
        elif count := device.counters.get("cmds_err"):
            line = f"{count} admin commands were refused since the driver was loaded"
            items.append(judged(WARN, "efa.command-error", f"efa:{device.name}", "warn", line))
    return items + judge_unread(devices)


def judge_unread(devices: Sequence[Device]) -> list[Judged]:
    """Return what is not known since counters could not be read: of the node where it is so on all devices."""
    blind = [device for device in devices if device.unread]
    if not blind:
        return []
    errors = sorted({error for device in blind for error in device.unread.values()})
    id_ = "efa.counters-no-permission" if set(errors) <= set(DENIED) else "efa.counters-unreadable"
    line = f"counters of {listed([device.name for device in blind])} cannot be read ({listed(errors)})"
    targets = ["node"] if len(blind) == len(devices) else [f"efa:{device.name}" for device in blind]
    return [judged(UNKNOWN, id_, target, "warn", line) for target in targets]


def judge_growth(before: Sequence[Device], after: Sequence[Device], interval_s: float | None) -> list[Judged]:
    """Return what grew between two readings `interval_s` seconds apart (None: not known)."""
    earlier = {device.name: device for device in before}
    seconds = interval_s if interval_s is not None and interval_s > 0 else INTERVAL_S
    items: list[Judged] = []
    restarted: list[str] = []
    for device in after:
        first = earlier.get(device.name)
        if first is None:  # a device that came late has no window
            continue
        if _restarted(first.counters, device.counters):
            restarted.append(device.name)
            continue
        items += _grown(device.name, first.counters, device.counters, seconds)
    items = _common(items, len(after))
    gone = [name for name in earlier if name not in {device.name for device in after}]
    for name in gone:
        items.append(
            judged(FAIL, "efa.missing", f"efa:{name}", "replace", "there at the first reading, gone at the last")
        )
    if restarted:
        line = f"counters of {listed(restarted)} are lower than before: they began anew, and the window is not covered"
        targets = ["node"] if len(restarted) == len(after) else [f"efa:{name}" for name in restarted]
        items += [judged(UNKNOWN, "efa.counters-restarted", target, "none", line) for target in targets]
    return items


def _common(items: list[Judged], devices: int) -> list[Judged]:
    """Return what grew on every device alike as one finding of the node: then no single adapter is the one to watch."""
    counts: dict[str, int] = {}
    for item in items:
        counts[item.finding.id] = counts.get(item.finding.id, 0) + 1
    common = {id_ for id_, count in counts.items() if count == devices > 1}
    firsts = {id_: next(item for item in items if item.finding.id == id_) for id_ in common}
    merged = [
        judged(item.verdict, id_, "node", item.finding.action, f"on all {devices} devices", *item.finding.evidence)
        for id_, item in firsts.items()
    ]
    return [item for item in items if item.finding.id not in common] + merged


def _growth(first: int, last: int) -> int:
    return last - first if last >= first else last - first + _WRAP


def _restarted(first: Mapping[str, int], last: Mapping[str, int]) -> bool:
    return any(name in last and last[name] < count < _WRAP // 2 for name, count in first.items())


def _grown(name: str, first: Mapping[str, int], last: Mapping[str, int], seconds: float) -> list[Judged]:
    found: dict[str, list[str]] = {}
    for counter, (limit, id_) in LIMITS.items():
        if counter not in first or counter not in last:
            continue
        growth = _growth(first[counter], last[counter])
        if growth / seconds >= limit:
            found.setdefault(id_, []).append(f"{counter} grew by {growth} in {seconds:g} s")
    # What timed out was sent again: one event, and its gravest word is the time-out.
    if "efa.retransmission-timeouts" in found and "efa.retransmissions" in found:
        found["efa.retransmission-timeouts"] += found.pop("efa.retransmissions")
    # A refused command of the window is told by `judge`, with the count since the driver was loaded.
    return [judged(WARN, id_, f"efa:{name}", "warn", *lines) for id_, lines in found.items()]

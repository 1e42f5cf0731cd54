"""What chrony, timedatectl, ntpd and the kernel say of the clock: in step, not in step, or minutes away. Pure.

A clock that is not in step is worth a note. Minutes of difference stop a node: munge refuses a credential that is older
than its time to live, 300 s by default (munge(1), --ttl). Sources: chronyc(1), timedatectl(1), ntpq(1), ntpstat(1).
"""

from __future__ import annotations

import re

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import moment_s
from slurm_ext.patterns import pattern
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Offset from which a clock counts as out of step (NodeClockSkewDetected of prometheus/node_exporter's mixin).
OFFSET_WARN_S = 0.05

#: Offset at which munge credentials begin to be refused (its default time to live).
OFFSET_FAIL_S = 300.0

#: Half of the root delay plus dispersion bounds the error; chrony itself refuses a source above 3 s (maxdistance).
BOUND_WARN_S = 1.0

#: Eight polls at chrony's longest default interval (2^10 s): the reach register is empty by then.
STALE_S = 8 * 1024.0

_FIELD = pattern(r"\s*([A-Za-z][A-Za-z0-9 ().-]*)[:=](.*)")
_SECONDS = pattern(r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?) seconds?(?: (slow|fast))?")
_SPAN = pattern(r"([+-]?\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min)")
_SOURCE = pattern(r"^([\^=#])([*+\-?x~ ])\s+(\S+)\s+(\d+)\s+(-?\d+)\s+(\d+)\s+(\S+)")
_PEER = pattern(
    r"^([ x.\-+#*o])(\S+)\s+(\S+)\s+(\d+)\s+([a-zA-Z])\s+(\S+)\s+(\d+)\s+(\d+)\s+(-?[\d.]+)\s+(-?[\d.]+)\s+([\d.]+)"
)
_REF_TIME = pattern(r"\w{3} (\w{3}) +(\d+) (\d\d:\d\d:\d\d) (\d{4})")
_NTPTIME = pattern(r"status(?:\s*[:=])?\s*(0x[0-9a-fA-F]+|\d+)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_STA_UNSYNC = 0x40  # linux/timex.h


def judge(text: str, now_s: float | None = None) -> list[Judged] | None:
    """Return what an answer of any of these tools says, None where it is none of theirs (or is cut before the point)."""
    fields = {found[1].strip().lower(): found[2].strip() for line in text.splitlines() if (found := _FIELD.match(line))}
    said: list[list[Judged]] = []
    if "leap status" in fields or ("stratum" in fields and "reference id" in fields):
        tracking = _tracking(fields, now_s)
        said += [] if tracking is None else [tracking]
    answers = [_timedatectl(fields), *(read(text) for read in (_csv, _sources, _peers, _timesync, _ntpstat, _kernel))]
    said += [items for items in answers if items is not None]
    return [item for items in said for item in items] if said else None


def judge_offset(offset_s: float) -> list[Judged]:
    """Return what a distance from true time (seconds) means."""
    if abs(offset_s) >= OFFSET_FAIL_S:
        line = f"{offset_s:.3f} s away from true time: munge refuses credentials that are {OFFSET_FAIL_S:.0f} s old"
        return [judged(FAIL, "clock.offset", "node", "drain", line)]
    if abs(offset_s) > OFFSET_WARN_S:
        return [judged(WARN, "clock.offset", "node", "warn", f"{offset_s:.6f} s away from true time")]
    return []


def unsynchronised(line: str) -> list[Judged]:
    """Return the finding of a clock that nothing keeps in step."""
    return [judged(WARN, "clock.unsynchronised", "node", "warn", line)]


def _seconds(text: str) -> float | None:
    """Return the offset in `0.000001183 seconds slow of NTP time`, positive where the clock is fast."""
    found = _SECONDS.search(text)
    if found is None:
        return None
    return -float(found[1]) if found[2] == "slow" else float(found[1])


def _tracking(fields: dict[str, str], now_s: float | None) -> list[Judged] | None:
    leap = fields.get("leap status", "").lower()
    reference, stratum = fields.get("reference id", ""), fields.get("stratum", "")
    if not leap:
        return None  # cut before the line that decides
    offset = _seconds(fields.get("system time", ""))
    away = judge_offset(offset) if offset is not None else []
    if "not synchron" in leap or "unsynchron" in leap:
        return [item for item in away if item.verdict == FAIL] or unsynchronised("chrony says: not synchronised")
    if leap not in ("normal", "insert second", "delete second"):
        return [judged(UNKNOWN, "clock.unknown-word", "node", "none", f"leap status {leap[:40]}")]
    number = int(stratum) if stratum.isdecimal() else None
    if (number is not None and (number == 0 or number > 15)) or reference.startswith("00000000"):
        return unsynchronised(f"stratum {stratum}, reference {reference}: chrony follows no source")
    if reference.upper().startswith("7F7F01") or reference.startswith("127.127.1."):
        return unsynchronised("chrony follows its own local clock and no source")
    if away:
        return away
    delay, dispersion = (_seconds(fields.get(name, "")) for name in ("root delay", "root dispersion"))
    if delay is not None and dispersion is not None and abs(delay) / 2 + dispersion > BOUND_WARN_S:
        line = f"the error may be as large as {abs(delay) / 2 + dispersion:.3f} s"
        return [judged(WARN, "clock.uncertain", "node", "warn", line)]
    last = _ref_time_s(fields.get("ref time (utc)", ""))
    if now_s is not None and last is not None and now_s - last > STALE_S:
        return unsynchronised(f"no source has been heard for {now_s - last:.0f} s")
    return []


def _ref_time_s(text: str) -> float | None:
    found = _REF_TIME.search(text)
    return moment_s(f"{found[2]} {found[1]} {found[4]} {found[3]} GMT") if found else None


def _csv(text: str) -> list[Judged] | None:
    """Return what `chronyc -c tracking` says: fourteen fields, the last the leap status."""
    for line in text.splitlines():
        cells = line.strip().split(",")
        if len(cells) == 14 and cells[2].isdecimal() and re.fullmatch(r"[0-9A-F]{8}", cells[0]):
            names = ("reference id", "_", "stratum", "_", "system time", "_", "_", "_", "_", "_", "root delay")
            fields = {**dict(zip(names, cells, strict=False)), "root dispersion": cells[11], "leap status": cells[13]}
            for name in ("system time", "root delay", "root dispersion"):
                fields[name] += " seconds"
            return _tracking(fields, None)
    return None


def _sources(text: str) -> list[Judged] | None:
    """Return what `chronyc sources` (also -c and activity) says: one source must be selected and have been heard."""
    rows = [(found[2], found[3], found[6]) for line in text.splitlines() if (found := _SOURCE.match(line))]
    for line in text.splitlines():
        cells = line.split(",")
        if len(cells) == 10 and cells[0] in "^=#" and len(cells[1]) == 1:
            rows.append((cells[1], cells[2], cells[5]))
    if not rows:
        if "Number of sources = 0" in text or re.search(r"^0 sources online", text, re.M) or _header_only(text):
            return unsynchronised("chrony has no source")
        return [] if re.search(r"^[1-9]\d* sources online", text, re.M) else None
    chosen = [row for row in rows if row[0] == "*"]
    if not chosen:
        return unsynchronised(f"none of {len(rows)} sources is selected")
    if all(row[2].strip("0") == "" for row in chosen):
        return unsynchronised(f"the selected source {chosen[0][1]} has not answered the last eight times")
    return []


def _header_only(text: str) -> bool:
    return "Name/IP address" in text and "LastRx" in text and "====" in text and text.rstrip().endswith("=")


def _peers(text: str) -> list[Judged] | None:
    """Return what `ntpq -p` says; offsets are in milliseconds."""
    if "refid" not in text:
        return unsynchronised("ntpd has no peer") if "No association ID's returned" in text else None
    rows = [found for line in text.splitlines() if (found := _PEER.match(line))]
    if not rows:
        return unsynchronised("ntpd has no peer") if "====" in text else None
    chosen = [row for row in rows if row[1] in "*o"]
    if not chosen:
        return unsynchronised(f"none of {len(rows)} peers is selected")
    if chosen[0][2].startswith(("LOCAL", "127.127.1.")) or ".LOCL." in chosen[0][3]:
        return unsynchronised("ntpd follows its own local clock")
    return judge_offset(float(chosen[0][10]) / 1000.0)


def _timedatectl(fields: dict[str, str]) -> list[Judged] | None:
    """Return what timedatectl (systemd 2xx, and RHEL 7's words) or `timedatectl show` says."""
    for name in ("system clock synchronized", "ntp synchronized", "ntpsynchronized"):
        word = fields.get(name, "").lower()
        if word == "yes":
            return []
        if word == "no":
            service = fields.get("ntp service", fields.get("ntp enabled", fields.get("network time on", "")))
            return unsynchronised(f"the system clock is not synchronised (NTP service: {service or 'not told'})")
        if word:
            return [judged(UNKNOWN, "clock.unknown-word", "node", "none", f"{name}: {word[:40]}")]
    return None


def _timesync(text: str) -> list[Judged] | None:
    """Return what `timedatectl timesync-status` says: no packet yet, or the offset of the last one."""
    if "Packet count:" not in text:
        return None
    count = re.search(r"Packet count:\s*(\d+)", text)
    if count is None or count[1] == "0":
        return unsynchronised("systemd-timesyncd has had no answer yet")
    offset = re.search(r"Offset:\s*(\S+(?: \S+)?)", text)
    span = _SPAN.match(offset[1]) if offset else None
    return judge_offset(float(span[1]) * _UNIT_S[span[2]]) if span else []


def _ntpstat(text: str) -> list[Judged] | None:
    if re.search(r"^\s*unsynchronised", text, re.M):
        return unsynchronised("ntpstat: unsynchronised")
    if not re.search(r"^\s*synchronised to", text, re.M):
        return None
    within = re.search(r"time correct to within (\d+) ms", text)
    bound_s = float(within[1]) / 1000.0 if within else 0.0
    line = f"the error may be as large as {bound_s:.3f} s"
    return [judged(WARN, "clock.uncertain", "node", "warn", line)] if bound_s > BOUND_WARN_S else []


def _kernel(text: str) -> list[Judged] | None:
    """Return what the kernel's own flags say (adjtimex --print, ntptime)."""
    if "maximum error" not in text and "maxerror" not in text:
        return None
    found = _NTPTIME.search(text)
    if found is None:
        return None
    status = int(found[1], 16 if found[1].startswith("0x") else 10)
    return unsynchronised("the kernel's clock is not disciplined (STA_UNSYNC)") if status & _STA_UNSYNC else []

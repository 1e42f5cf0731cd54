"""What Lustre imports say about starting a job. Pure: facts and times in, Judged out.

Sources: Lustre manual (recovery, failover), wiki.lustre.org/Lustre_Client_Eviction_Guide (an eviction discards the
client's dirty pages; a server gives a client 150 s by default), lustre_import.h for the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_ext.gate.lnet import Lnet
from slurm_ext.gate.lustre_facts import STATES, Client, Import
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import listed
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

_GOOD = ("FULL", "IDLE")

#: The server is back and takes the client in again; until that is done, calls wait.
_RECOVERY = ("REPLAY", "REPLAY_LOCKS", "REPLAY_WAIT", "RECOVER")

#: Younger gaps may close by themselves: OBD_TIMEOUT_DEFAULT (lustre/include/obd_support.h). That it is the limit here is
#: our own choice.
SHORT_S = 100.0

#: No recovery window is longer: OBD_RECOVERY_TIME_HARD, nine times OBD_TIMEOUT_DEFAULT (the soft limit is three times).
RECOVERY_S = 900.0


class Window(NamedTuple):
    """Times in seconds since the epoch, None where not known: now, and the job whose data an eviction may have cost."""

    now_s: float | None = None
    job_start_s: float | None = None
    job_end_s: float | None = None


def judge(client: Client, window: Window, mount: str = "") -> list[Judged]:
    """Return what the client's connections say; `mount` is where the file system should be, where that is known."""
    items: list[Judged] = []
    health = client.health.upper()
    if "LBUG" in health:
        items.append(judged(FAIL, "lustre.lbug", "node", "reboot", "Lustre found a contradiction in itself (LBUG)"))
    elif "NOT HEALTHY" in health:
        items.append(judged(FAIL, "lustre.not-healthy", "node", "drain", client.health[:200]))
    blind = [item for item in client.imports if item.unread]
    if blind and len(blind) == len(client.imports):
        line = f"no connection could be read ({listed(sorted({item.unread for item in blind}))})"
        return [*items, judged(UNKNOWN, "lustre.unreadable", "node", "warn", line)]
    for item in blind:
        items.append(judged(UNKNOWN, "lustre.unreadable", item.where, "warn", f"not read ({item.unread})"))
    if not client.imports:
        if client.present and mount and client.mounted is None:
            line = "Lustre has no connection to any server: nothing is mounted"
            return [*items, judged(FAIL, "fs.not-mounted", f"fs:{mount}", "drain", line)]
        return items or [judged(UNKNOWN, "lustre.no-imports", "node", "none", "no connection in this view")]
    now = window.now_s if window.now_s is not None else client.read_at_s
    for item in client.imports:
        if not item.unread:
            items += _one(item, window._replace(now_s=now))
    return _strongest(items)


def _one(item: Import, window: Window) -> list[Judged]:
    if item.active is False or "deactive" in item.flags:
        line = "switched off on this client (active=0): files on it cannot be used"
        return [judged(WARN, "lustre.inactive", item.where, "warn", line)]
    if not item.state:
        return []
    if item.state in _GOOD:
        return [*_evicted(item, window), *_failover(item)]
    if item.where == "node":  # the management server is needed for mounts and changes of set-up only
        return [judged(WARN, "lustre.mgs-lost", "node", "warn", f"{item.target or item.name} is {item.state}")]
    return [_bad(item, window)]


def _bad(item: Import, window: Window) -> Judged:
    since = bad_since(item)
    age = window.now_s - since if since is not None and window.now_s is not None else None
    told = f"{item.state}{f' for {age:.0f} s' if age is not None and age >= 0 else ''}"
    if item.state not in STATES:
        line = f"{item.state!r} is no state that is known"
        return judged(UNKNOWN, "lustre.import-unknown", item.where, "warn", line)
    if item.state in _RECOVERY and (age is None or age < RECOVERY_S):
        line = f"{told}: the server is back and takes its clients in again; calls wait for it"
        return judged(WARN, "lustre.import-recovery", item.where, "warn", line)
    if item.state in ("DISCONN", "CONNECTING", "NEW") and age is not None and 0 <= age < SHORT_S:
        line = f"{told}: clients come back from such a gap by themselves, and calls wait for it"
        return judged(WARN, "lustre.import-lost", item.where, "warn", line)
    return judged(FAIL, "lustre.import-bad", item.where, "drain", f"{told}: calls that need it hang or fail")


def bad_since(item: Import) -> float | None:
    """Return when the connection was last good; where the history tells of no such time, its first entry."""
    since = None
    for at, state in item.history:
        if state in _GOOD:
            since = None
        elif since is None:
            since = float(at)
    return since


def _evicted(item: Import, window: Window) -> list[Judged]:
    times = [at for at, state in item.history if state == "EVICTED"]
    if not times:
        return []
    start, end = window.job_start_s, window.job_end_s
    inside = [at for at in times if (start is None or at >= start) and (end is None or at <= end)]
    if not inside:
        line = f"evicted at {times[-1]}, outside of the job, and connected again"
        return [judged(PASS, "lustre.evicted-old", item.where, "none", line)]
    whose = "while the job ran" if start is not None else "and connected again"
    line = f"evicted at {inside[-1]} {whose}: data that was on its way then is lost"
    return [judged(WARN, "lustre.evicted", item.where, "warn", line)]


def _failover(item: Import) -> list[Judged]:
    if not item.servers or not item.current or item.current.startswith("<") or item.state != "FULL":
        return []
    first, current = item.servers[0].partition("@")[0], item.current.partition("@")[0]
    if item.where == "node" or current == first or current not in [s.partition("@")[0] for s in item.servers]:
        return []
    line = f"served by {item.current} in place of {item.servers[0]}, after {item.attempts or 'some'} attempts"
    return [judged(PASS, "lustre.failover", item.where, "none", line)]


def judge_transport(
    client: Client | None, lnet: Lnet | None, *, wanted: str, mount: str, interfaces: int | None = None
) -> list[Judged]:
    """Return whether the file system's traffic goes the way it was set up for.

    `wanted` is a kind of network (`efa`) or nothing. With several networks to one server an import names the first that
    was configured, whatever carries the data: LNet's own counts of messages decide where they are known.
    `interfaces` is how many interfaces of that network there should be.
    """
    ups = [item for item in lnet.interfaces if item.status != "down"] if lnet is not None else []
    efa = [item for item in ups if item.kind == (wanted or "efa")]
    over = _over_other(client.imports if client is not None else (), wanted)
    target = f"fs:{mount}" if mount else "node"
    if not wanted and not (efa and over) and not over:
        return []
    wanted = wanted or "efa"
    counted = [item.messages for item in efa if item.messages is not None]
    if lnet is not None and not efa and (lnet.nets or lnet.interfaces):
        if all(item.kind == "lo" for item in ups):
            return []  # nothing is up at all: that is another finding
        line = f"LNet has no interface up on {wanted}; it runs on {listed(sorted({i.kind for i in ups} - {'lo'}))}"
        return [judged(WARN, "lustre.not-on-efa", target, "warn", line)]
    if counted:
        if not sum(counted):
            line = f"no message has gone over {wanted}, although its interfaces are up"
            return [judged(WARN, "lustre.not-on-efa", target, "warn", line)]
        over = []
    if over:
        line = f"{listed([item.target for item in over])} go over {over[0].current.partition('@')[2]}, not {wanted}"
        return [judged(WARN, "lustre.not-on-efa", target, "warn", line)]
    if interfaces is not None and len(efa) < interfaces and lnet is not None:
        line = f"{len(efa)} of {interfaces} interfaces of {wanted} carry LNet"
        return [judged(WARN, "lustre.few-efa-interfaces", target, "warn", line)]
    return []


def _over_other(imports: Iterable[Import], wanted: str) -> list[Import]:
    """Return the connections to data and metadata that name another network than the wanted one.

    Without a wanted one: those whose own list of servers begins with EFA.
    """
    found = []
    for item in imports:
        net = item.current.partition("@")[2].rstrip("0123456789")
        first = item.servers[0].partition("@")[2].rstrip("0123456789") if item.servers else ""
        if item.where == "node" or item.state not in _GOOD or not net:
            continue
        if net != (wanted.rstrip("0123456789") or ("efa" if first == "efa" else net)):
            found.append(item)
    return found


def _strongest(items: Sequence[Judged]) -> list[Judged]:
    """Return one finding for each target where several mounts reach it: the worst of its id's kind."""
    rank = {FAIL: 0, UNKNOWN: 1, WARN: 2, PASS: 3}
    kept: dict[tuple[str, bool], Judged] = {}
    for item in items:
        key = (item.finding.target, item.verdict == PASS)
        if key not in kept or rank[item.verdict] < rank[kept[key].verdict]:
            kept[key] = item
    hard = {target for target, passed in kept if not passed}
    return [item for (target, passed), item in kept.items() if not (passed and target in hard)]

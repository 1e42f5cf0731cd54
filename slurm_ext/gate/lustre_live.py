"""Lustre's connections and networks on this node by the rules that captures are judged by, and what of it convicts.

Loaded where the quick look saw something odd, and in the epilog and the health check. lnetctl is asked in the health check only.
"""

from __future__ import annotations

import time

from slurm_ext import command
from slurm_ext.config.model import at_node
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.gate import lnet, lustre_facts, lustre_rules, read_small
from slurm_ext.gate.file_tree import Unread
from slurm_ext.gate.lnet import Lnet
from slurm_ext.gate.lustre_facts import Client
from slurm_ext.gate.lustre_rules import RECOVERY_S, SHORT_S, Window
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.probe_lustre import PLACES, Seen, error_name
from slurm_ext.gate.probes import EPILOG, HEALTH, PROLOG, Here
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

#: A client that has sent so many messages over another network and none over EFA does not use EFA. Our own choice, without a
#: source: a mount alone takes some hundred.
MANY_MESSAGES = 10_000

TIMEOUT_S = 5.0

#: What `lnetctl net show -v` would print on a simulated node.
LAB_ANSWER = "etc/fmslurm-lab/lnetctl-net-show.txt"

_FILE_BYTES = 1 << 14
_LIMIT_S = 2.0

#: Lines of set-up in which EFA is named for LNet.
_SETUP = ("etc/lnet.conf", "etc/modprobe.d")


class Network(NamedTuple):
    """What was told of LNet, and whether messages were counted; `note` says why lnetctl was not asked or did not answer."""

    lnet: Lnet | None = None
    counted: bool = False
    note: tuple[Judged, ...] = ()


def readings(here: Here, seen: Seen) -> dict[str, list[str]]:
    """Return, by what is read, the targets of which it was read and is good: the proof that a fault has gone (proof.py)."""
    rows = [line.split()[:2] for line in (seen.nis or "").splitlines()[1:]]
    networks = [row for row in rows if not row[0].partition("@")[2].startswith("lo")]
    connected = [
        item.where
        for item in lustre_facts.read(tree(here, seen)).imports
        if item.state in ("FULL", "IDLE") and not item.unread and item.active is not False
    ]
    return {
        "health": ["node"] if seen.health == "healthy" else [],
        "connections": connected,
        "networks": ["node"] if networks and all(row[1:] == ["up"] for row in networks) else [],
    }


def judge(here: Here, seen: Seen) -> list[Judged]:
    """Return what this client's connections and networks say."""
    client = lustre_facts.read(tree(here, seen))
    start, end = here.window or (None, None)
    now = time.time()
    # In a prolog every eviction was before the job; between jobs it is news of no job.
    window = Window(now, now if start is None else start, end)
    items = connections(client, window, phase=here.phase, needed=needed(here, seen))
    if here.phase == EPILOG and here.job_id:
        items = [_named(item, here.job_id) for item in items]
    network = _network(here, seen)
    if seen.files:
        lines = [f"/{name}: {why}" for name, why in list(seen.files.items())[:4]]
        items.append(judged(UNKNOWN, "lustre.unreadable", "node", "none", *lines))
    return [
        *items,
        *network.note,
        *networks(
            client, network, seen, wanted=_wanted(here, seen), phase=here.phase, required=bool(needed(here, seen))
        ),
    ]


def tree(here: Here, seen: Seen) -> dict[str, str | Unread]:
    """Return the connections' files in one form, wherever this release keeps them; what takes too long is left out."""
    found: dict[str, str | Unread] = {}
    give_up = time.monotonic() + _LIMIT_S
    for folder, error in seen.unread.items():
        found[f"{_plain(folder)}/state"] = Unread(error)
    for folder, state in seen.states.items():
        found[f"{_plain(folder)}/state"] = state
        if time.monotonic() > give_up:
            continue
        for part in ("import", "active"):
            places = [folder, *(f"{place}/{_rest(folder)}" for place in PLACES)]
            for place in dict.fromkeys(places):
                said = read_small.read(here.path(f"{place}/{part}"), _FILE_BYTES)
                if isinstance(said, str):
                    found[f"{_plain(folder)}/{part}"] = said
                    break
                if not isinstance(said, (FileNotFoundError, NotADirectoryError)) and part == "import":
                    found[f"{_plain(folder)}/{part}"] = Unread(error_name(said))
    if seen.health:
        found["sys/fs/lustre/health_check"] = seen.health
    return found


def _rest(folder: str) -> str:
    """Return the kind and the name of a connection: the last two parts of its folder."""
    return "/".join(folder.split("/")[-2:])


def _plain(folder: str) -> str:
    return f"{PLACES[0]}/{_rest(folder)}"


def needed(here: Here, seen: Seen) -> frozenset[str]:
    """Return the names of the file systems that the site says must be there (gate.lustre_mounts): the end of their source."""
    points = {at_node(path, here.node).rstrip("/") for path in here.settings.gate.lustre_mounts}
    return frozenset(
        source.rpartition(":/")[2].partition("/")[0] for point, source in seen.mounts if point.rstrip("/") in points
    )


def connections(client: Client, window: Window, *, phase: str, needed: frozenset[str]) -> list[Judged]:
    """Return what the connections say. Pure.

    A connection that is gone may be the server's fault as well as this node's. An eviction that is not healed is this client's
    own, and so is a state that no recovery of a server lasts for.
    """
    if not client.imports and phase == PROLOG:
        return []  # nothing can be read here, but its file call has answered
    gone = {
        item.where: (item.state, window.now_s - since if since is not None and window.now_s is not None else None)
        for item in client.imports
        for since in (lustre_rules.bad_since(item),)
    }
    items = []
    for item in lustre_rules.judge(client, window):
        id_, target = item.finding.id, item.finding.target
        if item.verdict == FAIL:
            system = target.partition(":")[2].rpartition("-")[0]
            state, age_s = gone.get(target, ("", None))
            long_enough = age_s is not None and age_s >= (SHORT_S if state == "EVICTED" else RECOVERY_S)
            certain = id_ == "lustre.lbug" and bool(needed)
            certain = certain or (id_ == "lustre.not-healthy" and phase == HEALTH and bool(needed))
            if id_ == "lustre.import-bad" and system in needed and long_enough:
                certain = state == "EVICTED" or phase == HEALTH
            item = item if certain else item._replace(verdict=WARN)
        items.append(item)
    return items


def _named(item: Judged, job_id: str) -> Judged:
    """Return an eviction with the job whose data it may have cost."""
    if item.finding.id != "lustre.evicted":
        return item
    line = f"job {job_id}: what it wrote in that moment may be missing; verify its newest checkpoint"
    return item._replace(finding=item.finding._replace(evidence=(*item.finding.evidence, line)))


def _wanted(here: Here, seen: Seen) -> bool:
    """Return whether Lustre is meant to go over EFA here: its driver is loaded, or set-up names it."""
    if seen.has_efa or any("@efa" in source for _, source in seen.mounts):
        return True
    if here.phase != HEALTH:
        return False
    texts = []
    for path in _SETUP:
        inside = [f"{path}/{name}" for name in read_small.names(here.path(path)) or () if name.endswith(".conf")]
        texts += [read_small.text(here.path(name), 1 << 16) or "" for name in inside or [path]]
    return any(names_efa(text) for text in texts)


def names_efa(text: str) -> bool:
    """Return whether a set-up of LNet names EFA: options of kefalnd, a network efa. Comments do not count."""
    for line in text.splitlines():
        said = line.partition("#")[0].strip()
        if said.startswith("options ") and ("kefalnd" in said or (" lnet " in said and "efa" in said)):
            return True
        if said.removeprefix("- ").replace('"', "") == "net type: efa":
            return True
    return False


def _network(here: Here, seen: Seen) -> Network:
    """Return what LNet says of itself: by lnetctl in the health check, else by its own list."""
    listed = lnet.parse(seen.nis) if seen.nis is not None else None
    if here.phase != HEALTH:
        return Network(listed)
    if here.root != "/":
        said = read_small.text(here.path(LAB_ANSWER), 1 << 16)
        return Network(listed) if said is None else Network(lnet.parse(said), counted=True)
    try:
        ran = command.run(["lnetctl", "net", "show", "-v"], timeout_s=TIMEOUT_S, max_output_bytes=1 << 20)
    except CommandNotFoundError:
        line = "there is no lnetctl: how much goes over which network is not known"
        return Network(listed, note=(judged(PASS, "lnet.no-tool", "node", "none", line),))
    parsed = lnet.parse(ran.stdout) if ran.ok else None
    if parsed is None or parsed.error:
        return Network(listed, note=(judged(UNKNOWN, "lnet.no-answer", "node", "none", ran.words()),))
    return Network(parsed, counted=True)


def networks(client: Client, network: Network, seen: Seen, *, wanted: bool, phase: str, required: bool) -> list[Judged]:
    """Return what LNet's interfaces say, and whether traffic that is meant for EFA goes another way. Pure."""
    told = network.lnet
    if told is None or told.error:
        return []
    mount = seen.mounts[0][0] if len(seen.mounts) == 1 else ""
    moved = lustre_rules.judge_transport(
        # Of several networks to one server a connection names the first, whatever carries the data: counts decide, or nothing.
        client if network.counted else None,
        told,
        wanted="efa" if wanted else "",
        mount=mount,
    )
    if _silent(told):
        moved = []  # nothing has been read yet
    items = [item for item in lnet.judge(told) if not (moved and item.finding.id == "lnet.interface-down")]
    certain = phase == HEALTH and required
    return [*(item if item.verdict != FAIL or certain else item._replace(verdict=WARN) for item in items), *moved]


def _silent(told: Lnet) -> bool:
    """Return whether EFA is up and carried nothing, and nothing else carried much either."""

    def carried(efa: bool) -> int | None:
        counts = [one.messages for one in told.interfaces if (one.kind == "efa") == efa and one.kind != "lo"]
        return None if None in counts or not counts else sum(count for count in counts if count is not None)

    return carried(True) == 0 and (carried(False) or 0) < MANY_MESSAGES

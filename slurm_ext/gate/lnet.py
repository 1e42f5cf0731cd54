"""LNet's own view: networks and interfaces from lnetctl, lctl or /proc, and what they say. Pure, never raises on odd text.

Sources: lnet/utils/lnetconfig/liblnetconfig.c (`net show`, with -v also health and statistics), lctl(8) (`list_nids`),
lnet's nis table (/sys/kernel/debug/lnet/nis). 1000 is the best health value; it falls with failed sends and comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import listed
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

BEST_HEALTH = 1000

_NID = pattern(r"\S+@[a-z0-9]+")
_NIS_HEAD = pattern(r"nid\s+status\s+alive\s+refs.*")


class Interface(NamedTuple):
    """One local network interface of LNet. `status` is up, down or nothing where it was not told."""

    nid: str
    net: str
    status: str = ""
    devices: tuple[str, ...] = ()
    health: int | None = None
    messages: int | None = None  # sent and received, where statistics were asked for

    @property
    def kind(self) -> str:
        """Return the network's kind without its number: `tcp`, `o2ib`, `efa`, `lo`."""
        return self.net.rstrip("0123456789")


class Lnet(NamedTuple):
    """What one view says. `error` is the tool's own; `nets` names the networks, with interfaces or not."""

    interfaces: tuple[Interface, ...] = ()
    nets: tuple[str, ...] = ()
    error: str = ""
    peers_down: tuple[str, ...] = ()


def parse(text: str) -> Lnet | None:
    """Return LNet's networks from any of the forms, None where the text is none of them."""
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not lines:
        return None
    heads = [line.strip() for line in lines]
    if any(head.startswith("errno:") for head in heads) or any(
        "hint:" in head or "/dev/lnet" in head for head in heads
    ):
        return Lnet(error=" ".join(heads)[:300])
    if any("net type:" in head for head in heads) or heads[0] in ("net:", "peer:", "---", "net: {}", "net: []"):
        return _yaml(lines)
    if _NIS_HEAD.match(heads[0]):
        rows = [head.split() for head in heads[1:]]
        found = [Interface(row[0], row[0].partition("@")[2], row[1].lower()) for row in rows if len(row) > 2]
        return Lnet(tuple(found), _nets(found))
    if all(_NID.fullmatch(head) for head in heads):
        found = [Interface(head, head.partition("@")[2]) for head in heads]
        return Lnet(tuple(found), _nets(found))
    return None


def _nets(found: Sequence[Interface]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.net for item in found))


def _yaml(lines: Sequence[str]) -> Lnet:
    """Read the part of YAML that lnetctl writes: keys in order, lists by dashes."""
    found: list[Interface] = []
    nets: list[str] = []
    down: list[str] = []
    net, peer, in_peers, in_devices, nid = "", "", False, False, ""
    for line in lines:
        key, _, value = line.strip().removeprefix("- ").partition(":")
        key, value = key.strip().strip('"'), value.strip().strip('"')
        if (
            key in ("net", "peer", "route", "global", "numa", "statistics")
            and not line[:1].isspace()
            and line[:1] != "-"
        ):
            in_peers = key == "peer"
        elif key == "net type":
            net = value
            nets.append(value)
        elif key == "primary nid":
            peer, in_peers = value, True
        elif key == "nid" and in_peers:
            nid = value
        elif key == "nid":
            found.append(Interface(value, net or value.partition("@")[2]))
            in_devices = False
        elif key == "state" and in_peers and value.lower() == "down":
            down.append(nid or peer)
        elif in_peers or not found:
            continue
        elif key == "status":
            found[-1] = found[-1]._replace(status=value.lower())
        elif key == "interfaces":
            in_devices = True
        elif key.isdecimal() and in_devices:
            found[-1] = found[-1]._replace(devices=(*found[-1].devices, value))
        elif key == "health value" and value.removeprefix("-").isdecimal():
            found[-1] = found[-1]._replace(health=int(value))
        elif key in ("send_count", "recv_count") and value.isdecimal():
            in_devices = False
            found[-1] = found[-1]._replace(messages=(found[-1].messages or 0) + int(value))
        else:
            in_devices = False
    return Lnet(tuple(found), tuple(nets), "", tuple(dict.fromkeys(down)))


def judge(lnet: Lnet, *, peers_only: bool = False) -> list[Judged]:
    """Return what LNet's interfaces say of reaching any server."""
    if lnet.error:
        return [judged(FAIL, "lnet.not-loaded", "node", "drain", f"LNet is not there: {lnet.error}")]
    mine = [item for item in lnet.interfaces if item.kind != "lo"]
    items: list[Judged] = []
    if not mine:
        if peers_only or lnet.peers_down:
            return [_peers(lnet.peers_down)] if lnet.peers_down else []
        return [judged(FAIL, "lnet.no-network", "node", "drain", "LNet has no network but the loopback")]
    down = [item for item in mine if item.status == "down"]
    if len(down) == len(mine):
        line = f"every interface of LNet is down: {listed([item.nid for item in down])}"
        items.append(judged(FAIL, "lnet.down", "node", "drain", line))
    else:
        for item in down:
            line = f"{item.nid} is down, {len(mine) - len(down)} other interfaces are up"
            items.append(judged(WARN, "lnet.interface-down", _target(item), "warn", line))
        for item in mine:
            if item.status not in ("up", "down", ""):
                line = f"{item.nid} says {item.status!r}, a word that is not known"
                items.append(judged(UNKNOWN, "lnet.unknown-status", _target(item), "warn", line))
            elif item.status != "down" and item.health is not None and item.health < BEST_HEALTH:
                line = f"health of {item.nid} is {item.health} of {BEST_HEALTH}: sends have failed lately"
                items.append(judged(WARN, "lnet.degraded", _target(item), "warn", line))
    if lnet.peers_down:
        items.append(_peers(lnet.peers_down))
    return items


def _target(item: Interface) -> str:
    device = item.devices[0] if item.devices else ""
    if not device:
        return "node"
    return f"efa:{device}" if device.startswith("rdmap") else f"nic:{device}"


def _peers(nids: Sequence[str]) -> Judged:
    return judged(WARN, "lnet.peer-down", "node", "warn", f"peers that LNet holds for down: {listed(list(nids))}")

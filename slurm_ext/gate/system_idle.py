"""What only the health check reads of the node: how its clocks are governed, and whether it has a way out of its network.

On EC2 the processors of most GPU types are governed by the hypervisor, and there is no such file then (AWS's page on processor
states: of virtual GPU types only older ones let the system choose). A node without a default route reaches its own subnet, so
Slurm calls it healthy, and no S3 and no AWS endpoint. Thin readers, pure rules.
"""

from __future__ import annotations

from slurm_ext.aws.catalogue import HostShape
from slurm_ext.gate import read_small
from slurm_ext.gate.model import Judged, judged
from slurm_ext.verdict import WARN

_FREQUENCY = "sys/devices/system/cpu/cpu0/cpufreq"
ROUTES, ROUTES6 = "proc/net/route", "proc/net/ipv6_route"
_MOST_BYTES = 1 << 18

#: Drivers under which `powersave` is no lowest clock: they choose by load all the same (kernel.org, intel_pstate, amd_pstate).
_CHOOSE_BY_LOAD = ("intel_pstate", "amd-pstate-epp")

#: linux/route.h, linux/ipv6_route.h.
_UP, _REJECT = 0x1, 0x200

#: States of an interface that carries nothing (Documentation/ABI/testing/sysfs-class-net).
_NOT_UP = ("down", "lowerlayerdown", "notpresent")


def look(files: read_small.Files, shape: HostShape | None) -> list[Judged]:
    """Read and judge; `shape` is the EC2 type's, None elsewhere: other sites may have networks without a way out."""
    items = governor(
        (files.text(f"{_FREQUENCY}/scaling_governor", 64) or "").strip(),
        (files.text(f"{_FREQUENCY}/scaling_driver", 64) or "").strip(),
    )
    if shape is None:
        return items
    four, six = files.text(ROUTES, _MOST_BYTES), files.text(ROUTES6, _MOST_BYTES)
    if four is None or ROUTES6 in files.unread:
        return items
    ways = (*default_ways(four), *default_ways6(six or ""))
    states = {way: (files.text(f"sys/class/net/{way}/operstate", 32) or "").strip() for way in ways if "/" not in way}
    return items + judge_ways(ways, states)


def governor(name: str, driver: str) -> list[Judged]:
    """Return whether the processors are held at their lowest clock."""
    if name != "powersave" or driver in _CHOOSE_BY_LOAD:
        return []
    line = f"the processors' governor is {name} (driver {driver or 'not told'}): they stay at their lowest clock"
    return [judged(WARN, "host.cpu-governor", "node", "warn", line)]


def default_ways(text: str) -> tuple[str, ...]:
    """Return the interfaces of the default routes in /proc/net/route."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 8 and words[1] == words[7] == "00000000" and _bits(words[3]) & _UP:
            found.append(words[0])
    return tuple(dict.fromkeys(found))


def default_ways6(text: str) -> tuple[str, ...]:
    """Return the interfaces of the default routes in /proc/net/ipv6_route; one that refuses (on lo) is none."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 10 and words[0].strip("0") == "" and words[1] == "00":
            flags = _bits(words[8])
            if flags & _UP and not flags & _REJECT and words[9] != "lo":
                found.append(words[9])
    return tuple(dict.fromkeys(found))


def _bits(word: str) -> int:
    try:
        return int(word, 16)
    except ValueError:
        return 0


def judge_ways(ways: tuple[str, ...], states: dict[str, str]) -> list[Judged]:
    """Return whether there is a way out of the node's network, and an interface that carries it."""
    if not ways:
        line = "there is no default route: no way to S3 and AWS's endpoints, though Slurm may reach this node"
        return [judged(WARN, "network.no-default-route", "node", "warn", line)]
    down = [way for way in ways if states.get(way) in _NOT_UP]
    return [
        judged(
            WARN, "network.link-down", f"nic:{way}", "warn", f"state {states[way]}, and a default route goes over it"
        )
        for way in down
    ]

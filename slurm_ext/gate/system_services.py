"""What systemd says of the services that a job needs, in the health check alone: one bounded question for all of them.

A service that runs without systemd knowing (in a container, by hand) is no failure: its program in the process list, or its
socket, speaks for it, and one that nobody starts at boot is not missed (munge, where Slurm authenticates by itself). A missing
systemctl says nothing.
"""

from __future__ import annotations

import os
import socket
import time

from slurm_ext import command
from slurm_ext.aws import catalogue
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.gate import read_small, service_rules
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.probes import Here
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Unit -> names of its program as /proc/PID/stat has them (15 characters). slurmd is not among them: it has just started us.
UNITS: dict[str, tuple[str, ...]] = {
    "munge.service": ("munged",),
    "nvidia-fabricmanager.service": ("nv-fabricmanage",),
    "nvidia-persistenced.service": ("nvidia-persiste",),
    "nvidia-imex.service": ("nvidia-imex",),
    "nvidia-dcgm.service": ("nv-hostengine",),
    "chronyd.service": ("chronyd",),
    "chrony.service": ("chronyd",),
    "systemd-timesyncd.service": ("systemd-timesyn",),
}
_PROPERTIES = "Id,LoadState,ActiveState,SubState,Result,UnitFileState"

#: What `systemctl show` would print on a simulated node.
LAB_ANSWER = "etc/fmslurm-lab/systemctl-show.txt"
MUNGE_SOCKET = "/run/munge/munge.socket.2"
TIMEOUT_S = 3.0

#: A machine that started less than this ago (seconds) may not have started all of its services.
SETTLED_S = 600.0

#: Where systemd is the init (sd_booted(3)).
BOOTED = "/run/systemd/system"


class Asked(NamedTuple):
    """What systemd said (None: there is none to be asked), and what is told where it did not answer."""

    text: str | None = None
    items: tuple[Judged, ...] = ()


def ask(here: Here) -> Asked:
    """Ask systemd of all units at once."""
    if here.root != "/":
        return Asked(read_small.text(here.path(LAB_ANSWER), 1 << 16))
    if not os.path.isdir(BOOTED):
        return Asked()  # another init: nothing here is a unit
    try:
        ran = command.run(
            ["systemctl", "show", "-p", _PROPERTIES, *UNITS], timeout_s=TIMEOUT_S, max_output_bytes=1 << 16
        )
    except CommandNotFoundError:
        return Asked()
    if not ran.ok:
        return Asked(items=(judged(UNKNOWN, "service.no-answer", "node", "none", ran.words()),))
    return Asked(ran.stdout)


def look(here: Here, programs: frozenset[str], asked: Asked | None = None) -> list[Judged]:
    """Judge systemd's answer (`asked`, else it is asked here); `programs` are the names of all that runs."""
    asked = ask(here) if asked is None else asked
    if asked.text is None:
        return list(asked.items)
    if here.root != "/":
        return judge(asked.text, here.instance_type(), programs, munge_answers=False)
    answers = _answers(here.settings.site.munge_socket or MUNGE_SOCKET)
    booting = time.clock_gettime(time.CLOCK_BOOTTIME) < SETTLED_S
    return judge(asked.text, here.instance_type(), programs, munge_answers=answers, booting=booting)


def _answers(path: str) -> bool:
    """Return whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(1.0)
        try:
            asked.connect(path)
        except (OSError, ValueError):
            return False
    return True


def judge(
    text: str, instance_type: str, programs: frozenset[str], *, munge_answers: bool, booting: bool = False
) -> list[Judged]:
    """Return what the units say for a type, without those whose program runs all the same. Pure.

    `booting`: the machine has just started, so that a unit at rest may still be waiting for its turn.
    """
    units = service_rules.parse(text) or []
    running = {unit for unit, names in UNITS.items() if not programs.isdisjoint(names)}
    if munge_answers:
        running.add("munge.service")
    told = [unit._replace(wanted=_wanted(text, unit.name)) for unit in units if unit.name in UNITS and unit.active]
    asked = [unit for unit in told if unit.name not in running and not _rests(unit, booting=booting)]
    items = service_rules.judge([*asked, *_running_clocks(units, running)], instance_type)
    return [
        item._replace(verdict=WARN) if item.verdict == FAIL and not _certain(item) else item
        for item in items
        if item.verdict != UNKNOWN or catalogue.host(instance_type) is not None
    ]


def _certain(item: Judged) -> bool:
    """Return whether a service that is down proves something.

    A fabric manager that is not installed under this name may be there under another one: the driver is asked of that. IMEX is
    started for each job by some (Slurm's switch/nvidia_imex, a prolog), and rests between them.
    """
    return item.finding.id != "service.imex-down" and "not-found" not in "".join(item.finding.evidence)


def _rests(unit: service_rules.Unit, *, booting: bool) -> bool:
    """Return whether a unit that is down need not be up: not installed, not started at boot, or not yet.

    Only a fabric manager is asked for whatever the set-up says: its type does not work without one.
    """
    fabric = "fabricmanager" in unit.name
    unwanted = unit.wanted is False and unit.active == "inactive"
    return (booting and unit.active == "inactive") or (not fabric and (unwanted or unit.load == "not-found"))


def _running_clocks(units: list[service_rules.Unit], running: set[str]) -> list[service_rules.Unit]:
    """Return the time daemons that run, so that those at rest beside them are no finding."""
    clocks = ("chronyd.service", "chrony.service", "systemd-timesyncd.service")
    return [
        unit._replace(active="active", load="loaded") for unit in units if unit.name in clocks and unit.name in running
    ]


def _wanted(text: str, name: str) -> bool | None:
    """Return whether a unit is started at boot, by its own block."""
    block = next((part for part in text.split("\n\n") if f"Id={name}\n" in f"{part}\n"), "")
    word = next((line[14:] for line in block.splitlines() if line.startswith("UnitFileState=")), "")
    return True if word.startswith("enabled") else False if word == "disabled" else None

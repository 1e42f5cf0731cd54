"""Fixtures that prove what only the health check reads of the node: governor, routes, the interface that carries them."""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.gate import system_idle
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.verdict import UNKNOWN, WARN

_GOVERNOR = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def _writes(name: str, text: str) -> Callable[[Bench], None]:
    return lambda bench: bench.write(name, text)


def _in_its_place(name: str) -> Callable[[Bench], None]:
    """Put a folder in a file's place: as with EIO, it is there and cannot be read."""

    def apply(bench: Bench) -> None:
        bench.remove(name)
        bench.write(f"{name}/in-its-place", "")

    return apply


FIXTURES: tuple[Fixture, ...] = (
    Fixture("host.cpu-governor", "host.cpu-governor", _writes(_GOVERNOR, "powersave\n"), WARN),
    Fixture("host.cpu-governor-unreadable", "host.cpu-governor-unreadable", _in_its_place(_GOVERNOR), UNKNOWN),
    Fixture(
        "network.no-default-route",
        "network.no-default-route",
        _writes(system_idle.ROUTES, "Iface\tDestination\tGateway\n"),
        WARN,
    ),
    Fixture(
        "network.link-down",
        "network.link-down",
        _writes("sys/class/net/ens32/operstate", "down\n"),
        WARN,
        target="nic:ens32",
    ),
    Fixture("network.unreadable", "network.unreadable", _in_its_place(system_idle.ROUTES), UNKNOWN),
)

"""The governor and the way out of the node's network, as only the health check reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.gate import read_small, system_idle
from slurm_ext.verdict import WARN

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
WAY = "ens32\t00000000\t0100000A\t0003\t0\t0\t512\t00000000\t0\t0\t0\n"
SUBNET = "ens32\t0000000A\t00000000\t0001\t0\t0\t512\t00FFFFFF\t0\t0\t0\n"
ZEROS = "0" * 32
SIX = f"{ZEROS} 00 {ZEROS} 00 fe80000000000000000000000000000a 00000400 00000001 00000000 00450003     ens32\n"
REFUSES = f"{ZEROS} 00 {ZEROS} 00 {ZEROS} ffffffff 00000001 00000000 00200200       lo\n"


@pytest.mark.parametrize(
    ("name", "driver", "told"),
    [
        ("performance", "acpi-cpufreq", False),
        ("", "", False),
        ("schedutil", "acpi-cpufreq", False),
        ("powersave", "intel_pstate", False),  # chooses by load under this name, too
        ("powersave", "amd-pstate-epp", False),
        ("powersave", "acpi-cpufreq", True),
        ("powersave", "intel_cpufreq", True),
        ("powersave", "", True),
    ],
)
def test_a_governor_that_stays_at_the_lowest_clock(name: str, driver: str, told: bool) -> None:
    found = [(item.finding.id, item.verdict) for item in system_idle.governor(name, driver)]
    assert found == ([("host.cpu-governor", WARN)] if told else [])


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("", ()),
        (HEAD, ()),
        (HEAD + SUBNET, ()),
        (HEAD + WAY + SUBNET, ("ens32",)),
        (HEAD + WAY + WAY.replace("ens32", "ens64"), ("ens32", "ens64")),
        (HEAD + WAY.replace("\t0003\t", "\t0002\t"), ()),  # not up
        (HEAD + WAY.replace("\t0003\t", "\tnone\t"), ()),
        (HEAD + WAY[:20], ()),
        (HEAD + WAY.replace("00000000\t0\t0\t0\n", "00000080\t0\t0\t0\n"), ()),  # half of all addresses is no default
    ],
)
def test_default_routes_of_ipv4(text: str, ways: tuple[str, ...]) -> None:
    assert system_idle.default_ways(text) == ways


@pytest.mark.parametrize(
    ("text", "ways"), [("", ()), (SIX, ("ens32",)), (REFUSES, ()), (SIX[:60], ()), ("x " * 10, ())]
)
def test_default_routes_of_ipv6(text: str, ways: tuple[str, ...]) -> None:
    assert system_idle.default_ways6(text) == ways


def look(root: Path, type_: str = "p5.48xlarge") -> list[tuple[str, str]]:
    files = read_small.Files(str(root))
    return [(item.finding.id, item.finding.target) for item in system_idle.look(files, catalogue.host(type_))]


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_node_and_its_ways(tmp_path: Path) -> None:
    assert look(tmp_path) == []  # nothing that could be read
    write(tmp_path, "proc/net/route", HEAD + SUBNET)
    assert look(tmp_path) == [("network.no-default-route", "node")]
    assert look(tmp_path, "a machine of our own") == []
    write(tmp_path, "proc/net/ipv6_route", REFUSES + SIX)
    assert look(tmp_path) == []
    write(tmp_path, "proc/net/route", HEAD + WAY + WAY.replace("ens32", "ens64"))
    write(tmp_path, "sys/class/net/ens32/operstate", "up\n")
    assert look(tmp_path) == []
    write(tmp_path, "sys/class/net/ens64/operstate", "lowerlayerdown\n")
    assert look(tmp_path) == [("network.link-down", "nic:ens64")]


def test_a_table_that_cannot_be_read_is_noted_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    (tmp_path / "proc/net/route").mkdir(parents=True)
    files = read_small.Files(str(tmp_path))
    assert system_idle.look(files, catalogue.host("p5.48xlarge")) == []
    assert files.unread == {"proc/net/route": "EISDIR"}


def test_an_interface_of_a_strange_name_opens_no_other_file(tmp_path: Path) -> None:
    write(tmp_path, "proc/net/route", HEAD + WAY.replace("ens32", "../../x"))
    write(tmp_path, "sys/x/operstate", "down\n")
    assert look(tmp_path) == []

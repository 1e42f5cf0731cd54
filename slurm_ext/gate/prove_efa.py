"""Fixtures that prove the checks of EFA: devices, driver, device files, counters over a job, settings that NCCL needs."""

from __future__ import annotations

from collections.abc import Callable

from slurm_ext.gate.probes import EPILOG, PROLOG
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

_CLASS, _BUS, _BOUND = "sys/class/infiniband", "sys/bus/pci/devices", "sys/bus/pci/drivers/efa"
_VERBS, _NODES = "sys/class/infiniband_verbs", "dev/infiniband"
_FIRST = "rdmap79s0"

#: A type that can have one EFA device and no more.
ONE_DEVICE = "p5.4xlarge"


def _names(bench: Bench) -> list[str]:
    return sorted(path.name for path in (bench.root / _CLASS).iterdir())


def _address(name: str) -> str:
    bus, slot = name.removeprefix("rdmap").split("s")
    return f"0000:{int(bus):02x}:{int(slot):02x}.0"


def _lost(bench: Bench, names: list[str]) -> None:
    """Take devices away as a reboot shows it: from sysfs, from the bus, from /dev."""
    verbs = {
        (path / "ibdev").read_text().strip(): path.name for path in (bench.root / _VERBS).iterdir() if path.is_dir()
    }
    for name in names:
        for path in (f"{_CLASS}/{name}", f"{_BUS}/{_address(name)}", f"{_BOUND}/{_address(name)}"):
            bench.remove(path)
        bench.remove(f"{_VERBS}/{verbs[name]}")
        bench.remove(f"{_NODES}/{verbs[name]}")


def _one_lost(bench: Bench) -> None:
    bench.look(EPILOG)  # the end of an earlier job writes down how many are attached
    _lost(bench, _names(bench)[-1:])


def _all_lost(bench: Bench) -> None:
    _lost(bench, _names(bench))


def _half_lost(bench: Bench) -> None:
    _lost(bench, _names(bench)[16:])


def _none_attached(bench: Bench) -> None:
    bench.write("sys/class/dmi/id/product_name", f"{ONE_DEVICE}\n")
    _lost(bench, _names(bench))


def _just_booted(bench: Bench) -> None:
    bench.replace("efa_live_node", "boot_age_s", lambda: 20.0)
    _one_lost(bench)


def _unlisted(bench: Bench) -> None:
    bench.remove(_CLASS)
    bench.write(_CLASS, "")


def _shut(bench: Bench) -> None:
    bench.replace("efa_live_files", "node_modes", lambda _root: {"uverbs0": 0o600})


def _no_peer_memory(bench: Bench) -> None:
    for name in _names(bench):
        bench.write(f"{_CLASS}/{name}/device/p2p", "\n")


def _old_libfabric(bench: Bench) -> None:
    bench.edit("opt/amazon/efa_installed_packages", "libfabric1-aws_2.6.0amzn1.0", "libfabric1-aws_1.17.0amzn1.0")


def _no_driver(bench: Bench) -> None:
    for path in (_CLASS, _BOUND, _VERBS, _NODES, "sys/module/efa"):
        bench.remove(path)


def _counter(name: str, value: int, *, port: bool = True) -> Callable[[Bench], None]:
    """Return a fixture in which one device's counter stands at a value."""
    folder = "ports/1/hw_counters" if port else "hw_counters"
    return lambda bench: bench.write(f"{_CLASS}/{_FIRST}/{folder}/{name}", f"{value}\n")


def _unread(bench: Bench) -> None:
    bench.remove(f"{_CLASS}/{_FIRST}/hw_counters/cmds_err")
    bench.write(f"{_CLASS}/{_FIRST}/hw_counters/cmds_err/not-a-file", "")


def _limit(bench: Bench) -> None:
    bench.write("run/slurmd.pid", "4194100\n")
    bench.write("proc/4194100/comm", "slurmd\n")
    bench.write(
        "proc/4194100/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         65536                65536                bytes     \n",
    )


def _huge_pages(bench: Bench) -> None:
    bench.edit("proc/meminfo", "HugePages_Total:       0", "HugePages_Total:    5128")


def _small_frames(bench: Bench) -> None:
    for name, text in (("mtu", "1500\n"), ("operstate", "up\n"), ("device/vendor", "0x1d0f\n")):
        bench.write(f"sys/class/net/ens32/{name}", text)


def _apart(bench: Bench) -> None:
    for number, bus in enumerate((0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)):
        folder = f"{_BUS}/0000:{bus:02x}:00.0"
        for name, text in (
            ("vendor", "0x10de"),
            ("device", "0x2330"),
            ("class", "0x030200"),
            ("numa_node", str(number // 4)),
        ):
            bench.write(f"{folder}/{name}", text + "\n")
    for name in _names(bench):
        bench.write(f"{_CLASS}/{name}/device/numa_node", "0\n")
        bench.write(f"{_BUS}/{_address(name)}/numa_node", "0\n")


def _profile(text: str) -> Callable[[Bench], None]:
    def apply(bench: Bench) -> None:
        bench.write("proc/sys/kernel/osrelease", "6.8.0-1031-aws\n")
        bench.write("etc/profile.d/nccl.sh", text)

    return apply


def _fi_info(script: str) -> Callable[[Bench], None]:
    return lambda bench: bench.write("opt/amazon/efa/bin/fi_info", f"#!/bin/sh\n{script}\n", 0o755)


_ONE_ENTRY = f"""printf 'provider: efa\\n    fabric: efa\\n    domain: {_FIRST}-rdm\\n    version: 203.10\\n'
printf '    type: FI_EP_RDM\\n    protocol: FI_PROTO_EFA\\n'"""

FIXTURES: tuple[Fixture, ...] = (
    Fixture("efa.late", "efa.late", _just_booted, UNKNOWN),
    Fixture("efa.fewer-than-possible", "efa.fewer-than-possible", _half_lost, WARN),
    Fixture("efa.none-attached", "efa.none-attached", _none_attached, WARN),
    Fixture("efa.unreadable", "efa.unreadable", _unlisted, UNKNOWN),
    Fixture("efa.device-file-", "efa.device-file-shut", _shut, FAIL, action="drain"),
    Fixture("efa.no-peer-memory", "efa.no-peer-memory", _no_peer_memory, WARN),
    Fixture("efa.not-in-libfabric", "efa.not-in-libfabric", _fi_info(_ONE_ENTRY), UNKNOWN),
    Fixture("compat.", "compat.", _old_libfabric, WARN),
    Fixture("efa.missing", "efa.missing", _one_lost, FAIL, action="replace"),
    Fixture("efa.none-there", "efa.none-there", _all_lost, FAIL, action="drain"),
    Fixture("efa.driver-not-", "efa.driver-not-", _no_driver, FAIL, action="drain"),
    Fixture("efa.no-device-file", "efa.no-device-file", lambda bench: bench.remove(f"{_NODES}/uverbs0"), FAIL),
    Fixture(
        "efa.port-down",
        "efa.port-down",
        lambda bench: bench.write(f"{_CLASS}/{_FIRST}/ports/1/state", "1: DOWN\n"),
        FAIL,
    ),
    Fixture(
        "efa.port-state",
        "efa.port-state",
        lambda bench: bench.write(f"{_CLASS}/{_FIRST}/ports/1/state", "\n"),
        UNKNOWN,
    ),
    Fixture(
        "efa.no-completion", "efa.no-completion", _counter("no_completion_cmds", 1, port=False), FAIL, action="replace"
    ),
    Fixture("efa.counters-", "efa.counters-", _unread, UNKNOWN),
    Fixture("efa.command-error", "efa.command-error", _counter("cmds_err", 5, port=False), WARN, EPILOG),
    Fixture("efa.drops", "efa.drops", _counter("rx_drops", 10**9), WARN, EPILOG),
    Fixture("efa.retransmissions", "efa.retransmissions", _counter("retrans_pkts", 10**9), WARN, EPILOG),
    Fixture(
        "efa.retransmission-timeouts",
        "efa.retransmission-timeouts",
        _counter("retrans_timeout_events", 10**6),
        WARN,
        EPILOG,
    ),
    Fixture("efa.work-request-errors", "efa.work-request-errors", _counter("rdma_read_wr_err", 10**6), WARN, EPILOG),
    Fixture(
        "efa.unresponsive-remote",
        "efa.unresponsive-remote",
        _counter("unresponsive_remote_events", 10**6),
        WARN,
        EPILOG,
    ),
    Fixture(
        "efa.impaired-connections",
        "efa.impaired-connections",
        _counter("impaired_remote_conn_events", 10**6),
        WARN,
        EPILOG,
    ),
    Fixture("efa.memlock-low", "efa.memlock-low", _limit, WARN),
    Fixture("efa.huge-pages-taken", "efa.huge-pages-taken", _huge_pages, WARN, PROLOG),
    Fixture("efa.mtu-low", "efa.mtu-low", _small_frames, WARN),
    Fixture("efa.numa-", "efa.numa-apart", _apart, WARN),
    Fixture("efa.fork-setting", "efa.fork-setting", _profile("export RDMAV_FORK_SAFE=1\n"), WARN),
    Fixture("efa.environment", "efa.environment", _profile("export NCCL_NET=Socket\n"), WARN),
    Fixture("efa.libfabric-error", "efa.libfabric-error", _fi_info("echo fi_getinfo: -38 >&2; exit 38"), UNKNOWN),
    Fixture("efa.output-", "efa.output-", _fi_info("echo something else; exit 0"), UNKNOWN),
    Fixture("efa.tool-", "efa.tool-", lambda bench: bench.remove("opt/amazon/efa/bin/fi_info"), UNKNOWN),
)

"""Fixtures that prove the checks of Lustre's connections and of LNet."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

from slurm_ext.command import Result
from slurm_ext.errors import CommandNotFoundError
from slurm_ext.gate.probes import EPILOG
from slurm_ext.gate.prove_bench import Bench
from slurm_ext.gate.prove_model import Fixture
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

_PLACE = "proc/fs/lustre"
_NIS = "sys/kernel/debug/lnet/nis"
_MINE = "198.18.0.9@tcp               up    -1    1    8    0   256   256   248\n"


def _connection(bench: Bench, kind: str = "osc") -> str:
    """Return the folder of one connection."""
    return f"{_PLACE}/{kind}/{sorted(path.name for path in (bench.root / _PLACE / kind).iterdir())[0]}"


def _state(word: str, kind: str = "osc", *, ago_s: float = 5000.0, now: str = "") -> Callable[[Bench], None]:
    """Return a fixture in which a connection went into a state so long ago, and is in `now` (empty: the same)."""

    def apply(bench: Bench) -> None:
        folder, at = _connection(bench, kind), int(time.time() - ago_s)
        last = now or word
        history = f" - [ {at - 10}, FULL ]\n - [ {at}, {word} ]\n" + (f" - [ {at + 1}, {now} ]\n" if now else "")
        bench.write(f"{folder}/state", f"current_state: {last}\nstate_history:\n{history}")
        if last != "FULL":
            bench.edit(f"{folder}/import", "state: FULL", f"state: {last}")

    return apply


def _other_server(bench: Bench) -> None:
    path = f"{_connection(bench)}/import"
    bench.edit(
        path, "failover_nids: [ 198.18.255.254@tcp ]", "failover_nids: [ 198.18.255.253@tcp, 198.18.255.254@tcp ]"
    )


def _unread(bench: Bench) -> None:
    for name in ("state", "import"):
        path = f"{_connection(bench)}/{name}"
        bench.remove(path)
        bench.write(f"{path}/not-a-file", "")


def _net(status: str = "up", health: int = 1000) -> Callable[[Bench], None]:
    """Return a fixture in which lnetctl shows one interface."""
    text = f"""net:
    - net type: tcp
      local NI(s):
        - nid: 198.18.0.9@tcp
          status: {status}
          interfaces:
              0: ens32
          statistics:
              send_count: 100
              recv_count: 100
          health stats:
              health value: {health}
"""
    return lambda bench: bench.write("etc/fmslurm-lab/lnetctl-net-show.txt", text)


def _second_down(bench: Bench) -> None:
    bench.edit(_NIS, _MINE, _MINE + _MINE.replace("198.18.0.9@tcp ", "198.18.0.9@tcp1").replace(" up ", "down"))


def _asked(result: Result | None) -> Callable[[Bench], None]:
    """Return a fixture in which lnetctl, which a simulated node has none of, is asked and ends so (None: there is none)."""

    def run(argv: object, **_: object) -> Result:
        if result is None:
            raise CommandNotFoundError("lnetctl is not installed")
        return result

    def apply(bench: Bench) -> None:
        from slurm_ext.gate import lustre_live

        network = lustre_live._network
        bench.replace("lustre_live", "command", SimpleNamespace(run=run))
        bench.replace("lustre_live", "_network", lambda here, seen: network(here._replace(root="/"), seen))

    return apply


FIXTURES: tuple[Fixture, ...] = (
    Fixture("lustre.import-bad", "lustre.import-bad", _state("EVICTED"), FAIL, action="drain"),
    Fixture("lustre.import-recovery", "lustre.import-recovery", _state("RECOVER", ago_s=30.0), WARN),
    Fixture("lustre.import-lost", "lustre.import-lost", _state("DISCONN", ago_s=30.0), WARN),
    Fixture("lustre.evicted", "lustre.evicted", _state("EVICTED", ago_s=20.0, now="FULL"), WARN, EPILOG),
    Fixture("lustre.evicted-old", "lustre.evicted-old", _state("EVICTED", ago_s=90_000.0, now="FULL"), PASS, EPILOG),
    Fixture("lustre.failover", "lustre.failover", _other_server, PASS),
    Fixture("lustre.unreadable", "lustre.unreadable", _unread, UNKNOWN),
    Fixture(
        "lustre.not-on-efa", "lustre.not-on-efa", lambda bench: bench.write("sys/module/kefalnd/version", "1\n"), WARN
    ),
    Fixture("lustre.import-unknown", "lustre.import-unknown", _state("PONDERING"), UNKNOWN),
    Fixture("lustre.mgs-lost", "lustre.mgs-lost", _state("DISCONN", "mgc"), WARN),
    Fixture(
        "lustre.inactive", "lustre.inactive", lambda bench: bench.write(f"{_connection(bench)}/active", "0\n"), WARN
    ),
    Fixture(
        "lustre.lbug",
        "lustre.lbug",
        lambda bench: bench.write("sys/fs/lustre/health_check", "LBUG\n"),
        FAIL,
        action="reboot",
    ),
    Fixture(
        "lustre.not-healthy",
        "lustre.not-healthy",
        lambda bench: bench.write(
            "sys/fs/lustre/health_check", "device fsxlab-OST0000 reported unhealthy\nNOT HEALTHY\n"
        ),
        FAIL,
        action="drain",
    ),
    Fixture("lustre.no-imports", "lustre.no-imports", lambda bench: bench.remove(_PLACE), UNKNOWN),
    Fixture(
        "lnet.no-network",
        "lnet.no-network",
        lambda bench: bench.edit(_NIS, _MINE, ""),
        FAIL,
        action="drain",
    ),
    Fixture("lnet.interface-down", "lnet.interface-down", _second_down, WARN),
    Fixture("lnet.unknown-status", "lnet.unknown-status", _net(status="limping"), UNKNOWN),
    Fixture("lnet.degraded", "lnet.degraded", _net(health=600), WARN),
    Fixture("lnet.no-tool", "lnet.no-tool", _asked(None), PASS),
    Fixture("lnet.no-answer", "lnet.no-answer", _asked(Result(("lnetctl",), 1, "", "no", 0.1)), UNKNOWN),
    Fixture(
        "lnet.down",
        "lnet.down",
        lambda bench: bench.edit(_NIS, "198.18.0.9@tcp               up", "198.18.0.9@tcp               down"),
        FAIL,
    ),
)

"""Several nodes on one machine: each an agent on a loopback address of its own, with stand-in GPUs and NCCL."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_ext import keys
from slurm_ext.burnin.gate import run_burnin
from slurm_ext.burnin.model import BurninJob, Outcome
from slurm_ext.config.model import Burnin, Settings, Site
from slurm_ext.verdict import FAIL, UNKNOWN

#: A busy machine may leave a burn-in without time to convict: so many are tried, each with so much more time.
ATTEMPTS, MORE_TIME = 3, 2.0

#: What a busy machine may make a hook late beyond its deadline (seconds); one that is held outlives it by far more.
OVERRUN_S = 15.0

#: Kinds of faults that wait for ten seconds or more and go the way of another one, which the short run tries: of rate that is
#: delay, of what stands still in an all-reduce hang-abort and dstate-iteration, before the first one hang-init and driver-hangs.
LONG_KINDS = ("rate", "hang-iteration", "hang-one-gpu", "stop-iteration", "stop-init", "dstate-init", "dstate-driver")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the long kinds of faults to the soak."""
    for item in items:
        if item.path.name == "test_burnin_faults.py" and item.name.endswith(tuple(f"[{name}]" for name in LONG_KINDS)):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def standin_libraries(libraries: Path) -> Path:
    """The folder of the stand-in libraries."""
    return libraries / "lib"


@functools.cache
def _site_key() -> bytes:
    """The key of the site, the same on all nodes, made once."""
    return keys.make_pem(days=2)


class Cluster:
    """Nodes n0, n1, ... with two GPUs each unless told otherwise."""

    def __init__(
        self, folder: Path, libraries: Path, nodes: int, *, gpus: int = 2, port: int = 0, **burnin: object
    ) -> None:
        self.folder, self.nodes, self.gpus = folder, tuple(f"n{i}" for i in range(nodes)), gpus
        key = _site_key()
        table = folder / "addresses"
        # A network of its own: the ports follow from the job's key, which is the same in all tests and all their runs.
        network = f"127.{secrets.randbelow(200) + 50}.{secrets.randbelow(256)}"
        self.addresses = {name: f"{network}.{2 + i}" for i, name in enumerate(self.nodes)}
        table.write_text("".join(f"{name} {address}\n" for name, address in self.addresses.items()))
        for name in self.nodes:
            self.hardware(name)
            state = folder / name / "state"
            (state / "keys").mkdir(parents=True, mode=0o700)
            (state / "keys/channel-test.pem").write_bytes(key)
            (state / "keys/channel-test.pem").chmod(0o600)
        options: dict[str, object] = {
            "deadline_s": 60.0,
            "rendezvous_s": 20.0,
            "message_bytes": 1 << 20,
            "iterations": 3,
            "sustain_s": 0.2,
            "floor_busbw_gbs": 0.002,
            "pair_floor_busbw_gbs": 0.002,
            "nccl_library": str(libraries / "libnccl.so.2"),
            "cuda_library": str(libraries / "libcuda.so.1"),
            "transport": "socket",
            "addresses": str(table),
            "port": port,
        }
        self.settings = Settings(
            site=Site(
                root=f"{folder}/%n/root",
                state_dir=f"{folder}/%n/state",
                run_dir=f"{folder}/%n/run",
                log_dir=f"{folder}/%n/log",
                munge_socket=f"{folder}/no-munge-here",
            ),
            burnin=Burnin(**{**options, **burnin}),  # type: ignore[arg-type]
        )

    def hardware(self, node: str, **keys: object) -> None:
        """Write the hardware state of one node."""
        path = self.folder / node / "root/etc/fmslurm-lab/hardware.env"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = {"node": node, "gpus": self.gpus, **{k.replace("__", "."): v for k, v in keys.items()}}
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        fresh.rename(path)
        path.with_suffix(".json").write_text("{}")

    def efa_counters(self, node: str, devices: int) -> None:
        """Make EFA devices with byte counters, which the stand-in moves."""
        for number in range(devices):
            folder = self.folder / node / f"root/sys/class/infiniband/rdmap{number}s0/ports/1/hw_counters"
            folder.mkdir(parents=True)
            for name in ("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts"):
                (folder / name).write_text("0\n")

    def job(self, node: str, job_id: str = "7", restarts: int = 0) -> BurninJob:
        return BurninJob("c", job_id, restarts, self.nodes, node, self.gpus, "p5.48xlarge")

    def log(self) -> str:
        return "\n".join(f"[{p.parent.parent.name}] {p.read_text()}" for p in sorted(self.folder.glob("*/log/*.log")))

    def run(
        self, *, absent: tuple[str, ...] = (), deadline_s: float | None = None, survey: bool = False, job_id: str = "7"
    ) -> dict[str, Outcome]:
        """Let the hooks of all nodes run at once, and return what each got."""
        limit = deadline_s or self.settings.burnin.deadline_s
        started = time.monotonic()
        present = [name for name in self.nodes if name not in absent]
        with ThreadPoolExecutor(len(present)) as pool:
            futures = {
                name: pool.submit(
                    run_burnin, self.job(name, job_id), self.settings, deadline_s=limit, survey=survey, cgroups=False
                )
                for name in present
            }
            outcomes = {name: future.result() for name, future in futures.items()}
        assert time.monotonic() - started < limit + OVERRUN_S, "a hook outlived its deadline"
        return outcomes

    def convict(self, culprit: str, *, before: Callable[[str], None] = lambda job_id: None) -> dict[str, Outcome]:
        """Run burn-ins until one convicts just this node, and return what its hooks got; fail where none does.

        What never may happen holds for each of them: that anybody else is convicted, or that the job may start. `before` is
        told each one's job id.
        """
        for number in range(ATTEMPTS):
            job_id = str(7 + number)
            before(job_id)
            outcomes = self.run(job_id=job_id)
            assert {o.culprits for o in outcomes.values()} <= {(), (culprit,)}, (outcomes, self.log())
            assert {o.verdict.verdict for o in outcomes.values()} <= {FAIL, UNKNOWN}, (outcomes, self.log())
            if all(o.culprits for o in outcomes.values()):
                return outcomes
            burnin = self.settings.burnin
            burnin = burnin._replace(
                deadline_s=MORE_TIME * burnin.deadline_s, rendezvous_s=MORE_TIME * burnin.rendezvous_s
            )
            self.settings = self.settings._replace(burnin=burnin)
        raise AssertionError(f"{culprit} was never convicted: {outcomes}\n{self.log()}")


@pytest.fixture
def make_cluster(tmp_path: Path, standin_libraries: Path):
    """Return a function that makes a cluster of N nodes."""

    def make(nodes: int, **more: object) -> Cluster:
        return Cluster(tmp_path, standin_libraries, nodes, **more)  # type: ignore[arg-type]

    return make

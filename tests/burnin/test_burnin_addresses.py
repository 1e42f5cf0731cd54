"""Where nodes are found: pushed tables first, then the resolver, then what a leader asked Slurm and left on the share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cluster

from slurm_ext.burnin import addresses, surroundings
from slurm_ext.burnin.model import BurninJob
from slurm_ext.config.model import Burnin, Settings, Site
from slurm_ext.errors import LackingError
from slurm_ext.verdict import PASS

FAR = "nowhere.invalid"


def settings(folder: Path, **burnin: object) -> Settings:
    share = folder / "share"
    (share / "ledger").mkdir(mode=0o755, parents=True, exist_ok=True)
    return Settings(site=Site(share=str(share), slurm_bin=str(folder)), burnin=Burnin(**burnin))  # type: ignore[arg-type]


def meet(given: Settings, node: str, nodes: tuple[str, ...], *, wait_s: float = 0.0) -> dict[str, str]:
    job = BurninJob("c", "7", 0, nodes, node, 1)
    return addresses.to_meet(job, given, nodes[:3], give_up=time.monotonic() + wait_s, wanted=lambda: True)[0]


@pytest.mark.parametrize("table", ["missing", "empty", "writable", "untold"])
def test_without_a_table_the_resolver_knows(tmp_path: Path, table: str) -> None:
    path = tmp_path / "addresses"
    if table != "missing":
        path.write_text({"empty": "", "writable": "localhost 192.0.2.1\n", "untold": "other 192.0.2.1\n"}[table])
        path.chmod(0o666 if table == "writable" else 0o644)
    found = meet(settings(tmp_path, addresses=str(path)), FAR + "4", ("localhost", FAR + "2", FAR + "3", FAR + "4"))
    assert found["localhost"] in ("127.0.0.1", "::1")


def test_the_sites_own_table_comes_before_the_pushed_one(tmp_path: Path) -> None:
    given = settings(tmp_path, addresses=str(tmp_path / "own"))
    (tmp_path / "own").write_text("localhost 192.0.2.1\n")
    pushed = Path(given.site.share) / "addresses"
    pushed.write_text("localhost 192.0.2.9\nn2 2001:db8::2\nn3 192.0.2.3\nn4 192.0.2.4\n")
    pushed.chmod(0o644)
    assert meet(given, "n2", ("localhost", "n2", "n3", "n4")) == {
        "localhost": "192.0.2.1",
        "n2": "2001:db8::2",
        "n3": "192.0.2.3",
    }


def test_a_leader_that_nobody_knows_is_named_and_slurm_that_does_not_answer_holds_nobody(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(LackingError, match=r"nowhere\.invalid"):
        meet(settings(tmp_path), FAR, (FAR, "localhost"))
    assert time.monotonic() - started < addresses.READ_S + addresses.RESOLVE_S + addresses.ASK_S + 30.0


def test_others_do_not_ask_slurm_but_read_what_a_leader_left(tmp_path: Path) -> None:
    given = settings(tmp_path)
    nodes = tuple(f"x{i}.invalid" for i in range(5))
    thread = threading.Timer(0.5, lambda: addresses.publish(given.site.share, "c/7-0", {nodes[1]: "192.0.2.7"}))
    thread.start()
    try:
        assert meet(given, nodes[4], nodes, wait_s=120.0) == {nodes[1]: "192.0.2.7"}
    finally:
        thread.join()
    with pytest.raises(LackingError):
        meet(given, nodes[4], (*(f"y{i}.invalid" for i in range(4)), nodes[4]))


def test_leaf_switches_are_read_for_the_jobs_nodes_alone(tmp_path: Path) -> None:
    share = Path(settings(tmp_path).site.share)
    assert surroundings.leaves(str(share), ["n1"]) == {}
    (share / "topology").mkdir(mode=0o755)
    path = share / "topology/leaves"
    path.write_text("n1 leaf-a\nn2 leaf-b\nn3\nbroken line of words\nn4 leaf-a\n")
    path.chmod(0o644)
    assert surroundings.leaves(str(share), ["n1", "n3", "n4"]) == {"n1": "leaf-a", "n4": "leaf-a"}
    path.chmod(0o666)
    assert surroundings.leaves(str(share), ["n1"]) == {}


def test_interfaces_of_both_families() -> None:
    assert (surroundings.interface_of("127.0.0.5"), surroundings.interface_of("::1")) == ("lo", "lo")
    assert (surroundings.interface_of("192.0.2.1"), surroundings.interface_of("2001:db8::1")) == ("", "")


def test_nodes_meet_over_ipv6(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2)
    (cluster.folder / "addresses").write_text("n0 ::1\nn1 ::1\n")
    outcomes = cluster.run()
    assert {o.verdict.verdict for o in outcomes.values()} == {PASS}, cluster.log()

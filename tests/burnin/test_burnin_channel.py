"""Whole agents that prove themselves by a real munged, and agents that cannot prove themselves to each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "channel"))
from channel_peers import own_munged

from slurm_ext import keys


@pytest.fixture(scope="module")
def munge_socket() -> Iterator[str]:
    with own_munged() as path:
        yield path


def by_munge(cluster, path: str) -> None:
    cluster.settings = cluster.settings._replace(site=cluster.settings.site._replace(munge_socket=path))


def without_keys(cluster) -> None:
    for node in cluster.nodes:
        for path in (cluster.folder / node / "state/keys").iterdir():
            path.unlink()


def test_three_nodes_by_munge(make_cluster, munge_socket: str) -> None:
    cluster = make_cluster(3)
    by_munge(cluster, munge_socket)
    without_keys(cluster)
    outcomes = cluster.run()
    assert {o.verdict.verdict for o in outcomes.values()} == {"pass"}, cluster.log()


def test_munge_on_one_node_and_the_key_on_the_other_is_unknown(make_cluster, munge_socket: str) -> None:
    cluster = make_cluster(2, rendezvous_s=12.0)
    os.symlink(munge_socket, cluster.folder / "n0/munge.socket")
    by_munge(cluster, f"{cluster.folder}/%n/munge.socket")
    outcomes = cluster.run()
    assert {o.verdict.verdict for o in outcomes.values()} == {"unknown"}, outcomes
    assert not any(o.culprits for o in outcomes.values())
    assert "the other side proves itself by" in cluster.log()


def test_neither_munge_nor_key_is_unknown_and_names_both(make_cluster) -> None:
    cluster = make_cluster(2)
    without_keys(cluster)
    outcomes = cluster.run()
    for outcome in outcomes.values():
        assert (outcome.verdict.verdict, outcome.verdict.rule) == ("unknown", "burnin.cannot-start")
        assert "fmslurm key create" in outcome.verdict.reason
        assert "munge" in outcome.verdict.reason


def test_different_keys_are_unknown_and_named_in_the_log(make_cluster) -> None:
    cluster = make_cluster(2, rendezvous_s=12.0)
    (path,) = (cluster.folder / "n1/state/keys").iterdir()
    path.write_bytes(keys.make_pem(days=2))
    outcomes = cluster.run()
    assert {o.verdict.verdict for o in outcomes.values()} == {"unknown"}, outcomes
    assert not any(o.culprits for o in outcomes.values())
    assert "no key in common" in cluster.log()


def test_the_unique_id_and_the_key_are_in_no_log_and_no_outcome(make_cluster) -> None:
    """A unique id is 128 bytes, 256 letters in hex: no such word stands anywhere."""
    cluster = make_cluster(2)
    outcomes = cluster.run()
    assert {o.verdict.verdict for o in outcomes.values()} == {"pass"}, cluster.log()
    (path,) = (cluster.folder / "n0/state/keys").iterdir()
    lines = [line for line in path.read_text().splitlines() if not line.startswith("-----")]
    said = repr(outcomes)
    for node in cluster.nodes:
        for place in ("log", "state", "run"):
            for file in (cluster.folder / node / place).rglob("*"):
                if file.is_file() and "keys" not in file.parts:
                    said += file.read_text(errors="replace")
    assert not any(line in said for line in lines)
    long_hex = [
        word for word in said.replace('"', " ").split() if len(word) >= 128 and set(word) <= set("0123456789abcdef")
    ]
    assert long_hex == []

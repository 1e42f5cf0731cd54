"""What lies where a burn-in writes: a FIFO holds nobody, a link leads nowhere else, and neither costs a healthy node."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from conftest import Cluster

from slurm_ext.burnin import clocks, history
from slurm_ext.burnin.efa_look import EfaLook
from slurm_ext.verdict import PASS, UNKNOWN

NOTES = ("json", "json~", "voice", "voice~")


def put(path: Path, kind: str, aim: Path) -> None:
    """Put a FIFO, or a link to `aim`, where a file is to come."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(aim)


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_log_that_is_none_ends_the_hook_in_time_and_is_named(make_cluster, tmp_path: Path, kind: str) -> None:
    cluster: Cluster = make_cluster(1)
    aim = tmp_path / "precious"
    aim.write_text("precious")
    put(cluster.folder / "n0/log/burnin.log", kind, aim)
    outcome = cluster.run()["n0"]
    assert (outcome.verdict.verdict, outcome.verdict.rule) == (UNKNOWN, "burnin.cannot-start")
    assert "burnin.log is no regular file" in outcome.verdict.reason
    assert aim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_lies_in_the_place_of_a_note_or_a_voice_is_replaced(make_cluster, tmp_path: Path, kind: str) -> None:
    cluster: Cluster = make_cluster(3, floor_busbw_gbs=0.01, pair_floor_busbw_gbs=0.01)
    cluster.hardware("n1", **{"nccl.wrong_result": "send"})
    aim = tmp_path / "precious"
    aim.write_text("precious")

    def before(job_id: str) -> None:
        for node in cluster.nodes:
            for name in NOTES:
                put(cluster.folder / node / f"run/burnin/{job_id}-0.{name}", kind, aim)

    cluster.convict("n1", before=before)  # nobody would be with a voice that cannot be given, or an agent that is held
    assert aim.read_text() == "precious"


def test_a_link_in_the_place_of_the_folder_of_logs_is_not_followed(make_cluster, tmp_path: Path) -> None:
    cluster: Cluster = make_cluster(1)
    aim = tmp_path / "elsewhere"
    aim.mkdir()
    put(cluster.folder / "n0/run/burnin/7-0.d", "link", aim)
    outcome = cluster.run()["n0"]
    assert outcome.verdict.verdict == UNKNOWN
    assert "7-0.d" in outcome.verdict.reason
    assert list(aim.iterdir()) == []


def test_a_pipe_among_nccls_logs_or_in_the_place_of_samples_holds_nobody(tmp_path: Path) -> None:
    look = EfaLook(str(tmp_path), str(tmp_path))
    os.mkfifo(tmp_path / "nccl.1")
    (tmp_path / "nccl.2").write_text("n0:1:1 [0] NCCL INFO Using network Libfabric\n")
    assert [one["networks"] for one in look.facts()["processes"]] == [("Libfabric",)]
    samples = tmp_path / clocks.NAME
    os.mkfifo(samples)
    assert clocks.read(str(samples)) == []
    clocks.sample_into(str(samples), list, going=lambda: True)


def test_a_history_of_its_own_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    history.append(str(tmp_path), {"job": "c/1-0", "time": time.time(), "node": "n0"})
    path = tmp_path / history.NAME
    refused: list[str] = []
    assert [one["job"] for one in history.read_local(str(tmp_path), refused=refused.append)] == ["c/1-0"]
    path.chmod(0o666)
    assert history.read_local(str(tmp_path), refused=refused.append) == []
    assert "may be written by others" in refused.pop()
    path.unlink()
    os.mkfifo(path)
    assert history.read_local(str(tmp_path), refused=refused.append) == []
    assert "no regular file" in refused.pop()
    look = history.look("", ["n0"], now=time.time(), history_d=30, state_dir=str(tmp_path))
    assert look.pasts == ()


def test_a_healthy_burnin_is_not_disturbed_by_what_an_earlier_one_left(make_cluster) -> None:
    cluster: Cluster = make_cluster(2)
    for node in cluster.nodes:
        folder = cluster.folder / node / "run/burnin"
        (folder / "7-0.d").mkdir(parents=True)
        (folder / "7-0.json~").write_text("{")
    assert {outcome.verdict.verdict for outcome in cluster.run().values()} == {PASS}

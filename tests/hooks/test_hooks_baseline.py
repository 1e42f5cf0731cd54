"""What a prolog keeps for its job's epilog: used only where it is of this very attempt and boot, and root's alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.hooks import baseline
from slurm_ext.hooks.baseline import Baseline
from slurm_ext.hooks.environment import HookJob
from slurm_ext.verdict import Finding

BOOT = "01bc7c34-063e-420f-a4d8-da0af9089b45"
JOB = HookJob("77", "c", 1, "n0", start_s=1000.0)
KEPT = Baseline("77", 1, BOOT, 50.0, 1001.0, ("gpu.x gpu:1",), {"gpu": {"at_s": 1001.0, "gpus": {"GPU-1": {"ecc": 3}}}})

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only what root owns is trusted")


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir(mode=0o755)
    return str(tmp_path / "run")


def file_of(run_dir: str, job: str = "77") -> Path:
    return Path(run_dir, "baselines", f"{job}.json")


def test_what_was_kept_comes_back_to_its_own_epilog(run_dir):
    assert baseline.write(run_dir, KEPT) == ""
    assert baseline.read(run_dir, JOB, BOOT) == (KEPT, "")
    assert file_of(run_dir).stat().st_mode & 0o777 == 0o600
    assert file_of(run_dir).parent.stat().st_mode & 0o777 == 0o700
    baseline.remove(run_dir, "77")
    assert baseline.read(run_dir, JOB, BOOT) == (None, "none was written")


@pytest.mark.parametrize(
    ("job", "boot", "why"),
    [
        (JOB._replace(restarts=2), BOOT, "another attempt"),
        (JOB._replace(job_id="78"), BOOT, "none was written"),
        (JOB, "another-boot", "another boot"),
        (JOB, "", "another boot"),
        (JOB._replace(start_s=9000.0), BOOT, "before this attempt started"),
    ],
)
def test_one_of_another_attempt_or_boot_is_none(run_dir, job, boot, why):
    baseline.write(run_dir, KEPT)
    found, said = baseline.read(run_dir, job, boot)
    assert found is None
    assert why in said


def test_jobs_of_one_node_keep_to_themselves(run_dir):
    other = KEPT._replace(job_id="78", found=())
    baseline.write(run_dir, KEPT)
    baseline.write(run_dir, other)
    baseline.remove(run_dir, "77")
    assert baseline.read(run_dir, JOB._replace(job_id="78"), BOOT) == (other, "")


def test_one_that_cannot_be_written_leaves_no_older_one(run_dir):
    baseline.write(run_dir, KEPT)
    large = KEPT._replace(restarts=2, kept={"x": {"y": "z" * baseline.MAX_BYTES}})
    assert "bytes" in baseline.write(run_dir, large)
    assert not file_of(run_dir).exists()
    os.rmdir(file_of(run_dir).parent)
    file_of(run_dir).parent.write_text("no folder")
    assert "Not a directory" in baseline.write(run_dir, KEPT)
    baseline.remove(run_dir, "77")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o666),
        lambda path: os.chown(path, 1000, 1000),
        lambda path: path.parent.chmod(0o777),
        lambda path: path.write_text(path.read_text()[:-20]),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "kept": 3})),
        lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: path.write_text(" " * 3 * baseline.MAX_BYTES),
    ],
)
def test_one_that_root_did_not_write_so_is_none(run_dir, spoil):
    baseline.write(run_dir, KEPT)
    spoil(file_of(run_dir))
    assert baseline.read(run_dir, JOB, BOOT)[0] is None


def test_a_planted_link_is_not_written_through(run_dir, tmp_path):
    baseline.write(run_dir, KEPT)
    (tmp_path / "victim").write_text("mine")
    for name in (file_of(run_dir), file_of(run_dir, "77").with_name("77.json~")):
        name.unlink(missing_ok=True)
        name.symlink_to(tmp_path / "victim")
    assert baseline.write(run_dir, KEPT) == ""
    assert (tmp_path / "victim").read_text() == "mine"
    assert baseline.read(run_dir, JOB, BOOT)[0] == KEPT


def test_those_that_no_epilog_came_for_do_not_pile_up(run_dir):
    for number in range(baseline.FILES_MAX + 5):
        baseline.write(run_dir, KEPT._replace(job_id=str(number + 1)))
        os.utime(file_of(run_dir, str(number + 1)), (number, number))
    baseline.remove(run_dir, "77")
    assert len(os.listdir(file_of(run_dir).parent)) == baseline.FILES_MAX
    assert not file_of(run_dir, "1").exists()


def test_what_is_no_job_id_is_no_path(run_dir):
    with pytest.raises(ValueError, match="not a job id"):
        baseline.write(run_dir, KEPT._replace(job_id="../../x"))


@pytest.mark.parametrize(
    ("now", "boottime", "at_s"),
    [(5001.0, 4050.0, 1001.0), (5000.0, 4050.0, 1001.0), (8601.0, 4050.0, 4601.0), (1401.0, 4050.0, -2599.0)],
    ids=["still", "drifts", "set on by an hour", "set back by an hour"],
)
def test_times_are_told_by_the_clock_as_it_is_now(now, boottime, at_s):
    kept = baseline.kept_as_of_now(KEPT, now=now, boottime=boottime)
    assert kept["gpu"]["at_s"] == at_s
    assert kept["gpu"]["gpus"] == KEPT.kept["gpu"]["gpus"]


def test_findings_by_what_makes_them_the_same_again():
    one = Finding("gpu.x", "gpu:1", "warn", ("a",))
    assert baseline.names([one, one._replace(evidence=("b",)), one._replace(target="gpu:2")]) == (
        "gpu.x gpu:1",
        "gpu.x gpu:2",
    )


@given(st.binary(max_size=200))
def test_any_content_is_one_or_none(tmp_path_factory, content):
    run_dir = tmp_path_factory.getbasetemp() / "any"
    path = file_of(str(run_dir))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(content)
    assert baseline.read(str(run_dir), JOB, BOOT)[0] is None

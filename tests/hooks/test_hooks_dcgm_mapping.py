"""dcgm-exporter's mapping files: our line and nothing else, whoever writes beside us and wherever we are killed."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import re

import pytest

from slurm_ext.gate.model import Gpu
from slurm_ext.hooks import dcgm_mapping
from slurm_ext.hooks.dcgm_mapping import add, file_names, remove

A, B = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52", "GPU-00000000-d9cf-fef3-62e9-d92044ab6e52"
GPUS = (Gpu(0, uuid=A), Gpu(1, uuid=B), Gpu(2, uuid=A[:-1] + "3", mig=True))

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the folder must be root's")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "map"
    path.mkdir(mode=0o755)
    return path


@pytest.mark.parametrize(
    ("ids", "names", "without"),
    [
        (("0", "1"), ("0", "1"), 0),
        ((A, B), ("0", "1"), 0),
        ((A.upper(),), ("0",), 0),
        (("7",), ("7",), 0),
        (("GPU-11111111-d9cf-fef3-62e9-d92044ab6e52",), (), 1),
        ((f"MIG-{A}/7/0",), ("0.7",), 0),
        ((f"MIG-{A}/7/0", f"MIG-{A}/7/1"), ("0.7",), 0),
        (("MIG-604ac76c-d9cf-fef3-62e9-d92044ab6e52",), (), 1),
        (("2",), (), 1),
        ((), (), 0),
    ],
)
def test_the_names_that_the_exporter_reads(ids, names, without):
    found = file_names(ids, GPUS)
    assert (found[0], len(found[1])) == (names, without)
    # validGPUFile in dcgm-exporter's internal/pkg/transformation/hpc.go
    assert all(re.fullmatch(r"\d+(\.\d+)?", name) for name in found[0])


def test_a_line_comes_and_goes_and_an_empty_file_with_it(folder):
    assert add(str(folder), "77", ("0", "1")) == ""
    assert [(folder / name).read_text() for name in ("0", "1")] == ["77\n", "77\n"]
    assert (folder / "0").stat().st_mode & 0o777 == 0o644
    assert add(str(folder), "77", ("0", "1")) == ""  # a prolog that runs twice
    assert (folder / "0").read_text() == "77\n"
    assert remove(str(folder), "77") == ""
    assert os.listdir(folder) == []
    assert remove(str(folder), "77") == ""


def test_jobs_share_a_gpu_and_the_lines_of_others_stay_as_they_are(folder):
    (folder / "0").write_bytes(b"other job \xff\n\n  7\n77x\n177")
    (folder / "1").write_bytes(b"other\n\n")
    (folder / "README").write_text("77\n")
    for job in ("77", "78"):
        assert add(str(folder), job, ("0",)) == ""
    assert (folder / "0").read_bytes() == b"other job \xff\n\n  7\n77x\n177\n77\n78\n"
    assert remove(str(folder), "77") == ""
    assert (folder / "0").read_bytes() == b"other job \xff\n\n  7\n77x\n177\n78\n"
    assert (folder / "1").read_bytes() == b"other\n\n"
    assert (folder / "README").read_text() == "77\n"


def test_a_gpu_that_the_prolog_knew_by_another_number_loses_its_line_too(folder):
    add(str(folder), "77", ("0", "5", "3.2"))
    assert remove(str(folder), "77") == ""
    assert os.listdir(folder) == []


def test_a_folder_that_is_missing_is_let_be(tmp_path):
    assert add(str(tmp_path / "no"), "77", ("0",)) == ""
    assert remove(str(tmp_path / "no"), "77") == ""
    assert not (tmp_path / "no").exists()


def test_links_are_not_followed(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("77\nsecret\n")
    (folder / "0").symlink_to(victim)
    os.mkfifo(folder / "1")
    (folder / "2").mkdir()
    (folder / "3").write_bytes(b"x" * (dcgm_mapping.FILE_BYTES + 1))
    said = add(str(folder), "77", ("0", "1", "2", "3", "4"))
    assert [part.partition(":")[0] for part in said.split("; ")] == ["0", "1", "2", "3"]
    assert (folder / "4").read_text() == "77\n"
    remove(str(folder), "77")
    assert victim.read_text() == "77\nsecret\n"
    assert (folder / "0").is_symlink()
    (tmp_path / "link").symlink_to(folder)
    assert "link" in add(str(tmp_path / "link"), "77", ("0",))


def test_a_folder_that_others_may_write_is_refused(folder):
    folder.chmod(0o777)
    assert "others may write" in add(str(folder), "77", ("0",))
    folder.chmod(0o755)
    os.chown(folder, 1000, 1000)
    assert "another user" in add(str(folder), "77", ("0",))
    assert os.listdir(folder) == []


def test_what_a_killed_hook_left_half_written_goes(folder):
    (folder / ".fmslurm-0").write_text("7")
    assert add(str(folder), "77", ("0",)) == ""
    assert os.listdir(folder) == ["0"]


def test_a_lock_that_nobody_gives_back_costs_a_line_and_no_hook(folder, monkeypatch):
    monkeypatch.setattr(dcgm_mapping, "TIMEOUT_S", 0.2)
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert "does not answer" in add(str(folder), "77", ("0",))
    finally:
        os.close(held)
    assert add(str(folder), "77", ("0",)) == ""


def test_a_full_folder_keeps_the_lines_that_it_has(folder):
    (folder / "0").write_text("other\n")
    folder_full = multiprocessing.get_context("fork").Process(target=_with_no_room, args=(str(folder),))
    folder_full.start()
    folder_full.join()
    assert folder_full.exitcode == 0
    assert (folder / "0").read_text() == "other\n"
    assert os.listdir(folder) == ["0"]


def _with_no_room(folder: str) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    assert "0: " in dcgm_mapping._guarded(folder, "77", ("0",)).decode()


def _edits(folder: str, job: str) -> None:
    for _ in range(20):
        assert dcgm_mapping._guarded(folder, job, ("0", "1")) == b""
        assert dcgm_mapping._guarded(folder, job, None) == b""
    assert dcgm_mapping._guarded(folder, job, ("0", "1")) == b""


def test_prologs_and_epilogs_at_once_lose_no_line(folder):
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_edits, args=(str(folder), str(100 + n))) for n in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 6
    for name in ("0", "1"):
        assert sorted((folder / name).read_text().split()) == [str(100 + n) for n in range(6)]

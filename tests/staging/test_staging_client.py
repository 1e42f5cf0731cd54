"""What a trainer sees: whole or invisible, durable or refused with a reason."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from staging_site import StagingSite
from staging_trees import picture, write_tree

from slurm_ext.staging import CheckpointRefused, Checkpoints, find
from slurm_ext.staging import manifest as manifests


def _plain(folder: Path, **more: object) -> Checkpoints:
    return Checkpoints(run="run", directory=str(folder), environment={}, **more)  # type: ignore[arg-type]


def _visible(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.exists() else []


def test_a_step_on_nvme_is_there_when_it_is_closed_and_not_before(site: StagingSite) -> None:
    checkpoints = site.trainer()
    run_folder = checkpoints.nvme
    with checkpoints.step(5) as folder:
        write_tree(folder)
        before = picture(folder)
        assert list(find.iter_nvme(run_folder)) == []
    found = next(find.iter_nvme(run_folder))
    assert (found.step, found.tier, found.attempt) == (5, "nvme", "lab/12-0")
    assert picture(found.path) == before
    assert checkpoints.last is not None
    assert (checkpoints.last.where, checkpoints.last.bytes) == ("nvme", found.size)


def test_an_exception_leaves_nothing_behind(site: StagingSite) -> None:
    checkpoints = site.trainer()

    def train() -> None:
        with checkpoints.step(5) as folder:
            Path(folder, "half").write_bytes(b"x")
            raise KeyError("of the trainer")

    with pytest.raises(KeyError):
        train()
    assert list(find.iter_nvme(checkpoints.nvme)) == []
    assert [name for _, _, names in os.walk(checkpoints.nvme) for name in names] == []


def test_the_same_step_twice_is_refused_and_another_attempt_is_not(site: StagingSite) -> None:
    with site.trainer().step(5):
        pass
    with pytest.raises(CheckpointRefused) as refused, site.trainer().step(5):
        pass
    assert refused.value.reason == "exists"
    with site.trainer(attempt="lab/12-1").step(5) as folder:
        Path(folder, "new").touch()
    assert next(find.iter_nvme(site.trainer().nvme)).attempt == "lab/12-1"  # the later one, nothing mixed


@pytest.mark.parametrize(("shard", "world", "step"), [(1, 1, 5), (-1, 2, 5), (0, 0, 5), (0, 1, -1)])
def test_numbers_that_cannot_be(site: StagingSite, shard: int, world: int, step: int) -> None:
    with pytest.raises(CheckpointRefused), site.trainer().step(step, shard=shard, world=world):
        pass


def test_without_an_agent_a_checkpoint_is_invisible_until_the_last_shard(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    before: dict[str, tuple[str, int, str]] = {}
    for rank in (2, 0, 1):
        assert _visible(folder) == []
        with _plain(folder).step(7, shard=rank, world=3) as mine:
            write_tree(mine, seed=rank)
            for name in os.listdir(mine):  # each rank names of its own, apart from folders and what is the same
                if name not in ("level-0", "empty folder"):
                    os.rename(os.path.join(mine, name), os.path.join(mine, f"{rank}-{name}"[:255]))
            before |= picture(mine)
    assert _visible(folder) == ["step-7"]
    assert picture(folder / "step-7") == before
    restored = _plain(folder).restore()
    assert restored is not None
    assert (restored.step, restored.path) == (7, str(folder / "step-7"))


def test_two_shards_with_one_name_are_refused_with_the_name(tmp_path: Path) -> None:
    for rank in (0, 1):
        context = contextlib.nullcontext() if rank == 0 else pytest.raises(CheckpointRefused, match=r"model\.pt")
        with context, _plain(tmp_path).step(7, shard=rank, world=2) as mine:
            Path(mine, "model.pt").write_bytes(bytes([rank]))
    assert _visible(tmp_path) == []


def test_no_files_at_all_is_a_checkpoint(tmp_path: Path) -> None:
    with _plain(tmp_path).step(0):
        pass
    whole = manifests.read(str(tmp_path / "step-0" / ".fmslurm-manifest.json"))
    assert whole is not None
    assert whole.entries == ()
    assert _plain(tmp_path).restore() is not None


def test_a_folder_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "mine").write_bytes(b"of the user")
    with pytest.raises(CheckpointRefused) as refused, _plain(tmp_path).step(7):
        pass
    assert refused.value.reason == "exists"
    assert os.listdir(tmp_path / "step-7") == ["mine"]
    assert _plain(tmp_path).restore() is None


def test_a_lost_file_makes_it_no_checkpoint_and_the_one_before_is_taken(tmp_path: Path) -> None:
    for step in (1, 2):
        with _plain(tmp_path).step(step) as folder:
            Path(folder, "a").write_bytes(b"12345")
    os.truncate(tmp_path / "step-2" / "a", 4)
    restored = _plain(tmp_path).restore()
    assert restored is not None
    assert restored.step == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FMSLURM_RESTORE_DIR": "/x/step-9", "FMSLURM_RESUME_STEP": "9"}, (9, "/x/step-9")),
        ({"FMSLURM_RESTORE_DIR": ""}, None),  # the prolog looked and there is none
        ({}, (1, "")),  # nobody looked
    ],
)
def test_restore_goes_by_what_the_prolog_decided(
    tmp_path: Path, environment: dict[str, str], expected: tuple[int, str] | None
) -> None:
    with _plain(tmp_path).step(1):
        pass
    restored = Checkpoints(run="run", directory=str(tmp_path), environment=environment).restore()
    assert (restored is None) == (expected is None)
    if restored is not None and expected is not None:
        assert restored.step == expected[0]
        assert restored.path == (expected[1] or str(tmp_path / "step-1"))


@pytest.mark.parametrize(
    "arguments",
    [{"run": "../x"}, {"directory": "relative"}, {"attempt": "a/../b"}, {"directory": "", "nvme": ""}],
)
def test_arguments_that_cannot_be(arguments: dict[str, str]) -> None:
    with pytest.raises(CheckpointRefused):
        Checkpoints(**{"run": "run", "directory": "/x", "environment": {}, **arguments})  # type: ignore[arg-type]


def test_names_come_from_slurm_where_fmslurm_gave_none() -> None:
    plain = Checkpoints(directory="/x", environment={"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"})
    assert (plain.run, plain.attempt) == ("job-12", "job-12-3")


def test_nvme_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    checkpoints = _plain(tmp_path / "ckpt", nvme="/proc/no/such")
    with checkpoints.step(3):
        pass
    assert checkpoints.last is not None
    assert (checkpoints.last.where, _visible(tmp_path / "ckpt")) == ("folder", ["step-3"])
    assert checkpoints.last.reason


def test_the_import_is_cheap_and_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, slurm_ext.staging; "
        "bad = {'click', 'yaml', 'boto3', 'botocore', 'awscrt', 'numpy', 'ClusterShell'} & set(sys.modules); "
        "sys.exit(f'{bad}' if bad else 0)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {code}"])
    assert done.returncode == 0


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB that really runs full."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tiny tmpfs needs root")
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(folder: str) -> None:
    Path(folder, "weights").write_bytes(bytes(4 << 20))


def test_a_full_nvme_skips_the_step_and_the_next_goes_to_the_folder(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = _plain(tmp_path / "ckpt", nvme=str(tiny / "run"))
    with checkpoints.step(1) as folder:
        Path(folder, "weights").write_bytes(bytes(1 << 20))
    with checkpoints.step(2) as folder:  # as large as the last: 1.1 times that is no longer free
        Path(folder, "weights").write_bytes(bytes(1 << 20))
    assert checkpoints.last is not None
    assert checkpoints.last.where == "folder"
    other = _plain(tmp_path / "ckpt", nvme=str(tiny / "run"), attempt="other")
    with other.step(3) as folder:
        _fill(folder)
    assert other.last is not None
    assert (other.last.where, other.skipped) == ("skipped", 1)
    assert "step 3 skipped" in capsys.readouterr().err
    assert [found.step for found in find.iter_nvme(str(tiny / "run"))] == [1]


def test_save_tries_the_folder_where_nvme_runs_full(tiny: Path, tmp_path: Path) -> None:
    checkpoints = _plain(tmp_path / "ckpt", nvme=str(tiny / "run"))
    saved = checkpoints.save(1, _fill)
    assert (saved.where, checkpoints.skipped) == ("folder", 0)
    assert _visible(tmp_path / "ckpt") == ["step-1"]
    with pytest.raises(CheckpointRefused) as refused:
        _plain(tmp_path / "ckpt", nvme=str(tiny / "run"), on_full=()).save(2, _fill)
    assert refused.value.reason == "full"
    assert next(find.iter_shared(str(tmp_path / "ckpt"))).step == 1


def test_a_full_disk_that_a_library_reports_in_its_own_words_counts_as_full(tiny: Path) -> None:
    checkpoints = Checkpoints(run="run", nvme=str(tiny / "run"), environment={})

    def write(folder: str) -> None:
        try:
            _fill(folder)
        except OSError as exc:
            raise RuntimeError("writer failed") from exc

    assert checkpoints.save(1, write).where == "skipped"

"""SIGKILL at every step of moving a shard: what is visible is whole, what is done stays, and running again ends it well."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from staging_site import StagingSite
from staging_trees import killed_at, names_of_points, picture, write_tree

from slurm_ext.staging import commit, find, nvme
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.local import Point
from slurm_ext.staging.model import COMPLETE, COPIED, FILE, REFUSED, Manifest, incoming_name


def _saved(site: StagingSite, world: int = 2) -> list[tuple[str, Manifest]]:
    """Save a step in `world` shards on one node; return each shard's folder and manifest."""
    checkpoints = site.trainer()
    for rank in range(world):
        with checkpoints.step(5, shard=rank, world=world) as folder:
            write_tree(folder, seed=rank)
            for name in os.listdir(folder):
                if not name.startswith("level-"):
                    os.rename(os.path.join(folder, name), os.path.join(folder, f"{rank}{name}"[:255]))
            (Path(folder, "level-0", f"rank-{rank}")).write_bytes(b"of one rank")
            for step in Path(folder).rglob("bottom"):
                step.rename(step.with_name(f"bottom-{rank}"))
    attempt = next(path for _, path in find.attempts_of(checkpoints.nvme, 5))
    found = []
    for number, path in sorted(find.shards_of(attempt)):
        shard = find.nvme_shard(path, 5, number)
        assert shard is not None
        found.append((path, shard))
    return found


def _whole_or_invisible(folder: Path, expected: dict[str, tuple[str, int, str]]) -> bool:
    """Check what a reader may see at any moment; return whether the checkpoint is visible."""
    visible = [name for name in os.listdir(folder) if not name.startswith(".")] if folder.exists() else []
    if not visible:
        assert next(find.iter_shared(str(folder)), None) is None
        return False
    assert visible == ["step-5"]
    assert picture(folder / "step-5") == expected
    found = next(find.iter_shared(str(folder)))
    whole = manifests.read(os.path.join(found.path, ".fmslurm-manifest.json"))
    assert whole is not None
    assert all(entry.checksum for entry in whole.entries if entry.kind == FILE)
    return True


def _expected(shards: list[tuple[str, Manifest]]) -> dict[str, tuple[str, int, str]]:
    together: dict[str, tuple[str, int, str]] = {}
    for path, _ in shards:
        together |= picture(path)
    return together


def test_killed_at_every_step_of_a_copy(site: StagingSite) -> None:
    shards = _saved(site)
    expected, folder = _expected(shards), site.shared / "ckpt"
    first, last = shards

    def copy_last(point: Point) -> commit.State:
        return commit.put_shard(*last, point=point)

    count = len(names_of_points(lambda point: commit.put_shard(*first, point=point)))
    assert count > 20
    for number in range(count + 1):  # the first shard: nothing may become visible, whatever happens
        killed_at(number, lambda point: commit.put_shard(*first, point=point))
        assert not _whole_or_invisible(folder, expected)
    assert commit.put_shard(*first).state == COPIED
    seen, number = False, 0
    while killed_at(number, copy_last):
        now = _whole_or_invisible(folder, expected)
        assert now or not seen  # what was complete once stays so
        seen, number = now, number + 1
    assert commit.put_shard(*last).state == COMPLETE
    assert commit.put_shard(*first).state == COMPLETE  # one that comes late is told, and copies nothing
    assert _whole_or_invisible(folder, expected)
    assert sorted(os.listdir(folder)) == ["step-5"]
    left = [name for name in os.listdir(folder / "step-5") if name.startswith((".fmslurm-part", ".fmslurm-commit"))]
    assert left == []


def test_killed_at_every_step_of_a_commit(site: StagingSite) -> None:
    shards = _saved(site)
    expected, folder = _expected(shards), site.shared / "ckpt"
    commit.put_shard(*shards[0])
    # The names of all steps, from a copy of the same shard to another folder, where shard 0 is in as well.
    other = [(path, shard._replace(checkpoint_dir=str(site.shared / "other"))) for path, shard in shards]
    commit.put_shard(*other[0])
    names = names_of_points(lambda point: commit.put_shard(*other[1], point=point))
    shard_is_in = names.index("renamed .fmslurm-shard-1.json")
    assert names[shard_is_in + 1 :] == [
        "written .fmslurm-manifest.json",
        "renamed .fmslurm-manifest.json",
        "ready to commit",
        "committed",
    ]
    assert killed_at(shard_is_in, lambda point: commit.put_shard(*shards[1], point=point))
    for number, visible in enumerate((False, False, False, True)):
        assert killed_at(number, lambda point: commit.put_shard(*shards[1], point=point))
        assert _whole_or_invisible(folder, expected) is visible
    assert commit.try_commit(shards[1][1]).state == COMPLETE
    assert _whole_or_invisible(folder, expected)


def test_killed_at_every_step_of_writing_to_the_folder_itself(tmp_path: Path) -> None:
    from slurm_ext.staging import Checkpoints

    def save(folder: Path, attempt: str) -> Callable[[Point], object]:
        def work(point: Point) -> object:
            checkpoints = Checkpoints(run="run", directory=str(folder), attempt=attempt, environment={})
            with checkpoints.step(5) as mine:
                write_tree(mine)
                point("written")
            return point("closed")

        return work

    one = tmp_path / "ckpt"
    for number in range(2):
        assert killed_at(number, save(one, f"attempt-{number}"))
        visible = [name for name in os.listdir(one) if not name.startswith(".")]
        assert visible == ([] if number == 0 else ["step-5"])
    reference = tmp_path / "reference"
    reference.mkdir()
    write_tree(str(reference))
    assert picture(one / "step-5") == picture(reference)


def test_all_who_may_commit_do_so_at_once_and_one_does(site: StagingSite) -> None:
    shards = _saved(site, world=3)
    expected, folder = _expected(shards), site.shared / "ckpt"
    children = []
    for path, shard in shards * 3:
        child = os.fork()
        if child == 0:
            try:
                for _ in range(20):
                    if commit.put_shard(path, shard).state == COMPLETE:
                        os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert commit.put_shard(*shards[0]).state == COMPLETE
    assert _whole_or_invisible(folder, expected)


def test_two_attempts_of_one_step_are_never_mixed(site: StagingSite) -> None:
    folder = site.shared / "ckpt"
    shards = _saved(site)
    commit.put_shard(*shards[0])  # the first attempt dies with one of two shards in
    again = site.trainer(attempt="lab/12-1")
    for rank in range(2):
        with again.step(5, shard=rank, world=2) as mine:
            Path(mine, f"second-{rank}").write_bytes(b"2")
    attempts = dict(find.attempts_of(again.nvme, 5))
    for number, path in find.shards_of(attempts["lab_12-1"]):
        shard = find.nvme_shard(path, 5, number)
        assert shard is not None
        commit.put_shard(path, shard)
    assert sorted(picture(folder / "step-5")) == ["second-0", "second-1"]
    late = commit.put_shard(*shards[1])
    assert late.state == COPIED or late.state == REFUSED
    assert sorted(picture(folder / "step-5")) == ["second-0", "second-1"]
    assert (folder / incoming_name(5, "lab/12-0")).is_dir()  # kept: nothing is deleted on a guess


def test_a_file_that_changes_after_its_checkpoint_was_closed_is_refused(site: StagingSite) -> None:
    shards = _saved(site, world=1)
    victim = next(entry.path for entry in shards[0][1].entries if entry.kind == FILE and entry.size > 10)
    with open(os.path.join(shards[0][0], victim), "r+b") as stream:
        stream.write(b"later")
    with pytest.raises(Exception, match="changed after its checkpoint was closed"):
        commit.put_shard(*shards[0])
    assert not (site.shared / "ckpt" / "step-5").exists()


def test_an_assembly_that_is_killed_is_done_again(site: StagingSite) -> None:
    shards = _saved(site)
    # The two shards share folders, so their view is put together; no file of theirs has the same name.
    attempt = os.path.dirname(shards[0][0])
    assert nvme.assemble(attempt, 5, 2).state == COMPLETE
    assert picture(os.path.join(attempt, "whole")) == _expected(shards)
    assert next(find.iter_nvme(site.trainer().nvme)).path == os.path.join(attempt, "whole")


def test_what_dead_writers_left_is_removed_and_what_live_ones_write_is_not(site: StagingSite) -> None:
    checkpoints = site.trainer()
    with checkpoints.step(5) as folder:
        attempt = Path(folder).parent
        dead = attempt / ".fmslurm-writing-3.77"
        dead.mkdir()
        for path in (dead, Path(folder)):
            os.utime(path, (1, 1))
        nvme.scan(os.path.dirname(checkpoints.nvme), os.geteuid(), frozenset(), 1e10)
        assert not dead.exists()
        assert os.path.isdir(folder)

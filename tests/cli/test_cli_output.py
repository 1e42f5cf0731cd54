"""Files that a person names on the command line: written whole, never in a folder that was not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_ext.cli.main import main
from slurm_ext.cli.output import write_named
from slurm_ext.errors import UsageError


def test_a_named_file_is_written(tmp_path: Path) -> None:
    write_named(str(tmp_path / "out"), "text\n")
    assert (tmp_path / "out").read_text() == "text\n"


@pytest.mark.parametrize("name", ["missing/out", "."])
def test_what_cannot_be_a_file_is_a_usage_error_and_makes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        write_named(str(tmp_path / name), "text\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_no_error_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    (tmp_path / "nodes.csv").write_text("node,instance_id\nn1,\n")
    (tmp_path / "ec2.json").write_text('{"Instances": []}')
    sources = ["--nodes", str(tmp_path / "nodes.csv"), "--ec2-answer", str(tmp_path / "ec2.json")]
    assert main(["topology", "diff", *sources, str(tmp_path)]) == 3
    assert "Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing", "missing/run", "file"])
def test_a_checkpoint_folder_that_is_none_is_not_an_empty_one(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    (tmp_path / "file").write_text("")
    assert main(["ckpt", "list", "--dir", str(tmp_path / name)]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["ckpt", "latest", "--dir", str(tmp_path / name)]) == 1

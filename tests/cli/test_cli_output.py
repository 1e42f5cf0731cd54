"""What commands print, harmless on a terminal; files that a person names: written whole, never in a folder that was not there."""

from __future__ import annotations

import ast
import json
import os
import stat
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext import cli
from slurm_ext.cli.main import main
from slurm_ext.cli.output import harmless, say_json, say_table, say_text, write_named
from slurm_ext.errors import UsageError

HOSTILE = {
    "escape": "\x1bc",
    "colour": "\x1b[31mred",
    "title": "\x1b]0;t\x07",
    "title, other end": "\x1b]0;t\x1b\\",
    "device control": "\x1bP1;2q\x1b\\",
    "bell": "\a",
    "overwritten line": "all is well\rfmslurm",
    "back": "x\b\b",
    "delete": "\x7f",
    "C1 sequence": "\x9b31m",
    "C1 title": "\x9d0;t\x9c",
    "C1 next line": "\x85",
    "right to left": "\u202etxt.exe",
    "isolate": "\u2067x\u2069",
    "mark": "\u200f\u061c",
    "no width": "a\u200bb\u2060\ufeff",
    "line separator": "a\u2028b\u2029",
    "half of a pair": "\udc9b",
}


def obeyed(text: str) -> list[str]:
    return [char for char in text if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") or char in BIDI]


BIDI = "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_terminal_obeys_is_printed_by_no_way(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = HOSTILE[name]
    say_text(f"a\n\t{text} b")
    say_text(text, err=True, colours=False)
    say_table(("HEAD", text), [(text, f"x\n{text}\ty")])
    said = capsys.readouterr()
    lines = said.out.split("\n")
    assert len(lines) == 5, "a cell makes no line"
    assert obeyed(said.out.replace("\n", "").replace("\t", "")) == obeyed(said.err.replace("\n", "")) == []
    say_json({"text": text})
    printed = capsys.readouterr().out
    assert obeyed(printed) == ["\n"]
    assert json.loads(printed)["text"] == text, "JSON says what it was"


def test_of_escapes_only_colours_stay_where_they_are_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    say_text("\x1b[31mred\x1b[0m \x1b[2J \x1b]0;t\x07", colours=True)
    assert capsys.readouterr().out.replace("\x1b[31m", "").replace("\x1b[0m", "") == "red ?[2J ?]0;t?\n"


@given(st.text(max_size=60))
def test_whatever_is_printed_keeps_its_length_and_obeys_nobody(text: str) -> None:
    found = harmless(text)
    assert len(found) == len(text)
    assert [char for char in obeyed(found) if char not in "\n\t"] == []
    assert harmless(found) == found


@pytest.mark.parametrize("text", ["", "plain", "a\n\tb", "Größe 8 µs ≥ 3", "節点"])
def test_plain_text_is_left_alone(text: str) -> None:
    assert harmless(text) == text


def test_every_command_prints_by_these_functions() -> None:
    """The lab's own commands apart: what they print is of their own making."""
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        if path.name == "output.py" or path.name.startswith("lab"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("click.echo", "click.secho", "print", "sys.stdout.write", "sys.stderr.write"), (
                    f"{path.name}:{node.lineno} prints past cli/output.py"
                )


def test_a_named_file_is_written(tmp_path: Path) -> None:
    write_named(str(tmp_path / "out"), "text\n")
    assert (tmp_path / "out").read_text() == "text\n"


def test_what_is_no_file_is_left_alone_and_a_link_is_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(UsageError, match="no regular file"):
            write_named(str(tmp_path / name), "text\n")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    (tmp_path / "real").write_text("before\n")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    write_named(str(tmp_path / "link"), "text\n")
    assert (tmp_path / "link").is_symlink()
    assert ((tmp_path / "real").read_text(), (tmp_path / "real").stat().st_mode & 0o777) == ("text\n", 0o600)


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
    assert "is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing", "missing/run", "file"])
def test_a_checkpoint_folder_that_is_none_is_not_an_empty_one(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    (tmp_path / "file").write_text("")
    assert main(["ckpt", "list", "--dir", str(tmp_path / name)]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["ckpt", "latest", "--dir", str(tmp_path / name)]) == 1

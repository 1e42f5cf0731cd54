"""The releases of a fleet: read seldom, written when they change, shown in cohorts, and never in a verdict."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpu_answers import answer
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.cli import node_versions
from slurm_ext.config.model import Settings
from slurm_ext.gate import smi, versions
from slurm_ext.gate.model import Facts

NOW = 1_800_000_000.0


@pytest.fixture
def site(tmp_path):
    for name in ("share/ledger", "run", "root/sys/class/dmi/id", "root/proc/sys/kernel", "root/sys/module/efa"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root/sys/class/dmi/id/board_asset_tag").write_text("i-0abc\n")
    (tmp_path / "root/proc/sys/kernel/osrelease").write_text("6.8.0-1031-aws\n")
    (tmp_path / "root/sys/module/efa/version").write_text("2.17.3g\n")
    plain = Settings()
    places = {"share": "share", "run_dir": "run", "root": "root", "prefix": "prefix"}
    return plain._replace(site=plain.site._replace(**{key: str(tmp_path / name) for key, name in places.items()}))


def facts(boot="b1", **cells):
    text = answer(change={n: cells for n in range(8)})
    return Facts(smi=smi.parse_csv(text), boot_id=boot, instance_type="p5.48xlarge")


def note(site, node="n0", now=NOW, **more):
    return versions.note(site, node, site.site.share, facts(**more), now=now)


def test_what_a_node_has_is_written_once_and_again_when_it_changes(site):
    assert note(site)
    record = versions.read_all(site.site.share)["n0"]
    assert record.instance_id == "i-0abc"
    assert record.parts == {
        "type": "p5.48xlarge",
        "nvidia": "590.48.01",
        "vbios": "96.00.A5.00.03",
        "kernel": "6.8.0-1031-aws",
        "driver": "2.17.3g",
    }
    assert not note(site, now=NOW + 60)  # fresh: nothing is read
    assert not note(site, now=NOW + 7200)  # read, and the same
    assert note(site, now=NOW + 7260, driver_version="595.1")
    assert versions.read_all(site.site.share)["n0"].parts["nvidia"] == "595.1"


def test_a_boot_or_a_clock_that_went_back_reads_anew(site):
    note(site)
    Path(site.site.root, "sys/module/efa/version").write_text("3.1.0\n")
    assert not note(site, now=NOW + 60)
    assert note(site, now=NOW + 60, boot="b2")
    Path(site.site.root, "sys/module/efa/version").write_text("3.2.0\n")
    assert note(site, now=NOW - 99_999, boot="b2")


def test_without_a_share_nothing_is_written_and_the_next_look_tries_again(site):
    gone = Path(site.site.share)
    (gone / "ledger").rmdir()
    gone.rmdir()
    assert not note(site)
    (gone / "ledger").mkdir(parents=True)
    assert note(site, now=NOW + 1)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 1, "node": "../x", "parts": {}}'])
def test_an_odd_record_is_none(site, text):
    folder = Path(site.site.share, "versions")
    folder.mkdir()
    (folder / "n9.json").write_text(text)
    Path(site.site.run_dir, versions.LAST).write_text(text)
    assert note(site)
    assert set(versions.read_all(site.site.share)) == {"n0"}


def record(node, kind="p5.48xlarge", **parts):
    return versions.Versions(node, parts={"type": kind, **parts})


def test_cohorts_are_by_type_and_the_largest_comes_first():
    listed = [record("n1", nvidia="1"), record("n2", nvidia="2"), record("n3", nvidia="2"), record("c1", "c5.large")]
    found = versions.cohorts({one.node: one for one in listed})
    assert [(one.type, one.nodes) for one in found] == [
        ("c5.large", ("c1",)),
        ("p5.48xlarge", ("n2", "n3")),
        ("p5.48xlarge", ("n1",)),
    ]
    assert versions.differing(found, "p5.48xlarge") == ("nvidia",)
    assert versions.differing(found, "c5.large") == ()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.dictionaries(st.text(), x), max_leaves=5))
def test_whatever_lies_there_is_read(data):
    for shape in (data, {"schema": 1, "node": "n0", "at_s": 1.0, "parts": data}):
        found = versions.from_data(shape)
        assert found is None or all(isinstance(told, str) for told in found.parts.values())


def test_the_command_shows_where_cohorts_differ(site, monkeypatch):
    monkeypatch.setattr(node_versions, "located_settings", lambda: site)
    for node in ("n0", "n1", "n2"):
        versions.write(site.site.share, record(node, nvidia="590.1", nccl="2.27.7")._replace(at_s=time.time()))
    versions.write(site.site.share, record("n7", nvidia="595.1", nccl="2.27.7"))
    said = CliRunner().invoke(node_versions.node_versions, ["--noheader"])
    assert said.exit_code == 0
    lines = [line.split() for line in said.output.splitlines()]
    assert lines == [["p5.48xlarge", "3", "n[0-2]", "nvidia", "590.1"], ["p5.48xlarge", "1", "n7", "nvidia", "595.1"]]
    said = CliRunner().invoke(node_versions.node_versions, ["--json"])
    assert [len(one["nodes"]) for one in json.loads(said.output)["cohorts"]] == [3, 1]


def test_the_command_says_that_the_share_is_gone(site, monkeypatch):
    Path(site.site.share, "ledger").rmdir()
    Path(site.site.share).rmdir()
    monkeypatch.setattr(node_versions, "located_settings", lambda: site)
    said = CliRunner().invoke(node_versions.node_versions, [])
    assert said.exception is not None
    assert "does not answer" in str(said.exception)

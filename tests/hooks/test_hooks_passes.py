"""What a node remembers of burn-ins that passed, and what makes it forget."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config.model import Settings
from slurm_ext.hooks import passes
from slurm_ext.hooks.passes import Now, Pass, Void, of_nodes, standing
from slurm_ext.verdict import FAIL, PASS, WARN, Finding, Verdict

NODES = ("n0", "n1", "n2")
ONE = Pass(of_nodes(NODES), 1000.0, "boot-1", "stack-1", False, "c/7-0", ("gpu.slow-link gpu:3",))
NOW = Now("boot-1", "stack-1", ("gpu.slow-link gpu:3",), 4600.0)
SIX_HOURS = 6 * 3600.0


def holds(one=ONE, void=None, now=NOW, nodes=NODES, strict=False, reuse_s=SIX_HOURS, others=()):
    found, why = standing((*others, one), void, now, nodes, strict=strict, reuse_s=reuse_s)
    assert why
    return found is not None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"nodes": ("n2", "n0", "n1")}, True),
        ({"nodes": ("n0", "n1")}, False),
        ({"nodes": (*NODES, "n3")}, False),
        ({"now": NOW._replace(boot_id="boot-2")}, False),
        ({"now": NOW._replace(boot_id="")}, False),
        ({"now": NOW._replace(stack="stack-2")}, False),
        ({"now": NOW._replace(stack="")}, False),
        ({"now": NOW._replace(at=1000.0 + SIX_HOURS)}, True),
        ({"now": NOW._replace(at=1001.0 + SIX_HOURS)}, False),
        ({"now": NOW._replace(at=999.0)}, False),
        ({"now": NOW._replace(findings=())}, True),
        ({"now": NOW._replace(findings=("gpu.slow-link gpu:4",))}, False),
        ({"now": NOW._replace(findings=(*NOW.findings, "gpu.xid-63 gpu:0"))}, False),
        ({"strict": True}, False),
        ({"strict": True, "one": ONE._replace(strict=True)}, True),
        ({"one": ONE._replace(strict=True)}, True),
        ({"reuse_s": 0.0}, False),
        ({"void": Void(999.0, "boot-1", "x")}, True),
        ({"void": Void(1000.0, "boot-1", "x")}, False),
        ({"void": Void(3000.0, "boot-1", "x")}, False),
        ({"void": Void(3000.0, "", "x")}, False),
        ({"void": Void(3000.0, "boot-0", "x")}, True),
        ({"one": ONE._replace(boot_id="boot-0"), "others": (ONE._replace(attempt="c/8-0"),)}, True),
    ],
    ids=str,
)
def test_when_a_pass_still_holds(change, expected):
    assert holds(**change) == expected


def test_a_later_pass_holds_though_an_earlier_one_is_void():
    again = ONE._replace(began=3500.0, attempt="c/9-0")
    found, why = standing(
        (ONE, again), Void(3000.0, "boot-1", "job 8 ended with 1:0"), NOW, NODES, strict=False, reuse_s=9e9
    )
    assert found == again
    assert "c/9-0" in why


@given(st.permutations(NODES), st.sets(st.sampled_from(("n0", "n1", "n2", "n3", "n-0", "n0n1"))))
def test_a_set_of_nodes_has_one_name_whatever_the_order(order, other):
    assert of_nodes(order) == of_nodes(NODES)
    assert (of_nodes(other) == of_nodes(NODES)) == (other == set(NODES))


@pytest.fixture
def run_dir(tmp_path):
    tmp_path.chmod(0o755)
    return str(tmp_path)


def verdict(word, *names):
    return Verdict(word, tuple(Finding(name, "gpu:1", "warn") for name in names), "", "x")


def read(run_dir, **change):
    now = NOW._replace(**{"at": passes.boottime(), **change})
    return standing(*passes.read(run_dir), now, NODES, strict=False, reuse_s=SIX_HOURS)


def fresh(**change):
    return ONE._replace(**{"began": passes.boottime(), **change})


def test_it_is_remembered_for_each_set_of_nodes(run_dir):
    assert read(run_dir)[0] is None
    for other in range(passes.KEPT + 5):
        assert passes.remember(run_dir, fresh(nodes=f"{other:064}")) == ""
    assert passes.remember(run_dir, fresh(attempt="c/7-0")) == ""
    assert passes.remember(run_dir, fresh(attempt="c/8-0")) == ""
    kept, void = passes.read(run_dir)
    assert (len(kept), void) == (passes.KEPT, None)
    found = read(run_dir)[0]
    assert found is not None
    assert found.attempt == "c/8-0"


def test_what_is_forgotten_stays_so_though_a_burn_in_that_ran_then_is_written_down_later(run_dir):
    passes.remember(run_dir, fresh())
    began = passes.boottime()
    passes.forget(run_dir, boot_id="boot-1", why="job 8 ended with 1:0")
    passes.remember(run_dir, fresh(began=began))
    found, why = read(run_dir)
    assert found is None
    assert "job 8 ended with 1:0" in why
    passes.remember(run_dir, fresh())
    assert read(run_dir)[0] is not None


def test_only_what_is_new_speaks_against_a_pass(run_dir):
    assert passes.news(run_dir, verdict(FAIL, "gpu.lost")) == ""  # nothing to speak against
    passes.remember(run_dir, fresh(findings=passes.of_findings(verdict(WARN, "gpu.old"))))
    assert passes.news(run_dir, verdict(WARN, "gpu.old")) == ""
    assert passes.news(run_dir, verdict(PASS, "all.is-well")) == ""
    assert passes.news(run_dir, verdict(FAIL, "gpu.old", "gpu.lost")) == "gpu.lost gpu:1"


@pytest.mark.parametrize("name", [passes.PASSED, passes.VOID])
@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": 1, "passes": [1, {}, null], "at": "x"}', "null"])
def test_a_file_that_is_cut_or_forged_gives_no_pass(run_dir, name, content):
    passes.remember(run_dir, fresh())
    passes.forget(run_dir, boot_id="boot-0", why="long ago")
    with open(os.path.join(run_dir, passes.FOLDER, name), "w") as stream:
        stream.write(content)
    assert read(run_dir)[0] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_only_roots_word_counts(run_dir):
    passes.remember(run_dir, fresh())
    path = os.path.join(run_dir, passes.FOLDER, passes.PASSED)
    assert read(run_dir)[0] is not None
    os.chmod(path, 0o666)
    assert read(run_dir)[0] is None
    os.chmod(path, 0o644)
    os.chown(path, 12345, 12345)
    assert read(run_dir)[0] is None


def test_where_nothing_can_be_written_nothing_is_reused(run_dir, monkeypatch):
    passes.remember(run_dir, fresh())

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("slurm_ext.files.write_atomic", full)
    assert "No space" in passes.remember(run_dir, fresh(attempt="c/9-0"))
    passes.forget(run_dir, boot_id="boot-1", why="job 8 ended with 1:0")
    assert read(run_dir)[0] is None


def test_a_node_that_never_ran_a_burn_in_leaves_no_file(run_dir):
    passes.forget(run_dir, boot_id="boot-1", why="job 8 ended with 1:0")
    assert os.listdir(run_dir) == []


def test_another_driver_library_or_floor_is_another_stack(tmp_path):
    library, root = tmp_path / "libnccl.so.2", tmp_path / "root"
    version = root / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module  570.86.15\n")
    library.write_text("one")
    plain = Settings()
    site = plain.site._replace(root=str(root), prefix=str(tmp_path / "prefix"))
    settings = plain._replace(site=site, burnin=plain.burnin._replace(nccl_library=str(library)))
    first = passes.stack(settings, "n0")
    assert len(first) == 64
    assert passes.stack(settings, "n0") == first
    seen = {first}
    library.write_text("two!")
    seen.add(passes.stack(settings, "n0"))
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module  580.65.06\n")
    seen.add(passes.stack(settings, "n0"))
    seen.add(passes.stack(settings._replace(burnin=settings.burnin._replace(floor_busbw_gbs=300.0)), "n0"))
    wheel = tmp_path / "prefix/current/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
    wheel.parent.mkdir(parents=True)
    wheel.write_text("packaged")
    seen.add(passes.stack(settings, "n0"))
    delivered = tmp_path / "prefix/nccl/cu12-2.30.4/lib/libnccl.so.2"
    delivered.parent.mkdir(parents=True)
    delivered.write_text("delivered")
    (tmp_path / "prefix/nccl/current").symlink_to("cu12-2.30.4")
    seen.add(passes.stack(settings, "n0"))
    assert len(seen) == 6


def test_a_library_on_a_file_system_that_hangs_makes_no_stack(tmp_path, monkeypatch):
    # A stat cannot be made to hang without a file system of one's own; the child's work is what is replaced.
    monkeypatch.setattr(passes, "LOOK_S", 0.3)
    monkeypatch.setattr(passes, "_stack", lambda settings, node: os.read(os.pipe()[0], 1))
    began = passes.boottime()
    assert passes.stack(Settings(), "n0") == ""
    assert passes.boottime() - began < 40


def test_the_file_is_plain_json_that_people_can_read(run_dir):
    passes.remember(run_dir, fresh())
    with open(os.path.join(run_dir, passes.FOLDER, passes.PASSED)) as stream:
        data = json.load(stream)
    assert data["schema"] == 1
    assert data["passes"][0]["attempt"] == "c/7-0"

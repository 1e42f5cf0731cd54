"""What install would put where, and what a slurm.conf says: pure."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config.model import Settings, Site
from slurm_ext.errors import UsageError
from slurm_ext.site import detect, slurm_conf
from slurm_ext.site.model import FILE, FOLDER, LINK, Plan
from slurm_ext.site.plan import Place, Release, in_the_way, plan

ROOT = Path(__file__).parents[2]
FRAGMENT = (ROOT / "etc/slurm/fmslurm.conf").read_bytes()
FILES = {
    "bin/fmslurm": (b"#!/bin/sh\n", 0o755),
    "bin/fmslurm-agent": (b"#!/bin/sh\n", 0o755),
    "etc/slurm/fmslurm.conf": (FRAGMENT, 0o644),
    "etc/fmslurm.yaml": (b"gate: {}\n", 0o644),
    "etc/systemd/fmslurm-agent.service": ((ROOT / "etc/systemd/fmslurm-agent.service").read_bytes(), 0o644),
    "etc/systemd/fmslurm-controller.service": ((ROOT / "etc/systemd/fmslurm-controller.service").read_bytes(), 0o644),
    "etc/systemd/fmslurm-topology.service": ((ROOT / "etc/systemd/fmslurm-topology.service").read_bytes(), 0o644),
    "prolog/50-fmslurm": (b"root='@FMSLURM_ROOT@' share='@FMSLURM_SHARE@'\n", 0o755),
    "epilog/50-fmslurm": (b"local='@FMSLURM_LOCAL@' python='@FMSLURM_PYTHON@'\n", 0o755),
    "prolog/task-prolog": (b"#!/bin/sh\n", 0o755),
    "prolog/health-check": (b"#!/bin/sh\n", 0o755),
}
RELEASE = Release("1.2.3", FILES, venv="/venv")
SETTINGS = Settings(site=Site(share="/share", prefix="/opt/fmslurm"))


def planned(settings: Settings = SETTINGS, release: Release = RELEASE, **place: object) -> Plan:
    given_ = {"slurm_conf": "/etc/slurm/slurm.conf", "sets": {}, "config_path": "/etc/fmslurm/fmslurm.yaml", **place}
    return plan(settings, release, Place(**given_))  # type: ignore[arg-type]


def content(found: Plan, path: str) -> str:
    (item,) = [item for item in found.items if item.path == path]
    return item.content.decode()


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_a_plain_site_gets_everything_and_no_mark_stays() -> None:
    found = planned()
    kinds = {item.path: item.kind for item in found.items}
    assert kinds["/opt/fmslurm/current"] == LINK
    assert kinds["/share/config/off"] == FOLDER
    assert kinds["/etc/slurm/fmslurm/prolog.d/00-keep"] == FILE
    assert content(found, "/etc/slurm/fmslurm/prolog.d/50-fmslurm") == "root='/opt/fmslurm/current' share='/share'\n"
    assert content(found, "/etc/slurm/fmslurm/epilog.d/50-fmslurm") == (
        "local='/var/lib/fmslurm' python='/opt/fmslurm/current/venv/bin/python'\n"
    )
    for item in found.items:
        if not item.path.startswith("/opt/fmslurm/releases/"):
            assert b"@" not in item.content, item.path
        assert item.path == str(Path(item.path))
        assert not item.mode & 0o022
    assert len(kinds) == len(found.items), "nothing is there twice"


def test_folders_come_before_what_lies_in_them_and_slurms_lines_last() -> None:
    found = planned()
    seen: set[str] = set()
    folders = {item.path for item in found.items if item.kind == FOLDER}
    for item in found.items:
        for folder in folders:
            assert not item.path.startswith(f"{folder}/") or folder in seen
        seen.add(item.path)
    assert found.items[-1].path == found.fragment == "/etc/slurm/fmslurm.conf"


def test_no_folder_of_hooks_is_ever_empty() -> None:
    bare = Release("1", {path: FILES[path] for path in FILES if "50-" not in path})
    for release in (RELEASE, bare):
        for kind in ("prolog", "epilog"):
            assert content(planned(release=release), f"/etc/slurm/fmslurm/{kind}.d/00-keep").endswith("exit 0\n")


@pytest.mark.parametrize(
    ("sets", "expected", "notes"),
    [
        (
            {},
            [
                "Prolog=H/prolog.d/*",
                "Epilog=H/epilog.d/*",
                "TaskProlog=H/task-prolog",
                "PrologFlags=Alloc,DeferBatch",
                "SchedulerParameters=nohold_on_prolog_fail",
            ],
            0,
        ),
        (
            {"PrologFlags": "alloc,deferbatch,x11", "SchedulerParameters": "bf_interval=5,nohold_on_prolog_fail"},
            ["Prolog=H/prolog.d/*", "Epilog=H/epilog.d/*", "TaskProlog=H/task-prolog"],
            0,
        ),
        (
            {"PrologFlags": "Contain", "SchedulerParameters": "bf_interval=5", "TaskProlog": "/site/tp"},
            [
                "Prolog=H/prolog.d/*",
                "Epilog=H/epilog.d/*",
                "PrologFlags=Contain,Alloc,DeferBatch",
                "SchedulerParameters=bf_interval=5,nohold_on_prolog_fail",
            ],
            3,
        ),
    ],
)
def test_only_the_lines_that_are_needed(sets: dict[str, str], expected: list[str], notes: int) -> None:
    found = planned(sets=sets)
    text = content(found, found.fragment)
    assert lines(text) == [line.replace("H", "/etc/slurm/fmslurm", 1) if "=H" in line else line for line in expected]
    assert "Include /etc/slurm/fmslurm.conf" in text
    assert len(found.notes) == notes


def test_the_health_check_is_there_where_it_is_wanted_and_nobody_else_has_its_place() -> None:
    assert "HealthCheckProgram" not in content(planned(), "/etc/slurm/fmslurm.conf")
    wanted = planned(health_check=True)
    assert "HealthCheckProgram=/etc/slurm/fmslurm/health-check" in content(wanted, wanted.fragment)
    taken = planned(health_check=True, sets={"HealthCheckProgram": "/usr/sbin/nhc"})
    assert "HealthCheck" not in "".join(lines(content(taken, taken.fragment)))


@pytest.mark.parametrize(
    ("place", "units"),
    [
        ({}, []),
        # The release above has no controller, so it gets no unit.
        ({"systemd": True}, ["fmslurm-agent", "fmslurm-topology"]),
        ({"systemd": True, "node": False}, ["fmslurm-topology"]),
        ({"systemd": True, "head": False}, ["fmslurm-agent"]),
    ],
)
def test_units_are_written_where_systemd_runs(place: dict[str, object], units: list[str]) -> None:
    found = [item.path for item in planned(**place).items if item.path.startswith("/etc/systemd")]
    assert found == [f"/etc/systemd/system/{unit}.service" for unit in units]


def test_a_node_does_not_touch_the_share() -> None:
    assert not [item for item in planned(head=False).items if item.path.startswith("/share")]


def test_nodes_with_folders_of_their_own_make_them_themselves() -> None:
    each = SETTINGS._replace(site=SETTINGS.site._replace(state_dir="/n/%n/s", run_dir="/n/%n/r", log_dir="/n/%n/l"))
    assert not [item for item in planned(each).items if "%" in item.path]


def test_a_configuration_is_seeded_where_there_is_none() -> None:
    (seed,) = [item for item in planned(seed_config=True).items if item.seed]
    assert (seed.path, seed.content) == ("/etc/fmslurm/fmslurm.yaml", b"gate: {}\n")
    assert not [item for item in planned().items if item.seed]


def test_another_content_is_another_release() -> None:
    changed = Release("1.2.3", {**FILES, "bin/fmslurm": (b"#!/bin/sh\n#\n", 0o755)})
    executable = Release("1.2.3", {**FILES, "etc/fmslurm.yaml": (b"gate: {}\n", 0o755)})
    names = {RELEASE.name, changed.name, executable.name}
    assert len(names) == 3
    assert all(name.startswith("1.2.3+") for name in names)


@pytest.mark.parametrize("bad", ["/a'b", "/a b", "/a$(x)", "/a%b", "/a;b", '/a"b', "/a\\b", "/a*b", "/é"])
def test_paths_that_sh_or_slurm_would_read_their_own_way_are_refused(bad: str) -> None:
    for field in ("share", "prefix", "state_dir", "python", "hook_dir"):
        with pytest.raises(UsageError, match="characters"):
            planned(SETTINGS._replace(site=SETTINGS.site._replace(**{field: bad})))


def test_a_sites_own_prolog_is_in_the_way() -> None:
    assert in_the_way({}) == []
    assert in_the_way({"Prolog": "(null)", "Epilog": ""}) == []
    assert [said.split(";")[0] for said in in_the_way({"Prolog": "/a", "Epilog": "/b"})] == [
        "slurm.conf has Prolog=/a",
        "slurm.conf has Epilog=/b",
    ]


CONF = """
# Prolog=/commented
ClusterName=x   # a comment
prolog = /first
PROLOG=/second \\
epilog=/epi
SchedulerParameters="bf_interval=5,nohold_on_prolog_fail"
NodeName=n[1-2] Prolog=/not-this
PartitionName=p TaskProlog=/nor-this
include other.conf
Include /etc/slurm/fmslurm.conf
Include missing.conf
"""


def test_a_slurm_conf_is_read_as_slurm_reads_it() -> None:
    included = {
        "other.conf": "PrologFlags=Contain\ninclude deep.conf\n",
        "deep.conf": "TaskProlog=/tp\ninclude deep.conf\n",
    }
    found = slurm_conf.read(CONF, included.get, skip="/etc/slurm/fmslurm.conf")
    assert found == {
        "ClusterName": "x",
        "Prolog": "/second",
        "Epilog": "/epi",
        "SchedulerParameters": "bf_interval=5,nohold_on_prolog_fail",
        "PrologFlags": "Contain",
        "TaskProlog": "/tp",
        "Include": "/etc/slurm/fmslurm.conf",
    }


def test_included_files_are_found_beside_slurm_conf(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("Include a.conf\n")
    (tmp_path / "a.conf").write_text("Prolog=/p\n")
    assert slurm_conf.collect(str(tmp_path / "slurm.conf"), skip="") == {"Prolog": "/p"}


@given(st.text('Prolog=/ab#\\\n "ncude', max_size=60))
def test_no_slurm_conf_raises(text: str) -> None:
    slurm_conf.read(text, lambda _: text, skip="x")


@pytest.mark.parametrize(
    ("value", "merged"),
    [("", "A,B"), ("(null)", "A,B"), ("none", "A,B"), ("a,x", "a,x,B"), ("b,a", "b,a"), ("x", "x,A,B")],
)
def test_words_are_added_once(value: str, merged: str) -> None:
    assert slurm_conf.merged(value, ("A", "B")) == merged


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ([], "plain"),
        (["etc/parallelcluster/cfnconfig", "opt/slurm/etc/slurm.conf"], "parallelcluster"),
        (["opt/aws/pcs/scheduler/x", "run/slurm/conf/slurm.conf"], "pcs"),
        (["opt/ml/config/resource_config.json"], "hyperpod"),
        (["lab.json", "etc/slurm/slurm.conf"], "lab"),
        (["etc/slurm/slurm.conf"], "plain"),
    ],
)
def test_a_site_is_known_by_its_files(files: list[str], kind: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = detect.detect(Settings(), root=str(tmp_path))
    assert found.type == kind
    assert found.why
    assert bool(found.slurm_conf) == any(name.endswith("slurm.conf") for name in files)
    assert (kind in detect.BY_HAND) == (kind not in ("plain", "lab"))


def test_the_settings_have_the_last_word(tmp_path: Path) -> None:
    found = detect.detect(Settings(site=Site(type="pcs", slurm_conf="/x")), root=str(tmp_path))
    assert (found.type, found.slurm_conf) == ("pcs", "/x")

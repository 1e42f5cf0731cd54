"""Install and uninstall on a real Slurm, as a person runs them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_ext.command import Result
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions
from slurm_ext.slurm import parse

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")

#: Where records and Slurm's own files change by themselves.
LIVE = ("slurm/", "log/", "run/", "nodes/", "share/nodes", "share/controller/", "share/topology", "journal.jsonl")


@pytest.fixture
def small(new_lab: type[Lab], short_dir: Path) -> Iterator[Lab]:
    made = new_lab.up(LabOptions(dir=f"{short_dir}/lab", nodes=2, s3="off"))
    try:
        yield made
    finally:
        made.down()


def fmslurm(lab: Lab, *words: str, timeout_s: float = 240.0) -> Result:
    return lab.run([FMSLURM, *words], timeout_s=timeout_s)


def tree(lab: Lab) -> dict[str, tuple[int, str]]:
    found = {}
    for path in sorted(Path(lab.dir).rglob("*")):
        name = str(path.relative_to(lab.dir))
        # Python keeps byte code beside our modules; uninstall takes it along. Marks of attempts stay, as the trail does: a
        # job whose gate was seen and that is over at the controller's next look has one.
        if (
            not name.startswith(LIVE)
            and "__pycache__" not in name
            and not name.startswith("share/jobs")
            and not path.is_char_device()
        ):
            text = os.readlink(path) if path.is_symlink() else path.read_bytes().hex() if path.is_file() else ""
            found[name] = (path.lstat().st_mode, text)
    return found


def prolog(lab: Lab) -> str:
    config = lab.run(["scontrol", "show", "config"], timeout_s=240).stdout
    return parse.config(config).get("Prolog", "")  # 24.11 prints no line where nothing is set


def daemons(lab: Lab) -> set[int]:
    """Return the daemons of a lab, without the children that each of them has for a moment."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if f"FMSLURM_LAB={lab.dir}\0".encode() in environment and b"FMSLURM_DAEMON=" in environment:
                found[int(entry.name)] = parent
    return {pid for pid, parent in found.items() if parent not in found}


def test_in_and_out_again_leaves_the_cluster_as_it_was(small: Lab) -> None:
    before = tree(small)
    dry = json.loads(fmslurm(small, "install", "--dry-run", "--json").stdout)
    assert dry["dry_run"]
    assert dry["site"]["type"] == "lab"
    assert tree(small) == before, "a dry run touches nothing"

    first = fmslurm(small, "install", "--json")
    assert first.ok, first.words()
    done = json.loads(first.stdout)
    assert done["schema"] == 1
    assert done["active"]
    assert done["generation"] == 1
    assert {change["path"] for change in done["changes"]} == {change["path"] for change in dry["changes"]}
    assert prolog(small) == f"{small.dir}/etc/hooks/prolog.d/*"
    seen = fmslurm(small, "doctor").stdout.split()
    assert [seen[seen.index(check) - 1] for check in ("hooks.prolog", "hooks.epilog")] == ["ok", "ok"]

    there, running = tree(small), daemons(small)
    again = json.loads(fmslurm(small, "install", "--json").stdout)
    assert again["changes"] == []
    assert again["generation"] == 1
    assert tree(small) == there, "a second install changes nothing"
    assert daemons(small) == running, "and leaves running daemons alone"
    if again["daemons"]:
        assert running

    ran = small.run(["srun", "-N2", "hostname"], timeout_s=240)
    assert ran.ok, ran.words()
    passed = fmslurm(small, "events", "--json", "--event", "gate.prolog").stdout.splitlines()
    assert {json.loads(line)["node"] for line in passed} == set(small.nodes)

    out = fmslurm(small, "uninstall")
    assert out.ok, out.words()
    assert prolog(small) == ""
    assert tree(small) == before
    assert daemons(small) == set()
    ran = small.run(["srun", "-N2", "hostname"], timeout_s=240)
    assert ran.ok, ran.words()
    assert fmslurm(small, "uninstall").returncode == 3


def test_what_others_changed_is_shown_and_stays(small: Lab) -> None:
    hook = small.path("etc", "hooks", "prolog.d", "50-fmslurm")
    hook.write_text("#!/bin/sh\n# the site's own\n")
    before = tree(small)
    refused = fmslurm(small, "install")
    assert refused.returncode == 1
    assert "-# the site's own" in refused.stdout
    assert "nothing was changed" in refused.stderr
    assert tree(small) == before
    hook.unlink()
    assert fmslurm(small, "install").ok
    hook.write_text("#!/bin/sh\nexit 0\n")
    out = fmslurm(small, "uninstall")
    assert out.returncode == 4
    assert f"left {hook}: was changed" in out.stdout
    assert hook.read_text() == "#!/bin/sh\nexit 0\n"
    hook.unlink()
    assert fmslurm(small, "uninstall").ok


def test_a_prolog_of_the_sites_own_is_never_silenced(small: Lab) -> None:
    conf = small.path("etc", "slurm", "slurm.conf")
    conf.write_text(conf.read_text() + "Prolog=/site/prolog\n")
    before = tree(small)
    refused = fmslurm(small, "install")
    assert refused.returncode == 3
    assert "slurm.conf has Prolog=/site/prolog" in refused.stderr
    assert tree(small) == before


def test_hooks_that_slurm_still_runs_are_not_taken_away(small: Lab) -> None:
    assert fmslurm(small, "install").ok
    conf = small.path("etc", "slurm", "slurm.conf")
    # Somebody copied our line into slurm.conf itself, so emptying our fragment does not take it out.
    text = conf.read_text()
    conf.write_text(f"{text}Prolog={small.dir}/etc/hooks/prolog.d/*\n")
    kept = fmslurm(small, "uninstall")
    assert kept.returncode == 3
    assert "Slurm still has" in kept.stderr
    assert small.path("etc", "hooks", "prolog.d", "50-fmslurm").exists()
    conf.write_text(text)
    assert fmslurm(small, "uninstall").ok
    assert not small.path("etc", "hooks", "prolog.d", "50-fmslurm").exists()


def test_a_site_of_another_kind_is_told_what_it_needs(small: Lab) -> None:
    config = small.path("etc", "fmslurm", "fmslurm.yaml")
    changed = re.sub(r"type: \S+", "type: pcs", config.read_text(), count=1)
    assert changed != config.read_text()
    config.write_text(changed)
    answer = fmslurm(small, "install", "--json")
    assert answer.returncode == 3
    told = json.loads(answer.stdout)
    assert told["installed"] is False
    assert told["needs"]

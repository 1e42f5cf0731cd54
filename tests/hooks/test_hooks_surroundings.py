"""Hooks in odd surroundings: closed descriptors, a gate that is off, a hook that breaks where nobody can look any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hook_site import HOOK, Site

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root, and trust only what root owns")

LOST = "#!/bin/sh\n: >%s\necho 'Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost.'; exit 15\n"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "0<&- 1>&-", "0<&- 1>&- 2>&-", "2>&-"])
def test_closed_descriptors_change_nothing(site: Site, closed: str) -> None:
    site.smi(LOST % "/dev/null")
    child = site.start("prolog", under=["/bin/sh", "-c", f'exec {closed}; exec "$@"', "sh"])
    child.communicate(timeout=120)
    code = child.returncode
    assert code == 0  # the mode warns
    (event,) = site.events()
    assert (event["event"], event["rule"]) == ("gate.prolog", "gpu.lost")


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_a_gate_that_is_off_looks_at_nothing_whatever_else_is_on(site: Site, tmp_path: Path, hook: str) -> None:
    looked = tmp_path / "looked"
    site.smi(LOST % looked)
    site.mode(gate="off", burnin="off", resume="enforce", staging="enforce")
    assert site.run(hook, SLURM_JOB_EXIT_CODE2="3:0")[0] == 0
    assert not looked.exists()
    (event,) = site.events()
    if hook == "epilog":
        assert (event["event"], event["decision"], event["rule"]) == ("gate.epilog", "off", "gate.off")
        assert event["data"]["exit_code"] == "3:0"


def test_a_hook_that_breaks_says_so_on_the_share_too(site: Site) -> None:
    site.run("prolog")  # leaves the configuration that the node goes by
    (site.folder / "root/etc/slurm/slurm.conf").unlink()
    start = (
        "import sys; sys.path.insert(0, sys.argv[1]); from slurm_ext.hooks import trouble; "
        "trouble.record('prolog', {'SLURMD_NODENAME': 'n0', 'SLURM_JOB_ID': '7'}, sys.argv[2], 'it broke', sys.argv[3])"
    )
    for share in (str(site.folder / "share"), ""):
        argv = [sys.executable, "-I", "-c", start, str(Path(HOOK).parents[1]), str(site.folder / "state"), share]
        subprocess.run(argv, timeout=120, check=True)
    lines = [json.loads(line) for line in (site.folder / "share/nodes/n0/events.jsonl").read_text().splitlines()]
    broke = [line for line in lines if line["event"] == "hook.broke"]
    assert [(line["job"], line["evidence"]) for line in broke] == [("7", ["it broke"])] * 2

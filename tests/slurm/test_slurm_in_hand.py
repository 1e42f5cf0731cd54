"""A convicted node that somebody else has in hand: it is not drained, and so its prolog must not fail, which is a drain."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from folder_slurm import FolderSlurm

from slurm_ext.config.model import Settings
from slurm_ext.errors import SlurmError
from slurm_ext.hooks import act, jobfile, prolog
from slurm_ext.hooks.decide import DRAIN, Plan
from slurm_ext.hooks.environment import HookJob
from slurm_ext.slurm import drain_record, ledger
from slurm_ext.slurm.model import Job
from slurm_ext.verdict import Finding

FINDING = Finding("gpu.lost", "gpu:3", "reboot", ("GPU is lost",))
PLAN = Plan(DRAIN, "gpu.lost on gpu:3: GPU is lost", "gpu.lost", FINDING)
JOB = HookJob("77", "c", 0, "n0", ("n0",), "gpu", 1000, 1000, 8, True)


@dataclasses.dataclass
class Site:
    """One cluster of two nodes with a share, where the gate enforces."""

    slurm: FolderSlurm
    settings: Settings

    def hook(self) -> tuple[int, bool, str]:
        passed = prolog.Passed(PLAN, (), {}, boot_id="boot")
        return prolog._drain(JOB, self.settings, self.settings.site.share, passed, "gate", {})

    def with_rule(self, when_open: str) -> None:
        self.settings = self.settings._replace(drain=self.settings.drain._replace(when_open=when_open))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    tmp_path.chmod(0o755)
    (tmp_path / "share/ledger").mkdir(mode=0o755, parents=True)
    (tmp_path / "run/n0").mkdir(parents=True)
    jobfile.job_starts(str(tmp_path / "run/n0"), "boot")
    plain = Settings()
    places = {"share": "share", "run_dir": "run/%n", "log_dir": "log/%n", "root": "root"}
    settings = plain._replace(
        site=plain.site._replace(**{key: str(tmp_path / name) for key, name in places.items()}),
        mode=plain.mode._replace(gate="enforce"),
    )
    job = Job("77", nodes="n0", partition="gpu", state="RUNNING", priority=10, requeue=True)
    slurm = FolderSlurm.create(tmp_path / "slurm", ["n0", "n1"], [job])
    monkeypatch.setattr(act, "connect", lambda *_args, **_more: slurm)
    return Site(slurm, settings)


@pytest.mark.parametrize("when_open", ["requeue", "pass", "hold"])
@pytest.mark.parametrize(
    "node",
    [
        {"flags": ["REBOOT_REQUESTED"], "reason": "kernel update CHG123", "reason_user": "ada"},
        {"flags": ["FAIL"], "reason": "Action:Replace", "reason_user": "root"},
        {"flags": ["FAIL"], "reason": "bad fan", "reason_user": "ada"},
        {"state": "DOWN", "reason": "cable", "reason_user": "ada"},
    ],
)
def test_the_job_goes_elsewhere_and_nobody_drains(site: Site, node: dict[str, Any], when_open: str) -> None:
    site.with_rule(when_open)
    site.slurm.set_node("n0", **node)
    code, runs, said = site.hook()
    assert (code, runs) == (0, False), said
    assert "not drained" in said
    assert "in hand" in said or "set down by ada" in said
    assert [one for one in site.slurm.acts() if "drain" in one] == []
    assert [one for one in site.slurm.acts() if one.startswith("requeue")], "the job is in the queue again"
    assert ledger.entries(site.settings.site.share) == ()
    assert drain_record.read(site.settings.site.share, "n0") is None


@pytest.mark.parametrize("requeue", [True, False])
def test_a_job_that_may_not_be_requeued_is_ended_for_good(site: Site, requeue: bool) -> None:
    """slurmd would repeat that its prolog failed, and drain the node again and again, resumed or not."""
    site.slurm.set_job("77", requeue=requeue)
    code, runs, said = site.hook()
    assert not runs
    assert code == (1 if requeue else 0)
    assert said == ("drained" if requeue else "drained; the job may not be requeued and is cancelled")
    assert site.slurm.acts() == ["drain n0", *([] if requeue else ["cancel 77"])]


@pytest.mark.parametrize("wrong", ["refused", "silent", "gone", "later"])
def test_where_it_cannot_be_ended_slurm_does_what_it_does(
    site: Site, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.slurm.set_job("77", requeue=False, **({"restarts": 1} if wrong == "later" else {}))

    def refuse(_job: str) -> None:
        raise SlurmError("Access/permission denied")

    def silent(_ids: object = None) -> list[Job]:
        raise SlurmError("no answer within 5.0 s")

    if wrong == "later":  # to fail would be said again and again: an earlier attempt's word that Slurm refuses
        assert site.hook() == (0, False, "drained; the job may not be requeued, and has gone back already")
        return
    if wrong == "refused":
        monkeypatch.setattr(site.slurm, "cancel", refuse)
    elif wrong in ("silent", "gone"):
        monkeypatch.setattr(site.slurm, "jobs", silent if wrong == "silent" else lambda _ids=None: [])
    code, runs, said = site.hook()
    assert (code, runs, said) == (1, False, "drained")


def test_a_node_that_a_person_drained_is_out_of_use_whatever_the_hook_does(site: Site) -> None:
    site.slurm.set_node("n0", flags=["DRAIN"], reason="bad cable", reason_user="ada")
    code, runs, said = site.hook()
    assert (code, runs) == (1, False)
    assert said == "left alone: already drained by ada: bad cable"
    assert site.slurm.acts() == []


@pytest.mark.parametrize("is_hyperpod", [True, False])
def test_which_kind_of_site_it_is_is_looked_for_where_nobody_says(
    site: Site, tmp_path: Path, is_hyperpod: bool
) -> None:
    """`site.type` is auto as shipped: HyperPod's maintenance is HyperPod's then, too."""
    assert site.settings.site.type == "auto"
    if is_hyperpod:
        mark = tmp_path / "root/opt/ml/config/resource_config.json"
        mark.parent.mkdir(parents=True)
        mark.write_text("{}")
    site.slurm.set_node("n0", flags=["MAINTENANCE"])
    _, _, said = site.hook()
    drains = [one for one in site.slurm.acts() if one.startswith("drain")]
    assert bool(drains) != is_hyperpod
    assert ("HyperPod holds it" in said) == is_hyperpod

"""A drain and its record: written before, gone where nothing was done, kept where nobody knows, and never another's to undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from folder_slurm import NOW, FolderSlurm

from slurm_ext.config.model import Settings
from slurm_ext.errors import SlurmError
from slurm_ext.slurm import act, drain_record
from slurm_ext.slurm.act import Context
from slurm_ext.slurm.drain_record import Remedy
from slurm_ext.verdict import Finding, drain_reason

FINDING = Finding("gpu.lost", "gpu:3", "reboot", ("it is gone",))
REASON = drain_reason(FINDING)


class Here:
    """One cluster of two nodes with a share, where fmslurm enforces."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.share = folder / "share"
        (self.share / "ledger").mkdir(parents=True)
        self.slurm = FolderSlurm.create(folder / "slurm", ["n0", "n1"])
        plain = Settings()
        self.settings = plain._replace(
            site=plain.site._replace(share=str(self.share)), mode=plain.mode._replace(gate="enforce")
        )
        self.told = Context("gate", NOW, str(folder / "events.jsonl"), mode="enforce", boot_id="b1", instance_id="i-1")

    def drain(self, **more: Any) -> act.Outcome:
        remedy = Remedy("reboot", "a reboot", 2, "/share/evidence/n0/1")
        context = self.told._replace(node="n0")
        return act.drain_node(
            self.slurm,
            self.settings,
            "n0",
            FINDING,
            now=NOW,
            context=context,
            remedy=remedy,
            **more,  # type: ignore[arg-type]
        )

    def undrain(self, **more: Any) -> act.Outcome:
        return act.undrain_node(self.slurm, self.settings, "n0", "proof", self.told, **more)  # type: ignore[arg-type]

    def record(self, node: str = "n0") -> drain_record.DrainRecord | None:
        return drain_record.read(str(self.share), node)

    def outcomes(self) -> list[str]:
        return [past.outcome for past in drain_record.history(str(self.share), "n0") or ()]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_the_record_is_there_before_the_drain_and_says_what_is_known(here: Here) -> None:
    seen: list[bool] = []
    here.slurm.before_drain = lambda _node: seen.append(here.record() is not None)
    assert here.drain().done
    assert seen == [True]
    record = here.record()
    assert record is not None
    assert (record.finding, record.target, record.action, record.reason) == ("gpu.lost", "gpu:3", "reboot", REASON)
    assert (record.boot_id, record.instance_id, record.owner) == ("b1", "i-1", "fmslurm gate")
    assert (record.step, record.needs, record.tries, record.bundle) == ("reboot", "a reboot", 2, "/share/evidence/n0/1")
    assert (record.since_s, record.expires_s) == (NOW, NOW + 7 * 86_400.0)


def test_a_drain_that_slurm_refused_leaves_no_record(here: Here) -> None:
    def refuse(_node: str) -> None:
        raise SlurmError("Access/permission denied")

    here.slurm.before_drain = refuse
    assert here.drain().result == "failed"
    assert here.record() is None
    assert here.outcomes() == [], "it never was a drain"


def test_a_drain_of_which_slurm_does_not_say_what_became_keeps_its_record(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_names: object) -> Any:
        raise SlurmError("no answer within 5.0 s")

    here.slurm.after_drain = lambda _node: monkeypatch.setattr(here.slurm, "nodes", silent)
    assert here.drain().result == "failed"
    assert here.record() is not None, "the node is drained, and finds its record"


def test_a_refused_drain_brings_the_record_before_it_back(here: Here) -> None:
    assert here.drain().done
    before = here.record()
    here.slurm.set_node("n0", flags=[], reason="")  # somebody resumed it

    def refuse(_node: str) -> None:
        raise SlurmError("no")

    here.slurm.before_drain = refuse
    assert here.drain().result == "failed"
    assert here.record() == before


def test_nothing_is_recorded_where_nothing_is_done(here: Here) -> None:
    here.slurm.set_node("n0", flags=["DRAIN"], reason="bad cable", reason_user="ada")
    assert here.drain().result == "foreign"
    assert here.record() is None
    here.slurm.set_node("n0", flags=["FAIL"], reason="Action:Replace", reason_user="ada")
    outcome = here.drain()
    assert outcome.result == "in-hand"
    assert "HyperPod was asked" in outcome.reason
    assert here.record() is None


def test_two_hooks_that_meet_one_fault_at_once_are_one_drain(here: Here) -> None:
    """The second writes its record before the first has drained: that is no second incident, and climbs no ladder."""
    share = str(here.share)
    second: list[act.Outcome] = []

    def meanwhile(_node: str) -> None:
        here.slurm.before_drain = lambda _node: None
        here.told = here.told._replace(now=NOW + 1)
        second.append(here.drain())

    here.slurm.before_drain = meanwhile
    assert here.drain().done
    assert second[0].done
    record = here.record()
    assert record is not None
    assert record.reason == REASON
    assert drain_record.history(share, "n0") == ()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"since_s": NOW + 119.0, "reason": "other words", "tries": 3}, True),
        ({"since_s": NOW + 121.0}, False),
        ({"since_s": NOW - 1.0}, False),
        ({"target": "gpu:4"}, False),
        ({"finding": "gpu.ecc-uncorrected"}, False),
        ({"boot_id": "b2"}, False),
        ({"instance_id": "i-2"}, False),
    ],
)
def test_which_records_tell_of_one_drain(here: Here, change: dict[str, Any], same: bool) -> None:
    assert here.drain().done
    record = here.record()
    assert record is not None
    assert drain_record.is_same(record, record._replace(**change)) is same


def test_a_share_that_takes_no_record_stops_no_drain_by_a_person(here: Here) -> None:
    away = here.settings._replace(site=here.settings.site._replace(share=str(here.share) + "-gone"))
    done = act.drain_by_hand(here.slurm, away, "n0", "noise", here.told)  # type: ignore[arg-type]
    assert done.done


def test_a_persons_drain_is_recorded_as_theirs_and_undone_by_a_person_alone(here: Here) -> None:
    assert act.drain_by_hand(here.slurm, here.settings, "n0", "noise", here.told, actor="ada").done  # type: ignore[arg-type]
    record = here.record()
    assert record is not None
    assert (record.finding, record.owner) == (act.MANUAL, "user ada")
    assert here.undrain(expected=record.reason).result == "foreign"
    assert here.undrain(by_hand=True).done
    assert here.record() is None
    assert here.outcomes() == ["resumed by hand: proof"]


def test_proof_undoes_the_very_drain_it_is_about_and_no_other(here: Here) -> None:
    assert here.drain().done
    for reason in (f"{REASON} and more", "bad cable", "", "fmslurm: gpu.lost gpu:4: it is gone", "Prolog error"):
        here.slurm.set_node("n0", reason=reason)
        assert here.undrain(expected=REASON).result == "foreign"
        assert here.record() is not None
    here.slurm.set_node("n0", reason=REASON)
    assert here.undrain(expected=REASON).done
    assert here.record() is None
    assert here.outcomes() == ["resumed on proof: proof"]
    assert here.slurm.acts() == ["drain n0", "resume n0"]


def test_slurms_own_drain_is_ours_only_by_its_record(here: Here) -> None:
    here.slurm.set_node("n0", flags=["DRAIN"], reason=act.PROLOG_ERROR, reason_user="root")
    assert here.undrain().result == "foreign"
    assert here.undrain(by_hand=True).result == "foreign"
    assert here.undrain(expected=act.PROLOG_ERROR).done


def test_a_reason_that_was_set_anew_in_the_same_words_is_another(here: Here) -> None:
    here.slurm.set_node("n0", flags=["DRAIN"], reason=act.PROLOG_ERROR, reason_user="root", reason_time=1_900_000_000)
    assert here.undrain(expected=act.PROLOG_ERROR, set_s=1_899_999_000).result == "foreign"
    assert here.slurm.acts() == []
    assert here.undrain(expected=act.PROLOG_ERROR, set_s=1_900_000_000).done


def test_a_reason_that_changes_between_look_and_act_is_kept(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here.drain().done
    answers = here.slurm.nodes
    asked: list[object] = []

    def nodes(names: Any = None) -> Any:
        asked.append(names)
        if len(asked) == 2:  # after the first look a person takes the drain over
            here.slurm.set_node("n0", reason="bad cable", reason_user="ada")
        return answers(names)

    monkeypatch.setattr(here.slurm, "nodes", nodes)
    assert not here.undrain(expected=REASON).done
    assert here.slurm.read()["nodes"]["n0"]["reason"] == "bad cable"
    assert here.record() is not None

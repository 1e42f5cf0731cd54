"""The health check as slurmd starts it: when it asks Slurm, what it undoes, and how slow checks come into it. Real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pingpong
import pytest
from hook_site import HOOK, ROOT, SMI, Site

from slurm_ext.hooks import registered
from slurm_ext.hooks.registered import Slurmd
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.drain_record import DrainRecord

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks run as root, and trust only what root owns")

LOST = "#!/bin/sh\necho 'Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost.'; exit 15\n"
REASON = "fmslurm: gpu.ecc-uncorrected gpu:0: 2 errors"
BOOT = "0b" * 16

#: A scontrol that knows one node: what it says lies in a file, what it is asked in another.
SCONTROL = """#!/bin/sh
echo "$*" >>{folder}/asked
{first}
for word; do case "$word" in Reason=*) reason="$word [root@1764460800]";; esac; done
case "$*" in
  *State=RESUME*) echo "NodeName={node} State=IDLE Partitions=gpu" >{folder}/node;;
  *State=DRAIN*) echo "NodeName={node} State=IDLE+DRAIN Partitions=gpu $reason" >{folder}/node;;
  *show*) cat {folder}/node;;
esac
"""


class Here(Site):
    """A site whose Slurm is a scontrol that tells what it was asked, and that enforces."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.node = "n0"
        self.bin = folder / "slurm-bin"
        self.bin.mkdir()
        boot = folder / "root/proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        (folder / "root/sys/class/dmi/id").mkdir(parents=True)
        self.boot(BOOT)
        self.instance("i-0aaaaaaaaaaaaaaaa")
        self.scontrol()
        self.slurm_says("IDLE")
        self.push(
            self.settings._replace(
                # Proof of a GPU's health needs to know how many there are: this type has one.
                site=self.settings.site._replace(slurm_bin=str(self.bin), instance_type="p5.4xlarge"),
                burnin=self.settings.burnin._replace(transport="socket"),  # no EFA is missing here
                mode=self.settings.mode._replace(gate="enforce"),
            )
        )

    def rename(self, node: str) -> None:
        self.node = node
        self.scontrol()
        self.slurm_says("IDLE")

    def environ(self, **more: str) -> dict[str, str]:
        return super().environ(**{"SLURMD_NODENAME": self.node, "SLURM_NODELIST": self.node, **more})

    def boot(self, boot_id: str) -> None:
        (self.folder / "root/proc/sys/kernel/random/boot_id").write_text(boot_id + "\n")

    def instance(self, instance_id: str) -> None:
        (self.folder / "root/sys/class/dmi/id/board_asset_tag").write_text(instance_id + "\n")

    def scontrol(self, first: str = "") -> None:
        path = self.bin / "scontrol"
        path.write_text(SCONTROL.format(folder=self.folder, first=first, node=self.node))
        path.chmod(0o755)

    def slurm_says(self, state: str, reason: str = "", *, set_s: float = 1764460800) -> None:
        more = f" Reason={reason} [root@{set_s:.0f}]" if reason else ""
        (self.folder / "node").write_text(f"NodeName={self.node} State={state} Partitions=gpu{more}\n")

    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def health(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.run("health", timeout=300) == (0, "", "")

    def below_slurmd(self, count: int) -> None:
        """Let a process of slurmd's name run the health check so often, as slurmd does: at its start, and each interval."""
        path = self.folder / "slurmd"
        path.write_text(
            '#!/bin/sh\ncount=$1; shift\nwhile [ $count -gt 0 ]; do "$@"; count=$((count - 1)); done\nexit 0\n'
        )
        path.chmod(0o755)
        argv = [str(path), str(count), sys.executable, "-IS", str(HOOK), "health"]
        argv += ["--share", str(self.folder / "share"), "--local", str(self.folder / "state")]
        subprocess.run(argv, env=self.environ(), check=True, timeout=300)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["event"] == name]

    def drained(self, **fields: Any) -> DrainRecord:
        """Let the node be drained for an ECC error, a while ago, as the record says."""
        record = DrainRecord(
            "n0",
            "gpu.ecc-uncorrected",
            "gpu:0",
            "reset-gpu",
            REASON,
            time.time() - 3600,
            expires_s=time.time() + 86_400,
            boot_id=BOOT,
            instance_id="i-0aaaaaaaaaaaaaaaa",
            owner="fmslurm gate",
            step="reset-gpu",
        )._replace(**fields)
        assert drain_record.write(self.share, record)
        self.slurm_says("IDLE+DRAIN", record.reason)
        return record

    @property
    def share(self) -> str:
        return str(self.folder / "share")


@pytest.fixture
def here(tmp_path: Path) -> Here:
    (tmp_path / "site").mkdir()
    return Here(tmp_path / "site")


def until(true: Callable[[], object], what: str, *, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.02)


def test_a_healthy_node_without_a_record_asks_slurm_once_how_many_gpus_it_hands_out(here: Here) -> None:
    here.below_slurmd(3)
    assert len(here.asked()) == 1
    assert "show node n0" in here.asked()[0]
    assert [event["event"] for event in here.events()] == ["gate.health"]
    here.health()
    assert len(here.asked()) == 1, "below no slurmd nobody asks"


@pytest.mark.parametrize(
    ("gres", "differs"), [("gpu:h100:1(S:0)", False), ("gpu:h100:2(S:0-1)", True), ("(null)", False)]
)
def test_another_number_of_gpus_in_slurm_is_told_and_drains_nobody(here: Here, gres: str, differs: bool) -> None:
    (here.folder / "node").write_text(f"NodeName=n0 State=IDLE Partitions=gpu Gres={gres}\n")
    here.below_slurmd(4)
    assert len(here.asked()) == 1
    events = here.named("gate.health")
    assert [event["rule"] for event in events if event["rule"] == "slurm.gres-differs"] == [
        "slurm.gres-differs"
    ] * differs
    assert len(events) == 1 + differs, "told once, and kept while the answer holds"
    assert not here.named("gate.health-acted")


def test_a_foreign_drain_is_left_alone_whatever_slurm_says(here: Here) -> None:
    (here.folder / "node").write_text(
        "NodeName=n0 State=IDLE+DRAIN Partitions=gpu Gres=gpu:h100:2 Reason=ticket 7 [ada@1764460800]\n"
    )
    here.below_slurmd(3)
    assert not [line for line in here.asked() if "State=" in line]


def test_slurm_that_is_silent_is_let_be_for_an_hour(here: Here) -> None:
    here.scontrol("echo 'Unable to contact slurm controller' >&2; exit 1")
    here.below_slurmd(4)
    assert len(here.asked()) == 1
    assert [event["rule"] for event in here.named("gate.health")] == ["gate.local"]


def test_before_slurmd_has_registered_slurm_is_not_asked_whatever_is_found(here: Here) -> None:
    here.smi(LOST)
    here.drained()
    here.below_slurmd(1)
    assert here.asked() == []
    drain_record.remove(here.share, "n0")
    here.slurm_says("IDLE")
    here.below_slurmd(1)
    assert here.asked() == [], "another slurmd has not registered either"
    (event,) = here.named("gate.health")
    assert event["decision"] == "stays drained"
    here.below_slurmd(2)
    assert any("State=DRAIN" in line for line in here.asked()), "the second run of this one may"


def test_a_run_folder_that_takes_nothing_stops_no_drain(here: Here) -> None:
    run = str(here.folder / "run")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=755", "none", run], check=False).returncode:
        pytest.skip("no mount here")
    try:
        here.smi(LOST)
        here.health()
    finally:
        subprocess.run(["umount", "-l", run], check=True)
    assert any("State=DRAIN" in line for line in here.asked())


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_something_in_the_place_of_the_lock_stops_no_health_check(here: Here, kind: str) -> None:
    lock = here.folder / "run/health.lock"
    lock.unlink(missing_ok=True)
    if kind == "folder":
        lock.mkdir()
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to("/dev/null")
    here.smi(LOST)
    here.health()
    assert any("State=DRAIN" in line for line in here.asked())


def test_the_drain_waits_for_the_second_run_and_is_done_once(here: Here) -> None:
    here.smi(LOST)
    here.below_slurmd(4)
    (event,) = here.named("gate.health")
    assert event["decision"] == "drain, once this slurmd has registered"
    (acted,) = here.named("gate.health-acted")
    assert acted["decision"] == "drained"
    assert acted["data"]["bundle"]
    assert len([line for line in here.asked() if "State=DRAIN" in line]) == 1
    record = drain_record.read(here.share, "n0")
    assert record is not None
    assert (record.finding, record.step, record.boot_id, record.instance_id, record.owner, record.tries) == (
        "gpu.lost",
        "reboot",
        BOOT,
        "i-0aaaaaaaaaaaaaaaa",
        "fmslurm gate",
        1,
    )
    assert record.bundle
    assert record.needs.startswith("a reboot")
    assert here.named("node.stays-out"), "and it says why it stays out"


def test_a_slurm_that_hangs_holds_no_health_check_for_a_minute(here: Here) -> None:
    here.smi(LOST)
    here.scontrol("sleep 600")
    began = time.monotonic()
    here.health()
    assert time.monotonic() - began < 300
    (acted,) = here.named("gate.health-acted")
    assert acted["decision"].startswith("not drained: ")
    assert not here.named("hook.broke"), "it came to its end by itself"


def test_who_runs_it_by_hand_is_below_no_slurmd(here: Here) -> None:
    here.smi(LOST)
    here.health()
    assert any("State=DRAIN" in line for line in here.asked())


def test_a_healed_node_comes_back_and_is_remembered(here: Here) -> None:
    here.drained()
    here.health()
    assert [line for line in here.asked() if "State=RESUME" in line]
    assert drain_record.read(here.share, "n0") is None
    (past,) = drain_record.history(here.share, "n0") or ()
    assert past.outcome.startswith("resumed on proof: gpu.ecc-uncorrected on gpu:0 looked for again on the same boot")
    done = [event for event in here.named("node.resume") if event["phase"] == "done"]
    assert len(done) == 1
    asked = len(here.asked())
    here.health(2)
    assert len(here.asked()) == asked, "without a record nobody asks"


def test_the_same_finding_again_asks_for_the_next_step(here: Here) -> None:
    here.drained()
    here.health()
    here.smi(SMI.replace("Enabled, 0, None", "Enabled, 2, None"))
    here.health()
    record = drain_record.read(here.share, "n0")
    assert record is not None
    assert (record.finding, record.tries, record.step) == ("gpu.ecc-uncorrected", 2, "reboot")
    here.smi(SMI)
    here.health()
    after = drain_record.read(here.share, "n0")
    assert after is not None
    assert after._replace(stays="") == record, "the same boot is no proof now"
    assert here.named("node.stays-out")[-1]["reason"].startswith("it needs a reboot")
    here.boot("1c" * 16)
    here.health()
    assert drain_record.read(here.share, "n0") is None


def test_slurms_own_drain_after_our_exit_is_ours_to_undo(here: Here) -> None:
    here.smi(LOST)
    here.scontrol("exit 1")
    assert here.run("prolog")[0] == 86, "Slurm drains it for that, with a reason of its own"
    record = drain_record.read(here.share, "n0")
    assert record is not None
    assert (record.reason, record.finding, record.step, record.boot_id) == ("Prolog error", "gpu.lost", "reboot", BOOT)
    here.scontrol()
    here.slurm_says("IDLE+DRAIN", "Prolog error", set_s=record.since_s + 2)
    here.smi(SMI)
    here.health()
    assert here.named("node.stays-out")[-1]["reason"].startswith("it needs a reboot")
    here.boot("1c" * 16)
    here.slurm_says("IDLE+DRAIN", "Prolog error", set_s=record.since_s + 3600)
    here.health()
    assert (
        here.named("node.stays-out")[-1]["reason"] == "its Prolog error is of 3600 s after our exit: another prolog's"
    )
    assert not [line for line in here.asked() if "State=RESUME" in line]
    here.slurm_says("IDLE+DRAIN", "Prolog error", set_s=record.since_s + 2)
    here.health()
    assert drain_record.read(here.share, "n0") is None
    assert [line for line in here.asked() if "State=RESUME" in line]


STAYS: list[tuple[str, Callable[[Here], object], str]] = [
    ("still ill", lambda here: here.smi(SMI.replace("Enabled, 0, None", "Enabled, 2, None")), "the gate fails here"),
    (
        "the value came back as N/A",
        lambda here: here.smi(SMI.replace("Enabled, 0, None", "Enabled, [N/A], None")),
        "the count of uncorrected ECC errors of gpu:0 could not be read",
    ),
    (
        "the value came back as an error",
        lambda here: here.smi(SMI.replace("Enabled, 0, None", "Enabled, [Unknown Error], None")),
        "the gate does not know",
    ),
    (
        "the type is in no table",
        lambda here: here.push(here.settings._replace(site=here.settings.site._replace(instance_type="p9.96xlarge"))),
        "how many GPUs belong here is not known",
    ),
    ("the driver does not answer", lambda here: here.smi("#!/bin/sh\nexit 9\n"), "the gate does not know"),
    ("a person's reason", lambda here: here.slurm_says("IDLE+DRAIN", "bad cable"), "the reason is not the one we set"),
    ("a reboot is on its way", lambda here: here.slurm_says("IDLE+DRAIN+REBOOT_ISSUED", REASON), "it is REBOOT_ISSUED"),
    (
        "the check is off by now",
        lambda here: here.push(
            here.settings._replace(gate=here.settings.gate._replace(disabled=("gpu.ecc-uncorrected",)))
        ),
        "the check itself was not made (off)",
    ),
    (
        "drain.undrain is never",
        lambda here: here.push(here.settings._replace(drain=here.settings.drain._replace(undrain="never"))),
        "drain.undrain is never",
    ),
    ("shadow", lambda here: here.mode(gate="shadow"), "mode.gate is shadow here"),
    (
        "Slurm is silent",
        lambda here: here.scontrol("echo 'Unable to contact slurm controller' >&2; exit 1"),
        "Slurm does not answer",
    ),
    (
        "a burn-in's finding",
        lambda here: here.drained(finding="burnin.culprit", target="node:n0"),
        "it needs a burn-in that passes",
    ),
    ("a person's drain", lambda here: here.drained(finding="node.manual", owner="user ada"), "a person drained it"),
    (
        "only a job's time shows it",
        lambda here: here.drained(finding="gpu.hw-thermal", step="drain"),
        "the check itself was not made (nothing looks at it between jobs)",
    ),
    ("a replacement is asked for", lambda here: here.drained(step="replace"), "it needs another instance"),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in STAYS], ids=[case[0] for case in STAYS])
def test_who_stays_out_and_why_it_is_said_once(here: Here, change: Callable[[Here], object], words: str) -> None:
    here.drained()
    change(here)
    here.health(2)
    assert not [line for line in here.asked() if "State=RESUME" in line]
    record = drain_record.read(here.share, "n0")
    assert record is not None
    (event,) = here.named("node.stays-out")
    assert words in str(event["reason"])
    assert record.stays == event["reason"], "fmslurm node show tells it from there"
    if "nothing looks at it" in words:
        assert event["data"]["record"]["needs"].startswith("a person's word (fmslurm node resume)")


def test_another_instance_under_the_name_voids_the_drain(here: Here) -> None:
    here.drained(step="replace", finding="burnin.culprit", target="node:n0")
    here.instance("i-0bbbbbbbbbbbbbbbb")
    here.boot("1c" * 16)
    here.health()
    assert drain_record.read(here.share, "n0") is None
    (past,) = drain_record.history(here.share, "n0") or ()
    assert "another instance (i-0bbbbbbbbbbbbbbbb) has its name" in past.outcome


def test_a_node_that_somebody_resumed_is_forgotten_and_not_touched(here: Here) -> None:
    here.drained()
    here.slurm_says("IDLE")
    here.health()
    assert drain_record.read(here.share, "n0") is None
    assert not [line for line in here.asked() if "State=" in line]
    (past,) = drain_record.history(here.share, "n0") or ()
    assert past.outcome == "somebody resumed it"


def test_a_record_that_cannot_be_read_undoes_nothing(here: Here) -> None:
    here.drained()
    Path(drain_record.record_path(here.share, "n0")).write_text('{"schema": 1, "node"')
    here.health()
    assert here.asked() == []


def test_a_drain_that_stands_for_too_long_is_told_once_and_not_undone(here: Here) -> None:
    here.drained(step="replace", expires_s=time.time() - 60)
    here.health(3)
    (event,) = here.named("node.drain-expired")
    assert "has been drained by fmslurm gate for 0.0 days for gpu.ecc-uncorrected" in str(event["reason"])
    assert drain_record.read(here.share, "n0") is not None


def test_a_record_that_another_node_wrote_is_completed_on_the_boot_it_is_about(here: Here) -> None:
    here.drained(boot_id="", instance_id="", needs="", since_s=time.time() - 1)
    here.health()
    # This boot is older than the drain: it is the one that was drained, so the proof holds.
    assert drain_record.read(here.share, "n0") is None
    assert [past.record.boot_id for past in drain_record.history(here.share, "n0") or ()] == [BOOT]


def test_a_record_from_before_this_boot_stays_incomplete_and_undoes_nothing(here: Here) -> None:
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    here.drained(boot_id="", instance_id="", since_s=began - 60)
    here.health()
    record = drain_record.read(here.share, "n0")
    assert record is not None
    assert record.boot_id == ""


def test_what_dcgm_watches_is_asked_and_does_not_convict_what_nvidia_smi_reads_as_well(here: Here) -> None:
    said = {
        "Memory system": {"value": "Failure", "overflow": ["Detected 1 volatile double-bit ECC error(s) in", "GPU 0."]}
    }
    gpu = {"value": "Failure", "children": {"Errors": {"children": said}}}
    answer = {"body": {"Overall Health": {"value": "Failure"}, "GPU": {"children": {"0": gpu}}}}
    dcgmi = here.folder / "root/usr/bin/dcgmi"
    dcgmi.write_text(f"#!/bin/sh\necho \"$*\" >>{here.folder}/dcgmi\ncat <<'X'\n{json.dumps(answer)}\nX\n")
    dcgmi.chmod(0o755)
    here.health()
    (event,) = here.named("gate.health")
    assert (event["rule"], event["data"]["gate"]["verdict"]) == ("dcgm-health.contradicted", "warn")
    assert (here.folder / "dcgmi").read_text() == "health -c -j\n"
    assert drain_record.read(here.share, here.node) is None

    # Where nvidia-smi says the same it is one finding, and both are its evidence.
    here.smi(SMI.replace("Enabled, 0, None", "Enabled, 1, None"))
    here.health()
    record = drain_record.read(here.share, here.node)
    assert record is not None
    assert (record.finding, record.target) == ("gpu.ecc-uncorrected", "gpu:0")
    (found,) = [one for one in here.named("gate.health")[-1]["data"]["gate"]["findings"] if one["id"] == record.finding]
    assert len(found["evidence"]) == 2


def test_a_container_runtime_that_does_not_answer_is_told_once_and_drains_nothing(here: Here) -> None:
    here.push(here.settings._replace(gate=here.settings.gate._replace(container_runtimes=("enroot",))))
    enroot = here.folder / "root/usr/bin/enroot"
    enroot.write_text("#!/bin/sh\necho 'mkdir: cannot create directory' >&2; exit 1\n")
    enroot.chmod(0o755)
    here.health(count=2)
    (event,) = here.named("gate.health")
    assert (event["rule"], event["decision"]) == ("container.error", "pass")
    enroot.write_text("#!/bin/sh\necho 3.5.0\n")
    here.health()
    assert here.named("gate.health")[-1]["rule"] == "gate.local"
    assert drain_record.read(here.share, "n0") is None


def test_what_dcgm_finds_joins_the_look_of_the_next_run(here: Here) -> None:
    here.push(here.settings._replace(gate=here.settings.gate._replace(slow_check="dcgm-r1", dcgm_health="off")))
    answer = {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "tests": [
                        {
                            "name": "memory",
                            "results": [
                                {
                                    "entity_group": "GPU",
                                    "entity_id": 0,
                                    "status": "Fail",
                                    "warnings": [{"warning": "off the bus", "error_id": 120, "error_severity": 2}],
                                }
                            ],
                        }
                    ]
                }
            ]
        }
    }
    smi = SMI.replace("cat <<'X'", "case \"$*\" in *compute-apps*) exit 0;; esac\ncat <<'X'")
    here.smi(smi)
    dcgmi = here.folder / "root/usr/bin/dcgmi"
    dcgmi.write_text(f"#!/bin/sh\necho \"$*\" >>{here.folder}/dcgmi\ncat <<'X'\n{json.dumps(answer)}\nX\nexit 226\n")
    dcgmi.chmod(0o755)

    # A slow check makes way for the prologs of its node, those of other tests too.
    here.rename(f"h{os.getpid()}")
    here.health()
    until(lambda: here.named("gate.slow-check"), "its event is written")
    here.health()
    assert [event["rule"] for event in here.named("gate.health")] == ["gate.local", "dcgm.memory"]
    record = drain_record.read(here.share, here.node)
    assert record is not None
    assert (record.finding, record.target, record.step) == ("dcgm.memory", "gpu:0", "reboot")
    here.health()
    until(lambda: len((here.folder / "dcgmi").read_text().splitlines()) == 2, "a node that is out is looked at again")
    until(lambda: not (here.folder / "run/slow-running.json").exists(), "it is over")


def test_what_efas_loopback_finds_drains_and_a_newer_one_that_passes_brings_back(here: Here) -> None:
    here.push(here.settings._replace(gate=here.settings.gate._replace(efa_loopback=True)))
    here.smi(SMI.replace("cat <<'X'", "case \"$*\" in *compute-apps*) exit 0;; esac\ncat <<'X'"))
    bad = "rdmap79s0"
    folder = here.folder / "root/opt/amazon/efa/bin"
    pingpong.install(folder, {bad: "error", "rdmap80s0": "pass", "rdmap81s0": "pass", "rdmap82s0": "pass"})
    (folder / "fi_info").write_text(f"#!/bin/sh\ncat {folder}/listed\n")
    run_dir = here.folder / "run"

    here.rename(f"h{os.getpid()}")
    here.health()
    until(lambda: here.named("gate.slow-check"), "its event is written")
    here.health()
    record = drain_record.read(here.share, here.node)
    assert record is not None
    assert (record.finding, record.target, record.step) == ("efa.loopback-failed", f"efa:{bad}", "reboot")

    (folder / "domains" / f"{bad}-rdm").write_text("pass")
    here.boot("0c" * 16)
    until(lambda: not (run_dir / "slow-running.json").exists(), "it is over")
    (run_dir / "slow-efa.begun").unlink()
    here.health()
    until(lambda: len(here.named("gate.slow-check")) > 1, "the second event is written")
    until(lambda: not (run_dir / "slow-running.json").exists(), "it is over")
    here.health()
    assert drain_record.read(here.share, here.node) is None
    (past,) = drain_record.history(here.share, here.node) or ()
    assert past.outcome.startswith("resumed on proof")


def test_without_dcgm_nothing_is_started_and_nothing_is_found(here: Here) -> None:
    here.push(here.settings._replace(gate=here.settings.gate._replace(slow_check="dcgm-r2")))
    here.health()
    assert not (here.folder / "run/slow.lock").exists()
    assert [event["rule"] for event in here.named("gate.health")] == ["gate.local"]


def test_slurmd_is_found_above_us_by_its_name_and_known_by_its_start(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from slurm_ext.hooks import registered\n"
        "found = registered.above()\n"
        f"print(found is not None and registered.may_ask({str(tmp_path)!r}, found))\n"
        f"registered.note({str(tmp_path)!r}, found)\n"
        f"print(found is not None and registered.may_ask({str(tmp_path)!r}, found))\n"
    )
    path = tmp_path / "slurmd"
    path.write_text('#!/bin/sh\nsh -c \'"$@"; :\' x "$@"\n')
    path.chmod(0o755)
    done = subprocess.run([path, sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["False", "True"], done.stderr
    assert registered.above() is None
    said = json.loads((tmp_path / registered.MARK).read_text())
    assert not registered.may_ask(str(tmp_path), Slurmd(said["pid"], said["start"] + 1)), (
        "its number is another's by now"
    )
    assert registered.may_ask(str(tmp_path), None)
    (tmp_path / registered.MARK).write_text("[]")
    assert not registered.may_ask(str(tmp_path), Slurmd(1, 1))


def test_only_a_prolog_counts_a_drain_that_a_silent_slurm_may_do_later(here: Here) -> None:
    here.scontrol("echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1")
    here.smi(SMI.replace("Enabled, 0, None", "Enabled, 2, None"))
    ledger = here.folder / "share/ledger"
    here.below_slurmd(2)
    assert here.named("gate.health-acted")[-1]["decision"].startswith("not drained: ")
    assert here.run("epilog", SLURM_JOB_GPUS="0")[0] == 0
    assert here.named("gate.epilog-acted")[-1]["decision"].startswith("not drained: ")
    assert not list(ledger.glob("0*.json"))
    assert here.run("prolog", SLURM_JOB_GPUS="0")[0] != 0
    assert [path.name for path in ledger.glob("0*.json")] == ["00000001.json"]

"""The live look at GPUs, with a stand-in nvidia-smi that is a program like any other: phases, old drivers, bad answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_answers import answer, uuid

from slurm_ext.config.model import Settings
from slurm_ext.gate import ask_smi, collect, gpu_rules, local, process_owner, smi
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

LINKS = "".join(
    f"GPU {gpu}: NVIDIA H100\n" + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18)) for gpu in range(8)
)

SCRIPT = """#!/bin/sh
cd {folder}
echo "$*" >> asked
case "$*" in
*query-gpu*) for f in refuse.*; do [ -e "$f" ] || continue
    case "$*" in *"${{f#refuse.}}"*) echo "Field \\"${{f#refuse.}}\\" is not a valid field to query."; exit 2;; esac; done
  if [ -e cards.sh ]; then . ./cards.sh; fi
  if [ -e short ] && ! [ -z "$(ls refuse.* 2>/dev/null)" ]; then cat short; else cat cards; fi;;
*compute-apps*) cat apps;;
"nvlink -s") cat links;;
"nvlink -e") cat errors;;
-L) cat list;;
esac
"""


class Node:
    """A simulated p5.48xlarge whose nvidia-smi says what lies in files."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.smi = tmp_path / "smi"
        self.run = tmp_path / "run"
        for folder in (self.smi, self.run, self.root / "var/log", self.root / "proc/self", self.root / "usr/bin"):
            folder.mkdir(parents=True)
        self.tool = self.root / "usr/bin/nvidia-smi"
        self.tool.write_text(SCRIPT.format(folder=self.smi))
        self.tool.chmod(0o755)
        for name, text in (("cards", answer()), ("apps", ""), ("links", LINKS), ("errors", ""), ("list", "")):
            self.say(name, text)
        (self.root / "var/log/kmsg.log").write_text("6,0,0,-;Linux version 6.8.0\n")
        (self.root / "proc/self/mounts").write_text("/dev/root / xfs rw 0 0\n")
        plain = Settings()
        self.settings = plain._replace(
            site=plain.site._replace(root=str(self.root), run_dir=str(self.run), instance_type="p5.48xlarge"),
            burnin=plain.burnin._replace(transport="socket"),
            gate=plain.gate._replace(disabled=("efa.", "host.", "system.", "clock.", "lustre.", "disk.")),
        )

    def say(self, name: str, text: str) -> None:
        (self.smi / name).write_text(text)

    def asked(self) -> list[str]:
        return (self.smi / "asked").read_text().splitlines()

    def kernel(self, text: str) -> None:
        stamp = time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6
        with (self.root / "var/log/kmsg.log").open("a") as stream:
            stream.write(f"3,1,{stamp:.0f},-;{text}\n")

    def look(self, phase="prolog", deadline_s=60.0, **job):
        window = (time.time() - 60, time.time() + 1) if phase == "epilog" else None
        about = (
            local.Job(**({"job_id": "7", "uid": 1000, "gpus": tuple("01234567")} | job))
            if phase != "health"
            else local.Job()
        )
        return local.look(self.settings, "n0", phase=phase, job_window=window, deadline_s=deadline_s, job=about)


def gpu_ids(seen):
    return [f.id for f in seen.verdict.findings if f.id.startswith(("gpu.", "job.", "nvswitch."))]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.mark.parametrize("phase", ["prolog", "epilog", "health"])
def test_a_healthy_node_has_nothing_to_tell_in_any_phase(node, phase):
    assert gpu_ids(node.look(phase)) == []
    questions = [line.split("=")[0] for line in node.asked()]
    assert questions.count("--query-gpu") == 1
    assert ("nvlink -s" in questions) == (phase != "prolog")


def test_an_old_driver_is_asked_again_once_and_that_is_remembered(node):
    node.say("refuse.fabric.state", "")
    node.say("short", answer(without=("fabric",), change={0: {"driver_version": "525.1"}}))
    node.say("cards", "never\n")
    assert gpu_ids(node.look()) == []
    assert sum("query-gpu" in line for line in node.asked()) == 2
    assert (node.run / ask_smi.REMEMBERED).read_text() == "525.1 fabric\n"
    assert gpu_ids(node.look()) == []
    assert sum("query-gpu" in line for line in node.asked()) == 3


def test_what_the_old_driver_did_not_know_is_asked_of_a_new_one(node):
    (node.run / ask_smi.REMEMBERED).write_text("525.1 fabric,sram\n")
    node.say("cards", answer(without=("fabric", "sram")))
    assert gpu_ids(node.look()) == []
    assert not (node.run / ask_smi.REMEMBERED).exists()
    node.say("cards", answer())
    node.look()
    assert "fabric.state" in node.asked()[-1] or "fabric.state" in node.asked()[-2]


@pytest.mark.parametrize("text", ["", "x", "525.1 nonsense,;rm -rf /", "\x00\xff" * 200])
def test_a_remembered_file_that_is_odd_asks_for_all(node, text):
    (node.run / ask_smi.REMEMBERED).write_text(text)
    assert gpu_ids(node.look()) == []


def test_a_driver_that_refuses_everything_in_turn_ends(node):
    for names in smi.GROUPS.values():
        node.say(f"refuse.{names[0]}", "")
    node.say("short", answer(without=tuple(smi.GROUPS)))
    assert gpu_ids(node.look()) == []
    assert sum("query-gpu" in line for line in node.asked()) == len(smi.GROUPS) + 1


def test_one_that_refuses_what_every_driver_knows_is_unknown(node):
    node.say("cards.sh", "echo 'Field \"index\" is not a valid field to query.'; exit 2\n")
    assert node.look().verdict.verdict == UNKNOWN


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("echo 'cannot open shared object' >&2; exit 0", UNKNOWN),
        ("exit 0", UNKNOWN),
        ("exit 255", UNKNOWN),
        ("echo 'Insufficient Permissions' >&2; exit 4", UNKNOWN),
        ("head -c 700 cards; exit 0", UNKNOWN),
        ("yes 0, 1, 2 | head -c 3000000; exit 0", UNKNOWN),
        ("kill -9 $$", UNKNOWN),
        ("cat cards; echo a word of advice >&2; exit 0", PASS),
        ("cat cards; exit 1", UNKNOWN),
        ("echo 'NVIDIA-SMI has failed because it couldn'\"'\"'t communicate with the NVIDIA driver.'; exit 9", FAIL),
    ],
)
def test_bad_answers(node, script, verdict):
    node.say("cards.sh", script + "; exit 0\n")
    seen = node.look()
    assert seen.verdict.verdict == verdict, seen.verdict


def test_a_question_that_hangs_is_unknown_in_time_whatever_else_is_asked(node):
    node.say("cards.sh", "trap '' TERM; sleep 60\n")
    started = time.monotonic()
    seen = node.look(phase="epilog", deadline_s=1.0)
    assert time.monotonic() - started < 40.0
    assert (seen.verdict.verdict, seen.verdict.rule) == (UNKNOWN, "gpu.smi-timeout")


def test_two_looks_at_once(node):
    looks = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; sys.path[:0] = sys.argv[2:]\n"
                "from pathlib import Path; from test_gate_local_gpu import Node, gpu_ids\n"
                "node = Node.__new__(Node); node.settings = __import__('pickle').loads(bytes.fromhex(sys.argv[1]))\n"
                "sys.exit(gpu_ids(node.look()) != [])",
                __import__("pickle").dumps(node.settings).hex(),
                *sys.path,
            ]
        )
        for _ in range(2)
    ]
    assert [look.wait(timeout=300) for look in looks] == [0, 0]


def test_only_the_jobs_own_gpus_decide_for_it(node):
    node.say("cards", answer(change={5: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    assert node.look(gpus=("5",)).verdict.verdict == FAIL
    assert node.look(gpus=(uuid(5),)).verdict.verdict == FAIL
    assert node.look(gpus=("0", "1")).verdict.verdict == WARN
    assert node.look(gpus=(uuid(0),)).verdict.verdict == WARN
    assert node.look(gpus=tuple("01234567")).verdict.verdict == FAIL
    assert node.look("epilog", gpus=("0",)).verdict.verdict == WARN
    assert node.look("health").verdict.verdict == FAIL


@pytest.mark.parametrize("phase", ["prolog", "epilog"])
def test_a_job_without_gpus_fails_for_none_where_slurm_hands_them_out(node, phase):
    conf = node.root / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    node.say("cards", answer(change={5: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    seen = node.look(phase, gpus=())
    assert seen.verdict.verdict == UNKNOWN  # nobody knows whether its GPUs are all or none
    assert "not known" in next(f for f in seen.verdict.findings if f.id == "gpu.ecc-uncorrected").evidence[-1]
    conf.write_text("ClusterName=c\nGresTypes=gpu\n")
    assert node.look(phase, gpus=()).verdict.verdict == WARN
    conf.write_text("ClusterName=c\n")
    assert node.look(phase, gpus=()).verdict.verdict == FAIL
    assert node.look(phase, gpus=(), unclear=True).verdict.verdict == UNKNOWN
    assert node.look(phase, gpus=(), job_id="").verdict.verdict == FAIL  # a person's look, in no job's name
    assert node.look("health").verdict.verdict == FAIL


def test_many_parts_of_two_gpus_are_not_the_whole_node(node):
    parts = [f"MIG-{number}" for number in range(8)]
    rows = [
        f"GPU {n}: x (UUID: {uuid(n)})\n" + "".join(f" (UUID: {p})\n" for p in parts[4 * n : 4 * n + 4]) for n in (0, 1)
    ]
    node.say("list", "".join(rows))
    node.say("cards", answer(change={7: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    assert node.look(gpus=tuple(parts)).verdict.verdict == WARN
    node.say("cards", answer(change={1: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    assert node.look(gpus=tuple(parts)).verdict.verdict == FAIL


def test_a_job_that_lacks_one_of_its_gpus_fails_for_the_missing(node):
    node.say("cards", answer(7))
    seen = node.look(gpus=("6", "7"))
    assert (seen.verdict.verdict, seen.verdict.rule) == (FAIL, "gpu.missing")


def test_slurms_numbers_are_those_of_the_device_files(node):
    for number, gpu in enumerate(smi.parse_csv(answer()).gpus):
        folder = node.root / f"proc/driver/nvidia/gpus/{gpu.pci}.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"GPU UUID: \t {uuid(number)}\nDevice Minor: \t {7 - number}\n")
    node.say("cards", answer(change={5: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    assert node.look(gpus=("2",)).verdict.verdict == FAIL
    assert node.look(gpus=("5",)).verdict.verdict == WARN


def test_a_job_of_mig_instances_is_told_by_the_list(node):
    node.say("list", f"GPU 5: x (UUID: {uuid(5)})\n  MIG 1g Device 0: (UUID: MIG-abc)\n")
    node.say("cards", answer(change={5: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    assert node.look(gpus=("MIG-abc",)).verdict.verdict == FAIL
    assert node.look(gpus=("MIG-not-there",)).verdict.verdict == UNKNOWN
    node.say("list", f"GPU 4: x (UUID: {uuid(4)})\n  MIG 1g Device 0: (UUID: MIG-abc)\n")
    assert node.look(gpus=("MIG-abc",)).verdict.verdict == WARN


def test_a_node_under_mig_is_told_and_held_up_for_nothing(node):
    rows = {
        n: {"mig.mode.current": "Enabled", "remapped_rows.pending": "[N/A]", "remapped_rows.failure": "[N/A]"}
        for n in range(8)
    }
    node.say("cards", answer(change=rows))
    node.say("links", "".join(f"GPU {n}: NVIDIA H100\n" for n in range(8)))
    for phase in ("prolog", "epilog", "health"):
        seen = node.look(phase)
        assert seen.verdict.verdict == WARN, seen.verdict
        assert {f.id for f in seen.verdict.findings if f.id.startswith("gpu.")} == {
            "gpu.mig-enabled",
            "gpu.remap-unreadable",
        }


def test_a_link_that_is_down_fails_after_the_job_and_between_jobs(node):
    node.say("links", LINKS.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>", 1))
    assert gpu_ids(node.look("prolog")) == []
    for phase in ("epilog", "health"):
        seen = node.look(phase)
        assert (seen.verdict.verdict, gpu_ids(seen)) == (FAIL, ["gpu.nvlink-down"])
    node.say("links", "")
    assert node.look("health").verdict.verdict == UNKNOWN


def test_counted_link_errors_are_told(node):
    node.say("errors", "GPU 2: x\n\t Link 0: CRC Errors: 3\n")
    seen = node.look("health")
    assert (seen.verdict.verdict, gpu_ids(seen)) == (WARN, ["gpu.nvlink-errors"])


def test_what_hardware_slowed_during_the_job_is_judged_by_what_the_prolog_kept(node):
    begun = node.look("prolog").kept["gpu"]
    began_s = time.time() - 3600
    slowed = {"clocks_event_reasons_counters.hw_thermal_slowdown": f"{int(3e9)} us"}
    node.say("cards", answer(change={6: slowed}))
    seen = node.look("epilog", baseline={"gpu": begun | {"at_s": began_s}})
    assert (seen.verdict.verdict, seen.verdict.rule) == (FAIL, "gpu.hw-thermal")
    for odd in ({}, {"gpu": {}}, {"gpu": {"at_s": "x", "gpus": []}}, {"gpu": {"at_s": 1.0, "gpus": {uuid(6): 3}}}):
        assert gpu_ids(node.look("epilog", baseline=odd)) == []


def test_an_xid_in_the_jobs_time_names_the_job_and_drains_nothing(node):
    node.kernel("NVRM: Xid (PCI:0000:53:00): 31, pid=4242, name=python3, Ch 00000010, MMU Fault")
    seen = node.look("epilog")
    assert seen.verdict.verdict == PASS
    assert {(f.id, f.target, f.action) for f in seen.verdict.findings if "xid" in f.id} == {
        ("gpu.xid-31", "gpu@0000:53:00", "none"),
        ("job.xid-31", "job:7", "none"),
    }


def test_an_xid_names_the_job_whose_gpu_it_was_on(node):
    node.kernel("NVRM: Xid (PCI:0000:53:00): 31, pid=4242, name=python3, Ch 00000010, MMU Fault")
    assert "job.xid-31" in gpu_ids(node.look("epilog", gpus=("0",)))
    assert "job.xid-31" not in gpu_ids(node.look("epilog", gpus=("3",)))
    assert "job.xid-31" not in gpu_ids(node.look("epilog", gpus=("GPU-not-here",)))


def test_a_program_below_a_slurmstepd_is_its_jobs(tmp_path):
    tree = {10: ("python3", 9, 1000, ""), 9: ("bash", 8, 1000, ""), 8: ("slurmstepd", 1, 0, "slurmstepd: [77.0]\0")}
    tree |= {
        20: ("python3", 19, 1000, ""),
        19: ("slurmstepd", 1, 1000, "slurmstepd: [78.0]\0"),
        30: ("odd) name", 1, 0, ""),
    }
    for pid, (name, parent, user, title) in tree.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/stat").write_text(f"{pid} ({name}) S {parent} {' '.join(['1'] * 18)}\n")
        (tmp_path / f"{pid}/status").write_text(f"Name:\t{name}\nUid:\t{user}\t{user}\t{user}\t{user}\n")
        (tmp_path / f"{pid}/cmdline").write_text(title)
        (tmp_path / f"{pid}/cgroup").write_text("0::/system.slice/slurmd.service\n")
    found = {pid: process_owner.of(pid, proc=str(tmp_path)) for pid in (10, 20, 30)}
    # A user's own program of that name is none of Slurm's.
    assert found == {10: ("77", 1000, 1), 20: ("", 1000, 1), 30: ("", 0, 1)}


def test_an_xid_on_a_gpu_of_another_job(node):
    node.kernel("NVRM: Xid (PCI:0000:53:00): 95, pid=4242, name=python3, Uncontained")
    assert node.look("epilog", gpus=("0",)).verdict.verdict == FAIL
    assert node.look("epilog", gpus=("3",)).verdict.verdict == WARN


def test_memory_that_stays_is_a_leak_and_memory_that_goes_is_not(node, monkeypatch):
    monkeypatch.setattr(collect, "SETTLE_S", 0.01)
    node.say("full", answer(change={1: {"memory.used": "70000 MiB"}}))
    node.say("cards.sh", "cat full; exit 0\n")
    seen = node.look("epilog")
    assert (seen.verdict.verdict, seen.verdict.rule) == (FAIL, "gpu.memory-leak")
    node.say("cards.sh", "if [ -e once ]; then cat cards; else touch once; cat full; fi; exit 0\n")
    assert gpu_ids(node.look("epilog")) == []


def test_a_program_left_on_a_gpu_is_known_by_its_user(node, monkeypatch):
    monkeypatch.setattr(collect, "SETTLE_S", 0.01)
    node.say("apps", f"{os.getpid()}, {uuid(2)}, /usr/bin/python3, with a comma\n")
    uid = os.getuid()
    seen = node.look("epilog", uid=uid)
    assert gpu_ids(seen) == ["gpu.leftover-processes"]
    assert seen.verdict.verdict == (FAIL if uid else WARN)
    for unsure in ({"gpus": ()}, {"unclear": True}, {"gpus": tuple(f"MIG-{n}" for n in range(8))}):
        assert (
            node.look("epilog", uid=uid, **unsure).verdict.verdict == WARN
        )  # it may be another job's of the same user
    assert node.look("health").verdict.verdict == WARN
    assert gpu_ids(node.look("prolog")) == ["gpu.leftover-processes"]


@pytest.mark.parametrize(
    "apps", ["pid, uuid\n1, 2\n", "No running processes found\n", "-1, x, y\n", "99999999999, x\n"]
)
def test_a_list_of_programs_that_is_none(node, apps):
    node.say("apps", apps)
    assert gpu_ids(node.look("epilog")) == []
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


BAD_ENDS = {
    "killed": "head -n 5 cards; kill -KILL $$",
    "crashed": "head -n 5 cards; kill -SEGV $$",
    "exit without words": "head -n 5 cards; exit 255",
    "exit of a lost GPU without words": "head -n 5 cards; exit 15",
    "fewer rows than its own count": "head -n 5 cards; exit 0",
    "cut in a row": "head -c 1500 cards; exit 0",
    "cut at the end of a row": "head -n 5 cards | head -c -1; exit 0",
    "killed after its own shorter count": "head -n 5 cards | sed 's/^\\([0-9], \\)8,/\\14,/'; kill -KILL $$",
    "said that there is none and crashed": "echo No devices were found; kill -SEGV $$",
}


@pytest.mark.parametrize("end", BAD_ENDS)
def test_an_answer_that_ended_badly_says_nothing_of_the_gpus_that_are_not_in_it(node, end):
    node.say("cards.sh", BAD_ENDS[end] + "\n" + ("" if "exit" in BAD_ENDS[end] else "exit\n"))
    for phase in ("prolog", "health"):
        seen = node.look(phase)
        assert (seen.verdict.verdict, "gpu.missing" in gpu_ids(seen)) == (UNKNOWN, False), (end, phase)


@pytest.mark.parametrize("end", [end for end, script in BAD_ENDS.items() if "head" in script])
def test_what_the_rows_say_counts_however_the_answer_ended(node, end):
    node.say("cards", answer(change={0: {"ecc.errors.uncorrected.volatile.total": "2"}}))
    node.say("cards.sh", BAD_ENDS[end] + "\nexit\n")
    seen = node.look()
    assert (seen.verdict.verdict, seen.verdict.rule) == (FAIL, "gpu.ecc-uncorrected")


@pytest.mark.parametrize("code", [0, 14])
def test_a_list_that_is_whole_and_shorter_convicts_with_the_drivers_own_count(node, code):
    for number in range(7):
        (node.root / f"proc/driver/nvidia/gpus/0000:{number}0:00.0").mkdir(parents=True)
    node.say("cards", answer(7))
    node.say("cards.sh", f"cat cards; exit {code}")
    (found,) = [f for f in node.look().verdict.findings if f.id == "gpu.missing"]
    assert found.evidence[0] == "7 of 8 GPUs of the instance type are there"
    assert "holds 7" in found.evidence[1]


def test_a_last_value_without_the_end_of_its_line_says_nothing():
    without = ("tlimit", "counters", "clocks", "power")
    whole = answer(without=without, change={7: {"fabric.status": "Success"}})
    assert whole.endswith("Success\n")
    for cut in range(1, 9):
        items = gpu_rules.judge(smi.parse_csv(whole[:-cut]), expected_gpus=8)
        assert [(item.finding.id, item.verdict) for item in items] == [("gpu.probe-output-cut", UNKNOWN)]

"""`fmslurm burnin history|thresholds|run` on real files; what of `run` needs a Slurm is tried in tests/cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from slurm_ext.burnin import history, history_line
from slurm_ext.burnin.model import BurninJob, Outcome
from slurm_ext.cli.burnin import speaks
from slurm_ext.cli.main import main
from slurm_ext.slurm.hostlist import expand
from slurm_ext.verdict import FAIL, PASS, Verdict


class Site:
    """A site with a share and a node's own state, without a Slurm."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share, self.state, self.config = folder / "share", folder / "state", folder / "fmslurm.yaml"
        (self.share / "ledger").mkdir(parents=True)
        self.burnin: dict[str, Any] = {}
        monkeypatch.setenv("FMSLURM_CONFIG", str(self.config))
        monkeypatch.setenv("SLURMD_NODENAME", "here")
        self.write()

    def write(self, **burnin: Any) -> None:
        site = {"type": "plain", "share": str(self.share), "state_dir": str(self.state), "instance_type": "p5.48xlarge"}
        self.config.write_text(json.dumps({"site": site, "burnin": burnin}))
        self.config.chmod(0o644)

    def record(self, job: str, nodes: list[str], busbw: float, *, ago_s: float = 0.0, culprit: str = "") -> None:
        rounds = [
            {
                "kind": "all",
                "groups": [
                    {"nodes": nodes, "outcome": "slow" if culprit else "ok", "busbw_gbs": busbw, "evidence": []}
                ],
            }
        ]
        verdict = Verdict(
            FAIL if culprit else PASS, (), "right results", "burnin.culprit" if culprit else "burnin.all-nodes"
        )
        outcome = Outcome(verdict, (culprit,) if culprit else (), busbw, 8, 9.0, {"rounds": rounds, "suspects": []})
        for node in nodes:
            made = history_line.line_of(
                BurninJob("c", job, 0, tuple(nodes), node, 8, "p5.48xlarge"),
                outcome,
                now=time.time() - ago_s,
                message_bytes=1 << 30,
            )
            assert history.append_shared(str(self.share), node, made)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["burnin", *arguments]) == code
    return capsys.readouterr().out


def test_without_history_it_says_so(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["burnin"]) == 0
    assert "no burn-in has been recorded yet" in capsys.readouterr().err
    assert json.loads(said(capsys, "history", "--json"))["burnins"] == []


def test_history_is_that_of_all_nodes_and_drawn(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.record("7", ["n0", "n1", "n2"], 350.0, ago_s=7200)
    site.record("8", ["n0", "n1", "n2"], 90.0, ago_s=60, culprit="n2")
    text = said(capsys, "history").splitlines()
    assert text[0].split() == ["MAP", "TIME", "JOB", "NODES", "VERDICT", "BUSBW_GBS", "CULPRITS", "REASON"]
    assert [one.split()[2:5] for one in text[1:3]] == [["c/7-0", "3", "pass"], ["c/8-0", "3", "fail"]]
    assert any(one.split() == ["n2", "1", "=X"] for one in text), text
    assert any(one.split() == ["n[0-1]", "2", "=S"] for one in text), text
    data = json.loads(said(capsys, "history", "--json"))
    assert [one["job"] for one in data["burnins"]] == ["c/7-0", "c/8-0"]
    assert data["burnins"][0]["nodes"] == ["n0", "n1", "n2"]
    assert {row["nodes"]: row["cells"] for row in data["map"]["rows"]} == {"n2": "=X", "n[0-1]": "=S"}
    files = [tmp_path / "map.svg", tmp_path / "map.html"]
    said(capsys, "history", "--svg", str(files[0]), "--html", str(files[1]))
    assert all(
        "n2" in "".join(ET.fromstring(f.read_text().removeprefix("<!DOCTYPE html>\n")).itertext()) for f in files
    )


def test_history_is_narrowed_by_node_time_and_number(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.record("7", ["n0", "n1"], 350.0, ago_s=7200)
    site.record("8", ["n2", "n3"], 350.0, ago_s=60)

    def jobs(*arguments: str) -> list[str]:
        return [one["job"] for one in json.loads(said(capsys, "history", "--json", *arguments))["burnins"]]

    assert jobs() == ["c/7-0", "c/8-0"]
    assert jobs("--node", "n[1,9]") == ["c/7-0"]
    assert jobs("--since", "1h") == ["c/8-0"]
    assert jobs("--last", "1") == ["c/8-0"]
    assert len(said(capsys, "history", "--noheader").splitlines()) == 2, "for scripts: rows alone"
    for wrong in (["--since", "yesterday"], ["--node", "n[3-"]):
        assert main(["burnin", "history", *wrong]) == 2
    assert main(["burnin", "history", "--html", "/no/such/folder/x.html"]) == 2


def test_a_node_without_a_share_knows_its_own(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(Verdict(PASS, (), "right", "burnin.all-nodes"), (), 350.0, 8, 9.0, {})
    job = BurninJob("c", "5", 0, ("here",), "here", 8, "p5.48xlarge")
    history.append(str(site.state), history_line.line_of(job, outcome, now=time.time(), message_bytes=1 << 30))
    (site.share / "ledger").rmdir()
    site.share.rmdir()
    assert "c/5-0" in said(capsys, "history")


def test_thresholds_are_the_tables_until_the_site_has_its_own(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "thresholds")
    assert "the site set no floors of its own" in text
    assert "310" in text
    assert "awslabs/awsome-distributed-training" in text
    assert "p6-b200" not in text, "of this site's type alone"
    assert "p6-b200" in said(capsys, "thresholds", "--type", "p6-b200.48xlarge")
    data = json.loads(said(capsys, "thresholds", "--json"))
    assert {row["nodes_min"]: row["used"] for row in data["table"]} == {1: True, 2: True, 3: True, 65: True}
    site.write(floor_busbw_gbs=300, pair_floor_busbw_gbs=350)
    assert "the site's floors: 300 from three nodes on, 350 for two" in said(capsys, "thresholds")
    assert not any(row["used"] for row in json.loads(said(capsys, "thresholds", "--json"))["table"])
    site.write(message_bytes=4 << 20)
    assert "no floors" in said(capsys, "thresholds")


def test_thresholds_count_the_fleet_and_say_what_would_be_flagged(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(20):
        site.record(str(number), [f"a{number}", f"b{number}", f"c{number}"], 350.0, ago_s=3600 + number)
    assert json.loads(said(capsys, "thresholds", "--json"))["flagged"] == []
    site.record("77", ["x0", "x1", "x2"], 250.0)
    data = json.loads(said(capsys, "thresholds", "--json"))
    assert [(one["bucket"], one["runs"], one["sets"], one["median_gbs"]) for one in data["fleet"]] == [
        ("3-4", 21, 21, 350.0)
    ]
    assert data["fleet"][0]["flag_below_gbs"] == pytest.approx(297.5)
    assert [(one["nodes"], one["busbw_gbs"]) for one in data["flagged"]] == [(["x0", "x1", "x2"], 250.0)]
    assert "would be flagged" in said(capsys, "thresholds")
    site.write(relative_percent=0)
    assert "relative_percent is 0" in said(capsys, "thresholds")
    assert json.loads(said(capsys, "thresholds", "--json"))["flagged"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["n0", "-w", "n1"],
        ["n0", "--in-job"],
        ["n[0-"],
        ["n0;reboot"],
        ["$(reboot)"],
        ["n[0-99999999]"],
        ["(null)"],
        ["-w", " "],
    ],
)
def test_what_is_no_list_of_nodes_is_a_usage_error(
    site: Site, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["burnin", "run", *arguments]) == 2
    assert capsys.readouterr().err


# -- run: what reaches Slurm's programs -------------------------------------------------------------------------------

SCONTROL = """#!/bin/sh
cat "$(dirname "$0")/nodes"
"""
SRUN = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done > "$(dirname "$0")/argv"
echo 'srun: some word of its own'
echo '{"verdict": "pass", "reason": "right", "rule": "x", "findings": [], "culprits": [], "measured": {}}'
"""


@pytest.fixture
def programs(site: Site, tmp_path: Path) -> Path:
    """Programs in the place of Slurm's: one answers for a thousand nodes, the other writes down what it was called with."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    data = json.loads(site.config.read_text())
    data["site"]["slurm_bin"] = str(folder)
    site.config.write_text(json.dumps(data))
    names = expand("ip-10-0-[0000-0999],x[007-012]")
    line = "NodeName={} Arch=x86_64 Gres=gpu:h100:8 State=IDLE Partitions=gpu Reason=(null)\n"
    (folder / "nodes").write_text("".join(line.format(name) for name in names))
    return folder


def argv(programs: Path) -> list[str]:
    return (programs / "argv").read_bytes().decode().split("\0")[:-1]


def option(words: list[str], name: str) -> str:
    return next(word.partition("=")[2] for word in words if word.startswith(f"--{name}="))


@pytest.mark.parametrize(
    "text",
    [
        "ip-10-0-[0000-0999]",
        ",".join(f"ip-10-0-{number:04d}" for number in range(1000)),
        "ip-10-0-[0000-0499,0500-0999]",
    ],
    ids=["range", "each-by-name", "two-ranges"],
)
@pytest.mark.parametrize("flag", [[], ["-w"]], ids=["positional", "option"])
def test_a_thousand_names_reach_srun_as_one_list(
    programs: Path, text: str, flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(said(capsys, "run", *flag, text, "--json"))["verdict"] == "pass"
    words = argv(programs)
    assert expand(option(words, "nodelist")) == [f"ip-10-0-{number:04d}" for number in range(1000)]
    assert len(option(words, "nodelist")) < 100
    assert (option(words, "nodes"), option(words, "gpus-per-node")) == ("1000", "8")
    assert float(option(words, "deadline")) > 90.0, "a larger job has more time"


def test_leading_zeros_stay_and_strict_is_passed_on(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "run", "x[008-010]", "--strict", "--gpus", "4")
    words = argv(programs)
    assert option(words, "nodelist") == "x[008-010]"
    assert option(words, "gpus-per-node") == "4"
    assert "--strict" in words
    assert float(option(words, "deadline")) >= 90.0 + 50.0, "a minute of traffic fits in"
    minutes = int(option(words, "time"))
    assert minutes * 60 > float(option(words, "deadline"))


@pytest.mark.parametrize(
    ("text", "word"),
    [("x[008-013]", "x013"), ("x8", "x8"), ("nosuch[1-900]", "nosuch[1-5] and 895 more")],
    ids=["one", "zeros", "many"],
)
def test_a_node_that_slurm_does_not_know_is_named_at_once(
    programs: Path, text: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["burnin", "run", text]) == 2
    assert f"Slurm knows no node {word}" in capsys.readouterr().err
    assert not (programs / "argv").exists()


# -- run: whatever ends it, no job of its stays ------------------------------------------------------------------------

WAITING = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done > "$(dirname "$0")/argv.new"
mv "$(dirname "$0")/argv.new" "$(dirname "$0")/argv"
exec sleep 60
"""
SQUEUE = """#!/bin/sh
echo PENDING
"""
SCANCEL = """#!/bin/sh
echo "$@" > "$(dirname "$0")/cancelled"
"""


@pytest.fixture
def busy(programs: Path) -> Path:
    """Nodes that do not come free: srun waits."""
    for name, text in (("srun", WAITING), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs


def test_a_job_that_does_not_start_in_time_is_cancelled_and_the_nodes_are_named(
    busy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_ext.cli.burnin.STEP_EXTRA_S", 0.2)
    assert main(["burnin", "run", "x[008-009]", "--deadline", "1"]) == 3
    err = capsys.readouterr().err
    assert "did not come free" in err
    assert "squeue -w x[008-009]" in err
    name = option(argv(busy), "job-name")
    assert len(name) > len("fmslurm-burnin-"), "no other run's job has this name"
    assert (busy / "cancelled").read_text().split() == [f"--name={name}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_job_whose_command_is_ended_is_cancelled(busy: Path, number: signal.Signals) -> None:
    start = [sys.executable, "-m", "slurm_ext.cli", "burnin", "run", "x008"]
    process = subprocess.Popen(start, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2])
    give_up = time.monotonic() + 240
    while not (busy / "argv").exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(60) != 0
    assert (busy / "cancelled").read_text().split() == [f"--name={option(argv(busy), 'job-name')}"]


def test_a_job_that_ended_is_not_cancelled(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (programs / "scancel").write_text(SCANCEL)
    (programs / "scancel").chmod(0o755)
    said(capsys, "run", "x008")
    assert not (programs / "cancelled").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *[["--deadline", value] for value in ("nan", "inf", "-inf", "0", "0.001", "-1", "1e9", "x")],
        *[["--survey", "--gap", value] for value in ("nan", "inf", "0", "1e9")],
    ],
    ids=" ".join,
)
def test_a_number_that_is_none_is_a_usage_error(
    programs: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["burnin", "run", "x008", *arguments]) == 2
    assert "range" in (err := capsys.readouterr().err) or "valid float" in err
    assert not (programs / "argv").exists()


def test_a_deadline_that_the_configuration_comes_to_is_taken_on_the_nodes(
    site: Site, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(site.config.read_text())
    data["burnin"] = {"deadline_s": 3600, "strict_sustain_s": 3600}
    site.config.write_text(json.dumps(data))
    said(capsys, "run", "ip-10-0-[0000-0999]", "--strict")
    deadline = option(argv(programs), "deadline")
    assert float(deadline) > 7200
    if os.geteuid() == 0:  # as a step of no job it ends, but not for its deadline
        assert main(["burnin", "run", "--in-job", f"--deadline={deadline}"]) == 2
        assert "no step of a job" in capsys.readouterr().err


def test_thresholds_of_a_type_that_nobody_knows_are_a_usage_error(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.record("7", ["n0", "n1"], 350.0)
    assert main(["burnin", "thresholds", "--type", "nosuch"]) == 2
    err = capsys.readouterr().err
    assert "no instance type nosuch" in err
    assert "p5.48xlarge" in err
    assert "310" not in said(capsys, "thresholds", "--type", "p5.4xlarge"), "known, without a floor"


def test_a_history_that_others_may_write_is_left_out_and_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    job = BurninJob("c", "5", 0, ("here",), "here", 8, "p5.48xlarge")
    outcome = Outcome(Verdict(PASS, (), "right", "burnin.all-nodes"), (), 350.0, 8, 9.0, {})
    history.append(str(site.state), history_line.line_of(job, outcome, now=time.time(), message_bytes=1 << 30))
    (site.state / history.NAME).chmod(0o666)
    assert main(["burnin", "history"]) == 0
    told = capsys.readouterr()
    assert "c/5-0" not in told.out
    assert f"{history.NAME} may be written by others" in told.err


# -- run: who tells what came out -------------------------------------------------------------------------------------

UNKNOWN_LINE = (
    '{"verdict": "unknown", "reason": "its agent ended", "rule": "burnin.agent", "findings": [], "measured": {}}'
)
FAIL_LINE = (
    '{"verdict": "fail", "reason": "x007 is bad", "rule": "burnin.culprit", "findings": [], "culprits": ["x007"], '
    '"measured": {"acts": "x008"}}'
)


@pytest.mark.parametrize("lines", [(UNKNOWN_LINE, FAIL_LINE), (FAIL_LINE, UNKNOWN_LINE), (FAIL_LINE,)])
def test_the_word_of_who_led_goes_before_that_of_a_first_node_without_a_leader(
    programs: Path, capsys: pytest.CaptureFixture[str], lines: tuple[str, ...]
) -> None:
    told = "\n".join(f"echo '{line}'" for line in lines)
    (programs / "srun").write_text(f"#!/bin/sh\n{told}\n")
    assert "x007 is bad" in said(capsys, "run", "x[007-009]", code=1)


def test_without_a_leader_the_first_word_counts(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (programs / "srun").write_text(f"#!/bin/sh\necho '{UNKNOWN_LINE}'\necho '{UNKNOWN_LINE}'\n")
    assert said(capsys, "run", "x[007-009]", code=3).count("its agent ended") == 1


def test_one_node_tells_the_outcome_though_the_first_is_the_culprit() -> None:
    nodes = tuple(f"n{number}" for number in range(5))

    def told(measured: dict[str, Any], *, as_json: bool) -> list[str]:
        outcome = Outcome(Verdict(FAIL, (), "bad", "burnin.culprit"), measured=measured)
        jobs = [BurninJob("c", "7", 0, nodes, node, 8) for node in nodes]
        return [job.node for job in jobs if speaks(job, outcome, as_json=as_json)]

    assert [told({"acts": "n1"}, as_json=as_json) for as_json in (False, True)] == [["n1"], ["n1"]]
    assert told({}, as_json=False) == ["n0"]
    assert told({}, as_json=True) == ["n0", "n1", "n2"]

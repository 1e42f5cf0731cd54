"""`fmslurm gate check|list|explain` and `fmslurm explain` as a person runs them, on a simulated node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.cli import explain
from slurm_ext.cli.main import main
from slurm_ext.config.model import Settings
from slurm_ext.gate import checks, local, results
from slurm_ext.gate.model import Facts, Gpu, Smi, conclude, judged
from slurm_ext.lab import hardware
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a simulated CPU node, and let the commands look at it."""
    row = catalogue.find("p5.48xlarge")
    assert row is not None
    hardware.build_root(tmp_path / "root", row._replace(gpus=0), "n0", "i-0", {})
    config = tmp_path / "fmslurm.yaml"
    config.write_text(
        f"site:\n  root: {tmp_path}/root\n  run_dir: {tmp_path}/run\n  state_dir: {tmp_path}\n  log_dir: {tmp_path}\n"
        "  instance_type: m5.large\ngate:\n  disabled: []\n"
    )
    monkeypatch.setenv("FMSLURM_CONFIG", str(config))
    return tmp_path / "root"


def test_check_tells_what_ran_and_what_was_found(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "check", "--node", "n0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    told = {row["check"]: row["result"] for row in data["checks"]}
    assert set(told) >= {row.id for row in checks.every() if "health" in row.phases}
    assert told["clock.unsynchronised"] == PASS
    assert told["gpu.missing"] == "-"
    assert sum(data["counts"].values()) == len(data["checks"])
    hardware.kernel_says(site, "NVRM: GPU 0000:53:00.0: GPU has fallen off the bus.")
    hardware.write_clock(site, synchronised=False)
    assert main(["gate", "check", "--node", "n0"]) == 1
    said = capsys.readouterr().out
    assert "gpu.off-bus" in said
    assert "1 failed" in said
    assert main(["gate", "check", "--node", "n0", "-o", "check,result", "--noheader"]) == 1
    assert "clock.unsynchronised  warn" in capsys.readouterr().out


def test_strict_counts_what_could_not_be_told(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / hardware.KERNEL_LOG).unlink()
    assert main(["gate", "check", "--node", "n0"]) == 0
    said = capsys.readouterr().out
    assert "kernel.unreadable" in said
    assert "the kernel log could not be read" in said, "checks that read it did not pass"
    assert main(["gate", "check", "--node", "n0", "--strict"]) == 1


def look(*items: object, **facts: object) -> local.Look:
    listed = tuple(items)
    return local.Look(conclude(listed, rule="gate.local"), Facts(**{"kernel": (), **facts}), (), 0.1, {}, listed)  # type: ignore[arg-type]


def test_a_users_name_of_a_program_moves_no_terminal(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "x\x1b[31mEVIL\x1b]0;t\x07\x9b2J\u202e"
    item = judged(WARN, "gpu.leftover-processes", f"gpu:{evil}", "warn", f"pid 7 {evil}\ngpu.off-bus  fail")
    monkeypatch.setattr(local, "look", lambda *_, **__: look(item, unread=(evil,)))
    for wanted in (["--phase", "prolog"], ["--all"]):
        assert main(["gate", "check", "--node", "n0", *wanted]) == 0
        said = "".join(capsys.readouterr())
        assert "EVIL" in said
        assert not set(said) & set("\x1b\x07\x9b\u202e")
        assert "gpu.off-bus  fail" not in said.splitlines()
    assert main(["gate", "check", "--node", "n0", "--json"]) == 0
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\x9b\u202e")
    assert evil in json.loads(out)["reason"]


@pytest.mark.parametrize(
    ("seen", "check", "result"),
    [
        (look(), "gpu.off-bus", PASS),
        (look(judged(FAIL, "gpu.off-bus", "gpu:0", "reboot")), "gpu.off-bus", FAIL),
        (
            look(judged(WARN, "gpu.xid-74", "gpu:0", "warn"), judged(FAIL, "gpu.xid-79", "gpu:0", "reboot")),
            "gpu.xid-",
            FAIL,
        ),
        (look(kernel=None), "gpu.off-bus", UNKNOWN),
        (look(), "gpu.missing", "-"),
        (look(judged(UNKNOWN, "system.no-answer", "node", "none")), "host.cpu-count", UNKNOWN),
        (look(judged(UNKNOWN, "efa.no-answer", "node", "none")), "efa.drops", None),
        (look(judged(WARN, "brand.new", "node", "warn")), "brand.new", WARN),
        (look(smi=Smi((Gpu(number=0),))), "gpu.clocks-set-low", "-"),
        (look(smi=Smi((Gpu(number=0, app_clock_mhz=1980),))), "gpu.clocks-set-low", PASS),
        (look(smi=Smi((Gpu(number=0),))), "gpu.power-limit-low", "-"),
    ],
)
def test_what_became_of_a_check(seen: local.Look, check: str, result: str | None) -> None:
    rows = {row.check: row.result for row in results.of_look(seen, Settings(), "health")}
    assert rows.get(check) == result


def test_a_disabled_check_is_off() -> None:
    plain = Settings()
    settings = plain._replace(gate=plain.gate._replace(disabled=("gpu.off-bus",)))
    rows = {row.check: row.result for row in results.of_look(look(), settings, "health")}
    assert rows["gpu.off-bus"] == results.OFF


def test_list_names_every_check_once_with_its_state(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = site.parent / "fmslurm.yaml"
    config.write_text(config.read_text().replace("disabled: []", "disabled: [gpu.xid-, gpu.losst]"))
    assert main(["gate", "list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["finding"] for row in data["checks"]] == [row.id for row in checks.listed()]
    assert {row["finding"] for row in data["checks"] if row["state"] == "off"} == {"gpu.xid-"}
    assert all(row["runs"] and row["cost"] and row["looks_at"] for row in data["checks"])
    assert data["disabled_wrong"] == ["no check is called 'gpu.losst'. Did you mean gpu.lost?"]
    assert main(["gate", "list", "-o", "finding,runs", "--noheader"]) == 0
    said = capsys.readouterr()
    assert "gpu.losst" in said.err
    assert said.out.splitlines()[0].split() == ["gpu.missing", "prolog,epilog,health"]
    assert main(["gate", "list", "-o", "nothing"]) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gate", "explain", "gpu.xid-79"], ["Xid 79", "convicts:  yes", "reboot", "analyzing-xid-catalog"]),
        (["gate", "explain", "gpu.row-remap-pending"], ["-pm 0", "nvidia-smi --gpu-reset"]),
        (["explain", "efa.drops"], ["100 a second", "epilog: packets dropped"]),
        (["explain", "gate.deadline_s"], ["configuration key", "default:   10"]),
        (["explain", "gate"], ["configuration section"]),
        (["explain", "teardown.peer"], ["rule of fmslurm why", "never decides"]),
        (["explain", "kernel.hardware"], ["rule of fmslurm why", "hardware fault"]),
        (["explain", "slurm.node-fail"], ["(finding)", "(rule of fmslurm why)"]),
        (["explain", "nvswitch.sxid-12028"], ["SXid 12028"]),
        (
            ["gate", "explain", "gpu.driver-"],
            ["the beginning of findings", "gpu.driver-mismatch: ", "looked at: prolog"],
        ),
    ],
)
def test_explain(words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    said = capsys.readouterr().out
    for word in expected:
        assert word in said
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["id"]) == (1, words[-1])


def test_whatever_gate_list_names_can_be_explained() -> None:
    assert [row.id for row in checks.listed() if explain.finding(row.id) is None] == []


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["gate", "explain", "gpu.losst"], "gpu.lost"),
        (["explain", "gate.deadline"], "gate.deadline_s"),
        (["explain", "zzzzzzz"], "gate list"),
        (["gate", "explain", "gate.deadline_s"], "gate"),
    ],
)
def test_what_nobody_knows_is_a_usage_error_with_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert near in capsys.readouterr().err

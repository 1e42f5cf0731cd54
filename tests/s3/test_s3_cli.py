"""`fmslurm ckpt` against all three tiers: list, show, latest, save, restore, verify."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from slurm_ext.cli.main import main
from slurm_ext.config.model import Tier
from slurm_ext.config.yaml_file import load
from slurm_ext.staging import Checkpoints, nvme
from slurm_ext.staging.agent import Agent

pytestmark = pytest.mark.s3


@pytest.fixture
def folder(tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with three tiers whose agent has moved steps 1 and 2; step 3 lies on NVMe alone."""
    for name in ("nvme", "shared"):
        (tmp_path / name).mkdir()
    config = tmp_path / "fmslurm.yaml"
    config.write_text(
        f"site: {{state_dir: {tmp_path}/state, run_dir: {tmp_path}/run, log_dir: {tmp_path}/log}}\n"
        "mode: {staging: enforce}\n"
        "staging:\n"
        "  tiers:\n"
        f"    - {{name: nvme, kind: nvme, url: {tmp_path}/nvme}}\n"
        f"    - {{name: shared, kind: lustre, url: {tmp_path}/shared}}\n"
        f"    - {{name: s3, kind: s3, url: '{tier.url}', endpoint: '{tier.endpoint}', credentials_file: {tier.credentials_file}}}\n"
    )
    for name in [name for name in os.environ if name.startswith("FMSLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FMSLURM_CONFIG", str(config))
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    settings = load(str(config))
    run_folder = nvme.prepare_run_folder(settings, "n0", "run", os.geteuid())
    checkpoints = Checkpoints(
        run="run", directory=f"{tmp_path}/shared/ckpt", nvme=run_folder, attempt="lab/12-0", environment={}
    )
    for step in (1, 2, 3):
        with checkpoints.step(step) as mine:
            Path(mine, "weights").write_bytes(bytes([step]) * 5000)
        if step == 2:
            agent = Agent(lambda: settings, "n0")
            assert agent.run_once() == 0
            agent.close()
    return tmp_path / "shared" / "ckpt"


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert main(["ckpt", *arguments, "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    return dict(told)


def test_list_says_where_each_lies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = _json(capsys, "list", "--dir", str(folder))["checkpoints"]
    assert [(row["step"], row["tiers"], row["nearest"]) for row in listed] == [  # type: ignore[index, attr-defined]
        (3, {"nvme": "whole", "lustre": "no", "s3": "no"}, "nvme"),
        (2, {"nvme": "whole", "lustre": "whole", "s3": "whole"}, "nvme"),
        (1, {"nvme": "whole", "lustre": "whole", "s3": "whole"}, "nvme"),
    ]
    assert main(["ckpt", "list", "--dir", str(folder)]) == 0
    assert "NVME(n0)" in capsys.readouterr().out
    assert main(["ckpt", "show", "2", "--dir", str(folder)]) == 0
    assert main(["ckpt", "show", "9", "--dir", str(folder)]) == 1


def test_a_tier_that_cannot_be_looked_at_is_unknown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Path(os.environ["FMSLURM_CONFIG"])
    config.write_text(config.read_text().replace("credentials_file: ", "credentials_file: /none"))
    told = _json(capsys, "list", "--dir", str(folder))
    assert list(told["unknown"]) == ["s3"]  # type: ignore[call-overload]
    assert {row["tiers"]["s3"] for row in told["checkpoints"]} == {"unknown"}  # type: ignore[attr-defined]


def test_latest_is_what_every_node_would_take(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "latest", "--dir", str(folder), "--run", "run", "--path"]) == 0
    assert capsys.readouterr().out.strip().endswith("step-2/lab_12-0/shard-0")
    assert main(["ckpt", "latest", "--dir", str(folder), "--path"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "step-2")
    single = _json(capsys, "latest", "--dir", str(folder), "--run", "run", "--single-node")
    assert single["latest"]["step"] == 3  # type: ignore[index]
    assert main(["ckpt", "latest", "--dir", "/none"]) == 1


def test_restore_takes_the_nearest_tier(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "restore", "--dir", str(folder), "--step", "2"]) == 0
    assert "/nvme/" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "nvme")
    assert main(["ckpt", "restore", "--dir", str(folder), "--to", f"{tmp_path}/other"]) == 0
    assert Path(capsys.readouterr().out.strip(), "weights").read_bytes() == bytes([2]) * 5000
    shutil.rmtree(folder)
    told = _json(capsys, "restore", "--dir", str(folder), "--run", "run", "--step", "1")
    assert (told["tier"], told["path"]) == ("s3", str(folder / "step-1"))
    assert (folder / "step-1" / "weights").read_bytes() == bytes([1]) * 5000
    assert main(["ckpt", "restore", "--dir", str(folder), "--run", "run", "--step", "9"]) == 1


def test_verify_reads_every_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _json(capsys, "verify", "2", "--dir", str(folder))["wrong"] == {"nvme": [], "lustre": [], "s3": []}
    victim = folder / "step-2" / "weights"
    victim.write_bytes(bytes(5000))  # of the same size
    wrong = _json(capsys, "verify", "2", "--dir", str(folder), code=1)["wrong"]
    assert [bool(lines) for lines in wrong.values()] == [False, True, False]  # type: ignore[attr-defined]
    assert main(["ckpt", "verify", "9", "--dir", str(folder)]) == 1


def test_save_from_a_script(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "made by a script"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "weights").write_bytes(b"x" * 100)
    saved = _json(capsys, "save", str(source), "--step", "4", "--dir", str(folder), "--run", "run")
    assert (saved["where"], saved["bytes"]) == ("folder", 100)
    assert (folder / "step-4" / "sub" / "weights").read_bytes() == b"x" * 100
    assert main(["ckpt", "save", str(source), "--step", "4", "--dir", str(folder), "--run", "run"]) != 0


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "--run", "../x"], ["list", "--dir", "/x", "--user", "no-such-user"]]
)
def test_what_cannot_be_meant_is_a_usage_error(folder: Path, arguments: list[str]) -> None:
    assert main(["ckpt", *arguments]) == 2

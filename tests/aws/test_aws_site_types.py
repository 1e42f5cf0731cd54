"""A type that is newer than this release: asked of EC2 once, and known to GRES, gate and burn-in alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_ec2 import FakeEc2
from hypothesis import given
from hypothesis import strategies as st
from test_aws_types import as_ec2_has_it

from slurm_ext import events
from slurm_ext.aws import catalogue, site_types
from slurm_ext.aws.catalogue import CATALOGUE, InstanceType
from slurm_ext.aws.ec2_types import Told, rows_of
from slurm_ext.cli.main import main
from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings
from slurm_ext.hooks import prolog

P9 = {
    **{"vcpus": 256, "cores": 128, "threads": 2, "memory": 4_194_304, "gpu": ("NVIDIA", "R 100", 8, 500_000)},
    **{"efa": 16, "cards": 16, "disks": (8, 7600), "arch": "x86_64"},
}
G9 = P9 | {"gpu": ("NVIDIA", "L50", 2, 48_000), "efa": 1}


@pytest.fixture(autouse=True)
def source() -> Iterator[None]:
    """Leave the catalogue as it was."""
    before = catalogue.source
    yield
    catalogue.source = before


@pytest.fixture
def site(fake: FakeEc2, ec2_server: tuple[FakeEc2, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the share of a site in a region that has two types more than our catalogue."""
    fake.types = {name: as_ec2_has_it(name) for name in CATALOGUE} | {"p9.96xlarge": P9, "g9.8xlarge": G9}
    share = tmp_path / "share"
    (share / "ledger").mkdir(parents=True)
    (tmp_path / "fmslurm.yaml").write_text(
        f"site: {{share: {share}, state_dir: {tmp_path}/state, log_dir: {tmp_path}/log, root: {tmp_path}/none}}\n"
        f"aws: {{region: us-east-2, ec2_endpoint: '{ec2_server[1]}'}}\n"
    )
    monkeypatch.setenv("FMSLURM_CONFIG", str(tmp_path / "fmslurm.yaml"))
    return share


def generate(tmp_path: Path, kind: str, *more: str) -> int:
    (tmp_path / "nodes.csv").write_text(f"node,instance_id,instance_type\nn1,i-1,{kind}\nn2,i-2,p5.48xlarge\n")
    return main(["gres", "generate", "--nodes", str(tmp_path / "nodes.csv"), *more])


def test_a_new_type_needs_no_release(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(tmp_path, "p9.96xlarge") == 2
    assert "`fmslurm gres refresh` asks EC2" in capsys.readouterr().err
    assert main(["gres", "refresh", "--dry-run"]) == 0
    assert "p9.96xlarge: new: 8 r100" in capsys.readouterr().out
    assert not (site / site_types.FILE).exists()
    assert main(["gres", "refresh", "--reason", "p9 is there"]) == 0
    assert f"wrote {site / site_types.FILE}: 2 types" in capsys.readouterr().out
    trail = [
        event for line in (tmp_path / "log/events.jsonl").read_text().splitlines() if (event := events.from_line(line))
    ]
    assert [(event.event, event.phase, event.reason) for event in trail] == [
        ("gres.refresh", "intent", "p9 is there"),
        ("gres.refresh", "done", "p9 is there"),
    ]
    assert generate(tmp_path, "p9.96xlarge") == 0
    said = capsys.readouterr().out
    assert "# no Cores= for p9.96xlarge" in said
    assert "NodeName=n1 Name=gpu Type=r100 File=/dev/nvidia[0-7]\n" in said
    # Nobody knows its sockets: CPUs alone, as ParallelCluster has it.
    assert "NodeName=n1 CPUs=256 RealMemory=3984588 Gres=gpu:r100:8 State=UNKNOWN\n" in said
    assert "NodeName=n2 CPUs=192 Sockets=2" in said
    assert main(["gres", "refresh"]) == 0
    assert "no type with GPUs that is not known here" in capsys.readouterr().out


def test_hooks_on_nodes_know_it_and_go_on_knowing_it(site: Path, tmp_path: Path) -> None:
    assert main(["gres", "refresh"]) == 0
    assert catalogue.find("p9.96xlarge") is None  # a command ended: nothing of it stays
    settings = Settings()
    snapshot.push(settings._replace(site=settings.site._replace(share=str(site))), str(site))
    (tmp_path / "local").mkdir()
    prolog.view(str(site), str(tmp_path / "local"))
    row = catalogue.find("p9.96xlarge")
    assert row is not None
    assert (row.gpus, row.gpu_type, row.efa_devices, row.nvme_count, row.sockets) == (8, "r100", 16, 8, 0)
    shape = catalogue.host("p9.96xlarge")
    assert shape is not None
    assert (shape.vcpus, shape.memory_mib, shape.sockets) == (256, 4_194_304, None)
    # What EC2 does not tell is not known, and no service is missed for it.
    assert catalogue.has_nvswitch("p9.96xlarge") is None
    assert catalogue.has_shared_nvlink("p9.96xlarge") is None
    # Types that train nothing stay with the gate as they were; GRES knows them.
    assert catalogue.find("g9.8xlarge") is None
    assert catalogue.with_gpus("g9.8xlarge") is not None
    # The share is gone: the node goes by what it kept.
    catalogue.source = lambda: {}
    prolog.view(str(tmp_path / "nowhere"), str(tmp_path / "local"))
    assert catalogue.find("p9.96xlarge") == row
    # The site took it back.
    (site / site_types.FILE).unlink()
    catalogue.source = lambda: {}
    assert prolog.view(str(site), str(tmp_path / "local")).types == ""
    assert prolog.view(str(tmp_path / "nowhere"), str(tmp_path / "local")).types == ""
    assert catalogue.find("p9.96xlarge") is None


def test_our_own_rows_stay_and_the_difference_is_told(
    site: Path, fake: FakeEc2, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.types["p5.48xlarge"]["efa"] = 16
    assert main(["gres", "refresh"]) == 0
    assert "p5.48xlarge: efa_devices is 32 in the catalogue and 16 at EC2; ours stays" in capsys.readouterr().out
    assert "p5.48xlarge" not in (site / site_types.FILE).read_text()
    fake.types["p9.96xlarge"] = P9 | {"efa": 32}
    del fake.types["g9.8xlarge"]
    assert main(["gres", "refresh", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["new"], said["changed"], said["kept"]) == ([], ["p9.96xlarge"], ["g9.8xlarge"])
    rows = site_types.from_json((site / site_types.FILE).read_text())
    assert (rows["p9.96xlarge"].efa_devices, rows["g9.8xlarge"].gpus) == (32, 2)


def test_what_ec2_does_not_answer_changes_nothing(
    site: Path, fake: FakeEc2, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.faults = lambda _action, _number, _form: (403, "UnauthorizedOperation", "You are not authorized.")
    assert main(["gres", "refresh"]) == 3
    assert "ec2:DescribeInstanceTypes" in capsys.readouterr().err
    fake.faults = lambda _action, _number, _form: None
    fake.types = {}
    assert main(["gres", "refresh"]) == 3
    assert not (site / site_types.FILE).exists()


def test_a_file_that_is_none_is_told_and_knows_nothing(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site / site_types.FILE
    path.parent.mkdir(exist_ok=True)
    for content in ("{", "[]", '{"schema": 1, "types": "p"}', "\0" * 1000, "[" * 100_000):
        path.write_text(content)
        assert generate(tmp_path, "p9.96xlarge") == 2
        assert "holds no instance types" in capsys.readouterr().err
    path.chmod(0o666)
    assert generate(tmp_path, "p9.96xlarge") == 2
    assert "mode 0666" in capsys.readouterr().err
    path.unlink()
    path.mkdir()
    assert generate(tmp_path, "p9.96xlarge") == 2


def test_the_file_is_its_rows_way_there_and_back() -> None:
    told = [Told("p9.96xlarge", 256, 4_194_304, 128, 2, 8, "r100", 500_000, 16, 8, 7600, "x86_64", 16)]
    rows = rows_of([*told, Told("p5.48xlarge", 1, gpus=8), Told("trn3.big", 1)], "2026-11-30")
    assert [row.name for row in rows] == ["p9.96xlarge"]
    found = site_types.from_json(site_types.to_json(rows, region="us-east-2"))
    assert [row._replace(source="") for row in found.values()] == [row._replace(source="") for row in rows]


@pytest.mark.parametrize(
    "change",
    [
        *({"gpus": -1}, {"gpus": True}, {"gpus": 0}, {"gpus": 65}, {"vcpus": "256"}, {"name": "../p9"}),
        *({"gpu_type": "a b"}, {"checked_on": "x"}, {"memory_mib": 0}, {"threads_per_core": 0}, {"arch": ""}),
    ],
)
def test_a_row_that_no_instance_has_is_left_out(change: dict[str, object]) -> None:
    text = site_types.to_json([CATALOGUE["p5.48xlarge"]], region="")
    data = json.loads(text)
    assert len(site_types.from_json(text)) == 1
    data["types"][0] |= change
    assert site_types.from_json(json.dumps(data)) == {}


@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        json.dumps
    )
)
def test_any_text_has_rows_or_none(text: str) -> None:
    assert all(isinstance(row, InstanceType) for row in site_types.from_json(text).values())

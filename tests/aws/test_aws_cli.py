"""`fmslurm topology` from the command line, with EC2 on loopback by `aws.ec2_endpoint`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_ec2 import FakeEc2

from slurm_ext.cli.topology import topology
from slurm_ext.errors import FmslurmError, LackingError, UsageError


@pytest.fixture
def run(
    fake: FakeEc2, ec2_server: tuple[FakeEc2, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    (tmp_path / "nodes.csv").write_text("node,instance_id\nn1,i-00000001\nn2,i-00000002\nn3,\n")
    (tmp_path / "fmslurm.yaml").write_text(
        f"aws: {{region: us-east-2, ec2_endpoint: '{ec2_server[1]}'}}\n"
        f"topology: {{nodes_file: '{tmp_path}/nodes.csv'}}\n"
    )
    monkeypatch.setenv("FMSLURM_CONFIG", str(tmp_path / "fmslurm.yaml"))
    fake.launch("i-00000001", "nn-a", "nn-b", "nn-c")
    fake.launch("i-00000002", "nn-a", "nn-b", "nn-d")
    return lambda *arguments: CliRunner().invoke(topology, list(arguments))


def test_ec2_is_asked_at_the_endpoint_of_the_configuration(fake: FakeEc2, run: Callable[..., Result]) -> None:
    done = run("show", "--json")
    assert done.exit_code == 0, done.output
    paths = json.loads(done.stdout)["paths"]
    assert set(paths) == {"n1", "n2", "n3"}
    assert paths["n1"][0] == paths["n2"][0] == paths["n3"][0]
    assert paths["n1"][-1] != paths["n2"][-1]
    assert fake.calls == {"DescribeInstanceTopology": 1}


def test_what_is_odd_goes_to_stderr_and_not_into_the_file(fake: FakeEc2, run: Callable[..., Result]) -> None:
    fake.end("i-00000002")
    done = run("generate")
    assert done.exit_code == 0, done.output
    assert "n2: EC2 knows no such instance" in done.stderr
    assert "no such instance" not in done.stdout


def test_a_file_of_places_needs_nothing_else(fake: FakeEc2, run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "places.csv").write_text("node,path\nn[1-2],a/b\nn3,a/c\n")
    done = run("show", "--json", "--source-file", str(tmp_path / "places.csv"))
    assert done.exit_code == 0, done.output
    assert len({path[-1] for path in json.loads(done.stdout)["paths"].values()}) == 2
    assert not fake.calls


def test_reservations_from_the_command_line(fake: FakeEc2, run: Callable[..., Result]) -> None:
    fake.reservations = {"cr-0000aaaa": {"nodes": ["nn-a", "nn-b"]}}
    done = run("show", "--json", "--reservation", "n[3-4]=cr-0000aaaa")
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["paths"]) == {"n1", "n2", "n3", "n4"}
    assert "2 nodes that do not run yet are placed by cr-0000aaaa: 2 tiers" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("show", "--source", "ec2", "--source-file", "x.csv"), UsageError, "reads no file"),
        (("show", "--source", "file"), UsageError, "no file of places"),
        (("show", "--nodes", "/nowhere.csv"), UsageError, "/nowhere.csv"),
    ],
)
def test_mistakes(run: Callable[..., Result], arguments: tuple[str, ...], kind: type[FmslurmError], words: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, kind)
    assert words in str(done.exception)


def test_a_denied_call_ends_with_the_right_that_is_missing(fake: FakeEc2, run: Callable[..., Result]) -> None:
    fake.faults = lambda _action, _number, _form: (403, "UnauthorizedOperation", "You are not authorized")
    done = run("generate")
    assert isinstance(done.exception, LackingError)
    assert "ec2:DescribeInstanceTopology" in str(done.exception)
    assert done.stdout == ""

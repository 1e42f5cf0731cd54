"""What people are told of the breaker: nothing where all is well, who is bad and in use where it held something back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_ext.cli import breaker
from slurm_ext.cli.explain import explain
from slurm_ext.config.model import Drain, Settings
from slurm_ext.slurm import ledger, suppressed
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.suppressed import Suppressed

NODES = [Node(f"n{number}", "IDLE") for number in range(30)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "share/ledger").mkdir(mode=0o755, parents=True)
    plain = Settings()
    return plain._replace(site=plain.site._replace(share=str(tmp_path / "share")))


def hold_back(settings: Settings, node: str, *, evidence: str = "GPU is lost") -> None:
    one = Suppressed(node, "gpu.lost", "gpu:3", "reboot", evidence, "2 were drained", time.time(), job="7", allowed=2)
    assert suppressed.note(settings.site.share, one)


def look(settings: Settings, nodes: list[Node] = NODES) -> breaker.Breaker:
    return breaker.look(settings, nodes, now=time.time())


def test_nothing_to_say(settings: Settings) -> None:
    found = look(settings)
    assert breaker.words(found, settings.site.share) == []
    assert breaker.as_data(found) == {
        "open": False,
        "ledger": True,
        "limit_per_hour": 2,
        "used": 0,
        "drains": [],
        "suppressed": [],
    }


def test_who_is_in_use_though_convicted(settings: Settings) -> None:
    for node in ("n0", "n1"):
        assert ledger.claim(settings.site.share, node, drain=Drain(), nodes=30).allowed
    hold_back(settings, "n2", evidence="")
    hold_back(settings, "n3")
    hold_back(settings, "n4")
    nodes = [node._replace(flags=("DRAIN",)) if node.name in ("n0", "n1", "n3") else node for node in NODES]
    found = look(settings, nodes)
    assert breaker.words(found, settings.site.share) == [
        "breaker: OPEN, 2 of 2 drains of the last hour are used; 2 convicted nodes are still in use:",
        "  n2: gpu.lost gpu:3: no further evidence",
        "  n4: gpu.lost gpu:3: GPU is lost",
    ]
    data = breaker.as_data(found)
    assert data["open"] is True
    assert [one["node"] for one in data["suppressed"]] == ["n2", "n4"]
    assert [one["node"] for one in data["drains"]] == ["n0", "n1"]


def test_many_are_cut_short(settings: Settings) -> None:
    for node in NODES[2:]:
        hold_back(settings, node.name)
    lines = breaker.words(look(settings), settings.site.share)
    assert len(lines) == 22
    assert lines[0].startswith("breaker: closed again, 0 of 2")
    assert lines[-1] == "  and 8 more (--json lists all)"


def test_a_ledger_that_is_gone_is_said(settings: Settings) -> None:
    Path(settings.site.share, "ledger").rmdir()
    (line,) = breaker.words(look(settings), settings.site.share)
    assert "nothing is drained" in line
    without = settings._replace(site=settings.site._replace(share=""))
    assert breaker.words(look(without), "") == []
    assert breaker.as_data(look(without))["open"] is True


@pytest.mark.parametrize("id_", ["breaker.open", "breaker.more", "breaker.no-ledger"])
def test_who_is_woken_can_ask_what_it_means(id_: str) -> None:
    done = CliRunner().invoke(explain, [id_])
    assert done.exit_code == 0
    assert done.output.startswith(f"{id_} (alert)\n")
    assert "what to do:" in done.output

"""Where a node sits is written by the hooks that no job waits for, once a boot, as slurmd runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hook_site import Site

from slurm_ext.topology import place_fact


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "site").mkdir()
    made = Site(tmp_path / "site")
    for name, text in (
        ("sys/class/dmi/id/board_asset_tag", "i-0123456789abcdef0"),
        ("sys/class/dmi/id/product_name", "p5.48xlarge"),
        ("proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111"),
    ):
        path = made.folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return made


def places(site: Site) -> dict[str, place_fact.Place]:
    return dict(place_fact.read_all(str(site.folder / "share"), timeout_s=60) or {})


def told(site: Site, kind: str) -> None:
    """Run a hook until the share took what it wrote: on a busy machine that may be too slow once or twice."""
    for _ in range(5):
        assert site.run(kind)[0] == 0
        if places(site):
            return
        (site.folder / "run" / place_fact.LAST).unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["epilog", "health"])
def test_an_epilog_or_a_health_check_tells_the_place(site: Site, kind: str) -> None:
    assert site.run("prolog")[0] == 0
    assert places(site) == {}  # a job's way to its start is left alone
    told(site, kind)
    first = places(site)
    assert first["n0"].instance_id == "i-0123456789abcdef0"
    assert first["n0"].instance_type == "p5.48xlarge"
    site.run(kind)
    assert places(site) == first


def test_nothing_is_told_where_every_room_is_off(site: Site) -> None:
    site.mode(gate="off", burnin="off", resume="off", staging="off")
    assert site.run("epilog")[0] == 0
    assert places(site) == {}

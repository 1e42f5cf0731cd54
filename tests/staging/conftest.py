"""A site for staging tests: NVMe, a shared folder and the daemon's own folders, all below one temporary folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from staging_site import StagingSite

from slurm_ext.config.model import Mode, Settings, Site, Staging, Tier


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a temporary folder that other users can reach into; pytest's own cannot be."""
    folder = Path(tempfile.mkdtemp(prefix="fmslurm-staging-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_site(open_folder: Path) -> Callable[..., StagingSite]:
    """Return a function that makes a site; `tiers` are added to NVMe and the shared folder."""
    tmp_path = open_folder

    def make(*tiers: Tier, mode: str = "enforce", nodes: tuple[str, ...] = ("n0",)) -> StagingSite:
        shared = tmp_path / "shared"
        shared.mkdir(exist_ok=True)
        shared.chmod(0o1777)
        for node in nodes:
            (tmp_path / "nvme" / node).mkdir(parents=True)
        settings = Settings(
            site=Site(
                state_dir=f"{tmp_path}/state/%n",
                run_dir=f"{tmp_path}/run/%n",
                log_dir=f"{tmp_path}/log/%n",
                cluster="lab",
            ),
            mode=Mode(staging=mode),
            staging=Staging(
                tiers=(Tier("nvme", "nvme", f"{tmp_path}/nvme/%n"), Tier("shared", "lustre", str(shared)), *tiers)
            ),
        )
        return StagingSite(tmp_path, settings, tmp_path / "nvme", shared)

    return make


@pytest.fixture
def site(make_site: Callable[..., StagingSite]) -> StagingSite:
    """Return a site with NVMe and a shared folder, one node, staging enforced."""
    return make_site()

"""Every release of the real NCCL that pip has: loads, names its version, makes an id, and refuses without a driver in words.

Downloads 300 MB for each release. What needs a GPU (init, all-reduce) is not tried here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

#: All minor releases from 2.18 to 2.32, two patches where a layout changed in between.
RELEASES = (
    *("2.18.1", "2.18.3", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.2", "2.26.5"),
    *("2.27.3", "2.27.7", "2.28.9", "2.29.2", "2.29.7", "2.30.3", "2.30.4", "2.30.7", "2.31.2", "2.32.3"),
)

_ASK = """
import json, sys
from slurm_ext.burnin.nccl import Nccl, NcclError
nccl = Nccl([sys.argv[1]])
identity = nccl.unique_id()
try:
    nccl.begin(identity, 0, 1)
    said = [0, "joined"]
except NcclError as exc:
    said = [exc.code, str(exc)]
print(json.dumps([nccl.version, len(identity), *said]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that goes at once: pytest keeps its own for three runs, and each release unpacks to 800 MB."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.soak
@pytest.mark.parametrize("version", RELEASES)
def test_a_real_release_answers(version: str, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    fetched = subprocess.run([*pip, f"nvidia-nccl-cu12=={version}"], capture_output=True, text=True, timeout=900)
    if fetched.returncode:
        pytest.skip(f"pip cannot fetch nvidia-nccl-cu12 {version}: {fetched.stderr.strip()[-200:]}")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("nvidia/nccl/lib/libnccl.so.2", folder)
    asked = subprocess.run(
        [sys.executable, "-c", _ASK, library], capture_output=True, text=True, timeout=120, cwd=CHECKOUT, check=True
    )
    code, length, result, words = json.loads(asked.stdout.splitlines()[-1])
    major, minor, patch = map(int, version.split("."))
    assert code == major * 10_000 + minor * 100 + patch
    assert length == 128
    assert (result, "joined" in words) == (0, True) or (result == 1 and "driver" in words), words

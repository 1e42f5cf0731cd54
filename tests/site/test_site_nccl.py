"""NCCL's library brought by `install --nccl`: the right wheel, whole or not at all, found by the burn-in, and out again."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_ext.cli import install as commands
from slurm_ext.errors import LackingError, UsageError
from slurm_ext.site import nccl, nccl_releases, nccl_wheel
from slurm_ext.site.nccl_releases import NcclRelease

SOURCE = "int ncclGetVersion(int *v) { *v = 23004; return 0; }\n"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the same shape as NVIDIA's, with a library that loads and answers."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "n.c").write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnccl.so.2", folder / "n.c"], check=True, timeout=300)
    path = folder / "nvidia_nccl_cu12-2.30.4-py3-none-manylinux_2_18_x86_64.whl"
    info = "nvidia_nccl_cu12-2.30.4.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2")
        archive.writestr("../../etc/planted", "never unpacked")
        archive.writestr(f"{info}/licenses/License.txt", "the licence")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.30.4\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-manylinux_2_18_x86_64\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def release(wheel: Path) -> NcclRelease:
    content = wheel.read_bytes()
    return NcclRelease("2.30.4", 12, wheel.name, hashlib.sha256(content).hexdigest(), len(content))


def quiet(line: str) -> None:
    assert line


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [("570.133.20", 12), ("525.60.13", 12), ("580.65.06", 13), ("590.1", 13), ("524.9", 0), ("", 0), ("N/A", 0)],
)
def test_the_driver_says_which_cuda(driver: str, cuda: int) -> None:
    assert nccl_releases.cuda_for(driver) == cuda


def test_every_row_is_complete_and_named_once() -> None:
    rows = nccl_releases.RELEASES
    assert len({row.name for row in rows}) == len(rows)
    assert len({row.sha256 for row in rows}) == len(rows)
    for row in rows:
        assert len(row.sha256) == 64
        assert int(row.sha256, 16)
        assert row.wheel.startswith(f"nvidia_nccl_cu{row.cuda}-{row.version}-")
        assert row.size_bytes > 100 << 20
    assert {row.cuda for row in rows if row.version == nccl_releases.DEFAULT_VERSION} == set(nccl_releases.DRIVER_MIN)


def test_choosing() -> None:
    assert nccl.choose("", 0, "570.133.20").name == "cu12-2.30.4"
    assert nccl.choose("", 0, "580.65.06").name == "cu13-2.30.4"
    assert nccl.choose("2.29.7", 12, "580.65.06").name == "cu12-2.29.7"  # a newer driver runs the older library
    assert nccl.choose("", 13, "").name == "cu13-2.30.4"  # an image without a driver
    for driver in ("", "470.1"):
        with pytest.raises(LackingError, match="--cuda 12"):
            nccl.choose("", 0, driver)
    with pytest.raises(UsageError, match="580"):
        nccl.choose("", 13, "570.133.20")
    with pytest.raises(UsageError, match=r"2\.30\.4"):
        nccl.choose("2.11.4", 12, "")


def test_delivered_whole_and_found_again(tmp_path: Path, wheel: Path, release: NcclRelease) -> None:
    folder = tmp_path / "nccl"
    done = nccl.deliver(str(folder), release, quiet, wheel=str(wheel))
    assert done == (release.name, str(folder / release.name / "lib/libnccl.so.2"), 23004, True)
    library = folder / "current/lib/libnccl.so.2"
    assert library.resolve() == Path(done.path)
    assert stat.S_IMODE(library.stat().st_mode) == 0o755
    assert (folder / "current/License.txt").read_text() == "the licence"
    assert nccl.installed(str(folder)) == release.name
    assert sorted(os.listdir(folder)) == ["cu12-2.30.4", "current"]
    assert sorted(os.listdir(folder / release.name)) == ["License.txt", "fmslurm-nccl.json", "lib"]
    assert not (tmp_path / "etc").exists()
    again = nccl.deliver(str(folder), release, quiet, wheel="/nonexistent")
    assert not again.changed
    assert nccl.remove_all(str(folder)) == [str(folder / release.name)]
    assert not folder.exists()


def test_a_changed_library_is_brought_anew(tmp_path: Path, wheel: Path, release: NcclRelease) -> None:
    folder = tmp_path / "nccl"
    library = Path(nccl.deliver(str(folder), release, quiet, wheel=str(wheel)).path)
    good = library.read_bytes()
    library.write_bytes(good[:-1] + b"x")
    assert nccl.deliver(str(folder), release, quiet, wheel=str(wheel)).changed
    assert library.read_bytes() == good


def test_a_wrong_wheel_changes_nothing(tmp_path: Path, wheel: Path, release: NcclRelease) -> None:
    folder = tmp_path / "nccl"
    whole = wheel.read_bytes()
    other = whole[:-1] + bytes([whole[-1] ^ 1])
    for content, word in (
        (whole[:-9], "bytes, not"),
        (b"", "has 0 bytes"),
        (whole + b"x", "bytes, not"),
        (other, "sha256"),
    ):
        (tmp_path / "bad.whl").write_bytes(content)
        with pytest.raises(LackingError, match=word):
            nccl.deliver(str(folder), release, quiet, wheel=str(tmp_path / "bad.whl"))
    with pytest.raises(LackingError, match="No such file"):
        nccl.deliver(str(folder), release, quiet, wheel=str(tmp_path / "none.whl"))
    text = b"not a zip file"
    (tmp_path / "text.whl").write_bytes(text)
    lying = release._replace(sha256=hashlib.sha256(text).hexdigest(), size_bytes=len(text))
    with pytest.raises(LackingError, match="has no"):
        nccl.deliver(str(folder), lying, quiet, wheel=str(tmp_path / "text.whl"))
    assert os.listdir(folder) == []


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/stdin", "fifo", "."])
def test_what_is_no_file_is_no_wheel_and_is_not_waited_for(tmp_path: Path, release: NcclRelease, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    path = str(tmp_path / name)
    for look in (
        lambda: nccl.deliver(str(tmp_path / "nccl"), release, quiet, wheel=path),
        lambda: nccl_wheel.look_at(path, release),
    ):
        with pytest.raises(LackingError, match=r"no regular file|cannot be read"):
            look()
    assert os.listdir(tmp_path / "nccl") == []


def test_what_was_checked_is_what_is_unpacked(
    tmp_path: Path, wheel: Path, release: NcclRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder that the wheel lies in may put another in its place, or write into it, at any moment."""
    brought = tmp_path / "brought.whl"
    brought.write_bytes(wheel.read_bytes())
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", "planted")
        archive.writestr("x.dist-info/licenses/License.txt", "planted")
    real = nccl_wheel.unpack

    def swapped(checked: str, place: str, library: str) -> None:
        brought.write_bytes(other.read_bytes())
        real(checked, place, library)

    monkeypatch.setattr(nccl_wheel, "unpack", swapped)
    done = nccl.deliver(str(tmp_path / "nccl"), release, quiet, wheel=str(brought))
    assert done.version == 23004
    assert (tmp_path / "nccl/current/License.txt").read_text() == "the licence"
    assert sorted(os.listdir(tmp_path / "nccl" / release.name)) == ["License.txt", "fmslurm-nccl.json", "lib"]


def test_a_library_that_does_not_load_is_not_installed(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", "no ELF")
        archive.writestr("x.dist-info/licenses/License.txt", "l")
    content = path.read_bytes()
    release = NcclRelease("2.30.4", 12, path.name, hashlib.sha256(content).hexdigest(), len(content))
    with pytest.raises(LackingError, match="cannot load"):
        nccl.deliver(str(tmp_path / "nccl"), release, quiet, wheel=str(path))
    assert os.listdir(tmp_path / "nccl") == []


def test_no_room_is_said_before_anything_is_fetched(tmp_path: Path, release: NcclRelease) -> None:
    with pytest.raises(LackingError, match="MiB free"):
        nccl.deliver(str(tmp_path / "nccl"), release._replace(size_bytes=1 << 60), quiet)


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, wheel: Path, release: NcclRelease) -> None:
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl").chmod(0o777)
    with pytest.raises(LackingError, match="written by others"):
        nccl.deliver(str(tmp_path / "nccl"), release, quiet, wheel=str(wheel))


def test_what_others_put_there_stays(tmp_path: Path, wheel: Path, release: NcclRelease) -> None:
    folder = tmp_path / "nccl"
    nccl.deliver(str(folder), release, quiet, wheel=str(wheel))
    (folder / "mine").mkdir()
    assert nccl.remove_all(str(folder)) == [str(folder / release.name)]
    assert os.listdir(folder) == ["mine"]


def test_what_a_killed_run_left_is_cleared_and_two_at_once_are_refused(
    tmp_path: Path, wheel: Path, release: NcclRelease
) -> None:
    folder = tmp_path / "nccl"
    left = folder / f".{release.name}.{'0a' * 6}"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    with nccl._alone(str(folder)), pytest.raises(LackingError, match="another install"):
        nccl.deliver(str(folder), release, quiet, wheel=str(wheel))
    assert left.exists()
    nccl.deliver(str(folder), release, quiet, wheel=str(wheel))
    assert not left.exists()


def test_pip_fetches_it_and_checks_the_hash(
    tmp_path: Path, wheel: Path, release: NcclRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    done = nccl.deliver(str(tmp_path / "nccl"), release, quiet)
    assert done.version == 23004
    assert sorted(os.listdir(tmp_path / "nccl" / release.name)) == ["License.txt", "fmslurm-nccl.json", "lib"]
    with pytest.raises(LackingError, match="cannot fetch"):
        nccl.deliver(str(tmp_path / "other"), release._replace(sha256="0" * 64), quiet)


@pytest.fixture
def site_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fmslurm.yaml"
    keys = {"prefix": tmp_path / "opt", "state_dir": tmp_path / "state", "log_dir": tmp_path / "log", "root": tmp_path}
    path.write_text("site:\n" + "".join(f"  {key}: {value}\n" for key, value in keys.items()))
    monkeypatch.setenv("FMSLURM_CONFIG", str(path))
    return path


def test_the_command(
    tmp_path: Path, wheel: Path, release: NcclRelease, site_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_releases, "RELEASES", (release,))
    runner = CliRunner()
    asked = ["--nccl", "--cuda", "12", "--wheel", str(wheel)]
    told = runner.invoke(commands.install, [*asked, "--dry-run", "--json"])
    assert json.loads(told.stdout)["place"] == str(tmp_path / "opt/nccl/cu12-2.30.4")
    assert not (tmp_path / "opt").exists()
    (tmp_path / "text").write_text("x")
    for wrong in (["--nccl-to", os.devnull], ["--nccl-to", f"{tmp_path}/text/below"], ["--wheel", f"{tmp_path}/text"]):
        refused = runner.invoke(commands.install, ["--nccl", "--cuda", "12", "--dry-run", *wrong])
        assert isinstance(refused.exception, LackingError), refused.output
    if os.geteuid() != 0:
        return
    result = runner.invoke(commands.install, [*asked, "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["loads"] == str(tmp_path / "opt/nccl/current/lib/libnccl.so.2")
    assert Path(said["loads"]).exists()
    assert "install-nccl" in (tmp_path / "log/events.jsonl").read_text()
    gone = runner.invoke(commands.uninstall, [])
    assert gone.exit_code == 0, gone.output
    assert not (tmp_path / "opt/nccl").exists()


def test_options_of_the_library_alone_are_a_mistake(site_config: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "slurm_ext.cli", "install", "--cuda", "12"], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 2
    assert "--nccl" in result.stderr

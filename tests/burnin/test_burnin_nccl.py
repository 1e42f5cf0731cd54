"""Which libnccl is loaded and which is not, what its errors show, and that nothing of the outside steers a worker."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cluster

from slurm_ext.burnin import nccl, seclusion, surroundings, trust
from slurm_ext.burnin.cuda import Cuda
from slurm_ext.command import call_bounded, run
from slurm_ext.config.model import Burnin, Site
from slurm_ext.errors import LackingError
from slurm_ext.verdict import PASS

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone loads for others, and mounts")


def test_the_configuration_is_that_of_2_18() -> None:
    config = nccl.non_blocking_config()
    raw = bytes(config)
    assert len(raw) == ctypes.sizeof(nccl.Config) == 48
    number = lambda at, size=4: int.from_bytes(raw[at : at + size], "little", signed=True)  # noqa: E731
    assert (number(0, 8), number(8) & 0xFFFFFFFF, number(12), number(16)) == (48, 0xCAFEBEEF, 21800, 0)
    # From 2.26 the last four bytes are another field; whatever is in them, what is unset must be the smallest integer.
    assert [number(at) for at in (20, 24, 28, 40)] == [-(1 << 31)] * 4
    assert number(32, 8) == 0


def test_the_header_of_nccl_calls_the_smallest_integer_undefined() -> None:
    """nccl.h: NCCL_CONFIG_UNDEF_INT is INT_MIN."""
    assert nccl.non_blocking_config().split_share == -(2**31)


def test_the_search_goes_from_the_configured_to_ours_to_the_systems(tmp_path: Path) -> None:
    assert nccl.candidates("/opt/x/libnccl.so.2", str(tmp_path)) == ["/opt/x/libnccl.so.2"]
    wheel = tmp_path / "current/venv/lib/python3.12/site-packages/nvidia/nccl/lib"
    wheel.mkdir(parents=True)
    (wheel / "libnccl.so.2").touch()
    assert nccl.candidates("", str(tmp_path)) == [
        str(wheel / "libnccl.so.2"),
        f"{tmp_path}/current/nccl/libnccl.so.2",
        f"{tmp_path}/nccl/current/lib/libnccl.so.2",
        "libnccl.so.2",
    ]


def test_the_placed_library_is_found_through_its_link(tmp_path: Path, standin_libraries: Path) -> None:
    release = tmp_path / "nccl/2.27.7-cu12/lib"
    release.mkdir(parents=True)
    (release / "libnccl.so.2").symlink_to(standin_libraries / "libnccl.so.2")
    (tmp_path / "nccl/current").symlink_to("2.27.7-cu12")
    paths = [path for path in nccl.candidates("", str(tmp_path)) if "/" in path]
    assert nccl.Nccl(paths).version > nccl.OLDEST


def test_an_error_names_every_path_and_why_each_was_not_taken(tmp_path: Path) -> None:
    broken = tmp_path / "libnccl.so.2"
    broken.write_text("no library")
    with pytest.raises(LackingError) as caught:
        nccl.load([f"{tmp_path}/missing/libnccl.so.2", str(broken)])
    assert f"{tmp_path}/missing/libnccl.so.2 (cannot open shared object file" in str(caught.value)
    assert re.search(rf"{re.escape(str(broken))} \((invalid ELF header|file too short)", str(caught.value))


def test_a_library_that_is_no_nccl_is_named_and_the_next_one_taken(standin_libraries: Path) -> None:
    real = str(standin_libraries / "libnccl.so.2")
    assert nccl.load(["libm.so.6", real])._name == real
    with pytest.raises(LackingError, match=r"libm\.so\.6 \(no NCCL of 2\.18 or newer: it lacks ncclGetVersion"):
        nccl.load(["libm.so.6"])
    with pytest.raises(LackingError, match=r"libm\.so\.6 lacks cuInit"):
        Cuda("libm.so.6").open(0)


@as_root
@pytest.mark.parametrize("spoilt", ["file", "folder", "owner", "link"])
def test_root_loads_nothing_that_others_could_have_placed(tmp_path: Path, standin_libraries: Path, spoilt: str) -> None:
    folder = tmp_path / "place/lib"
    folder.mkdir(parents=True)
    library = folder / "libnccl.so.2"
    library.write_bytes((standin_libraries / "libnccl.so.2").read_bytes())
    asked = library
    assert nccl.load([str(library)]) is not None
    if spoilt == "file":
        library.chmod(0o666)
    elif spoilt == "folder":
        (tmp_path / "place").chmod(0o777)
    elif spoilt == "owner":
        os.chown(library, 12345, 12345)
    else:
        open_to_all = tmp_path / "open"
        open_to_all.mkdir()
        (open_to_all / "libnccl.so.2").symlink_to(library)
        open_to_all.chmod(0o775)
        asked = open_to_all / "libnccl.so.2"
    with pytest.raises(LackingError, match=r"refused: .*(written by others|belongs to uid 12345)"):
        nccl.load([str(asked)])


@as_root
def test_a_sticky_folder_that_all_may_write_is_fine_for_what_root_owns(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "mine").touch()
    assert trust.why_untrusted(str(shared / "mine")) == ""
    shared.chmod(0o777)
    assert "written by others" in trust.why_untrusted(str(shared / "mine"))


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many links" in trust.why_untrusted(str(tmp_path / "a"))


@pytest.mark.parametrize(
    ("code", "text", "whose"),
    [
        (nccl.REMOTE, "remote process exited", "remote"),
        (nccl.SYSTEM, "unhandled system error", "remote"),
        (nccl.CUDA, "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'", "environment"),
        (nccl.CUDA, "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'", "environment"),
        (nccl.CUDA, "Cuda failure 719 'unspecified launch failure'", "local"),
        (3, "internal error", "local"),
        (8, "timeout", "local"),
    ],
)
def test_what_an_error_shows(code: int, text: str, whose: str) -> None:
    assert nccl.NcclError(code, f"ncclAllReduce: words ({code}): {text}").whose == whose


HOSTILE = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "nosuch0",
    "NCCL_COMM_ID": "10.9.9.9:1",
    "NCCL_DEBUG_FILE": "/dev/full",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_NET_PLUGIN": "none",
    "OFI_NCCL_PROTOCOL": "SENDRECV",
    "FI_PROVIDER": "tcp",
    "LD_PRELOAD": "",
    "CUDA_VISIBLE_DEVICES": "7",
}


def test_a_workers_environment_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    site = Site(root=str(tmp_path))
    for transport, network in (("efa", "AWS Libfabric"), ("socket", "Socket")):
        got = surroundings.worker_environment(
            site, Burnin(transport=transport), node="n0", address="127.0.0.2", log_folder="/logs"
        )
        assert got["NCCL_NET"] == network  # named, so that a fall-back is an error of the initialisation
        assert got.get("FI_PROVIDER") == ("efa" if transport == "efa" else None)
        assert (got["NCCL_SOCKET_IFNAME"], got["NCCL_CONF_FILE"]) == ("=lo", "/dev/null")
        assert got["NCCL_ENV_PLUGIN"] == "none"
        assert not {"NCCL_COMM_ID", "NCCL_P2P_DISABLE", "NCCL_NET_PLUGIN", "OFI_NCCL_PROTOCOL", "LD_PRELOAD"} & set(got)


def test_a_burn_in_is_not_steered_from_outside(
    make_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any one of these let in, the run ends in an error, finds no interface or goes over TCP."""
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    cluster = make_cluster(2, transport="efa")
    for name in cluster.nodes:
        cluster.efa_counters(name, 4)
        cluster.hardware(name, efa=32)
    outcomes = cluster.run()
    assert {o.verdict.verdict for o in outcomes.values()} == {PASS}, outcomes


@as_root
def test_files_that_every_nccl_reads_are_hidden_from_a_worker_alone(tmp_path: Path) -> None:
    conf, other = tmp_path / "nccl.conf", tmp_path / "other.conf"
    conf.write_text("NCCL_P2P_DISABLE=1\n")
    other.write_text("stays\n")

    def look() -> bytes:
        left = seclusion.hide([str(conf), str(tmp_path / "missing")])
        return f"{left} {conf.read_text()!r} {other.read_text()!r}".encode()

    assert call_bounded(look, timeout_s=60) == b"() '' 'stays\\n'"
    assert conf.read_text() == "NCCL_P2P_DISABLE=1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the right up")
def test_files_that_cannot_be_hidden_are_named(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_P2P_DISABLE=1\n")

    def look() -> bytes:
        os.setresuid(65534, 65534, 65534)
        return repr(seclusion.hide([str(conf)])).encode()

    tmp_path.chmod(0o755)
    for folder in (one for one in tmp_path.parents if one.stat().st_uid == 0 and len(one.parts) > 2):
        folder.chmod(folder.stat().st_mode | 0o055)
    assert call_bounded(look, timeout_s=60) == repr((str(conf),)).encode()


def test_what_nccl_would_read_is_known() -> None:
    assert seclusion.configuration_files()[0] == "/etc/nccl.conf"
    home = run(["getent", "passwd", str(os.getuid())], timeout_s=60).stdout.split(":")[5]
    assert seclusion.configuration_files()[1] == f"{home}/.nccl.conf"

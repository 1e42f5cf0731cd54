"""gres.conf and node lines that others wrote: every form Slurm takes, and texts made to break a reader."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from gres_trees import tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.cli.gres import gres as command
from slurm_ext.errors import UsageError
from slurm_ext.gres import collect, fleet, read_conf, rules
from slurm_ext.gres.read_conf import count, files, gpus_in, gres_lines, node_lines, numbers, ranges
from slurm_ext.gres.render import Offer, gres_conf

P5 = CATALOGUE["p5.48xlarge"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gpu:h100:8(S:0-1)", {"h100": 8}),
        ("gpu:H100:8", {"h100": 8}),
        ("GPU:2", {"": 2}),
        ("gpu", {"": 1}),
        ("gpu:h100", {"h100": 1}),
        ("gpu:a:2,gpu:b:1(IDX:0,2),nvme:4", {"a": 2, "b": 1}),
        ("gpu:a:2,gpu:a:1", {"a": 3}),
        ("gpu:no_consume:4", {"": 4}),
        ("gpu_mem:80G,mps:400,shard:8", {}),
        ("gpu:1K", {"": 1024}),
        ("(null)", {}),
        ("", {}),
        ("gpu:h100:8:x:y,((,", {}),
    ],
)
def test_what_a_nodes_gres_offers(text: str, wanted: dict[str, int]) -> None:
    assert gpus_in(text) == wanted


@pytest.mark.parametrize(
    ("line", "field", "wanted"),
    [
        ("Name = gpu File = /dev/nvidia0", "files", ("/dev/nvidia0",)),
        ("name=gpu FILE=/dev/nvidia[00-02]", "files", ("/dev/nvidia00", "/dev/nvidia01", "/dev/nvidia02")),
        ("Name=gpu File=/dev/nvidia[1,0],/dev/x[2]y,", "files", ("/dev/nvidia1", "/dev/nvidia0", "/dev/x2y")),
        ('Name=gpu File="/dev/nvidia[0-1]"', "files", ("/dev/nvidia0", "/dev/nvidia1")),
        ("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap3", "multiple_files", True),
        ("Name=mps Count=10G", "number", 10 << 30),
        ("Name=gpu Count=8", "amount", 8),
        ("Name=gpu File=/dev/nvidia[0-3]", "amount", 4),
        ("Name=gpu", "amount", 1),
        ("Name=gpu CPUs=0-3,8", "cores", frozenset({0, 1, 2, 3, 8})),
        ("NodeName=n[01-03] AutoDetect=NVML", "autodetect", "nvml"),
        ("NodeName=n[01-03] AutoDetect=nvml", "nodes", ("n01", "n02", "n03")),
        ("Name=gpu Type=a \\\r\n File=/dev/a # x File=/dev/b", "files", ("/dev/a",)),
    ],
)
def test_every_form_that_slurm_takes(line: str, field: str, wanted: object) -> None:
    (found,) = gres_lines("f", line)
    assert getattr(found, field) == wanted


@pytest.mark.parametrize("text", ["3-1", "0-65536", "99999", "-1", "1-", "", "0-3;", "0x1", "٣"])
def test_numbers_that_no_core_has(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        numbers(text)


@given(st.sets(st.integers(0, 2000), min_size=1))
def test_numbers_and_ranges_are_each_others_way_back(values: set[int]) -> None:
    assert numbers(ranges(values)) == sorted(values)
    assert files(f"/dev/nvidia[{ranges(values)}]")[0] == f"/dev/nvidia{min(values)}" if len(values) <= 1024 else True


@given(st.text('Namegpu=,[]()-0123456789 \t\\#"\n\r\0é:KMfileCores', max_size=200))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    for read in (gres_lines, node_lines):
        try:
            found = [line.where for line in read("f", text)]
        except UsageError as exc:
            found = [exc.message]
        assert all("f, line " in where for where in found)
    gpus_in(text)


HOSTILE = {
    "letters": "a" * 2_000_000,
    "files": "Name=gpu File=" + "a," * 1_000_000,
    "cores": "Name=gpu Cores=" + "0-65535," * 250_000,
    "suffixes": "Name=gpu File=x[" + "0-1023," * 250_000 + "]",
    "brackets": "Name=gpu File=" + "[" * 1_000_000,
    "pairs": "Name=gpu " * 250_000,
    "hosts": "NodeName=" + "n[0-65535]," * 100_000 + " Name=gpu",
    "names": "NodeName=n[1-60000] Name=gpu\n" * 100,
    "quotes": 'a="' * 500_000,
    "joined": "\\\n" * 500_000,
    "digits": "Name=gpu Count=" + "9" * 1_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_text_made_to_break_the_reader_costs_time_by_its_size_alone(text: str) -> None:
    began = time.process_time()
    for read in (gres_lines, node_lines):
        try:
            read("f", text)
        except UsageError:
            continue
    # 2 MB of plain comments take some 0.1 s; what is quadratic would take hours.
    assert time.process_time() - began < 60


def test_default_lines_hold_for_those_below() -> None:
    text = "NodeName=DEFAULT CPUs=192 Boards=1 SocketsPerBoard=2 Gres=gpu:h100:8\nNodeName=a\nNodeName=b Gres=gpu:4 Procs=8\n"
    first, second = node_lines("f", text)
    assert (first.nodes, first.cpus, first.sockets, first.gres) == (("a",), 192, 2, "gpu:h100:8")
    assert (second.nodes, second.gres) == (("b",), "gpu:4")


@given(st.lists(st.sampled_from(sorted(CATALOGUE)), min_size=1, max_size=12))
def test_what_we_write_is_what_we_read(kinds: list[str]) -> None:
    offers = {f"n{number}": Offer(CATALOGUE[kind]) for number, kind in enumerate(kinds)}
    whole = fleet.Lines(gres_lines("f", gres_conf(offers)))
    for node, offer in offers.items():
        row = offer.instance_type
        assert fleet.offered(whole.gpus(node)) == {row.gpu_type: row.gpus}
        paths = [path for line in whole.gpus(node) for path in line.files]
        assert paths == [f"/dev/nvidia{number}" for number in range(row.gpus)]


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="device files need root")


def on_node(root: Path, conf: str, kind: str = "p5.48xlarge", *, as_socket: bool = False) -> list[str]:
    facts = collect.facts(str(root))
    found = rules.node(facts, CATALOGUE.get(kind), gres_lines("gres.conf", conf), "n1", numa_as_socket=as_socket)
    return [trouble.id for trouble in found]


@root_only
@pytest.mark.parametrize(
    ("conf", "wanted"),
    [
        # AutoDetect of other nodes, and one that is taken back, detect nothing here.
        ("NodeName=n2 AutoDetect=nvml\n", ["gres.not-offered"]),
        ("AutoDetect=nvml\nNodeName=n1 AutoDetect=off\n", ["gres.not-offered"]),
        ("AutoDetect=nvml\n", []),
        ("Name=gpu Count=8\n", ["gres.no-file", "gres.no-cores"]),
        ("Name=gpu Count=4 File=/dev/nvidia[0-7] Cores=0-95\n", ["gres.count-files", *["gres.far-cores"] * 8]),
        (
            "Name=gpu File=/dev/nvidia[0-3] Cores=0-47\nName=gpu File=/dev/nvidia[3-7] Cores=48-95\n",
            ["gres.twice", "gres.far-cores"],
        ),
        ("Name=gpu File=/dev/nvidia[0-7] Cores=0-200\n", ["gres.part-of-socket", *["gres.far-cores"] * 8]),
        (
            "Name=gpu File=/dev/nvidia[4-7] Cores=48-95\nName=gpu File=/dev/nvidia[0-3] Cores=0-47\n",
            ["gres.order"],
        ),
        # MIG: parts of GPUs are compared with nothing.
        ("Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap3\n", []),
        (
            "Name=gpu Type=big File=/dev/nvidia[0-3] Cores=0-47\nName=gpu Type=big File=/dev/nvidia[4-7] Cores=48-95\n",
            [],
        ),
        ("Name=mps Count=800\nNodeName=n1 Name=shard Count=8 File=/dev/nvidia0\n", ["gres.not-offered"]),
    ],
)
def test_lines_that_others_wrote(tmp_path: Path, conf: str, wanted: list[str]) -> None:
    assert on_node(tree(tmp_path), conf) == wanted


@root_only
def test_b200_is_no_gb200(tmp_path: Path) -> None:
    tree(tmp_path, kind="p6e-gb200.36xlarge", model="NVIDIA GB200", cores=72, threads=1, numa_of=(0, 0, 1, 1))
    right = gres_conf({"n1": Offer(CATALOGUE["p6e-gb200.36xlarge"])})
    assert on_node(tmp_path, right, "p6e-gb200.36xlarge") == []
    assert on_node(tmp_path, right.replace("gb200 ", "b200 "), "p6e-gb200.36xlarge") == ["gres.type"] * 4


@root_only
def test_numa_nodes_that_are_parts_of_sockets(tmp_path: Path) -> None:
    tree(tmp_path, numa_of=(0, 1, 2, 3, 4, 5, 6, 7), numa_per_socket=4)
    whole = gres_conf({"n1": Offer(P5)})
    parts = "".join(f"Name=gpu Type=h100 File=/dev/nvidia{n} Cores={12 * n}-{12 * n + 11}\n" for n in range(8))
    assert on_node(tmp_path, whole) == []
    assert on_node(tmp_path, parts) == ["gres.part-of-socket"] * 8
    assert on_node(tmp_path, parts, as_socket=True) == []
    assert set(on_node(tmp_path, whole, as_socket=True)) == {"gres.far-cores"}


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, [*arguments])
    return getattr(done.exception, "exit_code", done.exit_code), done.stdout + str(
        getattr(done.exception, "message", "")
    )


@root_only
def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    tree(tmp_path / "node")
    bad = tmp_path / "gres.conf"

    def check() -> tuple[int, str]:
        return run("check", "--root", str(tmp_path / "node"), "--gres-conf", str(bad), "--node", "n1")

    assert check() == (2, f"{bad}: there is no such file")
    os.mkfifo(bad)
    assert check() == (3, f"{bad} is no regular file")
    bad.unlink()
    bad.mkdir()
    assert check() == (3, f"{bad} is no regular file")
    bad.rmdir()
    os.mknod(bad, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero has no end
    assert check() == (3, f"{bad} is no regular file")
    bad.unlink()
    bad.write_bytes(os.urandom(200_000))
    assert check()[0] in (0, 1, 2)
    with bad.open("wb") as stream:
        stream.truncate(100 << 20)
    assert check()[0] == 3
    bad.write_text("include nowhere.conf\n")
    assert check()[0] == 2
    bad.write_text("include a\0b\n")
    assert check()[0] == 2
    many = tmp_path / "many.conf"
    many.write_text("Name=nic\n")
    bad.write_text(f"include {many}\n" * 5000)
    assert check()[0] == 2


def test_the_cluster_against_its_gres_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nInclude nodes.conf\n")
    shape = "CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2"
    (tmp_path / "nodes.conf").write_text(f"NodeName=n[1-8] {shape} Gres=gpu:h100:8\nNodeName=c[1-2] CPUs=4\n")
    (tmp_path / "gres.conf").write_text(gres_conf({f"n{number}": Offer(P5) for number in range(1, 9)}))
    assert run("check", "--cluster") == (0, "nothing is wrong\n")
    (tmp_path / "gres.conf").write_text(gres_conf({f"n{number}": Offer(P5) for number in range(2, 10)}))
    code, said = run("check", "--cluster")
    assert code == 1
    assert "gres.no-node: gres.conf has lines of n9" in said
    assert "gres.no-line: n1: Gres=gpu:h100:8 in slurm.conf" in said


GRES = "NodeName=gpu-st-p5-[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"
PARTITION = "NodeName=gpu-st-p5-[1-4] CPUs=192 RealMemory=1992294 State=CLOUD Feature=static,p5.48xlarge,p5,gpu Gres=gpu:h100:8\n"


def test_parallelclusters_files_of_several_queues_and_what_stands_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FMSLURM_CONFIG", raising=False)
    folder = tmp_path / "pcluster"
    folder.mkdir()
    for queue in ("gpu", "big"):
        partition, gres = PARTITION.replace("gpu-st", f"{queue}-st"), GRES.replace("gpu-st", f"{queue}-st")
        (folder / f"slurm_parallelcluster_{queue}_partition.conf").write_text(partition)
        (folder / f"slurm_parallelcluster_{queue}_gres.conf").write_text(gres)
    assert run("check", "--pcluster", str(folder))[0] == 0
    (tmp_path / "gres.conf").write_text("AutoDetect=nvml\ninclude /opt/slurm/etc/slurm_parallelcluster_gres.conf\n")
    code, said = run("check", "--pcluster", str(folder))
    assert code == 1
    assert said.count("pcluster.autodetect") == 2
    (tmp_path / "gres.conf").unlink()
    (folder / "slurm_parallelcluster_big_partition.conf").unlink()
    code, said = run("check", "--pcluster", str(folder))
    assert code == 0
    assert "pcluster.stale: gres lines of big-st-p5-[1-4]" in said
    (folder / "slurm_parallelcluster_gpu_gres.conf").unlink()
    code, said = run("check", "--pcluster", str(folder))
    assert code == 1
    assert "0 device files for 8 GPUs" in said


def test_a_count_with_a_suffix() -> None:
    assert [count(text) for text in ("", "8", "2k", "1G")] == [0, 8, 2048, 1 << 30]
    assert read_conf.includes("Include a\n include\tb # c\n#include d\n") == ["a", "b"]

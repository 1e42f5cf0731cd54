"""What `fmslurm gres generate` writes for each type is taken by a real slurmctld and slurmd, and Cores= mean something."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.command import Result
from slurm_ext.gres import told
from slurm_ext.gres.model import Gpu, NodeFacts
from slurm_ext.gres.read_conf import ranges
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")
TYPES = sorted(CATALOGUE)

#: Nobody published at which sockets its GPUs hang: its node tells.
TOLD = "p5e.48xlarge"


@pytest.fixture(scope="module")
def mixed(new_lab: type[Lab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with one node of each type: the nodes differ in Slurm's eyes alone."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fmlab-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        lab = new_lab.up(LabOptions(dir=f"{folder}/lab", nodes=len(TYPES), s3="off", timeout_s=300), print)
        try:
            if lab.state.mode == "loopback":
                pytest.skip(
                    "nodes without host names of their own need NodeHostname, which `gres generate` does not write"
                )
            generate(lab)
            yield lab
        finally:
            lab.down()


def generate(lab: Lab) -> None:
    lines = ["node,instance_id,address,port,instance_type"]
    for kind, node in zip(TYPES, lab.state.nodes, strict=True):
        lines.append(f"{node.name},{node.instance_id},{node.address},{node.port},{kind}")
    lab.path("mixed.csv").write_text("\n".join(lines) + "\n")
    lab.path("facts.jsonl").write_text(json.dumps(crosswise(lab.nodes[TYPES.index(TOLD)])) + "\n")
    slurm = lab.path("etc/slurm")
    said = lab.run(
        [
            *(FMSLURM, "gres", "generate", "--nodes", str(lab.path("mixed.csv")), "--device-dir", str(lab.path("dev"))),
            *("--facts", str(lab.path("facts.jsonl"))),
            *("--output", str(slurm / "gres.conf"), "--nodes-output", str(slurm / "nodes.conf")),
        ]
    )
    assert said.ok, said.words()
    lab.restart(timeout_s=300)


def crosswise(node: str) -> dict[str, object]:
    """Return what a node tells whose first GPUs hang at its second socket, and whose others take turns."""
    row = CATALOGUE[TOLD]
    cores = {
        0: frozenset(range(row.cores_per_socket)),
        1: frozenset(range(row.cores_per_socket, 2 * row.cores_per_socket)),
    }
    gpus = tuple(Gpu(number, numa_node=numa) for number, numa in enumerate((1, 1, 0, 1, 0, 1, 0, 0)))
    shape = (row.sockets, row.cores_per_socket, row.threads_per_core, row.vcpus)
    return told.to_data(told.Told(node, NodeFacts(TOLD, gpus, *shape, cores)))


def node_line(lab: Lab, node: str) -> str:
    give_up = time.monotonic() + 120
    while True:
        said = lab.run(["scontrol", "--oneliner", "show", "node", node])
        if re.search(r"State=IDLE\b(?![*+])", said.stdout) or time.monotonic() > give_up:
            return said.stdout
        time.sleep(0.5)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_registers_with_its_gpus(mixed: Lab, kind: str) -> None:
    row = CATALOGUE[kind]
    line = node_line(mixed, mixed.nodes[TYPES.index(kind)])
    assert re.search(r"State=IDLE\b(?![*+])", line), line
    assert re.search(rf"Gres=gpu:{row.gpu_type}:{row.gpus}(\(S:[0-9,-]+\))?\s", line), line
    assert f"CPUTot={row.vcpus} " in line
    assert f"Sockets={row.sockets} " in line


def test_neither_daemon_complains(mixed: Lab) -> None:
    for node in mixed.nodes:
        node_line(mixed, node)
    logs = {path.name: path.read_text(errors="replace") for path in mixed.path("log").rglob("slurm*.log")}
    assert logs
    wrong = [
        f"{name}: {line}"
        for name, text in logs.items()
        for line in text.splitlines()
        if re.search(r"(error|fatal):.*(gres|gpu|Cores|socket)", line, re.IGNORECASE)
    ]
    assert wrong == []


def allocated(lab: Lab, node: str, *options: str) -> Result:
    show = "scontrol --details --oneliner show job $SLURM_JOB_ID; env | grep CUDA_VISIBLE_DEVICES"
    return lab.run(["srun", "-w", node, "-N1", "-n1", *options, "sh", "-c", show], timeout_s=240)


@pytest.mark.parametrize("kind", [name for name in TYPES if CATALOGUE[name].sockets > 1])
def test_a_job_gets_the_processors_beside_its_gpus(mixed: Lab, kind: str) -> None:
    row = CATALOGUE[kind]
    node = mixed.nodes[TYPES.index(kind)]
    node_line(mixed, node)
    half, gpus = row.vcpus // 2, row.gpus // 2
    said = allocated(mixed, node, f"--gpus-per-node={gpus}", f"--cpus-per-task={half}", "--gres-flags=enforce-binding")
    assert said.ok, said.words()
    found = re.search(rf"CPU_IDs=(\S+) .*?GRES=gpu:\w+:{gpus}\(IDX:([0-9,-]+)\)", said.stdout)
    assert found, said.stdout
    visible = re.search(r"CUDA_VISIBLE_DEVICES=([0-9,]+)", said.stdout)
    assert visible, said.stdout
    assert ranges(map(int, visible[1].split(","))) == found[2]
    first, second = ("2,4,6-7", "0-1,3,5") if kind == TOLD else (f"0-{gpus - 1}", f"{gpus}-{row.gpus - 1}")
    assert found.groups() in {(f"0-{half - 1}", first), (f"{half}-{row.vcpus - 1}", second)}


def test_check_finds_the_gres_conf_of_the_cluster(mixed: Lab) -> None:
    node = mixed.nodes[TYPES.index("p5.48xlarge")]
    said = mixed.run([FMSLURM, "gres", "check", "--node", node, "--type", "p5.48xlarge"])
    # The simulated node has no driver's /proc, and the file offers GPUs here: that nothing can be read is no good news.
    assert said.returncode == 3, said.words()
    assert f"gres.conf offers GPUs on {node}, and nothing of them can be read" in said.stderr
    conf = mixed.path("etc/slurm/gres.conf")
    text = conf.read_text()
    try:
        conf.write_text(text.replace("Cores=0-47", "Cores=a-b"))
        said = mixed.run([FMSLURM, "gres", "check", "--node", node, "--type", "p5.48xlarge"])
    finally:
        conf.write_text(text)
    assert said.returncode == 2
    assert f"{conf}, line" in said.stderr

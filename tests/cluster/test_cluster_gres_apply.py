"""`fmslurm gres apply` on a real Slurm: written only where it is safe, read back, put back where Slurm does not take it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_controller import BareController

from slurm_ext.aws.catalogue import CATALOGUE
from slurm_ext.command import Result
from slurm_ext.gres.render import Offer, gres_conf, node_lines
from slurm_ext.lab.cluster import Lab
from slurm_ext.lab.model import LabOptions
from slurm_ext.slurm.conf_file import bare

FMSLURM = str(Path(__file__).parents[2] / "bin" / "fmslurm")


@pytest.fixture(scope="module")
def plain(new_lab: type[Lab]) -> Iterator[Lab]:
    """A lab of three nodes whose gres.conf somebody else wrote."""
    with tempfile.TemporaryDirectory(prefix="fmlab-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        lab = new_lab.up(LabOptions(dir=f"{folder}/lab", nodes=3, ready=True, s3="off", timeout_s=120), print)
        try:
            yield lab
        finally:
            lab.down()


@pytest.fixture
def conf(plain: Lab) -> Iterator[Path]:
    """Yield gres.conf, and leave it and Slurm as they were."""
    path = plain.path("etc/slurm/gres.conf")
    before = path.read_text()
    yield path
    for other in path.parent.glob("gres.conf?*"):
        other.unlink()
    path.write_text(before)
    plain.run(["scontrol", "reconfigure"])
    settled(plain)


def apply(lab: Lab, *more: str, device_dir: str = "") -> Result:
    argv = [FMSLURM, "gres", "apply", "--device-dir", device_dir or str(lab.path("dev")), *more]
    return lab.run(argv, timeout_s=120)


def settled(lab: Lab) -> None:
    """Wait until every node is idle."""
    give_up = time.monotonic() + 90
    while True:
        said = lab.run(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split()
        if said and set(said) == {"idle"}:
            return
        assert time.monotonic() < give_up, said
        time.sleep(0.3)


def test_cores_are_written_and_a_restart_makes_them_count(plain: Lab, conf: Path) -> None:
    foreign = bare(conf.read_text())
    conf.write_text(foreign)
    said = apply(plain)
    assert said.returncode == 2
    assert "was not written by fmslurm" in said.stderr
    said = apply(plain, "--dry-run", "--force", "--json")
    told = json.loads(said.stdout)
    assert (told["state"], told["written"], told["reconfigure"], told["restart_slurmctld"]) == (
        "foreign",
        False,
        False,
        True,
    )
    assert tuple(told["cores"]) == plain.nodes
    assert conf.read_text() == foreign
    said = apply(plain, "--force", "--reason", "bind GPUs")
    assert said.ok, said.words()
    assert "then: restart slurmctld" in said.stdout
    (copy,) = conf.parent.glob("gres.conf.before-fmslurm-*")
    assert copy.read_text() == foreign
    assert "Cores=48-95" in conf.read_text()
    again = apply(plain)
    assert (again.returncode, again.stdout) == (0, f"{conf} is right: nothing to do\n")
    plain.restart(timeout_s=120)
    settled(plain)
    show = "scontrol --details --oneliner show job $SLURM_JOB_ID"
    options = ["--gpus-per-node=4", "--cpus-per-task=96", "--gres-flags=enforce-binding"]
    said = plain.run(["srun", "-w", plain.nodes[0], "-N1", "-n1", *options, "sh", "-c", show], timeout_s=120)
    found = re.search(r"CPU_IDs=(\S+) .*?\(IDX:([0-9-]+)\)", said.stdout)
    assert found, said.words()
    assert found.groups() in {("0-95", "0-3"), ("96-191", "4-7")}
    conf.write_text(conf.read_text() + "# by hand\n")
    assert "was changed by hand" in apply(plain).stderr


def test_gpus_do_not_change_under_a_job_and_are_read_back_without_one(plain: Lab, conf: Path) -> None:
    settled(plain)
    node = plain.nodes[1]
    job = plain.run(
        ["sbatch", "--parsable", "-w", node, "-N1", "--gres=gpu:1", "--output=/dev/null", "--wrap", "sleep 600"]
    )
    assert job.ok, job.words()
    give_up = time.monotonic() + 60
    while plain.run(["squeue", "--noheader", "--format=%T", "-j", job.stdout.strip()]).stdout.strip() != "RUNNING":
        assert time.monotonic() < give_up
        time.sleep(0.2)
    conf.write_text(conf.read_text().replace("Type=h100", "Type=a100"))
    said = apply(plain, "--force")
    assert said.returncode == 2
    assert f"{node}: jobs run there, and their GPUs would change: drain first" in said.stderr
    assert "Type=a100" in conf.read_text()
    plain.run(["scancel", job.stdout.strip()])
    settled(plain)
    said = apply(plain, "--force")
    assert said.ok, said.words()
    assert "Type=h100" in conf.read_text()
    settled(plain)
    lines = plain.run(["scontrol", "--oneliner", "show", "node"]).stdout
    assert len(re.findall(r"Gres=gpu:h100:8\S*\s", lines)) == 3
    trails = plain.path("nodes").glob("*/log/events.jsonl")
    trail = [json.loads(line) for path in trails for line in path.read_text().splitlines()]
    assert [one["phase"] for one in trail if one["event"] == "gres.apply"][-2:] == ["intent", "done"]


def test_a_device_file_that_nobody_saw_is_refused(plain: Lab, conf: Path) -> None:
    before = conf.read_text()
    said = apply(plain, "--force", device_dir="/nowhere")
    assert said.returncode == 2
    assert "nobody knows that /nowhere/nvidia0 is there, and slurmd ends where it is not" in said.stderr
    assert conf.read_text() == before


def test_what_slurm_does_not_take_is_put_back(plain: Lab, conf: Path) -> None:
    """Device files that this machine has and the nodes do not: mounted after the nodes' namespaces were made."""
    if plain.state.mode == "loopback":
        pytest.skip("nodes without a mount namespace of their own see what this machine sees")
    settled(plain)
    before = conf.read_text()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "gres-test", folder], check=True)
        try:
            for number in range(8):
                os.mknod(f"{folder}/nvidia{number}", 0o666 | 0o020000, os.makedev(1, 3))
            said = apply(plain, "--force", device_dir=folder)
        finally:
            subprocess.run(["umount", folder], check=True)
    assert said.returncode == 1, said.words()
    assert "Slurm does not take the new gres.conf" in said.stderr
    assert conf.read_text() == before
    plain.restart(timeout_s=120)
    for node in plain.nodes:
        plain.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
    settled(plain)


@pytest.mark.parametrize(
    ("section", "code", "words"),
    [
        ("topology: {gres: report_only}", 2, "topology.gres is report_only"),
        ("site: {type: parallelcluster}", 3, "takes no Gres of yours"),
        ("site: {type: pcs}", 3, "give what is printed above to the compute node groups"),
        ("site: {type: hyperpod}", 3, "lifecycle scripts"),
    ],
)
def test_where_it_writes_nothing(plain: Lab, conf: Path, section: str, code: int, words: str) -> None:
    before = conf.read_text()
    settings = plain.path("etc/fmslurm/other.yaml")
    nodes = plain.path("nodes.csv")
    slurm = f"slurm_conf: {plain.path('etc/slurm/slurm.conf')}"
    text = section.replace("site: {", f"site: {{{slurm}, ") if "site" in section else f"{section}\nsite: {{{slurm}}}"
    settings.write_text(text + "\n")
    argv = ["env", f"FMSLURM_CONFIG={settings}", FMSLURM, "gres", "apply", "--force", "--nodes", str(nodes)]
    said = plain.run([*argv, "--type", "p5.48xlarge", "--device-dir", str(plain.path("dev"))])
    assert said.returncode == code, said.words()
    assert words in said.stderr
    assert "48-95" in said.stdout  # what would be right is said all the same
    assert conf.read_text() == before


def test_slurmctld_takes_the_lines_of_cloud_nodes() -> None:
    """They are powered down: slurmctld alone reads what they have."""
    names = [name for name in sorted(CATALOGUE) if CATALOGUE[name].gpus]
    offers = {f"c{number}": Offer(CATALOGUE[name]) for number, name in enumerate(names)}
    more = "\n".join(
        (
            "GresTypes=gpu",
            "PrivateData=cloud",
            "SuspendProgram=/bin/true",
            "ResumeProgram=/bin/true",
            "SuspendTime=600",
            "ResumeTimeout=600",
        )
    )
    with tempfile.TemporaryDirectory(prefix="fmctl-", dir="/var/tmp") as folder, BareController(Path(folder)) as bare:
        lines = node_lines(offers, state="CLOUD").replace("GresTypes=gpu\n", "")
        bare.write({"gres.conf": gres_conf(offers)}, "other", more=f"{more}\n{lines}")
        with bare.running() as up:
            assert up, bare.said()
            said = bare.ask("scontrol", "--oneliner", "show", "node")
        log = bare.said()
    for number, name in enumerate(names):
        row = CATALOGUE[name]
        assert re.search(rf"NodeName=c{number} .*?Gres=gpu:{row.gpu_type}:{row.gpus}(\(S:[0-9,-]+\))?\s", said), said
    assert not re.search(r"(error|fatal):.*(gres|gpu|Cores|socket)", log, re.IGNORECASE), log


def test_a_full_disk_and_a_dead_slurmctld_change_nothing(plain: Lab, conf: Path) -> None:
    before = conf.read_text()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=755", "gres-test", folder], check=True)
        try:
            small = Path(folder)
            for path in conf.parent.glob("*.conf"):
                (small / path.name).write_bytes(path.read_bytes())
            with contextlib.suppress(OSError), open(small / "rest", "wb") as rest:
                while True:
                    rest.write(b"x" * 512)
                    rest.flush()
            # The folder of Slurm's files is the full one, for this command alone.
            script = f"mount --bind {folder} {conf.parent} && exec {FMSLURM} gres apply --force --device-dir {plain.path('dev')}"
            said = plain.run(["unshare", "--mount", "sh", "-c", script], timeout_s=120)
            kept = (small / "gres.conf").read_text()
        finally:
            subprocess.run(["umount", folder], check=True)
    assert said.returncode == 3, said.words()
    assert "No space left on device" in said.stderr
    assert kept == before
    settings = plain.path("etc/slurm/slurm.conf").read_text()
    gone = plain.path("etc/slurm/gone.conf")
    gone.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", settings))
    try:
        own = plain.path("etc/fmslurm/gone.yaml")
        own.write_text(f"site: {{slurm_conf: {gone}}}\ntopology: {{gres: write}}\n")
        nodes = str(plain.path("nodes.csv"))
        argv = ["env", f"FMSLURM_CONFIG={own}", f"SLURM_CONF={gone}", FMSLURM, "gres", "apply", "--nodes", nodes]
        said = plain.run([*argv, "--type", "p5.48xlarge", "--device-dir", str(plain.path("dev"))], timeout_s=120)
    finally:
        gone.unlink()
    assert said.returncode == 3, said.words()
    assert "scontrol" in said.stderr
    assert conf.read_text() == before

"""Faults that checks of other projects were seen to pass, or healthy nodes that they failed: this gate tells each right.

Each row is of one such case, by name, with input of that kind; all but a few are judged by the whole live gate on a simulated
node. What was seen where stands in the name: gcm, azure-nhc, healthagent, deepops, soperator, awsome, parallelcluster, oci,
gcp and nvidia-hv are public projects, read at the dates in docs/guide/gate-compared.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.gate import dcgm_diag, kernel_rules, prove_host, service_rules
from slurm_ext.gate.model import KernelLine
from slurm_ext.gate.probes import EPILOG, HEALTH, PROLOG
from slurm_ext.gate.prove_bench import ANSWERS, KERNEL_LOG, Bench
from slurm_ext.lab import hardware
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

ROOT = Path(__file__).parents[2]
COUNTERS = "clocks_event_reasons_counters__"
REMAPPED = "remapped_rows__uncorrectable"
GPU_TYPES = sorted(name for name, row in catalogue.CATALOGUE.items() if row.gpus > 1)


def build(root: Path, row: InstanceType, mounts: Mapping[str, str]) -> None:
    hardware.build_root(root, row, "n0", "i-0peers", mounts)


def says(script: str) -> Callable[[Bench], None]:
    return lambda bench: bench.instead(script)


def gpu(number: int, **fields: str) -> Callable[[Bench], None]:
    return lambda bench: bench.gpu(number, **fields)


def kernel(*texts: str) -> Callable[[Bench], None]:
    return lambda bench: bench.kernel(*texts)


def all_gpus(**fields: str) -> Callable[[Bench], None]:
    def apply(bench: Bench) -> None:
        for number in range(bench.row.gpus):
            bench.gpu(number, **fields)

    return apply


def link_of_the_last_gpu(bench: Bench) -> None:
    text = (bench.root / ANSWERS / "nvlink-e").read_text()
    front, zero, back = text.rpartition("Link 17: CRC Errors: 0")
    assert zero
    bench.write(f"{ANSWERS}/nvlink-e", f"{front}Link 17: CRC Errors: 9{back}")


def held_down(bench: Bench) -> None:
    """Let a GPU be held down for most of a job of a quarter of an hour."""
    bench.baseline["gpu"]["at_s"] -= 900.0
    bench.gpu(1, **{f"{COUNTERS}hw_thermal_slowdown": "800000000 us"})


def hangs(bench: Bench) -> None:
    bench.set("gate", deadline_s=1.0)
    bench.deadline_s = 1.0
    bench.instead("exec sleep 60\n")


def an_answer_without_the_new_fields(bench: Bench) -> None:
    """An older driver refuses a field, and a check that asks for all at once then sees nothing at all."""
    bench.gpu(3, ecc__errors__uncorrected__volatile__total="4")
    table = [line.split(", ") for line in (bench.root / ANSWERS / "table").read_text().splitlines()]
    gone = table[0].index("gpu_recovery_action")
    bench.write(f"{ANSWERS}/old", "".join(", ".join(row[:gone] + row[gone + 1 :]) + "\n" for row in table))
    script = [
        "#!/bin/sh",
        'case "$*" in',
        """*gpu_recovery_action*) echo 'Field "gpu_recovery_action" is not a valid field to query.'; exit 2 ;;""",
        f'*--query-gpu*) exec cat "{bench.root / ANSWERS}/old" ;;',
        "esac",
    ]
    bench.write("usr/bin/nvidia-smi", "\n".join(script) + "\n", 0o755)


def type_of_tomorrow(bench: Bench) -> None:
    bench.write("sys/class/dmi/id/product_name", "p9.48xlarge\n")


class Case(NamedTuple):
    """One fault of a peer: `found` is what must be found (verdict, id, target; empty: any), or None: nothing but notes."""

    name: str
    apply: Callable[[Bench], None]
    found: tuple[str, str, str] | None
    phase: str = HEALTH


_COMMUNICATE = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is"
_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"

CASES: tuple[Case, ...] = (
    # A dead driver, and nvidia-smi's exit code that nobody looked at.
    Case(
        "parallelcluster-dead-driver",
        says(f'echo "{_COMMUNICATE}"; exit 9\n'),
        (FAIL, "gpu.driver-not-loaded", "node"),
        PROLOG,
    ),
    Case("parallelcluster-library-mismatch", says(f"echo '{_MISMATCH}'; exit 18\n"), (FAIL, "gpu.driver-mismatch", "node")),
    Case("parallelcluster-fails-without-words", says("exit 255\n"), (UNKNOWN, "gpu.smi-", "node"), PROLOG),
    Case("parallelcluster-says-nothing-and-ends-well", says("exit 0\n"), (UNKNOWN, "gpu.", "node"), PROLOG),
    Case("az-hop-no-tool", lambda bench: bench.remove("usr/bin/nvidia-smi"), (UNKNOWN, "gpu.smi-absent", "node"), PROLOG),
    Case("oci-timed-out-query-is-dropped", hangs, (UNKNOWN, "gpu.smi-timeout", "node"), PROLOG),
    Case("gcm-no-devices-found", says("echo 'No devices were found'; exit 6\n"), (FAIL, "gpu.missing", "node")),
    Case("older-driver-refuses-a-field", an_answer_without_the_new_fields, (FAIL, "gpu.ecc-uncorrected", "gpu:3")),
    # Words where a number was expected, and the wrong column.
    *(
        Case(f"azure-nhc-remap-pending-{word}", gpu(2, remapped_rows__pending=word), (WARN, "gpu.row-remap-pending", "gpu:2"))
        for word in ("Yes", "1")
    ),
    *(
        Case(f"azure-nhc-remap-failure-{word}", gpu(2, remapped_rows__failure=word), (FAIL, "gpu.row-remap-failure", "gpu:2"))
        for word in ("Yes", "1")
    ),
    Case(
        "azure-nhc-512-rows",
        gpu(2, remapped_rows__failure="Yes", **{REMAPPED: "512"}),
        (FAIL, "gpu.row-remap-failure", "gpu:2"),
    ),
    Case("oci-some-rows-are-remapped", gpu(2, **{REMAPPED: "3"}), None),
    Case("oci-remap-failure-is-told", gpu(0, remapped_rows__failure="Yes"), (FAIL, "gpu.row-remap-failure", "gpu:0")),
    *(
        Case(
            f"gcp-ecc-of-gpu-{number}",
            gpu(number, ecc__errors__uncorrected__volatile__total="1"),
            (FAIL, "gpu.ecc-uncorrected", f"gpu:{number}"),
            PROLOG,
        )
        for number in (0, 4, 7)
    ),
    Case("gcp-nvlink-of-the-last-gpu", link_of_the_last_gpu, (WARN, "gpu.nvlink-errors", "gpu:7")),
    Case(
        "awsome-retired-pages-are-na",
        all_gpus(remapped_rows__pending="No", remapped_rows__failure="No"),
        None,
    ),
    Case("healthagent-a-moment-of-hw-slowdown", gpu(1, **{f"{COUNTERS}hw_thermal_slowdown": "900 us"}), None, EPILOG),
    Case("healthagent-hw-slowdown-that-lasts", held_down, (FAIL, "gpu.hw-thermal", "gpu:1"), EPILOG),
    # The kernel's log.
    Case(
        "deepops-the-digits-94-in-a-line",
        kernel("NVRM: Xid (PCI:0000:94:00): 79, pid=1940, name=python3, GPU has fallen off the bus."),
        (FAIL, "gpu.xid-79", "gpu@0000:94:00"),
        PROLOG,
    ),
    Case(
        "gcm-xid-109-is-no-trifle",
        kernel("NVRM: Xid (PCI:0000:53:00): 109, pid=4242, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT"),
        (FAIL, "gpu.xid-109", "gpu@0000:53:00"),
        PROLOG,
    ),
    *(
        Case(
            f"a-users-own-xid-{code}-is-no-fault-of-the-node",
            kernel(f"NVRM: Xid (PCI:0000:53:00): {code}, pid=4242, name=python3, Ch 00000008"),
            None,
            PROLOG,
        )
        for code in (13, 31, 43)
    ),
    *(
        Case(
            f"azure-nhc-misses-xid-{code}",
            kernel(f"NVRM: Xid (PCI:0000:53:00): {code}, pid='<unknown>', name=<unknown>, Ch 00000008"),
            (FAIL, f"gpu.xid-{code}", "gpu@0000:53:00"),
            PROLOG,
        )
        for code in (64, 95, 119, 120, 140)
    ),
    # What the node should have, where a table has no row or one row alone.
    Case("awsome-unknown-type-skips-the-counts", type_of_tomorrow, (WARN, "node.type-unknown", "node"), PROLOG),
    # Mounts and services.
    Case(
        "deepops-mount-check-that-only-prints",
        lambda bench: bench.write("proc/self/mounts", "/dev/nvme0n1p1 / xfs rw,relatime 0 0\n"),
        (FAIL, "fs.not-mounted", ""),
        PROLOG,
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("peers"), build)
    made.begin()
    return made


def looked(bench: Bench, case: Case) -> list[tuple[str, str, str]]:
    try:
        case.apply(bench)
        return [(item.verdict, item.finding.id, item.finding.target) for item in bench.look(case.phase).items]
    finally:
        bench.undo()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_that_others_pass_or_a_node_that_they_fail(bench: Bench, case: Case) -> None:
    found = looked(bench, case)
    if case.found is None:
        assert [one for one in found if one[0] != PASS] == []
        return
    verdict, id_, target = case.found
    assert [one for one in found if one[0] == verdict and one[1].startswith(id_) and target in ("", one[2])], found


@pytest.mark.parametrize("type_", GPU_TYPES)
def test_nvidia_hv_counts_gpus_of_one_machine_only(tmp_path: Path, type_: str) -> None:
    made = Bench(tmp_path, build, type_)
    made.without_gpu(made.row.gpus - 1)
    found = [(item.verdict, item.finding.id) for item in made.look(PROLOG).items if item.finding.id == "gpu.missing"]
    assert found == [(FAIL, "gpu.missing")]


@pytest.mark.parametrize("type_", [name for name in GPU_TYPES if catalogue.CATALOGUE[name].nvlink_domain_gpus > 1])
def test_parallelcluster_knows_one_kind_of_nvswitch(tmp_path: Path, type_: str) -> None:
    made = Bench(tmp_path, build, type_)
    prove_host._stopped(made)
    found = {item.finding.id: item.verdict for item in made.look(HEALTH).items}
    expected = FAIL if catalogue.host(type_) is not None and _has_switches(type_) else None
    assert found.get("service.fabricmanager-down") == expected


def _has_switches(type_: str) -> bool:
    unit = "Id=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\n"
    return any(item.verdict == FAIL for item in service_rules.judge(service_rules.parse(unit) or [], type_))


def test_awsome_and_gcm_read_a_log_without_an_end() -> None:
    """An Xid of an earlier boot, or of before the driver was loaded anew, fails the node until somebody empties the log."""
    xid = "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    earlier = KernelLine(xid, 100.0, since_boot=True, boot_id="a" * 32)
    assert [item.verdict for item in kernel_rules.judge([earlier], boot_id="b" * 32) if item.verdict == FAIL] == []
    assert [item.verdict for item in kernel_rules.judge([earlier], boot_id="a" * 32)] == [FAIL]


def test_awsome_reads_the_last_4000_lines(bench: Bench) -> None:
    """What was said before the last four thousand lines was said all the same."""
    stamp = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
    xid = "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    lines = ["6,0,0,-;Linux version 6.8.0", f"3,1,{stamp},-;{xid}"]
    lines += [f"6,{number},{stamp + number},-;audit: nothing of note {number}" for number in range(2, 6000)]
    try:
        bench.write(KERNEL_LOG, "\n".join(lines) + "\n")
        found = {item.finding.id: item.verdict for item in bench.look(PROLOG).items}
    finally:
        bench.undo()
    assert found["gpu.xid-79"] == FAIL


def _diag(name: str, status: str, **more: object) -> list[tuple[str, str]]:
    row = {"entity_group": "GPU", "entity_id": 0, "status": status, **more}
    data = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": name, "results": [row]}]}]}}
    return [(item.verdict, item.finding.id) for item in dcgm_diag.judge(dcgm_diag.parse(json.dumps(data)))]


def test_gcp_takes_any_line_with_fail_in_it_for_a_failure() -> None:
    assert _diag("failover", "Pass", info=["0 failures, no test failed"]) == []
    failed = {"warning": "GPU 0 has fallen off the bus", "error_id": 120, "error_category": 1, "error_severity": 2}
    assert _diag("memory", "Fail", warnings=[failed]) == [(FAIL, "dcgm.memory")]


def test_dcgm_passes_though_it_could_not_allocate_its_memory() -> None:
    said = {
        "warning": "Couldn't allocate at least 75% of GPU memory",
        "error_id": 56,
        "error_category": 1,
        "error_severity": 4,
    }
    assert _diag("memory", "Pass", warnings=[said]) == [(UNKNOWN, "dcgm.not-tested")]


def test_parallelcluster_stops_what_it_started() -> None:
    """No look starts, stops or restarts a service: what a node runs between jobs is the node's."""
    verbs = ("start", "stop", "restart", "enable", "disable", "mask")
    found = []
    for path in sorted((ROOT / "slurm_ext").glob("gate/*.py")) + sorted((ROOT / "slurm_ext").glob("hooks/*.py")):
        if path.name.startswith("meanings"):
            continue
        text = path.read_text()
        found += [f"{path.name}: {verb}" for verb in verbs if f'"systemctl", "{verb}"' in text]
    assert found == []


def test_soperator_prints_for_the_job_from_a_prolog(tmp_path: Path) -> None:
    """Slurm reads `print` lines of a task prolog alone, so a prolog prints nothing."""
    argv = [sys.executable, "-IS", str(ROOT / "bin/fmslurm-hook"), "prolog", "--share", str(tmp_path / "none")]
    env = {"SLURM_JOB_ID": "77", "SLURM_JOB_UID": "61001", "SLURMD_NODENAME": "n0", "SLURM_NODELIST": "n0"}
    done = subprocess.run(
        [*argv, "--local", str(tmp_path / "state")], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)

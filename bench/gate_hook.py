"""What the prolog costs where all is well: all quick checks on a simulated p5.48xlarge (8 GPUs, 32 EFA devices), no Slurm.

`hook_over_bare_python`: CPU (user and system) of one passing prolog hook with its burn-in client, all it waits for included
(nvidia-smi, the probes' children, the start of the agent; the agent and its workers run by themselves), by that of
`python3 -I -c pass` of the same interpreter, in turns. `hook_wall_over_bare_python`: by the clock, without a burn-in, which
waits for its workers.
`hook_over_nhc`: the clock's time of that hook without a burn-in, by that of LBNL NHC with the twelve of these checks that it
has, in turns. Both ask the same nvidia-smi. NHC reads /proc itself, where it is shown the processors and the memory of a
p5.48xlarge (a bind mount in a namespace of their own); its processes and file systems are this machine's, which are fewer.
`hook_over_nhc_small`: the same with this machine's own processors. NHC is not shipped: `git clone
https://github.com/mej/nhc`, and name the folder in FMSLURM_NHC.
`peak_mb`: the largest resident set that any process of the hook had.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hook_cost import PYTHON, Cost, cost, hook

from slurm_ext import events
from slurm_ext.aws import catalogue
from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings
from slurm_ext.gate import checks, probes
from slurm_ext.lab import hardware, standins

TYPE, GPUS = "p5.48xlarge", "0-7"

#: Run by itself, so that the peak is the hook's own and not that of the bench it is a fork of.
_PEAK = (
    "import os, resource, sys; pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ);"
    "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
)


def figures(full: bool) -> dict[str, float]:
    """Measure, print what was measured, and return the figures; what this machine cannot do is left out, with the reason."""
    if os.geteuid() != 0:
        print("prolog hook: skipped, it needs root")
        return {}
    with tempfile.TemporaryDirectory(prefix="fmgate-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        libraries = folder / "lib"
        standins.build(str(libraries / "lib"), str(libraries / "bin"))
        (folder / "alone").mkdir()
        (folder / "tested").mkdir()
        _site(folder / "alone", libraries, burnin="off")
        _site(folder / "tested", libraries, burnin="enforce")
        repeats = 40 if full else 15
        found = _against_python(folder, repeats)
        found |= _against_nhc(folder, repeats)
        found["peak_mb"] = round(max(_peak_mb(folder / name) for name in ("alone", "tested")), 1)
    found["checks"] = float(len(checks.every()))
    found["checks_in_prolog"] = float(sum(probes.PROLOG in check.phases for check in checks.every()))
    return found


def _site(folder: Path, libraries: Path, *, burnin: str) -> None:
    """Make a node of a p5.48xlarge, and a pushed configuration; with a burn-in it is alone in its jobs and tested each time."""
    for name in ("share", "state", "run", "log", "root/usr/bin", "scratch"):
        (folder / name).mkdir(parents=True)
    row = catalogue.find(TYPE)
    assert row is not None
    hardware.build_root(folder / "root", row, "n0", "i-0123456789abcdef0", {str(folder / "scratch"): "xfs"})
    os.link(libraries / "bin/nvidia-smi", folder / "root/usr/bin/nvidia-smi")
    plain = Settings()
    places = {"share": "share", "state_dir": "state", "run_dir": "run", "log_dir": "log", "root": "root"}
    settings = plain._replace(
        site=plain.site._replace(**{key: str(folder / name) for key, name in places.items()}),
        mode=plain.mode._replace(gate="enforce", burnin=burnin),
        gate=plain.gate._replace(nvme_dirs=(str(folder / "scratch"),)),
        burnin=plain.burnin._replace(
            min_nodes=1,
            reuse_pass_h=0.0,
            message_bytes=1 << 20,
            iterations=3,
            sustain_s=0.1,
            transport="socket",
            floor_busbw_gbs=0.0001,
            nccl_library=str(libraries / "lib/libnccl.so.2"),
            cuda_library=str(libraries / "lib/libcuda.so.1"),
        ),
    )
    snapshot.push(settings, str(folder / "share"))


def _in_turns(programs: Mapping[str, tuple[Sequence[str], Mapping[str, str]]], repeats: int) -> dict[str, Cost]:
    """Run programs one after the other, again and again; return the median of each, the first round left out."""
    found: dict[str, list[Cost]] = {name: [] for name in programs}
    for _ in range(repeats + 1):
        for name, (argv, env) in programs.items():
            found[name].append(cost(argv, env))
    return {
        name: Cost(*(statistics.median(column) for column in zip(*costs[1:], strict=True)))
        for name, costs in found.items()
    }


def _against_python(folder: Path, repeats: int) -> dict[str, float]:
    bare: tuple[Sequence[str], Mapping[str, str]] = ([PYTHON, "-I", "-c", "pass"], {})
    took = _in_turns(
        {"bare": bare, "alone": hook(folder / "alone", GPUS), "tested": hook(folder / "tested", GPUS)}, repeats
    )
    _check_passed(folder / "alone", ranks=None)
    _check_passed(folder / "tested", ranks=8)
    for name, words in (("bare", "python3 -I -c pass"), ("alone", "prolog"), ("tested", "prolog with burn-in client")):
        print(f"{words:28} CPU {took[name].cpu_s * 1e3:6.1f} ms, wall {took[name].wall_s * 1e3:6.1f} ms")
    return {
        "hook_over_bare_python": round(took["tested"].cpu_s / took["bare"].cpu_s, 2),
        "hook_alone_over_bare_python": round(took["alone"].cpu_s / took["bare"].cpu_s, 2),
        "hook_wall_over_bare_python": round(took["alone"].wall_s / took["bare"].wall_s, 2),
    }


def _check_passed(folder: Path, *, ranks: int | None) -> None:
    """What is measured must be a prolog that passed with nothing to tell, and with its burn-in where it has one."""
    last = events.from_line((folder / "log/events.jsonl").read_text().splitlines()[-1])
    data: Any = last.data if last is not None else {}
    found = [finding["id"] for finding in data.get("gate", {}).get("findings", [])]
    if last is None or last.decision != "pass" or found or data.get("burnin", {}).get("ranks") != ranks:
        raise SystemExit(f"the hook did not just pass: {last}")


#: What NHC 1.4 has of these checks: CPUs, memory, root writable, scratch space, its inodes, writable, /dev/shm, number of
#: GPUs, their ECC and remap state, Xid lines, processes of nobody's job, machine checks.
_NHC_CHECKS = """* || check_hw_cpuinfo
* || check_hw_physmem 1024 2147483648
* || check_fs_mount_rw -f /
* || check_fs_free {scratch} 1%
* || check_fs_ifree {scratch} 1%
* || check_file_test -d -w -x {scratch}
* || check_fs_mount_rw -t tmpfs -f /dev/shm
* || check_cmd_output -m '/GPU 7:/' {smi} -L
* || check_cmd_output -m '/^7, 0, (No|0), (No|0)$/' {smi} --query-gpu={fields} --format=csv,noheader
* || check_cmd_dmesg '!/NVRM: Xid/'
* || check_ps_unauth_users log
* || check_hw_mcelog
"""
_FIELDS = "index,ecc.errors.uncorrected.volatile.total,remapped_rows.pending,remapped_rows.failure"


def _against_nhc(folder: Path, repeats: int) -> dict[str, float]:
    source = os.environ.get("FMSLURM_NHC", "")
    if not os.path.isfile(os.path.join(source, "nhc")):
        print("against NHC: skipped, FMSLURM_NHC names no checkout of https://github.com/mej/nhc")
        return {}
    row = catalogue.find(TYPE)
    assert row is not None
    shown = {"cpuinfo": _cpuinfo(row), "meminfo": (folder / "alone/root/proc/meminfo").read_text()}
    binds = []
    for name, text in shown.items():
        (folder / name).write_text(text)
        binds.append(f"mount --bind {shlex.quote(str(folder / name))} /proc/{name}")
    again = [sys.executable, __file__, "--nhc", str(folder), str(repeats)]
    inside = " && ".join([*binds, f"exec {shlex.join(again)}"])
    found = {}
    for name, argv in (("", ["unshare", "--mount", "sh", "-c", inside]), ("_small", again)):
        told = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
        if told.returncode:
            raise SystemExit(f"against NHC: {told.stdout[-400:]}{told.stderr[-400:]}")
        costs = {key: Cost(*value) for key, value in json.loads(told.stdout.splitlines()[-1]).items()}
        for key, took in costs.items():
            print(
                f"{key + (name and ', small machine'):28} CPU {took.cpu_s * 1e3:6.1f} ms, wall {took.wall_s * 1e3:6.1f} ms"
            )
        found[f"hook_over_nhc{name}"] = round(costs["hook"].wall_s / costs["nhc"].wall_s, 2)
        found[f"hook_cpu_over_nhc{name}"] = round(costs["hook"].cpu_s / costs["nhc"].cpu_s, 2)
    return found


def _nhc_turns(folder: Path, repeats: int) -> dict[str, Cost]:
    """Time hook and NHC in turns, in the namespace of whoever calls."""
    source = os.environ["FMSLURM_NHC"]
    ours = hook(folder / "alone", GPUS)
    smi = folder / "alone/root/usr/bin/nvidia-smi"
    conf = folder / "nhc.conf"
    conf.write_text(_NHC_CHECKS.format(scratch=folder / "alone/scratch", smi=smi, fields=_FIELDS))
    words = ["MARK_OFFLINE=0", f"INCDIR={source}/scripts", "NHC_RM=none"]
    peer = ["/bin/bash", f"{source}/nhc", "-D", str(folder), "-c", str(conf), "-l", "-", *words]
    peer_env = {**ours[1], "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    _check_nhc(peer, peer_env)
    return _in_turns({"nhc": (peer, peer_env), "hook": ours}, repeats)


def _cpuinfo(row: catalogue.InstanceType) -> str:
    """Return /proc/cpuinfo of a type, with the lines of its kind of processor; the flags are as many as it has."""
    flags = " ".join(f"flag{number}" for number in range(120))
    blocks = []
    for number in range(row.vcpus):
        core = number % (row.sockets * row.cores_per_socket)
        facts = {
            "processor": number,
            "vendor_id": "AuthenticAMD",
            "cpu family": 25,
            "model": 1,
            "model name": "AMD EPYC 7R13 Processor",
            "stepping": 1,
            "microcode": "0xa0011d1",
            "cpu MHz": "2650.000",
            "cache size": "512 KB",
            "physical id": core // row.cores_per_socket,
            "siblings": row.cores_per_socket * row.threads_per_core,
            "core id": core % row.cores_per_socket,
            "cpu cores": row.cores_per_socket,
            "apicid": number,
            "initial apicid": number,
            "fpu": "yes",
            "fpu_exception": "yes",
            "cpuid level": 16,
            "wp": "yes",
            "flags": flags,
            "bugs": "sysret_ss_attrs null_seg spectre_v1 spectre_v2 spec_store_bypass srso",
            "bogomips": "5300.00",
            "TLB size": "2560 4K pages",
            "clflush size": 64,
            "cache_alignment": 64,
            "address sizes": "48 bits physical, 48 bits virtual",
            "power management": "",
        }
        blocks.append("".join(f"{name:16}: {value}\n" for name, value in facts.items()))
    return "\n".join(blocks) + "\n"


def _check_nhc(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """What is compared must run all its twelve checks, and pass them."""
    said = subprocess.run([*argv, "VERBOSE=1"], env=dict(env), capture_output=True, text=True, check=False, timeout=60)
    ran = said.stdout.count("Running check:")
    if said.returncode or ran != _NHC_CHECKS.count("||"):
        raise SystemExit(
            f"NHC ran {ran} checks and ended with {said.returncode}: {said.stdout[-400:]}{said.stderr[-400:]}"
        )


def _peak_mb(folder: Path) -> float:
    """Return the largest resident set (MB) of a hook or of anything that it waited for."""
    argv, env = hook(folder, GPUS)
    told = subprocess.run(
        [PYTHON, "-IS", "-c", _PEAK, *argv], env=dict(env), capture_output=True, check=True, timeout=60
    )
    return int(told.stdout.split()[-1]) * 1024 / 1e6


def main() -> None:
    """Print the figures of this file alone; `--nhc FOLDER REPEATS`: what the runs beside NHC took."""
    if sys.argv[1:2] == ["--nhc"]:
        print(json.dumps(_nhc_turns(Path(sys.argv[2]), int(sys.argv[3]))))
        return
    print(json.dumps({"bench": "gate_hook", "figures": figures("--full" in sys.argv)}))


if __name__ == "__main__":
    main()

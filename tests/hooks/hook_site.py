"""One node and a share in a folder, and the hooks started there as slurmd starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings
from slurm_ext.lab import stale_mount

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "bin/fmslurm-hook"
SMI = """#!/bin/sh
cat <<'X'
index, pci.bus_id, persistence_mode, ecc.errors.uncorrected.volatile.total, gpu_recovery_action
0, 00000000:53:00.0, Enabled, 0, None
X
"""


#: Run in a mount namespace of its own: a share that never answers, then the hook; 99 where FUSE is not to be had.
_SILENT = """share=$1 server=$2 python=$3; shift 3
"$python" -I "$server" "$share" hang & server=$!
until grep -q " $share fuse" /proc/mounts; do kill -0 $server 2>/dev/null || exit 99; sleep 0.05; done
"$@"; code=$?
kill $server
exit $code
"""


def silent(share: Path) -> list[str]:
    """Return the words before a hook's command line that let it meet a share which never answers."""
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", _SILENT, "sh"]
    return [*words, str(share), stale_mount.__file__, sys.executable]


class Site:
    """One node and a share in a folder, with a pushed configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        for name in ("share", "state", "run", "log", "root/usr/bin", "root/var/log"):
            (folder / name).mkdir(parents=True)
        self.smi(SMI)
        (folder / "share/ledger").mkdir(mode=0o755, parents=True, exist_ok=True)
        (folder / "root/var/log/kmsg.log").write_text("6,0,0,-;Linux version 6.8.0\n")
        (folder / "root/etc/slurm").mkdir(parents=True)
        (folder / "root/etc/slurm/slurm.conf").write_text(
            "ClusterName=c\n"
        )  # Slurm hands out no GPUs: each job has all
        plain = Settings()
        self.settings = plain._replace(
            site=plain.site._replace(
                share=str(folder / "share"),
                state_dir=str(folder / "state"),
                run_dir=str(folder / "run"),
                log_dir=str(folder / "log"),
                root=str(folder / "root"),
                slurm_bin=str(folder / "no-slurm"),
            ),
            mode=plain.mode._replace(gate="warn"),
            gate=plain.gate._replace(deadline_s=30.0),
        )
        self.push(self.settings)

    def push(self, settings: Settings) -> None:
        self.settings = settings
        snapshot.push(settings, str(self.folder / "share"))

    def smi(self, text: str) -> None:
        path = self.folder / "root/usr/bin/nvidia-smi"
        path.write_text(text)
        path.chmod(0o755)

    def mode(self, **modes: str) -> None:
        self.push(self.settings._replace(mode=self.settings.mode._replace(**modes)))

    def environ(self, **more: str) -> dict[str, str]:
        return {
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_UID": "0",
            "SLURM_JOB_GID": "0",
            "SLURM_CLUSTER_NAME": "c",
            "SLURMD_NODENAME": "n0",
            "SLURM_NODELIST": "n0",
            "SLURM_JOB_RESTART_COUNT": "0",
            "SLURM_JOB_COMMENT": "hello fm:1;r=",
            "SLURM_JOB_STDOUT": "/x",
            **more,
        }

    def start(
        self, kind: str, *, share: str = "", local: str = "", under: Sequence[str] = (), **more: str
    ) -> subprocess.Popen[str]:
        argv = [*under, sys.executable, "-IS", str(HOOK), kind, "--share", share or str(self.folder / "share")]
        argv += ["--local", local or str(self.folder / "state")]
        env = self.environ(**more)
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, kind: str, *, timeout: float = 180.0, **more: str) -> tuple[int, str, str]:
        child = self.start(kind, **more)
        out, err = child.communicate(timeout=timeout)
        return child.returncode, out, err

    def events(self) -> list[dict[str, object]]:
        path = self.folder / "log/events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def job_file(self, job_id: str = "77") -> dict[str, object]:
        return json.loads((self.folder / f"run/jobs/{job_id}.json").read_text())

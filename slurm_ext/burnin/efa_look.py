"""What one node can show of the transport: its workers' NCCL logs, and EFA's byte counters before and after."""

from __future__ import annotations

import glob
import os

from slurm_ext.burnin.nccl_log import Log, Process, parse
from slurm_ext.burnin.transport import facts_to_json
from slurm_ext.command import call_bounded

#: A log of INIT, NET and ENV lines is below 100 KB; a runaway is cut.
LOG_MAX_BYTES = 8 << 20
COUNTERS_S = 2.0


class EfaLook:
    """Takes the counters when made, and their growth with `facts`."""

    def __init__(self, log_folder: str, root: str) -> None:
        self._folder = log_folder
        self._pattern = os.path.join(glob.escape(root), "sys/class/infiniband/*/ports/1/hw_counters/tx_bytes")
        self._before = self._read()

    def _read(self) -> int | None:
        """Return the sum of bytes sent over all EFA devices; None where there are none, or they do not answer."""

        def total() -> bytes:
            paths = glob.glob(self._pattern)
            sums = 0
            for path in paths:
                with open(path, encoding="ascii") as stream:
                    sums += int(stream.read())
            return str(sums).encode() if paths else b""

        answer = call_bounded(total, timeout_s=COUNTERS_S)
        return int(answer) if answer else None

    def facts(self) -> dict[str, object]:
        """Return the facts of this node as plain data."""
        after = self._read()
        moved = after - self._before if after is not None and self._before is not None else None
        processes: list[Process] = []
        versions: list[str] = []
        for path in sorted(glob.glob(os.path.join(glob.escape(self._folder), "nccl.*"))):
            with open(path, encoding="utf-8", errors="replace") as stream:
                log = parse(stream.read(LOG_MAX_BYTES).splitlines())
            processes += log.processes
            versions += log.versions
        return facts_to_json(Log(tuple(processes), tuple(dict.fromkeys(versions))), moved)

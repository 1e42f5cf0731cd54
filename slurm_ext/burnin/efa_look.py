"""What one node can show of the transport: its workers' NCCL logs, EFA's counters before and after, clocks under load."""

from __future__ import annotations

import glob
import json
import os
from typing import Any

from slurm_ext.burnin import mixed, mnnvl
from slurm_ext.burnin.clocks import Sampler
from slurm_ext.burnin.nccl_log import Log, Process, parse_text
from slurm_ext.burnin.transport import facts_to_json
from slurm_ext.command import call_bounded, smi_path
from slurm_ext.errors import UntrustedFileError
from slurm_ext.files import open_regular

#: A log of INIT, NET and ENV lines is below 100 KB; a runaway is cut.
LOG_MAX_BYTES = 8 << 20
COUNTERS_S = 2.0

#: Devices that retransmitted most are named, so many of them.
_NAMED = 4

#: Bytes sent, and packets that were sent again (drivers from 2.17.0 on Nitro v4 and later have the second).
_COUNTERS = ("tx_bytes", "retrans_pkts")

_Counts = dict[str, dict[str, int]]


class EfaLook:
    """Takes the counters when made, and their growth with `facts`. One that samples clocks must be closed."""

    def __init__(self, log_folder: str, root: str, *, clocks_s: float = 0.0, imex: bool = False) -> None:
        """`clocks_s`: sample clocks, and tell those of the last so many seconds. `imex`: ask for the domain's state, too."""
        self._folder, self._imex, self._clocks_s = log_folder, imex, clocks_s
        self._pattern = os.path.join(glob.escape(root), "sys/class/infiniband/*/ports/1/hw_counters")
        self._sampler = Sampler(log_folder, smi_path(root)) if clocks_s > 0 else None
        self._seen: set[str] = set()
        answer = call_bounded(
            lambda: json.dumps([self._counts(), mixed.installed(root)]).encode(), timeout_s=COUNTERS_S
        )
        told = json.loads(answer) if answer else [None, {}]
        self._before: _Counts | None = told[0] or None
        self._installed: dict[str, str] = told[1]

    def _read(self) -> _Counts | None:
        """Return the counters of each EFA device; None where there are none, or they do not answer."""
        answer = call_bounded(lambda: json.dumps(self._counts()).encode(), timeout_s=COUNTERS_S)
        return json.loads(answer) or None if answer else None

    def _counts(self) -> _Counts:
        found: _Counts = {}
        for folder in glob.glob(self._pattern):
            device = found.setdefault(folder.split("/")[-4], {})
            for name in _COUNTERS:
                try:
                    with open(os.path.join(folder, name), encoding="ascii") as stream:
                        device[name] = int(stream.read())
                except FileNotFoundError:
                    continue
        return found

    def begin(self, *, others: bool) -> None:
        """Count from now on. `others`: workers start anew, so what the logs that are there say is none of theirs."""
        if others:
            self._seen.update(self._logs())
        self._before = self._read()

    def _logs(self) -> list[str]:
        return sorted(glob.glob(os.path.join(glob.escape(self._folder), "nccl.*")))

    def facts(self) -> dict[str, Any]:
        """Return the facts of this node as plain data."""
        after = self._read()
        processes: list[Process] = []
        versions: list[str] = []
        for path in self._logs():
            if path in self._seen:
                continue
            try:
                descriptor = open_regular(path, os.O_RDONLY)
            except (OSError, UntrustedFileError):
                continue  # nothing of NCCL's, and as good as no log
            with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
                log = parse_text(stream.read(LOG_MAX_BYTES))
            processes += log.processes
            versions += log.versions
        grown = _grown(self._before, after, "tx_bytes")
        again = _grown(self._before, after, "retrans_pkts")
        facts = facts_to_json(Log(tuple(processes), tuple(dict.fromkeys(versions))), _sum(grown))
        facts["retransmits"] = _sum(again)
        if again and any(again.values()):
            most = sorted(again.items(), key=lambda item: -item[1])[:_NAMED]
            facts["retransmits_by_device"] = {name: count for name, count in most if count}
        if self._sampler is not None:
            facts["clocks"] = self._sampler.summary(self._clocks_s)
        facts |= self._installed
        if self._imex:
            facts["imex"] = mnnvl.look_at_imex()
        return facts

    def close(self) -> None:
        """Stop to sample."""
        if self._sampler is not None:
            self._sampler.close()


def _grown(before: _Counts | None, after: _Counts | None, name: str) -> dict[str, int] | None:
    """Return by how much each device's counter grew; None where no device has it. A device that is new, or whose driver
    was loaded anew, counts from 0."""
    if after is None or before is None:
        return None
    found = {}
    for device, counts in after.items():
        if name in counts:
            old = before.get(device, {}).get(name, 0)
            found[device] = counts[name] - old if counts[name] >= old else counts[name]
    return found or None


def _sum(counts: dict[str, int] | None) -> int | None:
    return sum(counts.values()) if counts is not None else None

"""The kernel's words that name a job: Xid that came in its time and are a program's own affair. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.gate import xid
from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.smi import pci_address
from slurm_ext.patterns import pattern
from slurm_ext.verdict import PASS

_XID = pattern(r"NVRM: Xid \(([^)]{7,40})\): (\d{1,4})\b", needs="Xid")


def judge(texts: Iterable[str], job_id: str, pcis: frozenset[str] | None = None) -> list[Judged]:
    """Return the Xid among the messages of a job's time that NVIDIA answers with a restart of the program: never a drain.

    `pcis` are the addresses of the job's GPUs (None: all of the node's). The pid in the line was the program's, which is
    gone by now: it is there to read, and proves nothing.
    """
    seen: dict[str, list[str]] = {}
    for text in texts:
        found = _XID.match(text)
        advice = xid.XIDS.get(int(found[2])) if found else None
        if found and pcis is not None and pci_address(found[1]) not in pcis:
            continue
        if found and advice and advice.verdict == PASS and "restart the application" in advice.meaning:
            seen.setdefault(found[2], []).append(text)
    return [
        judged(
            PASS,
            f"job.xid-{code}",
            f"job:{job_id}",
            "none",
            lines[0],
            f"{len(lines)} on gpu@{', gpu@'.join(sorted({pci_address(line) for line in lines})[:8])}: a program's own",
        )
        for code, lines in seen.items()
    ]

"""What lines of a job's log mean: one ordered table, first match per line wins. Checked 2025-11 against the named sources.

Roles: R points at the cause; A is ambiguous, it decides only where nothing better is there; B is teardown or a bystander
and never decides. `spread` says what the hosts that print it change: `node` one host of several means that host is at
fault, all alike the class in the row; `space` asks where the path lies; `here` convicts the host that prints it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_ext.resume.logs import Said
from slurm_ext.resume.signature_row import Signature
from slurm_ext.resume.signatures_machine import HARDWARE, OUTSIDE, TEARDOWN
from slurm_ext.resume.signatures_program import GPU_USE, PROGRAM

#: Teardown first, so that no later row sees its lines; ambiguous rows last.
TABLE: tuple[Signature, ...] = (*TEARDOWN, *HARDWARE, *GPU_USE, *OUTSIDE, *PROGRAM)


class Hit(NamedTuple):
    """A signature that matched a line of the last run; `place` is the line's place."""

    signature: Signature
    said: Said
    place: int


#: Lines that can never be a cause, whatever words are in them.
NOISE = re.compile(
    r"NCCL INFO|CUDA kernel errors might be|For debugging consider|Compile with `?TORCH_USE_CUDA_DSA|FutureWarning|"
    r"DeprecationWarning|UserWarning(?!.*(?:Error 80[0-9]|CUDA initialization))|"
    r"might be caused by insufficient|most recent call first|"
    r"^\s*(?:\[\w+\]:)?\s*frame #|HYDRA_FULL_ERROR|[Rr]etrying in|Retry \d+/\d+|will retry|To enable traceback see"
)

#: Cheap first look: a line without any of these words matches no row.
_WORTH = re.compile(
    r"rror|rrno|xception|ail|ssert|nterrupt|illed|illing|ignal|ault|memory|pace|uota|imeout|imed out|"
    r"oken|redential|denied|Denied|"
    r"NET/|[Nn]ot found|No such|not a |annot|orrupt|runcat|EOF|Zip|header|Header|mismatch|Watchdog|"
    r"eartbeat|enqueued|bort|osed|"
    r"reset|refused|roken|NaN|nan|[Ii]nf\b|inite|match|SlowDown|equest|Unavailable|hrott|unauthor|"
    r"Unauthor|Invalid|exitcode|"
    r"lost|bus|ECC|NVML|CUDA|cuda|GPU|root Cause|[Pp]eer|evict|thread|Gateway|different GPU|"
    r"entire process|DUE TO|return code|ile handle|endpoint"
)


#: Most of a long log is step lines; one that holds none of these words has nothing else to say.
_STEP_LINE = re.compile(r"\b(?:step|iter(?:ation)?|loss)\b")
_BAD = re.compile(r"Error|Exception|[Ff]ail|[Nn]a[Nn]|\b[Ii]nf\b|[Kk]illed|DUE TO|WARN|lost|denied|No space|quota")


def scan(said: Sequence[Said]) -> list[Hit]:
    """Return the first matching row of every line that matches any, in print order."""
    hits: list[Hit] = []
    for index, one in enumerate(said):
        if not _WORTH.search(one.text) or NOISE.search(one.text):
            continue
        if _STEP_LINE.search(one.text) and not _BAD.search(one.text):
            continue
        for signature in TABLE:
            if signature.pattern.search(one.text):
                hits.append(Hit(signature, one, index))
                break
    return hits

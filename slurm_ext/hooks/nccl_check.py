"""Where a job's own NCCL_*, OFI_* and FI_* settings, or /etc/nccl.conf, differ from what its nodes were tested with. Pure.

The burn-in proves the host's stack with an environment of its own; what the job sets instead was proven by nobody. NCCL
reads `NAME=value` lines from /etc/nccl.conf, and the environment goes before them (NVIDIA/nccl docs/userguide env.rst).
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.patterns import pattern

CONF_FILE = "/etc/nccl.conf"

#: Of a configuration file (bytes): more than any real one has.
CONF_MAX_BYTES = 65536

#: So many lines a job's log gets at most, and so much of a value.
LINES_MAX, VALUE_MAX = 8, 60

_NAME = pattern(r"(NCCL|OFI|OFI_NCCL|FI)_[A-Z0-9_]{1,60}")

#: They report, name a place, or are another program's: nothing moves otherwise for them. Names, and beginnings of names.
_SILENT = frozenset(
    (
        "NCCL_VERSION",
        "NCCL_HOME",
        "NCCL_ROOT",
        "NCCL_LIBRARY",
        "NCCL_INCLUDE_DIR",
        "NCCL_CONF_FILE",
        "NCCL_SOCKET_IFNAME",
        "NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG",
        "FI_EFA_FORK_SAFE",
    )
)
_SILENT_BEGIN = ("NCCL_DEBUG", "NCCL_RAS_", "NCCL_TRACE", "NCCL_ROOT_", "FI_LOG_")

#: What the software does by itself wherever it can.
_DEFAULTS = {"FI_EFA_USE_DEVICE_RDMA": "1"}


def compared(name: str) -> bool:
    """Say whether a variable of this name can change what was proven."""
    return _NAME.fullmatch(name) is not None and name not in _SILENT and not name.startswith(_SILENT_BEGIN)


def parse_conf(text: str) -> dict[str, str]:
    """Return the settings in a file like /etc/nccl.conf that can change what was proven; the last of a name counts."""
    found = {}
    for line in text.splitlines():
        name, mark, value = line.strip().partition("=")
        if mark and compared(name.strip()):
            found[name.strip()] = value.strip()
    return found


def differences(environ: Mapping[str, str], conf: Mapping[str, str], proven: Mapping[str, str]) -> list[str]:
    """Return one line for each setting of the job that differs from what was proven, LINES_MAX at most."""
    lines = []
    own = {name: value for name, value in environ.items() if compared(name)}
    for settings, where in ((own, "in this job"), (conf, f"in {CONF_FILE}")):
        for name, value in sorted(settings.items()):
            if (settings is conf and name in own) or proven.get(name, _DEFAULTS.get(name)) == value:
                continue
            tested = f"with {name}={proven[name]}" if name in proven else "without it"
            lines.append(f"{name}={_shown(value)} {where}, the nodes were tested {tested}")
    more = len(lines) - LINES_MAX
    return [*lines[:LINES_MAX], f"and {more} more such settings"] if more > 0 else lines


def _shown(value: str) -> str:
    flat = "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in value[: VALUE_MAX + 1])
    return flat if len(flat) <= VALUE_MAX else flat[: VALUE_MAX - 3] + "..."

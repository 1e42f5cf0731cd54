"""Reads which releases are installed: small files of the EFA installer, of sysfs and proc, and names of libraries. Runs nothing.

A library that a job brings is not seen. Standard library only: hooks import this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from slurm_ext.config.model import Settings
from slurm_ext.gate.efa_live_files import names_in, text_at
from slurm_ext.gate.file_tree import Unread
from slurm_ext.patterns import pattern

#: `# EFA installer version: 1.44.0`, then the packages' names (awsome-distributed-training efa-versions.sh and .py read it so).
PACKAGES = "opt/amazon/efa_installed_packages"
_INSTALLER = pattern(r"EFA installer version: *(\d+(?:\.\d+){1,2})")

#: deb and rpm name a package with _ or - before its release.
_LIBFABRIC = pattern(r"\blibfabric1?-aws[_-](\d+(?:\.\d+)+\w*)")
_PLUGIN = pattern(r"\blibnccl-ofi(?:-\w+)*?[_-]v?(\d+\.\d+\.\d+)")
_NCCL = pattern(r"libnccl\.so\.(2\.\d+\.\d+)")
_NCCL_WHEEL = pattern(r"nvidia_nccl_cu\d+-(2\.\d+\.\d+)[\d.]*\.dist-info")
_NVRM = pattern(r"NVRM version:.*?\s(\d{3}\.\d+(?:\.\d+)?)\s")
_PC = pattern(r"^Version: *(\S+)", re.MULTILINE)
_CUDA = pattern(r'"cuda" *: *\{[^}]*"version" *: *"(\d+\.\d+(?:\.\d+)?)"')

_LIBRARIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/lib",
    "opt/nccl/build/lib",
)
_NAMES_MAX = 8192
_PLUGIN_FOLDERS = ("opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64", "opt/aws-ofi-nccl/lib")
_PLUGIN_BYTES = 16 << 20
_BANNER = b"Initializing aws-ofi-nccl "


def versions(root: str, prefix: str, settings: Settings) -> dict[str, str]:
    """Return part -> release for what can be read; names as in `compatibility.PARTS`."""
    found: dict[str, str | None] = dict(_packages(root))
    if "libfabric" not in found and (told := _libfabric(root)):
        found |= {"libfabric": told, "libfabric-build": "amazon" if "amzn" in told else "upstream"}
    if not found.get("plugin"):
        found["plugin"] = _plugin(root)
    found["driver"] = _first(root, "sys/module/efa/version")
    found["kefalnd"] = _first(root, "sys/module/kefalnd/version") or _loaded(root, "sys/module/kefalnd")
    found |= _nvidia(root)
    text = text_at(os.path.join(root, "usr/local/cuda/version.json"), 1 << 16) or ""
    found["cuda"] = named[1] if (named := _CUDA.search(text)) else None
    found["kernel"] = _first(root, "proc/sys/kernel/osrelease")
    found["nccl"] = _nccl(root, prefix, settings)
    return {part: told for part, told in found.items() if told}


def _packages(root: str) -> Mapping[str, str | None]:
    text = text_at(os.path.join(root, PACKAGES), 1 << 16)
    if text is None:
        return {}
    named = {"installer": _INSTALLER.search(text), "libfabric": _LIBFABRIC.search(text), "plugin": _PLUGIN.search(text)}
    found: dict[str, str | None] = {part: match[1] for part, match in named.items() if match}
    if "libfabric" in found:
        found["libfabric-build"] = "amazon"
    return found


def _libfabric(root: str) -> str | None:
    for folder in ("lib", "lib64"):
        text = text_at(os.path.join(root, "opt/amazon/efa", folder, "pkgconfig/libfabric.pc"), 1 << 14)
        if text is not None and (found := _PC.search(text)):
            return found[1]
    return None


def _plugin(root: str) -> str | None:
    """Return the release that the plug-in names itself by, from its own text; installers before 1.38 did not bring one."""
    for folder in _PLUGIN_FOLDERS:
        for name in ("libnccl-net-ofi.so", "libnccl-net.so"):
            try:
                file = os.open(os.path.join(root, folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                continue
            with os.fdopen(file, "rb") as stream:
                try:
                    content = stream.read(_PLUGIN_BYTES)
                except OSError:
                    continue
            at = content.find(_BANNER)
            if at >= 0:
                words = content[at + len(_BANNER) : at + len(_BANNER) + 32]
                return words.split(b"\0")[0].decode("ascii", "replace").strip()
    return None


def _nvidia(root: str) -> dict[str, str | None]:
    text = text_at(os.path.join(root, "proc/driver/nvidia/version"), 4096)
    if text is None or not (found := _NVRM.search(text + " ")):
        return {}
    kind = "open" if "Open Kernel Module" in text else "proprietary"
    return {"nvidia": found[1], "nvidia-module": kind}


def _nccl(root: str, prefix: str, settings: Settings) -> str | None:
    """Return the release of the NCCL that the burn-in takes, else of the host's; by the names of files."""
    told = settings.burnin.nccl_library
    folders = [os.path.dirname(told)] if told.startswith("/") else []
    folders.append(os.path.join(prefix, "nccl/current/lib"))
    folders += [os.path.join(root, name) for name in (*_LIBRARIES, "usr/local/cuda/lib64")]
    for folder in folders:
        names = names_in(folder, _NAMES_MAX)
        for name in () if isinstance(names, Unread) else names:
            if found := _NCCL.fullmatch(name):
                return found[1]
        # A wheel's library has no release in its name: the folder beside it has.
        beside = (
            names_in(os.path.normpath(os.path.join(folder, "../../..")), _NAMES_MAX) if "nvidia/nccl" in folder else []
        )
        for name in () if isinstance(beside, Unread) else beside:
            if found := _NCCL_WHEEL.fullmatch(name):
                return found[1]
    return None


def _first(root: str, name: str) -> str | None:
    lines = (text_at(os.path.join(root, name), 256) or "").split()
    return lines[0] if lines else None


def _loaded(root: str, name: str) -> str | None:
    return "0" if os.path.isdir(os.path.join(root, name)) else None

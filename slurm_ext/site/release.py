"""Collects the files of a release from the checkout (or the unpacked release) that this very program runs from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import slurm_ext
from slurm_ext.errors import LackingError
from slurm_ext.site.plan import Release

#: What belongs to a release; tests, benches and documents stay behind.
PARTS = ("slurm_ext", "bin", "prolog", "epilog", "etc", "LICENSE")

_NEEDED = ("bin/fmslurm", "etc/slurm/fmslurm.conf", "etc/fmslurm.yaml")


def collect() -> Release:
    """Return the release beside this package. Raise LackingError where there is only the package (a bare wheel)."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(slurm_ext.__file__)))
    files = {}
    for path in sorted(_walk(root)):
        with open(os.path.join(root, path), "rb") as stream:
            state = os.fstat(stream.fileno())
            files[path] = (stream.read(), 0o755 if state.st_mode & 0o100 else 0o644)
    if lacking := [path for path in _NEEDED if path not in files]:
        raise LackingError(
            f"{root} is no release: {', '.join(lacking)} is missing",
            remedy="Run install from a checkout or an unpacked release",
        )
    venv = sys.prefix if os.path.isfile(os.path.join(sys.prefix, "pyvenv.cfg")) else ""
    return Release(slurm_ext.__version__, files, venv)


def _walk(root: str) -> Iterator[str]:
    for part in PARTS:
        full = os.path.join(root, part)
        if os.path.isfile(full):
            yield part
        for folder, names, files in os.walk(full):
            names[:] = [name for name in names if name != "__pycache__" and not name.startswith(".")]
            for name in files:
                if not name.startswith(".") and not name.endswith((".pyc", ".swp", "~")):
                    yield os.path.relpath(os.path.join(folder, name), root)

"""Whose the GPUs are: what the driver, nvidia-smi and slurm.conf say, asked only where something is wrong with a GPU.

A prolog's environment alone does not tell a job without GPUs from one on a cluster that never gave Slurm its GPUs: both lack
SLURM_JOB_GPUS (slurm.schedmd.com/prolog_epilog.html). GresTypes in slurm.conf does: a node line may name `gpu` in Gres only
where GresTypes has it (slurm.schedmd.com/slurm.conf.html), and a job that has nodes to itself is then given all of their GRES
(slurm.schedmd.com/sbatch.html, --exclusive). A hook asks Slurm nothing, so its file is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from slurm_ext import command
from slurm_ext.gate import ask_smi, gpu_scope, read_small
from slurm_ext.gate.model import Smi
from slurm_ext.gate.probes import Here
from slurm_ext.patterns import pattern

#: Where slurm.conf lies where neither the settings nor slurmd's environment say it, below the machine's root.
PLACES = ("etc/slurm/slurm.conf", "opt/slurm/etc/slurm.conf", "etc/slurm-llnl/slurm.conf")

#: A folder of configuration files may lie on a file server (seconds).
READ_S = 2.0

_MAX_BYTES, _MAX_DEPTH, _MAX_FILES = 4 << 20, 4, 64
_TYPES = pattern(r"(?i:^|\s)(?i:GresTypes)\s*=\s*(\"[^\"]*\"|\S+)")


def ask(smi: Smi | None, here: Here, count: int, *, unclear: bool) -> gpu_scope.Scope:
    """Return which of the node's `count` GPUs are the job's."""
    words = here.job_gpus
    return gpu_scope.of_job(
        smi,
        words,
        count,
        unclear=unclear,
        managed=None if words or unclear else managed(here.settings.site.slurm_conf, here.root),
        minors=ask_smi.minors(here.root) if any(word.isdecimal() for word in words) else None,
        instances=ask_smi.instances(here.root) if any(word.startswith("MIG-") for word in words) else None,
    )


def managed(slurm_conf: str, root: str) -> bool | None:
    """Say whether Slurm manages GPUs, by the slurm.conf that is named, else by the first of PLACES; None where not known."""
    paths = [slurm_conf] if slurm_conf else [os.path.join(root, place) for place in PLACES]
    raw = command.call_bounded(lambda: json.dumps(_first(paths)).encode(), timeout_s=READ_S)
    found = None if raw is None else json.loads(raw)
    return found if isinstance(found, bool) else None


def _first(paths: list[str]) -> bool | None:
    for path in paths:
        if text := _text(path):  # an empty one is none
            folder = os.path.dirname(path)
            return names_gpus(text, lambda name: _text(os.path.join(folder, name)))  # noqa: B023 - used before the next
    return None


def _text(path: str) -> str | None:
    said = read_small.text(os.path.realpath(path), _MAX_BYTES)
    return None if said is None or len(said) >= _MAX_BYTES else said


def names_gpus(text: str, included: Callable[[str], str | None]) -> bool | None:
    """Say whether GresTypes of a slurm.conf has gpu; None where it is in nothing that was read, and not all could be.

    `included` returns the text of a file by its name. Pure but for that.
    """
    left, whole, files = [(text, 0)], True, 0
    while left:
        said, depth = left.pop()
        for line in said.replace("\\\n", " ").splitlines():
            line = line.partition("#")[0]
            words = line.split()
            if len(words) == 2 and words[0].lower() == "include":
                files += 1
                inner = included(words[1]) if depth < _MAX_DEPTH and files <= _MAX_FILES else None
                whole = whole and inner is not None
                left += [(inner, depth + 1)] if inner is not None else []
            elif (found := _TYPES.search(line)) and "gpu" in found[1].strip('"').replace(" ", "").lower().split(","):
                return True
    return False if whole else None

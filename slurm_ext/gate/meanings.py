"""What every finding means: one look-up over the tables of each subject.

For people and commands only; no hook imports this.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache

from slurm_ext.gate import (
    meanings_between_jobs,
    meanings_burnin,
    meanings_efa,
    meanings_gpu,
    meanings_gpu_links,
    meanings_host,
    meanings_kernel,
    meanings_lustre,
    meanings_remedies,
    meanings_slurm,
    meanings_storage,
)
from slurm_ext.gate.meanings_model import UNKNOWN, Meaning

TABLES = (
    meanings_gpu.MEANINGS,
    meanings_gpu_links.MEANINGS,
    meanings_kernel.MEANINGS,
    meanings_efa.MEANINGS,
    meanings_storage.MEANINGS,
    meanings_lustre.MEANINGS,
    meanings_host.MEANINGS,
    meanings_slurm.MEANINGS,
    meanings_burnin.MEANINGS,
    meanings_between_jobs.MEANINGS,
)


def every() -> Iterator[Meaning]:
    """Yield all rows, families included."""
    for table in TABLES:
        yield from table


@cache
def _by_id() -> dict[str, Meaning]:
    return {one.id: one for one in every()}


def find(id_: str) -> Meaning | None:
    """Return what a finding means: its own row, one made of NVIDIA's catalogue, or its family's; None where there is none."""
    rows = _by_id()
    if id_ in rows:
        return rows[id_]
    if found := meanings_kernel.of_code(id_):
        return found
    families = [one for one in rows.values() if one.is_family and id_.startswith(one.id) and id_ != one.id]
    best = max(families, key=lambda one: len(one.id), default=None)
    return None if best is None else best._replace(id=id_)


def closest(id_: str, *, most: int = 5) -> list[str]:
    """Return the ids nearest to one that does not exist, nearest first: alike in letters, or holding what was typed."""
    ids = sorted(_by_id())
    alike = difflib.get_close_matches(id_.lower(), ids, n=most, cutoff=0.5)
    holding = [one for one in ids if id_.lower() in one or one.rpartition(".")[2] == id_.lower()] if id_ else []
    return list(dict.fromkeys([*alike, *holding]))[:most]


def steps(meaning: Meaning) -> tuple[str, ...]:
    """Return what to do, in order: first what is this finding's own, then its recipe."""
    recipe = (meanings_remedies.UNKNOWN,) if meaning.convicts == UNKNOWN else meanings_remedies.RECIPES[meaning.remedy]
    return (*meaning.steps, *recipe)

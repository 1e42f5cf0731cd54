"""What fmslurm remembers of a topology between two looks: one small file in the state folder, and the lock of those who act."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.errors import LackingError
from slurm_ext.files import open_regular, read_trusted, write_atomic
from slurm_ext.topology.change import Past, Refusal
from slurm_ext.topology.model import Placement

SCHEMA = 1

#: Places of a hundred thousand nodes are far smaller.
_MAX_BYTES = 256 << 20

#: So many topologies that Slurm refused are remembered.
_MAX_REFUSED = 20


class Undo(NamedTuple):
    """How a change that was begun is undone by whoever finds slurmctld gone: the file, the digest of what was written there,
    where the copy of what was there lies (empty: nothing was), and where slurmctlds listened (address and port)."""

    path: str
    written: str
    copy: str
    controllers: tuple[tuple[str, int], ...]


class Memory(NamedTuple):
    """`past` is what the plan asks for; `placements` what the last file was made of, by node; `said` the digest that the trail
    was last told of, so that it hears of each difference once; `undo` a change that was begun and has no end yet; `trouble` why
    nothing is remembered, where something should be."""

    past: Past = Past()
    placements: Mapping[str, Placement] = {}
    said: str = ""
    undo: Undo | None = None
    trouble: str = ""


def path_of(settings: Settings) -> str:
    """Return where it is kept."""
    return os.path.join(at_node(settings.site.state_dir, machine_name()), "topology.json")


def read(settings: Settings) -> Memory:
    """Return what is remembered; nothing where there is nothing, or (with the reason) where it cannot be read or is no such file."""
    path = path_of(settings)
    try:
        data = json.loads(read_trusted(path, max_bytes=_MAX_BYTES))
        past = data["past"]
        if data["schema"] != SCHEMA:
            return Memory(trouble=f"{path} is of another version")
        return Memory(
            Past(
                float(past["acted_at"]),
                float(past["differs_since"]),
                str(past["differs"]),
                {
                    str(key): Refusal(float(at), int(times), str(words))
                    for key, (at, times, words) in past["refused"].items()
                },
                str(past["unconfirmed"]),
            ),
            {row[0]: _placement(row) for row in data["placements"]},
            str(data["said"]),
            _undo(data["undo"]),
        )
    except FileNotFoundError:
        return Memory()
    except (OSError, LackingError) as exc:
        return Memory(trouble=f"{path}: {exc}")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError):
        return Memory(trouble=f"{path} is no such file")


def _undo(data: Any) -> Undo | None:
    if data is None:
        return None
    path, written, copy, controllers = data
    if not all(isinstance(word, str) for word in (path, written, copy)):
        raise ValueError("no undo")
    return Undo(path, written, copy, tuple((str(host), int(port)) for host, port in controllers))


def looked_at(settings: Settings) -> float | None:
    """Return when a look was last remembered here (epoch seconds); None where there never was one, or we may not know."""
    try:
        return os.stat(path_of(settings)).st_mtime
    except OSError:
        return None


def looked(settings: Settings, memory: Memory) -> None:
    """Remember a look, and when it was. Raise LackingError where that cannot be kept."""
    if memory._replace(trouble="") != read(settings) or looked_at(settings) is None:
        write(settings, memory)
        return
    with contextlib.suppress(OSError):
        os.utime(path_of(settings))


def _placement(row: list[Any]) -> Placement:
    node, instance_id, instance_type, path, zone, block, ultraserver, clique = row
    found = Placement(node, instance_id, instance_type, tuple(path), zone, block, ultraserver, clique)
    if not all(isinstance(word, str) for word in (*found._replace(path=()), *found.path) if word != ()):
        raise ValueError("no placement")
    return found


def write(settings: Settings, memory: Memory) -> None:
    """Keep it, whole or not at all. Raise LackingError where it cannot be kept."""
    past = memory.past
    refused = dict(list(past.refused.items())[-_MAX_REFUSED:])
    data = {
        "schema": SCHEMA,
        "past": past._replace(refused=refused)._asdict(),
        "said": memory.said,
        "undo": memory.undo,
        "placements": [list(placement) for placement in memory.placements.values()],
    }
    path = path_of(settings)
    try:
        write_atomic(path, json.dumps(data, separators=(",", ":")) + "\n")
    except OSError as exc:
        raise LackingError(
            f"{path}: {exc.strerror}", remedy="Run this as root; make room there: without it nobody knows what was done"
        ) from exc


@contextlib.contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Hold the lock that only one who acts holds. Raise LackingError where another has it, or we may not."""
    path = os.path.join(os.path.dirname(path_of(settings)), "topology.lock")
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as exc:
        raise LackingError(f"{path}: {exc.strerror}", remedy="Run this as root") from exc
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LackingError(
                "another fmslurm changes the topology just now", remedy="Run this again in a minute"
            ) from None
        yield
    finally:
        os.close(descriptor)

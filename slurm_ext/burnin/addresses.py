"""Where nodes are found: by a file, the share, the resolver, and for leaders one call of Slurm; all in bounded children."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from slurm_ext import shared
from slurm_ext.burnin.model import BurninJob
from slurm_ext.command import call_all_bounded, call_bounded
from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import LackingError, UntrustedFileError
from slurm_ext.files import read_trusted

#: How long (seconds) the table, the resolver and Slurm may take to tell addresses.
READ_S, RESOLVE_S, ASK_S = 2.0, 5.0, 8.0

#: Leaders of many jobs that start at once do not ask Slurm in the same moment (seconds).
ASK_JITTER_S = 1.0

#: Beside the attempt on the share: addresses that a leader had to ask Slurm for, so that nobody else does.
FOUND_FILE = "addresses.json"


#: How often (seconds) a node without addresses looks for those that a leader asked Slurm for.
PUBLISHED_EVERY_S = 0.5


def listed(names: Collection[str], table: str, *, share: str = "") -> dict[str, str]:
    """Return name -> address by the file `table` (`name address` lines), else by the share's, in a bounded child."""

    def look() -> bytes:
        found: dict[str, str] = {}
        wanted = frozenset(names)
        for path in (table, os.path.join(share, shared.ADDRESS_FILE) if share else ""):
            text = b""
            with contextlib.suppress(OSError, UntrustedFileError):  # gone with its share, or not root's: others know
                text = read_trusted(path) if path else b""
            for line in text.decode("utf-8", "replace").splitlines():
                words = line.split()
                if len(words) >= 2 and words[0] in wanted:
                    found.setdefault(words[0], words[1])
        return json.dumps(found).encode()

    return _texts(call_bounded(look, timeout_s=READ_S))


def resolved(names: Sequence[str]) -> dict[str, str]:
    """Return name -> address by the resolver, each in a bounded child; who does not resolve is absent."""
    answers = call_all_bounded({name: partial(_resolved, name) for name in names}, timeout_s=RESOLVE_S)
    return {name: answer.decode() for name, answer in answers.items() if answer}


def to_meet(
    job: BurninJob, settings: Settings, candidates: Sequence[str], *, give_up: float, wanted: Callable[[], bool]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the addresses of this node and of who may lead, as far as they are known, and those of all nodes in the tables.

    A candidate needs its own and another's, the others one of a candidate's; they wait until the monotonic time `give_up`,
    and as long as `wanted` says so, for what a leader had to ask Slurm. Raise LackingError where that is not known either.
    """
    share, me = settings.site.share, job.node
    tables = listed(job.nodes, at_node(settings.burnin.addresses, me), share=share)
    names = tuple(dict.fromkeys((me, *candidates)))
    found = {name: tables[name] for name in names if name in tables}
    found |= resolved([name for name in names if name not in found])
    leads = me in candidates

    def can_meet() -> bool:
        return any(name in found for name in candidates if name != me) and (me in found or not leads)

    missing = [name for name in names if name not in found]
    if missing and leads:
        found |= by_slurm(settings, missing)
        publish(share, job.key, {name: found[name] for name in missing if name in found})
    while not can_meet() and not leads and share and wanted() and time.monotonic() < give_up:
        found |= {name: address for name, address in published(share, job.key).items() if name in names}
        time.sleep(PUBLISHED_EVERY_S)  # a file on a share has no event that could be awaited
    if not can_meet():
        raise LackingError(
            f"no address is known for {next(name for name in names if name not in found)}",
            remedy="Give burnin.addresses a file that lists it, or make the name resolve",
        )
    return found, tables


def _resolved(name: str) -> bytes:
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]).encode()


def _texts(answer: bytes | None) -> dict[str, str]:
    try:
        data = json.loads(answer) if answer else {}
    except ValueError:
        data = {}
    return {str(k): str(v) for k, v in data.items()} if isinstance(data, dict) else {}


def by_slurm(settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Return the addresses that Slurm has for nodes, by one call after a random pause, in a bounded child. For leaders only."""

    def ask() -> bytes:
        from slurm_ext.slurm import connect

        time.sleep(ASK_JITTER_S * os.urandom(1)[0] / 255)
        known = connect(settings, timeout_s=ASK_S / 2).nodes(names)
        found = {node.name: _resolved(node.address).decode() for node in known if node.address and node.name in names}
        return json.dumps(found).encode()

    return _texts(call_bounded(ask, timeout_s=ASK_S))


def publish(share: str, attempt: str, found: Mapping[str, str]) -> None:
    """Leave addresses beside the attempt on the share, so that its other nodes need not ask Slurm."""
    if share and found:
        shared.write_json(shared.attempt_path(share, attempt, FOUND_FILE), found)


def published(share: str, attempt: str) -> dict[str, str]:
    """Return the addresses that a leader left beside the attempt."""
    found = shared.read_json(shared.attempt_path(share, attempt, FOUND_FILE), timeout_s=1.0) or {}
    return {str(k): str(v) for k, v in found.items()}


def is_read(descriptor: int) -> bool:
    """Say whether anybody still reads the other end of a pipe."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return not poller.poll(0)

"""What the daemon pushes to the share because hooks cannot ask for it: addresses of the nodes, and below which leaf switch
each sits. Written only when it changed, each file whole or not at all."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping

from slurm_ext import shared
from slurm_ext.errors import SlurmError
from slurm_ext.slurm.hostlist import is_node_name
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.protocol import Slurm

#: How often Slurm is asked (seconds): nodes get addresses when they are powered up.
EVERY_S = 30.0


def addresses_of(nodes: Iterable[Node]) -> dict[str, str]:
    """Return node name -> address, for nodes whose NodeAddr is one: a host name there is the resolver's affair. Pure."""
    return {node.name: node.address for node in nodes if is_node_name(node.name) and _is_address(node.address)}


def leaves_of(topology: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return node name -> the lowest switch (or block) above it. Pure."""
    return {node: path[-1] for node, path in topology.items() if path and is_node_name(node) and is_node_name(path[-1])}


class Push:
    """What lies on the share by our own knowledge, and when Slurm was asked last."""

    def __init__(self) -> None:
        self._asked_at = -EVERY_S
        self._there: dict[str, Mapping[str, str]] = {}

    def refresh(self, slurm: Slurm, share: str, now: float, say: Callable[[str], None]) -> None:
        """Ask Slurm where that is due (`now`: seconds of any steady clock), and write what changed.

        A share or a Slurm that does not answer leaves the files as they are, for the next time.
        """
        if not share or now - self._asked_at < EVERY_S:
            return
        self._asked_at = now
        try:
            self._write("addresses", addresses_of(slurm.nodes()), share, shared.addresses, shared.write_addresses)
            self._write("leaves", leaves_of(slurm.topology()), share, shared.leaves, shared.write_leaves)
        except (SlurmError, ValueError) as exc:
            say(f"addresses and leaves on the share stay as they are: {exc}")

    def _write(
        self,
        what: str,
        found: Mapping[str, str],
        share: str,
        read: Callable[[str], dict[str, str]],
        write: Callable[[str, Mapping[str, str]], bool],
    ) -> None:
        if what not in self._there:
            self._there[what] = read(share)  # of the daemon before us: nothing is written for a restart
        if found == self._there[what]:
            return
        if write(share, found):
            self._there[what] = dict(found)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

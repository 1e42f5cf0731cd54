"""Look at the cluster: each probe bounded, each failure a word in `errors`, never an exception."""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_ext import command, credential_tls, shared
from slurm_ext.burnin import history, history_line
from slurm_ext.burnin.nccl import Nccl, candidates
from slurm_ext.config import snapshot
from slurm_ext.config.locate import Located
from slurm_ext.config.model import at_node, machine_name
from slurm_ext.credential import MungeAuthenticator
from slurm_ext.doctor import notify, topology
from slurm_ext.doctor.model import Facts, KeyAge
from slurm_ext.errors import FmslurmError
from slurm_ext.slurm import connect, ledger, suppressed
from slurm_ext.slurm.breaker import drain_limit, drained_lately, fleet_size

#: A file server that hangs must not hang doctor.
PROBE_S = 3.0

DAY_S = 86_400.0

#: So many days what a node's burn-in told of its library counts.
TOLD_D = 30

#: A library of 350 MB from a cold disk.
NCCL_S = 30.0


def collect(located: Located) -> Facts:
    """Return what can be seen from this machine; what cannot be seen is None, with the reason in `errors`."""
    settings = located.settings
    errors: dict[str, str] = {}
    facts = Facts(settings, located.path, errors=errors)
    try:
        slurm = connect(settings)
        facts = facts._replace(backend=slurm.name, version=slurm.version(), slurm_config=slurm.config())
        facts = facts._replace(nodes=tuple(slurm.nodes()))
    except FmslurmError as exc:
        errors["slurm"] = str(exc)
    if facts.slurm_config is not None:
        facts = facts._replace(
            hooks={kind: _hook_files(facts.slurm_config.get(kind, "")) for kind in ("Prolog", "Epilog")}
        )
    if settings.site.share:
        facts = facts._replace(
            share_problem=_share_problem(settings.site.share), snapshot_hash=_snapshot_hash(settings.site.share, errors)
        )
        if facts.share_problem is None:
            entries = ledger.entries(settings.site.share, timeout_s=PROBE_S)
            held_back = suppressed.read_all(settings.site.share, now=time.time(), timeout_s=PROBE_S) or {}
            nodes, now = facts.nodes or (), time.time()
            is_open = suppressed.is_open(
                entries,
                list(held_back.values()),
                now=now,
                limit=drain_limit(settings.drain, fleet_size(nodes)) if nodes else None,
                also=drained_lately(nodes, now=now),
            )
            drained = {node.name for node in nodes if node.drained}
            drained |= {
                name for name, one in held_back.items() if suppressed.drained_since(one, entries or (), now=now)
            }
            facts = facts._replace(
                ledger=entries is not None,
                held_back=tuple(sorted(name for name in held_back if is_open and name not in drained)),
            )
        beat = shared.heartbeat(settings.site.share, timeout_s=PROBE_S)
        facts = facts._replace(heartbeat_age_s=time.time() - beat.time if beat is not None else None)
        switches = shared.switches(settings.site.share, timeout_s=PROBE_S)
        live = [switch for switch in switches or () if switch.until > time.time()]
        facts = facts._replace(off={switch.room: switch.reason or "no reason given" for switch in live})
    if settings.mode.burnin != "off":
        problem = _nccl_problem(facts)
        # A head node need not have the library: there it says something only where it loads.
        facts = facts._replace(nccl=problem if _is_compute_node(facts) or not problem else None)
        lines = history.read_shared(settings.site.share, since=time.time() - TOLD_D * DAY_S, timeout_s=PROBE_S)
        facts = facts._replace(nccl_nodes=told_of_nccl(lines))
    facts = facts._replace(notices=notify.collect(settings, located.path, facts.slurm_config))
    facts = facts._replace(watched=topology.collect(settings))
    openssl = shutil.which("openssl", path=command.CLEAN_PATH) is not None
    return facts._replace(munge=_munge_answers(located, errors), keys=_keys(located, errors), openssl=openssl)


def _is_compute_node(facts: Facts) -> bool:
    """Say whether the burn-in runs on this machine: the library need not be on a head node."""
    named = any(node.name == machine_name() for node in facts.nodes or ())
    return named or facts.settings.site.type == "lab" or os.path.exists("/proc/driver/nvidia/version")


def told_of_nccl(lines: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return node -> empty where its last burn-in ran, or why NCCL did not load there. `lines` of the history, oldest first."""
    found: dict[str, str] = {}
    for line in lines:
        past = history_line.past_of(line)
        if past is not None and past.busbw_gbs:
            absent = history_line.measured_absent(line)
            found.update((node, "") for node in past.nodes if node not in absent)
        elif past is not None and past.rule == "burnin.library":
            found.update(history_line.reasons(line))
    return found


def _nccl_problem(facts: Facts) -> str | None:
    """Load NCCL as the burn-in would, in a child; return why it does not load, empty where it does."""
    site, configured = facts.settings.site, facts.settings.burnin.nccl_library

    def load() -> bytes:
        try:
            Nccl(candidates(configured, site.prefix))
        except FmslurmError as exc:
            return exc.message.encode()
        return b""

    answer = command.call_bounded(load, timeout_s=NCCL_S)
    return "loading NCCL did not come to an end" if answer is None else answer.decode("utf-8", "replace")


def _hook_files(patterns: str) -> tuple[str, ...]:
    """Return the executable files that a Prolog= or Epilog= value means; slurmd expands it as glob(3) does."""

    def look() -> bytes:
        found = [path for pattern in patterns.split(",") for path in sorted(glob.glob(pattern.strip()))]
        return "\n".join(path for path in found if os.path.isfile(path) and os.access(path, os.X_OK)).encode()

    if not patterns or patterns == "(null)":
        return ()
    answer = command.call_bounded(look, timeout_s=PROBE_S)
    return tuple(answer.decode("utf-8", "replace").split("\n")) if answer else ()


def _share_problem(share: str) -> str | None:
    def look() -> bytes:
        try:
            state = os.stat(share)
        except OSError as exc:
            return f"{share}: {exc.strerror}".encode()
        if state.st_uid != 0 or state.st_mode & 0o022:
            return (
                f"{share} belongs to uid {state.st_uid}, mode {state.st_mode & 0o7777:o}: others may write it".encode()
            )
        return b""

    answer = command.call_bounded(look, timeout_s=PROBE_S)
    return f"{share} does not answer" if answer is None else answer.decode() or None


def _snapshot_hash(share: str, errors: dict[str, str]) -> str | None:
    path = os.path.join(share, snapshot.SNAPSHOT_FILE)
    answer = command.call_bounded(lambda: snapshot.read(path).source_hash.encode(), timeout_s=PROBE_S)
    if answer is None:
        errors["snapshot"] = f"{path} is missing or cannot be used"
        return None
    return answer.decode()


def _munge_answers(located: Located, errors: dict[str, str]) -> bool | None:
    """Seal and open one message, in a child, since libmunge waits long for a munged that hangs."""
    try:
        authenticator = MungeAuthenticator(at_node(located.settings.site.munge_socket, machine_name()))
    except FmslurmError as exc:
        errors["munge"] = str(exc)
        return False
    return (
        command.call_bounded(lambda: authenticator.open(authenticator.seal(b"doctor")), timeout_s=PROBE_S) == b"doctor"
    )


def _keys(located: Located, errors: dict[str, str]) -> tuple[KeyAge, ...] | None:
    folder = credential_tls.folder(at_node(located.settings.site.state_dir, machine_name()))
    now = time.time()
    try:
        found = credential_tls.read_keys(folder)
    except (OSError, FmslurmError) as exc:
        errors["keys"] = str(exc)
        return None
    return tuple(KeyAge(key.id, (now - key.created) / DAY_S, (key.expires - now) / DAY_S) for key in found)

"""Lustre clients' imports (one connection to one target each) as /proc, /sys or `lctl get_param` show them. Pure.

Source: lustre/obdclass/lprocfs_status.c (`import` and `state`; the history keeps the last 16 changes),
lustre/include/lustre_import.h (the words for states). Newer releases quote addresses and add nids_stats.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.gate.file_tree import Tree, Unread, ending, word
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

_CHANGE = pattern(r"- \[ *(-?\d+), *(\w+|<UNKNOWN>) *\]")
_PARAMETER = pattern(r"((?:[a-z]+)\.(.+)\.(import|state|active))=(.*)")
_SNAPSHOT = pattern(r"snapshot_time:?\s+(\d+)\.\d+")
_REPLY = pattern(r"last reply : (\d+), (\d+)s ago")
_TARGET = pattern(r"(.+?)-(OST[0-9a-f]{4}|MDT[0-9a-f]{4})(?:_UUID)?(?:-.*)?")

#: Words of ptlrpc_import_state_name.
STATES = (
    "CLOSED",
    "NEW",
    "DISCONN",
    "CONNECTING",
    "REPLAY",
    "REPLAY_LOCKS",
    "REPLAY_WAIT",
    "RECOVER",
    "FULL",
    "EVICTED",
    "IDLE",
)


class Import(NamedTuple):
    """One connection. Times are seconds since the epoch; None and empty words are not known."""

    name: str  # the folder's name
    target: str = ""  # lustrefs-OST0002, or MGS
    state: str = ""
    flags: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()  # addresses in the order of preference
    current: str = ""
    attempts: int | None = None
    history: tuple[tuple[int, str], ...] = ()
    active: bool | None = None
    unread: str = ""

    @property
    def where(self) -> str:
        """Return the finding target: by object or metadata target, else the node."""
        found = _TARGET.fullmatch(self.target or self.name)
        if found is None:
            return "node"
        return f"{'ost' if found[2].startswith('OST') else 'mdt'}:{found[1]}-{found[2]}"


class Client(NamedTuple):
    """All imports of one client; `health` is the text of health_check, `mounted` counts llite's folders."""

    imports: tuple[Import, ...] = ()
    health: str = ""
    mounted: int | None = None
    read_at_s: float | None = None
    present: bool = False  # there are folders of Lustre at all


def read(tree: Tree) -> Client:
    """Return what a tree of /proc and /sys says."""
    imports: dict[str, Import] = {}
    for name in ("import", "state"):
        for folder, _ in ending(tree, name):
            if _is_client(folder) and folder not in imports:
                imports[folder] = _import(tree, folder)
    at = None
    for path, content in tree.items():
        if isinstance(content, str) and (path.endswith("/stats") or path.endswith("/timeouts")):
            for found in (_SNAPSHOT.search(content), _REPLY.search(content)):
                if found is not None:
                    seconds = int(found[1]) + (int(found[2]) if found.re.groups > 1 else 0)
                    at = max(at or 0.0, float(seconds))
    health = next((content for path, content in tree.items() if path.endswith("lustre/health_check")), "")
    mounts = {folder.rpartition("/")[2] for path in tree if "/llite/" in path for folder in (_llite(path),) if folder}
    return Client(
        tuple(imports.values()),
        health.strip() if isinstance(health, str) else "",
        len(mounts) or None,
        at,
        any("lustre" in path for path in tree),
    )


def _llite(path: str) -> str:
    front, _, rest = path.partition("/llite/")
    return f"{front}/llite/{rest.partition('/')[0]}" if rest.partition("/")[0] else ""


def _is_client(folder: str) -> bool:
    kind = folder.split("/")[-2] if folder.count("/") else ""
    return kind in ("osc", "mdc", "mgc", "osp", "lwp") and kind not in ("osp", "lwp")


def _import(tree: Tree, folder: str) -> Import:
    name = folder.rpartition("/")[2]
    active = word(tree, f"{folder}/active")
    found = Import(name, active=None if active not in ("0", "1") else active == "1")
    texts: list[str] = []
    error = ""
    for part in ("import", "state"):
        content = tree.get(f"{folder}/{part}")
        if isinstance(content, Unread):
            error = error or content.error
        elif content is not None and content.strip():
            texts.append(content)
        elif content is not None:
            error = error or "empty"
    for text in texts:
        found = _take(found, text)
    return found if found.state else found._replace(unread=error or "no state in it")


def _take(found: Import, text: str) -> Import:
    """Return the import with what one more text says; the worse of two states stands."""
    history = [(int(change[1]), change[2]) for change in _CHANGE.finditer(text)]
    if history:
        found = found._replace(history=tuple(history))
    servers: list[str] | None = None
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        value = value.strip()
        if key == "target" and not found.target:
            found = found._replace(target=value.removesuffix("_UUID"))
        elif key in ("state", "current_state") and value:
            found = found._replace(state=_worse(found.state, value))
        elif key == "import_flags":
            found = found._replace(flags=tuple(value.strip("[] ").replace(",", " ").split()))
        elif key == "failover_nids":
            servers = [part.strip().strip('"') for part in value.strip("[] ").split(",") if part.strip()]
        elif key == "current_connection":
            found = found._replace(current=value.strip('"'))
        elif key == "connection_attempts" and value.isdecimal():
            found = found._replace(attempts=int(value))
    return found._replace(servers=tuple(servers)) if servers is not None else found


def _worse(first: str, second: str) -> str:
    """Return the state of two readings that speaks more against the connection."""
    good = ("FULL", "IDLE")
    return second if not first or first in good else first


def parse_parameters(text: str) -> Client | None:
    """Return the imports in the output of `lctl get_param osc.*.import mdc.*.state ...`, None where there are none."""
    parts: dict[str, list[str]] = {}
    active: dict[str, str] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        found = _PARAMETER.fullmatch(line.strip())
        if found and found[3] == "active":
            active[found[2]] = found[4].strip()
            current = None
        elif found:
            current = parts.setdefault(found[2], [])
            current.append(found[4])
        elif current is not None:
            current.append(line)
    if not parts and not active:
        return None
    imports = []
    for name, lines in parts.items():
        item = _take(Import(name, active=_on(active, name)), "\n".join(lines))
        imports.append(item if item.state else item._replace(unread="no state in it"))
    imports += [Import(name, state="", active=_on(active, name), unread="") for name in active if name not in parts]
    return Client(tuple(imports), present=True)


def _on(active: Mapping[str, str], name: str) -> bool | None:
    return active[name] == "1" if active.get(name) in ("0", "1") else None

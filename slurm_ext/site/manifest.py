"""The manifest: what install left on this machine, so that uninstall takes out that and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.errors import FmslurmError
from slurm_ext.files import read_trusted, write_atomic
from slurm_ext.site.model import Entry

SCHEMA = 1


class Manifest(NamedTuple):
    """Entries by path, the release they belong to, and the one before it, which stays for hooks that still run from it.

    `settled` is the release that Slurm and the daemons were brought to: files alone are half an installation.
    """

    version: str = ""
    previous: str = ""
    entries: Mapping[str, Entry] = {}
    fragment: str = ""
    complete: bool = False
    settled: str = ""


def manifest_path(settings: Settings) -> str:
    """Return where the manifest lies: state_dir, or the prefix where state_dir is each node's own (%n)."""
    folder = settings.site.prefix if "%n" in settings.site.state_dir else settings.site.state_dir
    return os.path.join(folder, "install.json")


def load(path: str) -> Manifest:
    """Return the manifest, an empty one where there is none. Raise FmslurmError where it cannot be read or trusted."""
    try:
        data = json.loads(read_trusted(path))
        entries = {item["path"]: Entry(**item) for item in data["entries"]}
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}")
        texts = (str(data[name]) for name in ("version", "previous", "fragment"))
        version, previous, fragment = texts
        return Manifest(version, previous, entries, fragment, bool(data["complete"]), str(data.get("settled", "")))
    except FileNotFoundError:
        return Manifest()
    except (ValueError, TypeError, KeyError, OSError) as exc:
        raise FmslurmError(
            f"{path} is no manifest of ours: {exc}", remedy="Look at it; it says what install made"
        ) from exc


def save(path: str, manifest: Manifest) -> None:
    """Write the manifest. Raise OSError where that cannot be done."""
    data = {
        "schema": SCHEMA,
        "version": manifest.version,
        "previous": manifest.previous,
        "complete": manifest.complete,
        "settled": manifest.settled,
        "fragment": manifest.fragment,
        "entries": [entry._asdict() for entry in manifest.entries.values()],
    }
    write_atomic(path, json.dumps(data, indent=1) + "\n")

"""Settings and a release -> every item of an installation. Pure: files come in as text, nothing is looked up here."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.config.model import Settings
from slurm_ext.errors import UsageError
from slurm_ext.site.model import FILE, FOLDER, LINK, Item, Plan
from slurm_ext.site.slurm_conf import merged

PROLOG_FLAGS = ("Alloc", "DeferBatch")
SCHEDULER_PARAMETERS = ("nohold_on_prolog_fail",)

#: Below the share; all of it root's alone.
PLACES = "places"  # what each node tells of where it sits (topology/place_fact.py): of now, and no record
GPUS = "gpus"  # what each node tells of its GPUs (gres/told.py)
SHARE_FOLDERS = ("config", "config/off", "controller", "nodes", PLACES, GPUS, "jobs", "ledger")

#: Runs last of all (Slurm goes from z to a, then 9 to 0) and keeps the folder from being empty, which Slurm calls a failure.
KEEP = b"#!/bin/sh\n# fmslurm: Slurm fails a job where this folder is empty.\nexit 0\n"


#: What paths in hooks, units and slurm.conf may hold; `%n` stands for the node.
_TAME = re.compile(r"([A-Za-z0-9/._+@:-]|%n)*")


class Release(NamedTuple):
    """The files of one release, relative path -> (content, mode), and the virtual environment it runs with."""

    version: str
    files: Mapping[str, tuple[bytes, int]]
    venv: str = ""

    @property
    def name(self) -> str:
        """Return the folder's name: the version, and a hash of the content, so that no release is changed in place."""
        digest = hashlib.sha256()
        for path in sorted(self.files):
            digest.update(f"{path}\0{self.files[path][1]:o}\0".encode() + self.files[path][0] + b"\0")
        return f"{self.version}+{digest.hexdigest()[:8]}"


class Place(NamedTuple):
    """What the plan has to know about the machine: slurm.conf and what it sets, whether systemd runs, where fmslurm.yaml is."""

    slurm_conf: str
    sets: Mapping[str, str]
    config_path: str
    systemd: bool = False
    head: bool = True
    node: bool = True
    health_check: bool = False
    seed_config: bool = False


def plan(settings: Settings, release: Release, place: Place) -> Plan:
    """Return what install has to put where for a site of type plain or lab."""
    site = settings.site
    root = os.path.join(site.prefix, "current")
    hooks = hook_dir(settings, place.slurm_conf)
    python = site.python or (f"{root}/venv/bin/python" if release.venv else "/usr/bin/python3")
    marks = {
        "@FMSLURM_ROOT@": root,
        "@FMSLURM_SHARE@": site.share,
        "@FMSLURM_LOCAL@": site.state_dir,
        "@FMSLURM_PYTHON@": python,
        "@FMSLURM_CONFIG@": place.config_path,
    }
    for value in (root, site.share, site.state_dir, python, place.config_path, hooks):
        if not _TAME.fullmatch(value):
            raise UsageError(
                f"{value!r} has characters that sh, slurm.conf or systemd would read their own way",
                remedy="Use letters, digits and / . _ + @ : - in paths",
            )
    items = [Item(site.prefix, FOLDER, mode=0o755, private=True)]
    items += release_items(os.path.join(site.prefix, "releases", release.name), release)
    items.append(Item(root, LINK, os.path.join("releases", release.name).encode()))
    for folder in (site.state_dir, site.run_dir, site.log_dir):
        if "%n" not in folder:  # with %n each node's own folder is made by whoever makes the node
            items.append(Item(folder, FOLDER, mode=0o755, private=True))
    if site.share and place.head:
        items.append(Item(site.share, FOLDER, mode=0o755, private=True))
        items += [Item(os.path.join(site.share, name), FOLDER, mode=0o755, private=True) for name in SHARE_FOLDERS]
    if place.seed_config:
        items.append(Item(place.config_path, content=release.files["etc/fmslurm.yaml"][0], seed=True))
    items += hook_items(hooks, release, marks, health_check=place.health_check)
    if place.systemd:
        for name, wanted, program in (
            ("controller", place.head, "bin/fmslurm-controller"),
            ("agent", place.node, "bin/fmslurm-agent"),
            ("topology", place.head, "bin/fmslurm"),
        ):
            unit = release.files.get(f"etc/systemd/fmslurm-{name}.service")
            if wanted and unit and program in release.files:
                items.append(Item(f"/etc/systemd/system/fmslurm-{name}.service", content=fill(unit[0], marks)))
    fragment = os.path.join(os.path.dirname(place.slurm_conf), "fmslurm.conf")
    text, notes = fragment_text(release.files["etc/slurm/fmslurm.conf"][0].decode(), place.sets, items, hooks, fragment)
    items.append(Item(fragment, content=text.encode(), placeholder_only=True))
    return Plan(release.name, tuple(items), fragment, f"Include {fragment}", "Include" in place.sets, notes)


def hook_dir(settings: Settings, slurm_conf: str) -> str:
    """Return the folder that holds prolog.d and epilog.d: site.hook_dir, else `fmslurm` beside slurm.conf."""
    return settings.site.hook_dir or os.path.join(os.path.dirname(slurm_conf), "fmslurm")


def release_items(folder: str, release: Release) -> list[Item]:
    """Return the items of a release folder: folders first, then files, then the link to the virtual environment."""
    folders = {
        os.path.join(folder, *path.split("/")[:depth]) for path in release.files for depth in range(path.count("/") + 1)
    }
    items = [Item(os.path.dirname(folder), FOLDER, mode=0o755, private=True)]
    items += [Item(path.rstrip("/"), FOLDER, mode=0o755, private=True) for path in sorted(folders)]
    items += [Item(os.path.join(folder, path), FILE, *release.files[path]) for path in sorted(release.files)]
    if release.venv:
        items.append(Item(os.path.join(folder, "venv"), LINK, release.venv.encode()))
    return items


def hook_items(hooks: str, release: Release, marks: Mapping[str, str], *, health_check: bool) -> list[Item]:
    """Return the hook folders and files, with the release's marks filled in."""
    items = [Item(hooks, FOLDER, mode=0o755, private=True)]
    for kind in ("prolog", "epilog"):
        folder = os.path.join(hooks, f"{kind}.d")
        items.append(Item(folder, FOLDER, mode=0o755, private=True))
        items.append(Item(os.path.join(folder, "00-keep"), content=KEEP, mode=0o755))
        if source := release.files.get(f"{kind}/50-fmslurm"):
            items.append(Item(os.path.join(folder, "50-fmslurm"), content=fill(source[0], marks), mode=0o755))
    if source := release.files.get("prolog/task-prolog"):
        items.append(Item(os.path.join(hooks, "task-prolog"), content=fill(source[0], marks), mode=0o755))
    if health_check and (source := release.files.get("prolog/health-check")):
        items.append(Item(os.path.join(hooks, "health-check"), content=fill(source[0], marks), mode=0o755))
    return items


def fill(content: bytes, marks: Mapping[str, str]) -> bytes:
    """Return a template with every mark replaced; values are paths that the settings' rules let through."""
    for mark, value in marks.items():
        content = content.replace(mark.encode(), value.encode())
    return content


def fragment_text(
    template: str, sets: Mapping[str, str], items: list[Item], hooks: str, fragment: str
) -> tuple[str, tuple[str, ...]]:
    """Return our part of slurm.conf with only the lines that are needed, and notes about lines that meet the site's own."""
    there = {item.path for item in items}
    flags = merged(sets.get("PrologFlags", ""), PROLOG_FLAGS)
    parameters = merged(sets.get("SchedulerParameters", ""), SCHEDULER_PARAMETERS)
    marks = {"@FRAGMENT@": fragment, "@HOOKS@": hooks, "@PROLOG_FLAGS@": flags, "@SCHEDULER_PARAMETERS@": parameters}
    drop, notes = set(), []
    for key, value in (("PrologFlags", flags), ("SchedulerParameters", parameters)):
        if sets.get(key, "") == value:
            drop.add(key)
        elif sets.get(key):
            notes.append(
                f"slurm.conf has {key}={sets[key]}; our fragment says {key}={value}, which holds, and Slurm warns that the "
                f"key is there twice until you take the first one out"
            )
    if f"{hooks}/task-prolog" not in there:
        drop.add("TaskProlog")
    elif sets.get("TaskProlog"):
        drop.add("TaskProlog")
        notes.append(
            f"slurm.conf has TaskProlog={sets['TaskProlog']}: add `{hooks}/task-prolog` to that script by hand"
        )
    if f"{hooks}/health-check" not in there or sets.get("HealthCheckProgram"):
        drop |= {"HealthCheckProgram", "HealthCheckInterval", "HealthCheckNodeState"}
    blocks: list[str] = []
    for block in template.rstrip("\n").split("\n\n"):
        lines = [line for line in block.split("\n") if line.split("=", 1)[0] not in drop]
        if any(not line.startswith("#") for line in lines) or not blocks:
            blocks.append("\n".join(lines))
    return fill(("\n\n".join(blocks) + "\n").encode(), marks).decode(), tuple(notes)


def in_the_way(sets: Mapping[str, str]) -> list[str]:
    """Return what of the site's own slurm.conf would be silenced by ours and has to be moved by a person first."""
    said = []
    for key in ("Prolog", "Epilog"):
        value = sets.get(key, "")
        if value and value.lower() not in ("(null)", "none"):
            said.append(
                f"slurm.conf has {key}={value}; move it into {key.lower()}.d of the hooks and take the line out"
            )
    return said


#: What is left in the fragment once fmslurm is gone but slurm.conf still includes it: a missing file stops slurmctld.
EMPTY_FRAGMENT = "# fmslurm was taken out; the Include line for this file may go, and then this file.\n"

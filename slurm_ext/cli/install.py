"""`fmslurm install` and `uninstall`: hooks, configuration and daemons in place, and out again."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import click

from slurm_ext import events
from slurm_ext.cli import install_nccl
from slurm_ext.cli.lab_daemons import LabDaemons
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.config.locate import DEFAULT_PATH, Located, locate, trail_path
from slurm_ext.errors import EXIT_LACKING, EXIT_PARTLY, FindingError, LackingError, UsageError
from slurm_ext.lab.cluster import Lab
from slurm_ext.site import apply, detect, manifest, release, slurm_conf, systemd
from slurm_ext.site import install as steps
from slurm_ext.site import nccl as nccl_library
from slurm_ext.site.model import FOLDER, Conflict, Entry, Plan
from slurm_ext.site.plan import Place, Release, in_the_way, plan
from slurm_ext.slurm import connect

ROLES = ("auto", "head", "node", "both")


@click.command()
@click.option("--role", type=click.Choice(ROLES), default="auto", show_default=True, help="What this machine is.")
@click.option("--health-check", is_flag=True, help="Also run the slow checks between jobs (HealthCheckProgram).")
@click.option("--nccl", is_flag=True, help="Only bring NCCL's library, for the burn-in: GPU images may carry none.")
@click.option("--nccl-version", default="", help="Which (default: the newest that the EFA plugin was tested with).")
@click.option("--cuda", type=click.Choice(["12", "13"]), help="For an image without a driver: what it will have.")
@click.option("--wheel", type=click.Path(dir_okay=False), help="Its wheel, brought here by other means.")
@click.option(
    "--nccl-to", type=click.Path(file_okay=False), help="Another folder than PREFIX/nccl: local disk is best."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def install(
    context: click.Context,
    role: str,
    health_check: bool,
    nccl: bool,
    nccl_version: str,
    cuda: str | None,
    wheel: str | None,
    nccl_to: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put hooks, configuration and daemons in place. A first install only observes: see `fmslurm mode`."""
    located = locate()
    if nccl:
        _needs_root(dry_run)
        install_nccl.deliver(
            located,
            version=nccl_version,
            cuda=int(cuda or 0),
            wheel=os.path.abspath(wheel) if wheel else "",
            to=os.path.abspath(nccl_to) if nccl_to else "",
            dry_run=dry_run,
            as_json=as_json,
        )
        return
    if nccl_version or cuda or wheel or nccl_to:
        raise UsageError("--nccl-version, --cuda, --wheel and --nccl-to go with --nccl", remedy="Add --nccl")
    site = _site(located)
    if site.type in detect.BY_HAND:
        _by_hand(site, as_json)
        context.exit(EXIT_LACKING)
    if not site.slurm_conf or not os.path.isfile(site.slurm_conf):
        raise LackingError(
            f"no slurm.conf is here ({site.slurm_conf or 'looked in the usual places'})", remedy="Set site.slurm_conf"
        )
    _needs_root(dry_run)
    shipped = release.collect()
    wanted = _plan(located, site, shipped, role, health_check)
    known = manifest.load(manifest.manifest_path(located.settings))
    wanted = apply.with_parents(wanted, known)
    if conflicts := apply.conflicts(wanted, known):
        _say_conflicts(conflicts, as_json)
        raise FindingError(
            f"{len(conflicts)} of {len(wanted.items)} items are in the way; nothing was changed",
            remedy="Look at them, move them away or take them over, then run install again",
        )
    if dry_run:
        _say_plan(located, site, wanted, apply.changes(wanted, known), as_json)
        return
    told = events.Event("site.install", room="site", reason=f"release {wanted.version} on a site of type {site.type}")
    trail = trail_path(located.settings)
    events.append(trail, told._replace(phase="intent"), durable=True)
    daemons = _daemons(located, site, shipped)
    done = steps.install(
        located.settings,
        wanted,
        known,
        connect(located.settings),
        daemons,
        lambda line: None if as_json else say_text(line),
    )
    events.append(trail, told._replace(phase="done", data={"active": done.active, "generation": done.generation}))
    notes = _notes(located, wanted)
    if as_json:
        changes = [change._asdict() for change in done.changes if change.what != "keep"]
        say_json({**done._asdict(), "site": site._asdict(), "changes": changes, "notes": notes})
    else:
        for note in notes:
            say_text(f"note: {note}")
    if not done.active:
        say_text(
            f"slurm.conf does not bring the hooks in yet: add `{wanted.include_line}` as its last line and run "
            "`scontrol reconfigure`",
            err=True,
        )
        context.exit(EXIT_PARTLY)


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def uninstall(context: click.Context, dry_run: bool, as_json: bool) -> None:
    """Take out everything that install put in; trails and evidence stay."""
    located = locate()
    settings = located.settings
    path = manifest.manifest_path(settings)
    known = manifest.load(path)
    libraries = install_nccl.folder_of(located, "")
    if not known.entries and nccl_library.installed(libraries):
        _needs_root(dry_run)
        _take_libraries(libraries, dry_run=dry_run, as_json=as_json)
        return
    if not known.entries:
        raise LackingError(f"nothing is installed here ({path} is missing)", remedy="Is this the right fmslurm.yaml?")
    if dry_run:
        made = [entry.path for entry in known.entries.values() if entry.made]
        if name := nccl_library.installed(libraries):
            made.append(os.path.join(libraries, name))
        if as_json:
            say_json({"dry_run": True, "remove": made, "fragment": known.fragment})
        else:
            for name in made:
                say_text(f"remove {name}")
        return
    _needs_root(dry_run)
    site = _site(located)
    sets = slurm_conf.collect(site.slurm_conf, skip=known.fragment) if os.path.isfile(site.slurm_conf) else {}
    trail = trail_path(settings)
    told = events.Event("site.uninstall", room="site", reason=f"release {known.version} is taken out")
    events.append(trail, told._replace(phase="intent"), durable=True)
    slurm = connect(settings) if f"{settings.site.share}/config" in known.entries or not settings.site.share else None
    done = steps.uninstall(
        settings,
        known,
        slurm,
        _daemons(located, site, release.collect()),
        lambda line: None if as_json else say_text(line),
        included="Include" in sets,
    )
    # Only now: until Slurm has let go of the hooks, their burn-in needs it.
    nccl_library.remove_all(libraries)
    done = done._replace(left=_still_left(done.left, known.entries))
    events.append(trail, told._replace(phase="done", data={"left": len(done.left)}))
    if as_json:
        say_json({"left": [conflict._asdict() for conflict in done.left], "daemons": done.daemons})
    else:
        for conflict in done.left:
            say_text(f"left {conflict.path}: {conflict.why}")
    if any(conflict.why.startswith("was changed") for conflict in done.left):
        context.exit(EXIT_PARTLY)


def _still_left(left: tuple[Conflict, ...], entries: Mapping[str, Entry]) -> tuple[Conflict, ...]:
    """Return what is left, without the folders of ours that only the library had kept from going."""
    kept = []
    for conflict in sorted(left, key=lambda conflict: -conflict.path.count("/")):
        entry = entries.get(conflict.path)
        try:
            if entry is None or entry.kind != FOLDER or not entry.made:
                raise OSError
            os.rmdir(conflict.path)
        except OSError:
            kept.append(conflict)
    return tuple(kept)


def _take_libraries(folder: str, *, dry_run: bool, as_json: bool) -> None:
    """Take NCCL out of a machine that has nothing else of ours."""
    removed = [os.path.join(folder, nccl_library.installed(folder))] if dry_run else nccl_library.remove_all(folder)
    if as_json:
        say_json({"dry_run": dry_run, "remove": removed})
        return
    for name in removed:
        say_text(f"remove {name}")


def _site(located: Located) -> detect.Site:
    return detect.detect(located.settings)


def _needs_root(dry_run: bool) -> None:
    if os.geteuid() != 0 and not dry_run:
        raise LackingError("only root may do this", remedy="Run it through sudo, or with --dry-run")


def _by_hand(site: detect.Site, as_json: bool) -> None:
    needs = detect.BY_HAND[site.type]
    if as_json:
        say_json({"site": site._asdict(), "installed": False, "needs": needs})
        return
    say_text(
        f"This is a site of type {site.type} ({site.why}); install does not write there yet. It needs, by hand:",
        err=True,
    )
    for need in needs:
        say_text(f"  - {need}", err=True)


def _plan(located: Located, site: detect.Site, shipped: Release, role: str, health_check: bool) -> Plan:
    fragment = os.path.join(os.path.dirname(site.slurm_conf), "fmslurm.conf")
    sets = slurm_conf.collect(site.slurm_conf, skip=fragment)
    if blocked := in_the_way(sets):
        raise LackingError("; ".join(blocked), remedy="Then run install again")
    head = sets.get("SlurmctldHost", "").split("(")[0] in (socket.gethostname(), socket.gethostname().split(".")[0])
    role = "both" if site.type == "lab" else role
    place = Place(
        slurm_conf=site.slurm_conf,
        sets=sets,
        config_path=located.path or DEFAULT_PATH,
        systemd=systemd.runs() and site.type != "lab",
        head=role in ("head", "both") or (role == "auto" and head),
        node=role in ("node", "both") or (role == "auto" and not head),
        health_check=health_check,
        seed_config=not located.path,
    )
    return plan(located.settings, shipped, place)


def _daemons(located: Located, site: detect.Site, shipped: Release) -> steps.Daemons:
    programs = tuple(name for name in ("fmslurm-controller", "fmslurm-agent") if f"bin/{name}" in shipped.files)
    if site.type == "lab":
        lab = Lab.load(os.path.dirname(os.path.dirname(os.path.dirname(site.slurm_conf))))
        return LabDaemons(lab, os.path.join(located.settings.site.prefix, "current"), located.path, programs)
    units = tuple(
        name for name in (*programs, "fmslurm-topology") if os.path.isfile(f"/etc/systemd/system/{name}.service")
    )
    return systemd.Units(units if systemd.runs() else ())


def _notes(located: Located, wanted: Plan) -> list[str]:
    notes = list(wanted.notes)
    if not located.settings.site.share:
        notes.append("site.share is empty: hooks keep every room off until it is set and `fmslurm config push` was run")
    return notes


def _say_plan(located: Located, site: detect.Site, wanted: Plan, changes: list[apply.Change], as_json: bool) -> None:
    todo = [change for change in changes if change.what != "keep"]
    notes = _notes(located, wanted)
    if as_json:
        data: dict[str, Any] = {"dry_run": True, "version": wanted.version, "site": site._asdict(), "notes": notes}
        say_json({**data, "changes": [change._asdict() for change in todo]})
        return
    say_text(f"site of type {site.type} ({site.why}), release {wanted.version}")
    for change in todo:
        say_text(f"{change.what:8}{change.path}")
    say_text(f"{len(todo)} to change, {len(changes) - len(todo)} as they should be")
    if not wanted.includes_fragment:
        notes.append(f"slurm.conf needs `{wanted.include_line}` as its last line")
    for note in notes:
        say_text(f"note: {note}")


def _say_conflicts(conflicts: list[Conflict], as_json: bool) -> None:
    if as_json:
        say_json({"conflicts": [conflict._asdict() for conflict in conflicts]})
        return
    for conflict in conflicts:
        say_text(f"{conflict.path}: {conflict.why}")
        if conflict.diff:
            say_text(conflict.diff)

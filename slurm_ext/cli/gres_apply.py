"""`fmslurm gres apply`: write gres.conf where Slurm reads it, tell Slurm, look whether it took it, and put the old one back if not."""

from __future__ import annotations

import difflib
import json
import os
import time
from typing import Any

import click

from slurm_ext import events
from slurm_ext.cli.actor import actor
from slurm_ext.cli.gres_check import gres_lines, slurm_nodes
from slurm_ext.cli.gres_offers import offer_options, offers_of
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.cli.topology_source import reach
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.config.locate import trail_path
from slurm_ext.config.model import Settings
from slurm_ext.errors import FindingError, FmslurmError, LackingError, PartlyDoneError, SlurmError, UsageError
from slurm_ext.gres.change import Change, change, refusals
from slurm_ext.gres.collect import MOST_GPUS, is_device
from slurm_ext.gres.model import GresLine
from slurm_ext.gres.read_conf import gres_lines as lines_of
from slurm_ext.gres.render import Offer, gres_conf, pcs_groups
from slurm_ext.site.detect import Site, detect
from slurm_ext.slurm import conf_file, versions
from slurm_ext.slurm.conf_file import Held
from slurm_ext.slurm.model import Node
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.topology.backing import all_nodes

#: Seconds until every slurmd has registered what `scontrol reconfigure` told it, where it begins anew for that; where it does not
#: (22.05.8), until it may have ended over the file: after 19 s for a device that is not there. Then until it is given up.
ANEW_S, SETTLE_S, GIVE_UP_S, LOOK_EVERY_S = 3.0, 25.0, 45.0, 0.5

#: Kinds of site where somebody else writes gres.conf, and where what is right can be said instead.
NOT_OURS: dict[str, str] = {
    "parallelcluster": "The lines above would be right. ParallelCluster writes gres.conf anew at each update and takes no Gres of yours: "
    "`fmslurm gres check --pcluster` says what its own lines cost, and what can be set in the cluster's configuration",
    "pcs": "The controller is AWS's: give what is printed above to the compute node groups (slurmConfiguration)",
    "hyperpod": "HyperPod's lifecycle scripts write gres.conf: put the lines above into them",
}


@click.command()
@offer_options
@click.option("--device-dir", default="/dev", show_default=True, help="where the nvidia device files are")
@click.option("--dry-run", is_flag=True, help="say what would be written and what would follow")
@click.option(
    "--force", is_flag=True, help="replace a gres.conf that is not ours, or that was changed by hand; a copy stays"
)
@click.option("--reason", default="", help="why, for the trail")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def apply(device_dir: str, dry_run: bool, force: bool, reason: str, as_json: bool, **sources: Any) -> None:
    """Write gres.conf into the running Slurm's own folder and reconfigure, where topology.gres is `write` and it is safe."""
    settings = site_settings()
    site = detect(settings)
    offers = offers_of(settings, **sources)
    if site.type in NOT_OURS:
        if not as_json:
            say_text(_instead(site.type, offers, device_dir), nl=False)
        raise LackingError(f"this is a {site.type} site ({site.why})", remedy=NOT_OURS[site.type])
    text = conf_file.stamped(gres_conf(offers, device_dir=device_dir))
    slurm = reach(settings).slurm()
    held = conf_file.look(_path(site, slurm))
    nodes = all_nodes(slurm)
    after = lines_of("the new gres.conf", text)
    planned = change(_before(held), after, nodes, slurm_nodes(site.slurm_conf), _shown(offers, device_dir))
    nothing = held.state == conf_file.OURS and not planned.gpus and not planned.cores
    refused = () if nothing else _refused(settings, held, planned, force=force)
    told = _told(held, planned, refused, nothing=nothing)
    if not as_json:
        _say(held, text, told, nothing=nothing)
    if refused and not dry_run:
        raise UsageError(
            f"{held.path} is as it was: " + "; ".join(refused), remedy="`--dry-run` shows what would change"
        )
    writes = not nothing and not dry_run
    copy = _do(settings, slurm, held, text, planned, nodes, after, reason) if writes else ""
    if as_json:
        say_json(told | {"written": writes, "copy": copy, "dry_run": dry_run})
    elif writes:
        say_text(f"wrote {held.path}" + (f"; what was there is {copy}" if copy else ""))


def _instead(kind: str, offers: dict[str, Offer], device_dir: str) -> str:
    """Return what would be right on a site whose gres.conf is not ours."""
    if kind == "pcs":
        return json.dumps(pcs_groups(offers, device_dir=device_dir), indent=2) + "\n"
    return gres_conf(offers, device_dir=device_dir)


def _path(site: Site, slurm: Slurm) -> str:
    """Return where the running Slurm reads gres.conf. Raise LackingError where that is not the slurm.conf we know of."""
    if not site.slurm_conf:
        raise LackingError("there is no slurm.conf here", remedy="Run this on the head node, or set site.slurm_conf")
    running = slurm.config().get("SLURM_CONF", "")
    if "/run/slurm/" in site.slurm_conf or (running and os.path.realpath(running) != os.path.realpath(site.slurm_conf)):
        raise LackingError(
            f"{site.slurm_conf} is not the file that slurmctld reads ({running or 'it is a configless copy'})",
            remedy="Run this on the head node, or set site.slurm_conf",
        )
    return os.path.join(os.path.dirname(os.path.realpath(site.slurm_conf)), "gres.conf")


def _shown(offers: dict[str, Offer], device_dir: str) -> dict[str, frozenset[str]]:
    """Return the device files that each node told of, or another node of its type; in a folder of one's own those on this machine."""
    if device_dir != "/dev":
        here = frozenset(path for number in range(MOST_GPUS) if is_device(path := f"{device_dir}/nvidia{number}"))
        return dict.fromkeys(offers, here)
    return {
        node: frozenset(f"{device_dir}/nvidia{gpu.number}" for gpu in offer.seen.gpus if gpu.has_file)
        for node, offer in offers.items()
        if offer.seen is not None
    }


def _before(held: Held) -> list[GresLine] | None:
    """Return the lines of the file that is there, with what it includes; None where nobody can read them."""
    if held.state == conf_file.MISSING:
        return []
    try:
        return gres_lines(held.path)
    except (UsageError, LackingError) as exc:
        say_text(f"fmslurm: {exc}", err=True)
        return None


def _refused(settings: Settings, held: Held, planned: Change, *, force: bool) -> tuple[str, ...]:
    found = list(planned.refused)
    if settings.topology.gres != "write":
        found.insert(0, "topology.gres is report_only: set it to write in fmslurm.yaml")
    try:
        conf_file.refuse_foreign(held, force=force)
    except UsageError as exc:
        found.insert(0, str(exc))
    return tuple(found)


def _told(held: Held, planned: Change, refused: tuple[str, ...], *, nothing: bool) -> dict[str, Any]:
    return {
        "file": held.path,
        "state": held.state,
        "changes": not nothing,
        "gpus": planned.gpus,
        "cores": planned.cores,
        "refused": refused,
        "reconfigure": bool(planned.gpus) and not nothing,
        "restart_slurmctld": bool(planned.cores) and not nothing,
    }


def _say(held: Held, text: str, told: dict[str, Any], *, nothing: bool) -> None:
    if nothing:
        say_text(f"{held.path} is right: nothing to do")
        return
    before, after = conf_file.bare(held.text).splitlines(), conf_file.bare(text).splitlines()
    for line in difflib.unified_diff(before, after, held.path, "as it should be", n=1, lineterm=""):
        say_text(line)
    for reason in told["refused"]:
        say_text(f"refused: {reason}", err=True)
    if told["reconfigure"]:
        say_text("then: `scontrol reconfigure`, which this command does")
    if told["restart_slurmctld"]:
        say_text(
            "then: restart slurmctld, which this command does not do: changed Cores= take effect only so (gres.conf(5))"
        )


def _do(
    settings: Settings,
    slurm: Slurm,
    held: Held,
    text: str,
    planned: Change,
    nodes: list[Node],
    after: list[GresLine],
    reason: str,
) -> str:
    """Write the file, let Slurm read it, and look at every node; return where a copy of the old file is."""
    event = events.Event(
        "gres.apply",
        room="gres",
        reason=reason or planned.words(),
        decision=planned.words(),
        data={"file": held.path, "gpus": planned.gpus, "cores": planned.cores, "actor": actor().data()},
    )
    trail = trail_path(settings)
    try:
        events.append(trail, event._replace(phase="intent"), durable=True)
    except OSError as exc:
        raise LackingError(f"{trail}: {exc.strerror}", remedy="Run this as root") from exc
    try:
        kept = conf_file.replace(held, text, when=conf_file.moment())
    except FmslurmError as exc:  # a full disk, or somebody else wrote meanwhile: what was there is untouched
        events.append(trail, event._replace(phase="failed", evidence=(str(exc),)))
        raise
    against: list[str] = []
    if planned.gpus:
        try:
            slurm.reconfigure()
            against = _against(slurm, {node.name: node for node in nodes}, after)
        except SlurmError as exc:
            against = [str(exc)]
    if against:
        _roll_back(slurm, kept)
        events.append(trail, event._replace(phase="failed", evidence=tuple(against)))
        raise FindingError(
            f"Slurm does not take the new gres.conf: {'; '.join(against)}", remedy=f"{held.path} is as it was"
        )
    events.append(trail, event._replace(phase="done"))
    if "enable_configless" not in slurm.config().get("SlurmctldParameters", ""):
        say_text(
            "fmslurm: nodes that do not share this folder need a copy of the file (Slurm is not configless)", err=True
        )
    return kept.copy


def _roll_back(slurm: Slurm, kept: conf_file.Kept) -> None:
    conf_file.restore(kept)
    try:
        slurm.reconfigure()
    except SlurmError as exc:
        raise PartlyDoneError(
            f"the old {kept.before.path} is back, and slurmctld does not answer: {exc}",
            remedy="Look at slurmctld's log",
        ) from exc


def _against(slurm: Slurm, before: dict[str, Node], after: list[GresLine]) -> list[str]:
    """Return what Slurm holds against the file, once slurmds had time to register; what stays until it is given up counts."""
    began, starts_anew = time.monotonic(), versions.has(slurm.version(), "slurmd-anew-on-reconfigure")
    settle_s = ANEW_S if starts_anew else SETTLE_S
    while True:
        time.sleep(LOOK_EVERY_S)
        try:
            found = refusals(before, all_nodes(slurm), after, starts_anew=starts_anew)
        except SlurmError as exc:
            found = [str(exc)]
        spent = time.monotonic() - began
        if (spent >= settle_s and not found) or spent >= GIVE_UP_S:
            return found

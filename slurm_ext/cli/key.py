"""`fmslurm key`: the keys that nodes prove themselves by where there is no munge; make, replace, bring to a node, show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from slurm_ext import credential_tls, events, keys
from slurm_ext.cli.mode import who
from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.config.locate import trail_path
from slurm_ext.config.model import at_node, machine_name
from slurm_ext.errors import LackingError

DAY_S = 86_400.0

FOLDER = click.option(
    "--dir", "folder", default="", metavar="DIR", help="The folder of keys; default: this machine's own."
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done.")
REASON = click.option("--reason", default="", help="Why, for the trail.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.group(invoke_without_command=True)
@click.pass_context
def key(context: click.Context) -> None:
    """The site's keys, where there is no munge: show, create, rotate, sync. Without a command: show."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@key.command()
@FOLDER
@click.option("--noheader", is_flag=True, help="No line of column names.")
@AS_JSON
def show(folder: str = "", noheader: bool = False, as_json: bool = False) -> None:
    """Show this machine's keys: which, how old, and until when. No secret is shown."""
    folder = folder or own_folder()
    with _told_apart(folder):
        found = credential_tls.read_keys(folder)
    now = time.time()
    rows = [_as_data(one, place, now) for place, one in enumerate(found)]
    if as_json:
        say_json({"folder": folder, "keys": rows})
        return
    if not found:
        say_text(f"there is no key in {folder}")
        return
    table = [(str(r["id"]), str(r["state"]), f"{r['age_d']:.1f} d", str(r["expires"])) for r in rows]
    say_table(("KEY", "STATE", "AGE", "EXPIRES"), table, header=not noheader)


@key.command()
@FOLDER
@DRY_RUN
@REASON
@AS_JSON
def create(folder: str, dry_run: bool, reason: str, as_json: bool) -> None:
    """Make the site's first key. It serves once the same folder is on every node: see `fmslurm key sync`."""
    _do("create", keys.create, folder, dry_run, reason, as_json)


@key.command()
@FOLDER
@click.option("--finish", is_flag=True, help="Every node has the new key: forget the one before it.")
@DRY_RUN
@REASON
@AS_JSON
def rotate(folder: str, finish: bool, dry_run: bool, reason: str, as_json: bool) -> None:
    """Make a new key beside the newest one; nodes use it as soon as both sides hold it. End it with --finish."""
    _do("finish" if finish else "rotate", keys.finish if finish else keys.rotate, folder, dry_run, reason, as_json)


@key.command()
@click.argument("source", metavar="SOURCE")
@FOLDER
@DRY_RUN
@REASON
@AS_JSON
def sync(source: str, folder: str, dry_run: bool, reason: str, as_json: bool) -> None:
    """Make this machine hold exactly the keys in the folder SOURCE, which only root may read: for a boot script or an image."""

    def copy(own: str, *, dry_run: bool) -> keys.Change:
        return keys.sync(own, source, dry_run=dry_run)

    _do("sync", copy, folder, dry_run, reason, as_json)


def own_folder() -> str:
    """Return the folder of this machine's keys."""
    return credential_tls.folder(at_node(located_settings().site.state_dir, machine_name()))


def _do(verb: str, work: Callable[..., keys.Change], folder: str, dry_run: bool, reason: str, as_json: bool) -> None:
    folder = folder or own_folder()
    told = events.Event(
        f"key.{verb}", reason=reason or "no reason given", phase="intent", data={"folder": folder, **who()}
    )
    settings = located_settings()
    with _told_apart(folder):
        if not dry_run:
            events.append(trail_path(settings), told, durable=True)
        change = work(folder, dry_run=dry_run)
        if not dry_run:
            ids = {name: [one.id for one in getattr(change, name)] for name in change._fields}
            events.append(trail_path(settings), told._replace(phase="done", data={**told.data, **ids}))
    if as_json:
        ids = {name: [one.id for one in getattr(change, name)] for name in change._fields}
        say_json({"folder": folder, "dry_run": dry_run, "new": verb in ("create", "rotate"), **ids})
        return
    if dry_run and verb in ("create", "rotate"):
        say_text(f"would make a new key in {folder}")
    for word, some in (("new", change.added), ("kept", change.kept), ("removed", change.removed)):
        for one in some:
            say_text(f"{'would be ' if dry_run else ''}{word}: {one.id}")
    if verb in ("create", "rotate") and not dry_run:
        say_text(f"Bring {folder} to every node, readable by root alone, and run `fmslurm key sync SOURCE` there")
    if verb == "rotate" and not dry_run:
        say_text("Once every node has it: `fmslurm key rotate --finish`, and bring the folder to the nodes again")


@contextmanager
def _told_apart(folder: str) -> Iterator[None]:
    """Turn a file that cannot be read or written into words about keys."""
    try:
        yield
    except OSError as exc:
        raise LackingError(
            f"{exc.filename or folder}: {exc.strerror or exc}", remedy="Run it as root; is the disk full?"
        ) from exc


def _as_data(one: credential_tls.Key, place: int, now: float) -> dict[str, object]:
    state = (
        "expired"
        if now >= one.expires
        else "newest"
        if not place
        else "valid"
        if place < credential_tls.VALID_KEYS
        else "ignored"
    )
    return {
        "id": one.id,
        "fingerprint": one.fingerprint,
        "state": state,
        "age_d": round((now - one.created) / DAY_S, 2),
        "created": events.stamp(one.created),
        "expires": events.stamp(one.expires),
        "file": one.path,
    }

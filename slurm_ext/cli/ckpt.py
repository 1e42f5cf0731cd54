"""`fmslurm ckpt`: which checkpoints there are and where, save and restore them by hand, and read them again."""

from __future__ import annotations

import json
import os
import pwd
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from slurm_ext import command
from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.config import locate
from slurm_ext.config.model import Settings, machine_name
from slurm_ext.errors import EXIT_FINDING, FindingError, FmslurmError, LackingError, UsageError
from slurm_ext.request import is_checkpoint_dir, is_run_name
from slurm_ext.staging import Checkpoints, find
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.local import copy_tree
from slurm_ext.staging.survey import DAMAGED, LUSTRE, NVME, S3, UNKNOWN, WHOLE, Place, Row, known_runs, latest, survey

#: Moving and reading whole checkpoints takes hours where they are large; a person watches and can interrupt.
_MOVE_TIMEOUT_S = 86_400.0

Command = TypeVar("Command", bound=Callable[..., Any])


def _place_options(function: Command) -> Command:
    """Add the options that say whose checkpoints are meant."""
    for option in (
        click.option(
            "--dir", "folder", envvar="FMSLURM_CKPT_DIR", default="", help="The checkpoint folder of the run."
        ),
        click.option(
            "--run", envvar="FMSLURM_RUN_ID", default="", help="The run's name; default: as the folder tells."
        ),
        click.option("--user", default="", help="Whose run it is (root only); default: the folder's owner."),
        click.option("--node", default="", help="Whose NVMe is looked at; default: this machine."),
    ):
        function = option(function)
    return function


def _place(folder: str, run: str, user: str, node: str) -> tuple[Settings, Place]:
    """Return settings and place for the options. Raise UsageError for what cannot be meant."""
    settings = locate.settings()
    if folder:
        folder = os.path.abspath(folder)
        if not is_checkpoint_dir(folder):
            raise UsageError(f"not a checkpoint folder: {folder}")
    if run and not is_run_name(run):
        raise UsageError(f"not a run name: {run}", remedy="Letters, digits, dot, dash and underscore, at most 64")
    uid = os.geteuid()
    if user:
        try:
            uid = int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
        except KeyError as exc:
            raise UsageError(f"there is no user {user}") from exc
    elif uid == 0 and folder and os.path.isdir(folder):
        uid = os.stat(folder).st_uid
    if os.geteuid() not in (0, uid):
        raise UsageError("only root may look at the checkpoints of others")
    if not folder and not run:
        raise UsageError(
            "it is not said which run is meant", remedy="Name the folder with --dir, or the run with --run"
        )
    folder = find.checkpoint_folder(settings, run, folder, uid)
    node = node or os.environ.get("SLURMD_NODENAME", "") or machine_name()
    return settings, Place(uid, run, folder, node)


def _is_missing(folder: str) -> bool:
    """Say whether there is surely no such folder; one that is closed to us may be there."""
    try:
        return not stat.S_ISDIR(os.stat(folder).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


@click.group(invoke_without_command=True)
@click.pass_context
def ckpt(context: click.Context) -> None:
    """Checkpoints of a run: where each lies and how whole it is. Without a command: list."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@ckpt.command("list")
@_place_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--noheader", is_flag=True, help="No line of column names.")
def list_(
    folder: str = "", run: str = "", user: str = "", node: str = "", as_json: bool = False, noheader: bool = False
) -> None:
    """List the steps, the newest first, with the tiers that hold them."""
    folder = folder or os.environ.get("FMSLURM_CKPT_DIR", "")
    settings, place = _place(folder, run, user, node)
    if folder and not run and _is_missing(place.folder):
        # `latest` finds none there, as before a first save; who lists a folder wants to know that the name is wrong.
        raise UsageError(
            f"there is no folder {folder}", remedy="Correct the path, or add --run for what other tiers hold"
        )
    found, now = survey(settings, place), time.time()
    if as_json:
        say_json(
            {
                "dir": place.folder,
                "runs": known_runs(settings, place),
                "node": place.node,
                "unknown": found.unknown,
                "checkpoints": [_row_fields(row, now) for row in found.rows],
            }
        )
        return
    kinds = [kind for kind in (NVME, LUSTRE, S3) if any(kind in row.tiers for row in found.rows)]
    lines = [
        [str(row.step), _size_words(row.size), str(row.files), _age_words(now - row.created) if row.created else "-"]
        + [row.tiers.get(kind, "-") for kind in kinds]
        + [row.attempt]
        for row in found.rows
    ]
    if lines:
        heads = [f"NVME({place.node})" if kind == NVME else kind.upper() for kind in kinds]
        say_table(["STEP", "SIZE", "FILES", "AGE", *heads, "ATTEMPT"], lines, header=not noheader)
    else:
        say_text("no checkpoints", err=True)
    for tier, why in found.unknown.items():
        say_text(f"{tier} could not be looked at: {why}", err=True)


def _row_fields(row: Row, now: float) -> dict[str, Any]:
    """Return a row as plain data."""
    return {
        "step": row.step,
        "attempt": row.attempt,
        "bytes": row.size,
        "files": row.files,
        "created": row.created,
        "age_s": round(now - row.created, 1) if row.created else None,
        "tiers": row.tiers,
        "whole": bool(row.nearest),
        "nearest": row.nearest,
        "path": row.path,
        "words": list(row.words),
    }


@ckpt.command()
@_place_options
@click.argument("step", type=int)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(step: int, folder: str, run: str, user: str, node: str, as_json: bool) -> None:
    """Show one step: what every tier has of it."""
    settings, place = _place(folder, run, user, node)
    found = survey(settings, place)
    row = next((row for row in found.rows if row.step == step), None)
    if row is None:
        raise FindingError(f"no tier that could be looked at knows step {step}")
    fields = _row_fields(row, time.time())
    if as_json:
        say_json({**fields, "unknown": found.unknown})
        return
    for name, value in fields.items():
        if name not in ("tiers", "words"):
            say_text(f"{name:9} {value}")
    for tier, state in row.tiers.items():
        say_text(f"{tier:9} {state}" + (f" ({found.unknown[tier]})" if state == UNKNOWN else ""))
    for words in row.words:
        say_text(words)


@ckpt.command("latest")
@_place_options
@click.option("--path", "only_path", is_flag=True, help="Print the folder alone.")
@click.option("--single-node", is_flag=True, help="The job has one node: a newer step on its own NVMe counts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def latest_(
    context: click.Context,
    folder: str,
    run: str,
    user: str,
    node: str,
    only_path: bool,
    single_node: bool,
    as_json: bool,
) -> None:
    """Print the newest complete checkpoint on NVMe or the shared file system; exit 1 where there is none."""
    settings, place = _place(folder, run, user, node)
    found = latest(settings, place, single_node=single_node)
    if as_json:
        say_json({"latest": found._asdict() if found else None})
    elif found is not None:
        say_text(found.path if only_path else f"step {found.step} in {found.tier}: {found.path}")
    if found is None:
        if not as_json:
            say_text("no complete checkpoint", err=True)
        context.exit(EXIT_FINDING)


@ckpt.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False))
@click.option("--step", type=click.IntRange(0), required=True, help="The step that the files belong to.")
@click.option("--dir", "folder", default="", help="The checkpoint folder; default: what the job was given.")
@click.option("--run", default="", help="The run's name; default: what the job was given.")
@click.option("--shard", type=click.IntRange(0), default=0, show_default=True, help="Which shard the files are.")
@click.option("--world", type=click.IntRange(1), default=1, show_default=True, help="Of how many shards.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def save(source: str, step: int, folder: str, run: str, shard: int, world: int, as_json: bool) -> None:
    """Save the files in SOURCE as (a shard of) a checkpoint: durable on NVMe in a job, else in the checkpoint folder."""
    checkpoints = Checkpoints(run=run, directory=os.path.abspath(folder) if folder else "", shard=shard, world=world)
    entries = manifests.walk(source, shard=shard)
    saved = checkpoints.save(step, lambda target: copy_tree(source, target, entries))
    if as_json:
        say_json(saved._asdict())
    else:
        say_text(
            f"step {saved.step}: {saved.where}, {_size_words(saved.bytes)}"
            + (f" ({saved.reason})" if saved.reason else "")
        )
    if saved.where == "skipped":
        raise FindingError(f"step {step} was not saved: {saved.reason}")


@ckpt.command()
@_place_options
@click.option("--step", type=click.IntRange(0), default=None, help="Which step; default: the newest that is whole.")
@click.option(
    "--to", default="", help="Copy it into this folder, verified; default: only fetch it where it lies in S3 alone."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def restore(folder: str, run: str, user: str, node: str, step: int | None, to: str, as_json: bool) -> None:
    """Print the folder of a complete checkpoint, fetched from the nearest tier that has it."""
    settings, place = _place(folder, run, user, node)
    found = survey(settings, place)
    row = next((row for row in found.rows if row.nearest and step in (None, row.step)), None)
    if row is None:
        why = "".join(f"; {tier} could not be looked at: {words}" for tier, words in found.unknown.items())
        raise FindingError(f"no complete checkpoint{'' if step is None else f' of step {step}'}{why}")
    path = row.path
    target = os.path.abspath(to) if to else place.folder
    if row.nearest == S3 or to:
        if not target:
            raise UsageError("it lies in S3 alone", remedy="Say where it should go with --to DIR")
        from slurm_ext.staging.restore import fetch  # boto3 takes half a second to import

        path = _as_owner(place, lambda: fetch(settings, place, row, target))
    if as_json:
        say_json({"step": row.step, "path": path, "tier": row.nearest, "attempt": row.attempt})
    else:
        say_text(path)


def _wrong_text(tier: str, settings: Settings, place: Place, row: Row) -> str:
    """Return what is wrong with a step in a tier, as JSON."""
    from slurm_ext.staging.restore import wrong_in  # boto3 takes half a second to import

    return json.dumps(wrong_in(tier, settings, place, row))


def _as_owner(place: Place, work: Callable[[], str]) -> str:
    """Return what `work` returns, done in a child where it has to become another user, here otherwise."""
    if os.geteuid() == place.uid:
        return work()

    def child() -> bytes:
        try:
            return json.dumps({"done": work()}).encode()
        except (FmslurmError, OSError) as exc:
            return json.dumps({"error": str(exc)}).encode()

    answer = command.call_bounded(child, timeout_s=_MOVE_TIMEOUT_S)
    told = json.loads(answer) if answer else {"error": "the child that acts as the owner ended without an answer"}
    if "error" in told:
        raise LackingError(str(told["error"]))
    return str(told["done"])


@ckpt.command()
@_place_options
@click.argument("step", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def verify(
    context: click.Context, step: int | None, folder: str, run: str, user: str, node: str, as_json: bool
) -> None:
    """Read a checkpoint (default: the newest) again in every tier that says it is whole; exit 1 where it is not.

    Files are read and their checksums compared; S3 is asked for size and checksum of each object.
    """
    settings, place = _place(folder, run, user, node)
    found = survey(settings, place)
    row = next((row for row in found.rows if step in (None, row.step)), None)
    if row is None:
        raise FindingError("no such checkpoint" if step is not None else "no checkpoint")
    wrong: dict[str, list[str]] = {}
    for tier, state in row.tiers.items():
        if state == WHOLE:
            wrong[tier] = json.loads(_as_owner(place, partial(_wrong_text, tier, settings, place, row)))
        elif state == DAMAGED:
            wrong[tier] = [words for words in row.words if words.startswith(tier)]
    if as_json:
        say_json({"step": row.step, "verified": sorted(wrong), "wrong": wrong, "unknown": found.unknown})
    else:
        for tier, lines in wrong.items():
            say_text(f"step {row.step} in {tier}: " + ("as it was written" if not lines else f"{len(lines)} wrong"))
            for line in lines:
                say_text(f"  {line}")
        for tier, why in found.unknown.items():
            say_text(f"{tier} could not be looked at: {why}", err=True)
    if not wrong:
        raise FindingError(f"step {row.step} is whole in no tier that could be looked at")
    if any(wrong.values()):
        context.exit(EXIT_FINDING)


def _size_words(size_bytes: int) -> str:
    """Return a size for people."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _age_words(age_s: float) -> str:
    """Return an age for people."""
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= seconds:
            return f"{age_s / seconds:.1f} {unit}"
    return f"{max(0.0, age_s):.0f} s"

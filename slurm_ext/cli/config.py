"""`fmslurm config`: is fmslurm.yaml right, where does each value come from, hand it to the nodes."""

from __future__ import annotations

import os
from typing import Any

import click

from slurm_ext import events
from slurm_ext.cli.actor import actor
from slurm_ext.cli.output import say_json, say_table, say_text
from slurm_ext.config import snapshot, targets, yaml_file
from slurm_ext.config.locate import Located, config_path, locate, trail_path
from slurm_ext.config.meanings import MEANINGS
from slurm_ext.config.model import Settings
from slurm_ext.config.render import explained, value_text
from slurm_ext.config.rules import SECTIONS, keys, nearest
from slurm_ext.errors import EXIT_FINDING, ConfigError, FmslurmError, LackingError, UsageError


@click.group(invoke_without_command=True)
@click.pass_context
def config(context: click.Context) -> None:
    """Check, show and push fmslurm.yaml. Without a command: show."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@config.command()
@click.argument("file", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def check(context: click.Context, file: str | None, as_json: bool) -> None:
    """Say everything that is wrong in FILE (default: the site's); exit 1 if anything is."""
    path = file or config_path()
    if not path:
        raise LackingError(
            "there is no fmslurm.yaml, so the defaults hold", remedy="Name a file, or set FMSLURM_CONFIG"
        )
    parsed = with_checks(yaml_file.parse(yaml_file.read_bytes(path)))
    if as_json:
        problems = [problem._asdict() for problem in parsed.problems]
        say_json({"file": path, "ok": not problems, "problems": problems, "source_hash": parsed.settings.source_hash})
    else:
        for problem in parsed.problems:
            say_text(yaml_file.describe(path, problem))
        if not parsed.problems:
            say_text(f"{path}: {len(parsed.lines)} lines set something, nothing is wrong")
    if parsed.problems:
        context.exit(EXIT_FINDING)


def with_checks(parsed: yaml_file.Parsed) -> yaml_file.Parsed:
    """Return what a file says with a problem for each word of `gate.disabled` that names no check."""
    if not parsed.settings.gate.disabled:
        return parsed
    from slurm_ext.gate import disabled

    more = []
    for place, what in disabled.wrong(parsed.settings.gate.disabled):
        at = f"gate.disabled[{place}]"
        more.append(yaml_file.Problem(parsed.items.get(at, parsed.lines.get("gate.disabled", 0)), at, what))
    problems = sorted((*parsed.problems, *more), key=lambda problem: problem.line)
    return parsed._replace(problems=tuple(problems))


@config.command()
@click.argument("key", required=False)
@click.option("--yaml", "as_yaml", is_flag=True, help="A whole fmslurm.yaml with every key explained.")
@click.option("--changed", is_flag=True, help="Only what differs from a first install.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(key: str | None, as_yaml: bool, changed: bool, as_json: bool) -> None:
    """Show each value and where it comes from; with KEY (a section or section.key) only that, and what it means."""
    located = _masked(locate())
    rows = [row for row in _rows(located) if _is_asked(row["key"], key)]
    if not rows:
        raise UsageError(f"no such key: {key}.{nearest(key or '', [row['key'] for row in _rows(located)])}")
    if changed:
        rows = [row for row in rows if row["origin"] != "default"]
    if as_json:
        say_json({"file": located.path, "source_hash": located.settings.source_hash, "values": rows})
    elif as_yaml:
        say_text(explained(located.settings), nl=False)
    elif key and len(rows) == 1:
        only = rows[0]
        for word in ("key", "text", "origin", "default", "expected", "meaning"):
            say_text(f"{'value' if word == 'text' else word:9} {only[word]}")
    else:
        say_table(("KEY", "VALUE", "ORIGIN"), [(row["key"], row["text"], row["origin"]) for row in rows])


def _masked(located: Located) -> Located:
    """Return settings as they may be shown: without what is secret in a webhook's URL."""
    notify = located.settings.notify
    shown = notify._replace(targets=tuple(targets.masked(target) for target in notify.targets))
    return located._replace(settings=located.settings._replace(notify=shown))


def _is_asked(name: str, key: str | None) -> bool:
    return key is None or name == key or name.startswith(f"{key}.")


def _rows(located: Located) -> list[dict[str, Any]]:
    rows = []
    plain, defaults = snapshot.to_plain(located.settings), Settings()
    for section in SECTIONS:
        for name, key in keys(section).items():
            full = f"{section}.{name}"
            rows.append(
                {
                    "key": full,
                    "value": plain[section][name],
                    "text": value_text(getattr(getattr(located.settings, section), name), key),
                    "origin": located.origins[full],
                    "default": value_text(getattr(getattr(defaults, section), name), key),
                    "expected": key.expected,
                    "meaning": MEANINGS[full],
                }
            )
    return rows


@config.command()
@click.option("--dry-run", is_flag=True, help="Check, and say what would be pushed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def push(dry_run: bool, as_json: bool) -> None:
    """Check fmslurm.yaml and hand it to the nodes as a root-owned snapshot on the share; hooks use it from their next run."""
    path = config_path()
    if not path:
        raise LackingError(
            "there is no fmslurm.yaml to push", remedy="Write one; `fmslurm config show --yaml` prints it"
        )
    parsed = with_checks(yaml_file.parse(yaml_file.read_bytes(path)))
    if parsed.problems:
        raise yaml_file.InvalidSettingsError(path, parsed.problems)
    settings = parsed.settings
    if dry_run:
        _needs_share(settings, path)
        stamped = settings._replace(generation=_generation(settings) + 1)
    else:
        stamped = push_settings(settings, path)
    if as_json:
        say_json({"file": path, "share": settings.site.share, "dry_run": dry_run, **_stamp(stamped)})
    else:
        verb = "would be pushed" if dry_run else "pushed"
        say_text(f"generation {stamped.generation} ({stamped.source_hash[:12]}) {verb} to {settings.site.share}")


def push_settings(settings: Settings, path: str) -> Settings:
    """Push settings that came from the file at `path`, with an event before and after, and return them as stamped."""
    _needs_share(settings, path)
    log = trail_path(settings)
    told = events.Event(
        "config.push",
        room="config",
        reason=f"{path} is handed to the nodes",
        config=settings.source_hash[:12],
        data={"actor": actor().data()},
    )
    try:
        events.append(log, told._replace(phase="intent"), durable=True)
        stamped = snapshot.push(settings, settings.site.share)
        events.append(log, told._replace(phase="done", data={**told.data, "generation": stamped.generation}))
    except OSError as exc:
        raise LackingError(f"cannot push: {exc}", remedy="Run it as root on a machine that may write there") from exc
    return stamped


def _needs_share(settings: Settings, path: str) -> None:
    if not settings.site.share:
        raise ConfigError(f"{path}: site.share is empty, so nodes cannot be reached", remedy="Set site.share")
    if not os.path.isdir(settings.site.share):
        raise LackingError(f"{settings.site.share} is no folder here", remedy="Mount it, or run `fmslurm install`")
    if not snapshot.is_marked(settings.site.share):
        raise LackingError(
            f"{settings.site.share} is not a share that install made: it has no {snapshot.LEDGER_FOLDER}",
            remedy="Mount it, or run `fmslurm install`",
        )


def _generation(settings: Settings) -> int:
    try:
        return snapshot.read(os.path.join(settings.site.share, snapshot.SNAPSHOT_FILE)).generation
    except FmslurmError:
        return 0


def _stamp(settings: Settings) -> dict[str, Any]:
    return {"generation": settings.generation, "source_hash": settings.source_hash}

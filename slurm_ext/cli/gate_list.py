"""`fmslurm gate list` and `gate stats`: every check with its state, where it runs and its cost; and how often each was wrong."""

from __future__ import annotations

import time

import click

from slurm_ext.cli.output import fields_option, say_fields, say_json, say_text
from slurm_ext.config.locate import settings as site_settings
from slurm_ext.errors import LackingError

COLUMNS = ("finding", "state", "runs", "cost", "looks_at", "means")


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@fields_option(*COLUMNS)
def list_checks(as_json: bool, fields: tuple[str, ...], noheader: bool) -> None:
    """List every finding there is: whether it is on, in which hooks (or only in a burn-in, or a replay) it is looked for,
    what that costs, and what it means.
    """
    from slurm_ext.gate import checks, disabled

    words = tuple(word for word in site_settings().gate.disabled if word)
    live = {row.id for row in checks.every()}  # gate.disabled is about these
    rows = [
        {
            "finding": row.id,
            "state": "off" if words and row.id in live and row.id.startswith(words) else "on",
            "runs": ",".join(row.phases),
            "cost": row.cost,
            "looks_at": row.what,
            "means": row.means,
        }
        for row in checks.listed()
    ]
    wrong = [what for _, what in disabled.wrong(words)]
    if as_json:
        listed = [{**row, "runs": row["runs"].split(",")} for row in rows]
        say_json({"checks": listed, "disabled": list(words), "disabled_wrong": wrong})
        return
    say_fields(rows, ("finding", "state", "runs", "looks_at", "means"), fields=fields, noheader=noheader)
    for what in wrong:
        say_text(f"gate.disabled: {what}", err=True)


STATS = ("finding", "drains", "nodes", "acks", "alarms", "last")


@click.command("stats")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--days", default=30.0, show_default=True, type=click.FloatRange(0.001, 3650), help="How far back.")
@fields_option(*STATS)
def stats(as_json: bool, days: float, fields: tuple[str, ...], noheader: bool) -> None:
    """Count for each finding the nodes it drained, and how many of those drains a person called a false alarm (`node ack`)."""
    from slurm_ext.slurm import alarms

    settings = site_settings()
    now = time.time()
    found = alarms.read(settings.site.share, since_s=now - days * 86_400)
    if found is None:
        raise LackingError(
            f"the share ({settings.site.share or 'site.share is empty'}) does not answer, so nothing was counted",
            remedy="Run it where the share is mounted",
        )
    rates = alarms.rates(*found)
    if as_json:
        say_json({"days": days, "findings": [rate._asdict() | {"alarm_percent": rate.percent} for rate in rates]})
        return
    rows = [
        {
            "finding": rate.finding,
            "drains": str(rate.drains),
            "nodes": str(rate.nodes),
            "acks": str(rate.acks),
            "alarms": "" if rate.percent is None else f"{rate.percent:.0f} %",
            "last": time.strftime("%Y-%m-%d %H:%M", time.localtime(rate.last_s)) if rate.last_s else "",
        }
        for rate in rates
    ]
    say_fields(rows, STATS, fields=fields, noheader=noheader)
    if not rows:
        say_text(f"nothing was drained or acknowledged in {days:g} days", err=True)

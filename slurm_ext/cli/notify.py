"""`fmslurm notify`: who is told, did it arrive, and does a target work?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import click

from slurm_ext import events
from slurm_ext.cli.actor import actor
from slurm_ext.cli.output import fields_option, say_fields, say_json, say_text
from slurm_ext.cli.times import local
from slurm_ext.config import locate
from slurm_ext.config.model import Settings, Target
from slurm_ext.config.rules import nearest
from slurm_ext.config.targets import name_of
from slurm_ext.errors import EXIT_FINDING, FmslurmError, LackingError, UsageError
from slurm_ext.notices import ready, send, words
from slurm_ext.notices.child import Child
from slurm_ext.notices.model import Fact, Message, Notice, Sent
from slurm_ext.notices.queue import Queue
from slurm_ext.resume.daemon import journal_path
from slurm_ext.resume.journal import Journal
from slurm_ext.slurm import connect

COLUMNS = ("target", "kind", "where", "severity", "last_sent", "last_failed", "waiting", "sent", "lost", "problem")
SHOWN = ("target", "kind", "where", "severity", "last_sent", "last_failed", "waiting", "problem")

#: How long (seconds) Slurm may take to say what the cluster is called.
SLURM_S = 3.0


@click.group(invoke_without_command=True)
@click.pass_context
def notify(context: click.Context) -> None:
    """Targets of notices: list them, try them. Without a command: list."""
    if context.invoked_subcommand is None:
        context.invoke(list_targets)


@notify.command("list")
@fields_option(*COLUMNS)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_targets(as_json: bool = False, fields: tuple[str, ...] = (), noheader: bool = False) -> None:
    """List the targets with their last success, failures, and what waits (root: as the controller's journal has it)."""
    settings = locate.settings()
    with _queue(settings) as queue:
        found = ready.states(settings, queue, mailprog=send.slurms_mail(settings)[0] if _mails(settings) else "")
    if as_json:
        say_json(
            {"targets": [{**state._asdict(), "fails": state.fails} for state in found], "users": settings.notify.users}
        )
        return
    if not found:
        say_text("notify.targets names nobody" + ("; owners of jobs are told" if settings.notify.users else ""))
        return
    say_fields([_row(state) for state in found], SHOWN, fields=fields, noheader=noheader)
    if not all(state.tried for state in found):
        say_text("What was sent is not known here: the controller's journal is root's, and on its machine.", err=True)


@notify.command()
@click.argument("target", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def test(context: click.Context, target: str | None, as_json: bool) -> None:
    """Send a test to TARGET (default: to each), past the queue, and tell what came of it; exit 1 where one fails."""
    settings = locate.settings()
    chosen = _chosen(settings, target)
    message = _message(settings)
    running = {name_of(one): Child(send.work(settings, one, message), timeout_s=send.WHOLE_S) for one in chosen}
    came: dict[str, Sent] = {}
    try:
        for name, child in running.items():
            child.wait(send.WHOLE_S + 5)
            came[name] = send.outcome(child.answer, late=child.late)
    finally:
        for child in running.values():
            child.kill()
    for name, sent in came.items():
        _tell(settings, name, sent)
    if as_json:
        say_json({"results": [{"target": name, "ok": sent.ok, "said": sent.said} for name, sent in came.items()]})
    else:
        for name, sent in came.items():
            say_text(f"{name}: {'sent' if sent.ok else 'FAILED'}: {sent.said}")
    if not all(sent.ok for sent in came.values()):
        context.exit(EXIT_FINDING)


def _chosen(settings: Settings, name: str | None) -> list[Target]:
    targets = settings.notify.targets
    if not targets:
        raise LackingError("notify.targets names nobody", remedy="Write one, e.g. notify: {targets: [{mail: root}]}")
    if name is None:
        return list(targets)
    found = [target for target in targets if name_of(target) == name]
    if not found:
        names = [name_of(target) for target in targets]
        raise UsageError(f"no target is called {name}.{nearest(name, names)}", remedy=f"There are: {', '.join(names)}")
    return found


def _message(settings: Settings) -> Message:
    cluster, now = settings.site.cluster, time.time()
    if not cluster:
        with contextlib.suppress(FmslurmError):
            cluster = connect(settings, timeout_s=SLURM_S).cluster_name()
    who = actor()
    why = f"{who.name} wants to know whether notices arrive"
    notice = Notice(0, "notice.test", now, now, (Fact("notice.test", "", since_s=now, why=why),))
    return words.message(notice, settings.notify, cluster or "?", id_=f"test-{int(now * 1000)}")


def _tell(settings: Settings, name: str, sent: Sent) -> None:
    """Leave an event; who may not write the trail may try a target all the same."""
    event = events.Event(
        "notice.test",
        room="notify",
        reason=f"{name}: a test was {'sent' if sent.ok else 'not taken'}",
        evidence=(sent.said,),
        phase="done" if sent.ok else "failed",
        data={"target": name, "actor": actor().data()},
    )
    with contextlib.suppress(OSError, FmslurmError):
        events.append(locate.trail_path(settings), event)


def _mails(settings: Settings) -> bool:
    return any(target.mail for target in settings.notify.targets)


@contextlib.contextmanager
def _queue(settings: Settings) -> Iterator[Queue | None]:
    """Open the controller's journal to read, None where it is not here or not ours to read."""
    try:
        journal = Journal(journal_path(settings), readonly=True)
    except LackingError:
        yield None
        return
    with contextlib.closing(journal):
        yield Queue(journal.db)


def _row(state: ready.State) -> dict[str, str]:
    known: dict[str, Any] = {
        name: str(getattr(state, name)) if state.tried else "?" for name in ("waiting", "sent", "lost")
    }
    failed = local(state.last_failed or 0.0)
    return {
        "target": state.name,
        "kind": state.kind,
        "where": state.where,
        "severity": state.severity,
        "last_sent": local(state.last_sent or 0.0) or ("never" if state.tried else "?"),
        "last_failed": failed or ("never" if state.tried else "?"),
        "problem": state.problem or (state.said if state.fails else ""),
        **known,
    }

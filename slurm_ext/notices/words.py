"""A notice in words: a subject of one line, and a text that says what, where, since when, why, and what to do next. Pure."""

from __future__ import annotations

import string
import time
from collections.abc import Sequence

from slurm_ext.config.model import Notify
from slurm_ext.notices.kinds import KINDS, Kind, severity_of
from slurm_ext.notices.model import PAGE, Fact, Message, Notice
from slurm_ext.slurm.hostlist import HostlistError, fold
from slurm_ext.verdict import one_line

#: A subject is no longer than this: what phones and lists of mails show of one.
SUBJECT_CHARS = 120

#: Of a notice on many things so many are told one by one, each in so many characters; the reason in so many.
LINES, LINE_CHARS, WHY_CHARS, WHERE_CHARS = 20, 300, 600, 300

_WIDE = (("What", "what"), ("Where", "where"), ("Since", "since"), ("Why", "why"), ("Next", "next"))


def message(notice: Notice, notify: Notify, cluster: str, *, id_: str, severity: str = "") -> Message:
    """Return a notice in words: the site's own templates where it has any, else the built-in ones. `severity` empty: the kind's."""
    kind = KINDS[notice.kind]
    facts, first = notice.facts, notice.facts[0]
    count = sum(fact.size for fact in facts)
    where = _where(facts)
    since_s = min(fact.since_s for fact in facts)
    reasons = list(dict.fromkeys(fact.why for fact in facts if fact.why))
    why = reasons[0] if len(reasons) == 1 else f"{len(reasons)} reasons, below" if reasons else ""
    told = {
        "cluster": one_line(cluster, 64),
        "severity": severity or severity_of(kind, dry_run=notice.dry_run),
        "kind": notice.kind,
        "what": _what(kind, count, dry_run=notice.dry_run),
        "where": where,
        "since": _stamp(since_s) if since_s else "",
        "why": one_line(why, WHY_CHARS),
        "next": _next(kind, facts),
        "time": _stamp(notice.made_s),
    }
    subject = _own(notify.subject, told) if notify.subject else _subject(kind, told, first)
    text = _own(notify.text, told) if notify.text else _text(told, facts, dry_run=notice.dry_run)
    return Message(
        id_, subject=_cut(subject, SUBJECT_CHARS), text=text, dry_run=notice.dry_run, owner=notice.owner, **told
    )


def _what(kind: Kind, count: int, *, dry_run: bool) -> str:
    form = kind.would if dry_run and kind.would else kind.what
    return form.format(count=count, s="" if count == 1 else "s", is_are="is" if count == 1 else "are")


def _where(facts: Sequence[Fact]) -> str:
    """Return all places, nodes as a hostlist."""
    names = list(dict.fromkeys(fact.where for fact in facts if fact.where))
    try:
        if len(names) > 1 and all(not fact.job for fact in facts):
            return one_line(fold(names), WHERE_CHARS)
    except HostlistError:
        pass
    return one_line(", ".join(names), WHERE_CHARS)


def _next(kind: Kind, facts: Sequence[Fact]) -> str:
    where = _where(facts)
    job = facts[0].job if len(facts) == 1 else "JOB"
    return kind.next.format(where=where if where and len(where) <= 60 else "NODES", job=job or "JOB")


def _subject(kind: Kind, told: dict[str, str], first: Fact) -> str:
    if kind.to_owner:
        # As Slurm's own mails begin, so that filters and programs that read those find the job.
        name = f" Name={one_line(first.job_name, 24)}" if first.job_name else ""
        return f"Slurm Job_id={first.job}{name} {told['what']}: {told['why']}"
    page = "PAGE: " if told["severity"] == PAGE else ""
    where = f": {told['where']}" if told["where"] else ""
    return f"fmslurm {told['cluster']}: {page}{told['what']}{where}"


def _text(told: dict[str, str], facts: Sequence[Fact], *, dry_run: bool) -> str:
    place = f"{told['where']}, cluster {told['cluster']}" if told["where"] else f"cluster {told['cluster']}"
    lines = [
        f"{label + ':':7}{place if key == 'where' else told[key]}"
        for label, key in _WIDE
        if told[key] or key == "where"
    ]
    if dry_run:
        lines.append("       Nothing was done: the mode is not enforce.")
    details = [line for fact in facts for line in (fact.lines or _detail(fact, len(facts)))]
    if details:
        lines.append("")
        lines += [f"  {one_line(line, LINE_CHARS)}" for line in details[:LINES]]
        if len(details) > LINES:
            lines.append(f"  and {len(details) - LINES} more")
    return "\n".join(lines) + "\n"


def _detail(fact: Fact, of: int) -> tuple[str, ...]:
    return (f"{fact.where}: {fact.why}",) if of > 1 and fact.where else ()


def _own(template: str, told: dict[str, str]) -> str:
    return string.Template(template).safe_substitute(told)


def _cut(text: str, limit: int) -> str:
    """Return text as one line; letters of a site's own template stay, whatever their alphabet."""
    flat = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))

"""`fmslurm explain ID`: a finding, a rule of `why` or a configuration key: what it means, where that is written, what to do."""

from __future__ import annotations

import difflib
from typing import Any

import click

from slurm_ext.cli import breaker
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.errors import UsageError


@click.command()
@click.argument("id_", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(id_: str, as_json: bool) -> None:
    """Say what ID means: a finding (gpu.xid-79), a rule of `fmslurm why`, or a configuration key (gate.deadline_s)."""
    found = [
        one for one in (finding(id_), _key(id_), _signature(id_), _rule(id_), breaker.meaning(id_)) if one is not None
    ]
    if not found:
        raise unknown(
            id_,
            [
                *_closest(id_, [*_finding_ids(id_), *_keys(), *_signatures(), *_rules(), *breaker.MEANINGS]),
                *_finding_ids(id_),
            ],
        )
    if as_json:
        say({**found[0], "also": found[1:]}, as_json=True)
        return
    for one in found:
        say(one, as_json=False)


def say(found: dict[str, Any], *, as_json: bool) -> None:
    """Print one explanation for people, or as one JSON object."""
    if as_json:
        say_json(found)
        return
    say_text(f"{found['id']} ({found['kind']})")
    say_text(f"  {found['means']}")
    for name in ("convicts", "action", "value", "default", "expected", "cause", "role"):
        if found.get(name) not in (None, ""):
            say_text(f"  {name + ':':10} {found[name]}")
    if found.get("steps"):
        say_text("  what to do:")
        for number, step in enumerate(found["steps"], 1):
            say_text(f"    {number}. {step}")
    for line in found.get("findings", ()):
        say_text(f"  {line}")
    for name, label in (("pages", "see:"), ("looked_at", "looked at:")):
        for line in found.get(name, ()):
            say_text(f"  {label:10} {line}")


def unknown(id_: str, near: list[str]) -> UsageError:
    """Return the error for an id that nobody knows, with those nearest to it."""
    near = list(dict.fromkeys(near))[:5]
    remedy = f"Nearest: {', '.join(near)}" if near else "`fmslurm gate list` and `fmslurm config show` list them"
    return UsageError(f"nothing is called {id_[:100]!r}", remedy=remedy)


def finding(id_: str) -> dict[str, Any] | None:
    """Return what a finding means as plain data, None where no finding has this id."""
    from slurm_ext.gate import checks, meanings

    meaning = meanings.find(id_)
    if meaning is None:
        return _beginning(id_)
    rows = [row for row in checks.every() if id_.startswith(row.id) or row.id.startswith(id_)]
    return {
        "id": id_,
        "kind": "finding",
        "means": meaning.means,
        "convicts": meaning.convicts,
        "action": meaning.remedy,
        "steps": list(meanings.steps(meaning)),
        "pages": list(meaning.pages),
        "looked_at": [f"{', '.join(row.phases)}: {row.what} ({row.means})" for row in rows],
    }


def _beginning(id_: str) -> dict[str, Any] | None:
    """Return the findings that begin so (`gpu.driver-`, as `gate list` names several at once), None where none does."""
    from slurm_ext.gate import checks, meanings

    named = id_.endswith(("-", ".")) or any(row.id == id_ for row in checks.every())
    rows = [row for row in meanings.every() if named and row.id.startswith(id_)]
    if not rows:
        return None
    return {
        "id": id_,
        "kind": "the beginning of findings",
        "means": f"{len(rows)} findings begin so; `fmslurm explain` says more of each.",
        "findings": [f"{row.id}: {row.means}" for row in rows],
        "looked_at": [
            f"{', '.join(row.phases)}: {row.what} ({row.means})" for row in checks.every() if row.id.startswith(id_)
        ],
    }


def _finding_ids(id_: str) -> list[str]:
    from slurm_ext.gate import meanings

    return meanings.closest(id_)


def _keys() -> list[str]:
    from slurm_ext.config.meanings import MEANINGS

    return list(MEANINGS)


def _key(id_: str) -> dict[str, Any] | None:
    from slurm_ext.config.meanings import MEANINGS
    from slurm_ext.config.rules import SECTIONS, keys

    if id_ not in MEANINGS:
        return None
    found: dict[str, Any] = {"id": id_, "kind": "configuration key", "means": MEANINGS[id_]}
    section, _, name = id_.partition(".")
    if name and section in SECTIONS and name in keys(section):
        from slurm_ext.config.model import Settings
        from slurm_ext.config.render import value_text

        key = keys(section)[name]
        found |= {"expected": key.expected, "default": value_text(getattr(getattr(Settings(), section), name), key)}
        found["steps"] = [f"`fmslurm config show {id_}` shows its value here and where it comes from."]
    elif not name:
        found["kind"] = "configuration section"
    return found


def _signatures() -> list[str]:
    from slurm_ext.resume.signatures import TABLE

    return [row.name for row in TABLE]


#: What the roles of a line in a job's log mean (resume.signatures).
_ROLES = {
    "R": "points at the cause",
    "A": "decides only where nothing better is there",
    "B": "a bystander: never decides",
}


def _signature(id_: str) -> dict[str, Any] | None:
    from slurm_ext.resume.signatures import TABLE

    row = next((row for row in TABLE if row.name == id_), None)
    if row is None:
        return None
    return {
        "id": id_,
        "kind": "rule of fmslurm why",
        "means": "A line of this kind stands in the job's log.",
        "cause": row.cause,
        "role": _ROLES.get(row.role, row.role),
        "action": row.advice,
        "pages": [row.source] if row.source else [],
    }


def _rules() -> list[str]:
    from slurm_ext.resume.rule_meanings import RULES

    return [rule for rule in RULES if not rule.startswith("-")]


def _rule(id_: str) -> dict[str, Any] | None:
    from slurm_ext.resume.rule_meanings import of_rule

    means = of_rule(id_)
    return {"id": id_, "kind": "rule of fmslurm why", "means": means} if means else None


def _closest(id_: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(id_.lower()[:200], known, n=5, cutoff=0.6)

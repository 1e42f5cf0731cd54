"""What `fmslurm submit` makes of an sbatch command line: purely, no argument lost, nothing of the user's changed.

Precedence as sbatch(1) has it: command line, then SBATCH_* variables, then #SBATCH lines. Our own options (--fm-*) stand
on the command line or in #FMSLURM lines of the script, the command line winning. `plan` returns what to add, and why.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_ext import request
from slurm_ext.errors import UsageError
from slurm_ext.request import Request
from slurm_ext.resume.sbatch_line import CommandLine, Given, Script, read_command_line, read_script
from slurm_ext.resume.sbatch_options import INFORMATIVE

#: Slurm refuses a longer comment (seen on 22.05.8, 24.11.5 and 26.05.5: 1024 bytes pass, 1025 do not).
COMMENT_MAX_BYTES = 1024

__all__ = [
    "COMMENT_MAX_BYTES",
    "CommandLine",
    "Given",
    "Plan",
    "Script",
    "Wishes",
    "plan",
    "read_command_line",
    "read_script",
    "requeue_refused",
    "script_request",
    "search_places",
    "wishes",
]


class Wishes(NamedTuple):
    """What the user wants of us."""

    request: Request = Request()
    check: bool = False
    show: bool = False


class Plan(NamedTuple):
    """The arguments for sbatch, what was added, and what the user should know (for standard error)."""

    arguments: tuple[str, ...]
    added: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def wishes(command_line: Sequence[Given], script: Sequence[Given], *, cwd: str) -> Wishes:
    """Return what is wanted: options of the command line over those of the script. Raise UsageError for a wrong value.

    A relative checkpoint folder starts from `cwd`.
    """
    asked = Request()
    check = show = False
    for name, value in (*script, *command_line):
        if name == "fm-resume":
            asked = asked._replace(resume=_budget(value))
        elif name == "fm-run":
            if not request.is_run_name(value or ""):
                raise UsageError(
                    f"--fm-run {value!r} is no run name",
                    remedy="Letters, digits, dot, dash and underscore, at most 64, a letter or digit first",
                )
            asked = asked._replace(run=value or "")
        elif name == "fm-ckpt":
            folder = os.path.normpath(os.path.join(cwd, value)) if value else ""
            if not request.is_checkpoint_dir(folder):
                raise UsageError(f"--fm-ckpt {value!r} is no folder that fmslurm can name")
            asked = asked._replace(checkpoint_dir=folder)
        elif name == "fm-burnin":
            if not value or value not in request.BURNIN_WISHES:
                raise UsageError(f"--fm-burnin takes strict, normal or skip, not {value!r}")
            asked = asked._replace(burnin=value)
        elif name == "fm-off":
            asked = asked._replace(off=True)
        check, show = check or name == "fm-check", show or name == "fm-print"
    return Wishes(Request(off=True) if asked.off else asked, check, show)


def _budget(value: str | None) -> int:
    if value is None:
        return -1
    if not (value.isascii() and value.isdigit()) or len(value) > 3:
        raise UsageError(f"--fm-resume={value} is no number of attempts", remedy="--fm-resume, or --fm-resume=0 to 999")
    return int(value)


def script_request(text: str, *, cwd: str = "/") -> Request | None:
    """Return what the #FMSLURM lines of a batch script ask for, or None where there are none or they are wrong.

    For jobs that came by plain sbatch: the script is hostile text, so nothing is raised.
    """
    try:
        found = read_script(text).own
        return wishes((), found, cwd=cwd).request if found else None
    except UsageError:
        return None


def enabled(value: str | None) -> bool:
    """Say whether an SBATCH_* variable switches its flag on: empty, `yes`, or a number that is not zero (sbatch(1))."""
    if value is None:
        return False
    text = value.strip().lower()
    return text in ("", "yes") or (text.lstrip("+-").isdigit() and int(text) != 0)


def plan(line: CommandLine, script: Script, wanted: Request, environment: Mapping[str, str]) -> Plan:
    """Return the arguments for sbatch. Raise UsageError where the wishes cannot be passed on."""
    notes: list[str] = []
    if line.unknown:
        notes.append(
            f"sbatch option {line.unknown} is not known here: it and what follows are passed on unread. "
            "Put --fm- options before it, and write it as --option=value"
        )
    if wanted == Request() or line.has(*INFORMATIVE):
        return Plan(line.rest, (), tuple(notes))
    if line.heterogeneous or script.heterogeneous:
        if wanted == Request(off=True):
            return Plan(line.rest, (), tuple(notes))
        raise UsageError(
            "--fm- options are not for heterogeneous jobs (`:` or #SBATCH hetjob)",
            remedy="Leave them out, or submit the components as jobs of their own",
        )
    added = [_comment(line, script, wanted)]
    if wanted.resume is not None:
        said_mode = line.last("open-mode") or environment.get("SBATCH_OPEN_MODE") or _last(script.given, "open-mode")
        if not said_mode:
            added.append("--open-mode=append")
        elif said_mode.startswith("t"):
            notes.append("--open-mode=truncate: each new attempt overwrites the log of the one before")
        refused = requeue_refused(line, script, environment)
        if refused is None:
            added.append("--requeue")
        elif refused:
            notes.append("--no-requeue: the job will not be resumed, since Slurm refuses to requeue it")
    arguments = (*line.rest[: line.insert_at], *added, *line.rest[line.insert_at :])
    return Plan(arguments, tuple(added), tuple(notes))


def requeue_refused(line: CommandLine, script: Script, environment: Mapping[str, str]) -> bool | None:
    """Say whether the user forbids a requeue (True), asks for it (False), or says nothing of it (None)."""
    said = [one.name for one in line.given if one.name in ("requeue", "no-requeue")]
    if not said:
        # sbatch reads its variables in this order, so the last one counts.
        for name, variable in (("no-requeue", "SBATCH_NO_REQUEUE"), ("requeue", "SBATCH_REQUEUE")):
            said += [name] if enabled(environment.get(variable)) else []
    if not said:
        said = [one.name for one in script.given if one.name in ("requeue", "no-requeue")]
    return said[-1] == "no-requeue" if said else None


def _comment(line: CommandLine, script: Script, wanted: Request) -> str:
    """Return `--comment=` with our token behind the user's own comment, wherever that came from (there is no SBATCH_COMMENT)."""
    theirs = line.last("comment")
    if theirs is None:
        theirs = _last(script.given, "comment")
    try:
        token = request.render(wanted)
    except ValueError as exc:
        raise UsageError(str(exc)) from exc
    kept = request.strip(theirs or "")
    text = f"{kept} {token}" if kept else token
    if (size := len(text.encode("utf-8", "surrogateescape"))) > COMMENT_MAX_BYTES:
        raise UsageError(
            f"the comment has {size} bytes with what fmslurm adds, Slurm takes {COMMENT_MAX_BYTES}",
            remedy="Shorten --comment, or the path of --fm-ckpt",
        )
    return f"--comment={text}"


def _last(given: Sequence[Given], name: str) -> str | None:
    values = [one.value for one in given if one.name == name]
    return values[-1] if values else None


def search_places(script: str, *, cwd: str, chdir: str | None, path: str) -> list[str]:
    """Return where sbatch looks for the script, first first (sbatch(1), script path resolution)."""
    if os.path.isabs(script):
        return [script]
    here = os.path.join(cwd, chdir or "")
    places = [os.path.join(here, script)]
    if "/" not in script:
        places += [os.path.join(folder, script) for folder in path.split(os.pathsep) if folder]
    return places

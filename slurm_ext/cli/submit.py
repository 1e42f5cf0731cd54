"""`fmslurm submit`: sbatch with more sense. Everything sbatch takes passes untouched; the process becomes sbatch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
import tempfile

import click

from slurm_ext.cli.output import say_text
from slurm_ext.config.locate import settings as located_settings
from slurm_ext.config.model import Settings
from slurm_ext.errors import CommandNotFoundError, FindingError
from slurm_ext.resume.submit import (
    CommandLine,
    Script,
    Wishes,
    plan,
    read_command_line,
    read_script,
    requeue_refused,
    search_places,
    wishes,
)
from slurm_ext.resume.submit_check import DEFAULT_OUTPUT, Facts, Folder, problems

#: A batch script is at most this long (slurm.conf(5), max_script_size defaults to 4 MiB); what is longer, sbatch refuses.
SCRIPT_MAX_BYTES = 8 << 20

HELP = """Submit a job as sbatch does, and tell fmslurm what the job wants.

\b
  --fm-resume[=N]    bring the job back when the hardware dies, at most N times (without N: as the site says)
  --fm-run NAME      the run's name over resubmissions (default: cluster and first job id)
  --fm-ckpt DIR      where the job writes its checkpoints
  --fm-burnin WISH   all-reduce over the job's nodes first: strict, normal or skip, as the site allows
  --fm-check         look for what would go wrong, submit nothing
  --fm-print         print sbatch's command line, submit nothing
  --fm-off           fmslurm keeps its hands off this job; the site's gate stays, and its burn-in unless users may skip it

They stand before the script, or in `#FMSLURM --fm-...` lines of it (the command line wins). Everything else goes to sbatch
untouched. With --fm-resume, --requeue and --open-mode=append are added unless you say otherwise. Output and exit code are
sbatch's own.
"""


class Untouched(click.Command):
    """A command that takes its arguments as they are: click would swallow a `--` that is sbatch's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep every argument."""
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(
    cls=Untouched,
    help=HELP,
    add_help_option=False,
    options_metavar="[--fm-...] [SBATCH OPTIONS]",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.pass_context
def submit(context: click.Context, arguments: tuple[str, ...]) -> None:
    if arguments in (("-h",), ("--help",)):
        say_text(context.get_help())
        say_text("\nThe options of sbatch: sbatch --help")
        return
    settings = located_settings()
    line = read_command_line(arguments)
    body, path = _script_text(line)
    script = read_script(body) if body is not None else Script()
    wanted = wishes(line.own, script.own, cwd=os.getcwd())
    made = plan(line, script, wanted.request, os.environ)
    for note in made.notes:
        say_text(f"fmslurm: {note}", err=True)
    if wanted.show:
        say_text(shlex.join(["sbatch", *made.arguments]))
    if wanted.check:
        _check(settings, line, script, wanted, path, body is not None)
    if not wanted.show and not wanted.check:
        _become_sbatch(settings, made.arguments)


def _script_text(line: CommandLine) -> tuple[str | None, str]:
    """Return (text of the batch script, its path); text None where it cannot be read or is not to be found.

    Standard input is read to its end and put back as a file, so that sbatch finds it whole.
    """
    if line.unknown or line.heterogeneous or line.last("wrap") is not None:
        return "", ""
    if line.script:
        places = search_places(
            line.script, cwd=os.getcwd(), chdir=line.last("chdir"), path=os.environ.get("PATH", os.defpath)
        )
        path = next((place for place in places if os.path.isfile(place)), "")
        try:
            with open(path, "rb") as stream:
                return stream.read(SCRIPT_MAX_BYTES).decode("utf-8", "surrogateescape"), path
        except OSError:
            return None, path or line.script
    if line.has("help", "usage", "version"):
        return "", ""
    return _spool_stdin(), ""


def _spool_stdin() -> str:
    # A file that has no name goes with the process; sbatch reads it as descriptor 0, from its beginning.
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - lives until sbatch ends
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.seek(0)
    text = spool.read(SCRIPT_MAX_BYTES).decode("utf-8", "surrogateescape")
    spool.seek(0)
    os.dup2(spool.fileno(), 0)
    return text


def _become_sbatch(settings: Settings, arguments: tuple[str, ...]) -> None:
    environment = dict(os.environ)
    site = settings.site
    if site.slurm_conf:
        environment.setdefault("SLURM_CONF", site.slurm_conf)
    program = shutil.which("sbatch", path=site.slurm_bin or None)
    if program is None:
        raise CommandNotFoundError("there is no sbatch here", remedy="Set site.slurm_bin, or put it into PATH")
    sys.stdout.flush()
    sys.stderr.flush()
    # Not a child: standard streams, signals and exit code are sbatch's own.
    os.execve(program, ["sbatch", *arguments], environment)  # noqa: S606


def _check(settings: Settings, line: CommandLine, script: Script, wanted: Wishes, path: str, readable: bool) -> None:
    """Print what would go wrong. Raise FindingError where something grave would."""

    def said(name: str, variable: str = "") -> str:
        values = [one.value for one in script.given if one.name == name]
        return line.last(name) or os.environ.get(variable, "") or (values[-1] if values else "") or ""

    work_dir = os.path.join(os.getcwd(), said("chdir"))
    output = os.path.join(work_dir, said("output", "SBATCH_OUTPUT") or DEFAULT_OUTPUT)
    request = wanted.request
    found = problems(
        Facts(
            request,
            checkpoint=_look(request.checkpoint_dir) if request.checkpoint_dir else None,
            # A placeholder in the folder's own name is known only once the job has an id.
            output=None if re.search("%[^/]*/", output) else _look(os.path.dirname(output)),
            work_dir=_look(work_dir, write=False),
            script=path,
            script_readable=readable,
            requeue_refused=requeue_refused(line, script, os.environ) is True,
            truncates=said("open-mode", "SBATCH_OPEN_MODE").startswith("t"),
            resume_mode=settings.mode.resume,
            burnin_allowed=settings.burnin.user_may,
        )
    )
    for problem in found:
        say_text(f"{'problem' if problem.grave else 'advice'}: {problem.text}. {problem.advice}")
    grave = sum(problem.grave for problem in found)
    if grave:
        raise FindingError(f"{grave} problem{'s' * (grave > 1)}; nothing was submitted")
    say_text("nothing speaks against submitting it")


def _look(path: str, *, write: bool = True) -> Folder:
    try:
        state = os.stat(path)
    except OSError:
        return Folder(path, False)
    return Folder(path, True, stat.S_ISDIR(state.st_mode), os.access(path, (os.W_OK if write else 0) | os.X_OK))

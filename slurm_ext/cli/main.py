"""`fmslurm`: a group of commands, each loaded only when it is called, and one place where an exception becomes an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType

import click

from slurm_ext import __version__
from slurm_ext.aws import catalogue
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.cli.output import say_text
from slurm_ext.errors import EXIT_INTERNAL, EXIT_LACKING, FmslurmError

#: command -> (module in slurm_ext.cli, attribute, help line). Help lines live here, so that `--help` imports nothing else.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "burnin": ("burnin", "burnin", "the all-reduce over nodes: run it by hand, show its history"),
    "ckpt": ("ckpt", "ckpt", "checkpoints: list, show, latest, save, restore, verify"),
    "config": ("config", "config", "fmslurm.yaml: check, show, push to the nodes"),
    "doctor": ("doctor", "doctor", "is this cluster set up right?"),
    "events": ("events", "events", "the trail of everything fmslurm noticed or did"),
    "explain": ("explain", "explain", "what a finding, a rule or a configuration key means, and what to do"),
    "gate": ("gate", "gate", "may this node run a job? check it, list, explain and prove the checks, replay captures"),
    "gres": ("gres", "gres", "gres.conf and node lines from the instance types"),
    "install": ("install", "install", "put hooks, configuration and daemons in place"),
    "job": ("job", "job", "jobs that are watched, and their budgets"),
    "key": ("key", "key", "the keys of nodes where there is no munge: create, rotate, sync, show"),
    "lab": ("lab", "lab", "a real Slurm on this machine with simulated hardware"),
    "mode": ("mode", "mode", "off, shadow, warn, enforce: show and set per room"),
    "nccl-check": ("nccl_check", "nccl_check", "run a step and say whether NCCL inside it went over EFA"),
    "node": ("node", "node", "nodes: show, drain and resume with our reason"),
    "notify": ("notify", "notify", "who is told: list the targets of notices, try them"),
    "off": ("mode", "off", "stop one room, or all, for a while, at once"),
    "on": ("mode", "on", "undo `off`"),
    "status": ("status", "status", "the cluster at a glance"),
    "submit": ("submit", "submit", "sbatch with more sense"),
    "topology": ("topology", "topology", "where the nodes sit: show, generate, diff, check, lint"),
    "uninstall": ("install", "uninstall", "take out everything that install put in"),
    "why": ("why", "why", "what happened to a job, and why"),
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used: `fmslurm submit` never imports boto3."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"slurm_ext.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fmslurm")
@click.pass_context
def fmslurm(context: click.Context) -> None:
    """Gate, topology, auto-resume and checkpoint staging for Slurm clusters of GPU instances."""
    before = catalogue.source
    catalogue.source = lambda: _site_types()  # a new one: the catalogue asks each once
    context.call_on_close(lambda: setattr(catalogue, "source", before))


def _site_types() -> Mapping[str, InstanceType]:
    """Return the instance types that this site fetched, when one is looked up that our catalogue lacks."""
    from slurm_ext.cli.gres_refresh import known_to_site

    return known_to_site()


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code; what a person must see goes to stderr, never a traceback of ours."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As an exception, so that a program we wait for, which has a session of its own, ends with us. nohup stays nohup.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        code = fmslurm.main(args=argv, prog_name="fmslurm", standalone_mode=False)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.Abort:
        say_text("interrupted", err=True)
        return 130
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except FmslurmError as exc:
        say_text(f"fmslurm: {exc}", err=True)
        return exc.exit_code
    except BrokenPipeError:
        # `fmslurm events | head`: the reader has gone, which is no fault. Nothing more may reach the closed pipe.
        sys.stderr.close()
        return 141
    except OSError as exc:
        # A file or folder a person named: unreadable, a folder where a file is meant, a full disk.
        say_text(f"fmslurm: {exc.filename or 'a file'}: {exc.strerror or exc}", err=True)
        return EXIT_LACKING
    except KeyboardInterrupt:
        return 130
    except SystemExit as exc:
        if exc.code in (128 + signal.SIGTERM, 128 + signal.SIGHUP):
            say_text(f"ended by {signal.Signals(exc.code - 128).name}", err=True)
        raise
    except Exception as exc:  # the last line of defence: a person gets a line and a way to report it
        say_text(
            f"fmslurm: internal error: {type(exc).__name__}: {exc}. Run with FMSLURM_TRACE=1 and report it", err=True
        )
        if os.environ.get("FMSLURM_TRACE"):
            raise
        return EXIT_INTERNAL
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())

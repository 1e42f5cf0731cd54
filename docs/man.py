#!/usr/bin/env python3
"""Write a man page (man(7) macros) for fmslurm and for each of its commands, out of the commands' own help.

`docs/man.py FOLDER`. Nothing is written by hand, so a page cannot say another thing than `--help` does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurm_ext import __version__
from slurm_ext.cli.main import fmslurm

EXIT_CODES = (
    ("0", "fine"),
    ("1", "a finding, or a check that failed"),
    ("2", "the command line or an input file is wrong"),
    ("3", "the environment lacks something: a program, a right, an answer of Slurm, a usable configuration"),
    ("4", "partly done"),
    ("5", "an internal error of fmslurm"),
    ("128+N", "ended by signal N"),
)


def roff(text: str) -> str:
    """Return text that troff prints as it is: backslashes, dashes and leading dots would mean something to it."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("\b", "")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in plain.splitlines())


def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield (words that call it, command) for a command and everything below it, parents first."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=words[-1])
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from commands(child, (*words, name))


def page(command: click.Command, words: tuple[str, ...]) -> str:
    """Return the man page of one command."""
    context = click.Context(command, info_name=" ".join(words), help_option_names=["-h", "--help"])
    name, short = "-".join(words), command.get_short_help_str(limit=200) or "see below"
    lines = [f'.TH "{name.upper()}" "8" "" "fmslurm {__version__}" "fmslurm"', ".SH NAME"]
    lines.append(f"{roff(name)} \\- {roff(short.rstrip('.'))}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines += [".SH SYNOPSIS", f".B {roff(' '.join(words))}", roff(usage), ".SH DESCRIPTION"]
    lines += list(_description(command.help or ""))
    named = (option for option in command.get_params(context) if isinstance(option, click.Option))
    options = [row for option in named if (row := option.get_help_record(context))]
    if options:
        lines.append(".SH OPTIONS")
        for flags, meaning in options:
            lines += [".TP", f".B {roff(flags)}", roff(meaning) or "."]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                lines += [
                    ".TP",
                    f".BR {roff('-'.join((*words, child)))} (8)",
                    roff(found.get_short_help_str(limit=200)),
                ]
    if command.name != "submit":  # its exit code is sbatch's own
        lines.append(".SH EXIT STATUS")
        for code, meaning in EXIT_CODES:
            lines += [".TP", f".B {code}", roff(meaning)]
    lines += [".SH FILES", ".TP", ".I /etc/fmslurm/fmslurm.yaml", "The site's settings; FMSLURM_CONFIG names another."]
    above = ["-".join(words[:-1])] if len(words) > 1 else []
    also = ", ".join(f".BR {roff(other)} (8)" for other in above)
    lines += [".SH SEE ALSO", *([also] if also else []), ".BR slurm.conf (5)"]
    return "\n".join(lines) + "\n"


def _description(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ".PP"
        if "\b" in paragraph:  # click's mark for text that keeps its lines
            yield from (".nf", roff(paragraph.strip("\b\n")), ".fi")
        else:
            yield roff(paragraph)


def main(folder: str) -> int:
    """Write all pages into a folder and return how many there are."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for words, command in commands(fmslurm, ("fmslurm",)):
        (target / f"{'-'.join(words)}.8").write_text(page(command, words), encoding="utf-8")
        count += 1
    return count


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: docs/man.py FOLDER")
    sys.stdout.write(f"{main(sys.argv[1])} man pages in {sys.argv[1]}\n")

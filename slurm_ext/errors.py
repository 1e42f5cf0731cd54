"""Exceptions a person may see, and the exit code each becomes (INTERFACES: 0 fine, 1 finding, 2 usage, 3 lacking, 4 partly, 5 ours).

Standard library only: hooks import this.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_LACKING = 3
EXIT_PARTLY = 4
EXIT_INTERNAL = 5


class FmslurmError(Exception):
    """Something went wrong that we can name; `remedy` says what to do about it."""

    exit_code = EXIT_INTERNAL

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


class FindingError(FmslurmError):
    """A check ran and found something: exit code 1."""

    exit_code = EXIT_FINDING


class UsageError(FmslurmError):
    """The command line or an input file is wrong: exit code 2."""

    exit_code = EXIT_USAGE


class LackingError(FmslurmError):
    """The environment lacks something (a program, a right, a running daemon): exit code 3."""

    exit_code = EXIT_LACKING


class PartlyDoneError(FmslurmError):
    """Some of what was asked is done and some is not: exit code 4."""

    exit_code = EXIT_PARTLY


class ConfigError(LackingError):
    """A configuration file cannot be used; the message names file, line and key."""


class UntrustedFileError(LackingError):
    """A file that root would decide by is not owned by root, or others may write it."""


class CommandNotFoundError(LackingError):
    """A program we need is not installed."""


class SlurmError(FmslurmError):
    """Slurm refused or did not answer in time; the message carries Slurm's own words."""

    exit_code = EXIT_LACKING

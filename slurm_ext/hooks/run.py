"""`fmslurm-hook prolog|epilog|task-prolog|health --share DIR [--local DIR]`: the one way in, and it always comes out.

Returns 0 or 1 and nothing else; 1 only from the prolog, and only for a convicted node. The program comes out with 86 for it.
"""

from __future__ import annotations

import os
import sys

KINDS = ("prolog", "epilog", "task-prolog", "health")
DEFAULT_LOCAL = "/var/lib/fmslurm"


def arguments(argv: list[str]) -> tuple[str, str, str]:
    """Return (kind, share, local folder) of a command line. Raise ValueError for one that is none."""
    kind, share, local_dir = "", "", DEFAULT_LOCAL
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("--share", "--local") and rest:
            value = rest.pop(0)
            share, local_dir = (value, local_dir) if word == "--share" else (share, value)
        elif word in KINDS and not kind:
            kind = word
        else:
            raise ValueError(f"{word!r} is not understood")
    if not kind:
        raise ValueError(f"say which hook: {', '.join(KINDS)}")
    return kind, share, local_dir


def main(argv: list[str]) -> int:
    """Run one hook and return its exit code."""
    try:
        kind, share, local_dir = arguments(argv)
    except ValueError as exc:
        sys.stderr.write(f"fmslurm-hook: {exc}; usage: fmslurm-hook {'|'.join(KINDS)} --share DIR [--local DIR]\n")
        return 0  # a mistake in how we were installed must not take a node away
    if kind == "task-prolog":
        return _task_prolog(local_dir)
    from slurm_ext.hooks import supervise

    def late(seconds: float) -> None:
        from slurm_ext.hooks import trouble

        trouble.record(kind, os.environ, local_dir, f"no answer within {seconds:.0f} s", share)

    try:
        return supervise.supervise(lambda within: _guarded(kind, share, local_dir, within), late=late)
    except Exception as exc:  # noqa: BLE001 - no process left to fork, no pipe: the job passes
        supervise.log(f"{kind} could not run and lets the job pass: {type(exc).__name__}: {exc}")
        return 0


def _guarded(kind: str, share: str, local_dir: str, within: object) -> int:
    """Run the hook; whatever breaks in it is written down, and the job passes."""
    try:
        return _work(kind, share, local_dir, within)
    except BaseException:  # noqa: BLE001 - the last line of defence
        import traceback

        from slurm_ext.hooks import trouble

        trouble.record(kind, os.environ, local_dir, traceback.format_exc(), share)
        return 0


def _work(kind: str, share: str, local_dir: str, within: object) -> int:
    # Imported in the worker, so that a module that is broken breaks there and nowhere else.
    if kind == "prolog":
        from slurm_ext.hooks import prolog as hook
    elif kind == "epilog":
        from slurm_ext.hooks import epilog as hook  # type: ignore[no-redef]
    else:
        from slurm_ext.hooks import health as hook  # type: ignore[no-redef]
    from slurm_ext import shared

    shared.ask_seldom()
    os.umask(0o022)
    return hook.run(os.environ, share, local_dir, within)  # type: ignore[arg-type]


def _task_prolog(local_dir: str) -> int:
    try:
        from slurm_ext.hooks import task_prolog

        sys.stdout.write(task_prolog.run(os.environ, local_dir))
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - a task prolog that fails would fail the user's task
        return 0
    return 0

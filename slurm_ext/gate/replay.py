"""Judge a captured folder (case.json and files) by the very rules of the live gate. Groups not built answer unknown.

The right answer that a folder may carry is never read: a judge that could see it would prove nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from slurm_ext.captured import Case, load
from slurm_ext.gate.model import Judged, conclude
from slurm_ext.patterns import pattern
from slurm_ext.verdict import UNKNOWN, Verdict

#: Groups with a module of their own, `replay_NAME`.
_APART = ("efa", "gpu", "kernel", "lustre", "slurm", "system")


#: ECMA-48: colours and the like. A shell's prompt with the command: `$ lsblk`, `[root@node-a ~]# df`, `user@node-a:~$ ps aux`.
_COLOURS = pattern(r"\x1b\[[\d;]{0,20}[A-Za-z]")
_WHO = r"(?:\[[\w.-]{1,64}@[^\]\n]{1,200}\][$#]|[\w.-]{1,64}@[\w.-]{1,64}:[^\s$#]{1,200}[$#]|\$)"
_PROMPT = pattern(rf"\A{_WHO} [a-z/][^\n]*\n")
_LAST_PROMPT = pattern(rf"(?<=\n){_WHO} ?\n?\Z")

_DIGITS_MAX = 400
_ENDLESS = pattern(rf"(?<!\d)\d{{{_DIGITS_MAX},}}")
_NUMBER_MAX = 1 << 63


def judge(path: str) -> Verdict:
    """Return the verdict over one folder. Raise UsageError where it cannot be read."""
    return judge_case(load(path))


def judge_case(case: Case) -> Verdict:
    """Return the verdict over one case."""
    case = case._replace(
        texts={role: _tame(text) for role, text in case.texts.items()},
        context=_ended({key: _plain(value) for key, value in case.context.items()}),
    )
    if case.group in _APART:
        room = import_module(f"slurm_ext.gate.replay_{case.group}")
        return conclude(_once(room.judge(case)), rule=f"replay.{case.group}")
    if case.group in ("nccl", "perf"):
        return _burnin(case)
    return Verdict(UNKNOWN, (), f"captures of group {case.group} cannot be judged yet", "replay.not-built")


def _tame(text: str) -> str:
    """Return what the tool printed: without colours, and without the prompts of the shell that it was copied from.

    Numbers of hundreds of digits go, too: nothing counts so far, and Python refuses to read them.
    """
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    text = _LAST_PROMPT.sub("", _PROMPT.sub("", text.removeprefix("\ufeff"), count=1), count=1)
    return _ENDLESS.sub("?", text) if len(text) >= _DIGITS_MAX else text


def _ended(context: dict[str, Any]) -> dict[str, Any]:
    """Return the context with a run that timeout(1) ended (124, or 137 where it had to kill) told as one that timed out."""
    limited = "timeout" in str(context.get("command", "")).split(" ", 1)[0]
    if context.get("exit_code") == 124 or (limited and context.get("exit_code") == 137):
        return {**context, "timed_out": True}
    return context


def _plain(value: Any) -> Any:
    """Return a value of the context, None in place of numbers that nothing can be reckoned with (NaN, 1e400, 10**400)."""
    if isinstance(value, float):
        return value if abs(value) < _NUMBER_MAX else None
    if isinstance(value, int):
        return value if abs(value) < _NUMBER_MAX else None
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _burnin(case: Case) -> Verdict:
    """Ask the burn-in room, which knows NCCL's logs; found by name, since rooms do not import one another."""
    try:
        room = import_module("slurm_ext.burnin.replay")
    except ImportError:
        return Verdict(UNKNOWN, (), "the burn-in room cannot judge captures yet", "replay.not-built")
    verdict = room.judge_case(case)
    assert isinstance(verdict, Verdict)
    return verdict


def _once(items: list[Judged]) -> list[Judged]:
    """Return each id and target once: two views of one run say the same thing twice."""
    kept: dict[tuple[str, str], Judged] = {}
    for item in items:
        kept.setdefault((item.finding.id, item.finding.target), item)
    return list(kept.values())

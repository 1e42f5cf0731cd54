"""Hides what users wrote in texts that leave the node: program names in the kernel's lines, and home folders. Pure.

What a rule looks at (codes, addresses, process numbers, job ids) stays, so that a masked text is judged as the whole one.
"""

from collections.abc import Mapping

from slurm_ext.patterns import pattern
from slurm_ext.typed import Any

_HIDDEN = "-"
_TEXTS = (
    (pattern(r"(NVRM: Xid [^\n]*?\bname=)[^,\n\"\\]*"), rf"\1{_HIDDEN}"),
    (pattern(r"(\bKilled process \d+ )\([^)\n]*\)"), rf"\1({_HIDDEN})"),
    (pattern(r"(\b(?:[Cc]omm(?:: ?|[ =])|task=)\"?)(?!0x)[^,\s\"]+"), rf"\1{_HIDDEN}"),
    # From the beginning of a word alone: tried at each letter of long words, a kernel log takes a minute.
    (pattern(r"(?<![^\s;\]\"])[^\s;\]\"]+(\[\d+\]: segfault at )"), rf"{_HIDDEN}\1"),
    (pattern(r"(\btask )[^\s:]+(:\d+ blocked for more than)"), rf"\1{_HIDDEN}\2"),
    (pattern(r"((?:/home|/users|/Users)/)[^/\s:,\"']+"), rf"\1{_HIDDEN}"),
    (pattern(r"\b(uid[_=:])\d+"), rf"\1{_HIDDEN}"),
    (pattern(r"\b((?:pass|password|credentials|secret)=)[^,\s\"]+"), rf"\1{_HIDDEN}"),
)


def mask(text: str) -> str:
    """Return a text without names of programs, of home folders, and numbers of users."""
    for hidden, instead in _TEXTS:
        text = hidden.sub(instead, text)
    return text


def mask_all(data: Any) -> Any:
    """Return plain data with every text in it masked; names of fields stay."""
    if isinstance(data, str):
        return mask(data)
    if isinstance(data, Mapping):
        return {name: mask_all(value) for name, value in data.items()}
    return [mask_all(value) for value in data] if isinstance(data, list | tuple) else data

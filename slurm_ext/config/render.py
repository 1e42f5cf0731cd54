"""Settings -> YAML text: single values as a person would write them, and the whole explained file of defaults. Pure."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from typing import Any

from slurm_ext.config.meanings import MEANINGS
from slurm_ext.config.model import Settings, Target
from slurm_ext.config.rules import ITEMS, SECTIONS, Key, keys

#: Plain scalars that YAML cannot take for anything but text; everything else is quoted.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"})

_HEAD = """\
# fmslurm.yaml: every key with its default, as a first install has it. Nothing drains, requeues, deletes, uploads or
# edits Slurm until a mode below says enforce.
#
# Keep only what you change: what is absent has its default. Units are in the names, and values are written without.
# `fmslurm config check` says what is wrong, `fmslurm config show` where each value comes from, and `fmslurm config push`
# hands it to the nodes.
"""


def value_text(value: Any, key: Key) -> str:
    """Return a value as YAML flow text that parses back to the same value for that key."""
    if hasattr(value, "_asdict"):
        known = keys(next(section for section, (shape, _) in ITEMS.items() if isinstance(value, shape)))
        # Of a target what is set: it has one of five addresses.
        left_out = Target()._asdict() if isinstance(value, Target) else {}
        said = {k: v for k, v in value._asdict().items() if k not in left_out or v != left_out[k]}
        return "{" + ", ".join(f"{k}: {value_text(v, known[k])}" for k, v in said.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(value_text(item, key) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    if isinstance(value, (int, float)):
        return repr(value)
    if key.choices or (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def explained(settings: Settings | None = None) -> str:
    """Return a whole fmslurm.yaml: every section and key, its meaning, what it takes, and its value (default: defaults)."""
    shown = settings if settings is not None else Settings()
    lines = [_HEAD]
    for section in SECTIONS:
        lines += [*_comment(MEANINGS[section], ""), f"{section}:"]
        for name, key in keys(section).items():
            says = key.choices or key.unit or (key.many and key.kind not in ("tier", "target") and key.one != "text")
            takes = f" {key.expected[0].upper()}{key.expected[1:]}." if says else ""
            lines += _comment(MEANINGS[f"{section}.{name}"] + takes, "  ")
            lines.append(f"  {name}: {value_text(getattr(getattr(shown, section), name), key)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, 118, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_on_hyphens=False
    )


if __name__ == "__main__":  # python -m slurm_ext.config.render >etc/fmslurm.yaml
    sys.stdout.write(explained())

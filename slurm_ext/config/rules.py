"""What each key may hold: type from the model's annotation, unit from the name, words from CHOICES, ranges from here. Pure.

Standard library only: the JSON snapshot is checked by the same rules as the YAML file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache

from slurm_ext.config import model
from slurm_ext.config.hostlist import HostlistError, split_hostlist
from slurm_ext.patterns import pattern
from slurm_ext.typed import Any, NamedTuple


def _hints(shape: type[Any]) -> Mapping[str, Any]:
    """Return the annotations of a shape of the model, which are no text there: typing would evaluate some hundred."""
    return shape.__annotations__


#: Section name -> its NamedTuple. `tiers` and `targets` are no sections of the file but the shapes (ITEMS) of each item of
#: staging.tiers and of notify.targets.
SECTIONS: dict[str, type[Any]] = {
    name: kind for name, kind in _hints(model.Settings).items() if name not in ("source_hash", "generation")
}

#: Shapes of list items: name -> (NamedTuple, kind of the key that holds a list of them).
ITEMS: dict[str, tuple[type[Any], str]] = {"tiers": (model.Tier, "tier"), "targets": (model.Target, "target")}

#: Suffix of a key -> (what a person calls it, bounds). The longest suffix that fits wins.
UNITS: dict[str, tuple[str, float, float]] = {
    "_s": ("seconds", 0, 86_400),
    "_min": ("minutes", 0, 525_600),
    "_h": ("hours", 0, 8_760),
    "_d": ("days", 0, 3_650),
    "_bytes": ("bytes", 1, float(1 << 40)),
    "_percent": ("percent", 0, 100),
    "_percent_per_hour": ("percent an hour", 0, 100),
    "_busbw_gbs": ("GB/s of bus bandwidth", 0, 100_000),
    "_port": ("a TCP port", 1, 65_535),
}

#: Keys whose bounds differ from their unit's.
RANGES: dict[tuple[str, str], tuple[float, float]] = {
    ("gate", "deadline_s"): (0.5, 600),
    ("gate", "slow_every_h"): (0.1, 8_760),
    ("burnin", "deadline_s"): (1, 3_600),
    ("burnin", "rendezvous_s"): (0.5, 3_600),
    ("burnin", "min_nodes"): (1, 100_000),
    ("burnin", "group_nodes"): (2, 512),
    ("burnin", "message_bytes"): (1_024, float(1 << 40)),
    ("burnin", "sustain_s"): (0, 600),
    ("burnin", "strict_sustain_s"): (0, 3_600),
    ("burnin", "iterations"): (1, 100_000),
    ("burnin", "port"): (0, 65_535),
    ("drain", "max_per_hour"): (0, 100_000),
    ("drain", "first_boot_budget"): (0, 100_000),
    ("resume", "infra"): (0, 999),
    ("resume", "unknown"): (0, 999),
    ("resume", "user"): (0, 999),
    ("resume", "same_root"): (0, 999),
    ("resume", "poll_s"): (0.1, 3_600),
    ("resume", "epilog_hold_s"): (0, 60),
    ("staging", "bandwidth_percent"): (1, 100),
    ("topology", "max_switches"): (0, 1_000_000),
    ("topology", "block_size"): (0, 65_536),
    ("topology", "watch_interval_min"): (0.1, 1_440),
}

#: Keys that hold an absolute path, or nothing.
PATHS = frozenset(
    {
        ("site", "share"),
        ("site", "state_dir"),
        ("site", "run_dir"),
        ("site", "log_dir"),
        ("site", "prefix"),
        ("site", "root"),
        ("site", "slurm_bin"),
        ("site", "slurm_conf"),
        ("site", "hook_dir"),
        ("site", "python"),
        ("site", "munge_socket"),
        ("gate", "nvme_dirs"),
        ("gate", "lustre_mounts"),
        ("gate", "dcgm_job_mapping_dir"),
        ("burnin", "addresses"),
        ("topology", "source_file"),
        ("topology", "nodes_file"),
        ("tiers", "credentials_file"),
        ("targets", "webhook_file"),
        ("targets", "command"),
    }
)

#: Texts of several lines, and those that no message may repeat.
MANY_LINES = frozenset({("notify", "text")})
SECRETS = frozenset({("targets", "webhook")})

#: Paths without which nothing works: empty is no value.
NEVER_EMPTY = frozenset({("site", key) for key in ("state_dir", "run_dir", "log_dir", "prefix", "root")})

_QUANTITY = pattern(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]+)\s*")
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    "ms": 0.001,
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_UNIT_SECONDS = {"seconds": 1.0, "minutes": 60.0, "hours": 3_600.0, "days": 86_400.0}
_BYTES = {
    f"{letter}{end}": 1 << power
    for letter, power in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
    for end in ("", "b", "ib")
} | {"b": 1}


class Key(NamedTuple):
    """What one key may hold: `kind` is str, int, float, bool; `many` for a list of them; a list of ITEMS has their kind."""

    section: str
    name: str
    kind: str
    many: bool
    choices: tuple[str, ...]
    unit: str
    low: float
    high: float
    path: bool

    @property
    def expected(self) -> str:
        """Say in words what belongs here."""
        if self.kind == "tier":
            return "a list of tiers, each with name, kind and url"
        if self.kind == "target":
            return "a list of targets, each with one of mail, webhook, webhook_file, sns, command"
        return f"a list, each item {self.one}" if self.many else self.one

    @property
    def one(self) -> str:
        """Say in words what one value (of a list: one item) is."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind == "bool":
            return "true or false"
        if self.kind in ("int", "float"):
            what = "a whole number" if self.kind == "int" else "a number"
            if self.unit.startswith("a "):
                what = self.unit
            elif self.unit.startswith("percent"):
                what = f"{what}, in {self.unit},"
            elif self.unit:
                what = f"{what} of {self.unit}"
            return f"{what} from {_number(self.low)} to {_number(self.high)}"
        return "an absolute path" if self.path else "text"


@cache
def keys(section: str) -> Mapping[str, Key]:
    """Return the keys of one section (or of one of ITEMS) with what each may hold."""
    shape = ITEMS[section][0] if section in ITEMS else SECTIONS[section]
    return {name: _key(section, name, hint) for name, hint in _hints(shape).items()}


def _key(section: str, name: str, hint: Any) -> Key:
    item = hint.__args__[0] if getattr(hint, "__origin__", None) is tuple else hint
    kind = next((kind for shape, kind in ITEMS.values() if item is shape), item.__name__)
    unit, low, high = "", 0.0, 1e12
    for suffix in sorted(UNITS, key=len):
        if name.endswith(suffix):
            unit, low, high = UNITS[suffix]
    if name == "port_range":
        low, high = 1_024, 65_535
    low, high = RANGES.get((section, name), (low, high))
    choices = model.CHOICES.get((section, name), ())
    return Key(section, name, kind, item is not hint, choices, unit, low, high, (section, name) in PATHS)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def nearest(word: str, words: list[str]) -> str:
    """Return ` Did you mean X?` for the nearest of words, or an empty string where none is near."""
    import difflib  # here: only mistakes need it

    found = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return f" Did you mean {found[0]}?" if found else ""


def wrong_unit(key: Key, text: str) -> str:
    """Return a sentence for a number written with a unit (`10s`, `2h`, `1GiB`, `5%`), or an empty string for other text."""
    found = _QUANTITY.fullmatch(text)
    if found is None or key.kind not in ("int", "float") or not key.unit:
        return ""
    amount, word = float(found.group(1)), found.group(2).lower()
    value: float | None = None
    if key.unit in _UNIT_SECONDS and word in _SECONDS:
        value = amount * _SECONDS[word] / _UNIT_SECONDS[key.unit]
    elif key.unit == "bytes" and word in _BYTES:
        value = amount * _BYTES[word]
    elif key.unit.startswith("percent") and word in ("%", "percent"):
        value = amount
    said = f"the value is in {key.unit} and is written without a unit"
    if value is None or (key.kind == "int" and value != int(value)):
        return said
    return f"{said}: {key.name}: {_number(round(value, 6))}"


def check_word(key: Key, text: str) -> str:
    """Return what is wrong with a text value, or an empty string."""
    if key.choices:
        if text in key.choices:
            return ""
        return f"{text!r} is not {key.one}.{nearest(text, list(key.choices))}"
    if (key.section, key.name) in MANY_LINES:
        text = text.replace("\n", " ")
    if not text.isprintable():
        shown = "it" if (key.section, key.name) in SECRETS else repr(text)
        return f"{shown} holds characters that cannot be printed"
    if (key.section, key.name) in NEVER_EMPTY and not text:
        return "a path is needed here"
    if key.path and text and (not text.startswith("/") or ".." in text.split("/")):
        return f"{text!r} is not {key.one}"
    if (key.section, key.name) == ("mode", "canary"):
        try:
            split_hostlist(text)
        except HostlistError as exc:
            return f"{text!r} is not a hostlist: {exc}"
    return ""


def check_number(key: Key, value: float) -> str:
    """Return what is wrong with a number, or an empty string."""
    if not math.isfinite(value):
        return f"{value} is not {key.one}"
    if not key.low <= value <= key.high:
        return f"{_number(value)} is outside {_number(key.low)} to {_number(key.high)}" + (
            f" ({key.unit})" if key.unit else ""
        )
    return ""


def check_together(settings: model.Settings) -> list[tuple[str, str]]:
    """Return (key, what is wrong) for values that are right alone and wrong together."""
    wrong = []
    ports = settings.burnin.port_range
    if len(ports) != 2 or ports[0] > ports[1]:
        wrong.append(("burnin.port_range", "expected two ports, the lower one first: [42000, 42999]"))
    rendezvous_s, deadline_s = settings.burnin.rendezvous_s, settings.burnin.deadline_s
    if rendezvous_s >= deadline_s:
        # The one that a person wrote, where it is only one of them.
        key = "deadline_s" if rendezvous_s == model.Burnin().rendezvous_s else "rendezvous_s"
        words = f"rendezvous_s ({_number(rendezvous_s)}) must be below deadline_s ({_number(deadline_s)})"
        wrong.append((f"burnin.{key}", f"{words}: nodes that meet at its end would have no time to run"))
    names: set[str] = set()
    for number, tier in enumerate(settings.staging.tiers):
        at = f"staging.tiers[{number}]"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", tier.name):
            wrong.append((f"{at}.name", f"{tier.name!r} is no name: letters, digits, dot, dash, underscore"))
        elif tier.name in names:
            wrong.append((f"{at}.name", f"two tiers are called {tier.name}"))
        names.add(tier.name)
        if not tier.kind:
            wrong.append((f"{at}.kind", f"missing: expected {keys('tiers')['kind'].expected}"))
        elif tier.kind == "s3" and not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", tier.url):
            wrong.append((f"{at}.url", f"{tier.url!r} is not s3://bucket/prefix"))
        elif tier.kind != "s3" and (not tier.url.startswith("/") or ".." in tier.url.split("/")):
            wrong.append((f"{at}.url", f"{tier.url!r} is not an absolute path"))
    if settings.notify.targets or settings.notify.subject or settings.notify.text:
        from slurm_ext.config import targets  # here: hooks have none of these

        wrong += targets.check_notify(settings.notify)
    return wrong

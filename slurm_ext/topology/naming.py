"""Names of switches and blocks: short, the same whatever else comes and goes, and read back from a file's comments. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

#: Slurm refuses longer names from 24.11 on (HOST_NAME_MAX).
MAX_NAME = 64

_NUMBER = re.compile(r"([0-9]+)")
_COMMENT = re.compile(r"^\s*# (\S+) = (.*)$", re.MULTILINE)
_DIGEST_SIZES = (4, 8, 16)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which n2 comes before n10."""
    # Splitting by a group gives text, number, text, number ...: every second piece is a number.
    # Of two numbers without leading zeros the longer one is larger: no digits are too many for that.
    pieces = _NUMBER.split(text)
    return tuple(
        (0, len(digits := part.lstrip("0")), digits) if odd % 2 else (1, 0, part)
        for odd, part in enumerate(pieces)
        if part
    )


def node_order(node: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return the key by which nodes are sorted: n2 before n10, and n01 before n1 whichever came first."""
    return natural(node), node


def switch_name(tier: str, identity: str, *, digest_size: int = 4) -> str:
    """Return a short stable name: the tier and eight hexadecimal digits of the identity's hash, with a letter in front.

    EC2 ids may end in more than 19 digits, which Slurm's hostlist parser overflows on; eight cannot.
    """
    return f"{tier}-h{hashlib.blake2b(identity.encode('utf-8', 'replace'), digest_size=digest_size).hexdigest()}"


def unique_names(wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return a name for each (tier, identity), no two alike: identities whose short hashes are equal get longer ones.

    Who gets a longer one depends on nothing but the identities, never on their order. Raise ValueError where 32 digits of two
    are equal, which nobody has seen: more would not fit into a name.
    """
    names: dict[tuple[str, str], str] = {}
    left = sorted(set(wanted))
    for size in _DIGEST_SIZES:
        groups: dict[str, list[tuple[str, str]]] = {}
        for pair in left:
            groups.setdefault(switch_name(*pair, digest_size=size), []).append(pair)
        names.update((pairs[0], name) for name, pairs in groups.items() if len(pairs) == 1)
        left = sorted(pair for pairs in groups.values() if len(pairs) > 1 for pair in pairs)
        if not left:
            return names
    raise ValueError(f"no names for {left[0]} and {left[1]}: their hashes are equal")


def zone_words(zones: Iterable[str]) -> Mapping[str, str]:
    """Return a word for each zone that may stand in a name, no two alike; `all` for a zone that nobody knows."""
    plain = {zone: re.sub(r"[^a-z0-9-]", "-", zone.lower()) or "all" for zone in zones}
    words: dict[str, str] = {}
    for zone, word in plain.items():
        alone = sum(other == word for other in plain.values()) == 1
        fits = len(word) <= 32 and not re.search(r"[0-9]{10}$", word) and (word != "all" or not zone)
        words[zone] = word if alone and fits else switch_name(word[:20], zone)
    return words


def comment(text: str) -> str:
    """Return text as it may stand in a comment of a file that Slurm reads: one line, nothing that could end or continue it."""
    return "".join(letter if letter.isprintable() and letter != "\\" else "?" for letter in text)


def names_in(text: str) -> dict[str, str]:
    """Return name -> the cloud's id, as the comments of a generated file say (topology.conf and topology.yaml alike)."""
    return {name: cloud_id.rstrip() for name, cloud_id in _COMMENT.findall(text)}

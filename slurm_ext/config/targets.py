"""Where notices go (notify.targets) and how they are worded (notify.subject, notify.text): what is right, what a target is
called, and how it is shown without its secret. Pure.

A webhook's URL is a secret: whoever has it may post. So no message from here repeats more of it than its host.
"""

from __future__ import annotations

import ipaddress
import re
import string
import urllib.parse

from slurm_ext.config.model import Notify, Target
from slurm_ext.config.rules import nearest
from slurm_ext.typed import Any, NamedTuple

#: The keys of which each target has just one, and how many targets there may be.
KINDS = ("mail", "webhook", "webhook_file", "sns", "command")
TARGETS_MAX = 20

#: What stands in the place of a secret.
MASK = "***"

#: The fields of notify.subject and notify.text.
FIELDS = ("cluster", "severity", "kind", "what", "where", "since", "why", "next", "time")

#: No longer URL, and no longer template.
URL_CHARS, TEMPLATE_CHARS = 2_048, 8_000

# No dash in front, so no option of a mail program; nothing that a header or a list of addresses is made of.
_LOCAL_PART = r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,63}"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"({_LOCAL_PART})(?:@({_LABEL}(?:\.{_LABEL})*))?")
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_ARN = re.compile(r"arn:aws[a-z-]{0,20}:sns:([a-z0-9-]{1,32}):[0-9]{12}:([A-Za-z0-9_-]{1,256}(?:\.fifo)?)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,99}")
_URL_TEXT = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")  # RFC 3986


class Place(NamedTuple):
    """Where a URL leads: whether by TLS, host (an IPv6 address without brackets), port, and what is asked for there."""

    secure: bool
    host: str
    port: int
    path: str


def from_word(text: str) -> tuple[dict[str, Any], str]:
    """Return (fields of the target that a mere address means, what is wrong with it)."""
    for kind, form in (("webhook", "https://"), ("webhook", "http://"), ("sns", "arn:"), ("command", "/")):
        if text.startswith(form):
            return {kind: text}, ""
    if "@" in text and "://" not in text:
        return {"mail": text}, ""
    return {}, "this is no mail address, https:// URL, SNS topic (arn:...) or path of a program"


def kind_of(target: Target) -> str:
    """Return which of KINDS a target is; empty where it is none."""
    return next((kind for kind in KINDS if getattr(target, kind)), "")


def name_of(target: Target) -> str:
    """Return what a target is called: its own name, else the address, the host, the topic, or the program's name."""
    if target.name:
        return target.name
    kind = kind_of(target)
    value = str(getattr(target, kind)) if kind else ""
    if kind == "webhook":
        place, _ = parse_url(value)
        value = place.host.replace(":", ".") if place is not None else "webhook"
    elif kind == "sns":
        value = value.rpartition(":")[2]
    elif kind in ("command", "webhook_file"):
        value = value.rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9@._+-]", "-", value)[:100].lstrip("@._+-") or kind


def named(targets: tuple[Target, ...], name: str) -> Target | None:
    """Return the target of that name, or None."""
    return next((target for target in targets if name_of(target) == name), None)


def region_of(arn: str) -> str:
    """Return the region in a topic's ARN; empty where it is none."""
    found = _ARN.fullmatch(arn)
    return found[1] if found else ""


def parse_url(url: str) -> tuple[Place | None, str]:
    """Return (where a URL leads, what is wrong with it); one of the two is empty. What is wrong holds nothing secret."""
    if not url:
        return None, "a URL is needed here"
    if len(url) > URL_CHARS:
        return None, f"it is longer than {URL_CHARS} characters"
    if not _URL_TEXT.fullmatch(url):
        return None, "a URL has no blanks and no such characters; write them as %XX"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return None, "it is no URL: host or port cannot be read"
    host = (parts.hostname or "").lower()
    if parts.scheme not in ("https", "http"):
        return None, "expected https://HOST/PATH"
    if "@" in parts.netloc:
        return None, "a user and a password have no place in it; name a command that sends them"
    if parts.fragment or "#" in url:
        return None, "what follows a # is never sent; leave it out"
    if MASK in url:
        return None, f"{MASK} stands in the place of its secret; write the whole URL"
    is_address = _is_ip(host)
    if not host or len(host) > 253 or not (is_address or _HOST.fullmatch(host)) or port == 0:
        return None, "it has no host that could be one, or no such port"
    if parts.scheme == "http" and not is_loopback(host):
        return None, "http would show it to everyone on the way; use https (http goes to this machine alone)"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.scheme == "https", host, port or (443 if parts.scheme == "https" else 80), path), ""


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine by its very name."""
    if host == "localhost":
        return True
    return _is_ip(host) and ipaddress.ip_address(host).is_loopback


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def is_address(text: str) -> bool:
    """Say whether a text is a mail address, or the name of a local user, that can be neither an option nor a header."""
    return len(text) <= 254 and _ADDRESS.fullmatch(text) is not None and ".." not in text


def masked_url(url: str) -> str:
    """Return a URL as it may be shown: scheme and host."""
    place, _ = parse_url(url)
    if place is None:
        return MASK
    host = f"[{place.host}]" if ":" in place.host else place.host
    standard = place.port == (443 if place.secure else 80)
    return f"http{'s' if place.secure else ''}://{host}{'' if standard else f':{place.port}'}/{MASK}"


def masked(target: Target) -> Target:
    """Return a target as it may be shown."""
    return target._replace(webhook=masked_url(target.webhook)) if target.webhook else target


def scrubbed(text: str, url: str) -> str:
    """Return a text (what a server or a library said) without the URL and without the parts of it that are secret."""
    secrets = {url}
    try:
        parts = urllib.parse.urlsplit(url)
        whole = f"{parts.path}?{parts.query}" if parts.query else parts.path
        secrets |= {whole, parts.path, parts.query, *parts.path.split("/"), *re.split(r"[&=]", parts.query)}
        secrets |= {urllib.parse.unquote(secret) for secret in secrets}
    except ValueError:
        pass
    # A short piece such as `v1` is none, and would make holes in every word.
    for secret in sorted((one for one in secrets if len(one) >= 6), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def check_notify(notify: Notify) -> list[tuple[str, str]]:
    """Return (key, what is wrong) for targets and templates."""
    wrong: list[tuple[str, str]] = []
    if len(notify.targets) > TARGETS_MAX:
        wrong.append(("notify.targets", f"{len(notify.targets)} targets; {TARGETS_MAX} are allowed"))
    names: dict[str, int] = {}
    for number, target in enumerate(notify.targets):
        at = f"notify.targets[{number}]"
        found = check_target(target)
        wrong += [(f"{at}.{key}" if key else at, what) for key, what in found]
        name = name_of(target)
        if not found and name in names:
            what = f"two targets are called {name}; give this one a name of its own: name: WORD"
            wrong.append((f"{at}.name" if target.name else at, what))
        names.setdefault(name, number)
    for key in ("subject", "text"):
        if what := check_template(getattr(notify, key), one_line=key == "subject"):
            wrong.append((f"notify.{key}", what))
    return wrong


def check_target(target: Target) -> list[tuple[str, str]]:
    """Return (key of the target, empty for the whole; what is wrong) for one target."""
    kinds = [kind for kind in KINDS if getattr(target, kind)]
    if len(kinds) != 1:
        found = f"found {' and '.join(kinds)}" if kinds else "found none"
        return [("", f"a target has just one of {', '.join(KINDS)}; {found}")]
    wrong = []
    if target.name and not _NAME.fullmatch(target.name):
        wrong.append(("name", f"{target.name!r} is no name: letters, digits, and . _ + - @ behind the first"))
    if target.mail and not is_address(target.mail):
        wrong.append(("mail", f"{target.mail!r} is no address: expected NAME@HOST, or a user's name"))
    if target.webhook and (what := parse_url(target.webhook)[1]):
        wrong.append(("webhook", what))
    if target.sns and not _ARN.fullmatch(target.sns):
        wrong.append(("sns", f"{target.sns!r} is no topic: expected arn:aws:sns:REGION:ACCOUNT:NAME"))
    if target.command and target.command.endswith("/"):
        wrong.append(("command", f"{target.command!r} is a folder; it takes no arguments either: name one program"))
    if target.format != "auto" and not (target.webhook or target.webhook_file):
        wrong.append(("format", f"only a webhook has a form; this is {kinds[0]}"))
    return wrong


def check_template(template: str, *, one_line: bool = False) -> str:
    """Return what is wrong with a template of string.Template, or an empty text."""
    if len(template) > TEMPLATE_CHARS:
        return f"it is longer than {TEMPLATE_CHARS} characters"
    if one_line and "\n" in template:
        return "a subject is one line"
    for found in string.Template.pattern.finditer(template):
        if found["invalid"] is not None:
            line = template.count("\n", 0, found.start("invalid")) + 1
            return f"a $ in line {line} of it begins no field; write $$ for a dollar sign"
        name = found["named"] or found["braced"]
        if name is not None and name not in FIELDS:
            hint = nearest(name, list(FIELDS)) or f" There are: {', '.join('$' + field for field in FIELDS)}"
            return f"there is no field ${name}.{hint}"
    return ""

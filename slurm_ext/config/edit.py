"""Change one value in fmslurm.yaml and nothing else: comments, order and spacing stay as people left them. Pure."""

from __future__ import annotations

import re

import yaml

from slurm_ext.config.render import value_text
from slurm_ext.config.rules import keys
from slurm_ext.config.yaml_file import parse
from slurm_ext.errors import ConfigError


def set_value(text: str, section: str, name: str, value: object) -> str:
    """Return the file's text with `section.name` set to `value`, checked by parsing what came out.

    Raise ConfigError where the text is not valid before, or where it is written in a way (an alias, a key repeated by
    another construct) that cannot be changed in place; the message says what to write by hand.
    """
    if parse(text.encode()).problems:
        raise ConfigError("the file has mistakes already", remedy="Run `fmslurm config check`, correct them, try again")
    rendered = value_text(value, keys(section)[name])
    changed = _changed(text, section, name, rendered)
    before, after = parse(text.encode()), parse(changed.encode())
    wanted = getattr(before.settings, section)._replace(**{name: value})
    if after.problems or after.settings._replace(source_hash="") != before.settings._replace(
        source_hash="", **{section: wanted}
    ):
        raise ConfigError(
            f"{section}.{name} cannot be changed in place in this file", remedy=f"Write it by hand: {name}: {rendered}"
        )
    return changed


def _changed(text: str, section: str, name: str, rendered: str) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    newline = "" if not text or text.endswith("\n") else "\n"
    found = _child(root, section)
    if found is None or (isinstance(root, yaml.ScalarNode)):
        return f"{text}{newline}\n{section}:\n  {name}: {rendered}\n"
    key_node, body = found
    if isinstance(body, yaml.ScalarNode):  # `mode:` with nothing below
        at = text.find("\n", key_node.end_mark.index)
        at = len(text) if at < 0 else at + 1
        lead = "" if text[:at].endswith("\n") else "\n"
        return f"{text[:at]}{lead}  {name}: {rendered}\n{text[at:]}"
    inner = _child(body, name)
    if inner is not None:
        value_node = inner[1]
        return text[: value_node.start_mark.index] + rendered + text[value_node.end_mark.index :]
    if isinstance(body, yaml.MappingNode) and body.flow_style:
        at = body.start_mark.index + 1
        return f"{text[:at]}{name}: {rendered}{', ' if body.value else ''}{text[at:]}"
    at = body.start_mark.index
    indent = re.search(r"[^\n]*\Z", text[:at])
    assert indent is not None
    return f"{text[:at]}{name}: {rendered}\n{indent.group(0)}{text[at:]}"


def _child(node: yaml.Node | None, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    for key_node, value in node.value:
        if isinstance(key_node, yaml.ScalarNode) and key_node.value == name:
            return key_node, value
    return None

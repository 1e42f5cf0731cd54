"""Which settings the command line uses: FMSLURM_CONFIG, else /etc/fmslurm/fmslurm.yaml, else the defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from slurm_ext.config import yaml_file
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.config.rules import SECTIONS, keys

DEFAULT_PATH = "/etc/fmslurm/fmslurm.yaml"

#: Environment variable -> the key it fills where the file leaves it at its default. Hooks never look at the environment.
FROM_ENVIRONMENT: Mapping[str, tuple[str, str]] = {"SLURM_CONF": ("site", "slurm_conf")}


class Located(NamedTuple):
    """Settings, the file they come from (empty: none, defaults), and the origin of each `section.key`."""

    settings: Settings
    path: str
    origins: Mapping[str, str]


def config_path(environment: Mapping[str, str] | None = None) -> str:
    """Return the path of the site's fmslurm.yaml, or an empty string where there is none.

    A path in FMSLURM_CONFIG is returned even where no file is: who names one wants to hear that it is missing.
    """
    named = (os.environ if environment is None else environment).get("FMSLURM_CONFIG", "")
    return named or (DEFAULT_PATH if os.path.exists(DEFAULT_PATH) else "")


def locate(environment: Mapping[str, str] | None = None) -> Located:
    """Return settings with where each value comes from. Raise ConfigError for a file that cannot be used."""
    env = os.environ if environment is None else environment
    path = config_path(env)
    if path:
        content = yaml_file.read_bytes(path)
        parsed = yaml_file.parse(content)
        if parsed.problems:
            raise yaml_file.InvalidSettingsError(path, parsed.problems)
        settings, where = parsed.settings, yaml_file.where_from(path, parsed.lines)
    else:
        settings = Settings()
        where = {f"{section}.{name}": "default" for section in SECTIONS for name in keys(section)}
    for variable, (section, name) in FROM_ENVIRONMENT.items():
        if (value := env.get(variable, "")) and not getattr(getattr(settings, section), name):
            changed = getattr(settings, section)._replace(**{name: value})
            settings = settings._replace(**{section: changed})
            where[f"{section}.{name}"] = f"environment ({variable})"
    return Located(settings, path, where)


def settings() -> Settings:
    """Return the settings for a command of ours. Raise ConfigError for a file that cannot be used."""
    return locate().settings


def trail_path(settings: Settings) -> str:
    """Return the path of this machine's own trail of events."""
    return os.path.join(at_node(settings.site.log_dir, machine_name()), "events.jsonl")

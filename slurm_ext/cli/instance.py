"""What a command that runs on a node knows of the machine below it."""

from __future__ import annotations

from pathlib import Path

from slurm_ext.config.model import Settings, at_node


def instance_type(settings: Settings, node: str) -> str:
    """Return the site's instance type, or what this machine, which is `node`, says of itself; empty where it does not."""
    if settings.site.instance_type != "auto":
        return settings.site.instance_type
    try:
        return (Path(at_node(settings.site.root, node)) / "sys/class/dmi/id/product_name").read_text().strip()
    except OSError:
        return ""

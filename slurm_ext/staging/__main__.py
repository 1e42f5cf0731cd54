"""`python -m slurm_ext.staging --config PATH [--node NAME] [--once]`: what bin/fmslurm-agent runs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from slurm_ext.config import snapshot
from slurm_ext.config.model import Settings, at_node, machine_name
from slurm_ext.config.modes import switch_off
from slurm_ext.errors import EXIT_USAGE, FmslurmError
from slurm_ext.staging.agent import serve


def reader(path: str, node: str) -> Callable[[], Settings]:
    """Return what gives the agent its settings each time it asks: the file, overruled by what was pushed and switched off.

    A YAML file is read once; what comes later comes by `fmslurm config push` and `fmslurm off`.
    """
    if path.endswith(".json"):
        first = snapshot.read(path)
    else:
        from slurm_ext.config import yaml_file  # YAML only where a YAML file is named

        first = yaml_file.load(path)
    share = at_node(first.site.share, node)
    if not share:
        return lambda: first
    state_dir = at_node(first.site.state_dir, node)

    def again() -> Settings:
        seen = snapshot.view(share, state_dir)
        # Before the first push there is only the file, and an off switch holds even then.
        return seen.settings if seen.settings.generation else switch_off(first, seen.off, now=time.time())

    return again


def main(argv: list[str] | None = None) -> int:
    """Run the agent and return the exit code."""
    parser = argparse.ArgumentParser(prog="fmslurm-agent", description="Move checkpoints from this node's NVMe on.")
    parser.add_argument("--config", default="/etc/fmslurm/fmslurm.yaml", help="fmslurm.yaml, or a pushed snapshot")
    parser.add_argument("--node", default=machine_name(), help="this node's name in Slurm")
    parser.add_argument("--once", action="store_true", help="look once, try everything once, and end")
    options = parser.parse_args(argv)
    try:
        return serve(reader(options.config, options.node), options.node, once=options.once)
    except FmslurmError as exc:
        print(f"fmslurm-agent: {exc}", file=sys.stderr)  # noqa: T201
        return exc.exit_code
    except ValueError as exc:
        print(f"fmslurm-agent: {exc}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())

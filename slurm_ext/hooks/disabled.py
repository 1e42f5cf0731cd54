"""Tell once that `gate.disabled` names checks that do not exist: a gate is never broken by it, and nobody overlooks it.

Imported only where `gate.disabled` holds anything.
"""

from __future__ import annotations

import os

from slurm_ext.config.model import Settings, at_node
from slurm_ext.errors import UntrustedFileError
from slurm_ext.events import Event
from slurm_ext.files import read_trusted, write_passing
from slurm_ext.hooks import trail

#: Below the run folder: the hash of the settings that were looked at last.
SEEN = "disabled-seen"


def tell(settings: Settings, node: str, share: str) -> None:
    """Write one event where words name no check, once for each configuration and boot. Never raises."""
    run_dir = at_node(settings.site.run_dir, node)
    mark = f"{settings.source_hash}\n{','.join(settings.gate.disabled)}\n"
    try:
        if read_trusted(os.path.join(run_dir, SEEN), max_bytes=65536).decode("utf-8", "replace") == mark:
            return
    except (OSError, UntrustedFileError):
        pass
    try:
        from slurm_ext.gate import disabled

        wrong = [what for _, what in disabled.wrong(settings.gate.disabled)]
        if wrong:
            event = Event(
                "gate.disabled",
                room="gate",
                rule="gate.disabled",
                reason=f"gate.disabled: {wrong[0]}",
                evidence=tuple(wrong),
                decision="ignored",
            )
            trail.emit(settings, node, event, share=share)
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        write_passing(os.path.join(run_dir, SEEN), mark)
    except Exception:  # noqa: BLE001 - a note about the configuration must never cost a job its prolog
        return

"""Which boot and instance this is, and what a node that is to be drained will need to come back: read on the failing path only."""

from __future__ import annotations

import os
import time

from slurm_ext.config.model import Settings, at_node
from slurm_ext.gate import ladder, read_small
from slurm_ext.patterns import pattern
from slurm_ext.slurm import drain_record
from slurm_ext.slurm.act import Context
from slurm_ext.slurm.drain_record import PastDrain, Remedy
from slurm_ext.verdict import Finding

_INSTANCE = pattern(r"i-[0-9a-f]{8,32}")
_BOOT = pattern(r"[0-9a-f-]{32,36}")


def boot_id(root: str) -> str:
    """Return the id of this boot, empty where it cannot be read."""
    found = (read_small.text(os.path.join(root, "proc/sys/kernel/random/boot_id"), 64) or "").strip()
    return found if _BOOT.fullmatch(found) else ""


def instance_id(root: str) -> str:
    """Return the EC2 instance id, which Nitro instances have as DMI's board asset tag; empty where it is none."""
    found = (read_small.text(os.path.join(root, "sys/class/dmi/id/board_asset_tag"), 64) or "").strip()
    return found if _INSTANCE.fullmatch(found) else ""


def stamped(settings: Settings, context: Context, *, is_here: bool) -> Context:
    """Return the context with boot and instance id, where the node it is about is the one we are on (`is_here`)."""
    if not is_here:
        return context
    root = at_node(settings.site.root, context.node)
    return context._replace(
        boot_id=context.boot_id or boot_id(root), instance_id=context.instance_id or instance_id(root)
    )


def remedy(settings: Settings, context: Context, finding: Finding, *, bundle: str = "", gpu: str = "") -> Remedy:
    """Return what the ladder asks for, given what this node was drained for before.

    `bundle`: where the evidence lies; `gpu`: which GPU the finding is about (proof.gpu_of).
    """
    share, node = settings.site.share, context.node
    past = drain_record.history(share, node) or ()
    if (stale := drain_record.read(share, node)) is not None:  # somebody resumed it without a word to us
        past = (*past, PastDrain(stale, context.now, drain_record.SUPERSEDED))
    step = ladder.climb(
        finding,
        past,
        now=context.now or time.time(),
        boot_id=context.boot_id,
        instance_id=context.instance_id,
        reboot_first=settings.drain.reboot_first,
    )
    return Remedy(step.step, step.needs + (f" ({step.why})" if step.why else ""), step.tries, bundle, gpu)

"""The part of `fmslurm install` that brings NCCL's library, and of `uninstall` that takes it out."""

from __future__ import annotations

import os

from slurm_ext import events
from slurm_ext.cli.output import say_json, say_text
from slurm_ext.config.locate import Located, trail_path
from slurm_ext.site import nccl, nccl_wheel


def folder_of(located: Located, asked: str) -> str:
    """Return where the library goes: what was asked for, else `nccl` below the prefix."""
    return asked or os.path.join(located.settings.site.prefix, "nccl")


def deliver(located: Located, *, version: str, cuda: int, wheel: str, to: str, dry_run: bool, as_json: bool) -> None:
    """Bring the library, or say what would be brought. Raise LackingError or UsageError where that cannot be."""
    settings = located.settings
    folder = folder_of(located, to)
    driver = nccl.driver_here(settings.site.root if "%n" not in settings.site.root else "/")
    release = nccl.choose(version, cuda, driver)
    if dry_run:
        nccl.may_write(os.path.abspath(folder))
        if wheel:
            nccl_wheel.look_at(wheel, release)
        place = os.path.join(folder, release.name)
        if as_json:
            say_json({"dry_run": True, "release": release._asdict(), "driver": driver, "place": place})
        else:
            how = f"unpack {wheel}" if wheel else f"fetch {release.wheel} ({release.size_bytes >> 20} MiB)"
            say_text(f"would {how} into {place}")
        return
    trail = trail_path(settings)
    told = events.Event(
        "site.install-nccl", room="site", reason=f"NCCL {release.version} for CUDA {release.cuda} into {folder}"
    )
    events.append(trail, told._replace(phase="intent"), durable=True)
    done = nccl.deliver(folder, release, lambda line: None if as_json else say_text(line), wheel=wheel)
    events.append(trail, told._replace(phase="done", data={"changed": done.changed, "version": done.version}))
    loads = os.path.join(folder, nccl.CURRENT, nccl.LIBRARY)
    configured = settings.burnin.nccl_library
    elsewhere = bool(to) or (configured and configured != loads)
    if as_json:
        say_json({**done._asdict(), "driver": driver, "loads": loads, "configured": configured})
        return
    say_text(f"NCCL {release.version} for CUDA {release.cuda} {'is' if done.changed else 'was already'} in {done.path}")
    if elsewhere:
        said = f"burnin.nccl_library is {configured}" if configured else "burnin.nccl_library is not set"
        say_text(f"note: {said}; to load this one set it to {loads} and run `fmslurm config push`")

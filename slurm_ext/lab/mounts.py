"""Mount points, read from the kernel's list: looking at a mount point itself may hang."""

from __future__ import annotations

from pathlib import Path


def points(pid: int | None = None, *, kind: str = "") -> list[str]:
    """Return the mount points that a process sees (we ourselves by default), of one file system type if one is named."""
    return [point for _, point, of_kind in _entries(pid) if not kind or of_kind == kind]


def devices(pid: int | None = None) -> dict[str, str]:
    """Return what is mounted (a device or a name) at each mount point that a process sees."""
    return {point: device for device, point, _ in _entries(pid)}


def _entries(pid: int | None) -> list[tuple[str, str, str]]:
    try:
        text = Path(f"/proc/{pid or 'self'}/mounts").read_text()
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        device, point, kind, *_ = line.split()
        # Blanks and the like are written as \\040.
        found.append((device, point.encode().decode("unicode_escape"), kind))
    return found

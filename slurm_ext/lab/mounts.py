"""Mount points, read from the kernel's list: looking at a mount point itself may hang."""

from __future__ import annotations

from pathlib import Path


def points(pid: int | None = None, *, kind: str = "") -> list[str]:
    """Return the mount points that a process sees (we ourselves by default), of one file system type if one is named."""
    try:
        text = Path(f"/proc/{pid or 'self'}/mounts").read_text()
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        _, point, of_kind, *_ = line.split()
        if not kind or of_kind == kind:
            # Blanks and the like are written as \\040.
            found.append(point.encode().decode("unicode_escape"))
    return found

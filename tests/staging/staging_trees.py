"""Trees that are hard to copy, and a child that is killed at a named step: what several staging tests use."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from slurm_ext.staging.local import Point

#: Names that break tools: unicode, blanks, a leading dash, bytes that are no UTF-8, 255 bytes.
NAMES = (
    "weights.bin",
    "größe ✓.pt",
    " leading and  double",
    "-rf",
    os.fsdecode(b"odd-\xff\xfe"),
    "n" * 255,
    "a%20b",
    "new\nline",
)


def write_tree(folder: str, seed: int = 0) -> None:
    """Write a small tree with everything that is hard: names, depth, links, an empty file and folder, modes, holes."""
    for number, name in enumerate(NAMES):
        Path(folder, name).write_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest() * (100 * number + 1))
    deep = Path(folder, *[f"level-{number}" for number in range(12)])
    deep.mkdir(parents=True)
    (deep / "bottom").write_bytes(b"deep down")
    (deep / "bottom").chmod(0o640)
    Path(folder, "empty folder").mkdir(mode=0o750)
    Path(folder, "empty").touch()
    Path(folder, "link").symlink_to("weights.bin")
    Path(folder, "dangling").symlink_to("/nowhere/at all")
    with open(Path(folder, "sparse"), "wb") as stream:
        stream.seek(3 << 20)
        stream.write(b"end")


def picture(folder: str | Path) -> dict[str, tuple[str, int, str]]:
    """Return every name below a folder with kind, mode and content: equal pictures are equal bit for bit."""
    seen: dict[str, tuple[str, int, str]] = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if name.startswith(".fmslurm-"):
                continue
            path = os.path.join(parent, name)
            key, mode = os.path.relpath(path, folder), os.lstat(path).st_mode & 0o777
            if os.path.islink(path):
                seen[key] = ("link", mode, os.readlink(path))
            elif os.path.isdir(path):
                seen[key] = ("dir", mode, "")
            else:
                seen[key] = ("file", mode, hashlib.sha256(Path(path).read_bytes()).hexdigest())
    return seen


def names_of_points(work: Callable[[Point], object]) -> list[str]:
    """Run `work` to its end and return the names of all steps that it passes."""
    seen: list[str] = []
    work(seen.append)
    return seen


def killed_at(number: int, work: Callable[[Point], object]) -> bool:
    """Run `work` in a child that kills itself with SIGKILL at its step `number`; say whether it came so far."""
    child = os.fork()
    if child == 0:
        count = 0

        def point(_: str) -> None:
            nonlocal count
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        try:
            work(point)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

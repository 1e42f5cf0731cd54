"""Small files and folders of the kernel and of a node, read with a limit and never through a link that has the last name.

None means that it could not be read, or is not there; nothing raises. `Files` tells the two apart. Standard library only,
light to import: the prolog's quick look uses it.
"""

from __future__ import annotations

import errno
import os
import stat

#: A folder is read no further than this many names.
MOST_NAMES = 4096

_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def text(path: str, most: int = 4096) -> str | None:
    """Return a file's text, `most` bytes of it at most."""
    said = read(path, most)
    return said if isinstance(said, str) else None


def read(path: str, most: int = 4096) -> str | OSError:
    """Return a file's text, `most` bytes of it at most, or why it could not be read."""
    try:
        descriptor = os.open(path, _FILE)
    except (OSError, ValueError) as exc:
        return exc if isinstance(exc, OSError) else OSError(errno.EINVAL, "a name that cannot be one")
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):  # a pipe reads as empty, which is no answer
            number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
            return OSError(number, os.strerror(number))
        parts, left = [], most
        # /proc gives a large file in pieces; an empty piece is its end.
        while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts).decode("utf-8", "replace")
    except OSError as exc:
        return exc
    finally:
        os.close(descriptor)


def number(path: str) -> int | None:
    """Return the whole number that a small file holds; no counter of the kernel has more than twenty digits."""
    said = (text(path, 64) or "").strip()
    return int(said) if len(said) <= 20 and is_number(said) else None


def is_number(word: str) -> bool:
    """Return whether a word is a whole number in the kernel's own digits: `isdigit` alone takes a raised 2 for one."""
    return word.isascii() and word.isdigit()


def names(path: str) -> list[str] | None:
    """Return the names in a folder, MOST_NAMES of them at most; an absent folder has none."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        return None


class Files:
    """The reads of one look below a root. `unread` says of each file or folder that is there and could not be read why (errno).

    What is not there says nothing; what cannot be read may hide a fault, and is never taken for a value that is well.
    """

    def __init__(self, root: str, unread: dict[str, str] | None = None) -> None:
        self.root = root
        self.unread: dict[str, str] = {} if unread is None else unread

    def text(self, name: str, most: int = 4096) -> str | None:
        """Return a file's text, as the function of that name does."""
        said = read(os.path.join(self.root, name), most)
        if isinstance(said, str):
            return said
        self.note(name, said)
        return None

    def number(self, name: str) -> int | None:
        """Return the whole number that a small file holds; any other text is noted as well."""
        said = self.text(name, 64)
        if said is None:
            return None
        if len(word := said.strip()) <= 20 and is_number(word):
            return int(word)
        self.unread[name] = f"no number: {word[:20]!r}"
        return None

    def names(self, name: str) -> list[str] | None:
        """Return the names in a folder, as the function of that name does."""
        try:
            with os.scandir(os.path.join(self.root, name)) as entries:
                return [entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False)]
        except FileNotFoundError:
            return []
        except OSError as exc:
            self.note(name, exc)
            return None

    def note(self, name: str, error: OSError) -> None:
        """Remember that something could not be read, unless it is not there."""
        if error.errno != errno.ENOENT:
            self.unread[name] = errno.errorcode.get(error.errno or 0, str(error.errno))

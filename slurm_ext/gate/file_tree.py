"""A part of a directory tree as one mapping, path -> content or why it could not be read: captures and live roots alike.

Pure, standard library only, light to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_ext.typed import NamedTuple


class Unread(NamedTuple):
    """Stands for the content of a file that could not be read; `error` is an errno name."""

    error: str


#: Paths without a leading slash. A folder that was listed and is empty ends in "/".
Tree = Mapping[str, "str | Unread"]

#: errno names that say that this process may not read, not that the thing read is at fault.
DENIED = ("EACCES", "EPERM")


def parse_tree(text: str) -> Tree | None:
    """Return the tree in a capture's JSON, None where it is none."""
    import json  # here, since the live path reads files

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    tree: dict[str, str | Unread] = {}
    for path, content in found.items():
        if isinstance(content, str):
            tree[path.lstrip("/")] = content
        elif isinstance(content, dict) and isinstance(content.get("error"), str):
            tree[path.lstrip("/")] = Unread(content["error"])
        elif isinstance(content, int | float) and not isinstance(content, bool):
            tree[path.lstrip("/")] = str(content)
        else:  # a form that this reader does not know: there, but nothing can be said of it
            tree[path.lstrip("/")] = Unread("EINVAL")
    return tree


def word(tree: Tree, path: str) -> str | None:
    """Return a small file's text without blanks around it, None where it is absent or could not be read."""
    content = tree.get(path)
    return content.strip() if isinstance(content, str) else None


def index(tree: Tree) -> Mapping[str, Mapping[str, None]]:
    """Return the names below each folder, in order of first appearance; an empty folder has none."""
    folders: dict[str, dict[str, None]] = {}
    for path in tree:
        while path:
            folder, _, name = path.rpartition("/")
            names = folders.setdefault(folder, {})
            if not name:  # a folder that was listed and is empty
                path = folder
                continue
            if name in names:
                break  # what is above is known as well
            names[name] = None
            path = folder
    return folders


def has_folder(tree: Tree, folder: str) -> bool:
    """Say whether the tree holds a folder: with something below it, or listed as empty."""
    inside = folder.rstrip("/") + "/"
    return any(path.startswith(inside) for path in tree)


def ending(tree: Tree, name: str) -> Iterator[tuple[str, str | Unread]]:
    """Yield the folder and the content of every file of one name."""
    tail = "/" + name
    for path, content in tree.items():
        if path.endswith(tail):
            yield path[: -len(tail)], content

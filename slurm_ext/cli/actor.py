"""Who runs a command: the user, the user behind sudo, and the one who logged in, which sudo and su do not change."""

from __future__ import annotations

import getpass
import os
import pwd
from typing import NamedTuple

#: What the kernel says for a process that no login began (daemons).
_NO_LOGIN = 0xFFFFFFFF


class Actor(NamedTuple):
    """One person as the machine knows them; -1 and empty where it does not."""

    uid: int
    name: str
    sudo_uid: int = -1
    sudo_user: str = ""
    login_uid: int = -1
    login_name: str = ""

    def words(self) -> str:
        """Return the name for people, with who is behind it: `root (sudo by alice)`."""
        behind = self.sudo_user or self.login_name
        if not behind or behind == self.name:
            return self.name
        return f"{self.name} ({'sudo by' if self.sudo_user else 'logged in as'} {behind})"

    def data(self) -> dict[str, object]:
        """Return what is known as plain data for an event."""
        return {key: value for key, value in self._asdict().items() if value not in ("", -1)}


def actor(environment: dict[str, str] | None = None, login_path: str = "/proc/self/loginuid") -> Actor:
    """Return who runs this command. SUDO_USER is what sudo says and anybody may set; the login uid is the kernel's word."""
    env = dict(os.environ) if environment is None else environment
    uid = os.getuid()
    login_uid = _login_uid(login_path)
    sudo_uid = env.get("SUDO_UID", "")
    return Actor(
        uid,
        _name(uid) or _user(uid),
        int(sudo_uid) if sudo_uid.isascii() and sudo_uid.isdigit() and len(sudo_uid) <= 10 else -1,
        _plain(env.get("SUDO_USER", "")),
        login_uid,
        _name(login_uid) if login_uid >= 0 else "",
    )


def _login_uid(path: str) -> int:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            text = stream.read(32).strip()
    except OSError:
        return -1
    value = int(text) if text.isascii() and text.isdigit() else _NO_LOGIN
    return -1 if value >= _NO_LOGIN else value


def _name(uid: int) -> str:
    try:
        return _plain(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return ""


def _user(uid: int) -> str:
    try:
        return _plain(getpass.getuser())
    except (KeyError, OSError):
        return f"uid {uid}"


def _plain(name: str) -> str:
    """Return a name as it may stand in a reason or an event: printable, without blanks, not long."""
    return "".join(letter for letter in name if letter.isprintable() and not letter.isspace())[:64]

"""A notice as a mail: by sendmail's own command line, which every mail system brings, or by Slurm's MailProg.

To an address: sendmail first, since a site's MailProg may take jobs' mails alone. To a job's owner: MailProg first, as Slurm
itself tells them. An address is checked to be neither an option nor a header, and goes as one argument.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from email.message import EmailMessage
from typing import NamedTuple

from slurm_ext.command import clean_env, run
from slurm_ext.config.targets import is_address
from slurm_ext.errors import FmslurmError
from slurm_ext.notices.model import PAGE, Message, Sent
from slurm_ext.notices.program import untrusted
from slurm_ext.verdict import one_line

#: Where sendmail's command line is, whichever mail system it belongs to (Filesystem Hierarchy Standard).
SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")

#: A mail program may take so long (seconds).
TIMEOUT_S = 20.0

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\$?")


class Ways(NamedTuple):
    """How mail leaves this machine. `slurm` asks Slurm for its MailProg and MailDomain, only where that matters."""

    sendmail: tuple[str, ...] = SENDMAIL
    slurm: Callable[[], tuple[str, str]] = lambda: ("", "")


def compose(message: Message, to: str) -> str:
    """Return a mail with its headers. Raise ValueError where a header would hold a line of its own. Pure."""
    mail = EmailMessage()
    mail["To"] = to
    mail["Subject"] = message.subject
    mail["Message-ID"] = f"<{message.id}@fmslurm.invalid>"  # the same should it be sent twice
    mail["Auto-Submitted"] = "auto-generated"
    if message.severity == PAGE:
        mail["Importance"] = "high"
    mail.set_content(message.text)
    return mail.as_string()


def to_address(address: str, message: Message, ways: Ways) -> Sent:
    """Mail a notice to an address."""
    if not is_address(address):
        return Sent(False, "this is no address")
    for path in ways.sendmail:
        if os.path.exists(path):
            return _by_sendmail(path, address, message)
    program, _ = ways.slurm()
    if program and os.path.exists(program):
        return _by_mailprog(program, address, message)
    return Sent(False, f"there is neither {ways.sendmail[0]} nor Slurm's MailProg ({program or 'none'})")


def to_owner(uid: int, message: Message, ways: Ways) -> Sent:
    """Mail a notice to the owner of a job, by name as Slurm does."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return Sent(False, f"nobody has the user id {uid} here")
    if not _USER.fullmatch(name):
        return Sent(False, f"the name of the user with id {uid} is no address")
    program, domain = ways.slurm()
    address = f"{name}@{domain}" if domain else name
    if not is_address(address):
        return Sent(False, f"the name of the user with id {uid} is no address")
    if program and os.path.exists(program):
        return _by_mailprog(program, address, message)
    for path in ways.sendmail:
        if os.path.exists(path):
            return _by_sendmail(path, address, message)
    return Sent(False, f"there is neither Slurm's MailProg ({program or 'none'}) nor {ways.sendmail[0]}")


def _by_sendmail(path: str, address: str, message: Message) -> Sent:
    # -i: a line of a single dot does not end the mail.
    return _run([path, "-i", address], compose(message, address))


def _by_mailprog(path: str, address: str, message: Message) -> Sent:
    return _run([path, "-s", message.subject, address], message.text)


def _run(argv: list[str], text: str) -> Sent:
    if wrong := untrusted(argv[0]):
        return Sent(False, one_line(wrong))
    try:
        done = run(argv, timeout_s=TIMEOUT_S, env=clean_env(), input_text=text, cwd="/", max_output_bytes=16 << 10)
    except FmslurmError as exc:
        return Sent(False, one_line(str(exc)))
    return Sent(True, f"{argv[0]} took it") if done.ok else Sent(False, one_line(done.words()))

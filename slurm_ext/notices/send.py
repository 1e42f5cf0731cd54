"""One notice to one target: which way it goes. Runs in a child (child.py) that is killed in time."""

from __future__ import annotations

import json
from collections.abc import Callable

from slurm_ext.config.model import Settings, Target
from slurm_ext.config.targets import URL_CHARS, kind_of, region_of
from slurm_ext.errors import FmslurmError
from slurm_ext.files import read_trusted
from slurm_ext.notices import mail, program, webhook
from slurm_ext.notices.model import Message, Sent
from slurm_ext.verdict import one_line

#: A try as a whole may take so long (seconds): longer than each way's own deadline.
WHOLE_S = 30.0

#: How long (seconds) Slurm may take to say what its MailProg is.
SLURM_S = 5.0


def work(settings: Settings, target: Target | None, message: Message) -> Callable[[], bytes]:
    """Return the work of a child that sends a message: to a target, or where that is None to the message's owner."""

    def send_it() -> bytes:
        try:
            sent = send(settings, target, message)
        except Exception as exc:  # noqa: BLE001 - whatever a library does, the try has failed and is made again
            # Only the kind of what broke: its words may hold what is secret.
            sent = Sent(False, f"sending broke: {type(exc).__name__}")
        return json.dumps(sent).encode()

    return send_it


def outcome(answer: bytes | None, *, late: bool) -> Sent:
    """Return what became of a try by its child's answer."""
    if answer is None:
        return Sent(False, f"no end within {WHOLE_S:g} s" if late else "sending ended without a word")
    ok, said, retry_after_s = json.loads(answer)
    return Sent(bool(ok), str(said), float(retry_after_s))


def send(settings: Settings, target: Target | None, message: Message) -> Sent:
    """Send a message; see `work`."""
    ways = mail.Ways(slurm=lambda: slurms_mail(settings))
    if target is None:
        return mail.to_owner(message.owner, message, ways)
    kind = kind_of(target)
    if kind == "mail":
        return mail.to_address(target.mail, message, ways)
    if kind == "webhook":
        return webhook.send(target.webhook, target.format, message)
    if kind == "webhook_file":
        try:
            url = read_trusted(target.webhook_file, max_bytes=URL_CHARS + 2).decode("ascii", "replace").strip()
        except (OSError, FmslurmError) as exc:
            return Sent(False, one_line(f"{target.webhook_file}: {getattr(exc, 'strerror', None) or exc}"))
        return webhook.send(url, target.format, message)
    if kind == "command":
        return program.send(target.command, message)
    from slurm_ext.aws import sns  # here: boto3 is large, and few targets are topics

    try:
        group = f"fmslurm-{message.cluster}"
        told = sns.publish(
            target.sns, region_of(target.sns), message.subject, message.text, group=group, deduplication=message.id
        )
    except FmslurmError as exc:
        return Sent(False, one_line(str(exc)))
    return Sent(True, f"SNS took it as {told}")


def slurms_mail(settings: Settings) -> tuple[str, str]:
    """Return Slurm's MailProg and MailDomain; nothing where Slurm does not answer."""
    from slurm_ext.slurm import connect

    try:
        config = connect(settings, timeout_s=SLURM_S).config()
    except FmslurmError:
        return "", ""
    domain = config.get("MailDomain", "")
    return config.get("MailProg", ""), "" if domain in ("(null)", "N/A") else domain

"""A notice as a POST of JSON: the certificate is checked, nothing is followed elsewhere, time and answer are bounded.

Forms: Slack's incoming webhooks (Mattermost takes them, too) want `text`; Teams' workflows want an adaptive card and no longer
take a bare text; `json` is the whole notice, with a `text` beside it.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import time
from typing import Any

from slurm_ext import __version__
from slurm_ext.config.targets import Place, parse_url, scrubbed
from slurm_ext.notices.model import Message, Sent
from slurm_ext.verdict import one_line

#: Connecting and each wait for the answer may take this long (seconds), all of it that long, and so much of an answer is read.
STEP_S, WHOLE_S, ANSWER_BYTES = 8.0, 18.0, 4_096

#: Hosts whose webhooks want one form: the end of the host's name -> the form.
_FORMS = (
    ("hooks.slack.com", "slack"),
    ("hooks.slack-gov.com", "slack"),
    (".webhook.office.com", "teams"),
    (".logic.azure.com", "teams"),
    (".api.powerplatform.com", "teams"),
)


def form_of(host: str, chosen: str) -> str:
    """Return the form for a host where none was chosen. Pure."""
    if chosen != "auto":
        return chosen
    return next((form for end, form in _FORMS if host == end.lstrip(".") or host.endswith(end)), "json")


def body_of(message: Message, form: str) -> dict[str, Any]:
    """Return what is posted. Pure."""
    if form == "teams":
        blocks = [_block(message.subject, weight="Bolder"), _block(message.text, fontType="Monospace")]
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.2",
            "body": blocks,
        }
        kind = "application/vnd.microsoft.card.adaptive"
        return {"type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}]}
    # In a block of code, where no name of a channel or a person means anybody.
    shown = f"{_escaped(message.subject)}\n```\n{_escaped(message.text)}```"
    if form == "slack":
        return {"text": shown}
    told = {name: value for name, value in message._asdict().items() if name not in ("text", "owner")}
    return {"text": shown, "schema": 1, **told, "body": message.text}


def _escaped(text: str) -> str:
    """Escape what Slack takes for a link or for a name, and what would end the block of code."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("`", "'").replace("@", "@\u200b")


def _block(text: str, **more: str) -> dict[str, object]:
    return {"type": "TextBlock", "text": text.replace("\n", "\n\n"), "wrap": True, **more}


def send(url: str, chosen: str, message: Message) -> Sent:
    """Post a notice; what is said of it holds nothing of the URL but its host. For a child that is killed in time."""
    place, wrong = parse_url(url)
    if place is None:
        return Sent(False, f"the URL cannot be used: {wrong}")
    body = json.dumps(body_of(message, form_of(place.host, chosen))).encode()
    try:
        status, headers, answer = _post(place, body)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        return Sent(False, one_line(scrubbed(f"{place.host}: {_words(exc)}", url)))
    said = one_line(scrubbed(f"{place.host}: {status} {answer}", url))
    if 200 <= status < 300:
        return Sent(True, said)
    if 300 <= status < 400:
        return Sent(False, f"{place.host}: {status}, which leads elsewhere and is not followed; name the new URL")
    return Sent(False, said, _seconds(headers.get("retry-after", "")))


def _post(place: Place, body: bytes) -> tuple[int, dict[str, str], str]:
    give_up = time.monotonic() + WHOLE_S
    connection = _connection(place)
    try:
        connection.connect()
        assert connection.sock is not None
        if not place.secure and not _is_here(connection.sock):
            raise OSError(f"{place.host} is not this machine, and http goes to no other")
        headers = {"Content-Type": "application/json", "User-Agent": f"fmslurm/{__version__}", "Connection": "close"}
        connection.request("POST", place.path, body, headers)
        answer = connection.getresponse()
        told = bytearray()
        # What comes drop by drop, or without an end, is cut off; the status is known by then.
        while len(told) < ANSWER_BYTES and time.monotonic() < give_up:
            if not (piece := answer.read1(ANSWER_BYTES - len(told))):
                break
            told += piece
        headers_told = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers_told, told.decode("utf-8", "replace")[:200]
    finally:
        connection.close()


def _connection(place: Place) -> http.client.HTTPConnection:
    if not place.secure:
        return http.client.HTTPConnection(place.host, place.port, timeout=STEP_S)
    context = ssl.create_default_context()
    return http.client.HTTPSConnection(place.host, place.port, timeout=STEP_S, context=context)


def _is_here(connected: socket.socket) -> bool:
    return ipaddress.ip_address(connected.getpeername()[0]).is_loopback


def _words(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        return f"no answer within {STEP_S:g} s"
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {exc.verify_message}"
    if isinstance(exc, http.client.RemoteDisconnected):
        return "it closed without an answer"
    return str(exc) or type(exc).__name__


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() and len(text) < 9 else 0.0

"""The instance metadata service, version 2: a token first, then a few paths; each request bounded, nothing is retried.

Standard library only: a hook's child asks. AWS_EC2_METADATA_DISABLED and AWS_EC2_METADATA_SERVICE_ENDPOINT count as in the SDKs.
"""

from __future__ import annotations

import json
import os
import time

from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

ENDPOINT = "http://169.254.169.254"

#: Seconds for all requests together: on an instance each takes about a millisecond.
TIMEOUT_S = 1.0

#: No document of these is longer.
MAX_BYTES = 64 << 10

_LIVES_S = "60"
_REGION = pattern(r"[a-z]{2}(-[a-z]{2,8}){1,2}-[0-9]{1,2}")
_INSTANCE = pattern(r"i-[0-9a-f]{8,32}")
_TYPE = pattern(r"[a-z0-9-]{2,24}\.[a-z0-9-]{2,24}")
_ZONE = pattern(r"[a-z0-9-]{4,40}")
_ADDRESS = pattern(r"[0-9a-f.:]{2,45}")


class Identity(NamedTuple):
    """What an instance's own metadata say; each is empty where they do not."""

    instance_id: str = ""
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    zone_id: str = ""
    private_ip: str = ""


def identity(*, endpoint: str = "", timeout_s: float = 0.0) -> Identity | None:
    """Return who this instance is, or None where no metadata service answers with a document we know. 0: TIMEOUT_S."""
    asked = _ask(
        ("latest/dynamic/instance-identity/document", "latest/meta-data/placement/availability-zone-id"),
        endpoint=endpoint,
        timeout_s=timeout_s,
    )
    if not asked or not asked[0]:
        return None
    try:
        data = json.loads(asked[0])
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None

    def word(key: str, shape: object) -> str:
        text = data.get(key)
        return text if isinstance(text, str) and shape.fullmatch(text) else ""  # type: ignore[attr-defined]

    zone_id = (asked[1] or "").strip()
    found = Identity(
        word("instanceId", _INSTANCE),
        word("instanceType", _TYPE),
        word("region", _REGION),
        word("availabilityZone", _ZONE),
        zone_id if _ZONE.fullmatch(zone_id) else "",
        word("privateIp", _ADDRESS),
    )
    return found if found.instance_id else None


def region(*, endpoint: str = "", timeout_s: float = 0.0) -> str:
    """Return the region of this instance, empty where no metadata service says. 0: TIMEOUT_S."""
    asked = _ask(("latest/meta-data/placement/region",), endpoint=endpoint, timeout_s=timeout_s)
    found = (asked[0] or "").strip() if asked else ""
    return found if _REGION.fullmatch(found) else ""


def _ask(paths: tuple[str, ...], *, endpoint: str, timeout_s: float) -> list[str | None]:
    """Return the text behind each path (None: refused), or an empty list where no token is to be had in time."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return []
    import http.client

    base = endpoint or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "") or ENDPOINT
    address = base.partition("://")[2].strip("/")
    timeout_s = timeout_s or TIMEOUT_S
    until = time.monotonic() + timeout_s
    try:
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
    except http.client.InvalidURL:
        return []
    try:
        token = _one(connection, "PUT", "latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": _LIVES_S}, until)
        if not token:
            return []
        return [_one(connection, "GET", path, {"X-aws-ec2-metadata-token": token}, until) for path in paths]
    except (OSError, http.client.HTTPException, ValueError):
        return []
    finally:
        connection.close()


def _one(connection: object, method: str, path: str, headers: dict[str, str], until: float) -> str | None:
    import http.client

    assert isinstance(connection, http.client.HTTPConnection)
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.timeout = left_s
    if connection.sock is not None:
        connection.sock.settimeout(left_s)
    connection.request(method, f"/{path}", headers=headers)
    answer = connection.getresponse()
    body = answer.read(MAX_BYTES)
    answer.close()
    if answer.status != 200:
        return None
    return body.decode("utf-8", "replace")

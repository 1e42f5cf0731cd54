"""What AWS or botocore said, and what a person can do about it: one place that knows the words of both.

botocore is imported on use: the gate's own modules of this room must not need it.
"""

from __future__ import annotations

import re

from slurm_ext.errors import LackingError
from slurm_ext.typed import NamedTuple

#: Codes by which AWS says: too fast. A retry helps.
THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)

#: Codes of a fault inside AWS beside any HTTP status of 500 and above. A retry helps.
INSIDE = frozenset({"InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "Unavailable"})

_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_UNKNOWN_KEY = frozenset(
    {
        "AuthFailure",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "UnrecognizedClientException",
    }
)
_CLOCK = frozenset({"InvalidSignatureException", "RequestExpired", "RequestInTheFuture", "SignatureDoesNotMatch"})
_ABSENT_CALL = frozenset({"InvalidAction", "UnknownOperationException", "UnsupportedOperation"})

_ROLE = re.compile(r"User: (arn:\S{1,300}) is not authorized to perform: ([a-z0-9-]{1,40}:[A-Za-z]{1,80})")
_BECAUSE = re.compile(r"because (.{1,200}?)(?:\.|$)")
_ENCODED = re.compile(r"Encoded authorization failure message: *(\S*)")


class Said(NamedTuple):
    """One answer that is no success: AWS's code (empty: nothing came), its words, and whether asking again may help."""

    code: str
    words: str
    again: bool


def said(exc: Exception) -> Said:
    """Return what an exception of boto3 says. Raise it again where it is none of botocore's."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,
        HTTPClientError,
        IncompleteReadError,
        ReadTimeoutError,
    )
    from botocore.parsers import ResponseParserError

    if isinstance(exc, TimeoutError):
        return Said("", "no whole answer in time", True)
    if isinstance(exc, ClientError):
        error = exc.response.get("Error", {})
        code, words = str(error.get("Code") or ""), str(error.get("Message") or "")
        status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        again = code in THROTTLED or code in INSIDE or (isinstance(status, int) and status >= 500)
        return Said(code or f"HTTP {status}", words, again)
    if isinstance(exc, (ConnectionError, HTTPClientError, ReadTimeoutError, IncompleteReadError)):
        return Said("", _short(exc), True)
    if isinstance(exc, ResponseParserError):
        return Said("", "the answer cannot be read: it is no whole XML or JSON", True)
    if isinstance(exc, BotoCoreError):
        return Said(type(exc).__name__, _short(exc), False)
    raise exc


def concerns_all(what: Said) -> bool:
    """Say whether every further call would meet the same: no right, no credentials, no region, no such call."""
    return what.code in _DENIED | _EXPIRED | _UNKNOWN_KEY | _CLOCK | _ABSENT_CALL or what.code in _BEFORE_ASKING


#: Exceptions of botocore before anything is sent -> what to do.
_BEFORE_ASKING: dict[str, str] = {
    "NoCredentialsError": "Give the instance a role (an instance profile), or run this where AWS credentials are set",
    "PartialCredentialsError": "Set the access key and the secret key, or neither and let the instance's role serve",
    "CredentialRetrievalError": "The credential program or the instance's role gave no answer: try `aws sts get-caller-identity`",
    "TokenRetrievalError": "Log in again (`aws sso login`)",
    "UnauthorizedSSOTokenError": "Log in again (`aws sso login`)",
    "SSOTokenLoadError": "Log in again (`aws sso login`)",
    "ProfileNotFound": "Correct AWS_PROFILE, or leave it out",
    "NoRegionError": "Set aws.region in fmslurm.yaml, or AWS_DEFAULT_REGION",
    "InvalidRegionError": "Correct aws.region, for instance us-east-2",
    "InvalidEndpointDiscoveryConfigurationError": "Correct the AWS configuration file",
    "ConfigParseError": "Correct the AWS configuration file",
}


def explain(what: Said, call: str, permission: str) -> LackingError:
    """Return the error a person sees: which call of AWS, what it said, and the remedy. `permission` is IAM's name of it."""
    if what.code in _DENIED:
        return _denied(what, call, permission)
    if what.code in _EXPIRED:
        remedy = "Get new credentials; an instance's role renews its own, so look for old keys in AWS_* and ~/.aws"
        return LackingError(f"{call}: the credentials have expired ({what.code})", remedy=remedy)
    if what.code in _UNKNOWN_KEY:
        remedy = "Look which ones are used: `aws sts get-caller-identity`; the region may be one that the account has not enabled"
        return LackingError(f"{call}: AWS does not know these credentials ({what.code})", remedy=remedy)
    if what.code in _CLOCK:
        remedy = "Compare this machine's clock (`chronyc tracking`), then the secret key"
        return LackingError(f"{call}: AWS refuses the signature ({what.code}): {_cut(what.words)}", remedy=remedy)
    if what.code in _ABSENT_CALL:
        remedy = "The region may not have this call yet: set topology.source to file or cluster"
        return LackingError(f"{call}: {what.code}: {_cut(what.words)}", remedy=remedy)
    if remedy := _BEFORE_ASKING.get(what.code, ""):
        return LackingError(f"{call}: {_cut(what.words)}", remedy=remedy)
    if what.code in THROTTLED:
        remedy = "Something else in the account asks as well: try again in a minute"
        return LackingError(f"{call}: AWS turns requests away ({what.code}) for longer than we wait", remedy=remedy)
    remedy = "Is the endpoint reachable (a NAT gateway or a VPC endpoint for ec2), and aws.ec2_endpoint right?"
    if what.code:
        remedy = "Look up the code in the API reference; try the same call with the AWS CLI"
    return LackingError(f"{call}: {f'{what.code}: ' if what.code else ''}{_cut(what.words)}", remedy=remedy)


def _denied(what: Said, call: str, permission: str) -> LackingError:
    who, needed, why = "", permission, ""
    if found := _ROLE.search(what.words):
        who, needed = found[1], found[2]
    if found := _BECAUSE.search(what.words):
        why = f": {found[1]}"
    told = f"{who or 'this role'} may not call {needed}{why}"
    remedy = f"Allow {needed} on Resource * to that role"
    if "explicit deny" in what.words:
        remedy = (
            f"A policy denies {needed} on purpose (service control policy, boundary or the role's own): change that one"
        )
    elif _ENCODED.search(what.words):
        remedy += "; why it is refused: `aws sts decode-authorization-message --encoded-message ...`"
    return LackingError(f"{call}: {told}", remedy=remedy)


def _short(exc: Exception) -> str:
    return _cut(" ".join(str(exc).split()).rstrip("."))


def _cut(words: str) -> str:
    words = _ENCODED.sub("(an encoded message follows)", words)
    words = words.rstrip(".")
    return words if len(words) <= 300 else words[:300] + " ..."

"""S3, or a server that speaks it, as staging uses it: requests with deadlines, and a checksum on each that the server verifies.

Needs boto3: never imported by hooks or trainers.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from slurm_ext.config.model import Settings, Tier
from slurm_ext.errors import ConfigError, LackingError, UntrustedFileError
from slurm_ext.staging import checksum as checksums
from slurm_ext.staging import manifest as manifests
from slurm_ext.staging.local import Point, Progress, no_point, no_progress
from slurm_ext.staging.model import OWN_PREFIX, Manifest, parse_step, slug, step_name

MANIFEST_OBJECT = "MANIFEST.json"
PART_BYTES = 64 << 20
_MAX_PARTS = 10_000
_MAX_KEY_BYTES = 700  # of 1,024 that S3 allows: prefix, run and attempt take the rest
_HEADERS = {checksums.CRC64NVME: "ChecksumCRC64NVME", checksums.CRC32: "ChecksumCRC32"}


class StoreError(LackingError):
    """The store refused or did not answer; trying again later may help. The message carries its own words."""


class Store(NamedTuple):
    """One bucket and prefix, and a client for it. Make one in each process: clients do not survive a fork."""

    client: Any
    bucket: str
    prefix: str

    def step_key(self, uid: int, run: str, step: int) -> str:
        """Return the key prefix of a step, with its slash."""
        return f"{self.prefix}{uid}/{run}/{step_name(step)}/"

    def attempt_key(self, uid: int, shard: Manifest) -> str:
        """Return the key prefix of an attempt's objects, with its slash."""
        return f"{self.step_key(uid, shard.run, shard.step)}{slug(shard.attempt)}/"


def connect(tier: Tier, settings: Settings) -> Store:
    """Return a store for an S3 tier; nothing is asked of the server yet. Raise ConfigError for what cannot be."""
    if settings.staging.engine != "boto3":
        raise ConfigError(f"staging.engine {settings.staging.engine} is not built yet", remedy="Set it to boto3")
    bucket, prefix = parse_url(tier.url)
    keys: Mapping[str, str] = read_credentials(tier.credentials_file) if tier.credentials_file else {}
    endpoint = tier.endpoint or settings.aws.s3_endpoint
    session = boto3.Session(region_name=settings.aws.region or None, **keys)
    client = session.client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=session.region_name or "us-east-1",
        config=Config(
            connect_timeout=5,
            read_timeout=60,
            retries={"max_attempts": 3, "mode": "standard"},
            request_checksum_calculation="when_required",  # ours are computed while reading, once
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint else "auto"},
            proxies={} if endpoint else None,  # a server of the site is not reached through a proxy to the world
        ),
    )
    return Store(client, bucket, prefix)


def parse_url(url: str) -> tuple[str, str]:
    """Return bucket and key prefix (with a slash where not empty) of `s3://bucket/prefix`. Raise ConfigError else."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ConfigError(f"not an S3 place: {url!r}", remedy="Write it as s3://bucket/prefix")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def read_credentials(path: str) -> dict[str, str]:
    """Return the default profile of a file in AWS's shared-credentials form, as arguments of boto3.Session.

    Raise UntrustedFileError where others may read or write the file, ConfigError where it holds no keys.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise LackingError(f"cannot read the credentials in {path}: {exc.strerror}") from exc
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        state = os.fstat(stream.fileno())
        if state.st_uid not in (0, os.geteuid()) or stat.S_IMODE(state.st_mode) & 0o077:
            raise UntrustedFileError(f"{path} holds credentials that others may read", remedy=f"chmod 0600 {path}")
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(stream.read(65536))
        except configparser.Error as exc:
            raise ConfigError(f"{path} is not a credentials file: {type(exc).__name__}") from exc
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    found = {name: parser["default"][name] for name in names if parser.has_option("default", name)}
    if not {"aws_access_key_id", "aws_secret_access_key"} <= set(found):
        raise ConfigError(f"{path} has no keys in its section [default]")
    return found


def object_name(path: str) -> str:
    """Return a file's key below its attempt: the path itself, or a hash where S3 or its tools could not carry it."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        encoded = b""
    if encoded and path.isprintable() and len(encoded) <= _MAX_KEY_BYTES:
        return path
    return f"{OWN_PREFIX}name-{hashlib.sha256(os.fsencode(path)).hexdigest()}"


def _call(what: Callable[..., Any], **arguments: Any) -> Any:
    """Make one request; turn what botocore raises into StoreError. ClientError passes where `what` has to look at it."""
    try:
        return what(**arguments)
    except BotoCoreError as exc:
        raise StoreError(f"S3: {exc}") from exc


def _words(exc: ClientError) -> str:
    """Return a refusal of the server in one line."""
    return f"S3: {exc.operation_name}: {exc.response.get('Error', {}).get('Code', '?')}: {exc}"


def _status(exc: ClientError) -> int:
    """Return the HTTP status of a refusal."""
    return int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def get_bytes(store: Store, key: str) -> bytes | None:
    """Return a small object's content, None where there is none. Raise StoreError."""
    try:
        answer = _call(store.client.get_object, Bucket=store.bucket, Key=key)
        content = answer["Body"].read(manifests.MAX_BYTES)
    except ClientError as exc:
        if _status(exc) == 404:
            return None
        raise StoreError(_words(exc)) from exc
    except BotoCoreError as exc:
        raise StoreError(f"S3: {exc}") from exc
    return bytes(content)


def put_bytes(store: Store, key: str, content: bytes, *, only_new: bool = False) -> bool:
    """Put a small object, verified by the server; with `only_new` return False where one is there already."""
    text = checksums.of_bytes(content)
    arguments: dict[str, Any] = {_HEADERS[checksums.algorithm_of(text)]: checksums.base64_of(text)}
    if only_new:
        arguments["IfNoneMatch"] = "*"
    try:
        _call(store.client.put_object, Bucket=store.bucket, Key=key, Body=content, **arguments)
    except ClientError as exc:
        if only_new and _status(exc) == 412:
            return False
        raise StoreError(_words(exc)) from exc  # a 409 (two at once) too: the next try reads who won
    return True


def list_sizes(store: Store, prefix: str) -> dict[str, int]:
    """Return the objects below a key prefix: what follows it -> bytes."""
    found: dict[str, int] = {}
    for page in _pages(store, prefix):
        for item in page.get("Contents", ()):
            found[item["Key"][len(prefix) :]] = item["Size"]
    return found


def _pages(store: Store, prefix: str, **more: str) -> Iterator[dict[str, Any]]:
    """Yield the pages of a listing."""
    try:
        paginator = store.client.get_paginator("list_objects_v2")
        yield from paginator.paginate(Bucket=store.bucket, Prefix=prefix, **more)
    except ClientError as exc:
        raise StoreError(_words(exc)) from exc
    except BotoCoreError as exc:
        raise StoreError(f"S3: {exc}") from exc


def list_steps(store: Store, uid: int, run: str) -> list[int]:
    """Return the steps of a run that have anything in the store, the newest first."""
    prefix = f"{store.prefix}{uid}/{run}/"
    names = (
        item["Prefix"][len(prefix) :].rstrip("/")
        for page in _pages(store, prefix, Delimiter="/")
        for item in page.get("CommonPrefixes", ())
    )
    return sorted((step for name in names if (step := parse_step(name)) is not None), reverse=True)


def read_manifest(store: Store, uid: int, run: str, step: int) -> Manifest | None:
    """Return the manifest of a complete checkpoint, None where the store has none. Raise StoreError, ValueError."""
    content = get_bytes(store, store.step_key(uid, run, step) + MANIFEST_OBJECT)
    return manifests.parse(content) if content is not None else None


def put_file(
    store: Store, key: str, descriptor: int, size: int, *, point: Point = no_point, progress: Progress = no_progress
) -> str:
    """Put an open file of `size` bytes as one object, verified part by part; return its checksum. Raise StoreError."""
    algorithm = checksums.best()
    if size <= PART_BYTES:
        content = os.pread(descriptor, size, 0) if size else b""
        text = checksums.of_bytes(content, algorithm)
        try:
            _call(
                store.client.put_object,
                Bucket=store.bucket,
                Key=key,
                Body=io.BytesIO(content),
                **{_HEADERS[algorithm]: checksums.base64_of(text)},
            )
        except ClientError as exc:
            raise StoreError(_words(exc)) from exc
        progress(len(content))
        return text
    return _put_parts(store, key, descriptor, size, algorithm, point, progress)


def _put_parts(
    store: Store, key: str, descriptor: int, size: int, algorithm: str, point: Point, progress: Progress
) -> str:
    """Put a large file in parts; whatever goes wrong, no parts are left behind to be billed."""
    place = {"Bucket": store.bucket, "Key": key}
    part_bytes = max(PART_BYTES, -(-size // _MAX_PARTS))
    name, whole, parts = algorithm.upper(), checksums.Checksum(algorithm), []
    try:
        upload = _call(
            store.client.create_multipart_upload, **place, ChecksumAlgorithm=name, ChecksumType="FULL_OBJECT"
        )["UploadId"]
        try:
            for number in range(1, -(-size // part_bytes) + 1):
                content = os.pread(descriptor, part_bytes, (number - 1) * part_bytes)
                whole.update(content)
                header = {_HEADERS[algorithm]: checksums.base64_of(checksums.of_bytes(content, algorithm))}
                answer = _call(
                    store.client.upload_part, **place, UploadId=upload, PartNumber=number, Body=content, **header
                )
                parts.append({"PartNumber": number, "ETag": answer["ETag"], **header})
                progress(len(content))
                point(f"sent part {number}")
            header = {_HEADERS[algorithm]: checksums.base64_of(whole.text)}
            _call(
                store.client.complete_multipart_upload,
                **place,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                ChecksumType="FULL_OBJECT",
                **header,
            )
        except BaseException:
            _call(store.client.abort_multipart_upload, **place, UploadId=upload)
            raise
    except ClientError as exc:
        raise StoreError(_words(exc)) from exc
    return whole.text


def holds(store: Store, key: str, size: int, text: str) -> bool | None:
    """Say whether an object has this size and checksum; None where the server does not tell its checksum."""
    try:
        answer = _call(store.client.head_object, Bucket=store.bucket, Key=key, ChecksumMode="ENABLED")
    except ClientError as exc:
        if _status(exc) == 404:
            return False
        raise StoreError(_words(exc)) from exc
    if answer["ContentLength"] != size:
        return False
    told = answer.get(_HEADERS.get(checksums.algorithm_of(text), ""))
    return None if told is None else bool(told == checksums.base64_of(text))


def iter_blocks(store: Store, key: str) -> Iterator[bytes]:
    """Yield an object's bytes in blocks. Raise StoreError, also where the body ends early."""
    try:
        answer = _call(store.client.get_object, Bucket=store.bucket, Key=key)
        yield from answer["Body"].iter_chunks(1 << 20)
    except ClientError as exc:
        raise StoreError(_words(exc)) from exc
    except (BotoCoreError, OSError) as exc:
        raise StoreError(f"S3: {exc}") from exc

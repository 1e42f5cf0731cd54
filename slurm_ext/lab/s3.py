"""The lab's S3: SeaweedFS, a real S3 server, on an address of the lab only, with credentials of the lab's own.

It needs 4 to 8 s for its first answer, so it is started first; SIGTERM takes it half a minute, so it is ended by SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_ext.errors import LackingError
from slurm_ext.lab import daemons, journal, process
from slurm_ext.lab.conf import BUCKET
from slurm_ext.lab.model import State

#: A lab's checkpoints are small; volumes of this size keep the folder so.
_VOLUME_MB = 64

_PROBE = ".fmslurm-lab-probe"

#: After that long its process is there, or it never will be.
_STARTED_S = 3.0


#: The server puts unix sockets into /tmp, named by port alone: two servers with the same port in namespaces of their own
#: would talk to each other through them. So it sees its own folder as /tmp, and is bound there to run from it.
_PRIVATE = 'touch "$1/weed" && mount --bind "$2" "$1/weed" && mount --rbind "$1" /tmp && shift 2 && exec /tmp/weed "$@"'
_SOCKETS = ("master-grpc", "volume-grpc", "filer", "filer-grpc", "s3", "s3-grpc")


def program() -> str:
    """Return the path of SeaweedFS's `weed`, beside our interpreter or on PATH; empty where it is not installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed") or ""


def prepare(directory: str) -> None:
    """Write the server's identities and the credentials file, both readable by root alone."""
    folder = Path(directory) / "s3"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    key, secret = "LAB" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30)
    identity = {
        "name": "lab",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    _private(folder / "identities.json", json.dumps({"identities": [identity]}))
    _private(folder / "credentials", f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")


def outside_files(state: State) -> list[str]:
    """Return the files that the server makes outside the lab's folder: sockets, where it has no namespace to hide them."""
    if state.mode == "netns" or not state.s3_port:
        return []
    s3, _, master_grpc, _, volume_grpc, filer, filer_grpc, s3_grpc = state.s3_ports
    ports = (master_grpc, volume_grpc, filer, filer_grpc, s3, s3_grpc)
    return [f"/tmp/seaweedfs-{name}-{port}.sock" for name, port in zip(_SOCKETS, ports, strict=True)]  # noqa: S108


def argv(state: State) -> list[str]:
    """Return the command line of the server: every port given, nothing sent home, no port of a fixed default."""
    folder = f"{state.dir}/s3"
    if state.mode == "netns":
        bind = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PRIVATE, "sh", folder, program()]
        return [*bind, *_arguments(state, "/tmp")]  # noqa: S108
    return [program(), *_arguments(state, folder)]


def _arguments(state: State, folder: str) -> list[str]:
    s3, master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc = state.s3_ports
    address = state.head.address
    return [
        "-logtostderr=true",
        "server",
        f"-dir={folder}/data",
        f"-ip={address}",
        f"-ip.bind={address}",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        f"-master.volumeSizeLimitMB={_VOLUME_MB}",
        "-master.telemetry=false",
        # Of one server only: after a restart it would wait ten seconds and more for others to vote.
        "-master.electionTimeout=500ms",
        "-master.heartbeatInterval=100ms",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=32",
        "-volume.minFreeSpace=1",
        "-filer=true",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        "-s3=true",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={folder}/identities.json",
    ]


def start(state: State, env: Mapping[str, str]) -> None:
    """Start the server in the background; `wait` says when it answers."""
    for path in outside_files(state):
        journal.intend(state.dir, "file", path=path)
    # Its home, where it looks for a configuration of its own, is a folder without one.
    env = {**env, "HOME": f"{state.dir}/s3"}
    process.daemonize(state.head, argv(state), env=env, log=f"{state.dir}/log/s3.log")


def wait(state: State, *, timeout_s: float) -> None:
    """Wait until the bucket exists and takes objects. Raise LackingError where the server does not answer in time."""
    # Here, since boto3 takes half a second to import and most commands of the lab need no S3.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    key, secret = credentials(state.dir)
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{state.head.address}:{state.s3_port}",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}, proxies={}),
    )
    started = time.monotonic()
    try:
        while True:
            try:
                with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                    client.create_bucket(Bucket=BUCKET)
                # The bucket comes before the volumes: only an object that was written says that objects can be read.
                client.put_object(Bucket=BUCKET, Key=_PROBE, Body=b"x")
                client.delete_object(Bucket=BUCKET, Key=_PROBE)
                return
            except (BotoCoreError, ClientError) as exc:
                waited_s = time.monotonic() - started
                if waited_s > timeout_s or (waited_s > _STARTED_S and not running(state)):
                    last = Path(state.dir, "log/s3.log").read_text(errors="replace").splitlines()[-1:]
                    raise LackingError(
                        f"the S3 server did not answer within {waited_s:.0f} s: {exc}; its log ends with {last}"
                    ) from exc
                time.sleep(0.25)
    finally:
        client.close()


def running(state: State) -> bool:
    """Say whether the server's process lives."""
    return bool(daemons.find(state, state.head, "weed"))


def credentials(directory: str) -> tuple[str, str]:
    """Return the lab's access key and secret."""
    lines = (Path(directory) / "s3/credentials").read_text().splitlines()
    values = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return values["aws_access_key_id"], values["aws_secret_access_key"]


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)

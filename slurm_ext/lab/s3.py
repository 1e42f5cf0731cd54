"""The lab's S3: SeaweedFS, a real S3 server, on an address of the lab only, with credentials of the lab's own.

It needs 4 to 8 s for its first answer, so it is started first; SIGTERM takes it half a minute, so it is ended by SIGKILL.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_ext.errors import LackingError
from slurm_ext.lab import process
from slurm_ext.lab.conf import BUCKET
from slurm_ext.lab.model import State

#: A lab's checkpoints are small; volumes of this size keep the folder so.
_VOLUME_MB = 64


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


def argv(state: State) -> list[str]:
    """Return the command line of the server: every port given, nothing sent home, no port of a fixed default."""
    s3, master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc = state.s3_ports
    folder, address = f"{state.dir}/s3", state.head.address
    return [
        program(),
        "-logtostderr=true",
        "server",
        f"-dir={folder}/data",
        f"-ip={address}",
        f"-ip.bind={address}",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        f"-master.volumeSizeLimitMB={_VOLUME_MB}",
        "-master.telemetry=false",
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
    process.daemonize(state.head, argv(state), env={**env, "HOME": f"{state.dir}/s3"}, log=f"{state.dir}/log/s3.log")


def wait(state: State, *, timeout_s: float) -> None:
    """Wait until the bucket exists. Raise LackingError where the server does not answer in time."""
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
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                client.create_bucket(Bucket=BUCKET)
                return
            except client.exceptions.BucketAlreadyOwnedByYou:
                return
            except (BotoCoreError, ClientError) as exc:
                if time.monotonic() > deadline:
                    raise LackingError(
                        f"the S3 server did not answer within {timeout_s:.0f} s: {exc}",
                        remedy=f"See {state.dir}/log/s3.log",
                    ) from exc
                time.sleep(0.25)
    finally:
        client.close()


def credentials(directory: str) -> tuple[str, str]:
    """Return the lab's access key and secret."""
    lines = (Path(directory) / "s3/credentials").read_text().splitlines()
    values = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return values["aws_access_key_id"], values["aws_secret_access_key"]


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)

"""What a node tells of its own place: once a boot, bounded, by the real metadata protocol and the real program."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_ext.aws import imds
from slurm_ext.aws.service import Service
from slurm_ext.config.model import Settings
from slurm_ext.topology import place_fact

NOW = 1_800_000_000.0
ID = "i-0123456789abcdef0"
UUID = "12345678-1234-1234-1234-123456789abc"
DOCUMENT = {
    "instanceId": ID,
    "instanceType": "p6e-gb200.36xlarge",
    "region": "us-east-2",
    "availabilityZone": "us-east-2a",
    "privateIp": "10.0.0.1",
    "accountId": "123456789012",
}


@contextmanager
def metadata(document: object = DOCUMENT, *, token: bool = True, hang: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a metadata service, version 2, and the requests it gets."""
    asked: list[str] = []
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            asked.append(f"PUT {self.path}")
            if hang:
                over.wait(30)
            self._say(200 if token and self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else 403, "secret")

        def do_GET(self) -> None:
            asked.append(f"GET {self.path}")
            known = {
                "/latest/dynamic/instance-identity/document": json.dumps(document),
                "/latest/meta-data/placement/availability-zone-id": "use2-az1",
                "/latest/meta-data/placement/region": "us-east-2",
            }
            if self.headers["X-aws-ec2-metadata-token"] != "secret":
                self._say(401, "")
            else:
                self._say(200 if self.path in known else 404, known.get(self.path, ""))

        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture(autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READ_S", "SMI_S", "WRITE_S"):  # a busy machine may take its time
        monkeypatch.setattr(place_fact, name, 60.0)
    monkeypatch.setattr(imds, "TIMEOUT_S", 30.0)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)


def test_the_metadata_service_is_asked_with_a_token() -> None:
    with metadata() as (address, asked):
        found = imds.identity(endpoint=address, timeout_s=20)
        assert found == imds.Identity(ID, "p6e-gb200.36xlarge", "us-east-2", "us-east-2a", "use2-az1", "10.0.0.1")
        assert asked[0] == "PUT /latest/api/token"
        assert imds.region(endpoint=address, timeout_s=20) == "us-east-2"


def test_a_client_without_a_region_takes_the_instances_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("AWS_CONFIG_FILE", "/dev/null"), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(name, value)
    with metadata() as (address, asked):
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        assert Service("ec2").client().meta.region_name == "us-east-2"
        assert asked == ["PUT /latest/api/token", "GET /latest/meta-data/placement/region"]
        assert Service("ec2", region="eu-west-1").client().meta.region_name == "eu-west-1"
        assert len(asked) == 2


def test_no_metadata_service_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata(token=False) as (address, _):
        assert imds.identity(endpoint=address, timeout_s=20) is None
    with metadata(["a list"]) as (address, _):
        assert imds.identity(endpoint=address, timeout_s=20) is None
    with metadata({"instanceId": "x; rm"}) as (address, _):
        assert imds.identity(endpoint=address, timeout_s=20) is None
    assert imds.identity(endpoint="http://127.0.0.1:9", timeout_s=20) is None
    with metadata(hang=True) as (address, _):
        began = time.monotonic()
        assert imds.identity(endpoint=address, timeout_s=0.2) is None
        assert time.monotonic() - began < 15
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with metadata() as (address, asked):
        assert imds.region(endpoint=address) == ""
        assert asked == []


@pytest.fixture
def site(tmp_path: Path) -> Settings:
    for name in ("share/ledger", "run", "root/sys/class/dmi/id", "root/proc/sys/kernel/random", "root/usr/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root/sys/class/dmi/id/board_asset_tag").write_text(f"{ID}\n")
    (tmp_path / "root/sys/class/dmi/id/product_name").write_text("p6e-gb200.36xlarge\n")
    boot(tmp_path, "11111111-1111-1111-1111-111111111111")
    smi(tmp_path, f"{UUID}, 4\n" * 4)
    plain = Settings()
    places = {"share": "share", "run_dir": "run", "root": "root"}
    return plain._replace(site=plain.site._replace(**{key: str(tmp_path / name) for key, name in places.items()}))


def boot(folder: Path, boot_id: str) -> None:
    (folder / "root/proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")


def smi(folder: Path, text: str) -> None:
    path = folder / "root/usr/bin/nvidia-smi"
    counted = folder / "asked"
    path.write_text(f"#!/bin/sh\necho \"$*\" >>{counted}\nprintf '%s' '{text}'\n")
    path.chmod(0o755)


@pytest.fixture
def note(site: Settings) -> Callable[..., bool]:
    return lambda now=NOW, **more: place_fact.note(site, "n0", site.site.share, now=now, **more)


def test_a_node_writes_its_place_once_a_boot(site: Settings, note: Callable[..., bool], tmp_path: Path) -> None:
    assert note()
    assert not note()
    assert not note(NOW + 1e6)
    assert (tmp_path / "asked").read_text() == "--query-gpu=fabric.clusterUuid,fabric.cliqueId --format=csv,noheader\n"
    records = place_fact.read_all(site.site.share)
    assert records == {
        "n0": place_fact.Place(
            "n0", ID, "p6e-gb200.36xlarge", "", "", "11111111-1111-1111-1111-111111111111", f"{UUID}.4", NOW
        )
    }
    boot(tmp_path, "22222222-2222-2222-2222-222222222222")
    assert note(NOW + 5)


def test_the_metadata_service_tells_the_zone_too(site: Settings, note: Callable[..., bool]) -> None:
    with metadata() as (address, asked):
        assert note(imds=address)
        assert not note(imds=address)
        assert len(asked) == 3
    assert (place_fact.read_all(site.site.share) or {})["n0"].zone_id == "use2-az1"


def test_a_share_that_takes_nothing_is_tried_again_later(
    site: Settings, note: Callable[..., bool], tmp_path: Path
) -> None:
    (tmp_path / "share/ledger").rename(tmp_path / "elsewhere")  # not marked: not mounted
    assert not note()
    (tmp_path / "elsewhere").rename(tmp_path / "share/ledger")
    assert not note(NOW + 5)
    assert note(NOW + place_fact.AGAIN_S)
    assert not place_fact.note(site, "n0", "", now=NOW)
    assert not place_fact.note(site, "../n0", site.site.share, now=NOW)


def test_an_instance_that_has_no_name_is_not_written(site: Settings, note: Callable[..., bool], tmp_path: Path) -> None:
    (tmp_path / "root/sys/class/dmi/id/board_asset_tag").write_text("Not Specified\n")
    assert not note()
    assert place_fact.read_all(site.site.share) == {}


@pytest.mark.parametrize(
    ("text", "clique"),
    [
        (f"{UUID}, 4\n{UUID}, 4\n", f"{UUID}.4"),
        (f"{UUID.upper()}, 0\n", f"{UUID}.0"),
        (f"{UUID}, 4\n{UUID}, 5\n", ""),
        ("00000000-0000-0000-0000-000000000000, 0\n", ""),
        ("[N/A], [N/A]\n", ""),
        ("No devices were found\n", ""),
        ("", ""),
    ],
)
def test_cliques(text: str, clique: str) -> None:
    assert place_fact.clique_in(text) == clique


def test_a_record_of_another_form_is_passed_over(site: Settings, note: Callable[..., bool], tmp_path: Path) -> None:
    assert note()
    folder = tmp_path / "share/places"
    (folder / "n1.json").write_text("{")
    (folder / "n2.json").write_text('{"schema": 2, "node": "n2", "at_s": 1}')
    (folder / "n3.json").write_text('{"schema": 1, "node": "n4", "at_s": 1}')
    (folder / "n5.json").write_text('{"schema": 1, "node": "n5", "at_s": 1, "instance_id": "i-1; x", "zone": ["y"]}')
    assert place_fact.read_all(site.site.share) == {
        "n0": (place_fact.read_all(site.site.share) or {})["n0"],
        "n5": place_fact.Place("n5", at_s=1.0),
    }
    (folder / "n0.json").chmod(0o666)
    assert "n0" not in (place_fact.read_all(site.site.share) or {})

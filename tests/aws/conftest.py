"""A fake EC2 for each test, and services that ask it without losing time: pauses are counted, not slept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_clock import Clock
from fake_ec2 import FakeEc2, running

from slurm_ext.aws.service import Service


@pytest.fixture(scope="session")
def ec2_server() -> Iterator[tuple[FakeEc2, str]]:
    """Yield one server for all tests: boto3 takes a second to make a client for it."""
    with running() as found:
        yield found


@pytest.fixture(scope="session")
def ec2_client(ec2_server: tuple[FakeEc2, str]) -> Any:
    """Return boto3's own client, which speaks to the fake."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("AWS_ACCESS_KEY_ID", "AKIAFAKE"), ("AWS_SECRET_ACCESS_KEY", "secret")):
            patch.setenv(name, value)
        return Service("ec2", region="us-east-2", endpoint=ec2_server[1], read_s=30.0).client()


@pytest.fixture
def fake(ec2_server: tuple[FakeEc2, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEc2]:
    """Yield the fake, empty and well."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAKE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server, _ = ec2_server
    server.reset()
    yield server
    server.hung.set()


@pytest.fixture
def clock() -> Clock:
    """Return a clock of the test's own."""
    return Clock()


@pytest.fixture
def ask(ec2_client: Any, clock: Clock) -> Callable[..., Service]:
    """Return a maker of services on the fake whose pauses pass at once."""

    def make(**more: Any) -> Service:
        return Service(
            "ec2",
            client=ec2_client,
            **{"clock": clock, "sleep": clock.sleep, "chance": lambda: 1.0, "read_s": 30.0} | more,
        )

    return make

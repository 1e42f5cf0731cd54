"""DescribeInstanceTopology against a fake EC2 that answers boto3 over HTTP: how many calls, and every fault by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest
from fake_clock import Clock
from fake_ec2 import FakeEc2, Order

from slurm_ext.aws.bucket import TokenBucket
from slurm_ext.aws.ec2_topology import BLOCK_PAUSES_S, instance_places
from slurm_ext.aws.service import TRIES, Refused, Service
from slurm_ext.aws.trouble import Said
from slurm_ext.errors import LackingError

Ask = Callable[..., Service]
ACTION = "DescribeInstanceTopology"


def ids(count: int) -> list[str]:
    return [f"i-{number:017x}" for number in range(count)]


def fleet(fake: FakeEc2, count: int, **more: object) -> list[str]:
    for number, one in enumerate(ids(count)):
        fake.launch(one, "nn-top", f"nn-m{number // 64}", f"nn-l{number // 16}", **more)
    return ids(count)


def always(order: Order) -> Callable[[str, int, Mapping[str, str]], Order]:
    return lambda _action, _number, _form: order


def at(orders: Mapping[int, Order]) -> Callable[[str, int, Mapping[str, str]], Order]:
    return lambda _action, number, _form: orders.get(number)


@pytest.mark.parametrize(("count", "calls"), [(1, 1), (100, 1), (101, 2), (1000, 10)])
def test_calls_are_as_few_as_can_be(fake: FakeEc2, ask: Ask, count: int, calls: int) -> None:
    wanted = fleet(fake, count)
    found = instance_places(ask(), [*reversed(wanted), wanted[0]])
    assert [one.instance_id for one in found.instances] == wanted
    assert found.unknown == {}
    assert fake.calls[ACTION] == calls


def test_ten_thousand_nodes_take_exactly_a_hundred_calls_and_no_pause(fake: FakeEc2, ask: Ask, clock: Clock) -> None:
    wanted = fleet(fake, 10_000)
    found = instance_places(ask(), wanted)
    assert len(found.instances) == 10_000
    assert found.instances[17].network_nodes == ("nn-top", "nn-m0", "nn-l1")
    assert fake.calls[ACTION] == 100
    assert clock.slept == []
    # Above the bucket's hundred tokens it waits as AWS refills it, and not longer.
    instance_places(ask(bucket=TokenBucket(50, 20, clock=clock, sleep=clock.sleep)), wanted)
    # (Threads that wait at once each move this clock: never less than the refill, at most one round of them more.)
    assert 2.4 <= clock.now <= 5.0
    assert 1 < fake.most_under_way <= 8


def test_nobody_is_asked_where_nothing_runs(fake: FakeEc2, ask: Ask) -> None:
    assert instance_places(ask(), ["", ""]).instances == ()
    assert fake.calls[ACTION] == 0


def test_pages_are_followed(fake: FakeEc2, ask: Ask) -> None:
    wanted = fleet(fake, 100)
    fake.page_size = 30
    assert len(instance_places(ask(), wanted).instances) == 100
    assert fake.calls[ACTION] == 4


@pytest.mark.parametrize(("tokens", "calls"), [(lambda number: "same", 2), (lambda number: f"t{number}", 11)])
def test_pages_without_end_are_given_up(
    fake: FakeEc2, ask: Ask, tokens: Callable[[int], str], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = fleet(fake, 10)
    handed = itertools.count()
    monkeypatch.setattr(fake, "_page", lambda rows, _form: (rows[:1], f"<nextToken>{tokens(next(handed))}</nextToken>"))
    with pytest.raises(LackingError, match=r"pages|same page"):
        instance_places(ask(), wanted)
    assert fake.calls[ACTION] == calls


def test_throttling_is_waited_out(fake: FakeEc2, ask: Ask, clock: Clock) -> None:
    wanted = fleet(fake, 250)
    fake.faults = at({1: "throttle", 2: "throttle", 4: "throttle"})
    assert len(instance_places(ask(), wanted).instances) == 250
    assert fake.calls[ACTION] == 6
    assert any(pause > 0 for pause in clock.slept)


def test_throttling_without_end_is_given_up_in_bounded_tries(fake: FakeEc2, ask: Ask) -> None:
    fake.faults = always("throttle")
    with pytest.raises(LackingError, match="RequestLimitExceeded") as caught:
        instance_places(ask(), fleet(fake, 3))
    assert fake.calls[ACTION] == TRIES
    assert "minute" in caught.value.remedy


def test_others_of_the_account_draw_from_the_same_bucket(fake: FakeEc2, ask: Ask, clock: Clock) -> None:
    wanted = fleet(fake, 4000)
    left = TokenBucket(10, 20, clock=clock, sleep=clock.sleep)  # what they leave us
    fake.faults = lambda _action, _number, _form: None if left.take(until=clock()) else "throttle"
    found = instance_places(ask(), wanted)
    assert len(found.instances) == 4000
    assert found.unknown == {}
    assert 40 < fake.calls[ACTION] < 40 * TRIES


def test_the_time_for_all_is_kept(fake: FakeEc2, ask: Ask, clock: Clock) -> None:
    fake.faults = always("throttle")
    with pytest.raises(LackingError):
        instance_places(ask(deadline_s=1.0), fleet(fake, 3))
    assert clock.now <= 1.0


@pytest.mark.parametrize("fault", ["broken-inside", "unavailable", "close", "half", "not-xml"])
def test_a_passing_fault_is_asked_again(fake: FakeEc2, ask: Ask, fault: str) -> None:
    wanted = fleet(fake, 101)
    fake.faults = at({1: fault})
    assert len(instance_places(ask(), wanted).instances) == 101
    assert fake.calls[ACTION] == 3


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_server_that_does_not_end_its_answer_holds_nobody(
    fake: FakeEc2, ask: Ask, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_ext.aws.service.CONNECT_S", 0.5)
    wanted = fleet(fake, 2)
    fake.faults = at({1: fault})
    assert len(instance_places(ask(read_s=0.5), wanted).instances) == 2
    assert fake.calls[ACTION] >= 2


def test_what_is_known_is_kept_and_the_rest_is_named(fake: FakeEc2, ask: Ask) -> None:
    wanted = fleet(fake, 250)
    fake.faults = lambda _action, _number, form: "broken-inside" if wanted[100] in form.values() else None
    found = instance_places(ask(), wanted)
    assert {one.instance_id for one in found.instances} == {*wanted[:100], *wanted[200:]}
    assert set(found.unknown) == set(wanted[100:200])
    assert "InternalError" in found.unknown[wanted[100]]


def test_an_answer_that_lacks_somebody_is_not_taken_for_truth(fake: FakeEc2, ask: Ask) -> None:
    wanted = fleet(fake, 3)
    fake.launch("i-stopped", "nn-a", "nn-b", "nn-c", state="stopped")
    fake.launch("i-other", type="c5.large")
    found = instance_places(ask(), [*wanted, "i-stopped", "i-other"])
    assert "not running" in found.unknown["i-stopped"]
    assert "c5.large" in found.unknown["i-other"]
    assert found.notes == ()


def test_another_depth_than_aws_lists_is_used_and_said(fake: FakeEc2, ask: Ask) -> None:
    fake.launch("i-1", "nn-a", "nn-b", "nn-c", "nn-d")
    fake.launch("i-2", "nn-a", "nn-b", "nn-c", "nn-d", type="p6-b200.48xlarge")
    fake.launch("i-3", "nn-a", type="p9.96xlarge")
    found = instance_places(ask(), ["i-1", "i-2", "i-3"])
    assert [len(one.network_nodes) for one in found.instances] == [4, 4, 1]
    assert found.notes == ("EC2 names 4 network nodes for 1 instances of p5.48xlarge, and AWS lists 3",)


@pytest.mark.parametrize("named", [True, False])
def test_instances_that_ended_are_left_out(fake: FakeEc2, ask: Ask, named: bool) -> None:
    wanted = fleet(fake, 120)
    for one in (wanted[3], wanted[77], wanted[110]):
        fake.end(one)
    fake.names_gone = named
    found = instance_places(ask(), wanted)
    assert len(found.instances) == 117
    assert set(found.unknown) == {wanted[3], wanted[77], wanted[110]}
    assert "terminated" in found.unknown[wanted[3]]
    # Two batches, each again without the ones named; else halves down to the wrong ones: bounded all the same.
    assert fake.calls[ACTION] == 4 if named else fake.calls[ACTION] <= 40


def test_nobody_is_left_where_all_ended(fake: FakeEc2, ask: Ask) -> None:
    found = instance_places(ask(), ids(2))
    assert found.instances == ()
    assert set(found.unknown) == set(ids(2))


def test_a_capacity_block_that_comes_late_is_asked_for_again(fake: FakeEc2, ask: Ask, clock: Clock) -> None:
    wanted = fleet(fake, 3, type="p6e-gb200.36xlarge", block="cb-1")
    fake.launch("i-fff", "nn-top", "nn-m", "nn-l")
    fake.blocks_after = 3
    found = instance_places(ask(), [*wanted, "i-fff"])
    assert {one.capacity_block_id for one in found.instances[:3]} == {"cb-1"}
    assert found.notes == ()
    assert clock.slept == list(BLOCK_PAUSES_S[:2])
    assert "i-fff" not in fake.forms[-1].values()


def test_a_capacity_block_that_never_comes_is_said(fake: FakeEc2, ask: Ask, clock: Clock) -> None:
    wanted = fleet(fake, 2, type="p6e-gb200.36xlarge")
    found = instance_places(ask(), wanted)
    assert found.unknown == {}
    assert "2 instances of UltraServers have no CapacityBlockId" in found.notes[0]
    assert fake.calls[ACTION] == 1 + len(BLOCK_PAUSES_S)


DENIED = (
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:assumed-role/head/i-0ab is not "
    "authorized to perform: ec2:DescribeInstanceTopology because no identity-based policy allows the "
    "ec2:DescribeInstanceTopology action"
)


@pytest.mark.parametrize(
    ("order", "message", "remedy"),
    [
        (
            (403, "UnauthorizedOperation", DENIED),
            "assumed-role/head/i-0ab may not call ec2:DescribeInst",
            "Allow ec2:Describe",
        ),
        (
            (403, "UnauthorizedOperation", DENIED.replace("no identity-based policy allows", "explicit deny in")),
            "deny",
            "denies",
        ),
        (
            (403, "UnauthorizedOperation", "You may not. Encoded authorization failure message: AbCd_123"),
            "may not call ec2:DescribeInstanceTopology",
            "decode-authorization-message",
        ),
        ((403, "AccessDenied", ""), "this role may not call ec2:DescribeInstanceTopology", "Resource"),
        ("expired", "expired", "role renews"),
        ("unknown-key", "does not know these credentials", "get-caller-identity"),
        ("clock", "signature", "clock"),
        ((400, "InvalidAction", "The action is not valid"), "InvalidAction", "topology.source"),
        ((400, "SomethingNew", "words of tomorrow"), "SomethingNew: words of tomorrow", "API reference"),
    ],
)
def test_each_refusal_has_its_remedy_and_is_asked_once(
    fake: FakeEc2, ask: Ask, order: Order, message: str, remedy: str
) -> None:
    fake.faults = always(order)
    with pytest.raises(LackingError) as caught:
        instance_places(ask(), fleet(fake, 1))
    assert message in caught.value.message
    assert remedy in caught.value.remedy
    assert "AbCd_123" not in str(caught.value)
    assert fake.calls[ACTION] == 1


def test_a_refusal_ends_the_rest(fake: FakeEc2, ask: Ask) -> None:
    wanted = fleet(fake, 5000)
    fake.faults = always("expired")
    with pytest.raises(LackingError, match="expired"):
        instance_places(ask(), wanted)
    assert fake.calls[ACTION] < 30


def test_without_credentials_and_without_region(
    fake: FakeEc2, ec2_server: tuple[FakeEc2, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    with pytest.raises(LackingError, match="region") as caught:
        instance_places(Service("ec2", endpoint=ec2_server[1]), ["i-1"])
    assert "aws.region" in caught.value.remedy
    with pytest.raises(LackingError, match="credentials") as caught:
        instance_places(Service("ec2", region="us-east-2", endpoint=ec2_server[1]), ["i-1"])
    assert "role" in caught.value.remedy
    assert fake.calls[ACTION] == 0


def test_nobody_answers(fake: FakeEc2, clock: Clock) -> None:
    ec2 = Service("ec2", region="us-east-2", endpoint="http://127.0.0.1:9", clock=clock, sleep=clock.sleep)
    with pytest.raises(LackingError, match=r"127\.0\.0\.1") as caught:
        instance_places(ec2, ["i-1"])
    assert "endpoint" in caught.value.remedy


def test_the_refusal_that_stopped_the_others_is_what_is_told(ask: Callable[..., Service]) -> None:
    """Those that are not asked any more may be heard of before the one that says why."""
    service = ask()

    def refuse() -> None:
        raise Refused("scan", Said("AccessDenied", "the reason", False))

    for _ in range(100):
        questions: dict[int, Callable[[], None]] = {
            number: refuse if number == 0 else lambda: None for number in range(40)
        }
        with pytest.raises(Refused, match="the reason"):
            list(service.ask_all(questions, stop=lambda _said: True))

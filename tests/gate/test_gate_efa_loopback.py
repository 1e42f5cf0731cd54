"""fi_pingpong's words and ends: what convicts a device, what is the site's, what is nobody's; and noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.gate import efa_loopback
from slurm_ext.gate.efa_loopback import FAILED, PASSED, REFUSED, UNTRIED, Domain, Ran, Try
from slurm_ext.verdict import ACTIONS, FAIL, UNKNOWN, VERDICTS, WARN

ROW = (
    "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
    "4k      1k      =1k      7.8m        0.03s    252.24      16.24       0.06\n"
)
CQ_ERROR = "[error] util/pingpong.c:1127: cq_readerr: Unresponsive receiver\n"
NO_DOMAIN = "fi_getinfo(): util/pingpong.c:1497, ret=-61 (No data available)\n"
CLOSED = "[error] util/pingpong.c:560 : ctrl/read: no data or remote connection closed\n"
NO_MEMORY = "fi_mr_reg(): util/pingpong.c:1400, ret=-12 (Cannot allocate memory)\n"
USAGE = "fi_pingpong: invalid option -- 'c'\nUsage:\n  fi_pingpong [OPTIONS]\n"

TRIES: list[tuple[str, Ran, Ran, str]] = [
    ("well", Ran(0, ROW), Ran(0, ROW), PASSED),
    ("well, and the server is killed afterwards", Ran(None, ROW), Ran(0, ROW), PASSED),
    ("a completion in error", Ran(None), Ran(107, "", CQ_ERROR), FAILED),
    ("a completion in error at the server", Ran(107, "", CQ_ERROR), Ran(103, "", CLOSED), FAILED),
    ("data that came back changed", Ran(103, "", CLOSED), Ran(255, "Error at iteration=1 size=4096 byte=3\n"), FAILED),
    ("no traffic comes through", Ran(None), Ran(None), FAILED),
    ("there is no such domain", Ran(61, "", NO_DOMAIN), Ran(103, "", CLOSED), UNTRIED),
    ("memory cannot be registered", Ran(12, "", NO_MEMORY), Ran(103, "", CLOSED), UNTRIED),
    ("somebody else took the connection", Ran(None), Ran(104, "", CLOSED), UNTRIED),
    (
        "the server never listened",
        Ran(98, "", "bind(): util/pingpong.c:460, ret=-98 (Address in use)"),
        Ran(0),
        UNTRIED,
    ),
    ("it crashed", Ran(-11), Ran(103, "", CLOSED), UNTRIED),
    ("nothing was sent: no size fits", Ran(0), Ran(0), UNTRIED),
    ("the server hangs alone", Ran(None), Ran(1, "", "?"), UNTRIED),
    ("the client hangs alone", Ran(1, "", "?"), Ran(None), UNTRIED),
    ("another tool", Ran(1, "", USAGE), Ran(0), REFUSED),
]


@pytest.mark.parametrize(("server", "client", "how"), [case[1:] for case in TRIES], ids=[case[0] for case in TRIES])
def test_what_a_try_says(server: Ran, client: Ran, how: str) -> None:
    found = efa_loopback.read(server, client, 20.0)
    assert found.how == how
    assert bool(found.said) is (how != PASSED)


def test_the_words_of_a_try_are_those_of_whoever_failed_first() -> None:
    found = efa_loopback.read(Ran(61, "", NO_DOMAIN), Ran(103, "", CLOSED), 20.0)
    assert found.said == f"server: exit 61: {NO_DOMAIN.strip()}"
    assert efa_loopback.read(Ran(None), Ran(107, "", CQ_ERROR), 20.0).said == "cq_readerr: Unresponsive receiver"
    assert efa_loopback.read(Ran(None), Ran(None), 20.0).said == "no traffic came through within 20 s"


def tries(**counts: int) -> dict[str, Try]:
    made = [Try(how, "" if how == PASSED else "why") for how, count in counts.items() for _ in range(count)]
    return {f"d{number}": one for number, one in enumerate(made)}


def found(first: dict[str, Try], second: dict[str, Try], devices: int = 0) -> list[tuple[str, str, str, str]]:
    items = efa_loopback.judge(first, second, devices=devices or len(first))
    return [(one.verdict, *one.finding[:3]) for one in items]


AGAIN = {"d0": Try(FAILED, "why")}


def test_all_well() -> None:
    assert found(tries(passed=32), {}) == []
    assert efa_loopback.passed(tries(passed=2, failed=1), {}) == ("efa:d0", "efa:d1")


def test_one_of_many_that_fails_twice_is_at_fault() -> None:
    assert found(tries(failed=1, passed=7), AGAIN) == [(FAIL, "efa.loopback-failed", "efa:d0", "replace")]
    assert found(tries(failed=1, passed=3), AGAIN) == [(FAIL, "efa.loopback-failed", "efa:d0", "replace")]


@pytest.mark.parametrize(
    ("second", "verdict", "id_"),
    [
        ({"d0": Try(PASSED)}, WARN, "efa.loopback-unsteady"),
        ({"d0": Try(UNTRIED, "x")}, UNKNOWN, "efa.loopback-not-tested"),
        ({}, UNKNOWN, "efa.loopback-not-tested"),
    ],
)
def test_a_device_that_failed_once_is_not(second: dict[str, Try], verdict: str, id_: str) -> None:
    (item,) = found(tries(failed=1, passed=7), second)
    assert item[:3] == (verdict, id_, "efa:d0")
    assert efa_loopback.passed(tries(failed=1, passed=1), second) == ("efa:d1",)


def test_what_fails_on_many_or_all_is_the_sites() -> None:
    second = {f"d{number}": Try(FAILED, "why") for number in range(8)}
    assert found(tries(failed=4), second, 32) == [(WARN, "efa.loopback-none", "node", "warn")]
    assert found(tries(failed=1), second) == [(WARN, "efa.loopback-none", "node", "warn")]
    assert found(tries(failed=3, passed=5), second) == [(WARN, "efa.loopback-many", "node", "warn")]
    assert found(tries(failed=1, passed=1), second) == [(WARN, "efa.loopback-many", "node", "warn")]
    assert efa_loopback.again(tries(failed=3, passed=5)) == ()
    assert efa_loopback.again(tries(failed=2, passed=6)) == ("d0", "d1")
    assert efa_loopback.again(tries(passed=6)) == ()


def test_what_was_not_tried_counts_for_nobody() -> None:
    # One fails, and of the others only two were tried: too few pass to hold it against that one.
    assert found(tries(failed=1, passed=2, untried=5), AGAIN)[0] == (WARN, "efa.loopback-many", "node", "warn")
    assert found(tries(passed=1, untried=1), {}) == [(UNKNOWN, "efa.loopback-not-tested", "efa:d1", "none")]
    assert found(tries(untried=4), {}, 32) == [(UNKNOWN, "efa.loopback-not-tested", "node", "none")]
    assert found(tries(passed=20), {}, 32) == [(UNKNOWN, "efa.loopback-not-tested", "node", "none")]


def test_when_the_next_device_is_tried() -> None:
    assert efa_loopback.worth_more(())
    assert efa_loopback.worth_more(tuple(tries(failed=3).values()))
    assert not efa_loopback.worth_more(tuple(tries(failed=4).values()))
    assert not efa_loopback.worth_more(tuple(tries(failed=1, untried=3).values()))
    assert efa_loopback.worth_more(tuple(tries(failed=5, passed=1).values()))
    assert not efa_loopback.worth_more(tuple(tries(refused=1).values()))


INFO = """provider: efa
    fabric: efa-direct
    domain: rdmap79s0-rdm
    version: 203.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap79s0-rdm
    version: 203.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: EFA-fe80::5b:ff:fe3b:1
    domain: efa_0-rdm
    version: 118.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap80s0-dgrm
    version: 203.0
    type: FI_EP_DGRAM
    protocol: FI_PROTO_EFA
provider: efa;ofi_rxd
    fabric: efa
    domain: ../../etc
    type: FI_EP_RDM
provider: tcp
    fabric: 10.0.0.0/16
    domain: eth0
    type: FI_EP_RDM
"""


def test_the_domains_that_fi_info_lists() -> None:
    assert efa_loopback.domains(INFO) == (Domain("rdmap79s0-rdm", "rdmap79s0"), Domain("efa_0-rdm", "efa_0"))
    assert efa_loopback.domains("fi_getinfo: -61 (No data available)\n") == ()


def test_both_ends_have_the_same_options() -> None:
    server = efa_loopback.argv("/x/fi_pingpong", "d-rdm", 4000, client=False)
    client = efa_loopback.argv("/x/fi_pingpong", "d-rdm", 4000, client=True)
    assert server[-2:] == ("-B", "4000")
    assert client[-3:] == ("-P", "4000", "127.0.0.1")
    assert server[:-2] == client[:-3]


@given(st.text(max_size=300) | st.text(alphabet="provider: efa\n dmntyp_FIEPR-", max_size=300))
def test_any_text_of_fi_info_is_read(text: str) -> None:
    for one in efa_loopback.domains(text):
        assert one.name
        assert one.name.isascii()
        assert not set(one.name) & set("/ \n")


_RAN = st.builds(Ran, st.none() | st.integers(-15, 255), st.text(max_size=80), st.text(max_size=80))


@given(_RAN, _RAN)
def test_any_words_of_fi_pingpong_are_read(server: Ran, client: Ran) -> None:
    assert efa_loopback.read(server, client, 20.0).how in (PASSED, FAILED, UNTRIED, REFUSED)


@given(
    st.dictionaries(st.sampled_from("abcdefghij"), st.builds(Try, st.sampled_from([PASSED, FAILED, UNTRIED, REFUSED]))),
    st.dictionaries(st.sampled_from("abcdefghij"), st.builds(Try, st.sampled_from([PASSED, FAILED, UNTRIED, REFUSED]))),
)
def test_only_a_device_of_few_that_failed_twice_beside_others_that_pass_is_convicted(
    first: dict[str, Try], second: dict[str, Try]
) -> None:
    for item in efa_loopback.judge(first, second, devices=len(first)):
        assert item.verdict in VERDICTS
        assert item.finding.action in ACTIONS
        if item.verdict == FAIL:
            device = item.finding.target.removeprefix("efa:")
            assert first[device].how == second[device].how == FAILED
            assert sum(one.how == PASSED for one in first.values()) >= 3
            assert item.finding.target not in efa_loopback.passed(first, second)

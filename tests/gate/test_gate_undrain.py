"""Un-drain: only our own drain, only on proof of the very finding, only on the boot or instance that was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config.model import Settings
from slurm_ext.gate import undrain
from slurm_ext.gate.undrain import FORGET, LEAVE, RESUME, Seen
from slurm_ext.slurm.drain_record import STEPS, DrainRecord
from slurm_ext.slurm.model import Node
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

NOW = 1_900_000_000.0
REASON = "fmslurm: gpu.ecc-uncorrected gpu:3: 2 errors"

RECORD = DrainRecord(
    "n1",
    "gpu.ecc-uncorrected",
    "gpu:3",
    "reset-gpu",
    REASON,
    NOW - 3600,
    boot_id="b1",
    instance_id="i-1",
    owner="fmslurm gate",
    step="reset-gpu",
)
NODE = Node("n1", "IDLE", ("DRAIN",), REASON, "root", int(NOW) - 3600)
WELL = Seen(PASS, "b1", "i-1", still=False, check=PASS)
REPLACED = WELL._replace(instance_id="i-2", boot_id="b9")
SETTINGS = Settings()


def with_drain(**keys: object) -> Settings:
    return SETTINGS._replace(drain=SETTINGS.drain._replace(**keys))  # type: ignore[arg-type]


def of_type(word: str) -> Settings:
    return SETTINGS._replace(site=SETTINGS.site._replace(type=word))


def act(
    record: DrainRecord | None = RECORD,
    node: Node | None = NODE,
    seen: Seen = WELL,
    settings: Settings = SETTINGS,
    mode: str = "enforce",
) -> str:
    ruling = undrain.judge(record, node, seen, settings, mode=mode, now=NOW)
    assert ruling.why
    return ruling.act


def step(name: str) -> DrainRecord:
    return RECORD._replace(step=name)


def reason(text: str) -> Node:
    return NODE._replace(reason=text)


def slurms(late_s: int) -> Node:
    """Slurm's own drain after a failed prolog, so long after the record was written; 0: it does not say when."""
    return reason("Prolog error")._replace(reason_time=int(NOW) - 3600 + late_s if late_s else 0)


def prolog_error(late_s: int) -> dict[str, object]:
    return {"record": RECORD._replace(reason="Prolog error"), "node": slurms(late_s)}


CASES: list[tuple[str, dict[str, object], str]] = [
    ("proof on the same boot", {}, RESUME),
    ("a warning of something else", {"seen": WELL._replace(verdict=WARN, check=WARN)}, RESUME),
    ("proof on another boot", {"seen": WELL._replace(boot_id="b2")}, RESUME),
    # Not ours, not wholly, or not any more.
    ("no record", {"record": None}, LEAVE),
    ("Slurm does not answer", {"node": None}, LEAVE),
    ("another node's answer", {"node": NODE._replace(name="n2")}, LEAVE),
    ("another reason of ours", {"node": reason("fmslurm: gpu.lost gpu:3: gone")}, LEAVE),
    ("our reason with more behind it", {"node": reason(f"{REASON} and more")}, LEAVE),
    ("a person's reason", {"node": reason("bad cable, ada")}, LEAVE),
    ("Slurm's own", {"node": reason("Prolog error")}, LEAVE),
    (
        "Slurm's own, which we caused",
        {"record": RECORD._replace(reason="Prolog error"), "node": reason("Prolog error")},
        RESUME,
    ),
    ("Slurm's own, at once after our exit", prolog_error(1), RESUME),
    ("Slurm's own, after a slurmctld that was silent", prolog_error(170), RESUME),
    ("Slurm's own, an hour after our exit: the site's prolog", prolog_error(3000), LEAVE),
    ("Slurm's own, of before our exit", prolog_error(-60), LEAVE),
    ("Slurm's words, and nobody says when", {**prolog_error(1), "node": slurms(0)}, LEAVE),
    ("Slurm's words, typed by a person", {**prolog_error(1), "node": slurms(1)._replace(reason_user="ada")}, LEAVE),
    ("Slurm's words, and nobody says by whom", {**prolog_error(1), "node": slurms(1)._replace(reason_user="")}, LEAVE),
    ("no reason at all", {"node": reason("")}, LEAVE),
    ("resumed by somebody", {"node": NODE._replace(flags=(), reason="")}, FORGET),
    ("about to be drained", {"node": NODE._replace(flags=()), "record": RECORD._replace(since_s=NOW - 5)}, LEAVE),
    ("down, and not drained", {"node": NODE._replace(flags=(), state="DOWN")}, LEAVE),
    ("a person's drain by us", {"record": RECORD._replace(finding="node.manual")}, LEAVE),
    ("a person owns it", {"record": RECORD._replace(owner="user ada")}, LEAVE),
    # Policy.
    ("never", {"settings": with_drain(undrain="never")}, LEAVE),
    ("shadow", {"mode": "shadow"}, LEAVE),
    ("off", {"mode": "off"}, LEAVE),
    # Somebody else has it in hand.
    ("reboots", {"node": NODE._replace(flags=("DRAIN", "REBOOT_REQUESTED"))}, LEAVE),
    ("powers down", {"node": NODE._replace(flags=("DRAIN", "POWERING_DOWN"))}, LEAVE),
    ("maintenance", {"node": NODE._replace(flags=("DRAIN", "MAINTENANCE"))}, LEAVE),
    ("silent", {"node": NODE._replace(flags=("DRAIN", "NOT_RESPONDING"))}, LEAVE),
    ("failing", {"node": NODE._replace(flags=("DRAIN", "FAIL"))}, LEAVE),
    ("down after its reboot", {"node": NODE._replace(state="DOWN"), "seen": WELL._replace(boot_id="b2")}, RESUME),
    ("a state nobody knows", {"node": NODE._replace(state="UNKNOWN")}, LEAVE),
    ("HyperPod was asked", {"node": reason("Action:Replace"), "settings": of_type("hyperpod")}, LEAVE),
    (
        "HyperPod was asked in our words",
        {"record": RECORD._replace(reason="Action:Replace"), "node": reason("Action:Replace")},
        LEAVE,
    ),
    # The gate's word.
    ("the gate fails for something else", {"seen": WELL._replace(verdict=FAIL)}, LEAVE),
    ("the gate does not know", {"seen": WELL._replace(verdict=UNKNOWN)}, LEAVE),
    ("no verdict", {"seen": WELL._replace(verdict="")}, LEAVE),
    ("still to be seen", {"seen": WELL._replace(verdict=WARN, still=True)}, LEAVE),
    ("the check could not be made", {"seen": WELL._replace(check=UNKNOWN)}, LEAVE),
    ("the check is off by now", {"seen": WELL._replace(check="off")}, LEAVE),
    ("nothing looks at it between jobs", {"seen": WELL._replace(check="")}, LEAVE),
    ("a reading is missing", {"seen": WELL._replace(missing="its value could not be read")}, LEAVE),
    ("a reading is missing on another boot", {"seen": WELL._replace(missing="not listed", boot_id="b2")}, LEAVE),
    ("the driver asks for a reset", {"seen": WELL._replace(recovery="Reset")}, LEAVE),
    ("a slow check is to prove it", {"seen": WELL._replace(slow="DCGM has not run since")}, LEAVE),
    ("it comes and goes", {"seen": WELL._replace(returns=3)}, LEAVE),
    ("twice is not often", {"seen": WELL._replace(returns=2)}, RESUME),
    # The boot or instance that was asked for.
    ("which boot is not known", {"seen": WELL._replace(boot_id="")}, LEAVE),
    ("which boot it was is not known", {"record": RECORD._replace(boot_id="")}, LEAVE),
    ("a drain alone, same boot", {"record": step("drain")}, RESUME),
    ("a reboot was asked for, same boot", {"record": step("reboot")}, LEAVE),
    ("a reboot was asked for, and done", {"record": step("reboot"), "seen": WELL._replace(boot_id="b2")}, RESUME),
    ("a replacement was asked for, rebooted", {"record": step("replace"), "seen": WELL._replace(boot_id="b2")}, LEAVE),
    ("a replacement was asked for, and done", {"record": step("replace"), "seen": REPLACED}, RESUME),
    (
        "which instance it was is not known",
        {"record": step("replace")._replace(instance_id=""), "seen": REPLACED},
        LEAVE,
    ),
    ("replaced, and the gate fails there", {"record": step("replace"), "seen": REPLACED._replace(verdict=FAIL)}, LEAVE),
    ("replaced, where a reset was asked for", {"seen": REPLACED._replace(check="")}, RESUME),
    # A burn-in's finding is not to be seen by a look at one node.
    ("the burn-in's", {"record": step("drain")._replace(finding="burnin.culprit", target="node:n1")}, LEAVE),
    (
        "the burn-in's, rebooted",
        {"record": step("reboot")._replace(finding="burnin.culprit"), "seen": WELL._replace(boot_id="b2")},
        LEAVE,
    ),
    ("the burn-in's, replaced", {"record": RECORD._replace(finding="burnin.culprit"), "seen": REPLACED}, RESUME),
    ("replaced and resumed", {"node": NODE._replace(flags=()), "seen": REPLACED}, FORGET),
]


@pytest.mark.parametrize(("given_", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_done(given_: dict[str, object], expected: str) -> None:
    assert act(**given_) == expected  # type: ignore[arg-type]


_WORDS = st.sampled_from(["b1", "b2", "i-1", "i-2", ""])
_REASONS = st.sampled_from([REASON, "Prolog error", "", "bad cable", REASON + " ", "fmslurm: x.y node: z"]) | st.text(
    max_size=30
)
_RECORDS = st.builds(
    DrainRecord,
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["gpu.ecc-uncorrected", "burnin.culprit", "node.manual", "dcgm.memory"]),
    st.just("gpu:3"),
    st.just("reset-gpu"),
    _REASONS.filter(bool),
    st.floats(NOW - 1e6, NOW),
    boot_id=_WORDS,
    instance_id=_WORDS,
    owner=st.sampled_from(["fmslurm gate", "user ada", ""]),
    step=st.sampled_from(STEPS),
)
_NODES = st.builds(
    Node,
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "DOWN", "UNKNOWN", ""]),
    st.lists(st.sampled_from(["DRAIN", "FAIL", "NOT_RESPONDING", "REBOOT_ISSUED", "CLOUD"]), max_size=3).map(tuple),
    _REASONS,
    st.sampled_from(["root", "slurm", "ada", ""]),
    st.sampled_from([0, int(NOW)]) | st.integers(int(NOW - 1e6), int(NOW)),
)
_SEEN = st.builds(
    Seen,
    st.sampled_from([PASS, WARN, FAIL, UNKNOWN, ""]),
    _WORDS,
    _WORDS,
    still=st.booleans(),
    check=st.sampled_from([PASS, WARN, FAIL, UNKNOWN, "off", "-", ""]),
    recovery=st.sampled_from(["", "Reset"]),
    missing=st.sampled_from(["", "gpu:3 is not listed"]),
)


@given(st.none() | _RECORDS, st.none() | _NODES, _SEEN, st.sampled_from(["off", "shadow", "warn", "enforce"]))
def test_a_foreign_reason_is_never_cleared_and_the_unknown_resumes_nobody(
    record: DrainRecord | None, node: Node | None, seen: Seen, mode: str
) -> None:
    ruling = undrain.judge(record, node, seen, SETTINGS, mode=mode, now=NOW)
    if ruling.act == RESUME:
        assert record is not None
        assert node is not None
        assert node.reason == record.reason
        assert node.name == record.node
        assert mode == "enforce"
        assert seen.verdict in (PASS, WARN)
        assert not seen.still
        assert record.finding != "node.manual"
        assert undrain.is_another_instance(record, seen.instance_id) or (
            seen.check in (PASS, WARN)
            and bool(seen.boot_id)
            and not seen.missing
            and record.step != "replace"
            and (record.step != "reboot" or seen.boot_id != record.boot_id)
        )
        if record.reason == "Prolog error":
            assert -1 <= node.reason_time - record.since_s <= undrain.PROLOG_DRAIN_S
            assert node.reason_user in ("root", "slurm")
    if ruling.act == FORGET:
        assert node is not None
        assert not node.drained

"""What a new gres.conf changes, what it must not, and what Slurm holds against it."""

from __future__ import annotations

import pytest

from slurm_ext.gres.change import Change, change, refusals
from slurm_ext.gres.read_conf import gres_lines, node_lines
from slurm_ext.slurm.model import Node

SHAPE = "CPUs=192 Sockets=2 CoresPerSocket=48 ThreadsPerCore=2"
CONF = f"NodeName=n[1-4] {SHAPE} Gres=gpu:h100:8\n"
PLAIN = "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"
CORES = (
    "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-47\n"
    "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=48-95\n"
)
FILES = frozenset(f"/dev/nvidia{number}" for number in range(8))
SHOWN = {f"n{number}": FILES for number in range(1, 5)}


def nodes(**states: str) -> list[Node]:
    """Return four nodes with GPUs, idle but for those named."""
    return [Node(f"n{n}", states.get(f"n{n}", "IDLE"), gres="gpu:h100:8(S:0-1)") for n in range(1, 5)]


def changed(
    before: str | None, after: str, having: list[Node], conf: str = CONF, shown: dict[str, frozenset[str]] = SHOWN
) -> Change:
    old = None if before is None else gres_lines("old", before)
    return change(old, gres_lines("new", after), having, node_lines("slurm.conf", conf), shown)


def test_the_same_gpus_and_cores_are_no_change() -> None:
    assert changed(PLAIN, "# other words\n" + PLAIN.replace("n[1-4]", "n1,n2,n[3-4]"), nodes()) == Change()
    per_node = "".join(f"NodeName=n{n} Name=GPU type=H100 File=/dev/nvidia{g}\n" for n in range(1, 5) for g in range(8))
    assert changed(per_node, PLAIN, nodes(n1="ALLOCATED")) == Change()


def test_cores_alone_may_change_under_jobs_and_want_a_restart() -> None:
    found = changed(PLAIN, CORES, nodes(n2="ALLOCATED"))
    assert (found.gpus, found.cores, found.refused) == ((), ("n1", "n2", "n3", "n4"), ())
    assert found.words() == "Cores= of n[1-4] change"


@pytest.mark.parametrize("state", ["ALLOCATED", "MIXED"])
def test_gpus_of_a_node_with_jobs_may_not_change(state: str) -> None:
    for before in (
        PLAIN.replace("0-7", "0-3"),
        PLAIN.replace("h100", "a100"),
        None,
        "NodeName=n[1-4] AutoDetect=nvml\n",
    ):
        found = changed(before, PLAIN, nodes(n3=state))
        assert found.gpus == ("n1", "n2", "n3", "n4")
        assert [reason for reason in found.refused if "n3: jobs run there" in reason]
    assert changed(PLAIN.replace("0-7", "0-3"), PLAIN, nodes()).refused == ()
    (completing,) = [node._replace(flags=("COMPLETING",)) for node in nodes()[:1]]
    assert "n1: jobs run there" in changed("", PLAIN, [completing]).refused[0]


def test_a_node_that_slurm_is_to_count_anew_may_not_have_jobs() -> None:
    """slurm.conf was edited and slurmctld was not told yet: the reconfigure would take that in, too."""
    having = [node._replace(gres="gpu:h100:4") for node in nodes(n1="ALLOCATED")]
    found = changed(PLAIN, PLAIN, having)
    assert found.gpus == ("n1", "n2", "n3", "n4")
    assert "n1: jobs run there" in found.refused[0]


def test_a_device_file_that_nobody_saw_would_end_slurmd() -> None:
    found = changed("", PLAIN, nodes(), shown={"n1": FILES, "n2": FILES - {"/dev/nvidia7"}})
    assert len(found.refused) == 2
    assert found.refused[0].startswith("n2: nobody knows that /dev/nvidia7 is there")
    assert found.refused[1].startswith("n[3-4]: nobody knows that /dev/nvidia0 is there")
    away = [node._replace(flags=("CLOUD", "POWERED_DOWN")) for node in nodes()]
    assert changed("", PLAIN, away, shown={}).refused == ()
    assert changed(PLAIN, CORES, nodes(), shown={}).refused == ()  # the old file names them


@pytest.mark.parametrize(
    ("conf", "after", "words"),
    [
        (CONF.replace(":8", ":4"), PLAIN, "4 h100 in slurm.conf, and 8 h100 in gres.conf"),
        (CONF.replace("h100", "a100"), PLAIN, "8 a100 in slurm.conf"),
        (CONF.replace(" Gres=gpu:h100:8", ""), PLAIN, "no Gres= of GPUs in slurm.conf"),
        (CONF, "", "and no line of gres.conf"),
        ("NodeName=n[1-4] CPUs=192 Gres=gpu:h100:8\n", CORES, "CPUs=192 alone"),
        (CONF.replace("=48", "=24"), CORES, "go beyond the 48 cores"),
        ("NodeName=n[1-3] Gres=gpu:h100:8\n", PLAIN, "n4: slurmctld has these nodes"),
        (
            f"NodeName=n[1-4] {SHAPE} Gres=gpu:h100:8 State=CLOUD\n",
            "AutoDetect=nvml\n" + PLAIN,
            "AutoDetect=nvml for nodes",
        ),
    ],
)
def test_a_file_that_does_not_fit_slurm_conf_is_refused(conf: str, after: str, words: str) -> None:
    assert any(words in reason for reason in changed(PLAIN, after, nodes(), conf).refused)


def test_lines_of_nodes_that_slurm_does_not_have_cost_nothing() -> None:
    assert changed(PLAIN, PLAIN + PLAIN.replace("n[", "x["), nodes()).refused == ()


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Node("n1", "IDLE", gres="gpu:h100:8(S:0-1)"), ""),
        (Node("n1", "IDLE", gres="gpu:h100:8", reason="old words about gres"), ""),
        (
            Node("n1", "IDLE", ("DRAIN",), "gres/gpu count reported lower than configured (4 < 8)", gres="gpu:h100:8"),
            "4 < 8",
        ),
        (Node("n1", "IDLE", ("INVALID_REG",), gres="gpu:h100:8"), "does not take"),
        (Node("n1", "IDLE", gres="gpu:h100:4"), "Gres=gpu:h100:4"),
        (Node("n1", "IDLE", gres=""), "Gres=none"),
        (Node("n1", "IDLE", ("NOT_RESPONDING",), gres="gpu:h100:8"), "does not answer any more"),
        (Node("n1", "DOWN", gres="gpu:h100:8"), "does not answer any more"),
        (Node("x1", "DOWN"), ""),
    ],
)
def test_what_slurm_holds_against_a_file(now: Node, words: str) -> None:
    before = {"n1": Node("n1", "IDLE", gres="gpu:h100:8", reason="old words about gres")}
    found = refusals(before, [now], gres_lines("f", PLAIN), starts_anew=False)
    assert [words in one for one in found] == ([True] if words else [])


def test_a_node_that_was_away_before_is_no_refusal() -> None:
    gone = Node("n1", "DOWN", ("NOT_RESPONDING",), gres="gpu:h100:8")
    assert refusals({"n1": gone}, [gone], gres_lines("f", PLAIN), starts_anew=True) == []


def test_a_slurmd_that_goes_on_as_before_did_not_take_the_file() -> None:
    before = Node("n1", "IDLE", gres="gpu:h100:8", slurmd_start_time=1000)
    for start, taken in ((1000, False), (0, False), (1001, True)):
        now = before._replace(slurmd_start_time=start)
        assert (refusals({"n1": before}, [now], gres_lines("f", PLAIN), starts_anew=True) == []) is taken
        assert refusals({"n1": before}, [now], gres_lines("f", PLAIN), starts_anew=False) == []

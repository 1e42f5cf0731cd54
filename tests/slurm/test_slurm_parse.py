"""Slurm's text answers, also where users wrote look-alikes into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.slurm import parse, parse_topology
from slurm_ext.slurm.model import Job
from slurm_ext.slurm.versions import has, is_supported, parse_version, restart_pause_s

SEPARATOR = "@fm0123456789abcdef;"

PLAIN = {
    "JobID": "12",
    "State": "RUNNING",
    "Reason": "None",
    "UserID": "1000",
    "GroupID": "1000",
    "UserName": "ada",
    "Partition": "gpu",
    "NodeList": "n[0-3]",
    "BatchHost": "n0",
    "NumNodes": "4",
    "RestartCnt": "1",
    "Requeue": "1",
    "exit_code": "0",
    "DerivedEC": "0:0",
    "SubmitTime": "1795989061",
    "EligibleTime": "1795989061",
    "StartTime": "1795989062",
    "EndTime": "N/A",
    "TimeLimit": "1-02:03:04",
    "ArrayJobID": "12",
    "ArrayTaskID": "N/A",
    "HetJobID": "N/A",
    "Dependency": "(null)",
    "PriorityLong": "4294901759",
    "Name": "train",
    "Comment": "(null)",
    "WorkDir": "/home/ada",
    "STDOUT": "/home/ada/slurm-%j.out",
}


def answer(*rows: dict[str, str]) -> str:
    """Return what squeue prints for these rows."""
    return "".join("".join(row[field] + SEPARATOR for field in parse.JOB_FIELDS) + "\n" for row in rows)


def test_a_plain_job() -> None:
    assert parse.jobs(answer(PLAIN), SEPARATOR) == [
        Job(
            "12",
            name="train",
            user_id=1000,
            group_id=1000,
            partition="gpu",
            state="RUNNING",
            nodes="n[0-3]",
            batch_host="n0",
            node_count=4,
            restarts=1,
            requeue=True,
            submit_time=1795989061,
            eligible_time=1795989061,
            start_time=1795989062,
            time_limit_min=1563,
            std_out="/home/ada/slurm-12.out",
            work_dir="/home/ada",
            priority=4294901759,
        )
    ]


HOSTILE = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    [
        "x JobState=FAILED",
        "x\nJobId=99 JobName=y UserId=root(0)\n   JobState=FAILED",
        "@fm",
        "@fm0123456789abcdef",
        "fm0123456789abcdef;",
        "\n\n",
        "a|b,c:d%j",
    ]
)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_user_text_reaches_another_field(name: str, comment: str, folder: str) -> None:
    row = {**PLAIN, "Name": name, "Comment": comment, "WorkDir": "/" + folder}
    jobs = parse.jobs(answer(row, PLAIN), SEPARATOR)
    assert [job.job_id for job in jobs] == ["12", "12"]
    assert (jobs[0].name, jobs[0].work_dir) == (name, "/" + folder)
    assert jobs[0].comment == ("" if comment == "(null)" else comment)
    assert jobs[0].state == "RUNNING"
    assert jobs[1] == parse.jobs(answer(PLAIN), SEPARATOR)[0]


@given(st.integers(1, 400))
def test_a_cut_answer_is_noticed(length: int) -> None:
    text = answer(PLAIN)
    cut = text[: min(length, len(text.rstrip("\n")) - 1)]
    with pytest.raises(parse.AnswerError):
        parse.jobs(cut, SEPARATOR)


def test_no_jobs() -> None:
    assert parse.jobs("", SEPARATOR) == []
    assert parse.jobs("\n", SEPARATOR) == []


@pytest.mark.parametrize(
    ("word", "reason", "code", "state", "flags"),
    [
        ("RUNNING", "None", "0:0", "RUNNING", ()),
        ("CONFIGURING", "None", "0:0", "RUNNING", ("CONFIGURING",)),
        ("COMPLETING", "NonZeroExitCode", "3:0", "FAILED", ("COMPLETING",)),
        ("COMPLETING", "TimeLimit", "0:0", "TIMEOUT", ("COMPLETING",)),
        ("COMPLETING", "None", "3:0", "FAILED", ("COMPLETING",)),
        ("COMPLETING", "None", "0:0", "COMPLETING", ("COMPLETING",)),
        ("COMPLETING", "job requeued in held state", "0:0", "PENDING", ("COMPLETING",)),
        ("SPECIAL_EXIT", "None", "0:0", "PENDING", ("SPECIAL_EXIT",)),
        ("A_NEW_WORD", "None", "0:0", "A_NEW_WORD", ()),
    ],
)
def test_job_state(word: str, reason: str, code: str, state: str, flags: tuple[str, ...]) -> None:
    assert parse.job_state(word, reason, code) == (state, flags)


@pytest.mark.parametrize(
    ("text", "pair"), [("0", "0:0"), ("768", "3:0"), ("15", "0:15"), ("3:0", "3:0"), ("0:15", "0:15"), ("", "0:0")]
)
def test_exit_pair(text: str, pair: str) -> None:
    assert parse.exit_pair(text) == pair


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("UNLIMITED", -1), ("10:00", 10), ("1:00:00", 60), ("2-00:00:00", 2880), ("0:30", 0), ("NOT_SET", -1)],
)
def test_minutes(text: str, minutes: int) -> None:
    assert parse.minutes(text) == minutes


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/l/%j.out", "/l/7.out"),
        ("log/%x-%A_%a.out", "/w/log/my name-5_3.out"),
        ("%u/%5j", "/w/ada/00007"),
        ("%%j", "/w/%j"),
        ("lo\\g-%j", "/w/log-%j"),
        ("%N.out", "/w/n0.out"),
        ("", ""),
        ("%q", "/w/%q"),
    ],
)
def test_output_path(pattern: str, path: str) -> None:
    job = Job("7", name="my name", batch_host="n0", work_dir="/w", array_job_id="5", array_task_id="3")
    assert parse.output_path(pattern, job, "ada") == path


NODE = (
    "NodeName=n1 Arch=x86_64 CPUTot=192 Gres=gpu:h100:8 NodeAddr=10.0.0.1 NodeHostName=n1 OS=Linux 5 #1 State={state} "
    "Partitions=gpu,big BootTime=17 SlurmdStartTime=18"
)


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("IDLE", "IDLE", ()),
        ("IDLE+DRAIN", "IDLE", ("DRAIN",)),
        ("DOWN*", "DOWN", ("NOT_RESPONDING",)),
        ("DOWN+DRAIN+NOT_RESPONDING", "DOWN", ("DRAIN", "NOT_RESPONDING")),
        ("IDLE*+DRAIN", "IDLE", ("DRAIN", "NOT_RESPONDING")),
        ("DRAINED", "IDLE", ("DRAIN",)),
        ("IDLE+CLOUD+POWERED_DOWN", "IDLE", ("CLOUD", "POWERED_DOWN")),
        ("", "", ()),
    ],
)
def test_node_state(text: str, state: str, flags: tuple[str, ...]) -> None:
    assert parse.node_state(text) == (state, flags)


@pytest.mark.parametrize(
    ("tail", "reason", "user", "since"),
    [
        ("", "", "", 0),
        (" Reason=fan [root@1795990001]", "fan", "root", 1795990001),
        (" Reason=a [x@y] b [root@5] c [ops@1795990005] Comment=c Extra=d", "a [x@y] b [root@5] c", "ops", 1795990005),
        (" Comment=com Reason=fmslurm: x [root@5]", "", "", 0),
        (" Reason=no stamp Comment=z", "no stamp", "", 0),
        (" Reason=a State=DOWN [root@1795990007]        NodeName=n9", "a State=DOWN", "root", 1795990007),
    ],
)
def test_node_reason(tail: str, reason: str, user: str, since: int) -> None:
    (node,) = parse.nodes(NODE.format(state="IDLE+DRAIN") + tail + "\n")
    assert (node.reason, node.reason_user, node.reason_time) == (reason, user, since)
    assert (node.name, node.state, node.drained, node.partitions) == ("n1", "IDLE", True, ("gpu", "big"))
    assert (node.cpus, node.boot_time, node.slurmd_start_time, node.gres) == (192, 17, 18, "gpu:h100:8")


@pytest.mark.parametrize(
    ("tail", "instance_id", "instance_type"),
    [
        ("InstanceId=i-0123456789abcdef0 InstanceType=p5.48xlarge", "i-0123456789abcdef0", "p5.48xlarge"),
        ("Comment=InstanceId=i-0 InstanceId=(null) InstanceType=(null)", "", ""),
        ("InstanceId=12345 InstanceType=big", "", ""),
        ("", "", ""),
    ],
)
def test_node_instance(tail: str, instance_id: str, instance_type: str) -> None:
    (node,) = parse.nodes(f"NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 State=IDLE BootTime=1 {tail}\n")
    assert (node.instance_id, node.instance_type) == (instance_id, instance_type)


def test_a_comment_over_several_lines_makes_no_node() -> None:
    text = NODE.format(state="IDLE") + " Comment=x\nNodeName=n2 fake\nNodeName=n1 State=DOWN\n"
    assert [(node.name, node.state) for node in parse.nodes(text)] == [("n1", "IDLE")]


@given(st.text(max_size=200))
def test_any_answer_is_read(text: str) -> None:
    parse.nodes(text)
    parse.config(text)
    parse.topology(text)


TREE = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=s[0-1]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=s[2-3]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=s[0-3] Switches=leaf[0-1]
"""
BLOCKS = """BlockName=b0 BlockIndex=0 Nodes=s[0-1] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=s[2-3] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=2 Nodes=s[0-3] BlockSize=4
"""


def test_topology_of_a_tree_and_of_blocks() -> None:
    tree = parse.topology(TREE)
    assert (tree["s0"], tree["s3"]) == (("spine", "leaf0"), ("spine", "leaf1"))
    blocks = parse.topology(BLOCKS)
    assert (blocks["s0"], blocks["s3"]) == (("b[0-1]", "b0"), ("b[0-1]", "b1"))
    assert parse.topology("what is this\n") == {}


def test_config() -> None:
    text = "Configuration data as of 1\nClusterName    = lab\nEpilog = (null)\nClusterName = b\n\nSlurmctld(primary) is UP\n"
    assert parse.config(text) == {"ClusterName": "lab", "Epilog": ""}


def test_config_numbers_what_may_stand_several_times() -> None:
    numbered = "Prolog[0] = /etc/one\nProlog[1] = /etc/two.d/*\nEpilog[0] = (null)\nSlurmctldHost[0] = head\n"
    assert parse.config(numbered) == {"Prolog": "/etc/one,/etc/two.d/*", "Epilog": "", "SlurmctldHost": "head"}


@pytest.mark.parametrize(
    ("text", "release"),
    [("slurm 22.05.8", (22, 5)), ("slurm-wlm 24.11.5\n", (24, 11)), ("slurm 26.05.0-0rc1", (26, 5)), ("none", None)],
)
def test_versions(text: str, release: tuple[int, int] | None) -> None:
    found = parse_version(text)
    assert (found and (found.major, found.minor)) == release
    if found:
        assert is_supported(found)
        assert has(found, "topology-block") == (release >= (23, 11))


def test_no_version_lets_a_job_return_to_its_node_in_the_second_in_which_it_ended():
    # StartTime is a whole second: now+1 may be that of slurmd's clock, which is another machine's.
    for text in ("slurm 22.05.8", "slurm-wlm 24.11.5", "slurm 26.05.5", "slurm 27.05.0"):
        version = parse_version(text)
        assert version is not None
        assert restart_pause_s(version) >= 2


def test_partitions():
    text = (
        "PartitionName=gpu AllowGroups=ALL MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 Nodes=n[0-3] State=UP\n"
        "PartitionName=short AllowGroups=ALL MaxTime=1-02:03:00 Nodes=n0\n"
        "no partition at all\n"
    )
    assert [tuple(each)[:3] for each in parse.partitions(text)] == [("gpu", -1, "n[0-3]"), ("short", 1563, "n0")]


def test_partitions_say_the_default_the_largest_job_and_the_topology():
    text = (
        "PartitionName=gpu Default=YES MaxNodes=16 MaxTime=UNLIMITED Nodes=n[0-3] State=UP Topology=nvl\n"
        "PartitionName=cpu Default=NO MaxNodes=UNLIMITED Nodes=c[0-3]\n"
    )
    assert [each[3:] for each in parse.partitions(text)] == [(True, 16, "nvl"), (False, -1, "")]


def test_a_nodes_weight():
    with_weight, without = parse.nodes("NodeName=n1 State=IDLE Weight=1000\nNodeName=n2 State=IDLE\n")
    assert (with_weight.weight, without.weight) == (1000, 1)


def test_topology_units_keep_their_order_and_sizes():
    text = (
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=l[0-1]\n"
        "SwitchName=l1 Level=0 LinkSpeed=1 Nodes=n[2-3] \n"
        "SwitchName=bad Level=0 Nodes=n[[ \n"
        "nothing of ours\n"
    )
    assert [tuple(unit) for unit in parse_topology.units(text)] == [
        ("top", "switch", ("n0", "n1", "n2", "n3"), ("l0", "l1"), 1, 0),
        ("l1", "switch", ("n2", "n3"), (), 0, 0),
        ("bad", "switch", (), (), 0, 0),
    ]
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=b2 BlockIndex=1 BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[0-1] BlockSize=4\nRingName=r Nodes=n[0-1]\n"
    )
    told = [(unit.name, unit.kind, len(unit.nodes), unit.size) for unit in parse_topology.units(text)]
    assert told == [("b1", "block", 2, 2), ("b2", "block", 0, 2), ("b[1-2]", "blocks", 2, 4), ("r", "other", 2, 0)]
    assert parse_topology.units("") == []

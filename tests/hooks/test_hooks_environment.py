"""The job in a hook's environment: users wrote parts of it, and nothing they wrote may become more than data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config.model import Settings
from slurm_ext.hooks import decide, environment, passes
from slurm_ext.hooks.environment import parse

GOOD = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GID": "1000",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURMD_NODENAME": "n1",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_JOB_RESTART_COUNT": "2",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_COMMENT": "my run fm:1;r=5;n=llama",
    "SLURM_JOB_STDOUT": "/home/u/out.txt",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
}


def job(**change):
    return parse({**GOOD, **change})


def test_all_that_a_22_05_prolog_says():
    found = job()
    assert (found.job_id, found.cluster, found.restarts, found.node) == ("4711", "lab", 2, "n1")
    assert found.nodes == ("n1", "n2", "n3")
    assert (found.uid, found.gid, found.gpus, found.batch, found.het) == (1000, 1000, 8, True, "")
    assert (found.attempt, found.run, found.stop_id) == ("lab/4711-2", "llama", "4711")
    assert found.request.resume == 5
    assert found.problems == ()


def test_newer_slurm_says_the_list_under_another_name_and_carries_extra():
    found = job(SLURM_NODELIST="", SLURM_JOB_NODELIST="a1,b[01-02]", SLURM_JOB_EXTRA="fm:1;n=other")
    assert found.nodes == ("a1", "b01", "b02")
    assert found.run == "other"


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("node[0001-1000]", "node0001", "node1000"),
        ("rack[01-10]n[001-100]", "rack01n001", "rack10n100"),
        ("a[0001-0400],b[1-600]", "a0001", "b600"),
        (
            ",".join(f"compute-dy-p5-{number:04}" for number in range(1, 1001)),
            "compute-dy-p5-0001",
            "compute-dy-p5-1000",
        ),
    ],
)
def test_a_thousand_names_with_brackets_and_leading_zeros(text, first, last):
    found = job(SLURM_NODELIST=text, SLURMD_NODENAME=last, SLURM_JOB_COMMENT="x" * 5000 + " fm:1;b=strict")
    assert (len(found.nodes), len(set(found.nodes)), found.nodes[0], found.nodes[-1]) == (1000, 1000, first, last)
    assert found.request.burnin == "strict"
    assert decide.burnin_wanted(found, Settings(), mode="enforce", gpus_on_node=8) == (
        True,
        "whole nodes of a batch job, strict",
    )
    assert decide.actors(found.nodes, out=found.nodes[:999]) == (last,)
    for name in ("nodes", "suspects"):
        assert decide.names_of({name: list(found.nodes)}, name, found.nodes) == found.nodes
    assert passes.of_nodes(found.nodes) == passes.of_nodes(reversed(found.nodes))


def test_srun_and_salloc_have_no_output_file_before_they_start():
    assert not job(SLURM_JOB_STDOUT="").batch


def test_a_component_of_a_heterogeneous_job_is_stopped_by_its_leaders_id():
    assert job(SLURM_HET_JOB_ID="4700").stop_id == "4700"


def test_without_a_job_or_a_node_there_is_nothing_to_do():
    assert parse({}) is None
    assert parse({**GOOD, "SLURM_JOB_ID": "12; reboot"}) is None
    assert parse({**GOOD, "SLURM_JOB_ID": "../../etc"}) is None
    assert parse({**GOOD, "SLURMD_NODENAME": "../x"}) is None
    assert parse({**GOOD, "SLURMD_NODENAME": "../x"}, hostname="n1").node == "n1"


def test_what_has_another_form_is_dropped_and_named():
    found = job(
        SLURM_CLUSTER_NAME="a/../b",
        SLURM_JOB_PARTITION="gpu\nX=1",
        SLURM_JOB_UID="0x0",
        SLURM_UID="",
        SLURM_NODELIST="n[1-",
        SLURM_JOB_GPUS="all",
        SLURM_HET_JOB_ID="$(id)",
    )
    assert (found.cluster, found.partition, found.uid, found.nodes, found.gpus, found.het) == (
        "cluster",
        "",
        -1,
        (),
        0,
        "",
    )
    assert len(found.problems) == 6


UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
MIG = "MIG-1b7bd7a2-0000-1111-2222-333344445555"
OLD_MIG = f"MIG-{UUID}/7/0"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0", "0"),
        ("0-7", "0 1 2 3 4 5 6 7"),
        ("0,2-3", "0 2 3"),
        ("3, 1,1,01", "3 1"),
        ("", ""),
        ("x", ""),
        ("0-99999", ""),
        ("5-1", ""),
        ("0-9999", ""),
        (UUID, UUID),
        (f"{UUID},0", f"{UUID} 0"),
        (UUID + "x", ""),
        ("GPU-604ac76c", ""),
        (f"{UUID}/../../etc", ""),
        ("0,", ""),
        ("\u0663", ""),
        ("0," * 9000 + "0", ""),
    ],
)
def test_gpu_lists(text, ids):
    found = job(SLURM_JOB_GPUS=text)
    assert (found.gpu_ids, found.gpus) == (tuple(ids.split()), len(ids.split()))
    assert bool(found.problems) == (bool(text) and not ids)


def test_gpus_by_another_name_and_parts_of_gpus():
    assert job(SLURM_JOB_GPUS="", CUDA_VISIBLE_DEVICES="2,3").gpu_ids == ("2", "3")
    assert job(SLURM_JOB_GPUS="all", GPU_DEVICE_ORDINAL="1").gpu_ids == ("1",)
    assert job(SLURM_JOB_GPUS="", CUDA_VISIBLE_DEVICES="NoDevFiles") == job(SLURM_JOB_GPUS="")
    assert job(SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="5").gpu_ids == ("0",)
    for part in (
        MIG,
        OLD_MIG,
    ):  # Slurm numbers the parts, CUDA names them: an index would say that the job has a whole GPU
        found = job(SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES=part)
        assert (found.gpu_ids, found.gpus) == ((part,), 0)
    assert job(SLURM_JOB_GPUS="0", CUDA_VISIBLE_DEVICES="MIG-x").gpu_ids == ("0",)


@pytest.mark.parametrize(
    ("said", "unclear"),
    [
        ({"SLURM_JOB_GPUS": "0,1"}, False),
        ({"SLURM_JOB_GPUS": ""}, False),
        ({"SLURM_JOB_GPUS": "0,1;x"}, True),
        ({"SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": "all"}, True),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-x"}, True),  # 0 may count parts
    ],
)
def test_a_list_in_an_unknown_form_is_told_from_none(said, unclear):
    found = job(**said)
    assert (found.gpus_unclear, bool(found.problems)) == (unclear, unclear)


@given(st.text(max_size=200))
def test_any_text_is_a_list_of_gpus_or_none(text):
    for name in environment.gpu_list(text):
        assert name.isdigit() or environment._GPU_UUID.fullmatch(name)


def test_exit_codes_of_an_epilog():
    assert job(SLURM_JOB_EXIT_CODE2="3:0").failed
    assert job(SLURM_JOB_EXIT_CODE2="0:9").failed
    assert not job(SLURM_JOB_EXIT_CODE2="0:0").failed
    assert not job(SLURM_JOB_EXIT_CODE2="huh").failed


def test_a_long_cluster_name_still_makes_a_run_name():
    from slurm_ext.request import is_run_name

    assert is_run_name(job(SLURM_CLUSTER_NAME="c" * 64, SLURM_JOB_COMMENT="").run)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.text(max_size=60)))
def test_no_text_of_a_user_breaks_the_parser_or_leaves_its_place(change):
    found = parse({**GOOD, **change})
    if found is None:
        return
    for text in (found.job_id, found.cluster, found.node, found.partition, found.run, *found.nodes):
        assert "/" not in text
        assert text == "" or (text.isprintable() and text[0].isalnum())


@given(st.text(max_size=400))
def test_a_comment_is_a_wish_or_nothing(comment):
    found = job(SLURM_JOB_COMMENT=comment)
    assert found.request is None or isinstance(found.request, environment.Request)

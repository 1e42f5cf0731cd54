"""One suite for every backend that is present: what fmslurm asks of Slurm, asked of a real one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_ext import command, request, shared
from slurm_ext.config import yaml_file
from slurm_ext.config.model import Drain, Settings
from slurm_ext.errors import LackingError, SlurmError
from slurm_ext.events import read
from slurm_ext.lab.cluster import Lab
from slurm_ext.slurm import act, connect, ledger
from slurm_ext.slurm.act import Context
from slurm_ext.slurm.cli_backend import CliBackend
from slurm_ext.slurm.hostlist import expand
from slurm_ext.slurm.model import Job
from slurm_ext.slurm.protocol import Slurm
from slurm_ext.slurm.versions import has, is_supported
from slurm_ext.verdict import Finding

FINDING = Finding("gpu.xid-79", "gpu:3", "drain", ("GPU has fallen off the bus",))


@pytest.fixture(scope="module")
def settings(lab: Lab) -> Settings:
    """Return the lab's own settings."""
    return yaml_file.load(lab.env()["FMSLURM_CONFIG"])


@pytest.fixture(scope="module", params=["cli", "pyslurm"])
def slurm(request: pytest.FixtureRequest, settings: Settings) -> Slurm:
    """Return each backend in turn; one that is not here is skipped, and pytest prints why."""
    try:
        return connect(settings._replace(site=settings.site._replace(backend=request.param)))
    except LackingError as exc:
        pytest.skip(str(exc))


@pytest.fixture(autouse=True)
def tidy(lab: Lab, settings: Settings) -> Iterator[None]:
    """Leave no job and no drained node to the next test."""
    yield
    cli = CliBackend(settings)
    mine = [job.job_id for job in cli.jobs() if job.state in ("PENDING", "RUNNING", "SUSPENDED")]
    for job_id in mine:
        lab.run(["scancel", job_id])
    for node in cli.nodes():
        if node.drained or node.state == "DOWN":
            cli.resume_node(node.name)
    wait(lambda: all(node.state == "IDLE" and not node.flags for node in cli.nodes()))


def wait(ready: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait until Slurm is as wanted; it tells nobody, so it is asked ten times a second."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "Slurm did not get there in time"
        time.sleep(0.1)


def submit(lab: Lab, *options: str, script: str = "sleep 300") -> str:
    """Submit a job and return its id."""
    result = lab.run(["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", *options, f"--wrap={script}"])
    assert result.ok, result.words()
    return result.stdout.strip()


def one(slurm: Slurm, job_id: str) -> Job:
    """Return the one job of that id."""
    (job,) = slurm.jobs([job_id])
    return job


def test_who_it_is(slurm: Slurm, lab: Lab) -> None:
    version = slurm.version()
    assert version.text == lab.slurm_version
    assert is_supported(version)
    assert slurm.ping()
    assert slurm.cluster_name() == lab.state.cluster
    assert slurm.config()["ClusterName"] == lab.state.cluster


def test_what_bounds_a_job(slurm: Slurm, lab: Lab) -> None:
    assert lab.run(["scontrol", "update", "PartitionName=gpu", "MaxTime=1-01:30:00"]).ok
    try:
        assert {each.name: each.max_time_min for each in slurm.partitions()} == {"gpu": 1530}
    finally:
        assert lab.run(["scontrol", "update", "PartitionName=gpu", "MaxTime=UNLIMITED"]).ok
    assert {each.name: each.max_time_min for each in slurm.partitions()} == {"gpu": -1}
    both = submit(lab, "--hold", f"--nodelist={lab.nodes[0]},{lab.nodes[2]}", f"--exclude={lab.nodes[1]}", "-N2")
    assert set(expand(one(slurm, both).required_nodes)) == {lab.nodes[0], lab.nodes[2]}
    assert one(slurm, submit(lab, "--hold")).required_nodes == ""
    slurm.update_job(both, {"ExcNodeList": ""})
    assert one(slurm, both).excluded_nodes == ""


HOSTILE = (
    "x JobState=FAILED\nJobId=9999 JobName=y UserId=root(0)\n   JobState=NODE_FAIL Restarts=7",
    "@fm;|,:%j%x\\ \"'$(id)`id`",
    "2\n1\n",
    "  leading and trailing  ",
    "sch\u00f6n \u2713",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_users_write_stays_in_its_field(slurm: Slurm, lab: Lab, text: str) -> None:
    first = submit(lab, "--hold", f"--job-name={text}", f"--comment={text}", "--exclude", lab.nodes[1])
    second = submit(lab, "--hold")
    jobs = {job.job_id: job for job in slurm.jobs([first, second])}
    assert set(jobs) == {first, second}
    found = jobs[first]
    assert found.comment == text
    assert found.name == text
    assert (found.state, found.restarts, found.priority, found.user_id) == ("PENDING", 0, 0, 0)
    assert found.excluded_nodes == lab.nodes[1]
    assert found.work_dir == "/tmp"
    assert jobs[second].name == "wrap"


def test_a_life(slurm: Slurm, lab: Lab) -> None:
    before = time.time()
    job_id = submit(lab, "-N2", "--exclusive", "--time=1-02:03:00", "--output=log-%j-%x.txt", "-Jlife", script="exit 3")
    wait(lambda: one(slurm, job_id).state == "FAILED" and "COMPLETING" not in one(slurm, job_id).flags)
    job = one(slurm, job_id)
    assert (job.exit_code, job.derived_exit_code, job.reason) == ("3:0", "0:0", "NonZeroExitCode")
    assert (job.node_count, job.requeue, job.restarts, job.time_limit_min) == (2, True, 0, 1563)
    assert job.batch_host in lab.nodes
    assert job.std_out == f"/tmp/log-{job_id}-life.txt"
    for moment in (job.submit_time, job.start_time, job.end_time):
        assert before - 2 <= moment <= time.time() + 2
    assert (job.array_job_id, job.array_task_id, job.het_job_id, job.dependency) == ("", "", "", "")
    assert "exit 3" in slurm.batch_script(job_id)
    Path(job.std_out).unlink(missing_ok=True)


def test_arrays_and_heterogeneous_jobs(slurm: Slurm, lab: Lab) -> None:
    array = submit(lab, "--hold", "--array=1-5%2")
    (rest,) = slurm.jobs([array])
    assert (rest.job_id, rest.array_job_id) == (array, array)
    assert rest.array_task_id.startswith("1-5")
    result = lab.run(["sbatch", "--parsable", "-D/tmp", "-H", "-N1", "--wrap=id", ":", "-H", "-N1"])
    leader = result.stdout.strip()
    components = slurm.jobs([leader])
    assert leader in {job.job_id for job in components}
    assert {job.het_job_id for job in components} == {leader}


def test_unknown_ids_and_wrong_ones(slurm: Slurm, lab: Lab) -> None:
    known = submit(lab, "--hold")
    assert slurm.jobs(["999999"]) == []
    assert [job.job_id for job in slurm.jobs([known, "999999"])] == [known]
    assert slurm.jobs([]) == []
    for text in ("", "1;2", "--help", "1 2", "all"):
        with pytest.raises(SlurmError):
            slurm.jobs([text])
    with pytest.raises(SlurmError):
        slurm.requeue("999999", hold=False)
    with pytest.raises(SlurmError):
        slurm.update_job(known, {"Comment=x NumNodes": "3"})


def test_requeue_exclude_release(slurm: Slurm, lab: Lab) -> None:
    job_id = submit(lab, "-N2", "--exclude", lab.nodes[3])
    wait(lambda: one(slurm, job_id).state == "RUNNING")
    ran_on = one(slurm, job_id).nodes
    slurm.requeue(job_id, hold=True)
    # The count goes up at once, also while the job still completes.
    assert one(slurm, job_id).restarts == 1
    wait(lambda: one(slurm, job_id).state == "PENDING" and "COMPLETING" not in one(slurm, job_id).flags)
    job = one(slurm, job_id)
    assert (job.priority, job.nodes, job.excluded_nodes) == (0, "", lab.nodes[3])
    slurm.update_job(job_id, {"ExcNodeList": ran_on, "Comment": "a b\nc=d"})
    job = one(slurm, job_id)
    assert (job.excluded_nodes, job.comment) == (ran_on, "a b\nc=d")
    slurm.release(job_id)
    slurm.update_job(job_id, {"StartTime": "now"})
    wait(lambda: one(slurm, job_id).state == "RUNNING")
    assert one(slurm, job_id).nodes != ran_on
    slurm.cancel(job_id)
    wait(lambda: one(slurm, job_id).state == "CANCELLED")


def test_hold(slurm: Slurm, lab: Lab) -> None:
    job_id = submit(lab, "--begin=now+1hour")
    slurm.hold(job_id)
    assert one(slurm, job_id).priority == 0
    slurm.release(job_id)
    assert one(slurm, job_id).priority > 0


def test_nodes(slurm: Slurm, lab: Lab) -> None:
    found = {node.name: node for node in slurm.nodes()}
    assert tuple(sorted(found)) == tuple(sorted(lab.nodes))
    node = found[lab.nodes[0]]
    assert (node.state, node.flags, node.reason, node.drained) == ("IDLE", (), "", False)
    assert node.gres.startswith("gpu:")
    assert node.partitions
    assert node.slurmd_start_time > 0
    assert [one.name for one in slurm.nodes([lab.nodes[0], "nope"])] == [lab.nodes[0]]
    assert slurm.nodes([]) == []
    for text in ("ALL", "n[0-3]", "", "a b"):
        with pytest.raises(SlurmError):
            slurm.nodes([text])
        with pytest.raises(SlurmError):
            slurm.drain(text, "x")


@pytest.mark.parametrize("reason", ["fan broken", "a State=DOWN [root@5] b", "x\ny State=DOWN"])
def test_drain_and_resume(slurm: Slurm, lab: Lab, reason: str) -> None:
    name = lab.nodes[2]
    slurm.drain(name, reason)
    (node,) = slurm.nodes([name])
    assert (node.state, node.drained, node.reason) == ("IDLE", True, reason.splitlines()[0])
    assert node.reason_user == "root"
    assert abs(node.reason_time - time.time()) < 10
    slurm.resume_node(name)
    (node,) = slurm.nodes([name])
    assert (node.drained, node.reason) == (False, "")


def test_topology(slurm: Slurm, lab: Lab) -> None:
    paths = slurm.topology()
    if paths:  # the lab may have none yet
        assert set(paths) == set(lab.nodes)
        assert len({path[0] for path in paths.values()}) == 1
        for node, path in paths.items():
            which = f"node={node}" if has(slurm.version(), "topology-by-name") else node
            told = lab.run(["scontrol", "show", "topology", which]).stdout
            assert all(f"={switch} " in told for switch in path)
            assert len(path) == len(told.splitlines())


def test_topology_units(slurm: Slurm, lab: Lab) -> None:
    units = slurm.topology_units()
    if units:  # the lab may have none yet
        assert {unit.kind for unit in units} == {"switch"}
        leaves = [unit for unit in units if unit.level == 0]
        assert sorted(node for unit in leaves for node in unit.nodes) == sorted(lab.nodes)
        assert {child for unit in units for child in unit.switches} <= {unit.name for unit in units}
    assert {node.weight for node in slurm.nodes()} == {1}
    (partition,) = slurm.partitions()
    assert (partition.default, partition.max_nodes, partition.topology) == (True, -1, "")


def test_a_dead_controller_is_an_error_in_time(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nNodeName=n0\nPartitionName=p Nodes=n0\n"
    )
    base = Settings()
    dead = CliBackend(base._replace(site=base.site._replace(slurm_conf=str(conf))), timeout_s=1.0)
    started = time.monotonic()
    assert dead.ping() is False
    for ask in (dead.jobs, dead.nodes, dead.config, dead.reconfigure):
        with pytest.raises(SlurmError):
            ask()
    assert time.monotonic() - started < 5 * 8.0
    assert dead.version().text  # asks the program, not the controller


# --- acts


@pytest.fixture
def enforcing(settings: Settings, tmp_path: Path) -> Settings:
    """Return settings that act, with a share of their own and so a ledger of their own."""
    share = tmp_path / "share"
    (share / "ledger").mkdir(mode=0o755, parents=True)
    share.chmod(0o755)
    return settings._replace(
        site=settings.site._replace(share=str(share)),
        mode=settings.mode._replace(gate="enforce", partitions=(), canary=""),
        drain=Drain(),
    )


def drain(slurm: Slurm, settings: Settings, node: str, events: Path, **more: object) -> act.Outcome:
    """Drain a node now, as a hook does."""
    return act.drain_node(slurm, settings, node, FINDING, now=time.time(), events_path=str(events), **more)  # type: ignore[arg-type]


def test_drain_is_an_event_first_and_confirmed(slurm: Slurm, lab: Lab, enforcing: Settings, tmp_path: Path) -> None:
    events, node = tmp_path / "events.jsonl", lab.nodes[0]
    outcome = drain(slurm, enforcing, node, events, job="7")
    assert (outcome.done, outcome.result) == (True, "done")
    (found,) = slurm.nodes([node])
    assert found.drained
    assert found.reason == "fmslurm: gpu.xid-79 gpu:3: GPU has fallen off the bus"
    assert [(event.event, event.phase, event.node, event.job) for event in read(str(events))] == [
        ("node.drain", "intent", node, "7"),
        ("node.drain", "done", node, "7"),
    ]
    assert len(list(read(f"{enforcing.site.share}/nodes/{node}/events.jsonl"))) == 2
    entries = ledger.entries(enforcing.site.share)
    assert entries is not None
    assert [entry.node for entry in entries] == [node]
    # Once more changes nothing and costs nothing.
    assert drain(slurm, enforcing, node, events).result == "already"
    assert len(ledger.entries(enforcing.site.share) or ()) == 1
    told = Context("gate", time.time(), str(events))
    assert act.undrain_node(slurm, enforcing, node, "twelve checks passed", told).result == "done"
    assert not slurm.nodes([node])[0].drained


def test_a_foreign_reason_is_left_alone(slurm: Slurm, lab: Lab, enforcing: Settings, tmp_path: Path) -> None:
    events, node = tmp_path / "events.jsonl", lab.nodes[0]
    slurm.drain(node, "ticket 4711")
    assert drain(slurm, enforcing, node, events).result == "foreign"
    assert (
        act.undrain_node(slurm, enforcing, node, "proof", Context("gate", time.time(), str(events))).result == "foreign"
    )
    assert slurm.nodes([node])[0].reason == "ticket 4711"
    assert ledger.entries(enforcing.site.share) == ()
    # A person's drain through us: no proof undoes it, a person does.
    other = lab.nodes[1]
    by_hand = Context("gate", time.time(), str(events), mode="enforce")
    assert act.drain_by_hand(slurm, enforcing, other, "noise (by ada)", by_hand).result == "done"
    assert act.undrain_node(slurm, enforcing, other, "proof", by_hand).result == "foreign"
    assert act.undrain_node(slurm, enforcing, other, "quiet again", by_hand, by_hand=True).result == "done"


def test_observing_writes_the_same_line_and_does_nothing(
    slurm: Slurm, lab: Lab, enforcing: Settings, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    shadow = enforcing._replace(mode=enforcing.mode._replace(gate="shadow"))
    for number, (chosen, more, result) in enumerate(
        [(shadow, {}, "observed"), (enforcing, {"dry_run": True}, "dry-run"), (enforcing, {"mode": "off"}, "observed")]
    ):
        events = tmp_path / f"{number}.jsonl"
        assert drain(slurm, chosen, node, events, **more).result == result
        lines = list(read(str(events)))
        assert [(event.event, event.dry_run) for event in lines] == ([] if "mode" in more else [("node.drain", True)])
    assert not slurm.nodes([node])[0].drained


def test_breaker_and_ledger(slurm: Slurm, lab: Lab, enforcing: Settings, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    results = [drain(slurm, enforcing, node, events).result for node in lab.nodes[:4]]
    assert results == ["done", "done", "breaker-open", "breaker-open"]
    assert [node.name for node in slurm.nodes() if node.drained] == list(lab.nodes[:2])
    suppressed = [event for event in read(str(events)) if event.decision == "suppressed"]
    assert [event.node for event in suppressed] == list(lab.nodes[2:4])
    lost = enforcing._replace(site=enforcing.site._replace(share=str(tmp_path / "gone")))
    assert drain(slurm, lost, lab.nodes[-1], events).result == "no-ledger"
    assert not slurm.nodes([lab.nodes[-1]])[0].drained


def test_no_event_no_act(slurm: Slurm, lab: Lab, enforcing: Settings) -> None:
    node = lab.nodes[0]
    # Neither trail can be written: the local one lies below a file, the share's below a folder that is a file.
    (Path(enforcing.site.share) / "nodes").write_text("")
    outcome = drain(slurm, enforcing, node, Path(enforcing.site.share) / "nodes" / "events.jsonl")
    assert (outcome.result, outcome.done) == ("failed", False)
    assert not slurm.nodes([node])[0].drained


def test_stop_job(slurm: Slurm, lab: Lab, enforcing: Settings, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    told = Context("gate", time.time(), str(events), mode="enforce")

    def stop(job_id: str, restarts: int) -> act.Outcome:
        return act.stop_job(
            slurm,
            enforcing,
            job_id,
            restarts=restarts,
            rule="burnin.no-third",
            reason="two nodes and no third",
            context=told,
        )

    # No controller: requeued plainly, and to ask twice (two hooks of a job) is as good as once.
    job_id = submit(lab, "-N1")
    wait(lambda: one(slurm, job_id).state == "RUNNING")
    assert stop(job_id, 0).result == "done"
    assert stop(job_id, 0).result == "already"
    wait(lambda: one(slurm, job_id).state == "PENDING")
    assert one(slurm, job_id).priority > 0
    assert stop(job_id, 5).result == "passed"
    # A controller that enforces: held.
    shared.beat(enforcing.site.share, shared.Heartbeat(time.time(), "enforce", 1))
    held = submit(lab, "-N1")
    wait(lambda: one(slurm, held).state == "RUNNING")
    assert stop(held, 0).result == "done"
    assert one(slurm, held).priority == 0
    wait(lambda: "COMPLETING" not in one(slurm, held).flags)
    released = act.release_job(slurm, enforcing, held, rule="r", reason="cleared", context=told, start_now=True)
    assert released.done
    assert [event.phase for event in read(str(events)) if event.job == job_id][:2] == ["intent", "done"]


def test_exclude_keeps_what_the_user_excluded(slurm: Slurm, lab: Lab, enforcing: Settings, tmp_path: Path) -> None:
    told = Context("resume", time.time(), str(tmp_path / "events.jsonl"), mode="enforce")
    job_id = submit(lab, "--hold", "--exclude", lab.nodes[3])

    def exclude(*names: str) -> act.Outcome:
        return act.exclude_nodes(slurm, enforcing, job_id, names, rule="r", reason="gpu lost", context=told)

    assert exclude(lab.nodes[0], "gone-7").result == "done"
    assert exclude(lab.nodes[0]).result == "already"
    assert set(expand(one(slurm, job_id).excluded_nodes)) == {lab.nodes[0], lab.nodes[3]}


# --- submit


def fm(lab: Lab, *arguments: str) -> tuple[int | None, str, str]:
    """Run `fmslurm submit` as a person does."""
    result = lab.run([sys.executable, "-m", "slurm_ext.cli", "submit", *arguments])
    return result.returncode, result.stdout, result.stderr


def test_submit_is_sbatch_and_the_token_arrives(lab: Lab, settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "train job.sh"
    script.write_text('#!/bin/sh\n#SBATCH --comment="my \\"own\\" words" --hold\n#FMSLURM --fm-resume=2\ntrue\n')
    code, out, err = fm(lab, "--parsable", "-D/tmp", "--fm-run", "run-1", str(script), "--fm-off", "a b")
    assert (code, err) == (0, "")
    job = CliBackend(settings).jobs([out.strip()])[0]
    assert job.comment == 'my "own" words fm:1;r=2;n=run-1'
    assert request.parse(job.comment) == request.Request(resume=2, run="run-1")
    assert job.requeue
    assert fm(lab, "--nodes=x", "--wrap=id")[0] != 0
    code, out, err = fm(lab, "--fm-print", "--fm-resume", "-N1", str(script))
    assert (code, err) == (0, "")
    assert out == f"sbatch -N1 '--comment=my \"own\" words fm:1;r=' --open-mode=append --requeue '{script}'\n"


def test_submit_reads_a_script_from_standard_input(lab: Lab, settings: Settings) -> None:
    text = "#!/bin/sh\n#SBATCH --hold -D/tmp\n#FMSLURM --fm-ckpt=/lustre/a\ntrue\n"
    argv = [sys.executable, "-m", "slurm_ext.cli", "submit", "--parsable"]
    result = command.run(argv, timeout_s=240, env=lab.env(), input_text=text)
    assert result.ok, result.words()
    job_id = result.stdout.strip()
    cli = CliBackend(settings)
    assert cli.jobs([job_id])[0].comment == "fm:1;c=/lustre/a"
    assert cli.batch_script(job_id).strip() == text.strip()


def test_submit_check_finds_what_would_fail(lab: Lab) -> None:
    code, out, _ = fm(lab, "--fm-check", "--fm-resume", "--no-requeue", "--fm-ckpt=/nope", "-o", "/no/%j", "--wrap=id")
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines()].count("problem") == 3
    assert fm(lab, "--fm-check", "--fm-ckpt=/tmp", "-D/tmp", "--wrap=id")[0] == 0

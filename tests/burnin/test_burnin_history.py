"""The history of burn-ins: lines that survive anything around them, on the disk and on the share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.burnin import history, history_line
from slurm_ext.burnin.model import BurninJob, Outcome, Past
from slurm_ext.burnin.thresholds import Key, Run, key_of
from slurm_ext.errors import UntrustedFileError
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Verdict

NOW = float(int(time.time()))
NODES = ("n0", "n1", "n2", "n3")


def line(
    node: str = "n0",
    *,
    job: str = "7",
    nodes: tuple[str, ...] = NODES,
    verdict: str = PASS,
    rule: str = "burnin.all-nodes",
    busbw: float | None = 350.0,
    days: float = 0.0,
    **measured: Any,
) -> dict[str, Any]:
    outcome = Outcome(Verdict(verdict, (), "words", rule), (), busbw, 32, 9.0, measured)
    made = BurninJob("c", job, 0, nodes, node, 8, "p5.48xlarge")
    return history_line.line_of(made, outcome, now=NOW - days * 86400, message_bytes=1 << 30)


@pytest.fixture
def share(tmp_path: Path) -> Path:
    folder = tmp_path / "share"
    (folder / "ledger").mkdir(mode=0o755, parents=True)
    return folder


def below(share: Path) -> Path:
    return share / "burnin/history"


# -- a line -----------------------------------------------------------------------------------------------------------


def test_a_line_says_who_led_and_what_it_may_be_compared_with() -> None:
    first, other = line("n0"), line("n1")
    assert (first["leads"], other["leads"]) == (True, False)
    assert history_line.run_of(first) == Run(NOW, NODES, 350.0, Key("p5.48xlarge", "3-4", 1 << 30))
    assert history_line.run_of(other) is None
    key = key_of("p5.48xlarge", 4, 1 << 20, facts={"n0": {"versions": ["2.27.7"]}}, driver="580")
    led = line("n1", leader="n1", key=key._asdict())
    run = history_line.run_of(led)
    assert run is not None
    assert run.key == Key("p5.48xlarge", "3-4", 1 << 20, "2.27.7", "", "580")


@pytest.mark.parametrize(
    ("verdict", "rule", "busbw", "counts"),
    [
        (PASS, "burnin.all-nodes", 350.0, True),
        (WARN, "burnin.no-floor", 350.0, True),
        (WARN, "burnin.transport", 350.0, True),
        (WARN, "burnin.below-fleet", 290.0, False),
        (WARN, "burnin.once", 100.0, False),
        (PASS, "burnin.survey", 350.0, False),
        (PASS, "burnin.reused", None, False),
        (FAIL, "burnin.culprit", 350.0, False),
        (UNKNOWN, "burnin.peer-absent", 350.0, False),
        (PASS, "burnin.all-nodes", float("nan"), False),
    ],
)
def test_only_runs_that_were_let_pass_by_their_speed_count(
    verdict: str, rule: str, busbw: float | None, counts: bool
) -> None:
    assert (history_line.run_of(line(verdict=verdict, rule=rule, busbw=busbw)) is not None) is counts


def test_a_line_on_the_share_is_short_and_says_the_same() -> None:
    nodes = tuple(f"ip-10-0-{i // 256:03d}-{i % 256:03d}" for i in range(1024))
    pairs = [
        {
            "kind": "pairs",
            "groups": [
                {"nodes": [a, b], "outcome": "ok", "busbw_gbs": 440.0, "evidence": []}
                for a, b in zip(nodes[shift::2], nodes[shift + 1 :: 2], strict=False)
            ],
        }
        for shift in (0, 1)
    ]
    whole = {"kind": "all", "groups": [{"nodes": ["1024 nodes"], "outcome": "slow", "busbw_gbs": 90.0, "evidence": []}]}
    made = line(
        nodes[5], nodes=nodes, rounds=[whole, *pairs], suspects=[nodes[5], nodes[6]], verdict=FAIL, rule="burnin.pair"
    )
    text = history_line.shared_text(made)
    assert len(text) < 4096
    read = history_line.parse(text)
    assert read is not None
    assert history_line.past_of(read) == history_line.past_of(made)
    groups = history_line.measured_of(read)
    assert [g.nodes for g in groups[1:]] == [(nodes[4], nodes[5]), (nodes[5], nodes[6])]
    assert groups[0].nodes == nodes, "the run of all is named by its size in the file, by the job here"
    leads = history_line.shared_text(line(nodes[0], nodes=nodes, rounds=[whole, *pairs] * 3, suspects=[nodes[5]]))
    assert len(leads) <= history_line.LINE_MAX_BYTES
    cut = history_line.parse(leads)
    assert cut is not None
    past = history_line.past_of(cut)
    assert past is not None
    assert past.suspects == (nodes[5],)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["n[0-3]", "n1", "ok"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["nodes", "groups", "kind", "rounds", "suspects", "busbw_gbs"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
NAMES = ("time", "job", "node", "nodes", "verdict", "rule", "busbw_gbs", "culprits", "measured", "key", "leads")


@given(st.dictionaries(st.sampled_from(NAMES), json_values))
def test_a_reader_survives_any_types_anywhere(data: dict[str, Any]) -> None:
    past, run = history_line.past_of(data), history_line.run_of(data)
    assert past is None or (past.time > 0 and past.nodes)
    assert run is None or 0 < run.busbw_gbs < float("inf")
    assert all(group.nodes for group in history_line.measured_of(data))
    assert isinstance(history_line.shared_text(data), bytes)


@given(st.binary(max_size=200))
def test_a_reader_survives_any_bytes(text: bytes) -> None:
    assert history_line.parse(text) is None or isinstance(history_line.parse(text), dict)


def test_a_deep_line_is_none() -> None:
    assert history_line.parse("[" * 100_000 + "]" * 100_000) is None


# -- the node's own file ----------------------------------------------------------------------------------------------


def test_lines_stay_and_a_torn_one_costs_only_itself(tmp_path: Path) -> None:
    history.append(str(tmp_path), line(job="1"))
    with (tmp_path / history.NAME).open("ab") as stream:
        stream.write(b'{"time":1,"job":"c/2-0","no')  # the machine lost power here
    history.append(str(tmp_path), line(job="3"))
    assert [one["job"] for one in history.read_local(str(tmp_path))] == ["c/1-0", "c/3-0"]


@pytest.mark.parametrize("what", ["writable", "link", "fifo"])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / history.NAME
    if what == "writable":
        path.write_text("")
        path.chmod(0o666)
    elif what == "link":
        (tmp_path / "victim").write_text("")
        path.symlink_to("victim")
    else:
        os.mkfifo(path)
    with pytest.raises((UntrustedFileError, OSError)):
        history.append(str(tmp_path), line())
    assert what != "link" or (tmp_path / "victim").read_text() == ""


_WRITER = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[1])
    from slurm_ext.burnin import history
    history.MAX_BYTES = int(sys.argv[4])
    for number in range(int(sys.argv[5])):
        history.append(sys.argv[2], {"job": f"{sys.argv[3]}-{number}", "time": 1.0, "pad": "x" * 200})
    """
)
ROOT = str(Path(__file__).resolve().parents[2])


def writer(folder: Path, name: str, max_bytes: int, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _WRITER, ROOT, str(folder), name, str(max_bytes), str(count)])


def test_two_agents_of_one_node_lose_nothing_over_a_renaming(tmp_path: Path) -> None:
    """Both write 300 lines; the file is renamed once on the way, so that both files together must hold all of them."""
    writers = [writer(tmp_path, name, 90_000, 300) for name in ("a", "b")]
    assert [one.wait(120) for one in writers] == [0, 0]
    jobs = sorted(one["job"] for one in history.read_local(str(tmp_path)))
    assert (tmp_path / (history.NAME + history.OLD)).exists(), "it was renamed"
    assert jobs == sorted(f"{name}-{number}" for name in ("a", "b") for number in range(300))


def test_files_do_not_grow_for_ever(tmp_path: Path) -> None:
    assert writer(tmp_path, "a", 4096, 200).wait(60) == 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 4096
    kept = [one["job"] for one in history.read_local(str(tmp_path))]
    assert kept[-1] == "a-199"
    assert kept == [f"a-{number}" for number in range(200 - len(kept), 200)], "the newest, in order, without a gap"


def test_an_agent_that_was_stopped_with_the_lock_holds_nobody(tmp_path: Path) -> None:
    history.append(str(tmp_path), line(job="1"))
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys,time; f=open(sys.argv[1]); fcntl.flock(f,2); print('held',flush=True); time.sleep(600)",
            str(tmp_path / history.NAME),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        os.kill(holder.pid, signal.SIGSTOP)
        history.append(str(tmp_path), line(job="2"))
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert [one["job"] for one in history.read_local(str(tmp_path))] == ["c/1-0", "c/2-0"]


_FULL = textwrap.dedent(
    """
    import resource, signal, sys
    sys.path.insert(0, sys.argv[1])
    from slurm_ext.burnin import history
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    history.append(sys.argv[2], {"job": "1", "time": 1.0, "pad": "x" * 600})
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        history.append(sys.argv[2], {"job": "2", "time": 1.0, "pad": "x" * 600})
    except OSError as exc:
        print(type(exc).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    history.append(sys.argv[2], {"job": "3", "time": 1.0})
    """
)


def test_a_line_that_found_no_room_is_an_error_and_costs_no_other(tmp_path: Path) -> None:
    """The file system takes half of a line, as a full disk does."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL, ROOT, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "OSError\n", "")
    assert [one["job"] for one in history.read_local(str(tmp_path))] == ["1", "3"]


# -- the share --------------------------------------------------------------------------------------------------------


def test_what_one_node_wrote_another_reads(share: Path) -> None:
    for node in NODES:
        assert history.append_shared(str(share), node, line(node))
    assert sorted(path.name for path in below(share).iterdir()) == [f"{node}.jsonl" for node in NODES]
    found = history.read_shared(str(share))
    assert sorted(one["node"] for one in found) == list(NODES)
    assert [one["node"] for one in history.read_shared(str(share), ["n2", "n9"])] == ["n2"]
    assert history.read_shared(str(share), since=NOW + 1) == []


def test_a_share_that_is_not_there_is_empty_and_is_not_made(tmp_path: Path) -> None:
    for missing in ("", str(tmp_path / "nowhere")):
        assert history.append_shared(missing, "n0", line()) is False
        assert history.read_shared(missing) == []
        assert history.look(missing, NODES, now=NOW, history_d=30) == history.Look()
    assert list(tmp_path.iterdir()) == []
    assert history.append_shared(str(tmp_path), "n0", line()) is False  # the empty folder that it is mounted on
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("node", ["../../etc/cron.d/x", "n0/x", "", ".hidden", "a" * 300, "n0\n"])
def test_a_name_that_is_none_writes_nothing(share: Path, node: str) -> None:
    assert history.append_shared(str(share), node, line()) is False
    assert not below(share).exists()
    assert history.read_shared(str(share), [node]) == []


@pytest.mark.parametrize("what", ["share", "folder", "file", "link", "folder-link", "fifo"])
def test_what_root_did_not_make_is_refused(share: Path, tmp_path: Path, what: str) -> None:
    assert history.append_shared(str(share), "n0", line("n0"))
    evil = json.dumps({"time": NOW, "job": "evil", "nodes": ["n1"], "verdict": "pass"}) + "\n"
    target = below(share) / "n1.jsonl"
    if what == "share":
        share.chmod(0o777)
    elif what == "folder":
        below(share).chmod(0o777)
    elif what == "file":
        target.write_text(evil)
        target.chmod(0o666)
    elif what == "link":
        (tmp_path / "evil").write_text(evil)
        target.symlink_to(tmp_path / "evil")
    elif what == "folder-link":
        below(share).rename(tmp_path / "elsewhere")
        below(share).symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(target)
    started = time.monotonic()
    assert not any(one.get("job") == "evil" for one in history.read_shared(str(share)))
    assert history.append_shared(str(share), "n1", line("n1")) is False
    assert time.monotonic() - started < 60, "nothing waits for a pipe without a writer"
    if what in ("share", "folder", "folder-link"):
        assert history.read_shared(str(share)) == []
    else:
        assert [one["node"] for one in history.read_shared(str(share))] == ["n0"]


def test_lines_after_a_torn_one_and_of_old_files_are_read(share: Path) -> None:
    history.append_shared(str(share), "n0", line("n0", job="1"))
    file = below(share) / "n0.jsonl"
    file.rename(f"{file}{history.OLD}")
    file.write_bytes(b'{"time":200000')
    history.append_shared(str(share), "n0", line("n0", job="2"))
    assert {one["job"] for one in history.read_shared(str(share))} == {"c/1-0", "c/2-0"}


def test_a_reader_takes_no_more_than_it_was_told_to(share: Path) -> None:
    for node in ("n0", "n1"):
        for number in range(60):
            assert history.append_shared(str(share), node, line(node, job=str(number)))
    found = history.read_shared(str(share), max_bytes=16 << 10)
    assert 0 < len(found) < 120
    assert {one["node"] for one in found} == {"n0", "n1"}, "each node a fair part"
    assert {one["job"] for one in found if one["node"] == "n0"} >= {"c/59-0", "c/58-0"}, "the newest"


def test_a_share_that_hangs_costs_its_time_and_no_more(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child stands still (as in a hung mount) and is left behind."""
    monkeypatch.setattr(history, "_shared_folder", lambda *_, **__: signal.pause())
    started = time.monotonic()
    assert history.append_shared(str(share), "n0", line(), timeout_s=0.3) is False
    assert history.read_shared(str(share), timeout_s=0.3) == []
    assert history.look(str(share), NODES, now=NOW, history_d=30, timeout_s=0.3) == history.Look()
    assert time.monotonic() - started < 60


def test_a_look_finds_the_fleet_and_what_happened_to_these_nodes(share: Path) -> None:
    def all_write(nodes: tuple[str, ...], **more: Any) -> None:
        for node in nodes:
            assert history.append_shared(str(share), node, line(node, nodes=nodes, **more))

    all_write(("a0", "a1", "a2"), job="1", busbw=351.0, days=3)
    all_write(("n0", "x9"), job="2", days=2, verdict=FAIL, rule="burnin.two-nodes", suspects=["n0", "x9"])
    all_write(("x9", "y1", "y2"), job="3", days=1, busbw=352.0)
    all_write(("n1", "n2"), job="4", days=40)
    found = history.look(str(share), NODES, now=NOW, history_d=30)
    assert [(run.busbw_gbs, run.nodes) for run in found.runs] == [
        (351.0, ("a0", "a1", "a2")),
        (352.0, ("x9", "y1", "y2")),
    ]
    assert [past.job for past in found.pasts] == ["c/2-0", "c/3-0"], (
        "its own failure, and that its partner passed since"
    )
    assert found.pasts[0] == Past(
        NOW - 2 * 86400, "c/2-0", ("n0", "x9"), FAIL, "burnin.two-nodes", ("n0", "x9"), (), 350.0
    )


def test_without_a_share_a_node_knows_its_own(tmp_path: Path) -> None:
    history.append(str(tmp_path), line("n0", job="1"))
    found = history.look("", ("n0",), now=NOW, history_d=30, state_dir=str(tmp_path))
    assert [run.busbw_gbs for run in found.runs] == [350.0]
    assert [past.job for past in found.pasts] == ["c/1-0"]


def test_a_leader_gets_the_newest_runs_and_a_token_for_each_larger_set(share: Path) -> None:
    big = tuple(f"b{i}" for i in range(40))
    for number in range(3):
        assert history.append_shared(str(share), "b0", line("b0", nodes=big, job=str(number), days=number))
    assert history.append_shared(str(share), "b0", line("b0", nodes=big[:39], job="9", days=9))
    runs = history.look(str(share), NODES, now=NOW, history_d=30).runs
    assert [len(run.nodes) for run in runs] == [1] * 4
    assert len({run.nodes for run in runs}) == 2
    assert [run.time for run in runs] == sorted(run.time for run in runs)


def test_a_year_of_one_key_is_cut_to_what_a_leader_has_time_for() -> None:
    key = Key("p5.48xlarge", "3-4", 1 << 30)
    runs = [Run(NOW - number, (f"n{number}",), 350.0, key) for number in range(3000)]
    kept = history._newest(runs)
    assert len(kept) == 400
    assert kept[-1] == runs[0]
    assert history._newest(runs[:5]) == runs[:5][::-1]

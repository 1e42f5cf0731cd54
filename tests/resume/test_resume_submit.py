"""What submit makes of command lines and scripts: tables, and no argument is ever lost."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_ext import request
from slurm_ext.errors import UsageError
from slurm_ext.request import Request
from slurm_ext.resume import sbatch_line
from slurm_ext.resume.sbatch_options import LONG, OPTIONAL, REQUIRED, SHORT, long_name
from slurm_ext.resume.submit import (
    COMMENT_MAX_BYTES,
    Given,
    Script,
    plan,
    read_command_line,
    read_script,
    requeue_refused,
    script_request,
    search_places,
    wishes,
)


def planned(arguments: list[str], script: str = "", environment: dict[str, str] | None = None) -> list[str]:
    """Return what would be handed to sbatch."""
    line = read_command_line(arguments)
    body = read_script(script)
    wanted = wishes(line.own, body.own, cwd="/home/ada")
    return list(plan(line, body, wanted.request, environment or {}).arguments)


@pytest.mark.parametrize(
    ("arguments", "script"),
    [
        (["job.sh"], "job.sh"),
        (["-N", "2", "job.sh", "-N", "3"], "job.sh"),
        (["-N2", "job.sh"], "job.sh"),
        (["--nodes=2", "--exclusive", "job.sh"], "job.sh"),
        (["--nodes", "2", "job.sh"], "job.sh"),
        (["-HN", "2", "job.sh"], "job.sh"),
        (["-k", "job.sh"], "job.sh"),
        (["-koff", "job.sh"], "job.sh"),
        (["--requeue", "job.sh"], "job.sh"),
        (["--nice", "job.sh"], "job.sh"),
        (["--comm", "x", "job.sh"], "job.sh"),
        (["--new-option=3", "job.sh"], "job.sh"),
        (["--", "-x.sh", "--fm-off"], "-x.sh"),
        (["--wrap", "job.sh"], ""),
        (["--comment", "--", "job.sh"], "job.sh"),
        (["--comment", ":", "job.sh"], "job.sh"),
        (["--dependency=singleton", "-a", "1-5%2", "a b.sh"], "a b.sh"),
        ([], ""),
    ],
)
def test_finds_the_script(arguments: list[str], script: str) -> None:
    line = read_command_line(arguments)
    assert (line.script, line.unknown, list(line.rest)) == (script, "", arguments)


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        (["--new-option", "3", "job.sh"], "--new-option"),
        (["-Z", "job.sh"], "-Z"),
        (["-HZ", "job.sh"], "-HZ"),
        (["--spread", "job.sh"], "--spread"),  # the beginning of two options
        (["-N"], "-N"),
        (["--nodes"], "--nodes"),
    ],
)
def test_an_unknown_option_stops_the_reading(arguments: list[str], unknown: str) -> None:
    line = read_command_line(["-n4", *arguments])
    assert (line.unknown, line.script, line.insert_at) == (unknown, "", 1)
    made = planned(["--fm-resume", "-n4", *arguments])
    assert made == ["-n4", "--comment=fm:1;r=", "--open-mode=append", "--requeue", *arguments]


def test_own_options_leave_and_the_rest_stays() -> None:
    arguments = ["--fm-resume=3", "-N2", "--fm-ckpt", "runs/a", "--fm-run=a1", "job.sh", "--fm-off", "x"]
    assert planned(arguments) == [
        "-N2",
        "--comment=fm:1;r=3;n=a1;c=/home/ada/runs/a",
        "--open-mode=append",
        "--requeue",
        "job.sh",
        "--fm-off",
        "x",
    ]


def test_without_wishes_nothing_changes() -> None:
    for arguments in (["-N2", "job.sh"], ["-N1", ":", "-N2", "job.sh"], ["--help"], []):
        assert planned(arguments) == arguments
    assert planned(["--fm-resume", "--version"]) == ["--version"]


SCRIPT = """#!/bin/bash
#SBATCH --comment="from the script" -N2 # --comment=not-this
#SBATCH --open-mode=truncate
#FMSLURM --fm-resume=2 --fm-ckpt "/lustre/my runs"

# a comment
#SBATCH --no-requeue
echo hello
#SBATCH --comment=too-late
#FMSLURM --fm-off
"""


def test_precedence() -> None:
    asked = "fm:1;r=2;c=/lustre/my%20runs"
    # The script's own words are kept, and its open mode and --no-requeue count as said.
    assert planned(["job.sh"], SCRIPT) == [f"--comment=from the script {asked}", "job.sh"]
    # The command line's comment wins over the script's, its options of ours over the script's.
    assert planned(["--comment", "mine", "--comment=last", "--fm-resume=9", "job.sh"], SCRIPT)[-2:] == [
        "--comment=last fm:1;r=9;c=/lustre/my%20runs",
        "job.sh",
    ]
    # SBATCH_REQUEUE stands over the script's --no-requeue; SBATCH_OPEN_MODE counts as said.
    line, script = read_command_line(["job.sh"]), read_script(SCRIPT)
    assert requeue_refused(line, script, {}) is True
    assert requeue_refused(line, script, {"SBATCH_REQUEUE": ""}) is False
    assert requeue_refused(line, script, {"SBATCH_REQUEUE": "no"}) is True
    assert requeue_refused(read_command_line(["--no-requeue", "x"]), Script(), {"SBATCH_REQUEUE": "1"}) is True
    assert requeue_refused(read_command_line(["x"]), Script(), {}) is None
    assert planned(["--fm-resume", "x"], "", {"SBATCH_OPEN_MODE": "append", "SBATCH_NO_REQUEUE": "yes"}) == [
        "--comment=fm:1;r=",
        "x",
    ]


def test_a_comment_that_has_a_token_already_gets_the_new_one() -> None:
    assert planned(["--comment=mine fm:1;r=2", "--fm-resume=3", "x"])[1] == "--comment=mine fm:1;r=3"


def test_off_says_so_and_adds_nothing_else() -> None:
    assert planned(["--fm-off", "--fm-resume=3", "job.sh"], SCRIPT) == ["--comment=from the script fm:1;o=1", "job.sh"]


def test_wrap_and_array() -> None:
    assert planned(["-a1-3", "--wrap", "srun x", "--fm-resume"]) == [
        "-a1-3",
        "--wrap",
        "srun x",
        "--comment=fm:1;r=",
        "--open-mode=append",
        "--requeue",
    ]


@pytest.mark.parametrize(
    "arguments", [["--fm-resume", "-N1", ":", "-N2", "job.sh"], ["-N1", "--fm-run=x", ":", "job.sh"]]
)
def test_heterogeneous_jobs_are_refused_in_clear_words(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="heterogeneous"):
        planned(arguments)
    with pytest.raises(UsageError, match="heterogeneous"):
        planned(["--fm-resume", "job.sh"], "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n")
    assert planned(["--fm-off", "-N1", ":", "job.sh"]) == ["-N1", ":", "job.sh"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fm-resme"], "Did you mean --fm-resume"),
        (["--fm-resume=x"], "no number"),
        (["--fm-resume=-1"], "no number"),
        (["--fm-resume=1000"], "no number"),
        (["--fm-run", "a b"], "no run name"),
        (["--fm-run", "../x"], "no run name"),
        (["--fm-run"], "needs a value"),
        (["--fm-off=1"], "takes no value"),
        (["--fm-ckpt="], "no folder"),
        (["--fm-ckpt=/a\nb"], "no folder"),
        (["--fm-burnin=maybe"], "strict, normal or skip"),
        (["--comment=" + "x" * COMMENT_MAX_BYTES, "--fm-resume"], "Shorten --comment"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned([*arguments])
    assert said in str(caught.value)


def test_wrong_lines_in_the_script_name_the_line() -> None:
    with pytest.raises(UsageError, match=r"line 2 of the script.*no option --fm-x"):
        read_script("#!/bin/sh\n#FMSLURM --fm-x\n")
    with pytest.raises(UsageError, match=r"line 2 of the script.*not 'resume'"):
        read_script("#!/bin/sh\n#FMSLURM resume\n")
    # What sbatch will refuse itself is left to it.
    assert read_script("#SBATCH --comment='open\n#SBATCH --hold\n").given == (Given("hold"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (' --comment="a b\\"c" -N1 # x', ['--comment=a b"c', "-N1"]),
        (" -J a#b --comment=x", ["-J", "a"]),
        (" x\\ y 'it''s' \"\"", ["x y", "its", ""]),
        ("   ", []),
        (" 'open", None),
    ],
)
def test_split_directive(text: str, words: list[str] | None) -> None:
    assert sbatch_line.split_directive(text) == words


def test_script_request_never_raises() -> None:
    assert script_request(SCRIPT) == Request(resume=2, checkpoint_dir="/lustre/my runs")
    assert script_request("#!/bin/sh\necho\n") is None
    assert script_request("#FMSLURM --fm-nonsense\n") is None


SBATCH_WORDS = ["-N", "2", "-N2", "--nodes", "--comment", "--exclusive", "-H", "--wrap", "--requeue", "-k"]
ODD_WORDS = [":", "--", "job.sh", "-", "--new", "--new=1", "-Zx", "x y", ""]
OUR_WORDS = ["--fm-resume", "--fm-resume=2", "--fm-run", "r1", "--fm-ckpt=/a"]
WORD = st.sampled_from([*SBATCH_WORDS, *ODD_WORDS, *OUR_WORDS]) | st.text(max_size=8)


@given(st.lists(WORD, max_size=12))
@example(["--fm-run", "--nodes"])
def test_no_argument_is_lost(arguments: list[str]) -> None:
    try:
        line = read_command_line(arguments)
    except UsageError:
        return
    rest = iter(line.rest)
    left = iter(arguments)
    own = 0
    # What remains is a subsequence, in order; what is missing is what stands in `own`.
    for word in rest:
        while next(left) != word:
            own += 1
    own += sum(1 for _ in left)
    assert own == sum(2 if sbatch_line.OWN[one.name] == REQUIRED and _apart(arguments, one) else 1 for one in line.own)
    try:
        made = plan(line, Script(), wishes(line.own, (), cwd="/").request, {})
    except UsageError:
        return
    cut = line.insert_at
    assert made.arguments == (*line.rest[:cut], *made.added, *line.rest[cut:])


def _apart(arguments: list[str], one: Given) -> bool:
    return f"--{one.name}={one.value}" not in arguments


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=80))
def test_the_users_comment_stays(comment: str) -> None:
    (made, *_) = planned([f"--comment={comment}", "--fm-resume=7", "x"])[1:]
    text = made.removeprefix("--comment=")
    assert request.parse(text) == Request(resume=7)
    assert text.startswith(request.strip(comment))


@given(st.text(max_size=300))
def test_any_script_is_read(text: str) -> None:
    try:
        read_script(text)
    except UsageError:
        return


def test_where_sbatch_looks_for_the_script() -> None:
    assert search_places("/a/x", cwd="/w", chdir="/d", path="/bin") == ["/a/x"]
    assert search_places("x", cwd="/w", chdir=None, path="/bin:/sbin") == ["/w/x", "/bin/x", "/sbin/x"]
    assert search_places("x", cwd="/w", chdir="d", path="") == ["/w/d/x"]
    assert search_places("./x", cwd="/w", chdir=None, path="/bin") == ["/w/./x"]


def test_long_names() -> None:
    assert long_name("comment") == "comment"
    assert long_name("comm") == "comment"
    assert long_name("container") == "container"
    assert long_name("spread") is None
    assert long_name("") is None
    assert set(SHORT.values()) <= set(LONG)


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no sbatch here")
def test_the_installed_sbatch_agrees_with_the_table(tmp_path: object) -> None:
    """Ask sbatch of each option whether it takes a value; an option it does not have is for other versions."""
    conf = tmp_path / "slurm.conf"  # type: ignore[operator]
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n0\nPartitionName=p Nodes=n0\n")
    wrong = []
    for name, kind in LONG.items():
        # --fm-nope ends it at once, before anything is asked of a controller.
        answers = [
            subprocess.run(
                ["sbatch", *words],
                env={"SLURM_CONF": str(conf)},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            ).stderr
            for words in ([f"--{name}=zz", "--fm-nope"], [f"--{name}"])
            if words[-1] == "--fm-nope" or kind == REQUIRED
        ]
        if f"unrecognized option '--{name}" in answers[0]:
            continue
        takes_none = "allow an argument" in answers[0]
        must = len(answers) > 1 and "requires an argument" in answers[1]
        if takes_none != (kind not in (REQUIRED, OPTIONAL)) or must != (kind == REQUIRED):
            wrong.append((name, kind, answers))
    # Two options changed between versions; both are read the same way without `=`.
    assert [row for row in wrong if row[0] not in ("requeue", "get-user-env")] == []

"""What --fm-check finds: a table."""

from __future__ import annotations

import pytest

from slurm_ext.request import Request
from slurm_ext.resume.submit_check import Facts, Folder, problems

GOOD = Folder("/ok", True, True, True)
FINE = Facts(Request(resume=-1, checkpoint_dir="/ok"), GOOD, GOOD, GOOD)


def test_nothing_to_say() -> None:
    assert problems(FINE) == []


@pytest.mark.parametrize(
    ("facts", "grave", "said"),
    [
        (FINE._replace(checkpoint=Folder("/no", False)), True, "/no does not exist"),
        (FINE._replace(checkpoint=Folder("/f", True, False, True)), True, "is no folder"),
        (FINE._replace(output=Folder("/ro", True, True, False)), True, "may not write into /ro"),
        (FINE._replace(work_dir=Folder("/no", False)), True, "--chdir"),
        (FINE._replace(script="x.sh", script_readable=False), True, "x.sh cannot be read"),
        (FINE._replace(requeue_refused=True), True, "--no-requeue"),
        (FINE._replace(request=Request(resume=3)), False, "no --fm-ckpt"),
        (FINE._replace(truncates=True), False, "truncate"),
        (FINE._replace(resume_mode="shadow"), False, "resume room is shadow"),
        (FINE._replace(request=Request(burnin="skip")), True, "skip is not allowed"),
    ],
)
def test_each_problem_is_named(facts: Facts, grave: bool, said: str) -> None:
    (found,) = problems(facts)
    assert found.grave == grave
    assert said in found.text
    assert found.advice


def test_the_grave_ones_come_first() -> None:
    found = problems(FINE._replace(truncates=True, requeue_refused=True))
    assert [problem.grave for problem in found] == [True, False]

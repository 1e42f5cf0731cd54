"""What `fmslurm submit --fm-check` says before a job waits for hours to fail at its start. Pure: facts in, problems out."""

from __future__ import annotations

from typing import NamedTuple

from slurm_ext.request import Request

#: What stands for nothing in sbatch's output pattern: a job, an array, a node name, ... (sbatch(1), filename pattern).
DEFAULT_OUTPUT = "slurm-%j.out"


class Folder(NamedTuple):
    """What is at a path, as the submitting user sees it here."""

    path: str
    exists: bool
    is_folder: bool = False
    writable: bool = False


class Facts(NamedTuple):
    """What the check looks at. Folders are None where there is none to look at."""

    request: Request
    checkpoint: Folder | None
    output: Folder | None
    work_dir: Folder | None
    script: str = ""
    script_readable: bool = True
    requeue_refused: bool = False
    truncates: bool = False
    resume_mode: str = "enforce"
    burnin_allowed: tuple[str, ...] = ("normal", "strict")


class Problem(NamedTuple):
    """One line for the user: `grave` ones make the check fail, the others are advice."""

    grave: bool
    text: str
    advice: str


def problems(facts: Facts) -> list[Problem]:
    """Return what will go wrong, gravest first."""
    found: list[Problem] = []
    asked = facts.request
    if not facts.script_readable:
        found.append(Problem(True, f"the script {facts.script} cannot be read", "Check its path and mode"))
    for folder, what in ((facts.work_dir, "--chdir"), (facts.output, "the folder of the job's log (--output)")):
        if folder is not None:
            found += _folder(folder, what)
    if facts.checkpoint is not None:
        found += _folder(facts.checkpoint, "--fm-ckpt")
    if asked.resume is not None:
        if facts.requeue_refused:
            found.append(
                Problem(
                    True, "--no-requeue forbids what --fm-resume asks for", "Take --no-requeue out, or use --requeue"
                )
            )
        if asked.checkpoint_dir == "":
            found.append(
                Problem(
                    False,
                    "no --fm-ckpt: the job will be resumed, but nothing finds its checkpoints",
                    "Add --fm-ckpt DIR",
                )
            )
        if facts.truncates:
            found.append(
                Problem(False, "--open-mode=truncate: each attempt overwrites the log before", "Use --open-mode=append")
            )
        if facts.resume_mode != "enforce":
            found.append(
                Problem(
                    False,
                    f"this site's resume room is {facts.resume_mode}: nothing will requeue the job",
                    "Ask your administrator: fmslurm mode set resume enforce",
                )
            )
    if asked.burnin and asked.burnin not in facts.burnin_allowed:
        allowed = ", ".join(facts.burnin_allowed) or "nothing"
        found.append(
            Problem(True, f"--fm-burnin {asked.burnin} is not allowed on this site", f"Users may choose {allowed}")
        )
    return sorted(found, key=lambda problem: not problem.grave)


def _folder(folder: Folder, what: str) -> list[Problem]:
    if not folder.exists:
        return [Problem(True, f"{what}: {folder.path} does not exist", f"mkdir -p {folder.path}")]
    if not folder.is_folder:
        return [Problem(True, f"{what}: {folder.path} is no folder", "Name a folder")]
    if not folder.writable:
        return [Problem(True, f"{what}: you may not write into {folder.path}", "Choose another, or change its mode")]
    return []

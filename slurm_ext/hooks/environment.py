"""The job as Slurm puts it into a hook's environment. Users wrote parts of it: nothing here is trusted until it has the
form it must have, and nothing of it ever reaches a shell, a path or a format string unchecked. Pure.

Names seen on 22.05.8, 24.11.5 and 26.05.5; the node list is SLURM_NODELIST on the first and SLURM_JOB_NODELIST later.
"""

import re
from collections.abc import Mapping

from slurm_ext import request as requests
from slurm_ext.patterns import pattern
from slurm_ext.request import Request
from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.typed import NamedTuple

_JOB_ID = pattern(r"[0-9]{1,12}")
_NAME = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_CLUSTER = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_EXIT = pattern(r"(\d{1,3}):(\d{1,3})", needs=":")
_GPU_RANGE = pattern(r"([0-9]{1,4})-([0-9]{1,4})")
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_GPU_UUID = pattern(rf"GPU-{_UUID}|MIG-(?:{_UUID}|GPU-{_UUID}/\d{{1,3}}/\d{{1,3}})")

#: Where a job's GPUs stand, best first. Slurm documents all three for prolog and epilog (prolog_epilog.html); the text of
#: many GPUs with UUIDs is longer than any other value of ours.
_GPU_NAMES = ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_GPU_TEXT = 16384
_NO_GPUS = ("", "NoDevFiles", "-1", "none", "void")

#: slurmd passes a comment of any length; a token of ours lies at its end.
COMMENT_TAIL = 8192


class HookJob(NamedTuple):
    """One attempt of a job on this node. Times are seconds since the epoch, None where this Slurm does not tell."""

    job_id: str
    cluster: str
    restarts: int
    node: str
    nodes: tuple[str, ...] = ()  # in Slurm's order; empty where the list was no hostlist
    partition: str = ""
    uid: int = -1
    gid: int = -1
    gpus: int = 0  # of this node that belong to the job; parts of a GPU (MIG) are none
    batch: bool = False
    het: str = ""  # the id that a stop of a heterogeneous job goes to
    request: Request | None = None
    start_s: float | None = None
    end_s: float | None = None  # when the time limit ends it
    exit_code: int = 0
    exit_signal: int = 0
    problems: tuple[str, ...] = ()
    gpu_ids: tuple[str, ...] = ()  # of this node: indexes, or NVIDIA's UUIDs of GPUs and MIG devices
    gpus_unclear: bool = False  # a name of its GPUs has a form that is not known

    @property
    def attempt(self) -> str:
        """Return the text that names this attempt everywhere."""
        return f"{self.cluster}/{self.job_id}-{self.restarts}"

    @property
    def run(self) -> str:
        """Return the run's id: the user's own name for it, else cluster and job id, the same over requeues."""
        if self.request is not None and self.request.run:
            return self.request.run
        return f"{self.cluster[: 63 - len(self.job_id)]}-{self.job_id}"

    @property
    def stop_id(self) -> str:
        """Return the job id that a requeue takes: Slurm refuses that of a heterogeneous job's component."""
        return self.het or self.job_id

    @property
    def failed(self) -> bool:
        """Say whether the job ended with an exit code or a signal."""
        return bool(self.exit_code or self.exit_signal)


def parse(environment: Mapping[str, str], *, cluster: str = "", hostname: str = "") -> HookJob | None:
    """Return the job in a hook's environment, or None where there is none (no job id in its form, no node name).

    `cluster` and `hostname` stand in where Slurm does not say. What has another form than it must have is left at its
    default and named in `problems`.
    """
    problems: list[str] = []

    def word(form: re.Pattern[str], *names: str) -> str:
        for name in names:
            value = environment.get(name, "")
            if value and form.fullmatch(value):
                return value
            if value:
                problems.append(f"{name} has not the form it must have")
        return ""

    def number(*names: str) -> int | None:
        found = word(_JOB_ID, *names)
        return int(found) if found else None

    job_id = word(_JOB_ID, "SLURM_JOB_ID", "SLURM_JOBID")
    node = word(_NAME, "SLURMD_NODENAME") or (hostname if _NAME.fullmatch(hostname) else "")
    if not job_id or not node:
        return None
    uid, gid = number("SLURM_JOB_UID", "SLURM_UID"), number("SLURM_JOB_GID")
    code = _EXIT.fullmatch(environment.get("SLURM_JOB_EXIT_CODE2", ""))
    try:
        nodes = tuple(expand(environment.get("SLURM_JOB_NODELIST", "") or environment.get("SLURM_NODELIST", "")))
    except HostlistError as exc:
        nodes = ()
        problems.append(f"the node list is no hostlist: {exc}")
    before = len(problems)
    gpu_ids = _gpus(environment, problems)
    gpus_unclear = len(problems) > before
    return HookJob(
        job_id=job_id,
        cluster=word(_CLUSTER, "SLURM_CLUSTER_NAME") or (cluster if _CLUSTER.fullmatch(cluster) else "cluster"),
        restarts=number("SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT") or 0,
        node=node,
        nodes=nodes,
        partition=word(_NAME, "SLURM_JOB_PARTITION"),
        uid=-1 if uid is None else uid,
        gid=-1 if gid is None else gid,
        gpus=sum(not name.startswith("MIG-") for name in gpu_ids),
        # Only a batch job has an output file before it starts: salloc and srun set none (tried on 22.05.8).
        batch=bool(environment.get("SLURM_JOB_STDOUT", "")),
        het=word(_JOB_ID, "SLURM_HET_JOB_ID"),
        request=_request(environment),
        start_s=_time(number("SLURM_JOB_START_TIME")),
        end_s=_time(number("SLURM_JOB_END_TIME")),
        exit_code=int(code[1]) if code else 0,
        exit_signal=int(code[2]) if code else 0,
        problems=tuple(problems),
        gpu_ids=gpu_ids,
        gpus_unclear=gpus_unclear,
    )


def _time(seconds: int | None) -> float | None:
    return float(seconds) if seconds else None


def _request(environment: Mapping[str, str]) -> Request | None:
    for name in ("SLURM_JOB_EXTRA", "SLURM_JOB_COMMENT"):
        found = requests.parse(environment.get(name, "")[-COMMENT_TAIL:])
        if found is not None:
            return found
    return None


def _gpus(environment: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    """Return the job's GPUs by the first name that says any in a known form; MIG devices are told by CUDA's name alone."""
    found: tuple[str, ...] = ()
    for name in _GPU_NAMES:
        text = environment.get(name, "")
        if text in _NO_GPUS or (found and not (name == "CUDA_VISIBLE_DEVICES" and text.startswith("MIG-"))):
            continue
        listed = gpu_list(text)
        if listed:
            found = listed
        else:
            problems.append(f"{name} is no list of GPUs")
    return found


def gpu_list(text: str) -> tuple[str, ...]:
    """Return the GPUs in `0,1,2`, `0-7` or a list of UUIDs, each once; none where any part of the text has another form."""
    names: dict[str, None] = {}
    if len(text) > _GPU_TEXT:
        return ()
    for part in (part.strip() for part in text.split(",")):
        if part.isascii() and part.isdigit() and len(part) <= 4:
            names[str(int(part))] = None
        elif found := _GPU_RANGE.fullmatch(part):
            first, last = int(found[1]), int(found[2])
            if last < first or last - first >= 1024:
                return ()
            names |= dict.fromkeys(str(number) for number in range(first, last + 1))
        elif _GPU_UUID.fullmatch(part):
            names[part] = None
        else:
            return ()
    return tuple(names) if len(names) <= 1024 else ()

"""Slurm's text answers to jobs and nodes, whatever users wrote into them. Pure, standard library only.

Job names, comments and paths are hostile: they hold newlines and `JobState=` look-alikes, and `scontrol show job` prints
them unquoted. So jobs are asked for with `squeue -O`, each field ended by a separator that is random in every call: no
user can know it beforehand, and what stands between two separators is one field, byte for byte.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from slurm_ext.slurm.hostlist import HostlistError, expand
from slurm_ext.slurm.model import Job, Node, Partition
from slurm_ext.slurm.states import NODE_MARKS

#: Fields of `squeue -O`, in all versions from 22.05 to 26.05. The order is ours.
JOB_FIELDS = (
    "JobID",
    "State",
    "Reason",
    "UserID",
    "GroupID",
    "UserName",
    "Partition",
    "NodeList",
    "BatchHost",
    "NumNodes",
    "RestartCnt",
    "Requeue",
    "exit_code",
    "DerivedEC",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "Dependency",
    "PriorityLong",
    "Name",
    "Comment",
    "WorkDir",
    "STDOUT",
)

#: `State` prints one word: a flag hides the base state. flag -> the base state it implies ("" where it implies none).
JOB_FLAGS: Mapping[str, str] = {
    "COMPLETING": "",
    "CONFIGURING": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "RUNNING",
    "STAGE_OUT": "",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "EXPEDITING": "PENDING",
    "POWER_UP_NODE": "RUNNING",
    "REVOKED": "",
}

#: What the reason of a completing job says of the state it will end in.
_ENDS_IN: Mapping[str, str] = {
    "NonZeroExitCode": "FAILED",
    "TimeLimit": "TIMEOUT",
    "OutOfMemory": "OUT_OF_MEMORY",
    "NodeDown": "NODE_FAIL",
    "JobLaunchFailure": "FAILED",
    "BootFail": "BOOT_FAIL",
    "job requeued in held state": "PENDING",
    "launch failed requeued held": "PENDING",
}

_NOTHING = ("", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "NOT_SET", "INVALID", "UNINITIALIZED")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,32}")
_INSTANCE_TYPE = re.compile(r"[a-z0-9-]{2,24}\.[a-z0-9-]{2,24}")
_PLACEHOLDER = re.compile(r"%(\d*)([%AaJjNnstux])")


class AnswerError(ValueError):
    """The answer has another shape than asked for: cut off, or of a version that we do not know."""


def job_format(separator: str) -> str:
    """Return the argument of `squeue -O` for JOB_FIELDS; the separator starts with no digit, dot or colon and has no comma."""
    return ",".join(f"{field}:{separator}" for field in JOB_FIELDS)


def records(text: str, separator: str, width: int) -> list[list[str]]:
    """Return the records of an answer whose every field ends in the separator. Raise AnswerError where one is cut off."""
    pieces = text.split(separator)
    if len(pieces) % width != 1 or pieces[-1].strip():
        raise AnswerError(f"expected {width} fields in each record, got {len(pieces) - 1} in all")
    rows = [pieces[start : start + width] for start in range(0, len(pieces) - 1, width)]
    for row in rows:
        row[0] = row[0].lstrip("\n")  # the end of the line before
    return rows


def jobs(text: str, separator: str) -> list[Job]:
    """Return the jobs in an answer to `squeue -O job_format(separator)` with SLURM_TIME_FORMAT=%s. Raise AnswerError."""
    return [_job(dict(zip(JOB_FIELDS, row, strict=True))) for row in records(text, separator, len(JOB_FIELDS))]


def _job(raw: Mapping[str, str]) -> Job:
    word, reason = raw["State"].strip(), raw["Reason"].strip()
    exit_code, derived = exit_pair(raw["exit_code"]), exit_pair(raw["DerivedEC"])
    state, flags = job_state(word, reason, exit_code)
    job = Job(
        job_id=raw["JobID"].strip(),
        name=raw["Name"],
        user_id=integer(raw["UserID"], -1),
        group_id=integer(raw["GroupID"], -1),
        partition=raw["Partition"].strip(),
        state=state,
        flags=flags,
        reason="" if reason in _NOTHING else reason,
        nodes=something(raw["NodeList"]),
        batch_host=something(raw["BatchHost"]),
        node_count=integer(raw["NumNodes"].split("-")[0], 0),
        comment="" if raw["Comment"] == "(null)" else raw["Comment"],
        restarts=integer(raw["RestartCnt"], 0),
        # By a word that nobody knows it may: what is asked for then is refused, and nothing is taken for final.
        requeue=raw["Requeue"].strip().lower() not in ("0", "no", "false"),
        exit_code=exit_code,
        derived_exit_code=derived,
        submit_time=epoch(raw["SubmitTime"]),
        eligible_time=epoch(raw["EligibleTime"]),
        start_time=epoch(raw["StartTime"]),
        end_time=epoch(raw["EndTime"]),
        time_limit_min=minutes(raw["TimeLimit"]),
        work_dir="" if raw["WorkDir"] == "(null)" else raw["WorkDir"],
        # JobID is the array's own id for its not yet split rest, and ArrayJobID equals JobID where there is no array.
        array_job_id=raw["ArrayJobID"].strip() if something(raw["ArrayTaskID"]) else "",
        array_task_id=something(raw["ArrayTaskID"]),
        het_job_id=something(raw["HetJobID"]),
        dependency=something(raw["Dependency"]),
        priority=integer(raw["PriorityLong"], 0),
    )
    pattern = "" if raw["STDOUT"] == "(null)" else raw["STDOUT"]
    return job._replace(std_out=output_path(pattern, job, raw["UserName"].strip()))


def job_state(word: str, reason: str, exit_code: str) -> tuple[str, tuple[str, ...]]:
    """Return (base state, flags) for the one word that text answers give.

    Where a job is completing and neither reason nor exit code tells what it will be, the state is COMPLETING as well.
    A requeue raises the restart count at once, while the job still completes: compare that with the attempt's own.
    """
    if word not in JOB_FLAGS:
        return word, ()
    base = JOB_FLAGS[word]
    if word == "COMPLETING":
        base = _ENDS_IN.get(reason, "FAILED" if exit_code.split(":")[0] not in ("", "0") else "")
    return base or word, (word,)


def exit_pair(text: str) -> str:
    """Return `code:signal`, from that or from the raw wait status that versions before 23.02 print."""
    text = text.strip()
    if re.fullmatch(r"\d+:\d+", text):
        return text
    status = integer(text, 0)
    return f"{status >> 8 & 0xFF}:{status & 0x7F}"


def integer(text: str, otherwise: int) -> int:
    """Return the number in text, or `otherwise` where it is none."""
    text = text.strip()
    return int(text) if re.fullmatch(r"\d{1,20}", text) else otherwise


def something(text: str) -> str:
    """Return the text without blanks around it, empty where Slurm has a word for nothing."""
    text = text.strip()
    return "" if text in _NOTHING else text


def epoch(text: str) -> int:
    """Return seconds since the epoch, 0 where Slurm has no time."""
    return integer(text, 0)


def minutes(text: str) -> int:
    """Return `days-hours:minutes:seconds` in whole minutes, -1 for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if not found:
        return -1
    days, hours, mins, _ = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + mins


def output_path(pattern: str, job: Job, user_name: str = "") -> str:
    """Return the path of a job's StdOut: placeholders of sbatch(1) filled in, absolute; empty where it cannot be known.

    Versions differ: 22.05 and 24.11 give an absolute pattern, 26.05 gives it as the user wrote it. With `\\` in it
    placeholders are not filled in (sbatch(1)).
    """
    if not pattern or not job.work_dir:
        return ""
    values = {
        "%": "%",
        "A": job.array_job_id or job.job_id,
        "a": job.array_task_id or "4294967294",
        "J": job.job_id,
        "j": job.job_id,
        "N": job.batch_host,
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": user_name,
        "x": job.name,
    }

    def fill(match: re.Match[str]) -> str:
        value = values[match.group(2)]
        return value.zfill(min(int(match.group(1)), 10)) if match.group(1) and value.isdigit() else value

    path = pattern.replace("\\", "") if "\\" in pattern else _PLACEHOLDER.sub(fill, pattern)
    return os.path.join(job.work_dir, path)


def nodes(text: str) -> list[Node]:
    """Return the nodes in an answer to `scontrol -o show node` with SLURM_TIME_FORMAT=%s.

    Only operators can set what is free text here. It stands behind the fields that matter, and the first occurrence of
    a field wins; lines that start no record belong to somebody's comment.
    """
    found: dict[str, Node] = {}
    for line in text.splitlines():
        if line.startswith("NodeName=") and " State=" in line and (node := _node(line)).name not in found:
            found[node.name] = node
    return list(found.values())


def _node(line: str) -> Node:
    raw: dict[str, str] = {}
    for match in re.finditer(r"(?:^|\s)([A-Z][A-Za-z]+)=(\S*)", line):
        raw.setdefault(match.group(1), match.group(2))
    state, flags = node_state(raw.get("State", ""))
    reason, user, since = node_reason(line)
    if not (
        {"DRAIN", "FAIL", "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT"} & {*flags}
        or state in ("DOWN", "FAIL", "ERROR")
    ):
        reason, user, since = (
            "",
            "",
            0,
        )  # 24.11 shows the last one on nodes that are in use again; nothing can clear it there
    return Node(
        name=raw["NodeName"],
        state=state,
        flags=flags,
        reason=reason,
        reason_user=user,
        reason_time=since,
        address=something(raw.get("NodeAddr", "")),
        hostname=something(raw.get("NodeHostName", "")),
        partitions=tuple(part for part in something(raw.get("Partitions", "")).split(",") if part),
        gres=something(raw.get("Gres", "")),
        cpus=integer(raw.get("CPUTot", ""), 0),
        boot_time=epoch(raw.get("BootTime", "")),
        slurmd_start_time=epoch(raw.get("SlurmdStartTime", "")),
        # Behind free text of operators: only what looks like EC2's counts.
        instance_id=instance if _INSTANCE.fullmatch(instance := raw.get("InstanceId", "")) else "",
        instance_type=kind if _INSTANCE_TYPE.fullmatch(kind := raw.get("InstanceType", "")) else "",
        weight=integer(raw.get("Weight", ""), 1),
    )


def node_state(text: str) -> tuple[str, tuple[str, ...]]:
    """Return (base state, flags) of `IDLE+DRAIN+NOT_RESPONDING` or the older `IDLE*+DRAIN`."""
    words, flags = [], []
    for word in text.upper().split("+"):
        bare = word.rstrip("".join(NODE_MARKS))
        flags += [NODE_MARKS[mark] for mark in word[len(bare) :]]
        words.append(bare)
    # DRAINED and DRAINING are sinfo's words for IDLE+DRAIN and ALLOCATED+DRAIN; some versions print them here, too.
    base = {"DRAINED": "IDLE", "DRAINING": "ALLOCATED"}.get(words[0], words[0])
    drain = ["DRAIN"] if base != words[0] and "DRAIN" not in words else []
    return base, tuple(dict.fromkeys([*words[1:], *drain, *flags]))


def node_reason(line: str) -> tuple[str, str, int]:
    """Return (reason, who set it, when in epoch seconds) of a node's line; empty where there is none."""
    found = re.search(r" (Reason|Comment|Extra)=", line)
    if found is None or found.group(1) != "Reason":  # it comes before the others, and they may hold look-alikes
        return "", "", 0
    rest = line[found.end() :]
    stamp = re.search(r" \[([^\[\]@\s]+)@(\d{9,11}|Unknown)\](?=\s|$)", rest)
    if stamp is None:
        return something(re.split(r" (?:Comment|Extra|InstanceId)=", rest)[0]), "", 0
    return something(rest[: stamp.start()]), stamp.group(1), epoch(stamp.group(2))


def config(text: str) -> dict[str, str]:
    """Return key -> value of `scontrol show config`; the first of equal keys wins, `(null)` is empty.

    Keys that may stand several times in slurm.conf are printed as `Prolog[0]`, `Prolog[1]` by 24.05 and later: such are
    one key here, its values joined by commas.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if not equals or not (name := key.strip()) or " " in name:
            continue
        value = "" if value.strip() == "(null)" else value.strip()
        if numbered := re.fullmatch(r"(\w+)\[\d+\]", name):
            found[numbered[1]] = ",".join(filter(None, (found.get(numbered[1], ""), value)))
        else:
            found.setdefault(name, value)
    return found


def partitions(text: str) -> list[Partition]:
    """Return the partitions in `scontrol --oneliner show partition`; a line of another shape is passed over."""
    found = []
    for line in text.splitlines():
        raw = {match.group(1): match.group(2) for match in re.finditer(r"(\w+)=(\S*)", line)}
        if name := raw.get("PartitionName"):
            found.append(
                Partition(
                    name,
                    minutes(raw.get("MaxTime", "")),
                    something(raw.get("Nodes", "")),
                    raw.get("Default") == "YES",
                    integer(raw.get("MaxNodes", ""), -1),
                    something(raw.get("Topology", "")),
                )
            )
    return found


def topology(text: str) -> dict[str, tuple[str, ...]]:
    """Return node -> names of the switches (or blocks) above it, top first, from `scontrol show topology`.

    Tree: `SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[0-1]`; block: `BlockName=b1 BlockIndex=0 Nodes=n[0-3] BlockSize=4`.
    A line of another shape is passed over: a topology that we cannot read has no paths.
    """
    above: dict[str, list[tuple[int, int, str]]] = {}
    for order, line in enumerate(text.splitlines()):
        raw = {match.group(1): match.group(2) for match in re.finditer(r"(\w+)=(\S*)", line)}
        name = raw.get("SwitchName") or raw.get("BlockName") or raw.get("AggregatedBlock")
        if not name:
            continue
        # Blocks have no level: one that holds others is larger than they are.
        level = integer(raw.get("Level", raw.get("BlockSize", "")), 0)
        try:
            members: Sequence[str] = expand(raw.get("Nodes", ""))
        except HostlistError:
            continue
        for node in members:
            above.setdefault(node, []).append((-level, order, name))
    return {node: tuple(name for _, _, name in sorted(path)) for node, path in above.items()}

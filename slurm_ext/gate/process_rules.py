"""What a process list says: what a job left behind, what cannot be killed, zombies. Pure: parsers and rules over text.

A process that has been in the kernel (state D) since long before now has outlived its SIGKILL: only a reboot removes it.
A zombie holds nothing but its entry; kernel threads and the services of a node wait in D by design.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.gate.tables import elapsed_s, listed, words_of
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN

#: Slurm calls a step unkillable after UnkillableStepTimeout, which ParallelCluster sets to 180 s; before that it is dying.
DYING_S = 180.0

#: A process in D, or a zombie, younger than this may be on its way (facebookresearch/gcm check_dstate, check_zombie).
OLD_S = 300.0

#: As many zombies at once mean that a parent no longer reaps (aws/eks-node-monitoring-agent monitors/kernel).
ZOMBIES = 20

#: Kernel functions in which the NVIDIA driver waits for a GPU (rpcRecvPoll is the GPU's own processor, GSP).
_DRIVER_WAIT = pattern(r"(?:_?nv|uvm_|rpc(?:Recv|Send)|gsp|os_(?:acquire|wait)|rm_|kgsp)")

_SYSTEM_USERS = words_of(
    "root daemon bin sys adm lp mail news uucp proxy www-data backup list irc gnats nobody messagebus dbus polkitd syslog"
    " chrony _chrony ntp ntpsec munge slurm slurmd slurmrestd rpc rpcuser statd nslcd sssd sshd tss tcpdump landscape"
    " pollinate uuidd rtkit colord gdm lightdm avahi postfix nvidia-dcgm nvidia-persistenced dcgm prometheus node_exporter"
    " node-exporter telegraf cwagent ec2-instance-connect fwupd-refresh libstoragemgmt unbound dnsmasq lxd nginx redis"
    " grafana systemd-network systemd-resolve systemd-timesync systemd-coredump"
)
#: Programs of a person's session, which live as long as the person is logged in.
_SESSION = words_of(
    "systemd (sd-pam) sshd sshd: bash -bash zsh -zsh sh -sh fish tmux tmux: screen SCREEN dbus-daemon dbus-broker gpg-agent"
    " ssh-agent ssm-session-worker sudo su vim vi less top htop pipewire login sftp-server"
)
#: Tools that end within moments; one that has not, waits for a file system or a driver that does not answer.
_QUICK = words_of("stat ls df du lsof sync umount mount findmnt nvidia-smi lctl lfs fi_info")
_JOB_PROGRAM = pattern(
    r"(?:python[\d.]*|torchrun|deepspeed|accelerate|mpirun|mpiexec|orted|prted|hydra_pmi_proxy|julia|Rscript|matlab"
    r"|all_reduce_perf|\w+_perf|gpu[_-]burn|memhog|apptainer|singularity|enroot|pt_\w+)"
)
_JOB_PATH = pattern(r"(?:\./|/home/|/fsx|/scratch|/shared/|/lustre|/tmp/|/data/|/mnt/|/efs)")
_STEP = pattern(r"slurmstepd: \[(\d+)\.")
_HUNG = pattern(r"INFO: task (.+?):(\d+) blocked for more than (\d+) seconds", needs="blocked for more than")
_FORMAT = pattern(r"(?:^|\s)(?:-[A-Za-z]*o|--format[= ]|o)\s*([a-z%][\w%:,=]*)")

#: Header words (and ps's own format names) by what we call the column.
_COLUMNS = {
    **dict.fromkeys(("PID", "TGID"), "pid"),
    "PPID": "ppid",
    **dict.fromkeys(("USER", "UID", "RUSER", "EUSER", "UNAME", "EUID"), "user"),
    **dict.fromkeys(("STAT", "S", "STATE"), "state"),
    **dict.fromkeys(("WCHAN", "NWCHAN"), "wchan"),
    **dict.fromkeys(("ELAPSED", "ETIME", "ETIMES"), "elapsed"),
    **dict.fromkeys(("COMMAND", "CMD", "ARGS", "COMM", "UCMD"), "command"),
    **dict.fromkeys(("STARTED", "LSTART"), "started"),
}
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Process(NamedTuple):
    """One line of ps. None or empty: the column was not there or not readable."""

    pid: int | None = None
    user: str = ""
    state: str = ""
    wchan: str = ""
    age_s: float | None = None
    command: str = ""

    @property
    def program(self) -> str:
        """Return the first word of the command without its folder."""
        return (self.command.split() or [""])[0].rsplit("/", 1)[-1]

    @property
    def is_kernel(self) -> bool:
        """Return whether this is a thread of the kernel (ps puts those in brackets)."""
        return self.command.startswith("[") and not self.is_zombie

    @property
    def is_zombie(self) -> bool:
        """Return whether it has ended and waits to be reaped."""
        return self.state.startswith("Z") or self.command.endswith("<defunct>")

    def __str__(self) -> str:
        words = [f"pid {self.pid}", self.user, self.state, self.wchan.strip("-"), self.command[:60]]
        return " ".join(word for word in words if word)


class Jobs(NamedTuple):
    """Whose node it is now: job ids (None: not known), their users where told, seconds since the last end or the start."""

    ids: tuple[str, ...] | None = None
    users: frozenset[str] = frozenset()
    since_end_s: float | None = None
    since_start_s: float | None = None

    @property
    def none_here(self) -> bool:
        """Return whether it is known that no job is on the node."""
        return self.ids is not None and not self.ids

    def foreign(self, process: Process) -> bool:
        """Return whether a process is proven not to be of a job that is here now."""
        if self.ids is None:
            return False
        if not self.ids:
            return True
        if self.users and process.user and is_person(process.user):
            return process.user not in self.users
        older = process.age_s is not None and self.since_start_s is not None
        return bool(older and len(self.ids) == 1 and (process.age_s or 0.0) > (self.since_start_s or 0.0) + 60.0)


def is_person(user: str) -> bool:
    """Return whether an account is one that jobs run as, and not one of the system's services."""
    if user.isdecimal():
        return int(user) >= 1000 and int(user) != 65534
    if user.endswith("+"):  # ps cuts long names so
        return not user.startswith("_") and not any(name.startswith(user[:-1]) for name in _SYSTEM_USERS)
    return bool(user) and user not in _SYSTEM_USERS and not user.startswith(("_", "systemd", "nvidia-", "node-exp"))


def parse_ps(text: str, command: str = "") -> tuple[list[Process], bool] | None:
    """Return the processes of `ps` and whether its last line is whole; None where it is no list.

    The columns are those of its header or, without one, those that `command` asked for.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    names: list[str] = []
    if lines and {"pid", "command"} & {_COLUMNS.get(word, "") for word in lines[0].split()}:
        names, lines = lines[0].split(), lines[1:]
    elif asked := _FORMAT.search(command):
        names = [word.split(":")[0].rstrip("=").upper() for word in asked[1].split(",")]
    columns = [_COLUMNS.get(name, "") for name in names]
    if "pid" not in columns and "command" not in columns:
        return None
    found = [_row(line.split(), columns) for line in lines]
    return [process for process in found if process is not None], not found or found[-1] is not None


def _row(words: list[str], columns: Sequence[str]) -> Process | None:
    if "started" in columns and len(words) > (at := columns.index("started")):
        width = 5 if words[at] in _WEEKDAYS else 2 if words[at].isalpha() else 1
        words = [*words[:at], " ".join(words[at : at + width]), *words[at + width :]]
    extra = len(words) - len(columns)
    if extra < -1 or (extra < 0 and columns[-1] != "command"):
        return None
    commands = [at for at, name in enumerate(columns) if name == "command"]
    if extra > 0 and commands:
        at = commands[-1]
        words = [*words[:at], " ".join(words[at : at + extra + 1]), *words[at + extra + 1 :]]
    cells: dict[str, str] = {}
    for name, word in zip(columns, words, strict=False):
        cells[name] = word
    pid = cells.get("pid", "")
    if "pid" in columns and not pid.isdecimal():
        return None
    return Process(
        int(pid) if pid else None,
        cells.get("user", ""),
        cells.get("state", ""),
        cells.get("wchan", ""),
        elapsed_s(cells.get("elapsed", "")),
        cells.get("command", ""),
    )


def judge(processes: Sequence[Process], jobs: Jobs) -> list[Judged]:
    """Return what the list says of the node: stuck processes first, then leftovers and zombies."""
    items = _stuck(processes, jobs)
    zombies = [process for process in processes if process.is_zombie and not _has_threads(process)]
    old = [process for process in zombies if process.age_s is None or process.age_s >= OLD_S]
    theirs = [process for process in old if is_person(process.user) and jobs.foreign(process)]
    if len(zombies) >= ZOMBIES or theirs:
        shown = theirs or zombies
        line = f"{len(zombies)} ended processes that no parent has reaped: {listed([str(one) for one in shown], 2)}"
        items.append(judged(WARN, "process.zombies", "node", "warn", line))
    if not items and (left := [process for process in processes if jobs.foreign(process) and _of_a_job(process)]):
        line = f"{len(left)} programs of users whose job is not here: {listed([str(one) for one in left], 2)}"
        items.append(judged(WARN, "process.leftover", "node", "warn", line))
    return items


def _has_threads(process: Process) -> bool:
    """Return whether a zombie's other threads still live (`Zl`): one of them is stuck, and holds what it held."""
    return process.state.startswith("Z") and "l" in process.state


def _stuck(processes: Sequence[Process], jobs: Jobs) -> list[Judged]:
    fails, open_ = [], []
    for process in processes:
        if not (process.state.startswith("D") or _has_threads(process)) or process.is_kernel:
            continue
        in_driver = _DRIVER_WAIT.match(process.wchan) is not None
        old = process.age_s is not None and process.age_s >= OLD_S
        if not is_person(process.user):
            # A service waits in D for its disk by design; nobody waits five minutes for a driver and comes back.
            if in_driver and old:
                fails.append(process)
            elif old and process.program in _QUICK:
                open_.append(process)
        elif jobs.foreign(process):
            ended = jobs.since_end_s if jobs.none_here else None
            if ended is not None and (process.age_s is None or process.age_s >= ended):
                (open_ if ended < DYING_S else fails).append(process)
            elif old and (in_driver or not process.wchan.strip("-")):
                fails.append(process)
            elif old or in_driver or process.age_s is None:
                open_.append(process)  # a program that just began may well read its disk
        elif jobs.ids is None and in_driver:
            open_.append(process)
    if fails:
        line = f"{len(fails)} processes sleep in the kernel and cannot be killed: {listed([str(p) for p in fails], 2)}"
        return [judged(FAIL, "process.unkillable", "node", "reboot", line)]
    if open_:
        line = f"in the kernel at this moment, which may pass: {listed([str(one) for one in open_], 2)}"
        return [judged(UNKNOWN, "process.in-kernel", "node", "none", line)]
    return []


def _of_a_job(process: Process) -> bool:
    """Return whether a process looks like a job's work, and not like a person's session or a service."""
    if process.is_kernel or process.is_zombie:
        return False
    if _STEP.match(process.command):
        return process.age_s is None or process.age_s >= DYING_S
    if not is_person(process.user) or process.program in _SESSION:
        return False
    words = process.command.split() or [""]
    return _JOB_PROGRAM.fullmatch(process.program) is not None or _JOB_PATH.match(words[0]) is not None


def judge_hung(lines: Sequence[str]) -> list[Judged]:
    """Return what the kernel's own watch over tasks says: a warning, since a blocked task may have come back."""
    hung = [found[0] for line in lines if (found := _HUNG.search(line))]
    if not hung:
        return []
    line = f"{len(hung)} reports of blocked tasks: {hung[-1]}"
    return [judged(WARN, "process.hung-task", "node", "warn", line)]

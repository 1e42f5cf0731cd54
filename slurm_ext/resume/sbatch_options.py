"""Which options sbatch has and which of them take a value: what a wrapper must know to find the script.

Asked of sbatch itself (22.05.8, 24.11.5, 26.05.5) on 2026-11-29, option by option; a test asks the installed one again.
An option that is in none of them stops the reading, and everything from it on goes to sbatch untouched.
"""

from __future__ import annotations

REQUIRED, OPTIONAL, FLAG = "required", "optional", "flag"

_REQUIRED = """
account acctg-freq array autocomplete batch bb bbf begin chdir cluster cluster-constraint clusters comment constraint
container container-id container-type core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
dependency distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user
mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition power prefer priority profile
qos reservation segment signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp
tres-bind tres-per-task uid wait-all-nodes wckey wrap
"""
_FLAGS = """
consolidate-segments contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot spread-job
spread-segments stepmgr test-only usage use-min-nodes verbose version wait
"""
#: A value only behind `=`: read without one, they never swallow the next argument.
_OPTIONAL = "exclusive get-user-env nice no-kill oom-kill-step propagate requeue resv-ports"

LONG: dict[str, str] = {
    **dict.fromkeys(_REQUIRED.split(), REQUIRED),
    **dict.fromkeys(_OPTIONAL.split(), OPTIONAL),
    **dict.fromkeys(_FLAGS.split(), FLAG),
}

SHORT: dict[str, str] = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "S": "core-spec",
    "V": "version",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "h": "help",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}

#: Options after which sbatch submits nothing: our own have no business there.
INFORMATIVE = ("help", "usage", "version", "autocomplete")


def long_name(text: str) -> str | None:
    """Return the option that a long name or its unique beginning means (sbatch takes both), or None."""
    if text in LONG:
        return text
    matches = [name for name in LONG if name.startswith(text)] if text else []
    return matches[0] if len(matches) == 1 else None

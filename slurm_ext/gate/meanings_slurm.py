"""What Slurm's own views of nodes and jobs mean in a capture. Table. Checked on 2026-11-30.

Source of the reasons: slurmctld and slurmd, 22.05 to 26.05 (SchedMD/slurm), and Slurm's pages of each row.
"""

from __future__ import annotations

from slurm_ext.gate import meanings_pages as page
from slurm_ext.gate.meanings_model import NO, UNKNOWN, YES, Meaning

_CONF = "Compare `slurmd -C` on the node with its line in slurm.conf, and gres.conf with `nvidia-smi -L`."
_LOG = "Look at slurmd's log on the node for the time of the reason."


def _own(id_: str, means: str, *steps: str) -> Meaning:
    """Return the row of a reason that Slurm itself set: the node is out until somebody resumes it."""
    return Meaning(f"slurm.{id_}", means, "drain", YES, (page.SLURM_TROUBLE, page.SLURM_NODES), steps)


MEANINGS: tuple[Meaning, ...] = (
    _own(
        "not-responding",
        "slurmd on the node does not answer the controller.",
        "`systemctl status slurmd`, then the network.",
    ),
    _own(
        "unexpected-reboot",
        "The node came back from a reboot that Slurm did not ask for.",
        "Find out why it went down.",
    ),
    _own(
        "prolog-error",
        "A prolog failed; Slurm says no more than that.",
        "`fmslurm events --node NODE` shows whether it was ours.",
    ),
    _own("epilog-error", "An epilog failed; ours never does.", _LOG),
    _own("job-env-error", "The environment of a job could not be set up.", _LOG),
    _own(
        "kill-task-failed",
        "A job's processes did not end when they were killed.",
        "Once they are gone the node may be resumed.",
    ),
    _own("step-not-running", "A step that should run was not there.", _LOG),
    _own("batch-failure", "A batch script could not be started or ended badly.", _LOG),
    _own("duplicate-job", "The node runs a job that the controller knows nothing of.", _LOG),
    _own("spool-full", "SlurmdSpoolDir is full.", "`df` of SlurmdSpoolDir, usually /var/spool/slurmd."),
    _own("switch-error", "The network plug-in could not clean up after a job.", _LOG),
    _own("gres-count-low", "The node reports fewer GPUs than gres.conf or the node line says.", _CONF),
    _own("gres-changed", "The number or type of GPUs changed while jobs use them.", _CONF),
    _own("gres-type", "The node reports GPUs of a type that is not configured.", _CONF),
    _own("low-resources", "The node reports less memory, fewer processors or less space than its line says.", _CONF),
    _own("features-differ", "The node reports other features than it should have."),
    _own("no-address", "The node has no network address that the controller can find."),
    _own("resume-timeout", "A cloud node did not come up within ResumeTimeout.", "Look at the instance's console log."),
    _own("reboot-timeout", "A node did not come back within ResumeTimeout after a reboot."),
    _own("version-differs", "slurmd is of a release that this controller does not take."),
    _own("invalid-registration", "The controller refused what the node told of itself.", _CONF),
    _own("node-down", "The node is DOWN, and nobody said why.", _LOG),
    _own("node-fail", "A node failed under a job.", "`fmslurm why JOB` says what is known."),
    _own("boot-fail", "A node did not boot for a job."),
    Meaning(
        "slurm.node-fail-unnamed",
        "A node failed under a job; the record does not say which.",
        "none",
        UNKNOWN,
        (page.SLURM_TROUBLE,),
    ),
    Meaning(
        "slurm.boot-fail-unnamed",
        "A node did not boot for a job; the record does not say which.",
        "none",
        UNKNOWN,
        (page.SLURM_TROUBLE,),
    ),
    Meaning(
        "slurm.drained-by-us",
        "fmslurm drained the node.",
        "drain",
        YES,
        steps=("`fmslurm node show NODE` says for what.",),
    ),
    Meaning(
        "slurm.drain-foreign",
        "A person or another tool drained the node: leave it alone.",
        "none",
        "their word",
        (page.SLURM_NODES,),
    ),
    Meaning(
        "slurm.node-maintenance",
        "The node is in a maintenance reservation.",
        "none",
        "for as long as it lasts",
        (page.SLURM_NODES,),
    ),
    Meaning(
        "slurm.node-rebooting",
        "The node reboots because somebody asked for it.",
        "none",
        "until it is back",
        (page.SLURM_NODES,),
    ),
    Meaning("slurm.reboot-requested", "The node reboots once its jobs have ended.", "none", NO, (page.SLURM_NODES,)),
    Meaning(
        "slurm.platform-",
        "The platform (HyperPod) has ordered a repair of its own: leave it alone.",
        "replace",
        "the platform's word",
    ),
    Meaning(
        "slurm.state-undetermined",
        "The controller has just started and has not heard of the node yet.",
        "none",
        UNKNOWN,
    ),
    Meaning("slurm.state-unknown", "The node is in a state that no known release of Slurm has.", "none", UNKNOWN),
    Meaning("slurm.reason-old", "A reason of an earlier drain is still there; the node takes jobs.", "none", NO),
    Meaning(
        "slurm.completing-node",
        "A node holds a job in COMPLETING for long: an epilog or a process hangs there.",
        "warn",
        NO,
        (page.SLURM_TROUBLE,),
        (_LOG,),
    ),
    Meaning(
        "slurm.configuring-node", "A node takes long to be ready for a job.", "warn", NO, (page.SLURM_TROUBLE,), (_LOG,)
    ),
    Meaning("slurm.prolog-node", "A node's prolog takes long.", "warn", NO, (page.SLURM_SCRIPTS,), (_LOG,)),
    Meaning(
        "slurm.job-held", "Slurm holds the job, as it does after failed launches.", "warn", NO, (page.SLURM_REASONS,)
    ),
    Meaning("slurm.job-nodes-unavailable", "The job asks for nodes that are out.", "warn", NO, (page.SLURM_REASONS,)),
    Meaning("slurm.job-restarts-many", "The job was requeued many times.", "warn", NO, steps=("`fmslurm why JOB`.",)),
    Meaning(
        "slurm.job-launch-failed",
        "The job could not be launched: a node, a file system or its script.",
        "none",
        UNKNOWN,
        (page.SLURM_REASONS,),
    ),
    Meaning("slurm.job-state-unknown", "The job is in a state that no known release of Slurm has.", "none", UNKNOWN),
    Meaning(
        "slurm.job-",
        "How the job ended or what it waits for, in Slurm's own word: about no node.",
        "none",
        NO,
        (page.SLURM_REASONS,),
    ),
    Meaning("slurm.controller-unreachable", "The controller did not answer.", "none", UNKNOWN, (page.SLURM_TROUBLE,)),
    Meaning(
        "slurm.slurm-error", "Slurm's command ended with an error of its own.", "none", UNKNOWN, (page.SLURM_TROUBLE,)
    ),
    Meaning(
        "slurm.gres-differs",
        "Slurm hands out another number of GPUs on this node (its Gres) than nvidia-smi lists: jobs get devices that are not"
        " there, or GPUs stay idle.",
        "warn",
        NO,
        (page.SLURM_NODES,),
        steps=("`fmslurm gres check` compares Slurm's files with the node.", "`scontrol show node NODE`, Gres."),
    ),
    Meaning("slurm.command-failed", "Slurm's command failed without a word.", "none", UNKNOWN),
    Meaning("slurm.no-answer", "Slurm's command gave no whole answer.", "none", UNKNOWN),
    Meaning("slurm.job-not-found", "Slurm knows no such job any more.", "none", UNKNOWN),
    Meaning("slurm.node-not-found", "Slurm knows no such node.", "none", UNKNOWN),
    Meaning("slurm.nodes-unnamed", "The view counts nodes and names none.", "none", UNKNOWN),
    Meaning("slurm.output-cut", "The output ends in the middle.", "none", UNKNOWN),
)

"""What each rule of `fmslurm why` means: why a run ended, in a sentence. For people only.

The rules of single lines in a job's log are the rows of the signature tables; these are all others.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Rule, or the beginning of a family where it ends with `.`; a leading `-` is the end of one -> what it means.
RULES: Mapping[str, str] = {
    "slurm.time-limit": "The job used its time up while it made progress: it goes on from its checkpoint.",
    "slurm.time-limit-no-progress": "The job used its time up and got nowhere: again would be no better.",
    "slurm.time-limit-silent": "The job used its time up and had fallen silent long before: it hung.",
    "slurm.cancelled": "A person cancelled the job: nothing follows.",
    "slurm.preempted": "Slurm took the job's nodes for another one: it goes on later.",
    "slurm.requeued": "Somebody requeued the job: that is left as it is.",
    "slurm.stuck-prolog": "A prolog of the job never ended: the job is sent back, or it would wait for ever.",
    "slurm.held-user-env": "Slurm holds the job since the user's environment could not be read.",
    "slurm.held-max-requeue": "Slurm holds the job since it was requeued too often.",
    "slurm.held-limits": "The job asks for more than a limit allows: its owner must change it.",
    "slurm.held-dependency": "The job waits for one that will never end well.",
    "slurm.node-fail": "A node failed under the job, and the record does not tell which one more than the others.",
    "node.lost": "One node went away under the job: it is left out, and the job comes back.",
    "node.spot": "EC2 took a spot instance back: the job comes back.",
    "node.maintenance": "A node went into maintenance: the job comes back without it.",
    "node.no-capacity": "No instance was to be had: the job waits and comes back.",
    "node.prolog": "The prolog convicted a node: the job comes back without it.",
    "node.prolog-everywhere": "The prolog failed on many nodes: no single node is the reason, so the job is held.",
    "node.fault": "A node's own trail tells of a fault in the time of the job.",
    "node.service": "A service of Slurm on a node failed in the time of the job.",
    "node.finding": "The gate found a fault on a node after the job: the job comes back without it.",
    "node.finding-everywhere": "The gate found the same on all nodes: something that they share.",
    "gate.stopped": "The gate stopped the job before it began, and no node was convicted alone.",
    "host.oom": "The kernel ended a process of the job that used more memory than the job may.",
    "kernel.hardware": "The kernel log of a node tells of a hardware fault in the time of the job.",
    "kernel.storage": "The nodes lost the shared file system in the time of the job.",
    "kernel.storage-one-host": "One node lost the shared file system, and the others did not.",
    "kernel.contained": "A memory error that the GPU contained ended the program: again, on the same nodes.",
    "kernel.contained-again": "The same GPU had such an error before: the job comes back without its node.",
    "hang.silent": "The job fell silent and was ended from outside, and nothing says why.",
    "hang.storage-one-host": "Processes of one node hung in its file system.",
    "hang.data-loader": "The job's data loaders hung.",
    "storage.full": "A file system is full: the job waits and comes back.",
    "gpu.memory-held": "A GPU's memory was held by somebody else when the job began.",
    "user.gpu-oom": "The program asked for more GPU memory than there is, on every attempt alike.",
    "fabric.pair": "Two nodes lost each other, and nothing tells which one is at fault.",
    "numeric.first": "The loss became NaN or infinite for the first time: once more from the checkpoint.",
    "numeric.again": "The loss became NaN or infinite at the same place again: the program's own matter.",
    "collective.": "What the ranks' watchdogs say of the collective that hung: lagging, silent, or equal on all.",
    "collective.mismatch": "Ranks called different collectives: the program's own fault.",
    "exit.": "No line tells; the exit code says that the command could not be run as written.",
    "unknown": "Nothing tells why the run ended.",
    "-again": "The same line ended an earlier attempt, too: no chance, so the program's own matter.",
    "-everywhere": "Every node says the same: something that they share, and no node alone.",
    "advice.": "What policy made of a cause: its own advice, within the budgets.",
    "budget.": "A budget is used up, or a limit on exclusions forbids what the cause would ask for.",
}


def of_rule(rule: str) -> str:
    """Return what a rule means, empty where none is called so."""
    if rule in RULES:
        return RULES[rule]
    ends = next((text for end, text in RULES.items() if end.startswith("-") and rule.endswith(end)), "")
    begins = next((text for begin, text in RULES.items() if begin.endswith(".") and rule.startswith(begin)), "")
    return ends or begins

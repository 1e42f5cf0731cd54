"""A burn-in as a step of an ordinary job: the job as srun's environment tells it, instead of the prolog's."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ext.burnin.model import BurninJob
from slurm_ext.config.model import Settings
from slurm_ext.errors import UsageError
from slurm_ext.slurm.hostlist import expand


def job_of_step(
    environ: Mapping[str, str], settings: Settings, *, gpus: int, instance_type: str, uid: int
) -> BurninJob:
    """Return the job of the step this process runs in; its id is `<job>_<step>`, so that it never meets the prolog's.

    `gpus` 0 takes what Slurm says the step has. Raise UsageError outside a step or where a figure is missing.
    """
    try:
        nodes = tuple(expand(environ.get("SLURM_STEP_NODELIST") or environ["SLURM_JOB_NODELIST"]))
        job_id = f"{int(environ['SLURM_JOB_ID'])}_{int(environ['SLURM_STEP_ID'])}"
        node = environ["SLURMD_NODENAME"]
        gpus = gpus or int(environ.get("SLURM_GPUS_ON_NODE") or 0)
        tasks = int(environ.get("SLURM_STEP_NUM_TASKS") or len(nodes))
        place = int(environ.get("SLURM_LOCALID") or 0)
    except (KeyError, ValueError) as exc:
        raise UsageError(
            f"this is no step of a job: {exc}", remedy="srun -N4 --ntasks-per-node=1 ... fmslurm burnin run --in-job"
        ) from exc
    if tasks != len(nodes) or place:
        # Two agents of one node would share its note and folder, and each take the node for the whole of its part.
        raise UsageError(
            f"this step has {tasks} tasks on {len(nodes)} nodes, the burn-in is one on each",
            remedy="srun --ntasks-per-node=1 ... fmslurm burnin run --in-job",
        )
    if not gpus:
        raise UsageError("this step has no GPUs", remedy="Ask for them: --gpus-per-node=8, or say --gpus 8")
    if node not in nodes:
        raise UsageError(f"{node} is not among the step's nodes {','.join(nodes)}")
    cluster = environ.get("SLURM_CLUSTER_NAME") or settings.site.cluster or "cluster"
    restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
    return BurninJob(cluster, job_id, restarts, nodes, node, gpus, instance_type, uid)

"""Where is the checkpoint, and is it whole?

Trainers use this: `from slurm_ext.staging import Checkpoints`. Standard library only, and cheap to import.
"""

from slurm_ext.staging.client import Checkpoints, Restore, Saved
from slurm_ext.staging.model import CheckpointRefused

__all__ = ["CheckpointRefused", "Checkpoints", "Restore", "Saved"]

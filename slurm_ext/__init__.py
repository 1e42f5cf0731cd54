"""fmslurm: what a GPU cluster under Slurm on AWS needs around the scheduler. Importing this module imports nothing else."""

__version__ = "0.1.0"

"""A real Slurm on one machine, with simulated hardware."""

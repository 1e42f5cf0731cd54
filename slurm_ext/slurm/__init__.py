"""The only room that speaks to Slurm."""

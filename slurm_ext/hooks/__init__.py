"""What Slurm runs on nodes: compose the rooms, decide nothing."""

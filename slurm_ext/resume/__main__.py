"""`python -m slurm_ext.resume` is fmslurm-controller."""

import sys

from slurm_ext.resume.daemon import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m slurm_ext.cli`: the command line where no entry point is installed."""

import sys

from slurm_ext.cli.main import main

sys.exit(main())

"""The slow check of a node, seen from a prolog: end one that runs. On the passing path this costs one open() that fails."""

import os

#: Below the run folder, while a slow check runs: who it is (slow_state.Running).
RUNNING = "slow-running.json"

#: How long (seconds) a job waits for a slow check to be gone from its GPUs.
END_S = 8.0


def is_running(run_dir: str) -> bool:
    """Say whether a slow check of ours may run here: something of its name is there, whatever it is."""
    try:
        os.close(os.open(os.path.join(run_dir, RUNNING), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    except FileNotFoundError:
        return False
    except OSError:  # slow_end finds out what
        return True
    return True


def end_running(run_dir: str, timeout_s: float) -> bool:
    """End a slow check of ours that runs here, and wait until nothing of it is on the GPUs; say whether that is so.

    False: something of it is left after `timeout_s` seconds (it sleeps in the kernel, or DCGM goes on by itself), and what
    a job would find on the GPUs is not known.
    """
    if not is_running(run_dir):
        return True
    from slurm_ext.hooks import slow_end

    return slow_end.end(run_dir, timeout_s)

"""What is found elsewhere than in the live gate, as rows for people: by the burn-in, by what the health
check asks Slurm, and in captures alone. No hook imports this.

A finding that stands in an event, a verdict or an answer of `fmslurm gate replay` must not be one that no list names.
"""

from __future__ import annotations

from slurm_ext.gate.probes import HEALTH, Check

BURNIN, REPLAY = "burn-in", "replay"

_RUN = "a run of NCCL"
_CAPTURE = "nothing: a capture is read"

_ASKS = "warn, or fail by the run's own proof"


def _of_run(id_: str, what: str, means: str) -> Check:
    return Check(id_, what, means, (BURNIN,), _RUN)


def _of_capture(id_: str, what: str, means: str) -> Check:
    return Check(id_, what, means, (REPLAY,), _CAPTURE)


ELSEWHERE: tuple[Check, ...] = (
    _of_run("burnin.", "the job's nodes run an all-reduce together, and who is at fault", "fail, drain; or as its policy"),
    _of_run("busbw-", "the speed of the all-reduce, against floor and fleet", "fail, or warn"),
    _of_run("perf.", "what all_reduce_perf printed: rows, numbers, wrong values, end", "fail; unknown where it tells nothing"),
    _of_run("no-floor", "no floor is known for this type and number of nodes", "unknown"),
    _of_run("no-result", "the run ended without a figure", "unknown"),
    _of_run("not-validated", "the run did not compare its results", "unknown"),
    _of_run("wrong-results", "the all-reduce gave a wrong sum", "fail, drain"),
    _of_run("run-", "a run that failed, or hung", "fail, or unknown"),
    _of_run("peer-", "a rank whose peer was lost or does not answer", _ASKS),
    _of_run("log-", "NCCL's log is empty or incomplete", "unknown"),
    _of_run("nccl-", "what NCCL's log says of its network, GPUDirect and releases", _ASKS),
    _of_run("ofi-", "what the plug-in's log says of provider and protocol", _ASKS),
    _of_run("provider-not-named", "the log names no provider of libfabric", "unknown"),
    _of_run("gdr-", "words about GPUDirect that mislead", "a note"),
    _of_run("no-gdr-expected", "this type has no GPUDirect RDMA", "a note"),
    _of_run("not-efa-cluster", "this type, or this run, has no EFA", "a note"),
    _of_run("bootstrap-interface", "the interface over which NCCL's ranks find one another", "a note"),
    _of_run("cuda-failure", "a call of CUDA that failed in a rank", "fail, or unknown"),
    _of_run("gpu-duplicate", "two ranks on one GPU", "fail, or unknown"),
    _of_run("transport-unproven", "nothing proves that EFA carried the traffic", "unknown"),
    _of_run("efa-", "EFA's counters before and after the run: traffic, retransmissions", "fail, warn, or unknown"),
    _of_run("mnnvl-", "NVLink between nodes (one NVLink domain over instances)", "fail, warn, or unknown"),
    _of_run("imex-", "the state of the IMEX domain", "warn, or unknown"),
    _of_run("gpu.clock-low", "a GPU below 90 % of the median clock under load (strict)", "warn"),
    _of_run("gpu.clocks-unread", "clocks that could not be sampled (strict)", "a note"),
    _of_run("gpu.throttled", "a GPU that heat or power holds back under load (strict)", "warn"),
    Check("slurm.gres-differs", "Slurm hands out another number of GPUs than are here", "warn", (HEALTH,), "one scontrol a day"),
    _of_capture("slurm.", "Slurm's own view of a node or a job", "as the state says; a foreign drain is left alone"),
    _of_capture("ec2.", "EC2's scheduled events and status checks", "fail, warn, or unknown"),
    _of_capture("probe.", "a file that is cut, empty, or of no form that is known", "unknown"),
    _of_capture("replay.", "a folder that cannot be judged", "unknown"),
    _of_capture("clock.offset", "how far the clock is from true time", "fail from five minutes on; else warn"),
    _of_capture("clock.uncertain", "a clock whose error nobody bounds", "warn, or unknown"),
    _of_capture("clock.unknown-word", "a word of a time daemon that no table has", "unknown"),
    _of_capture("efa.none", "no EFA device, and nobody knows how many belong there", "unknown"),
    _of_capture("efa.none-expected", "this type has no EFA", "a note"),
    _of_capture("efa.no-reference", "nobody knows how many EFA devices belong there", "unknown"),
    _of_capture("efa.no-second-reading", "counters of one moment alone", "unknown"),
    _of_capture("efa.no-permission", "the probe was not allowed to look", "unknown"),
    _of_capture("efa.no-probe", "no file about EFA that can be judged", "unknown"),
    _of_capture("efa.off-bus", "an EFA function that has left the PCI bus (lspci)", "fail, replace"),
    _of_capture("efa.memlock-unreadable", "what ulimit -l said is no number", "unknown"),
    _of_capture("gpu.no-probe", "no file about GPUs that can be judged", "unknown"),
    _of_capture("gpu.none-expected", "this type has no GPU", "a note"),
    _of_capture("gpu.pcie-generation", "a GPU at work whose PCIe link is at a lower generation", "warn"),
    _of_capture("gpu.nvlink-topology", "nvidia-smi topo -m: pairs of GPUs without NVLink", "fail, drain"),
    _of_capture("gpu.topology-unreadable", "nvidia-smi topo -m that is cut", "unknown"),
    _of_capture("gpu.ecc-off", "ECC is off", "warn"),
    _of_capture("gpu.repair-pending", "a repair that waits for the next reset", "warn, reset-gpu when idle"),
    _of_capture("gpu.retired-pages-", "pages retired or to be retired (before Ampere)", "fail, replace; or warn, reset-gpu"),
    _of_capture("gpu.slowed-now", "heat or the power brake slow a GPU at this moment", "warn"),
    _of_capture("gpu.clocks-held", "a clock that was set holds down a few GPUs at this moment", "warn"),
    _of_capture("gpu.sw-power-cap", "GPUs at their power limit", "a note"),
    _of_capture("gpu.unrepairable-memory", "memory that can no longer be repaired", "fail, replace"),
    _of_capture("host.no-reference", "what the node should have is not known", "unknown"),
    _of_capture("lnet.not-loaded", "LNet is not there", "fail, drain"),
    _of_capture("lnet.output-unknown", "lnetctl's answer has another form", "unknown"),
    _of_capture("lnet.peer-down", "peers that LNet holds for down", "warn"),
    _of_capture("lnet.timeout", "lnetctl gave no answer in time", "unknown"),
    _of_capture("lustre.few-efa-interfaces", "fewer EFA interfaces carry LNet than should", "warn"),
    _of_capture("lustre.no-probe", "no file about Lustre that can be judged", "unknown"),
    _of_capture("lustre.output-", "lfs or lctl gave an answer that is cut, or of another form", "unknown"),
    _of_capture("lustre.probe-failed", "lfs or lctl ended in an error", "unknown"),
    _of_capture("lustre.target-", "lfs df: targets full, degraded, read-only, or not answering", "fail, or warn"),
    _of_capture("lustre.tool-missing", "there is no lfs or lctl", "unknown"),
)  # fmt: skip

"""What findings and rules of the burn-in, and of captured NCCL logs and runs, mean. Table. Checked on 2026-11-30."""

from __future__ import annotations

from slurm_ext.gate import meanings_pages as page
from slurm_ext.gate.meanings_model import NO, UNKNOWN, YES, Meaning

_HISTORY = "`fmslurm burnin history --node NODE` shows its other runs."
_ALL = "no node: the job must not start like this"


def _culprit(kind: str, means: str) -> Meaning:
    return Meaning(f"burnin.{kind}", means, "drain", YES, (page.NCCL,), (_HISTORY,))


def _refuted(id_: str, means: str) -> Meaning:
    return Meaning(
        id_, means, "drain", "the nodes that show it; none where all do", (page.EFA_NCCL, page.NCCL_VARIABLES)
    )


def _open(id_: str, means: str, *pages: str) -> Meaning:
    return Meaning(id_, means, "none", UNKNOWN, pages)


def _noted(id_: str, means: str, *pages: str) -> Meaning:
    return Meaning(id_, means, "warn", NO, pages)


MEANINGS: tuple[Meaning, ...] = (
    _culprit("slow", "All-reduces with this node are slow, and its partners are fast with others."),
    _culprit("wrong", "All-reduces with this node give wrong sums, and its partners give right ones with others."),
    _culprit("hang", "All-reduces with this node hang, and its partners do not with others."),
    _culprit("error", "All-reduces with this node end in errors, and its partners' do not with others."),
    _culprit("culprit", "The search found the node that makes the job's all-reduce fail."),
    _culprit("second-offence", "The node failed with another partner before, which has passed with others since."),
    Meaning(
        "burnin.fabric",
        "Nodes fail together and no single one of them is at fault: network or placement.",
        "warn",
        _ALL,
        (page.NCCL,),
    ),
    Meaning("burnin.switch", "The nodes below one leaf switch fail with the others.", "warn", _ALL, (page.NCCL,)),
    Meaning("burnin.whole-only", "All nodes together fail, and each part of them passes.", "warn", _ALL, (page.NCCL,)),
    Meaning(
        "burnin.two-nodes",
        "Two nodes fail together, and no third could tell which.",
        "warn",
        _ALL,
        (page.NCCL,),
        (_HISTORY,),
    ),
    Meaning("burnin.pair", "Two nodes fail with each other and pass with all others.", "warn", _ALL, (page.NCCL,)),
    Meaning(
        "burnin.cannot-tell", "Evidence is not enough to convict this node.", "warn", _ALL, (page.NCCL,), (_HISTORY,)
    ),
    Meaning(
        "burnin.mixed-",
        "The job's nodes have different NVIDIA drivers (a warning), VBIOS, kernels or EFA drivers (a note): normal in a fleet "
        "while an image rolls out, and not well inside one job.",
        "warn",
        NO,
        (page.NCCL,),
        ("`fmslurm node versions` shows which nodes have what.",),
    ),
    Meaning(
        "burnin.wrong-once",
        "A wrong sum came once and did not come back: the job does not start on it.",
        "warn",
        _ALL,
        (page.NCCL,),
    ),
    Meaning(
        "burnin.transport",
        "NCCL did not go over EFA, or not as this type should.",
        "drain",
        "the nodes that show it; none where all do",
        (page.EFA_NCCL,),
    ),
    Meaning("burnin.tcp-alarm", "The speed is that of TCP, not of EFA.", "warn", NO, (page.EFA_NCCL,)),
    _noted("burnin.once", "It failed once and passed when repeated.", page.NCCL),
    _noted("burnin.no-floor", "Results are right, and no floor is known for these nodes.", page.NCCL),
    _noted("burnin.below-fleet", "Slower than the fleet's own history of this size.", page.NCCL),
    _noted("burnin.drift", "It became slower while it ran.", page.NCCL),
    _open("burnin.transport-unproven", "The log does not show over what NCCL went.", page.EFA_NCCL),
    _open("burnin.peer-absent", "A node's prolog did not come to the burn-in."),
    _open("burnin.peer-lost", "A node's agent went away in the middle."),
    _open("burnin.deadline", "The burn-in did not end in its time."),
    _open("burnin.library", "NCCL, CUDA or a library that they need is missing on a node."),
    _open("burnin.versions", "Nodes have other releases of fmslurm or NCCL than their leader."),
    _open("burnin.uneven", "Nodes have different numbers of GPUs."),
    _open("burnin.cannot-start", "The burn-in could not start on this node."),
    _open("burnin.agent-died", "The burn-in's own process on this node died."),
    _open("burnin.no-report", "No worker reported."),
    _open("burnin.no-majority", "Nodes do not agree who leads."),
    _open("burnin.left", "The hook left the burn-in, since the attempt was over."),
    _open("burnin.ended-elsewhere", "The attempt was decided on another node."),
    Meaning("burnin.all-nodes", "All nodes of the job gave right sums, fast enough.", "none", NO),
    Meaning("burnin.fleet", "Right sums, as fast as the fleet's own history.", "none", NO),
    Meaning("burnin.reused", "The same nodes passed together a short while ago.", "none", NO),
    Meaning("burnin.survey", "Measured by hand, not judged.", "none", NO),
    Meaning(
        "burnin.proof",
        "What an NCCL log proves about the path that the traffic took.",
        "none",
        "where it shows another path than EFA",
        (page.EFA_NCCL,),
    ),
    _refuted("nccl-socket-fallback", "NCCL went over TCP sockets."),
    _refuted("nccl-net-unmet", "NCCL did not find the network that its settings ask for."),
    _refuted("ofi-no-provider", "aws-ofi-nccl found no EFA device."),
    _refuted("nccl-shm-in-node", "GPUs of one node talk through host memory in place of NVLink."),
    _refuted("mnnvl-not-used", "NVLink between nodes is there and was not used."),
    _refuted("ofi-provider-", "libfabric gave NCCL a provider other than EFA; the id names it."),
    _open("provider-not-named", "The log does not name libfabric's provider.", page.EFA_NCCL),
    _open("not-efa-cluster", "The network is neither EFA nor a fall-back to sockets.", page.NCCL),
    _refuted("nccl-nic-count", "NCCL used fewer network cards than the node has, or how many is not clear."),
    _refuted("nccl-no-gdr", "Data did not go from GPU to network card directly, or that is not clear."),
    _open("nccl-version-mismatch", "Ranks run different releases of NCCL.", page.NCCL),
    _refuted("cuda-not-initialised", "CUDA could not start on the node, as without a fabric manager."),
    _open("cuda-failure", "CUDA failed under NCCL.", page.NCCL),
    _open("gpu-duplicate", "Two ranks use one GPU.", page.NCCL),
    _open("peer-unresponsive", "A rank waited for others that did not answer.", page.NCCL),
    _open("peer-lost", "A rank lost its connection to another.", page.NCCL),
    _open("log-empty", "No line of NCCL is in the log: NCCL_DEBUG=INFO was not set.", page.NCCL_VARIABLES),
    _open("log-incomplete", "The log lacks ranks or ends in the middle.", page.NCCL_VARIABLES),
    _open("run-failed", "The run did not end well."),
    _open("transport-unproven", "The log does not show over what NCCL went.", page.EFA_NCCL),
    Meaning(
        "bootstrap-interface",
        "The interface over which ranks found each other; no data goes over it.",
        "none",
        NO,
        (page.NCCL_VARIABLES,),
    ),
    Meaning("no-gdr-expected", "Data goes through the host, as it must on this type.", "none", NO, (page.EFA_NCCL,)),
    _noted("gdr-word-misleading", "The log names GPUDirect, and what it shows is something else.", page.EFA_NCCL),
    _noted("ofi-protocol", "aws-ofi-nccl chose another protocol than this type's.", page.OFI_NCCL),
    _noted("nccl-shm-by-setting", "A setting makes GPUs of one node talk through host memory.", page.NCCL_VARIABLES),
    _noted("nccl-no-nvls", "NVLink SHARP is not used where it could be.", page.NCCL_VARIABLES),
    _noted("efa-counters-low", "EFA's counters moved less than the traffic would have them.", page.EFA_METRICS),
    _noted("efa-retransmits", "EFA sent packets again while the burn-in ran.", page.EFA_METRICS),
    _open("efa-counters-unread", "EFA's counters could not be read.", page.EFA_METRICS),
    Meaning(
        "efa-counters-still",
        "EFA's counters did not move while NCCL ran: the traffic went elsewhere.",
        "drain",
        YES,
        (page.EFA_METRICS,),
    ),
    Meaning("mnnvl-fabric-state", "NVLink between nodes is not ready on this node.", "drain", YES, (page.IMEX,)),
    _noted("mnnvl-degraded", "NVLink between nodes works with less than all of its links.", page.IMEX),
    _noted("mnnvl-domains", "The nodes are in more than one NVLink domain.", page.IMEX),
    _noted("mnnvl-network-too", "Part of the traffic between nodes went over the network, not NVLink.", page.IMEX),
    _open("mnnvl-unproven", "The log does not show that NVLink carried traffic between nodes.", page.IMEX),
    _open("imex-unread", "The state of IMEX could not be read.", page.IMEX),
    _noted("imex-domain", "The IMEX domain of this node is not UP.", page.IMEX),
    Meaning(
        "busbw-below-floor",
        "The run is slower than its floor.",
        "drain",
        "the nodes of the run, none of them alone",
        (page.NCCL,),
    ),
    Meaning(
        "busbw-tcp-level",
        "The run is as slow as TCP: EFA was not used.",
        "drain",
        "the nodes of the run, none of them alone",
        (page.EFA_NCCL,),
    ),
    Meaning(
        "wrong-results", "The run gave wrong sums.", "drain", "the nodes of the run, none of them alone", (page.NCCL,)
    ),
    Meaning(
        "run-hung",
        "The run stopped and was ended by its time limit.",
        "drain",
        "the nodes of the run, none of them alone",
        (page.NCCL,),
    ),
    _noted("busbw-dip", "One size or one run is slow among fast ones.", page.NCCL),
    _open("no-floor", "No floor is known for this run."),
    _open("no-result", "The output holds no result."),
    _open("not-validated", "Fast enough, and no value was checked."),
    Meaning(
        "perf.",
        "What decided about a captured run of all_reduce_perf.",
        "none",
        "the nodes of the run, none of them alone",
        (page.NCCL,),
    ),
    _open("replay.", "The folder could not be read or judged."),
    Meaning("gate.local", "Nothing that was looked at speaks against starting a job.", "none", NO),
)

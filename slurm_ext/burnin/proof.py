"""Did EFA with GPUDirect carry the traffic? Findings from what the processes' logs say, live and from captures. Pure.

Each finding says what it means for the proof: refuted (fail), unproven (unknown), proven but worth a word (warn, pass).
A missing line is unproven, never proven. One place that sees all nodes, since a count is odd only beside the others'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_ext.aws import efa_types, gpu_types
from slurm_ext.aws.catalogue import InstanceType
from slurm_ext.burnin import log_whole
from slurm_ext.burnin.nccl_log import Log, Process, is_efa_provider
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN, Finding, Verdict

#: CUDA failures that are the node's own: 46 devices unavailable, 214 ECC, 802 system not ready, 803 driver mismatch, 999.
_NODE_CUDA = {"46": "cuda-unavailable", "214": "cuda-ecc", "802": "cuda-not-initialised", "803": "cuda-driver-mismatch"}
_NODE_CUDA |= {"999": "cuda-unknown-error"}


class Judged(NamedTuple):
    """A finding, and what it makes of the verdict by itself."""

    finding: Finding
    verdict: str


class Context(NamedTuple):
    """What is known beside the log."""

    instance_type: str = ""
    row: InstanceType | None = None
    nodes: int = 0
    ranks: int = 0  # 0: by the log itself
    partial: bool = False  # the log is only of some ranks, on purpose
    expected_efa: int | None = None
    exit_code: int | None = 0
    timed_out: bool = False


def judge(log: Log, context: Context) -> Verdict:
    """Return the verdict over a log: a refuted proof fails, else an unproven one is unknown, else warnings warn."""
    return verdict_of(findings(log, context), "EFA carried the traffic")


def verdict_of(found: Sequence[Judged], well: str) -> Verdict:
    """Return the verdict over findings, in the words `well` where there are none."""
    verdicts = {judged.verdict for judged in found}
    verdict = next((v for v in (FAIL, UNKNOWN, WARN) if v in verdicts), PASS)
    first = next((j.finding for j in found if j.verdict == verdict), None)
    reason = f"{first.id} on {first.target}: {first.evidence[0]}" if first is not None and first.evidence else well
    # What does not bear on the answer (a word beside a refuted proof that makes nothing of it) only distracts.
    kept = [j.finding for j in found if verdict != FAIL or j.verdict in (FAIL, WARN)]
    return Verdict(verdict, tuple(kept), reason, "burnin.proof")


def findings(log: Log, context: Context) -> list[Judged]:
    """Return all findings of a log, most fundamental first; the first that ended the run hides what follows from it."""
    if not log.processes:
        return [_unknown("log-empty", "node", "no line of NCCL is in the log")]
    for rule in (_cuda, _mismatch, _duplicate, _unmet, _lost):
        if found := rule(log):
            # How a run ended takes nothing back of what it went over.
            refuted = [] if rule in (_mismatch, _unmet) or _fails(found) else _refuted(log, context)
            return refuted or found
    found = _network(log, context)
    if any(judged.verdict in (FAIL, UNKNOWN) for judged in found):
        return found
    found += _nics(log, context) + _gdr(log, context) + _protocol(log, context)
    found += _inside(log, context) + _nvls(log, context)
    if missing := log_whole.missing(log, nodes=context.nodes, ranks=context.ranks, partial=context.partial):
        found += [_unknown("log-incomplete", target, word) for target, word in missing]
    elif context.timed_out or context.exit_code not in (0, None):
        found.append(_unknown("run-failed", "node", f"the run did not end well (exit code {context.exit_code})"))
    return found


def _fails(found: list[Judged]) -> bool:
    return any(judged.verdict == FAIL for judged in found)


def _refuted(log: Log, context: Context) -> list[Judged]:
    found = _network(log, context) + _nics(log, context) + _gdr(log, context)
    return found if _fails(found) else []


def _unknown(name: str, target: str, word: str, action: str = "none") -> Judged:
    return Judged(Finding(name, target, action, (word,)), UNKNOWN)


def _fail(name: str, target: str, word: str) -> Judged:
    return Judged(Finding(name, target, "drain", (word,)), FAIL)


def _hosts(log: Log, which: Callable[[Process], bool]) -> tuple[list[str], bool]:
    """Return the nodes where a process is so, and whether that is every node of the log."""
    every = dict.fromkeys(p.node for p in log.processes)
    some = dict.fromkeys(p.node for p in log.processes if which(p))
    return list(some), len(some) == len(every)


def _targets(log: Log, which: Callable[[Process], bool]) -> list[str]:
    hosts, all_of_them = _hosts(log, which)
    return ["node"] if hosts and all_of_them else [f"node:{name}" for name in hosts]


def _cuda(log: Log) -> list[Judged]:
    found = []
    for process in {p.node: p for p in log.processes if p.cuda_failure}.values():
        code = process.cuda_failure.split(" ")[0]
        target, word = f"node:{process.node}", f"CUDA failure {process.cuda_failure}"
        if code in _NODE_CUDA or "system not yet initialized" in word:
            found.append(_fail(_NODE_CUDA.get(code, "cuda-not-initialised"), target, word))
        else:
            found.append(_unknown("cuda-failure", target, word))
    return found


def _mismatch(log: Log) -> list[Judged]:
    if not any(p.mismatch for p in log.processes):
        return []
    word = f"the nodes load different NCCL: {', '.join(log.versions) or 'versions not named'}"
    return [_unknown("nccl-version-mismatch", "node", word, "warn")]


def _duplicate(log: Log) -> list[Judged]:
    word = "two ranks were given the same GPU: a fault of whoever started them"
    return [_unknown("gpu-duplicate", target, word) for target in _targets(log, lambda p: p.duplicate_gpu)]


def _unmet(log: Log) -> list[Judged]:
    word = "the network that NCCL_NET names cannot be initialised, and nothing fell back to TCP"
    stuck = [p for p in log.processes if p.net_unmet]
    if any(p.no_provider for p in stuck):
        word = f"{word}; the plugin found no EFA device"
    elif any(p.plugin_failed for p in stuck):
        word = f"{word}; the plugin could not start"
    elif any(p.no_plugin for p in stuck):
        word = f"{word}; no plugin was found"
    return [_fail("nccl-net-unmet", target, word) for target in _targets(log, lambda p: p.net_unmet)]


def _lost(log: Log) -> list[Judged]:
    """Whoever reports that a peer went away is never the one at fault, and the peer may not be, either."""
    if any(p.unresponsive for p in log.processes):
        word = "a peer did not answer the first handshake: its process was gone, or never started"
        return [_unknown("peer-unresponsive", "node", word)]
    peers = dict.fromkeys(p.lost_peer for p in log.processes if p.lost_peer is not None)
    word = "only this side reports that the peer went away; the cause is in the other log"
    return [_unknown("peer-lost", f"node:{peer}" if peer else "node", word) for peer in peers]


def _network(log: Log, context: Context) -> list[Judged]:
    found = [
        _fail("ofi-no-provider", target, "the plugin found no eligible provider: no EFA device is visible")
        for target in _targets(log, lambda p: p.no_provider)
    ]
    for provider in dict.fromkeys(p.provider for p in log.processes if p.provider and not is_efa_provider(p.provider)):
        found += [
            _fail(f"ofi-provider-{provider}", target, f"libfabric's provider is {provider}, not efa")
            for target in _targets(log, lambda p, provider=provider: p.provider == provider)  # type: ignore[misc]
        ]
    found += [
        _fail("nccl-socket-fallback", target, "the network in use is Socket: TCP carried the traffic")
        for target in _targets(log, _uses_socket)
    ]
    if found:
        return found
    used = dict.fromkeys(name for p in log.processes for name in (*p.networks[-1:], *p.net_lines))
    other = [name for name in used if not _is_efa(name)]
    if other:
        return [
            _unknown("not-efa-cluster", "node", f"the network is {other[0]}: neither EFA nor a fall-back to sockets")
        ]
    word = "the plugin's line that names its provider is missing"
    if unnamed := _targets(log, lambda p: bool(p.networks or p.net_lines) and not p.provider):
        return [_unknown("provider-not-named", target, word) for target in unnamed]
    named = (value for p in log.processes for name, value in p.environment if name == "NCCL_SOCKET_IFNAME")
    if used and (any(p.socket_line for p in log.processes) or any(not value.startswith("^") for value in named)):
        word = "an interface is named for the bootstrap alone; the data network is another"
        found.append(Judged(Finding("bootstrap-interface", "node", "none", (word,)), PASS))
    return found


def _uses_socket(process: Process) -> bool:
    return any(name.lower() == "socket" for name in (*process.net_lines, *process.networks[-1:]))


def _is_efa(name: str) -> bool:
    return "libfabric" in name.lower() or name.upper() == "OFI"


def _nics(log: Log, context: Context) -> list[Judged]:
    expected = context.expected_efa or (context.row.efa_devices if context.row else None)
    by_node: dict[str, int] = {}
    for process in log.processes:
        if process.nics is not None:
            by_node[process.node] = min(by_node.get(process.node, process.nics), process.nics)
    if not expected:
        return []
    if not by_node:
        told = [p.plugin for p in log.processes if p.provider and p.plugin is not None]
        word = "the plugin does not say how many adapters it found, as its release does"
        return [_unknown("nccl-nic-count", "node", word)] if any(map(_counts, told)) else []
    counts = set(by_node.values())
    if len(counts) > 1:
        most = max(counts)
        return [
            _fail("nccl-nic-count", f"node:{name}", f"{count} adapters, where another node found {most}")
            for name, count in by_node.items()
            if count < most
        ]
    count = counts.pop()
    if count >= expected:
        return []
    word = f"{count} adapters on every node in the log, {expected} expected"
    if count and context.expected_efa is None and expected % count == 0:
        # Some releases of the plugin count after they grouped the adapters of one GPU, and launches may attach fewer.
        return [_unknown("nccl-nic-count", "node", f"{word}: counted in groups, or fewer attached", "warn")]
    return [_fail("nccl-nic-count", "node", word)]


def _gdr(log: Log, context: Context) -> list[Judged]:
    talking = [p for p in log.processes if p.net_count]
    lacking = [p for p in talking if p.no_gdr_count]
    if not lacking:
        return [
            Judged(
                Finding(
                    "gdr-word-misleading", _rank_target(p), "none", ("every channel has GDRDMA, though it says GDR 0",)
                ),
                PASS,
            )
            for p in talking
            if p.gdr_word is False
        ]
    promised = efa_types.has_gpudirect(context.instance_type)
    if context.row is None or not promised:
        if promised is False:
            word = "this type has no GPUDirect RDMA"
            return [Judged(Finding("no-gdr-expected", _rank_target(p), "none", (word,)), PASS) for p in lacking]
        word = "channels lack GDRDMA, and whether this type has it is not known"
        return [_unknown("nccl-no-gdr", "node", word)]
    word = "channels between nodes lack GDRDMA: data goes through host memory"
    if any(p.gdr_disabled for p in lacking):
        word = f"{word}; the plugin says that it gave GPUDirect up"
    if len(lacking) == len(talking):
        return [_fail("nccl-no-gdr", "node", word)]
    whole = [n for n in dict.fromkeys(p.node for p in lacking) if all(p in lacking for p in talking if p.node == n)]
    if whole and all(p.node in whole for p in lacking) and len(lacking) > len(whole):
        return [_fail("nccl-no-gdr", f"node:{name}", word) for name in whole]
    return [_fail("nccl-no-gdr", _rank_target(p), word) for p in lacking]


def _protocol(log: Log, context: Context) -> list[Judged]:
    """Where RDMA writes are to be had, plain messages are slower; who set that by hand knows."""
    if not efa_types.has_rdma_write(context.instance_type):
        return []
    word = "the plugin uses SENDRECV where this type has RDMA: an old EFA driver, firmware or libfabric"
    return [
        Judged(Finding("ofi-protocol", target, "warn", (word,)), WARN)
        for target in _targets(log, lambda p: p.protocol == "SENDRECV" and p.protocol_by != "user")
    ]


def _counts(plugin: tuple[int, int]) -> bool:
    """Say whether this release of the plugin is known to count its adapters (by the sources of 1.9 to 1.20)."""
    return (1, 9) <= tuple(plugin) <= (1, 20)


def _rank_target(process: Process) -> str:
    return f"rank:{process.rank}" if process.rank is not None else f"node:{process.node}"


def _inside(log: Log, context: Context) -> list[Judged]:
    if context.row is None or context.row.nvlink_domain_gpus < 2:
        return []
    asking = {p.node for p in log.processes if any(_forbids_p2p(name, value) for name, value in p.environment)}
    word = "ranks of one node talk through shared memory in place of NVLink"
    found = [
        _fail("nccl-shm-in-node", t, word) for t in _targets(log, lambda p: p.shm_count > 0 and p.node not in asking)
    ]
    word = f"{word}, as a setting in the environment asks"
    for target in _targets(log, lambda p: p.shm_count > 0 and p.node in asking):
        found.append(Judged(Finding("nccl-shm-by-setting", target, "warn", (word,)), WARN))
    return found


def _forbids_p2p(name: str, value: str) -> bool:
    """Say whether a setting keeps GPUs of one node from talking directly (NCCL's documentation of both variables)."""
    if name == "NCCL_P2P_DISABLE":
        return value not in ("", "0")
    return name == "NCCL_P2P_LEVEL" and value.upper() in ("LOC", "0")


def _nvls(log: Log, context: Context) -> list[Judged]:
    row = context.row
    if row is None or row.gpus < 2 or row.gpu_type not in gpu_types.WITH_MULTICAST:
        return []
    if any(name == "NCCL_NVLS_ENABLE" and value == "0" for p in log.processes for name, value in p.environment):
        return []
    word = "a GPU reports no multicast support, so NVLink SHARP is not used: slower, and a hint at the fabric manager"
    bind = "multicast memory could not be bound, so NVLink SHARP is not used: fabric manager or an NVSwitch"
    return [
        Judged(Finding("nccl-no-nvls", target, "warn", (text,)), WARN)
        for which, text in ((lambda p: p.nvls is False, word), (lambda p: p.nvls_failed, bind))
        for target in _targets(log, which)
    ]

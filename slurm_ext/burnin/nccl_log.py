"""What NCCL and the EFA plugin say in their debug log (NCCL_DEBUG=INFO, subsystems INIT, NET, ENV), as facts. Pure.

Forms of NCCL 2.7 to 2.32 and aws-ofi-nccl 1.x, by their public sources. Lines may carry a launcher's prefix, a time or
colours. A line that is cut or torn is left out, since half a line says something else: unproven is right there.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from slurm_ext.patterns import pattern

#: The host's name begins where no word does: a long word is tried from its beginning only.
_LINE = pattern(r"(?<![\w.-])(?P<host>[A-Za-z0-9][\w.-]*):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] (?P<text>.*)")
_COLOUR = pattern(r"\x1b\[[0-9;]*[A-Za-z]")
#: Where two processes wrote into one line, a second beginning stands in the middle of it.
_TORN = pattern(r":\d{1,10}:\d{1,10} \[\d{1,4}\] \S{0,80}:?\d{0,6} ?NCCL (?:INFO|WARN)")
_WARN = pattern(r"NCCL WARN (.*)")
_VERSION = pattern(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_RANK = pattern(r"\brank (\d{1,9}) nranks (\d{1,9})\b")
_NETWORK = pattern(r"NCCL INFO Using network (.+)")  # a line comes without blanks at its end
_PROVIDER = pattern(
    r"NET/OFI Selected [Pp]rovider is ([\w.-]+?)(?:;\S+)?(?:, fabric is \S+)?(?: \(found (\d{1,9}) nics?\))?\s*$"
)
_PLUGIN = pattern(r"NET/OFI Initializing aws-ofi-nccl (\d{1,9})\.(\d{1,9})")
_CHANNEL = pattern(
    r"Channel \d+(?:/\d+)? : (\d{1,9})\[\w+\] -> (\d{1,9})\[\w+\] (?:\[(send|receive)\] )?via (NET|P2P|SHM|direct)(?:/(\S.*))?"
)
_ENVIRONMENT = pattern(r"\b(NCCL_\w+) set by environment to (\S.*)")
_PROTOCOL = pattern(r"NET/OFI Using transport protocol (\w+)(?: \((\w+) set\))?")
_NO_PLUGIN = pattern(r"NET/Plugin ?: .*(?:No plugin found|Could not find)|NET/Plugin: Using internal network plugin")
_NVLS = pattern(r"NVLS multicast support is (not )?available on dev (\d+)")
_NVLS_FAILED = pattern(r"Failed to bind NVLink SHARP \(NVLS\)")
_MNNVL = pattern(r"\bMNNVL ([01])\b")
_FABRIC = pattern(r"MNNVL busId \S+ fabric UUID (\S+) cliqueId (\S+) state (\d+)")
_CONNECTED = pattern(r"Connected all rings.* GDR ([01])\b")
_CUDA = pattern(r"(?:Cuda|CUDA) failure (\d+)? ?'?([^']*)")
_REMOTE = pattern(r"(?:closed by remote peer|remote peer) ([A-Za-z0-9][\w.-]*)<")

#: Of one process; a hostile log names any number.
_SEEN_MAX = 4096

#: Warnings are kept for the report, so many of one process.
_WARNINGS_MAX = 5


class Process(NamedTuple):
    """One process's view. Counts of channel lines; `nics` None: the plugin did not say, `gdr_word` the closing 'GDR n'."""

    node: str
    pid: int
    rank: int | None = None
    ranks: int | None = None
    seen: tuple[
        tuple[int, int], ...
    ] = ()  # size of each communicator and a rank in it: a process may have many of both
    version: str = ""
    networks: tuple[str, ...] = ()
    provider: str = ""
    nics: int | None = None
    no_provider: bool = False
    no_plugin: bool = False  # NCCL found no plugin's file
    plugin_failed: bool = False  # the plugin says that it could not start
    plugin: tuple[int, int] | None = None
    protocol: str = ""  # RDMA or SENDRECV
    protocol_by: str = ""  # platform or user, where the plugin says who chose it
    gdr_disabled: bool = False  # the plugin gave GPUDirect up on a type that has it
    net_lines: tuple[str, ...] = ()  # names of networks that channels use
    net_count: int = 0
    no_gdr_count: int = 0
    p2p_count: int = 0
    shm_count: int = 0
    nvls: bool | None = None
    nvls_failed: bool = False  # multicast memory could not be bound: the fabric manager or a switch
    mnnvl: bool | None = None  # NVLink between nodes is used
    mnnvl_count: int = 0  # channels over it
    fabric: tuple[str, str, str] | None = None  # UUID and clique of the NVLink domain, and its state
    mnnvl_degraded: bool = False  # the fabric says that it has less bandwidth than it should
    mnnvl_broken: bool = False  # NCCL says that it is there and does not work
    gdr_word: bool | None = None
    socket_line: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    cuda_failure: str = ""
    net_unmet: bool = False
    mismatch: bool = False
    duplicate_gpu: bool = False
    lost_peer: str | None = None
    unresponsive: bool = False
    complete: bool = False
    warnings: tuple[str, ...] = ()


class Log(NamedTuple):
    """All processes of a log, in order of appearance, and the versions that any line names."""

    processes: tuple[Process, ...]
    versions: tuple[str, ...] = ()


#: The end of a line that says nothing less where it was cut: copied logs often lack the last line's end.
_LAST_WORDS = ("Init COMPLETE", "Init COMPLETE\x1b[0m")


def parse_text(text: str) -> Log:
    """Return the facts of a whole text; a last line without its end is left out, unless it is a warning or ends by its words."""
    lines = text.splitlines()
    whole = text.endswith(("\n", "\r")) or text.endswith(_LAST_WORDS)
    if lines and not whole and "NCCL WARN" not in lines[-1]:
        lines.pop()
    return parse(lines)


def parse(lines: Iterable[str]) -> Log:
    """Return the facts of a log; lines that are none of NCCL's are skipped."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    versions: dict[str, None] = {}
    for line in lines:
        line = _COLOUR.sub("", line).rstrip() if "\x1b" in line else line.rstrip()
        if "NCCL version" in line and "torch" not in line and (match := _VERSION.search(line)):
            versions.setdefault(match.group(1))
        if "failure" in line and "Test CUDA failure" in line and (host := re.match(r"\s*([\w.-]+): Test CUDA", line)):
            for key in [key for key in found if key[0] == host.group(1)][:1]:
                _take(found[key], line)
        match = _LINE.search(line)
        if match is None or "NCCL" not in match["text"] or _TORN.search(match["text"]):
            continue
        key = (match["host"], int(match["pid"]))
        _take(found.setdefault(key, {}), match["text"])
    for facts in found.values():
        ignored = facts.pop("cuda_ignored", "")
        if ignored and not facts.get("complete"):
            facts.setdefault("cuda_failure", ignored)
    processes = tuple(
        Process(
            node,
            pid,
            **{
                **facts,
                "seen": tuple(facts.get("seen", {})),
                "networks": tuple(facts.get("networks", {})),
                "net_lines": tuple(facts.get("net_lines", {})),
                "environment": tuple(facts.get("environment", {}).items()),
                "warnings": tuple(facts.get("warnings", [])),
            },
        )
        for (node, pid), facts in found.items()
    )
    return Log(processes, tuple(versions))


def _take(facts: dict[str, Any], text: str) -> None:
    """Take one line's text into the facts of its process."""
    if match := _CHANNEL.search(text):
        _channel(facts, match)
    elif match := _WARN.search(text):
        _warning(facts, match.group(1))
    elif match := _NETWORK.search(text):
        networks = facts.setdefault("networks", {})
        networks.pop(match.group(1), None)  # the last communicator's network stands last
        networks[match.group(1)] = None
    elif match := _PROVIDER.search(text):
        if is_efa_provider(facts.get("provider", "efa")):  # what was ever something else stays
            facts["provider"] = match.group(1)
        if match.group(2):
            facts["nics"] = int(match.group(2))
    elif "No eligible providers" in text:
        facts["no_provider"] = True
    elif match := _PLUGIN.search(text):
        facts["plugin"] = (int(match.group(1)), int(match.group(2)))
    elif match := _PROTOCOL.search(text):
        facts["protocol"], facts["protocol_by"] = match.group(1), match.group(2) or ""
    elif _NO_PLUGIN.search(text):
        facts["no_plugin"] = True
    elif match := _FABRIC.search(text):
        facts["fabric"] = match.groups()
    elif "fabric health reports DEGRADED_BANDWIDTH" in text:
        facts["mnnvl_degraded"] = True
    elif match := _NVLS.search(text):
        facts["nvls"] = not match.group(1) and facts.get("nvls", True)
    elif match := _CONNECTED.search(text):
        facts["gdr_word"] = match.group(1) == "1"
    elif "NET/Socket" in text and "Using" in text:
        facts["socket_line"] = True
    elif match := _ENVIRONMENT.search(text):
        facts.setdefault("environment", {})[match.group(1)] = match.group(2).rstrip(".")  # numbers end in a full stop
    elif match := _VERSION.search(text):
        facts["version"] = match.group(1)
    elif _NVLS_FAILED.search(text):  # before the next: its words have a CUDA error of their own
        facts["nvls_failed"] = True
    elif match := _CUDA.search(text):  # NCCL goes on after those of level INFO: they count where it did not come far
        facts.setdefault("cuda_ignored", _cuda(match))
    if match := _MNNVL.search(text):
        facts["mnnvl"] = match.group(1) == "1"
    if match := _RANK.search(text):
        _rank(facts, int(match.group(1)), int(match.group(2)))
    if "Init COMPLETE" in text:
        facts["complete"] = True


def _rank(facts: dict[str, Any], rank: int, ranks: int) -> None:
    """Take a rank: communicators that were split off are smaller, and number anew."""
    facts.setdefault("rank", rank)
    facts["ranks"] = max(ranks, facts.get("ranks", 0))
    seen = facts.setdefault("seen", {})
    if len(seen) < _SEEN_MAX:
        seen[ranks, rank] = None


def is_efa_provider(name: str) -> bool:
    """Say whether a name of libfabric's provider is EFA's, in any of the forms that it took."""
    return name.lower().startswith("efa")


def _channel(facts: dict[str, Any], match: re.Match[str]) -> None:
    first, second, direction, kind, rest = match.groups()
    facts.setdefault("rank", int(second if direction == "receive" else first))
    if kind == "NET":
        name = (rest or "").split("/")[0]
        facts.setdefault("net_lines", {})[name] = None
        facts["net_count"] = facts.get("net_count", 0) + 1
        facts["no_gdr_count"] = facts.get("no_gdr_count", 0) + ("/GDRDMA" not in (rest or ""))
    else:
        name = "shm_count" if kind == "SHM" or "shared memory" in (rest or "") else "p2p_count"
        facts[name] = facts.get(name, 0) + 1
        if kind == "P2P" and (rest or "").startswith("MNNVL"):
            facts["mnnvl_count"] = facts.get("mnnvl_count", 0) + 1


def _cuda(match: re.Match[str]) -> str:
    return f"{match.group(1) or ''} {match.group(2)}".strip()


def _warning(facts: dict[str, Any], text: str) -> None:
    warnings = facts.setdefault("warnings", [])
    if len(warnings) < _WARNINGS_MAX:
        warnings.append(text[:300])
    if _NVLS_FAILED.search(text):
        facts["nvls_failed"] = True
        return
    if match := _CUDA.search(text):
        facts.setdefault("cuda_failure", _cuda(match))
    if re.search(r"network .+ not found", text) or "Failed to initialize any NET plugin" in text:
        facts["net_unmet"] = True
    if "GDR disabled on GDR-supported" in text:
        facts["gdr_disabled"] = True
    if "aws-ofi-nccl initialization failed" in text or "NET/OFI Initializing plugin failed" in text:
        facts["plugin_failed"] = True
    if "Duplicate GPU detected" in text:
        facts["duplicate_gpu"] = True
    if "MNNVL" in text and ("not supported" in text or "not working" in text):
        facts["mnnvl_broken"] = True
    if "Mismatched NCCL" in text:  # version, or since 2.32 the fingerprint of the build
        facts["mismatch"] = True
    if "No eligible providers" in text:
        facts["no_provider"] = True
    if "Unresponsive receiver" in text:
        facts["unresponsive"] = True
    elif match := _REMOTE.search(text):
        facts["lost_peer"] = match.group(1)
    elif "closed by remote peer" in text or "remote process exited" in text:
        facts.setdefault("lost_peer", "")

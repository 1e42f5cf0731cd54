"""What `fi_pingpong` said of an EFA device that talks to itself, and what that says of the node. Pure; hooks import this.

Sources, github.com/ofiwg/libfabric at v1.9.0 to v2.6.0: util/pingpong.c (options -p -e -d -B -P -I -S -c are in all of them; no
wait for traffic ever ends by itself; a completion in error is told as `cq_readerr: ...`, changed data as `Error at iteration=`,
trouble of the TCP connection beside it by the names of its calls; with no size that fits it does nothing and ends with 0),
util/info.c (the form of fi_info), prov/efa (domains are called DEVICE-rdm; FI_EFA_ENABLE_SHM_TRANSFER=0 keeps traffic of one
node off shared memory). AWS's own efa_test.sh does the same with one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_ext.gate.model import Judged, judged
from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple
from slurm_ext.verdict import FAIL, UNKNOWN, WARN, one_line

#: How a try on one device ended: data came back whole; it did not; nothing was learned; the tool is another than we know.
PASSED, FAILED, UNTRIED, REFUSED = "passed", "failed", "untried", "refused"

#: A device convicts its node where no more than one in so many fails: what fails on half of them is set up so (each interface has
#: security groups of its own), or it is libfabric's.
MINORITY = 4

#: Where none of the first so many passes, the others are not tried: that is no fault of a device.
FIRST = 4

#: One packet of EFA holds 8,928 bytes; what needs several goes other ways in each release.
SIZE_BYTES, ROUNDS = 4096, 200

_MOST_DOMAINS = 64
_FIELD = pattern(r"\s*(provider|domain|type|fi_fabric_attr\.prov_name): *(\S+)")
_DOMAIN = pattern(r"[A-Za-z0-9_.-]{1,64}")
_ROW = pattern(r"^\d[\d.]*[kmg]? +\d[\d.]*[kmb]? +[=+-]\d", needs=" ")
_SUFFIX = "-rdm"


class Ran(NamedTuple):
    """One of the two programs: its exit code (negative: a signal; None: it was still running when time was up), and its words."""

    code: int | None
    out: str = ""
    err: str = ""


class Try(NamedTuple):
    """What became of a device: PASSED, FAILED, UNTRIED or REFUSED, and why in words."""

    how: str
    said: str = ""


class Domain(NamedTuple):
    """One domain of libfabric, and the kernel's name for its device."""

    name: str
    device: str


def domains(text: str) -> tuple[Domain, ...]:
    """Return the domains for reliable datagrams in what `fi_info -p efa -t FI_EP_RDM` prints, each once."""
    found: dict[str, Domain] = {}
    block: dict[str, str] = {}

    def close() -> None:
        name = block.get("domain", "")
        if block.get("provider") == "efa" and block.get("type", "FI_EP_RDM") == "FI_EP_RDM" and _DOMAIN.fullmatch(name):
            found.setdefault(name, Domain(name, name.removesuffix(_SUFFIX)))

    for line in text.splitlines():
        field = _FIELD.match(line)
        if field is None:
            continue
        if field[1] == "provider":
            close()
            block = {}
        block[field[1]] = field[2].partition(";")[0]
    close()
    return tuple(found.values())[:_MOST_DOMAINS]


def argv(tool: str, domain: str, port: int, *, client: bool) -> tuple[str, ...]:
    """Return the command line of the server, or of the client that connects to it on this machine."""
    same = (tool, "-p", "efa", "-e", "rdm", "-d", domain, "-I", str(ROUNDS), "-S", str(SIZE_BYTES), "-c")
    return (*same, "-P", str(port), "127.0.0.1") if client else (*same, "-B", str(port))


def read(server: Ran, client: Ran, limit_s: float) -> Try:
    """Return what a server and its client, given `limit_s` seconds, say of the device between them."""
    if client.code == 0 and any(_ROW.search(line) for line in client.out.splitlines()):
        return Try(PASSED)
    said = f"{server.err}\n{client.err}"
    if any(line.startswith("Error at iteration=") for line in f"{server.out}\n{client.out}".splitlines()):
        return Try(FAILED, "data came back changed")
    if line := next((line for line in said.splitlines() if "cq_readerr:" in line), ""):
        return Try(FAILED, one_line(line[line.index("cq_readerr:") :], 200))
    if "Usage:" in said or "Unknown endpoint" in said:
        return Try(REFUSED, "fi_pingpong does not take our options")
    if server.code is None and client.code is None:
        return Try(FAILED, f"no traffic came through within {limit_s:.0f} s")
    return Try(UNTRIED, _words(server, client))


def _words(server: Ran, client: Ran) -> str:
    """Return the last words of whichever ended of itself, the server first: it is why the client lost its connection."""
    for name, ran in (("server", server), ("client", client)):
        if ran.code in (0, None):
            continue
        lines = [line for line in ran.err.splitlines() if line.strip()]
        how = f"signal {-ran.code}" if ran.code is not None and ran.code < 0 else f"exit {ran.code}"
        return f"{name}: {how}" + (f": {one_line(lines[-1], 200)}" if lines else "")
    return "both ended, and no traffic was told of" if client.code == 0 else "one of both ended without a word"


def worth_more(tries: Sequence[Try]) -> bool:
    """Say whether it is worth trying the next device, given the tries so far."""
    if any(one.how == REFUSED for one in tries):
        return False
    return len(tries) < FIRST or any(one.how == PASSED for one in tries)


def again(tries: Mapping[str, Try]) -> tuple[str, ...]:
    """Return the devices to be tried a second time: those that failed, where few enough did to be at fault themselves."""
    failed = tuple(device for device, one in tries.items() if one.how == FAILED)
    return failed if _is_minority(len(failed), tries) else ()


def _is_minority(failed: int, tries: Mapping[str, Try]) -> bool:
    passed = sum(one.how == PASSED for one in tries.values())
    return failed > 0 and passed > 0 and failed * MINORITY <= failed + passed


def judge(first: Mapping[str, Try], second: Mapping[str, Try], *, devices: int) -> list[Judged]:
    """Return what the tries of each device (by its name) say; `devices` is how many there are."""
    items: list[Judged] = []
    failed = {device: one for device, one in first.items() if one.how == FAILED}
    passed = [device for device, one in first.items() if one.how == PASSED]
    if failed and not _is_minority(len(failed), first):
        tried = f"{len(failed)} of {len(first)} devices that were tried, and {len(passed)} pass"
        line = f"traffic of the node with itself fails on {tried}: {next(iter(failed.values())).said}"
        why = "a security group that does not let its own members in does this, and so may this libfabric"
        items.append(
            judged(WARN, "efa.loopback-none" if not passed else "efa.loopback-many", "node", "warn", line, why)
        )
        failed = {}
    for device, one in failed.items():
        then = second.get(device, Try(UNTRIED, "it was not tried again"))
        if then.how == FAILED:
            lines = (f"{one.said}; again: {then.said}", f"{len(passed)} other devices of this node pass")
            items.append(judged(FAIL, "efa.loopback-failed", f"efa:{device}", "replace", *lines))
        elif then.how == PASSED:
            items.append(judged(WARN, "efa.loopback-unsteady", f"efa:{device}", "warn", f"{one.said}; then it passed"))
        else:
            items.append(untested(f"efa:{device}", f"{one.said}; then {then.said}"))
    unlearned = {device: one for device, one in first.items() if one.how in (UNTRIED, REFUSED)}
    if unlearned and len(unlearned) == len(first):
        return [untested("node", f"nothing was learned on {len(first)} devices: {next(iter(unlearned.values())).said}")]
    items += [untested(f"efa:{device}", one.said) for device, one in unlearned.items()]
    if (left := devices - len(first)) > 0 and not items:
        items.append(untested("node", f"there was no time for {left} of {devices} devices"))
    return items


def passed(first: Mapping[str, Try], second: Mapping[str, Try]) -> tuple[str, ...]:
    """Return the targets over which traffic passed whenever it was tried."""
    well = [device for device, one in first.items() if one.how == PASSED]
    return tuple(f"efa:{device}" for device in well if second.get(device, Try(PASSED)).how == PASSED)


def untested(target: str, why: str) -> Judged:
    """Return that nothing was learned of a device, or of all."""
    return judged(UNKNOWN, "efa.loopback-not-tested", target, "none", why)

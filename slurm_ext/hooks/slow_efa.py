"""EFA's loopback as a slow check: fi_pingpong with itself over each device of the node, one after another, in its leader.

The server listens on all addresses while a try lasts, as fi_pingpong always does, on a port that the kernel chose: whoever is
in the cluster's network could disturb a try by it, and no more; a try that ended otherwise than by traffic convicts nobody.
"""

from __future__ import annotations

import contextlib
import resource
import time

from slurm_ext.gate import efa_loopback
from slurm_ext.gate.efa_loopback import UNTRIED, Domain, Ran, Try
from slurm_ext.gate.slow_result import BROKE, DONE, ENDED
from slurm_ext.hooks import slow_program
from slurm_ext.hooks.slow_program import Program
from slurm_ext.hooks.slow_run import Order, Result

#: How long (seconds) fi_info may take to list the devices, a server to listen, and a try of one device to end.
LIST_S, LISTEN_S, TRY_S = 60.0, 15.0, 30.0

#: A server ends a moment after its client (seconds); what does not heed a word is killed after so long.
AFTER_S, KINDLY_S = 2.0, 1.0

#: Traffic over the device, not through shared memory; and no look at GPUs, whose driver could hang it.
_ENVIRONMENT = {"FI_EFA_ENABLE_SHM_TRANSFER": "0", "FI_HMEM": "system"}

_LISTENS = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it


class Ended(Exception):
    """A job asks for the end."""


def run(order: Order, token: str) -> Result:
    """Try each device; `order.argv` is fi_info and fi_pingpong."""
    with contextlib.suppress(OSError, ValueError):  # what a device is given to work with is locked in memory
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        return _run(order, token)
    except Ended:
        return Result(ENDED, said="ended for a job")


def _run(order: Order, token: str) -> Result:
    lister, tool = order.argv
    deadline = time.monotonic() + order.limit_s
    found, said = _domains(lister, token, min(LIST_S, order.limit_s))
    if not found:
        return Result(BROKE, (efa_loopback.untested("node", said),), said)
    first: dict[str, Try] = {}
    for domain in found:
        if time.monotonic() + TRY_S > deadline or not efa_loopback.worth_more(tuple(first.values())):
            break
        first[domain.device] = _try(tool, token, domain)
    names = {domain.device: domain for domain in found}
    second: dict[str, Try] = {}
    for device in efa_loopback.again(first):
        if time.monotonic() + TRY_S > deadline:
            break
        second[device] = _try(tool, token, names[device])
    items = tuple(efa_loopback.judge(first, second, devices=len(found)))
    passed = efa_loopback.passed(first, second)
    if not passed and not any(one.how == efa_loopback.FAILED for one in first.values()):
        return Result(BROKE, items, next((one.said for one in first.values()), "no device was tried"))
    return Result(DONE, items, passed=passed)


def _domains(lister: str, token: str, limit_s: float) -> tuple[tuple[Domain, ...], str]:
    """Return the domains that libfabric lists; where there is none, why in words."""
    try:
        program = Program((lister, "-p", "efa", "-t", "FI_EP_RDM"), token, **_ENVIRONMENT)
    except OSError as exc:
        return (), f"{lister} cannot be started: {exc.strerror}"
    why = slow_program.wait([program], time.monotonic() + limit_s)
    program.end(kindly_s=KINDLY_S)
    if why == ENDED:
        raise Ended
    out, err = program.said()
    if why:
        return (), f"fi_info gave no answer within {limit_s:.0f} s"
    found = efa_loopback.domains(out)
    last = next((line for line in reversed(f"{out}\n{err}".splitlines()) if line.strip()), "it said nothing")
    return found, "" if found else f"fi_info lists no EFA device: {last[:200]}"


def _try(tool: str, token: str, domain: Domain) -> Try:
    """Let a server and a client of this machine talk over one device."""
    port = _free_port()
    programs: list[Program] = []
    try:
        programs.append(Program(efa_loopback.argv(tool, domain.name, port, client=False), token, **_ENVIRONMENT))
        server = programs[0]
        if not _listens(server, port):
            server.end(kindly_s=KINDLY_S)
            return efa_loopback.read(Ran(server.code or -9, *server.said()), Ran(0), TRY_S)
        programs.append(Program(efa_loopback.argv(tool, domain.name, port, client=True), token, **_ENVIRONMENT))
        client = programs[1]
        if slow_program.wait([client], time.monotonic() + TRY_S) == ENDED:
            raise Ended
        # Where the client ended by itself its server does, too, or says why it will not.
        if client.has_ended() and slow_program.wait([server], time.monotonic() + AFTER_S) == ENDED:
            raise Ended
        codes = [program.code if program.has_ended() else None for program in programs]
        for program in programs:
            program.end(kindly_s=KINDLY_S)
        rans = [Ran(code, *program.said()) for code, program in zip(codes, programs, strict=True)]
        return efa_loopback.read(rans[0], rans[1], TRY_S)
    except OSError as exc:
        return Try(UNTRIED, f"fi_pingpong cannot be started: {exc.strerror}")
    finally:
        for program in programs:
            program.end(kindly_s=KINDLY_S)


def _listens(server: Program, port: int) -> bool:
    """Wait until the server listens; nobody may connect to find out, since it takes the first who comes."""
    deadline = time.monotonic() + LISTEN_S
    while not server.has_ended() and time.monotonic() < deadline:
        if _is_open(port):
            return True
        if slow_program.pause(0.05):
            raise Ended
    return False


def _is_open(port: int) -> bool:
    """Say whether anybody listens on a port, by the kernel's table."""
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(path, encoding="ascii", errors="replace") as stream:
                for line in stream:
                    words = line.split(None, 4)
                    if len(words) > 3 and words[3] == _LISTENS and words[1].endswith(f":{port:04X}"):
                        return True
        except OSError:
            continue
    return False


def _free_port() -> int:
    """Return a port that nobody has at this moment."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])

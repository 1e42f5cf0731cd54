"""Random lines of kernel logs in every form that tools print them, with what is true of them: for soaks and benchmarks.

Most are noise as nodes have it; some are the driver's own, some say the same but were written by a user's program, some are
damaged. Forms: raw /dev/kmsg records, dmesg in its time styles (dmesg(1)), `dmesg -x`, `journalctl -k` as text and as JSON,
syslog files of RFC 3164 and RFC 5424. Who writes `kernel:` with logger(1) into a syslog file cannot be told from the kernel by
anybody, and is not among them; into /dev/kmsg no program can write records of facility 0 (Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Line(NamedTuple):
    """One line. `code` and `gpu` (0000:53:00) of an Xid that the kernel said in it, None where it said none. `whole` is false
    where it was damaged on its way: it may then be read or not."""

    text: str
    code: int | None = None
    gpu: str = ""
    whole: bool = True


CODES = (
    8,
    13,
    31,
    32,
    43,
    45,
    46,
    48,
    61,
    62,
    63,
    64,
    68,
    69,
    74,
    79,
    92,
    94,
    95,
    109,
    119,
    120,
    140,
    143,
    155,
    171,
    999,
)

_WORDS = (
    *(
        "audit: type=1400",
        'apparmor="STATUS"',
        "docker0: port 1(veth0) entered forwarding state",
        "usb 1-1: new device",
    ),
    *(
        "systemd[1]: Started Session 4 of User ada.",
        "EXT4-fs (nvme0n1p1): mounted filesystem",
        "nvidia-nvlink: Nvlink Core",
    ),
    *(
        "nvidia-nvswitch2: open (major=510)",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
        "perf: interrupt took",
    ),
    *(
        "efa 0000:51:00.0: enabling device",
        "infiniband rdmap81s0: registered",
        "nfs: server fs01 not responding, still trying",
    ),
    *(
        "Lustre: lustrefs-MDT0000-mdc-ffff: Connection restored",
        "mce: CPU0: Package temperature/speed normal",
        "TCP: out of memory",
    ),
    *(
        "NVRM: GPU at PCI:0000:53:00: GPU-5f1b2c3d-0000-1111-2222-333344445555",
        "nvidia 0000:53:00.0: irq 211 for MSI/MSI-X",
    ),
    *(
        "RPC: 79 xid 0x4f31a7d9 call_decode: retry",
        "xid 79",
        "Xid",
        "NVRM: Xid",
        "NVRM: Xid (invalid): 79, x",
        "NVRM: Xid error",
    ),
    *(
        "python3[4410]: segfault at 7f79 ip 00007f sp 00007f error 4",
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/job_4711",
    ),
    *(
        "INFO: task kworker/0:1:77 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s!",
    ),
    *(
        "nvme nvme1: I/O 381 QID 14 timeout, aborting",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
        "random: crng init done",
    ),
    "bash[99]: NVRM: Xid (PCI:0000:53:00): 79, a program's name in front",
    "my tool says NVRM: Xid (PCI:0000:53:00): 79, in the middle of a sentence",
)

_RESTS = (
    "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "pid=2503421, name=python3, Ch 00000008",
    "pid=4410, name=train 79, GPU, Ch 00000013, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    "Channel 00000001",
    "NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0)",
)


def draw(chance: random.Random, count: int, *, xids: float = 0.05, damage: float = 0.05) -> Iterator[Line]:
    """Yield `count` lines; of them the share `xids` speaks of Xids, half of those by programs, and `damage` is damaged."""
    for number in range(count):
        dice = chance.random()
        if dice < xids / 2:
            gpu, code = f"{chance.choice((0, 0, 0, 8, 0x18)):04x}:{chance.randrange(256):02x}:00", chance.choice(CODES)
            said = f"NVRM: Xid ({chance.choice(('PCI:', 'PCI:', ''))}{gpu}): {code}, {chance.choice(_RESTS)}"
            line = Line(chance.choice(_KERNEL)(chance, number, said), code, gpu)
        elif dice < xids:
            said = (
                f"NVRM: Xid (PCI:0000:{chance.randrange(256):02x}:00): {chance.choice(CODES)}, {chance.choice(_RESTS)}"
            )
            line = Line(chance.choice(_PROGRAMS)(chance, number, said))
        else:
            line = Line(chance.choice(_KERNEL)(chance, number, _noise(chance)))
        yield _damaged(chance, line) if chance.random() < damage else line


def _noise(chance: random.Random) -> str:
    dice = chance.random()
    if dice < 0.7:
        return chance.choice(_WORDS)
    if dice < 0.9:
        return "".join(chance.choices("abcXid NVRM:()[]{}<>,;=0123456789\t\"'\\", k=chance.randrange(120)))
    return "".join(chr(chance.randrange(32, 0x2FF)) for _ in range(chance.randrange(200)))


def _ctime(chance: random.Random) -> str:
    return f"{chance.choice(('Mon', 'Tue', 'Sun'))} {chance.choice(('Jan', 'Mar', 'Dec'))} {chance.randrange(1, 29):2}"


def _clock(chance: random.Random) -> str:
    return f"{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}"


def _iso(chance: random.Random, mark: str = ",") -> str:
    zone = chance.choice(("+00:00", "-07:00", "Z", ""))
    return f"2026-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}T{_clock(chance)}{mark}{chance.randrange(10**6):06}{zone}"


def _uptime(number: int) -> str:
    return f"[{number / 7:12.6f}]"


def _record(chance: random.Random, **fields: str) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": f"{1782870000000000 + chance.randrange(10**12)}", **fields})


_Form = Callable[[random.Random, int, str], str]

#: How the kernel's own messages are printed.
_KERNEL: tuple[_Form, ...] = (
    lambda c, n, said: f"{c.randrange(8)},{n},{n * 1000},{c.choice('-c+')};{said}",
    lambda c, n, said: f"{c.randrange(8)},{n},{n * 1000},-,caller=T{c.randrange(999)};{said}",
    lambda c, n, said: f"{_uptime(n)} {said}",
    lambda c, n, said: f"<{c.randrange(8)}>{_uptime(n)} {said}",
    lambda c, n, said: f"[{_ctime(c)} {_clock(c)} 2026] {said}",
    lambda c, n, said: f"{_iso(c)} {said}",
    lambda c, n, said: f"kern  :{c.choice(('warn', 'err', 'info', 'notice'))}  : {_uptime(n)} {said}",
    lambda c, n, said: f"kern  :warn  : {_iso(c)} {said}",
    lambda c, n, said: f"Mar {c.randrange(1, 29):2} {_clock(c)} gpu-node-a kernel: {said}",
    lambda c, n, said: f"Mar {c.randrange(1, 29):2} {_clock(c)} gpu-node-a kernel: {_uptime(n)} {said}",
    lambda c, n, said: f"{_iso(c, '.')} gpu-node-a kernel: {said}",
    lambda c, n, said: _record(c, _TRANSPORT="kernel", SYSLOG_IDENTIFIER="kernel", MESSAGE=said),
)

#: How lines come into the same files that a program of a user wrote.
_PROGRAMS: tuple[_Form, ...] = (
    lambda c, n, said: f"{c.randrange(8, 190)},{n},{n * 1000},-;{said}",
    lambda c, n, said: f"<{c.randrange(8, 190)}>{said}",
    lambda c, n, said: f"<{c.randrange(8, 190)}>{_uptime(n)} {said}",
    lambda c, n, said: f"{c.choice(('user', 'daemon', 'local0', 'auth'))}  :warn  : {_uptime(n)} {said}",
    lambda c, n, said: (
        f"Jul {c.randrange(1, 29):2} {_clock(c)} gpu-node-a {c.choice(('logger', 'python', 'sshd'))}[{n}]: {said}"
    ),
    lambda c, n, said: f"Jul {c.randrange(1, 29):2} {_clock(c)} gpu-node-a python[{n}]: kernel: {said}",
    lambda c, n, said: f"{_iso(c, '.')} gpu-node-a mallory[{n}]: {said}",
    lambda c, n, said: _record(c, _TRANSPORT=c.choice(("syslog", "stdout", "journal")), MESSAGE=said),
    lambda c, n, said: f"{_uptime(n)} python[{n}]: {said}",
    lambda c, n, said: f"{_uptime(n)} job said: {said}",
)

_ANSI = "\x1b[31m"


def _damaged(chance: random.Random, line: Line) -> Line:
    """Return the line after something happened to it on its way: it may then mean what it meant, or nothing."""
    text, how = line.text, chance.randrange(8)
    if how == 0:  # cut, before a code is whole or behind it
        return line._replace(text=text[: chance.randrange(len(text) + 1)], whole=False)
    if how == 1:
        return line._replace(text=f"{text}\r")
    if how == 2:
        return line._replace(text=f"\x00\x00{text}", whole=False)
    if how == 3:
        place = chance.randrange(len(text) + 1)
        return line._replace(text=f"{text[:place]}\x00{text[place:]}", whole=False)
    if how == 4:
        return line._replace(text=f"{_ANSI}{text}\x1b[0m", whole=False)
    if how == 5:
        return line._replace(text=text + "x" * chance.choice((1_000, 9_000, 70_000)), whole=False)
    if how == 6:  # two writers into one file
        return line._replace(text=f"{_noise(chance)}{text}", whole=False)
    place = chance.randrange(len(text) + 1)
    return line._replace(text=f"{text[:place]}\ufffd\udce9{text[place:]}", whole=False)

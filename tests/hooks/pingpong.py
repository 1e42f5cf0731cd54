"""A stand-in for fi_pingpong and fi_info of libfabric: their options, their words, their exit codes, and a real TCP connection.

How each domain behaves stands in a file of its name beside the programs: pass (also where there is none), hang, error, changed,
once (fails the first time), slow-server, refuse, nothing. Forms are those of util/pingpong.c and util/info.c.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_PINGPONG = """#!{python} -IS
import getopt, os, socket, sys, time
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/ran", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "|" + os.environ.get("FI_EFA_ENABLE_SHM_TRANSFER", "") + "\\n")

def usage():
    sys.stderr.write("Usage:\\n  fi_pingpong [OPTIONS]\\t\\tstart server\\n")
    sys.exit(1)

def behaviour(domain):
    try:
        word = open(here + "/domains/" + domain).read().strip()
    except FileNotFoundError:
        sys.stderr.write("fi_getinfo(): util/pingpong.c:1497, ret=-61 (No data available)\\n")
        sys.exit(61)
    mark = here + "/domains/" + domain + ".failed"
    if word != "once":
        return word
    if os.path.exists(mark):
        return "pass"
    if client:
        open(mark, "w").close()
    return "error"

try:
    options, words = getopt.getopt(sys.argv[1:], "hvd:p:f:e:I:S:s:B:P:cm:6")
except getopt.GetoptError as exc:
    sys.stderr.write("fi_pingpong: invalid option -- '%s'\\n" % exc.opt)
    usage()
options = dict(options)
client = words[0] if words else ""
if os.path.exists(here + "/refuse"):
    usage()
assert (options["-p"], options["-e"]) == ("efa", "rdm")
if client:
    try:
        link = socket.create_connection((client, int(options["-P"])))
    except OSError as exc:
        sys.stderr.write("[error] util/pingpong.c:415 : failed to connect: %s\\n" % exc.strerror)
        sys.exit(exc.errno)
else:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", int(options["-B"])))
    listener.listen(10)
    link, _ = listener.accept()
    listener.close()
how = behaviour(options["-d"])
link.sendall(b"name")
if link.recv(4) != b"name":
    sys.stderr.write("[error] util/pingpong.c:560 : ctrl/read: no data or remote connection closed\\n")
    sys.exit(103)
if how == "hang":
    time.sleep(600)
if how == "error" and client:
    sys.stderr.write("libfabric:1:0::efa:cq:efa_rdm_cq_poll():1 <warn> an error\\n")
    sys.stderr.write("[error] util/pingpong.c:1127: cq_readerr: Unresponsive receiver\\n")
    sys.exit(107)
if how == "changed" and client:
    print("Error at iteration=1 size=4096 byte=17")
    sys.exit(255)
if how == "nothing":
    sys.exit(0)
link.sendall(b"done")
if link.recv(4) != b"done":
    sys.stderr.write("[error] util/pingpong.c:560 : ctrl/read: no data or remote connection closed\\n")
    sys.exit(103)
print("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec")
print("4k      1k      =1k      7.8m        0.03s    252.24      16.24       0.06")
"""

_INFO = """#!/bin/sh
[ "$*" = "-p efa -t FI_EP_RDM" ] || {{ echo "fi_getinfo: -61 (No data available)" >&2; exit 61; }}
cat {folder}/listed
"""


def install(folder: Path, behaviours: dict[str, str], *, python: str = sys.executable) -> tuple[str, str]:
    """Write both programs into a folder, with the EFA devices of `behaviours`; return their paths, fi_info first."""
    (folder / "domains").mkdir(parents=True)
    for device, how in behaviours.items():
        if how != "no-domain":
            (folder / "domains" / f"{device}-rdm").write_text(how)
    (folder / "listed").write_text(listed(list(behaviours)))
    programs = {"fi_info": _INFO.format(folder=folder), "fi_pingpong": _PINGPONG.replace("{python}", python)}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return str(folder / "fi_info"), str(folder / "fi_pingpong")


def listed(devices: Sequence[str]) -> str:
    """Return what `fi_info -p efa -t FI_EP_RDM` prints of libfabric 2: each device with both its fabrics."""
    return "".join(
        f"provider: efa\n    fabric: {fabric}\n    domain: {device}-rdm\n    version: 203.0\n"
        f"    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
        for device in devices
        for fabric in ("efa-direct", "efa")
    )

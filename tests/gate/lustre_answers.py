"""Lustre clients as tests make them up: the files of connections, lines of mounts."""

from __future__ import annotations

import fabric_answers

from slurm_ext.gate import replay_lustre

NOW = 1_510_950_460


def answer(roles, context=None):
    return fabric_answers.answer(replay_lustre.judge, "lustre", roles, context=context)


def word(verdict, target, action):
    return verdict, {(target, action)}


IMPORT = """import:
    name: NAME
    target: TARGET_UUID
    state: STATE
    connect_flags: [ version, adaptive_timeouts ]
    import_flags: [ replayable, pingable, connect_tried ]
    connection:
       failover_nids: [ 10.0.0.42@o2ib, 10.0.0.43@o2ib ]
       current_connection: CURRENT
       connection_attempts: 3
       generation: 1
"""
NEWER = IMPORT.replace("10.0.0.42@o2ib, 10.0.0.43@o2ib", '"10.0.0.42@o2ib", "10.0.0.43@o2ib"').replace(
    "CURRENT", '"CURRENT"'
)


def connection(target, state="FULL", history=((-3600, "CONNECTING"), (-3600, "FULL")), *, now=NOW, **more):
    kind = more.get("kind") or ("osc" if "OST" in target else "mdc" if "MDT" in target else "mgc")
    name = f"{target}-{kind}-ffff88105db50000" if kind != "mgc" else "MGC10.0.0.41@o2ib"
    base = f"{more.get('root', 'proc/fs/lustre')}/{kind}/{name}"
    text = more.get("form", IMPORT).replace("NAME", name).replace("TARGET", target).replace("STATE", state)
    text = text.replace("CURRENT", more.get("current", "10.0.0.42@o2ib"))
    changes = "".join(f" - [ {now + at}, {what} ]\n" for at, what in history)
    found = {f"{base}/active": more.get("active", "1\n"), f"{base}/import": text}
    found[f"{base}/state"] = f"current_state: {more.get('told', state)}\nstate_history:\n{changes}"
    return found


def client(*odd):
    found = {"sys/fs/lustre/health_check": "healthy\n", "proc/fs/lustre/llite/lustrefs-ffff88105db50000/uuid": "e8\n"}
    for target in ("lustrefs-MDT0000", "lustrefs-OST0000", "lustrefs-OST0001", "MGS"):
        found |= connection(target)
    for change in odd:
        found |= change
    return found


OST1, MDT = "lustrefs-OST0001", "lustrefs-MDT0000"

LUSTRE = "10.0.0.41@tcp:/abcdefgh /fsx lustre rw,seclabel,relatime,flock,checksum,lazystatfs 0 0\n"
AUTOFS = "systemd-1 /fsx autofs rw,relatime,fd=55,pgrp=1,timeout=0,minproto=5,maxproto=5,direct 0 0\n"
ROOT = "/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n"
FSTAB = "10.0.0.41@tcp:/abcdefgh /fsx lustre defaults,noatime,flock,_netdev 0 0\n"

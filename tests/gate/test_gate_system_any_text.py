"""No text breaks a parser of group `system`.

The rows are neighbours of captures: what is nearly the same and must be answered otherwise stands beside it.
"""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from system_answers import IDLE, ask
from test_gate_system import APPS, NO_ROWS, PS, SMI, STUCK, app
from test_gate_system_disks import DF, DFI, LS
from test_gate_system_host import LSCPU, meminfo
from test_gate_system_mounts import FSTAB, MD, ROOT, blocks, stripe, text_blocks
from test_gate_system_services import FABRIC, LIST, NTPQ, SOURCES, STOP, TRACKING, described, event, status

from slurm_ext.gate import (
    block_rules,
    clock_rules,
    disk_rules,
    ec2_events,
    gpu_process_rules,
    host_rules,
    mount_rules,
    process_rules,
    service_rules,
)
from slurm_ext.gate.process_rules import Jobs
from slurm_ext.verdict import ACTIONS, VERDICTS

SEEDS = [
    PS + STUCK,
    APPS + app(1, "python3"),
    SMI.format(used=4, rows=NO_ROWS),
    TRACKING,
    SOURCES,
    NTPQ,
    DF + "/dev/a 1 1 0 100% /\n",
    ROOT,
    FSTAB,
    "36 1 259:1 / /scratch rw shared:1 - ext4 /dev/md0 rw\n",
    blocks(8),
    text_blocks(8),
    MD.format(stripe(8)),
    status(FABRIC, "failed"),
    LIST,
    LSCPU,
    meminfo(2, 1),
    event("system-reboot"),
    described([STOP]),
    LS,
]
ALPHABET = st.text("0123456789abcdefDZ:/.,-=[](){}\"' \t\n\\%*^#+|_", max_size=60)


@st.composite
def texts(draw):
    """A real text with a piece cut out, put in or repeated."""
    seed = draw(st.sampled_from(SEEDS))
    first = draw(st.integers(0, len(seed)))
    last = draw(st.integers(first, min(len(seed), first + 80)))
    return seed[:first] + draw(ALPHABET) + seed[last:][: draw(st.integers(0, 4000))]


@settings(max_examples=300, deadline=None)
@given(texts(), st.sampled_from([Jobs(), Jobs(()), Jobs(("1",)), Jobs((), since_end_s=1e4)]))
def test_no_text_breaks_a_parser_or_makes_a_word_that_nobody_knows(text, jobs):
    items = process_rules.judge((process_rules.parse_ps(text) or ([], True))[0], jobs)
    items += gpu_process_rules.judge((gpu_process_rules.parse_apps(text) or ([], True))[0], jobs)
    items += gpu_process_rules.judge_memory(gpu_process_rules.parse_table(text), jobs)
    items += gpu_process_rules.judge(gpu_process_rules.parse_xml(text), jobs)
    items += clock_rules.judge(text, 1.78e9) or []
    items += disk_rules.judge((disk_rules.parse_df(text) or ([], True))[0], jobs)
    items += disk_rules.judge_leftover_files(disk_rules.parse_ls(text) or [], "/tmp", jobs)
    items += disk_rules.judge_errors(text)
    for read in (mount_rules.parse_mounts, mount_rules.parse_mountinfo):
        items += mount_rules.judge(read(text) or [], mount_rules.parse_fstab(text))
    mounts, usages = mount_rules.parse_findmnt(text) or ([], [])
    items += mount_rules.judge(mounts, None) + disk_rules.judge(usages, jobs)
    listing = block_rules.parse_lsblk(text)
    items += block_rules.judge_disks(listing, expected=8, disk_gb=3800) if listing else []
    items += block_rules.judge_arrays(block_rules.parse_mdstat(text) or [], expected=8)
    items += service_rules.judge(service_rules.parse(text, "systemctl is-active a b") or [], "p5.48xlarge")
    cpus, memory, told = host_rules.parse_lscpu(text), host_rules.parse_meminfo(text), ec2_events.parse(text)
    items += host_rules.judge_cpus(cpus, host_rules.Expected(192, 2, 2)) if cpus else []
    items += host_rules.judge_memory(memory, host_rules.Expected(), jobs) if memory else []
    items += host_rules.judge_load(text, host_rules.Expected(), jobs) or []
    items += ec2_events.judge(told, 1.78e9) if told else []
    for item in items:
        assert item.verdict in VERDICTS
        assert item.finding.action in ACTIONS
        assert item.finding.target


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | ALPHABET,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "lscpu",
                        "field",
                        "data",
                        "children",
                        "blockdevices",
                        "name",
                        "size",
                        "type",
                        "filesystems",
                        "target",
                        "InstanceStatuses",
                        "Events",
                        "Code",
                        "SystemStatus",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_no_json_breaks_a_parser(value):
    text = json.dumps(value)
    for read in (
        block_rules.parse_lsblk,
        mount_rules.parse_findmnt,
        host_rules.parse_lscpu,
        ec2_events.parse,
        service_rules.parse,
    ):
        read(text)


#: Healthy nodes, by role: cut in the middle of a line, no list proves that something is missing.
HEALTHY = {
    "ps": PS + "   2211 root     Ssl  -                              1-02:11:09 /usr/bin/nv-hostengine -n\n",
    "compute_apps": APPS + app(1, "/usr/bin/nv-hostengine"),
    "smi_table": SMI.format(used=4, rows=NO_ROWS),
    "chronyc": TRACKING,
    "timedatectl": "System clock synchronized: yes\n  NTP service: active\n",
    "df": DF + "/dev/nvme0n1p1 203056560 100040176 103016384  50% /\n",
    "df_inodes": DFI + "/dev/nvme0n1p1 13107200 301234 12805966 3% /\n",
    "lsblk": text_blocks(8),
    "mdstat": MD.format(stripe(8)),
    "systemctl": status(FABRIC, "active (running) since Tue"),
    "lscpu": LSCPU,
    "meminfo": meminfo(2015, 1990),
    "events": described(),
    "mountinfo": "36 1 259:1 / /scratch rw,relatime shared:1 - ext4 /dev/md0 rw,stripe=1024\n",
    "mounts": ROOT + "/dev/md0 /scratch ext4 rw 0 0\n",
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(HEALTHY)), st.integers(0, 5000))
def test_a_healthy_node_is_not_convicted_by_a_text_that_is_cut(tmp_path_factory, role, at):
    text = HEALTHY[role]
    at %= len(text)
    if text[at] == "\n" or text[at - 1] == "\n":
        at = max(text.rfind("\n", 0, at - 1) - 1, 0)
    roles = {
        role: text[:at],
        **({"fstab": FSTAB + "/dev/md0 /scratch ext4 defaults 0 2\n"} if role == "mounts" else {}),
    }
    folder = tmp_path_factory.mktemp("cut")
    assert ask(folder, context=IDLE, instance_type="p5.48xlarge", **roles)[0] not in ("fail", "warn")
    assert ask(folder, context=IDLE, instance_type="p5.48xlarge", **{**roles, role: text})[0] == "pass"

"""Lustre in captures: connections and their history, what is mounted, what calls on it say."""

from __future__ import annotations

import pytest
from fabric_answers import PASS
from lustre_answers import AUTOFS, FSTAB, IMPORT, LUSTRE, MDT, NEWER, NOW, OST1, ROOT, answer, client, connection, word

OST_FAIL, OST_WARN = word("fail", f"ost:{OST1}", "drain"), word("warn", f"ost:{OST1}", "warn")
OST_NOTE, BLIND = word("pass", f"ost:{OST1}", "none"), word("unknown", "node", "warn")
FULL = word("warn", "fs:/fsx", "warn")
BOTH = [path for path in client() if path.endswith(("state", "import"))]
EVICTED = ((-9000, "DISCONN"), (-9000, "CONNECTING"), (-8900, "EVICTED"), (-8900, "RECOVER"), (-8900, "FULL"))


def lost(seconds, *then):
    return ((-90_000, "FULL"), (-seconds, "DISCONN"), *((-seconds + 1, state) for state in then))


@pytest.mark.parametrize(
    ("odd", "context", "expected"),
    [
        (connection(OST1), {}, PASS),
        (connection(OST1, form=NEWER), {}, PASS),
        (connection(OST1, "IDLE", ((-90, "FULL"), (-20, "IDLE"))), {}, PASS),
        # Lost, for how long, and of what kind.
        (connection(OST1, "CONNECTING", lost(360, "CONNECTING")), {}, OST_FAIL),
        (connection(OST1, "DISCONN", lost(360)), {}, OST_FAIL),
        (connection(MDT, "DISCONN", lost(360)), {}, word("fail", f"mdt:{MDT}", "drain")),
        (connection(OST1, "DISCONN", lost(9)), {}, OST_WARN),
        (connection(OST1, "CONNECTING", lost(40, "CONNECTING")), {}, OST_WARN),
        (connection(OST1, "CONNECTING", lost(360, "CONNECTING", "DISCONN", "CONNECTING"), now=NOW - 5), {}, OST_FAIL),
        (connection(OST1, "CONNECTING", ()), {}, OST_FAIL),
        (connection(OST1, "EVICTED", lost(200, "EVICTED")), {}, OST_FAIL),
        (connection(OST1, "CLOSED", lost(200, "CLOSED")), {}, OST_FAIL),
        (connection(OST1, "REPLAY_WAIT", lost(120, "REPLAY_WAIT")), {}, OST_WARN),
        (connection(OST1, "REPLAY_LOCKS", lost(1200, "REPLAY_LOCKS")), {}, OST_FAIL),
        (connection(OST1, "RECOVER", lost(30, "EVICTED", "RECOVER")), {}, OST_WARN),
        (connection(OST1, "SLEEPING", lost(30)), {}, word("unknown", f"ost:{OST1}", "warn")),
        (connection("MGS", "DISCONN", lost(900)), {}, word("warn", "node", "warn")),
        # The two files of one connection are read one after the other: the worse of them stands.
        (connection(OST1, "FULL", lost(400), told="DISCONN"), {}, OST_FAIL),
        (connection(OST1, "FULL", active="0\n"), {}, OST_WARN),
        # Evicted: before the job, in it, after it, and with no job told.
        (connection(OST1, "FULL", EVICTED), {"job_start": NOW - 100}, OST_NOTE),
        (connection(OST1, "FULL", EVICTED), {"job_start": NOW - 9500}, OST_WARN),
        (connection(OST1, "FULL", EVICTED), {"job_start": "2017-11-17T10:00:00Z"}, OST_WARN),
        (connection(OST1, "FULL", EVICTED), {"job_start": NOW - 9900, "job_end": NOW - 9500}, OST_NOTE),
        (connection(OST1, "FULL", EVICTED), {}, OST_WARN),
        (connection(MDT, "IDLE", EVICTED), {"job_start": NOW - 9500}, word("warn", f"mdt:{MDT}", "warn")),
        (connection(OST1, "DISCONN", (*EVICTED, (-500, "DISCONN"))), {"job_start": NOW - 9500}, OST_FAIL),
        # Served by the second server.
        (connection(OST1, current="10.0.0.43@o2ib"), {}, OST_NOTE),
        (connection(OST1, current="10.0.0.43@o2ib", form=NEWER), {}, OST_NOTE),
        (connection(OST1, "DISCONN", lost(500), current="10.0.0.43@o2ib"), {}, OST_FAIL),
        ({"sys/fs/lustre/health_check": "LBUG\n"}, {}, word("fail", "node", "reboot")),
        ({"sys/fs/lustre/health_check": "device lustrefs-OST0001 reported unhealthy\nNOT HEALTHY\n"}, {}, word("fail", "node", "drain")),
        ({k: {"error": "EIO"} for k in connection(OST1) if not k.endswith("active")}, {}, word("unknown", f"ost:{OST1}", "warn")),
        ({next(k for k in connection(OST1) if k.endswith("import")): ""}, {}, PASS),  # the other file tells the state
    ],
)  # fmt: skip
def test_connections(odd, context, expected):
    assert answer({"tree": client(odd)}, {"now": NOW, "mount": "/lustre", **context}) == expected


def test_two_targets_and_two_file_systems_are_told_apart():
    odd = connection("scratch-OST0001", "DISCONN", lost(500)) | connection(OST1, "DISCONN", lost(500))
    expected = "fail", {("ost:scratch-OST0001", "drain"), (f"ost:{OST1}", "drain")}
    assert answer({"tree": client(odd)}, {"now": NOW}) == expected


def test_the_time_of_a_reading_stands_in_its_statistics():
    stats = {"proc/fs/lustre/llite/lustrefs-ffff88105db50000/stats": f"snapshot_time  {NOW}.787 secs.nsecs\n"}
    for seconds, expected in ((9, "warn"), (900, "fail")):
        assert answer({"tree": client(connection(OST1, "DISCONN", lost(seconds)), stats)})[0] == expected


@pytest.mark.parametrize(
    ("tree", "context", "expected"),
    [
        ({k: ({"error": "EIO"} if k.endswith("state") else "") for k in BOTH}, {}, BLIND),
        ({k: {"error": "EACCES"} for k in BOTH}, {}, BLIND),
        ({"proc/fs/lustre/": ""}, {"mount": "/fsx"}, word("fail", "fs:/fsx", "drain")),
        ({"proc/fs/lustre/": ""}, {}, word("unknown", "node", "none")),
        ({}, {"mount": "/fsx"}, word("unknown", "node", "none")),
    ],
)  # fmt: skip
def test_trees_that_tell_nothing_or_that_nothing_is_there(tree, context, expected):
    assert answer({"tree": tree}, context) == expected


def test_lctl_get_param_tells_the_same_as_the_files():
    text = f"osc.{OST1}-osc-ffff.import=\n" + IMPORT.replace("TARGET", OST1).replace("STATE", "DISCONN")
    text += f"osc.{OST1}-osc-ffff.state=\ncurrent_state: DISCONN\nstate_history:\n - [ {NOW - 500}, DISCONN ]\n"
    context = {"command": "lctl get_param osc.*.import osc.*.state", "now": NOW}
    assert answer({"stdout": text}, context) == OST_FAIL
    assert answer({"stdout": text.replace("DISCONN", "FULL")}, context) == PASS


NFS = "10.0.0.7:/export /data nfs4 rw,hard 0 0\n"
AUTO = FSTAB.replace("_netdev", "_netdev,x-systemd.automount")
GONE, IDLE = word("fail", "fs:/fsx", "drain"), word("pass", "fs:/fsx", "none")


@pytest.mark.parametrize(
    ("mounts", "fstab", "context", "expected"),
    [
        (ROOT + LUSTRE, FSTAB, {}, PASS),
        (ROOT + AUTOFS, AUTO, {}, IDLE),
        (ROOT + AUTOFS + LUSTRE, AUTO, {}, PASS),
        (ROOT, AUTO, {}, GONE),
        (ROOT, FSTAB, {}, GONE),
        (ROOT, FSTAB.replace("_netdev", "_netdev,nofail"), {}, GONE),
        (ROOT, FSTAB.replace("_netdev", "noauto"), {}, PASS),
        (ROOT, None, {"mount": "/fsx"}, GONE),
        (ROOT + LUSTRE, None, {"mount": "/fsx/"}, PASS),
        (ROOT + AUTOFS, None, {"mount": "/fsx"}, IDLE),
        (ROOT, None, {}, word("unknown", "node", "none")),
        (ROOT + AUTOFS, None, {}, IDLE),
        (ROOT + AUTOFS.replace("/fsx", "/proc/sys/fs/binfmt_misc"), None, {}, word("unknown", "node", "none")),
        # One of two.
        (ROOT + LUSTRE, FSTAB + "10.0.0.9@tcp:/zz /data lustre defaults 0 0\n", {}, word("fail", "fs:/data", "drain")),
        # Read-only, as fstab says and against it.
        (ROOT + LUSTRE.replace("rw,", "ro,"), FSTAB, {}, GONE),
        (ROOT + LUSTRE.replace("rw,", "ro,"), FSTAB.replace("defaults", "ro"), {}, PASS),
        (ROOT + LUSTRE.replace("rw,", "ro,"), None, {}, FULL),
        # Something else in its place; the same by another name of its server.
        (ROOT + LUSTRE.replace("abcdefgh", "hgfedcba"), FSTAB, {}, GONE),
        (ROOT + "tmpfs /fsx tmpfs rw 0 0\n", FSTAB, {}, GONE),
        (ROOT + "/dev/md0 /fsx xfs rw 0 0\n", None, {"mount": "/fsx"}, GONE),
        (ROOT + LUSTRE, FSTAB.replace("10.0.0.41", "fs-01.fsx.us-east-1.amazonaws.com"), {}, PASS),
        (ROOT + LUSTRE.replace("10.0.0.41@tcp", "10.0.0.41@tcp,10.0.0.41@efa"), FSTAB, {}, PASS),
        ("", FSTAB, {}, BLIND),
        ("Segmentation fault\n", FSTAB, {}, BLIND),
        ("10.0.0.41@tcp:/abcdefgh on /fsx type lustre (rw,flock,lazystatfs)\n", FSTAB, {}, PASS),
    ],
)
def test_mounts_against_fstab(mounts, fstab, context, expected):
    roles = {"mounts": mounts} | ({"fstab": fstab} if fstab is not None else {})
    assert answer(roles, context) == expected


def test_mountinfo_and_findmnt_tell_the_same():
    info = "36 1 0:55 / /fsx rw,relatime shared:1 - lustre 10.0.0.41@tcp:/abcdefgh rw,flock\n"
    assert answer({"mountinfo": info, "fstab": FSTAB}) == PASS
    assert (
        answer(
            {
                "mountinfo": info.replace("abcdefgh rw", "abcdefgh ro"),
                "fstab": FSTAB,
            }
        )
        == GONE
    )
    row = {"target": "/fsx", "source": "10.0.0.41@tcp:/abcdefgh", "fstype": "lustre", "options": "rw,flock"}
    assert answer({"findmnt": {"filesystems": [row]}}, {"command": "findmnt -J /fsx", "exit_code": 0}) == PASS
    assert answer({"findmnt": ""}, {"command": "findmnt -J /fsx", "exit_code": 1})[0] == "fail"


def call(stderr="", command="stat -t /fsx", code=1, **more):
    return {"stderr": stderr} | more.pop("roles", {}), {"command": command, "exit_code": code, **more}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (call(code=0), PASS),
        (call("stat: cannot statx '/fsx': Cannot send after transport endpoint shutdown"), GONE),
        (call("stat: cannot statx '/fsx': Cannot send after transport endpoint shutdown", roles={"mounts": LUSTRE}), GONE),
        (call("stat: cannot stat ‘/fsx/data/a.bin’: Input/output error"), GONE),
        (call("ls: reading directory '/fsx': Stale file handle", "ls /fsx"), GONE),
        (call("ls: cannot open directory '/fsx': Transport endpoint is not connected", "ls /fsx"), GONE),
        (call("touch: cannot touch '/fsx/.probe': Read-only file system", "touch /fsx/.probe", mount="/fsx"), GONE),
        (call("stat: cannot statx '/fsx': No such file or directory"), GONE),
        (call("touch: cannot touch '/fsx/.probe': No space left on device", "touch /fsx/.probe", mount="/fsx"), FULL),
        (call("touch: cannot touch '/fsx/.probe': Disk quota exceeded", "touch /fsx/.probe", mount="/fsx"), FULL),
        (call("stat: cannot statx '/fsx/x': Permission denied"), word("unknown", "fs:/fsx", "warn")),
        (call("", code=124, timed_out=True, elapsed_s=20), word("unknown", "fs:/fsx", "drain")),
        (call("", code=None, timed_out=True, mount="/fsx", command="lfs df"), word("unknown", "fs:/fsx", "drain")),
        (call("", code=0, elapsed_s=14.5), FULL),
        (call("", code=0, elapsed_s=0.2), PASS),
        (call("bash: lfs: command not found", "lfs df /fsx", 127), BLIND),
        (call("stat: something new", code=1), BLIND),
        (call("", "mountpoint /fsx", 32, roles={"stdout": "/fsx is not a mountpoint\n"}), GONE),
        (call("", "ls -l /fsx", 0, roles={"stdout": "total 4\n-????????? ? ? ? ?            ? a.bin\n"}), GONE),
        (call("", "ls -l /fsx", 0, roles={"stdout": "total 4\n-rw-r--r-- 1 u g 5 Jan 1 10:00 what?.bin\n"}), PASS),
        (call("ls: cannot access '/home': Input/output error", "ls", mount="/fsx"), word("fail", "fs:/home", "drain")),
        (call("stat: cannot statx '/data/x': Stale file handle", roles={"mounts": LUSTRE + NFS}), word("fail", "fs:/data", "drain")),
        (call("mount.lustre: mount 10.0.0.41@tcp:/x failed: Input/output error", "mount -t lustre 10.0.0.41@tcp:/x /fsx"), GONE),
    ],
)  # fmt: skip
def test_calls_on_the_file_system(run, expected):
    assert answer(*run) == expected


def test_kernel_lines_of_an_eviction():
    line = f"LustreError: 167-0: {OST1}-osc-ffff: This client was evicted by {OST1}; in progress operations using this service will fail.\n"
    assert answer({"dmesg": f"[Tue Mar 10 04:13:40 2026] {line}"}) == OST_WARN


def test_an_eviction_that_the_log_and_the_history_tell_is_one():
    log = f"LustreError: 167-0: {OST1}-osc-ffff: This client was evicted by {OST1}; in progress operations will fail.\n"
    roles = {"dmesg": f"[Fri Nov 17 17:59:20 2017] {log}", "tree": client(connection(OST1, "FULL", EVICTED))}
    assert answer(roles, {"now": NOW, "job_start": NOW - 100}) == OST_NOTE


def test_mounts_that_a_node_should_have():
    context = {"expected_mounts": ["/fsx", "/data"]}
    assert answer({"mounts": ROOT + LUSTRE}, context) == word("fail", "fs:/data", "drain")
    assert answer({"mounts": ROOT + LUSTRE + LUSTRE.replace("/fsx", "/data")}, context) == PASS


def test_quotas():
    head = "Disk quotas for usr u (uid 1):\n     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace\n"
    context = {"command": "lfs quota -u u /fsx", "exit_code": 0}
    assert (
        answer(
            {"stdout": head + "           /fsx  104860  102400  204800       -       7       0       0       -\n"},
            context,
        )
        == PASS
    )
    assert (
        answer(
            {"stdout": head + "           /fsx 304860*  102400  204800    none       7       0       0       -\n"},
            context,
        )
        == FULL
    )


def test_nothing_to_judge():
    assert answer({}) == word("unknown", "node", "none")

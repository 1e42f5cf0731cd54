"""Captures of group `system`: the clock, services, announced events.

The rows are neighbours of captures: what is nearly the same and must be answered otherwise stands beside it.
"""

from __future__ import annotations

import json

import pytest
from system_answers import NODE_DRAIN, NODE_NONE, NODE_REPLACE, NODE_WARN, PASS, ask, drained

TRACKING = """Reference ID    : A9FEA97B (169.254.169.123)
Stratum         : 4
Ref time (UTC)  : Tue Jul 14 08:11:52 2026
System time     : 0.000001183 seconds slow of NTP time
Last offset     : -0.000000922 seconds
Root delay      : 0.000412110 seconds
Root dispersion : 0.000101220 seconds
Update interval : 16.1 seconds
Leap status     : Normal
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", PASS),
        ("Normal", "Not synchronised", NODE_WARN),
        ("Normal", "Insert second", PASS),
        ("Normal", "A word of tomorrow", NODE_NONE),
        ("Stratum         : 4", "Stratum         : 0", NODE_WARN),
        ("Stratum         : 4", "Stratum         : 16", NODE_WARN),
        ("A9FEA97B (169.254.169.123)", "00000000 ()", NODE_WARN),
        ("A9FEA97B (169.254.169.123)", "7F7F0101 ()", NODE_WARN),
        ("A9FEA97B (169.254.169.123)", "50484330 (PHC0)", PASS),
        ("0.000001183 seconds slow", "0.004100000 seconds fast", PASS),
        ("0.000001183 seconds slow", "1.204100000 seconds fast", NODE_WARN),
        ("0.000001183 seconds slow", "412.204100000 seconds slow", NODE_DRAIN),
        ("Root dispersion : 0.000101220", "Root dispersion : 11.2", NODE_WARN),
        ("Tue Jul 14 08:11:52 2026", "Sun Jul 12 08:11:52 2026", NODE_WARN),
        ("Leap status     : Normal\n", "", NODE_NONE),
    ],
)
def test_chrony_tracking(tmp_path, old, new, expected):
    text = TRACKING.replace(old, new) if old else TRACKING
    assert ask(tmp_path, chronyc=text, context={"now": "2026-07-14T08:12:38Z"}) == expected


def test_minutes_away_is_one_finding_whatever_else_chrony_says(tmp_path):
    text = TRACKING.replace("0.000001183 seconds", "900.1 seconds").replace("Normal", "Not synchronised")
    assert ask(tmp_path, chronyc=text) == NODE_DRAIN


SOURCES = "MS Name/IP address         Stratum Poll Reach LastRx Last sample\n" + "=" * 79 + "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SOURCES + "^* 169.254.169.123               3   4   377    10    +12us[  +14us] +/-  306us\n", PASS),
        (SOURCES + "#* PHC0                          0   2   377     4     -2ns[   -5ns] +/-   31ns\n", PASS),
        (SOURCES + "^? 169.254.169.123               0   8     0     -     +0ns[   +0ns] +/-    0ns\n", NODE_WARN),
        (SOURCES + "^* 169.254.169.123               3   4     0   10h    +12us[  +14us] +/-  306us\n", NODE_WARN),
        (SOURCES + "^x 10.0.0.1                      3   4   377    10    +12us[  +14us] +/-  306us\n", NODE_WARN),
        ("210 Number of sources = 0\n" + SOURCES, NODE_WARN),
        (SOURCES, NODE_WARN),
        ("506 Cannot talk to daemon\n", NODE_NONE),
        (
            "A9FEA97B,169.254.169.123,4,1784016712.1,0.000001,-0.0000009,0.000002,3.2,-0.0,0.01,0.0004,0.0001,16.1,Normal",
            PASS,
        ),
        ("00000000,,0,0.0,0.000000,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised", NODE_WARN),
        ("^,*,169.254.169.123,3,4,377,10,0.000012,0.000014,0.000306\n", PASS),
        ("200 OK\n0 sources online\n4 sources offline\n", NODE_WARN),
    ],
)
def test_chrony_in_other_forms(tmp_path, text, expected):
    assert ask(tmp_path, chronyc=text) == expected


NTPQ = "     remote           refid      st t when poll reach   delay   offset  jitter\n" + "=" * 78 + "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NTPQ + "*169.254.169.123 10.0.0.1         3 u   10   64  377    0.312    0.021   0.010\n", PASS),
        (NTPQ + "*169.254.169.123 10.0.0.1         3 u   10   64  377    0.312  812.100   0.010\n", NODE_WARN),
        (NTPQ + " 169.254.169.123 .INIT.          16 u    -   64    0    0.000    0.000   0.000\n", NODE_WARN),
        (NTPQ + "*LOCAL(0)        .LOCL.          10 l   10   64  377    0.000    0.000   0.000\n", NODE_WARN),
        ("unsynchronised\n   polling server every 64 s\n", NODE_WARN),
        ("synchronised to NTP server (169.254.169.123) at stratum 4\n   time correct to within 12 ms\n", PASS),
    ],
)
def test_ntp(tmp_path, text, expected):
    assert ask(tmp_path, stdout=text, context={"command": "ntpq -pn", "exit_code": 0}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("System clock synchronized: yes\n              NTP service: active\n", PASS),
        ("System clock synchronized: yes\n              NTP service: n/a\n", PASS),
        ("System clock synchronized: yes\n              NTP service: inactive\n", PASS),
        ("System clock synchronized: no\n              NTP service: inactive\n", NODE_WARN),
        ("     NTP enabled: yes\nNTP synchronized: no\n RTC in local TZ: no\n", NODE_WARN),
        ("     NTP enabled: yes\nNTP synchronized: yes\n RTC in local TZ: no\n", PASS),
        ("Timezone=UTC\nLocalRTC=no\nCanNTP=yes\nNTP=yes\nNTPSynchronized=no\n", NODE_WARN),
        ("Timezone=UTC\nNTP=no\nNTPSynchronized=yes\n", PASS),
        ("       Server: 169.254.169.123\n Packet count: 0\n", NODE_WARN),
        ("       Server: 169.254.169.123\n       Offset: +32us\n Packet count: 12\n", PASS),
        ("               Local time: Tue 2026-07-14 08:12:38 UTC\n", NODE_NONE),
        ("Failed to query server: Connection timed out\n", NODE_NONE),
    ],
)
def test_timedatectl(tmp_path, text, expected):
    assert ask(tmp_path, timedatectl=text) == expected


FABRIC = "nvidia-fabricmanager.service"


def status(unit, active, load="loaded (/usr/lib/systemd/system/x.service; enabled; preset: enabled)", mark="●"):
    return f"{mark} {unit} - something\n     Loaded: {load}\n     Active: {active}\n    Process: 1 ExecStart=/x\n"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("p5.48xlarge", status(FABRIC, "active (running) since Tue"), PASS),
        ("p5.48xlarge", status(FABRIC, "failed (Result: exit-code) since Tue", mark="×"), NODE_DRAIN),
        ("p4d.24xlarge", status(FABRIC, "inactive (dead)", mark="○"), NODE_DRAIN),
        ("p6-b200.48xlarge", status(FABRIC, "inactive (dead)", "masked (Reason: Unit is masked.)"), NODE_DRAIN),
        ("p5.48xlarge", "Unit nvidia-fabricmanager.service could not be found.\n", NODE_DRAIN),
        ("p5.48xlarge", status(FABRIC, "activating (start) since Tue"), NODE_NONE),
        ("p5.48xlarge", status(FABRIC, "activating (auto-restart) (Result: exit-code) since Tue"), NODE_DRAIN),
        ("g5.48xlarge", status(FABRIC, "failed (Result: exit-code) since Tue"), PASS),
        ("p5.4xlarge", status(FABRIC, "failed (Result: exit-code) since Tue"), PASS),
        ("p6e-gb200.36xlarge", status(FABRIC, "failed (Result: exit-code) since Tue"), PASS),
        (None, status(FABRIC, "failed (Result: exit-code) since Tue"), NODE_NONE),
        ("p6e-gb200.36xlarge", status("nvidia-imex.service", "failed (Result: exit-code)"), NODE_DRAIN),
        ("p5.48xlarge", status("nvidia-imex.service", "failed (Result: exit-code)"), PASS),
        ("p5.48xlarge", status("munge.service", "failed (Result: exit-code)"), NODE_DRAIN),
        (None, status("munge.service", "inactive (dead)"), NODE_DRAIN),
        (None, "Unit munge.service could not be found.\n", NODE_NONE),
        (None, status("slurmd.service", "failed (Result: exit-code)"), NODE_DRAIN),
        (None, status("chronyd.service", "inactive (dead)"), NODE_WARN),
        (
            None,
            status("chronyd.service", "active (running)") + status("systemd-timesyncd.service", "inactive (dead)"),
            PASS,
        ),
        ("p5.48xlarge", status("nvidia-dcgm.service", "failed (Result: signal)"), NODE_WARN),
        ("p5.48xlarge", status("nvidia-persistenced.service", "inactive (dead)"), NODE_WARN),
        (
            "p5.48xlarge",
            status("nvidia-dcgm.service", "inactive (dead)", "loaded (/x; disabled; preset: enabled)"),
            PASS,
        ),
        (None, status("scratch.mount", "failed (Result: exit-code)"), drained("/scratch")),
        (None, status("mnt-a\\x2db.mount", "failed (Result: exit-code)"), drained("/mnt/a-b")),
        (None, status("snapd.service", "failed (Result: exit-code)"), NODE_WARN),
        (None, "Failed to connect to bus: No such file or directory\n", NODE_NONE),
        (None, "x munge.service - MUNGE\n     Loaded: loaded (/x)\n", NODE_NONE),
    ],
)
def test_systemctl_status(tmp_path, kind, text, expected):
    assert ask(tmp_path, systemctl=text, instance_type=kind) == expected


def test_systemctl_says_on_stderr_that_there_is_no_such_unit(tmp_path):
    asked = {"command": "systemctl status nvidia-fabricmanager", "exit_code": 4}
    said = "Unit nvidia-fabricmanager.service could not be found.\n"
    for kind, expected in (("p5.48xlarge", NODE_DRAIN), ("g5.48xlarge", PASS), (None, NODE_NONE)):
        assert ask(tmp_path, stdout="", stderr=said, context=asked, instance_type=kind) == expected


LIST = "  UNIT LOAD ACTIVE SUB DESCRIPTION\n{}\nLOAD   = Reflects whether the unit definition was properly loaded.\n"


@pytest.mark.parametrize(
    ("text", "context", "expected"),
    [
        ("  UNIT LOAD ACTIVE SUB DESCRIPTION\n0 loaded units listed.\n", None, PASS),
        (
            LIST.format("● nvidia-fabricmanager.service loaded failed failed NVIDIA fabric manager service"),
            None,
            NODE_DRAIN,
        ),
        (
            LIST.format("  munge.service loaded active running MUNGE\n  slurmd.service loaded active running Slurm"),
            None,
            PASS,
        ),
        (LIST.format("● dnf-makecache.service loaded failed failed dnf makecache"), None, NODE_WARN),
        (LIST.format("● fsx.mount loaded failed failed /fsx"), None, drained("/fsx")),
        (
            '[{"unit":"munge.service","load":"loaded","active":"failed","sub":"failed","description":"x"}]',
            None,
            NODE_DRAIN,
        ),
        (
            "Id=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\n\nId=munge.service\nLoadState=loaded\nActiveState=active\n",
            None,
            NODE_DRAIN,
        ),
        ("ActiveState=active\nSubState=running\n", {"command": "systemctl show munge"}, PASS),
        ("active\nfailed\n", {"command": "systemctl is-active munge nvidia-fabricmanager", "exit_code": 3}, NODE_DRAIN),
        ("active\nactive\n", {"command": "systemctl is-active munge nvidia-fabricmanager", "exit_code": 0}, PASS),
        ("inactive\n", {"command": "systemctl is-active nvidia-fabricmanager.service", "exit_code": 3}, NODE_DRAIN),
        ("active\n", None, NODE_NONE),
        ("munge: active\nslurmd: active\nnvidia-fabricmanager: inactive\n", None, NODE_DRAIN),
        ("running\n", {"command": "systemctl is-system-running"}, PASS),
        ("degraded\n", {"command": "systemctl is-system-running", "exit_code": 1}, NODE_WARN),
        ("starting\n", {"command": "systemctl is-system-running", "exit_code": 1}, NODE_NONE),
    ],
)
def test_systemctl_in_other_forms(tmp_path, text, context, expected):
    assert ask(tmp_path, systemctl=text, instance_type="p5.48xlarge", context=context) == expected


NOW = {"now": "2026-07-14T08:12:38Z"}


def event(code, start="16 Jul 2026 06:00:00 GMT", end="16 Jul 2026 08:00:00 GMT", state="active", text="scheduled"):
    return json.dumps(
        [{"NotBefore": start, "Code": code, "Description": text, "EventId": "e", "NotAfter": end, "State": state}]
    )


def described(events=(), system="ok", instance="ok"):
    row = {
        "InstanceId": "i-1",
        "Events": list(events),
        "SystemStatus": {"Status": system},
        "InstanceStatus": {"Status": instance},
    }
    return json.dumps({"InstanceStatuses": [row]})


STOP = {
    "Code": "instance-stop",
    "NotBefore": "2026-07-28T12:00:00.000Z",
    "Description": "The instance is running on degraded hardware",
}


@pytest.mark.parametrize(
    ("text", "context", "expected"),
    [
        ("[]", NOW, PASS),
        (event("system-reboot"), NOW, NODE_WARN),
        (event("instance-reboot"), NOW, NODE_WARN),
        (event("system-maintenance"), NOW, NODE_WARN),
        (event("instance-retirement"), NOW, ("warn", ("node", "replace"))),
        (event("instance-stop"), NOW, ("warn", ("node", "replace"))),
        (event("system-reboot", state="completed"), NOW, PASS),
        (event("system-reboot", state="canceled"), NOW, PASS),
        (event("system-reboot", text="[Completed] scheduled reboot"), NOW, PASS),
        (event("instance-stop", text="[Canceled] The instance is running on degraded hardware"), NOW, PASS),
        (event("system-reboot", "14 Jul 2026 08:00:00 GMT", "14 Jul 2026 10:00:00 GMT"), NOW, NODE_DRAIN),
        (event("system-reboot", "14 Jul 2026 08:30:00 GMT", "14 Jul 2026 10:00:00 GMT"), NOW, NODE_DRAIN),
        (event("system-reboot", "10 Jul 2026 08:00:00 GMT", "10 Jul 2026 10:00:00 GMT"), NOW, PASS),
        (event("instance-retirement", "10 Jul 2026 08:00:00 GMT"), NOW, NODE_REPLACE),
        (event("system-reboot"), None, NODE_WARN),
        (event("quantum-shift"), NOW, NODE_NONE),
        (described(), NOW, PASS),
        (described([STOP]), NOW, NODE_REPLACE),
        (
            described([{**STOP, "Description": "[Completed] The instance is running on degraded hardware"}]),
            NOW,
            PASS,
        ),
        (described([{**STOP, "Code": "system-reboot", "Description": "x"}]), NOW, NODE_WARN),
        (described(system="impaired"), NOW, NODE_REPLACE),
        (described(instance="impaired"), NOW, ("fail", ("node", "reboot"))),
        (described(instance="initializing"), NOW, NODE_NONE),
        ('{"action": "terminate", "time": "2026-07-14T08:14:00Z"}', NOW, NODE_DRAIN),
        ("<?xml version='1.0'?><title>404 - Not Found</title>", NOW, NODE_NONE),
        ('[{"NotBefore": "16 Jul 2026', NOW, NODE_NONE),
        ("", NOW, NODE_NONE),
    ],
)
def test_announced_events(tmp_path, text, context, expected):
    assert ask(tmp_path, events=text, context=context, instance_type="p5.48xlarge") == expected

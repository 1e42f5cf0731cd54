"""Lustre, live: connections and LNet of a simulated client, when they convict, and whose data an eviction cost."""

from __future__ import annotations

import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_node import found, healthy, here, look

from slurm_ext.gate import collect, lnet, local, lustre_checks, lustre_facts, lustre_live, probe_lustre, probes
from slurm_ext.gate.lustre_rules import Window
from slurm_ext.lab import hardware_host
from slurm_ext.verdict import FAIL, PASS, UNKNOWN, WARN

OST = f"{hardware_host.FILE_SYSTEM}-OST0002"
WHERE = f"ost:{OST}"
NAME = f"{OST}-osc-{hardware_host.CLIENT}"
FOLDER = f"proc/fs/lustre/osc/{NAME}"
NIS = "sys/kernel/debug/lnet/nis"
LNETCTL = "etc/fmslurm-lab/lnetctl-net-show.txt"
HEALTH = "sys/fs/lustre/health_check"


def ost(state: str, *history: tuple[float, str], first: str = "FULL") -> dict[str, str]:
    """Return the files of one connection that has a state and a history of (seconds ago, state), see `at_now`."""
    files = hardware_host.connection("osc", NAME, f"{OST}_UUID", state)
    lines = [(str(hardware_host.SINCE_S), first), *((f"AGO{ago:.0f}", word) for ago, word in history)]
    text = f"current_state: {state}\nstate_history:\n" + "".join(f" - [ {at}, {word} ]\n" for at, word in lines)
    return {**files, f"{FOLDER}/state": text}


def at_now(files: dict[str, str]) -> dict[str, str]:
    """Return files with their times, counted back from now: tests are collected minutes before they run."""
    now = time.time()
    return {
        path: re.sub(r"AGO(\d+)", lambda found: str(int(now - int(found[1]))), text) for path, text in files.items()
    }


def moved(place: str) -> dict[str, str | None]:
    """Return a healthy tree whose connections another release keeps elsewhere, `active` in sysfs."""
    files: dict[str, str | None] = {}
    for path, text in healthy().items():
        if not path.startswith("proc/fs/lustre/"):
            files[path] = text
        else:
            home = "sys/fs/lustre" if path.endswith("/active") else place
            files[path.replace("proc/fs/lustre", home)] = text
    return files


def net(*interfaces: tuple[str, str, int, int]) -> str:
    """Return what `lnetctl net show -v` prints of interfaces: net, status, messages each way, health."""
    text = "net:\n"
    for number, (kind, status, messages, health) in enumerate(interfaces):
        text += f"    - net type: {kind}\n      local NI(s):\n        - nid: 10.0.0.{number}@{kind}\n          status: {status}\n"
        text += f"          statistics:\n              send_count: {messages}\n              recv_count: {messages}\n"
        text += f"          health stats:\n              health value: {health}\n"
    return text


def test_a_client_without_lustre_says_nothing(tmp_path):
    files = {"proc/self/mountinfo": "27 1 259:1 / / rw - xfs /dev/nvme0n1p1 rw\n"}
    for phase in probes.PHASES:
        assert look(here(tmp_path, files, phase=phase), "lustre") == probes.Probed()
        assert look(here(tmp_path, {}, phase=phase), "lustre") == probes.Probed()


@pytest.mark.parametrize("place", probe_lustre.PLACES)
@pytest.mark.parametrize("phase", probes.PHASES)
def test_connections_are_found_wherever_a_release_keeps_them(tmp_path, place, phase):
    assert found(here(tmp_path, moved(place), phase=phase), "lustre") == []
    files = {**moved(place), f"{place}/osc/{NAME}/state": at_now(ost("EVICTED", (300, "EVICTED")))[f"{FOLDER}/state"]}
    assert found(here(tmp_path, files, phase=phase), "lustre") == [("lustre.import-bad", FAIL, WHERE, "drain")]


GONE = ost("EVICTED", (300, "EVICTED"))
BAD = [
    # An eviction that is not healed is this client's own; what a server may recover from is not.
    (GONE, "prolog", ("lustre.import-bad", FAIL, WHERE, "drain")),
    (GONE, "epilog", ("lustre.import-bad", FAIL, WHERE, "drain")),
    (GONE, "health", ("lustre.import-bad", FAIL, WHERE, "drain")),
    (ost("EVICTED", (5, "EVICTED")), "prolog", ("lustre.import-bad", WARN, WHERE, "drain")),
    (ost("DISCONN", (30, "DISCONN")), "prolog", ("lustre.import-lost", WARN, WHERE, "warn")),
    (ost("DISCONN", (300, "DISCONN")), "prolog", ("lustre.import-bad", WARN, WHERE, "drain")),
    (ost("DISCONN", (300, "DISCONN")), "health", ("lustre.import-bad", WARN, WHERE, "drain")),
    (ost("CONNECTING", (1000, "DISCONN"), (10, "CONNECTING")), "prolog", ("lustre.import-bad", WARN, WHERE, "drain")),
    (ost("CONNECTING", (1000, "DISCONN"), (10, "CONNECTING")), "health", ("lustre.import-bad", FAIL, WHERE, "drain")),
    (ost("REPLAY_WAIT", (60, "REPLAY_WAIT")), "health", ("lustre.import-recovery", WARN, WHERE, "warn")),
    (ost("HALF_FULL", (60, "HALF_FULL")), "prolog", ("lustre.import-unknown", UNKNOWN, WHERE, "warn")),
    (ost("DISCONN", (600, "DISCONN")) | {f"{FOLDER}/active": "0\n"}, "prolog", ("lustre.inactive", WARN, WHERE, "warn")),
    ({HEALTH: "device fsxlab-OST0002 reported unhealthy\nNOT HEALTHY\n"}, "prolog",
     ("lustre.not-healthy", WARN, "node", "drain")),
    ({HEALTH: "device fsxlab-OST0002 reported unhealthy\nNOT HEALTHY\n"}, "health",
     ("lustre.not-healthy", FAIL, "node", "drain")),
    ({HEALTH: "LBUG\n"}, "prolog", ("lustre.lbug", FAIL, "node", "reboot")),
    ({NIS: "nid status alive refs\n0@lo up 0 2\n"}, "prolog", ("lnet.no-network", WARN, "node", "drain")),
    ({NIS: "nid status alive refs\n0@lo up 0 2\n"}, "health", ("lnet.no-network", FAIL, "node", "drain")),
    ({NIS: "nid status alive refs\n10.0.0.1@tcp down 0 2\n"}, "health", ("lnet.down", FAIL, "node", "drain")),
    ({NIS: "nid status alive refs\n10.0.0.1@tcp down 0 2\n10.0.0.2@tcp up 0 1\n"}, "health",
     ("lnet.interface-down", WARN, "node", "warn")),
    ({NIS: "nid status alive refs\n10.0.0.1@tcp sleepy 0 2\n10.0.0.2@tcp up 0 1\n"}, "health",
     ("lnet.unknown-status", UNKNOWN, "node", "warn")),
    ({"sys/module/kefalnd/version": "1.1.1\n"}, "prolog", ("lustre.not-on-efa", WARN, "fs:/fsx", "warn")),
    ({"etc/lnet.conf": 'net:\n    - net type: "efa"\n'}, "health", ("lustre.not-on-efa", WARN, "fs:/fsx", "warn")),
    ({"etc/modprobe.d/lustre.conf": "options kefalnd ipif_name=ens5\n"}, "health",
     ("lustre.not-on-efa", WARN, "fs:/fsx", "warn")),
    ({LNETCTL: net(("tcp", "up", 90_000, 1000), ("efa", "up", 0, 1000))}, "health", ("lustre.not-on-efa", WARN, "fs:/fsx", "warn")),
    ({LNETCTL: net(("tcp", "up", 90_000, 640))}, "health", ("lnet.degraded", WARN, "node", "warn")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "phase", "wanted"), BAD, ids=[f"{n}-{row[2][0]}-{row[1]}" for n, row in enumerate(BAD)]
)
def test_every_finding_can_be_made(tmp_path, files, phase, wanted):
    if LNETCTL in files and wanted[0] == "lustre.not-on-efa":
        files = files | {"sys/module/kefalnd/version": "1.1.1\n"}
    assert found(here(tmp_path, healthy() | at_now(files), phase=phase), "lustre") == [wanted]


def test_the_management_server_is_worth_a_note(tmp_path):
    files = healthy() | hardware_host.connection("mgc", f"MGC{hardware_host.SERVER}", "MGS", "DISCONN")
    assert found(here(tmp_path, files, phase="prolog"), "lustre") == [("lustre.mgs-lost", WARN, "node", "warn")]


@pytest.mark.parametrize("phase", probes.PHASES)
def test_a_file_system_that_the_site_does_not_ask_for_convicts_nobody(tmp_path, phase):
    for files in (GONE, {HEALTH: "LBUG\n"}, {NIS: "nid status alive refs\n0@lo up 0 2\n"}):
        told = here(tmp_path, healthy() | at_now(files), phase=phase, lustre=("/other",))
        assert [verdict for _, verdict, *_ in found(told, "lustre")] == [WARN]


def test_efa_in_use_is_no_finding_whatever_network_a_connection_names(tmp_path):
    module = {"sys/module/kefalnd/version": "1.1.1\n"}
    nis = {NIS: "nid status alive refs\n10.0.0.1@tcp up 0 2\n10.0.0.1@efa up 0 1\n"}
    for phase in probes.PHASES:
        assert found(here(tmp_path, healthy() | module | nis, phase=phase), "lustre") == []
    counted = {LNETCTL: net(("tcp", "up", 500, 1000), ("efa", "up", 70_000, 1000))}
    assert found(here(tmp_path, healthy() | module | counted, phase="health"), "lustre") == []
    fresh = {LNETCTL: net(("tcp", "up", 500, 1000), ("efa", "up", 0, 1000))}  # nothing has been read yet
    assert found(here(tmp_path, healthy() | module | fresh, phase="health"), "lustre") == []


def test_an_eviction_is_told_of_to_the_job_that_ran(tmp_path):
    files = healthy() | at_now(ost("FULL", (100, "EVICTED"), (99, "CONNECTING"), (98, "FULL")))
    now = time.time()
    told = here(tmp_path, files, phase="epilog", job_id="4711", window=(now - 200, now))
    items = look(told, "lustre").items
    assert [(item.finding.id, item.verdict, item.finding.target) for item in items] == [("lustre.evicted", WARN, WHERE)]
    assert "job 4711" in items[0].finding.evidence[-1]
    later = here(tmp_path, files, phase="epilog", job_id="4712", window=(now - 50, now))
    assert found(later, "lustre") == [("lustre.evicted-old", PASS, WHERE, "none")]
    assert found(here(tmp_path, files, phase="prolog", job_id="4713"), "lustre") == []


def test_a_failover_is_recorded(tmp_path):
    files = healthy()
    path = f"{FOLDER}/import"
    files |= {path: files[path].replace("[ 198.18.255.254@tcp ]", "[ 198.18.255.1@tcp, 198.18.255.254@tcp ]")}
    assert found(here(tmp_path, files, phase="health"), "lustre") == [("lustre.failover", PASS, WHERE, "none")]
    assert found(here(tmp_path, files, phase="prolog"), "lustre") == []


def test_connections_that_cannot_be_read_are_unknown(tmp_path, monkeypatch):
    told = here(tmp_path, healthy(), phase="prolog")
    real = probe_lustre.read_small.read

    def denied(path: str, most: int = 4096) -> str | OSError:
        return OSError(5, "Input/output error") if path.endswith("/state") else real(path, most)

    monkeypatch.setattr(probe_lustre.read_small, "read", denied)
    assert found(told, "lustre") == [("lustre.unreadable", UNKNOWN, "node", "warn")]


def test_no_list_of_connections_is_left_to_the_file_call_in_a_prolog(tmp_path):
    files = {path: text for path, text in healthy().items() if "fs/lustre" not in path}
    assert found(here(tmp_path, files, phase="prolog"), "lustre") == []
    assert found(here(tmp_path, files, phase="health"), "lustre") == [("lustre.no-imports", UNKNOWN, "node", "none")]


def test_the_prologs_look_is_taken_with_the_nodes_own(tmp_path, monkeypatch):
    told = here(tmp_path, healthy() | at_now(GONE), phase="prolog")
    assert "lustre" not in probes.of_phase("prolog")
    assert found(told, "system") == [("lustre.import-bad", FAIL, WHERE, "drain")]

    def breaks(_here: probes.Here) -> probes.Probed:
        raise RuntimeError("an error of ours")

    monkeypatch.setattr(probe_lustre, "look", breaks)
    assert found(told, "system") == [("lustre.no-answer", UNKNOWN, "node", "none")]


def test_each_row_of_the_list_has_a_finding_here():
    made = {row[2][0] for row in BAD} | {"lustre.mgs-lost", "lustre.evicted", "lustre.evicted-old", "lustre.failover"}
    made |= {"lustre.unreadable", "lustre.no-imports", "lnet.no-tool", "lnet.no-answer"}
    assert sorted(made) == sorted(row.id for row in lustre_checks.CHECKS)


def test_a_missing_lnetctl_is_noted_and_one_that_fails_is_unknown(tmp_path, monkeypatch):
    told = here(tmp_path, healthy(), phase="health")
    seen = probe_lustre.read(told, (("/fsx", "x@tcp:/fsxlab"),))
    real = told._replace(root="/")

    def missing(*_args: object, **_more: object) -> None:
        raise lustre_live.CommandNotFoundError("cannot run lnetctl")

    monkeypatch.setattr(lustre_live.command, "run", missing)
    assert [item.finding.id for item in lustre_live._network(real, seen).note] == ["lnet.no-tool"]
    said = lustre_live.command.Result(("lnetctl",), None, "", "", 5.0, True)
    monkeypatch.setattr(lustre_live.command, "run", lambda *_args, **_more: said)
    note = lustre_live._network(real, seen).note
    assert [(item.finding.id, item.verdict) for item in note] == [("lnet.no-answer", UNKNOWN)]


@given(st.dictionaries(st.sampled_from(("a", "b", "c")), st.text(max_size=200), max_size=3), st.text(max_size=200))
def test_noise_is_never_plainly_well_and_never_convicts(states, nis):
    folders = {f"proc/fs/lustre/osc/{name}": text for name, text in states.items()}
    seen = probe_lustre.Seen((("/fsx", "x:/fsxlab"),), folders, {}, "", nis, False)
    good = all(text.startswith(("current_state: FULL", "current_state: IDLE")) for text in states.values())
    assert not probe_lustre.well(seen) or (states and good)
    tree = {f"{folder}/state": text for folder, text in folders.items()}
    client = lustre_facts.read(tree)
    for phase in probes.PHASES:
        items = lustre_live.connections(client, Window(2e9, 2e9, None), phase=phase, needed=frozenset(("fsxlab", "")))
        assert FAIL not in {item.verdict for item in items}
        told = lustre_live.Network(lnet.parse(nis), counted=True)
        lustre_live.networks(client, told, seen, wanted=True, phase=phase, required=True)


@given(st.text(max_size=500))
def test_any_set_up_is_read(text):
    lustre_live.names_efa(text)
    probe_lustre.mounted(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("options kefalnd ipif_name=ens5", True),
        ("options lnet networks=tcp(ens5),efa(rdmap0s6)", True),
        ("net:\n    - net type: efa\n", True),
        ("options lnet networks=tcp(ens5)", False),
        ("# options kefalnd ipif_name=ens5", False),
        ("blacklist kefalnd", False),
        ("install efa /sbin/modprobe --ignore-install efa", False),
        ("", False),
    ],
)
def test_set_up_that_names_efa(text, wanted):
    assert lustre_live.names_efa(text) is wanted


def test_a_mount_that_no_setting_names_is_asked_between_jobs_and_convicts_nobody(tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    found_only = tmp_path / "found only"
    for folder in (asked, found_only):
        folder.mkdir()
    root = "/dev/root / xfs rw 0 0\n"
    lines = [f"x@tcp:/a {str(path).replace(' ', chr(92) + '040')} lustre rw 0 0" for path in (asked, found_only)]
    told = here(
        tmp_path, {"proc/self/mounts": root + "\n".join(lines) + "\n"}, phase="health", scratch=(), lustre=(str(asked),)
    )
    real = collect._mount

    def stale(path: str) -> dict[str, object]:
        return {**real(path), "error": "ESHUTDOWN"}

    def look_at(phase: str) -> list[tuple[str, str, str]]:
        seen = local.look(told.settings, "n0", phase=phase, job_window=None, deadline_s=10.0)
        return [(i.finding.id, i.verdict, i.finding.target) for i in seen.items if i.finding.id.startswith("fs.")]

    assert look_at("health") == []
    monkeypatch.setattr(collect, "_mount", stale)
    bad = [("fs.stat-error", FAIL, f"fs:{asked}"), ("fs.stat-error", WARN, f"fs:{found_only}")]
    assert look_at("health") == bad
    assert look_at("prolog") == bad[:1]
    assert len(collect._lustre_points(told.root, 30.0)) == 2
    many = root + "".join(f"x /m{n} lustre rw 0 0\n" for n in range(50))
    (tmp_path / "root/proc/self/mounts").write_text(many)
    assert len(collect._lustre_points(told.root, 30.0)) == collect.MOST_LUSTRE


def test_a_table_of_mounts_whose_reading_hangs_costs_the_health_check_a_part_of_its_time(tmp_path):
    told = here(tmp_path, {"proc/self/mounts": ""}, phase="health", scratch=(), lustre=())
    path = tmp_path / "root/proc/self/mounts"
    path.unlink()
    os.mkfifo(path)
    assert collect._lustre_points(told.root, 0.2) == []
    seen = local.look(told.settings, "n0", phase="health", job_window=None, deadline_s=4.0)
    assert "host" in seen.facts.unread
    assert [item.verdict for item in seen.items if item.finding.id == "kernel.unreadable"] == [UNKNOWN]

"""The gate on a real Slurm where a node's own surroundings are wrong: its clock, its driver. Nobody's hardware is at fault."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed_lab import config_path, configure, fmslurm, hooks_running, installed, own_munged
from test_cluster_hooks import read, reasons, state, submit, trail, until

from slurm_ext.lab.cluster import Lab

#: Moves the clock of the process it is loaded into: munged then stamps and judges credentials by a wrong time.
SKEW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long skew(void) { const char *s = getenv("SKEW_S"); return s ? atol(s) : 0; }
time_t time(time_t *to) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (to) *to = t.tv_sec; return t.tv_sec; }
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec t; (void)zone; clock_gettime(CLOCK_REALTIME, &t);
    to->tv_sec = t.tv_sec; to->tv_usec = t.tv_nsec / 1000; return 0;
}
int clock_gettime(clockid_t id, struct timespec *to) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, to);
    if (!code && id == CLOCK_REALTIME) to->tv_sec += skew();
    return code;
}
"""


@pytest.fixture(scope="module")
def site(new_lab: type[Lab]) -> Iterator[Lab]:
    """Return a lab of three nodes as installed; no controller: hooks alone decide."""
    with installed(new_lab, "i", nodes=3) as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(site: Lab) -> Iterator[None]:
    """Put the configuration back and heal every node."""
    path = config_path(site)
    before = path.read_text()
    yield
    site.run(["scancel", "--user=root"])
    if path.read_text() != before:
        path.write_text(before)
        fmslurm(site, "config", "push")
    for node in site.nodes:
        site.heal(node)
    until(lambda: not site.run(["squeue", "-h"]).stdout.strip(), "the queue is empty")
    until(lambda: not hooks_running(site), "no hook runs")


@pytest.fixture
def skew(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which a program's clock is an hour ahead."""
    (tmp_path / "skew.c").write_text(SKEW)
    library = tmp_path / "skew.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "skew.c", "-ldl"],
        check=True,
        capture_output=True,
        timeout=240,
    )
    return {"LD_PRELOAD": str(library), "SKEW_S": "3600"}


def test_a_clock_that_munge_does_not_forgive_is_named_and_drains_nobody(site: Lab, skew: dict[str, str]) -> None:
    configure(site, deadline_s=20.0, rendezvous_s=6.0, late_s=2.0, on_absent="pass", on_unknown="pass")
    with own_munged(site, site.nodes[1], **skew):
        job, out = submit(site, "echo ran\n", "-N3")
        until(lambda: state(site, job) in ("COMPLETED", "FAILED", "CANCELLED"), "it ends")
    assert state(site, job) == "COMPLETED"
    assert reasons(site) == {}
    told = [trail(site, node, job, "gate.prolog")[0]["data"]["burnin"] for node in site.nodes]  # type: ignore[index]
    assert "unknown" in [one.get("verdict") for one in told], told  # type: ignore[attr-defined]
    assert "the clocks of both nodes differ" in json.dumps(told), told
    log = read(out)
    # Which words depends on who spoke for the job: the node whose clock differs, or those that waited for it.
    assert any(words in log for words in ("NOT TESTED", "no burn-in", "unknown")), log
    assert "ran\n" in log


def test_a_driver_too_old_for_the_library_is_no_fault_of_the_node(site: Lab) -> None:
    """CUDA says 35 (driver insufficient for the runtime): software, so the verdict is unknown and nothing drains."""
    old = site.nodes[2]
    hardware = site.path("nodes", old, "root", "etc", "fmslurm-lab", "hardware.env")
    before = hardware.read_text()
    fresh = hardware.with_suffix(".new")
    fresh.write_text(before + "".join(f"gpu.{gpu}.cuda_error=35\n" for gpu in range(8)))
    fresh.rename(hardware)
    try:
        configure(site, on_unknown="pass")
        job, out = submit(site, "echo ran\n", "-N3")
        until(lambda: state(site, job) in ("COMPLETED", "FAILED", "CANCELLED"), "it ends")
        assert state(site, job) == "COMPLETED"
    finally:
        fresh.write_text(before)
        fresh.rename(hardware)
    assert reasons(site) == {}
    told = trail(site, site.nodes[0], job, "gate.prolog")[0]["data"]["burnin"]  # type: ignore[index]
    assert told["verdict"] == "unknown", told  # type: ignore[index]
    assert old in json.dumps(told)
    assert "35" in json.dumps(told)
    assert "ran" in read(out)

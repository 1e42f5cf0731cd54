"""A munged, a site's key, and hubs that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from channel_peers import own_munged

from slurm_ext import keys
from slurm_ext.channel import Hub
from slurm_ext.command import run
from slurm_ext.credential import Authenticator, MungeAuthenticator
from slurm_ext.credential_tls import KeyAuthenticator


@pytest.fixture(scope="session")
def munge_socket() -> Iterator[str]:
    """A munged of our own, with its own key, in a folder that other users may enter."""
    with own_munged() as path:
        yield path


@pytest.fixture(scope="session")
def key_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with one key."""
    folder = tmp_path_factory.mktemp("site") / "keys"
    keys.create(str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def other_key_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with another site's key."""
    folder = tmp_path_factory.mktemp("other") / "keys"
    keys.create(str(folder))
    return str(folder)


@pytest.fixture(params=["key", "munge"])
def prove(request: pytest.FixtureRequest, key_folder: str) -> Callable[[], Authenticator]:
    """A way to make authenticators that believe each other."""
    if request.param == "key":
        return lambda: KeyAuthenticator(key_folder)
    path = request.getfixturevalue("munge_socket")
    return lambda: MungeAuthenticator(path)


@pytest.fixture
def hubs() -> Iterator[list[Hub]]:
    made: list[Hub] = []
    yield made
    for hub in made:
        hub.close()


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static time_t shift(void) { const char *text = getenv("CLOCK_SHIFT_S"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (code == 0 && id == CLOCK_REALTIME) now->tv_sec += shift();
    return code;
}
time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"""


@pytest.fixture(scope="session")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    """Return a function that gives the environment in which a program's clock is so many seconds off."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    argv = ["cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(folder / "clock.c"), "-ldl"]
    made = run(argv, timeout_s=300)
    assert made.ok, made.stderr
    return lambda seconds: {"LD_PRELOAD": str(folder / "clock.so"), "CLOCK_SHIFT_S": str(seconds)}

"""Certificates, keys and clocks that are not as they should be: refused, and named on both sides."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from channel_peers import Raw, kinds, munged, pump

from slurm_ext import credential_tls, keys
from slurm_ext.channel import Hub
from slurm_ext.credential import Authenticator, MungeAuthenticator
from slurm_ext.credential_tls import KeyAuthenticator

Prove = Callable[[], Authenticator]
Shifted = Callable[[int], dict[str, str]]
NOBODY = 65534


@pytest.fixture
def raws() -> Iterator[list[Raw]]:
    made: list[Raw] = []
    yield made
    for raw in made:
        raw.close()


def tls_pair(hubs: list[Hub], server_folder: str, client_folder: str) -> tuple[Hub, Hub]:
    hubs += [
        Hub(KeyAuthenticator(server_folder), me="a", key="k", peers=["b"]),
        Hub(KeyAuthenticator(client_folder), me="b", key="k", peers=["a"]),
    ]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    return hubs[0], hubs[1]


def test_another_sites_key_is_named_on_both_sides(hubs: list[Hub], key_folder: str, other_key_folder: str) -> None:
    tls_pair(hubs, key_folder, other_key_folder)
    seen = pump(hubs, 2)
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "key")]
    assert [(e.kind, e.body["reason"]) for e in seen[1]] == [("down", "key")]
    assert "no key in common" in str(seen[1][0].body["why"])


def by_hand(key_folder: str, pem: bytes | None) -> ssl.SSLContext:
    """A client's context that shows what it likes, and believes anybody."""
    made = credential_tls.unproven_client()
    if pem is not None:
        credential_tls.load(made, pem)
    return made


@pytest.mark.parametrize("shown", ["nothing", "another", "child", "expired"])
def test_only_the_sites_own_certificate_gets_in(
    hubs: list[Hub],
    key_folder: str,
    raws: list[Raw],
    shown: str,
    tmp_path: Path,
    shifted: Shifted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = credential_tls.read_keys(key_folder)[0]
    authenticator = KeyAuthenticator(key_folder)
    pem: bytes | None = None
    if shown == "another":
        pem = keys.make_pem(days=2)
    elif shown == "child":
        pem = _child_of(own.pem, str(tmp_path))
    elif shown == "expired":
        monkeypatch.setattr(keys.command, "CLEAN_ENV", {**keys.command.CLEAN_ENV, **shifted(-5 * 86_400)})
        pem = keys.make_pem(days=2)
        monkeypatch.undo()
        expired = credential_tls.parse(pem)
        # Known to the server as one of its own: only its dates speak against it.
        authenticator._keys = [own, expired]
    hubs.append(Hub(authenticator, me="a", key="c/1-0", peers=["b"]))
    port = hubs[0].listen("127.0.0.1", 0)
    raws.append(Raw(port, f"fmslurm key {own.id}\n".encode(), by_hand(key_folder, pem), hubs[0]))
    pump(hubs, lambda _: hubs[0].refused > 0)
    words = {
        "nothing": "peer did not return a certificate",
        "another": "self-signed certificate",
        "child": "shows a certificate that is none of ours",
        "expired": "certificate has expired",
    }[shown]
    assert words in hubs[0].last_refusal.replace("self signed", "self-signed")
    assert hubs[0].peers() == frozenset()


def _child_of(pem: bytes, folder: str) -> bytes:
    """Return a key whose certificate the site's key has signed: OpenSSL would believe it."""
    from slurm_ext.command import run

    with open(f"{folder}/ca.pem", "wb") as stream:
        stream.write(pem)
    argv = [
        "openssl",
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=child",
    ]
    assert run([*argv, "-keyout", f"{folder}/child.key", "-out", f"{folder}/child.csr"], timeout_s=120).ok
    argv = [
        "openssl",
        "x509",
        "-req",
        "-in",
        f"{folder}/child.csr",
        "-CA",
        f"{folder}/ca.pem",
        "-CAkey",
        f"{folder}/ca.pem",
    ]
    made = run([*argv, "-days", "2", "-set_serial", "7", "-out", f"{folder}/child.pem"], timeout_s=120)
    assert made.ok, made.words()
    with open(f"{folder}/child.key", "rb") as key, open(f"{folder}/child.pem", "rb") as certificate:
        return key.read() + certificate.read()


def test_tls_before_1_3_is_refused(hubs: list[Hub], key_folder: str, raws: list[Raw]) -> None:
    own = credential_tls.read_keys(key_folder)[0]
    hubs.append(Hub(KeyAuthenticator(key_folder), me="a", key="k", peers=["b"]))
    port = hubs[0].listen("127.0.0.1", 0)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    credential_tls.load(old, own.pem)
    with pytest.raises((ssl.SSLError, OSError)):
        raws.append(Raw(port, f"fmslurm key {own.id}\n".encode(), old, hubs[0]))
    assert "protocol" in hubs[0].last_refusal


@pytest.mark.parametrize("server_has", ["munge", "key"])
def test_munge_on_one_side_only_is_named_on_both(
    hubs: list[Hub], munge_socket: str, key_folder: str, server_has: str
) -> None:
    by: dict[str, Authenticator] = {"munge": MungeAuthenticator(munge_socket), "key": KeyAuthenticator(key_folder)}
    other = "key" if server_has == "munge" else "munge"
    hubs += [Hub(by[server_has], me="a", key="k", peers=["b"]), Hub(by[other], me="b", key="k", peers=["a"])]
    hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
    seen = pump(hubs, 2)
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "method")]
    assert [(e.kind, e.peer, e.body["reason"]) for e in seen[1]] == [("down", "a", "method")]
    assert "munge" in str(seen[1][0].body["why"])
    assert "the site's key" in str(seen[1][0].body["why"])


@pytest.mark.parametrize("shift_s", [-3600, 3600], ids=["behind", "ahead"])
def test_clocks_that_differ_are_named_on_both_sides(
    hubs: list[Hub], tmp_path: Path, shifted: Shifted, shift_s: int
) -> None:
    key = os.urandom(128)
    with munged(tmp_path / "a", key) as here, munged(tmp_path / "b", key, env=shifted(shift_s)) as there:
        hubs += [
            Hub(MungeAuthenticator(here), me="a", key="k", peers=["b"]),
            Hub(MungeAuthenticator(there), me="b", key="k", peers=["a"]),
        ]
        hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
        seen = pump(hubs, 2)
        for hub in hubs:
            hub.close()
        hubs.clear()
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "clock")]
    assert [(e.kind, e.peer, e.body["reason"]) for e in seen[1]] == [("down", "a", "clock")]
    assert "clocks of both nodes differ" in str(seen[1][0].body["why"])
    assert "3600 s" in str(seen[1][0].body["why"]).replace("3599 s", "3600 s").replace("3601 s", "3600 s")


def test_another_munge_key_is_named_on_both_sides(hubs: list[Hub], tmp_path: Path) -> None:
    with munged(tmp_path / "a", os.urandom(128)) as here, munged(tmp_path / "b", os.urandom(128)) as there:
        hubs += [
            Hub(MungeAuthenticator(here), me="a", key="k", peers=["b"]),
            Hub(MungeAuthenticator(there), me="b", key="k", peers=["a"]),
        ]
        hubs[1].connect("a", "127.0.0.1", hubs[0].listen("127.0.0.1", 0))
        seen = pump(hubs, 2)
        for hub in hubs:
            hub.close()
        hubs.clear()
    assert [(e.kind, e.body["reason"]) for e in seen[0]] == [("refused", "key")]
    assert [(e.kind, e.body["reason"]) for e in seen[1]] == [("down", "key")]


def test_a_key_that_is_not_valid_yet_is_a_matter_of_clocks(
    hubs: list[Hub], tmp_path: Path, shifted: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys.command, "CLEAN_ENV", {**keys.command.CLEAN_ENV, **shifted(86_400)})
    keys.create(str(tmp_path / "keys"))
    monkeypatch.undo()
    tls_pair(hubs, str(tmp_path / "keys"), str(tmp_path / "keys"))
    seen = pump(hubs, lambda events: bool(events[1]))
    assert [(e.kind, e.body["reason"]) for e in seen[1]] == [("down", "clock")]
    assert "not yet valid" in str(seen[1][0].body["why"])


def test_while_a_key_is_replaced_nodes_with_and_without_the_new_one_meet(hubs: list[Hub], tmp_path: Path) -> None:
    old, both, new = (str(tmp_path / name / "keys") for name in ("old", "both", "new"))
    keys.create(old)
    keys.sync(both, old)
    keys.rotate(both)
    keys.sync(new, both)
    keys.finish(new)
    for one, other, meet in (
        (old, both, True),
        (both, old, True),
        (both, both, True),
        (both, new, True),
        (old, new, False),
    ):
        pair = list(tls_pair([], one, other))
        try:
            seen = pump(pair, 2)
            assert kinds(seen) == ([["up"], ["up"]] if meet else [["refused"], ["down"]])
        finally:
            for hub in pair:
                hub.close()


def test_munged_that_stops_answering_is_a_clear_error(
    hubs: list[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with munged(tmp_path / "m", os.urandom(128)) as path:
        hubs += [Hub(MungeAuthenticator(path), me=me, key="k", peers=["a", "b"]) for me in ("a", "b")]
        port = hubs[0].listen("127.0.0.1", 0)
    hubs[1].connect("a", "127.0.0.1", port)
    seen = pump(hubs, lambda events: bool(events[1]))
    assert [e.kind for e in seen[1]] == ["down"]
    assert "munge" in hubs[0].last_refusal + str(seen[1][0].body["why"])

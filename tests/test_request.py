"""The token behind a job's comment: what submit writes is what hooks read, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.request import BURNIN_WISHES, TOKEN_MAX, Request, is_checkpoint_dir, is_run_name, parse, render, strip

RUN = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
FOLDER = st.lists(
    st.text(min_size=1, max_size=8).filter(lambda s: s.isprintable() and "/" not in s and s != ".."), max_size=4
).map(lambda parts: "/" + "/".join(parts))
REQUEST = st.builds(
    Request,
    resume=st.none() | st.just(-1) | st.integers(0, 999),
    run=st.just("") | RUN,
    checkpoint_dir=st.just("") | FOLDER.filter(is_checkpoint_dir),
    burnin=st.sampled_from(BURNIN_WISHES),
    off=st.booleans(),
)


def rendered(request: Request) -> str | None:
    try:
        return render(request)
    except ValueError:  # only for its length: every other field is one that is allowed
        assert len(request.checkpoint_dir.encode()) * 3 + 200 > TOKEN_MAX
        return None


@given(REQUEST, st.text(max_size=40))
def test_what_submit_writes_is_what_hooks_read(request: Request, comment: str) -> None:
    token = rendered(request)
    if token is None:
        return
    assert token.isascii()
    assert " " not in token
    assert parse(token) == request
    whole = f"{comment} {token}"
    assert parse(whole) == request
    assert strip(whole) == comment.rstrip() or "fm:1" in comment
    assert parse(strip(token)) is None


@given(st.text(max_size=60) | st.text("fm:1;=rncbo0123/%. \n", max_size=40))
def test_no_comment_raises_and_what_is_read_could_have_been_written(comment: str) -> None:
    found = parse(comment)
    if found is not None:
        assert parse(render(found)) == found


@pytest.mark.parametrize(
    ("comment", "request_"),
    [
        ("fm:1", Request()),
        ("fm:1;r=5", Request(resume=5)),
        ("fm:1;r=", Request(resume=-1)),
        ("fm:1;r=0", Request(resume=0)),
        ("fm:1;n=a.b-c_1", Request(run="a.b-c_1")),
        ("fm:1;c=/lustre/a%20b", Request(checkpoint_dir="/lustre/a b")),
        ("fm:1;b=strict;o=1", Request(burnin="strict", off=True)),
        ("my words fm:1;r=5", Request(resume=5)),
        ("fm:1;r=5 more words", Request(resume=5)),
        ("line\nfm:1;r=5", Request(resume=5)),
        ("fm:1;r=1 fm:1;r=2", Request(resume=2)),
        ("fm:1;z=later", Request()),
    ],
)
def test_tokens_that_are_read(comment: str, request_: Request) -> None:
    assert parse(comment) == request_


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "fm:",
        "fm:2;r=5",
        "fm:10",
        "xfm:1",
        "a/fm:1;r=5",
        "FM:1",
        "fm:1;",
        "fm:1;r",
        "fm:1;R=5",
        "fm:1;rr=5",
        "fm:1;r=-1",
        "fm:1;r=1.5",
        "fm:1;r=1000",
        "fm:1;r=x",
        "fm:1;r=%31",
        "fm:1;n=.hidden",
        "fm:1;n=a/b",
        "fm:1;n=" + "a" * 65,
        "fm:1;c=relative",
        "fm:1;c=/a/../b",
        "fm:1;c=/a/%2e%2e/b",
        "fm:1;c=/a%0ab",
        "fm:1;c=/a%00b",
        "fm:1;c=/" + "a" * 600,
        "fm:1;b=hard",
        "fm:1;n=$(id)",
        "fm:1;n=`id`",
        "fm:1;c=/a;n=x;" + "y=1;" * 400 + "o=1",
        "fm:1;r=²",
        "fm:1;r=5,n=x",
    ],
)
def test_what_is_no_token_of_ours_is_none(comment: str) -> None:
    assert parse(comment) is None


@pytest.mark.parametrize(
    "request_",
    [
        Request(run="../x"),
        Request(run="-x"),
        Request(run="a b"),
        Request(run="a\n"),
        Request(run="x" * 65),
        Request(resume=1000),
        Request(checkpoint_dir="ckpt"),
        Request(checkpoint_dir="/a/../b"),
        Request(checkpoint_dir="/a\nb"),
        Request(checkpoint_dir="/" + "é" * 300),
        Request(burnin="hard"),
    ],
)
def test_what_hooks_would_not_read_is_not_written(request_: Request) -> None:
    with pytest.raises(ValueError):
        render(request_)


@pytest.mark.parametrize(
    ("name", "good"), [("a", True), ("0", True), ("a" * 64, True), ("", False), ("a" * 65, False), ("é", False)]
)
def test_run_names(name: str, good: bool) -> None:
    assert is_run_name(name) is good


@pytest.mark.parametrize(
    ("comment", "own"),
    [("", ""), ("fm:1;r=5", ""), ("mine fm:1", "mine"), ("a fm:1 b", "a  b"), ("fm:2", "fm:2"), (" x ", " x")],
)
def test_the_users_own_comment_stays(comment: str, own: str) -> None:
    assert strip(comment) == own

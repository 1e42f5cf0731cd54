"""Each way out against something real: HTTP servers in every mood, TLS, programs, sendmail's command line, SNS through boto3."""

from __future__ import annotations

import email
import email.policy
import json
import os
import pwd
import subprocess
import time
from pathlib import Path

import pytest
from stand_ins import SNS_ANSWER, SNS_REFUSAL, fields, program, receiver, until

from slurm_ext.config.model import Settings, Target
from slurm_ext.notices import mail, send, webhook
from slurm_ext.notices import program as program_module
from slurm_ext.notices.child import Child
from slurm_ext.notices.mail import Ways
from slurm_ext.notices.model import NOTICE, PAGE, Message

MESSAGE = Message(
    "c1-1-1",
    "breaker.open",
    PAGE,
    "c1",
    "fmslurm c1: PAGE: the drain breaker is open",
    "What:  the drain breaker is open\nWhy:   <!channel> & `two` @here\n",
    "the drain breaker is open",
    where="n[4-5]",
)
SECRET = "sEcReTsEcReT"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hanging server cost a test less."""
    monkeypatch.setattr(webhook, "STEP_S", 0.5)
    monkeypatch.setattr(webhook, "WHOLE_S", 1.0)


# --- webhooks


def test_a_webhook_gets_the_notice_and_a_text() -> None:
    with receiver() as chat:
        sent = webhook.send(chat.url, "auto", MESSAGE)
        assert sent.ok, sent
        (got,) = chat.got
        path, headers, _ = chat.posts[0]
    assert path == f"/services/{SECRET}"
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"].startswith("fmslurm/")
    assert (got["schema"], got["kind"], got["severity"], got["where"]) == (1, "breaker.open", "page", "n[4-5]")
    assert got["body"] == MESSAGE.text
    assert got["text"].startswith(f"{MESSAGE.subject}\n```\n")
    assert "owner" not in got
    assert SECRET not in sent.said


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("hooks.slack.com", "slack"),
        ("hooks.slack.com.evil.example", "json"),
        ("evilhooks.slack.com", "slack"),
        ("prod-1.westeurope.logic.azure.com", "teams"),
        ("default1.2.environment.api.powerplatform.com", "teams"),
        ("logic.azure.com.evil.example", "json"),
        ("mattermost.example.com", "json"),
    ],
)
def test_forms_by_host(host: str, form: str) -> None:
    assert webhook.form_of(host, "auto") == form
    assert webhook.form_of(host, "slack") == "slack"


def test_slack_gets_text_alone_in_which_nobody_is_called() -> None:
    body = webhook.body_of(MESSAGE, "slack")
    assert list(body) == ["text"]
    assert "<!channel>" not in body["text"]
    assert "&lt;!channel&gt; &amp; 'two' @\u200bhere" in body["text"]
    assert body["text"].count("```") == 2


def test_teams_gets_an_adaptive_card() -> None:
    body = webhook.body_of(MESSAGE, "teams")
    assert body["type"] == "message"
    (attachment,) = body["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert [block["type"] for block in attachment["content"]["body"]] == ["TextBlock", "TextBlock"]


#: How the server answers -> whether it counts as told, and a piece of what is said.
MOODS = [
    (200, True, "200 ok"),
    (202, True, "202"),
    (204, True, "204"),
    (301, False, "leads elsewhere"),
    (307, False, "leads elsewhere"),
    (400, False, "400"),
    (404, False, "404"),
    (429, False, "429"),
    (500, False, "500"),
    ("close", False, "closed without an answer"),
    ("hang", False, "no answer within"),
    ("endless", True, "200"),
    ("drops", True, "200"),
]


@pytest.mark.parametrize(("mood", "ok", "piece"), MOODS)
@pytest.mark.usefixtures("quick")
def test_moods_of_a_server(mood: object, ok: bool, piece: str) -> None:
    with receiver(mood) as chat:
        chat.headers = {"Location": f"http://127.0.0.1:{chat.port}/elsewhere"}
        began = time.monotonic()
        sent = webhook.send(chat.url, "json", MESSAGE)
        took_s = time.monotonic() - began
        assert (sent.ok, piece in sent.said) == (ok, True), sent
        assert [path for path, _, _ in chat.posts] == [f"/services/{SECRET}"]  # nothing was followed
    assert took_s < 30
    assert SECRET not in sent.said


def test_a_server_may_ask_for_a_pause_and_says_no_secret_of_ours() -> None:
    with receiver(429) as chat:
        chat.headers = {"Retry-After": "120"}
        chat.said = f"no such hook /services/{SECRET} \x1b[31m".encode()
        sent = webhook.send(chat.url, "json", MESSAGE)
    assert sent.retry_after_s == 120
    assert SECRET not in sent.said
    assert "no such hook" in sent.said
    assert sent.said.isprintable()


def test_nobody_listens() -> None:
    with receiver() as chat:
        url = chat.url
    sent = webhook.send(url, "json", MESSAGE)
    assert not sent.ok
    assert SECRET not in sent.said


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    paths = (str(folder / "cert.pem"), str(folder / "key.pem"))
    argv = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    argv += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1]]
    subprocess.run(argv, check=True, capture_output=True)
    return paths


def test_a_certificate_is_checked(certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(tls=certificate) as chat:
        sent = webhook.send(chat.url, "json", MESSAGE)
        assert not sent.ok
        assert "certificate" in sent.said
        assert chat.posts == []
        monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
        assert webhook.send(chat.url, "json", MESSAGE).ok
        # The right certificate for another name is none.
        sent = webhook.send(chat.url.replace("127.0.0.1", "localhost"), "json", MESSAGE)
        assert not sent.ok
        assert "certificate" in sent.said


def test_a_url_in_a_file_of_roots(tmp_path: Path) -> None:
    path = tmp_path / "chat.url"
    target = Target(webhook_file=str(path))
    assert "No such file" in send.send(Settings(), target, MESSAGE).said
    with receiver() as chat:
        path.write_text(f"{chat.url}\n")
        path.chmod(0o600)
        assert send.send(Settings(), target, MESSAGE).ok
        path.chmod(0o666)
        sent = send.send(Settings(), target, MESSAGE)
        assert not sent.ok
        assert "mode 0666" in sent.said
        assert len(chat.got) == 1


# --- programs


def test_a_program_reads_the_notice_and_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    out = tmp_path / "out"
    path = program(
        tmp_path / "page", f'cat >{out}; env >{out}.env; echo "$#" >{out}.args; pwd >{out}.pwd; echo paged\n'
    )
    sent = program_module.send(str(path), MESSAGE)
    assert (sent.ok, sent.said) == (True, "paged")
    told = json.loads(out.read_text())
    assert (told["schema"], told["kind"], told["subject"]) == (1, "breaker.open", MESSAGE.subject)
    assert Path(f"{out}.args").read_text() == "0\n"
    assert Path(f"{out}.pwd").read_text() == "/\n"
    names = {line.partition("=")[0] for line in Path(f"{out}.env").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LC_ALL", "LANG", "SLURM_TIME_FORMAT"}


def test_a_program_that_fails_or_hangs(tmp_path: Path) -> None:
    failing = program(tmp_path / "fails", "echo no modem >&2; exit 3\n")
    sent = program_module.send(str(failing), MESSAGE)
    assert not sent.ok
    assert "exit 3: no modem" in sent.said
    pids = tmp_path / "pids"
    hanging = program(tmp_path / "hangs", f"sleep 600 & echo $! >{pids}; wait\n")
    sent = program_module.send(str(hanging), MESSAGE, timeout_s=1.0)
    assert not sent.ok
    assert "no answer within" in sent.said
    until(pids.exists, "it began")
    until(lambda: not _lives(int(pids.read_text())), "what it started is killed, too")
    endless = program(tmp_path / "endless", "cat >/dev/null; head -c 30000000 /dev/zero; echo; echo end\n")
    assert program_module.send(str(endless), MESSAGE).ok
    deaf = program(tmp_path / "deaf", "exec 0<&-; exit 0\n")
    assert program_module.send(str(deaf), MESSAGE._replace(text="x" * 1_000_000)).ok


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def spoil(kind: str, path: Path) -> str:
    if kind == "writable":
        path.chmod(0o777)
    elif kind == "owner":
        os.chown(path, 12345, -1)
    elif kind == "folder":
        path.parent.chmod(0o777)
    elif kind == "folder's owner":
        os.chown(path.parent, 12345, -1)
    elif kind == "not executable":
        path.chmod(0o644)
    elif kind == "missing":
        path.unlink()
    elif kind == "a folder":
        return str(path.parent)
    elif kind == "link to another's":
        other = path.with_name("other")
        path.rename(other)
        os.chown(other, 12345, -1)
        path.symlink_to(other)
    return str(path)


@needs_root
@pytest.mark.parametrize(
    "kind",
    ["writable", "owner", "folder", "folder's owner", "not executable", "missing", "a folder", "link to another's"],
)
def test_a_program_that_others_could_change_is_not_run(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "sbin"
    folder.mkdir()
    ran = tmp_path / "ran"
    path = program(folder / "page", f"touch {ran}\n")
    sent = program_module.send(spoil(kind, path), MESSAGE)
    assert not sent.ok
    assert sent.said
    assert not ran.exists()


def test_a_link_to_a_good_program_is_fine(tmp_path: Path) -> None:
    path = program(tmp_path / "page", "exit 0\n")
    (tmp_path / "link").symlink_to(path)
    assert program_module.send(str(tmp_path / "link"), MESSAGE).ok


# --- mail


@pytest.fixture
def sendmail(tmp_path: Path) -> Path:
    """A stand-in for sendmail's command line: keeps arguments and mail."""
    return program(tmp_path / "sendmail", f'for one; do echo "$one"; done >{tmp_path}/args; cat >{tmp_path}/mail\n')


def test_a_mail_by_sendmail(sendmail: Path, tmp_path: Path) -> None:
    sent = mail.to_address("ops@example.com", MESSAGE, Ways((str(sendmail),)))
    assert sent.ok, sent
    assert (tmp_path / "args").read_text().splitlines() == ["-i", "ops@example.com"]
    got = email.message_from_bytes((tmp_path / "mail").read_bytes(), policy=email.policy.default)
    assert (got["To"], got["Subject"]) == ("ops@example.com", MESSAGE.subject)
    assert got["Auto-Submitted"] == "auto-generated"
    assert got["Message-ID"] == "<c1-1-1@fmslurm.invalid>"
    assert got["Importance"] == "high"
    assert got.get_content() == MESSAGE.text
    quiet = email.message_from_string(
        mail.compose(MESSAGE._replace(severity=NOTICE, subject="für"), "a@b"), policy=email.policy.default
    )
    assert (quiet["Importance"], quiet["Subject"]) == (None, "für")


@pytest.mark.parametrize("address", ["-oQ/tmp", "a@b\nBcc: c@d", "a b", "", "a@b,c@d", "|cmd", "/etc/passwd"])
def test_what_is_no_address_reaches_no_mail_program(address: str, sendmail: Path, tmp_path: Path) -> None:
    assert not mail.to_address(address, MESSAGE, Ways((str(sendmail),))).ok
    assert not (tmp_path / "args").exists()


def test_no_header_comes_in_by_the_subject() -> None:
    with pytest.raises(ValueError, match="linefeed"):
        mail.compose(MESSAGE._replace(subject="x\nBcc: all@example.com"), "a@b")


def test_slurms_mailprog_where_there_is_no_sendmail(sendmail: Path, tmp_path: Path) -> None:
    ways = Ways(("/nonexistent/sendmail",), lambda: (str(sendmail), ""))
    assert mail.to_address("ops@example.com", MESSAGE, ways).ok
    assert (tmp_path / "args").read_text().splitlines() == ["-s", MESSAGE.subject, "ops@example.com"]
    assert (tmp_path / "mail").read_text() == MESSAGE.text
    none = mail.to_address("ops@example.com", MESSAGE, Ways(("/nonexistent/sendmail",)))
    assert "neither" in none.said


def test_an_owner_is_told_as_slurm_tells(sendmail: Path, tmp_path: Path) -> None:
    name = pwd.getpwuid(os.getuid()).pw_name
    ways = Ways(("/nonexistent/sendmail",), lambda: (str(sendmail), ""))
    assert mail.to_owner(os.getuid(), MESSAGE, ways).ok
    assert (tmp_path / "args").read_text().splitlines()[-1] == name
    assert mail.to_owner(os.getuid(), MESSAGE, ways._replace(slurm=lambda: (str(sendmail), "example.com"))).ok
    assert (tmp_path / "args").read_text().splitlines()[-1] == f"{name}@example.com"
    assert mail.to_owner(os.getuid(), MESSAGE, Ways((str(sendmail),))).ok
    assert (tmp_path / "args").read_text().splitlines() == ["-i", name]
    assert "nobody has the user id" in mail.to_owner(3_999_999_999, MESSAGE, ways).said


# --- SNS

ARN = "arn:aws:sns:eu-west-1:123456789012:fm-alarms"


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "HTTP_PROXY", "http_proxy", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("fifo", ["", ".fifo"])
def test_sns_by_the_real_boto3(fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as topic:
        topic.said = SNS_ANSWER
        topic.headers = {"Content-Type": "text/xml"}
        monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", f"http://127.0.0.1:{topic.port}")
        sent = send.send(Settings(), Target(sns=ARN + fifo), MESSAGE._replace(subject="für " + "x" * 120))
        assert sent.ok, sent
        assert "94f20ce6" in sent.said
        (post,) = topic.posts
    told = fields(post)
    assert (told["Action"], told["TopicArn"], told["Message"]) == ("Publish", ARN + fifo, MESSAGE.text)
    assert told["Subject"] == "f?r " + "x" * 95
    assert "eu-west-1/sns" in post[1]["Authorization"]
    assert told.get("MessageDeduplicationId") == (MESSAGE.id if fifo else None)
    assert told.get("MessageGroupId") == ("fmslurm-c1" if fifo else None)


@pytest.mark.usefixtures("credentials")
def test_sns_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(403) as topic:
        topic.said = SNS_REFUSAL
        monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", f"http://127.0.0.1:{topic.port}")
        sent = send.send(Settings(), Target(sns=ARN), MESSAGE)
        assert not sent.ok
        assert "not authorized" in sent.said
        assert "Allow sns:Publish" in sent.said
        assert len(topic.posts) == 1  # boto3's own retries would hold up ours


# --- children


def test_a_child_is_killed_in_time_with_what_it_started(tmp_path: Path) -> None:
    began = tmp_path / "began"

    def work() -> bytes:
        subprocess.Popen(["sleep", "600"])
        began.write_text(str(os.getpid()))
        time.sleep(600)
        return b""

    child = Child(work, timeout_s=1.0)
    until(began.exists, "it began")
    assert child.wait(30.0)
    assert child.late
    assert child.answer is None
    until(lambda: not _session(child.pid), "its session is gone")


def _session(leader: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == leader and words[0] not in "ZX":
            found.append(str(path))
    return found


@pytest.mark.parametrize(("work", "answer"), [(lambda: b"x" * 3_000_000, b"x" * 3_000_000), (lambda: b"", b"")])
def test_a_child_answers_whole(work, answer: bytes) -> None:
    child = Child(work, timeout_s=60.0)
    assert child.wait(60.0)
    assert child.answer == answer


def test_a_child_that_breaks_has_no_answer() -> None:
    child = Child(lambda: os._exit(0) or b"", timeout_s=60.0)
    assert child.wait(60.0)
    assert not child.answer
    child = Child(lambda: 1 / 0, timeout_s=60.0)  # type: ignore[arg-type, return-value]
    assert child.wait(60.0)
    assert child.answer is None
    assert not send.outcome(child.answer, late=False).ok


def test_whatever_breaks_in_sending_is_a_failed_try_without_a_secret() -> None:
    def broken() -> tuple[str, str]:
        raise RuntimeError(SECRET)

    ways = send.slurms_mail
    send.slurms_mail = lambda _settings: broken()  # type: ignore[assignment]
    try:
        answer = send.work(Settings(), None, MESSAGE._replace(owner=os.getuid()))()
    finally:
        send.slurms_mail = ways
    sent = send.outcome(answer, late=False)
    assert (sent.ok, sent.said) == (False, "sending broke: RuntimeError")

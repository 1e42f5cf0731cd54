"""Targets and templates of notices: what is right is taken, what is wrong is said with its line and without its secret."""

from __future__ import annotations

import json
import string

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.cli.main import fmslurm
from slurm_ext.config import snapshot
from slurm_ext.config.model import Notify, Settings, Target
from slurm_ext.config.targets import (
    FIELDS,
    MASK,
    check_template,
    is_address,
    masked,
    masked_url,
    name_of,
    parse_url,
    scrubbed,
)
from slurm_ext.config.yaml_file import parse

SECRET = "T024/B057/sEcReTsEcReT"
HOOK = f"https://hooks.slack.com/services/{SECRET}"
ARN = "arn:aws:sns:eu-west-1:123456789012:fm-alarms"


def read(text: str) -> tuple[tuple[Target, ...], list[tuple[int, str, str]]]:
    parsed = parse(text.encode())
    return parsed.settings.notify.targets, [tuple(problem) for problem in parsed.problems]


RIGHT = [
    ("ops@example.com", Target(mail="ops@example.com"), "ops@example.com"),
    ("{mail: root}", Target(mail="root"), "root"),
    ("{mail: a.b+c@x-y.example.com, severity: page}", Target(mail="a.b+c@x-y.example.com", severity="page"), None),
    (HOOK, Target(webhook=HOOK), "hooks.slack.com"),
    (f"{{webhook: '{HOOK}', name: chat}}", Target(webhook=HOOK, name="chat"), "chat"),
    (
        "{webhook: 'http://127.0.0.1:8080/x', format: json}",
        Target(webhook="http://127.0.0.1:8080/x", format="json"),
        "127.0.0.1",
    ),
    ("{webhook: 'http://[::1]:80/x'}", Target(webhook="http://[::1]:80/x"), "1"),
    ("{webhook_file: /etc/fmslurm/teams.url}", Target(webhook_file="/etc/fmslurm/teams.url"), "teams.url"),
    (ARN, Target(sns=ARN), "fm-alarms"),
    (f"{{sns: '{ARN}.fifo'}}", Target(sns=f"{ARN}.fifo"), "fm-alarms.fifo"),
    ("/usr/local/sbin/page-me", Target(command="/usr/local/sbin/page-me"), "page-me"),
]


@pytest.mark.parametrize(("text", "wanted", "name"), RIGHT)
def test_what_is_right_is_taken(text: str, wanted: Target, name: str | None) -> None:
    found, problems = read(f"notify:\n  targets:\n    - {text}\n")
    assert problems == []
    assert found == (wanted,)
    assert name is None or name_of(found[0]) == name


#: What stands in the list -> key, and a piece of what is said.
WRONG = [
    ("{}", "notify.targets[0]", "found none"),
    ("{mail: a@b, sns: x}", "notify.targets[0]", "found mail and sns"),
    ("nothing", "notify.targets[0]", "no mail address"),
    ("5", "notify.targets[0]", "no mail address"),
    ("[a@b]", "notify.targets[0]", "expected keys and values"),
    ("{mial: a@b}", "notify.targets[0].mial", "Did you mean mail?"),
    ("{mail: a@b, severity: pager}", "notify.targets[0].severity", "Did you mean page?"),
    ("{mail: a@b, format: slack}", "notify.targets[0].format", "only a webhook"),
    ("{mail: a@b, name: '-x'}", "notify.targets[0].name", "is no name"),
    ("{mail: '-oQ/tmp@b'}", "notify.targets[0].mail", "is no address"),
    ("{mail: 'a@b,c@d'}", "notify.targets[0].mail", "is no address"),
    ("{mail: 'a b@c'}", "notify.targets[0].mail", "is no address"),
    ('{mail: "a@b\\nBcc: c@d"}', "notify.targets[0].mail", "cannot be printed"),
    ("{mail: 'a@-b'}", "notify.targets[0].mail", "is no address"),
    ("{mail: 'a@b..c'}", "notify.targets[0].mail", "is no address"),
    ("{sns: 'arn:aws:sqs:eu-west-1:123456789012:x'}", "notify.targets[0].sns", "is no topic"),
    ("{sns: 'arn:aws:sns:eu-west-1:123:x'}", "notify.targets[0].sns", "is no topic"),
    ("{command: page-me}", "notify.targets[0].command", "absolute path"),
    ("{command: /a/../b}", "notify.targets[0].command", "absolute path"),
    ("{command: /a/}", "notify.targets[0].command", "a folder"),
    ("{webhook_file: x}", "notify.targets[0].webhook_file", "absolute path"),
]


@pytest.mark.parametrize(("text", "key", "piece"), WRONG)
def test_what_is_wrong_is_said_with_its_line(text: str, key: str, piece: str) -> None:
    _, problems = read(f"notify:\n  users: true\n  targets:\n    - {text}\n")
    assert [(line, name) for line, name, _ in problems] == [(4, key)]
    assert piece in problems[0][2]


def test_two_targets_of_one_name() -> None:
    _, problems = read("notify:\n  targets:\n  - https://a.example/one\n  - mail: x@y\n  - https://a.example/two\n")
    ((line, key, what),) = problems
    assert (line, key) == (5, "notify.targets[2]")
    assert "a.example" in what
    assert "name: WORD" in what
    assert (
        read("notify:\n  targets:\n  - https://a.example/one\n  - {webhook: 'https://a.example/two', name: b}\n")[1]
        == []
    )


#: A URL -> a piece of what is wrong with it.
URLS = [
    ("http://hooks.example.com/SECRETSECRET", "use https"),
    ("http://127.0.0.1.example.com/SECRETSECRET", "use https"),
    ("http://localhost.evil/SECRETSECRET", "use https"),
    ("ftp://a.example/SECRETSECRET", "expected https"),
    ("https://u:SECRETSECRET@a.example/", "password"),
    ("https://a.example/SECRETSECRET#x", "never sent"),
    ("https://a.example/SECRET SECRET", "no blanks"),
    ("https://a.example/SECRETSECRET\x7f", "no blanks"),
    ("https://a.example\\\\@b.example/SECRETSECRET", "no blanks"),
    ("https://a.example/SECRETSECRET\r\nHost: b", "no blanks"),
    ("https:///SECRETSECRET", "no host"),
    ("https://a.example:99999/SECRETSECRET", "cannot be read"),
    ("https://a.example:0/SECRETSECRET", "no such port"),
    ("https://[::1/SECRETSECRET", "cannot be read"),
    ("https://-a.example/SECRETSECRET", "no host"),
    ("https://a_b.example/SECRETSECRET", "no host"),
    ("https://a.example/***", "whole URL"),
    ("https://a.example/" + "SECRET" * 400, "longer than"),
    ("", "needed"),
]


@pytest.mark.parametrize(("url", "piece"), URLS)
def test_urls_that_are_refused(url: str, piece: str) -> None:
    place, wrong = parse_url(url)
    assert place is None
    assert piece in wrong
    assert "SECRET" not in wrong


def test_no_message_of_a_broken_file_shows_the_secret() -> None:
    files = [
        f"notify:\n  targets: {HOOK}\n",
        f"notify: {{targets: ['{HOOK}\\x01']}}\n",
        f"notify: {{targets: ['{HOOK}\"']}}\n",
        f'notify: {{targets: [{{webhook: "{HOOK}\\x01"}}]}}\n',
        f"notify: {{targets: [{{webhook: '{HOOK}', sns: x}}]}}\n",
        f"notify: {{targets: ['{HOOK}', '{HOOK}/more']}}\n",
        f"notify: {{targets: [{{webhook: '{HOOK} x'}}]}}\n",
        f"notify: {{targets: ['http://a.example/{SECRET}']}}\n",
    ]
    for text in files:
        problems = read(text)[1]
        assert problems, text
        assert all(SECRET not in what for _, _, what in problems), text


@given(st.text(max_size=40) | st.text("ab@.-+_ \n,;<>:%\"'\\", max_size=20))
def test_an_address_is_neither_option_nor_header_nor_list(text: str) -> None:
    if is_address(text):
        assert not text.startswith("-")
        assert set(text) <= set(string.ascii_letters + string.digits + "@._+=-")
        assert text.count("@") <= 1
        assert read(f"notify: {{targets: [{{mail: {json.dumps(text)}}}]}}\n")[1] == []


@given(st.text(max_size=60) | st.builds("https://{}/{}".format, st.text(max_size=20), st.text(max_size=20)))
def test_a_url_is_taken_or_refused_and_never_breaks(url: str) -> None:
    place, wrong = parse_url(url)
    assert (place is None) == bool(wrong)
    if place is not None:
        assert place.path.startswith("/")
        assert place.path.isascii()
        assert "\n" not in place.path
        assert "\r" not in place.host + place.path
        assert 0 < place.port < 65536
        again, _ = parse_url(masked_url(url).replace(MASK, "x"))
        assert again is not None
        assert (again.host, again.port, again.secure) == (place.host, place.port, place.secure)
    if place is None:
        assert len(url) < 30 or url[-12:] not in masked_url(url)
    elif len(place.path) > 12:
        assert place.path[-12:] not in masked_url(url).replace(place.host, "")


@given(
    st.from_regex(r"https://a\.example/[A-Za-z0-9/_-]{8,40}(\?[a-z]{2}=[A-Za-z0-9]{8,20})?", fullmatch=True), st.text()
)
def test_what_a_server_says_of_it_is_shown_without_it(url: str, around: str) -> None:
    said = scrubbed(f"{around} no such hook: {url} {around}", url)
    assert url not in said
    assert "no such hook" in said


def test_scrubbed_hides_pieces_and_leaves_words() -> None:
    assert (
        scrubbed("POST /services/T024/B057/sEcReTsEcReT: 404 page not found", HOOK)
        == f"POST {MASK}: 404 page not found"
    )
    assert scrubbed("token sEcReTsEcReT is revoked", HOOK) == f"token {MASK} is revoked"


TEMPLATES = [
    ("$cluster: $what", True, ""),
    ("costs $$5 for ${where}", True, ""),
    ("$wat", True, "Did you mean $what"[:12]),
    ("$nonsense_field", True, "There are: $cluster"),
    ("a $ b", False, "line 1"),
    ("one\ntwo $(x)", False, "line 2"),
    ("one\ntwo", True, "one line"),
    ("one\ntwo $why", False, ""),
    ("x" * 9_000, False, "longer"),
]


@pytest.mark.parametrize(("template", "one_line", "piece"), TEMPLATES)
def test_templates(template: str, one_line: bool, piece: str) -> None:
    wrong = check_template(template, one_line=one_line)
    assert bool(wrong) == bool(piece)
    assert piece in wrong


@given(st.text(alphabet="$ab{} \n" + "what", max_size=30))
def test_a_template_that_passes_can_be_filled_in(template: str) -> None:
    if not check_template(template):
        string.Template(template).substitute(dict.fromkeys(FIELDS, "x"))


def test_templates_in_the_file() -> None:
    parsed = parse(b"notify:\n  subject: '$cluster $what'\n  text: |\n    $why\n    $next\n")
    assert parsed.problems == ()
    assert parsed.settings.notify.text == "$why\n$next\n"
    ((line, key, what),) = parse(b"notify:\n  text: |\n    $whi\n").problems
    assert (line, key) == (2, "notify.text")
    assert "$whi" in what


def test_what_is_pushed_holds_no_targets_and_no_words() -> None:
    notify = Notify(targets=(Target(webhook=HOOK),), users=True, subject="$what", text="$why")
    content = snapshot.to_json(Settings(notify=notify), pushed=0.0)
    assert SECRET.encode() not in content
    assert snapshot.from_json(content).notify == Notify(users=True)


@pytest.mark.parametrize("arguments", [(), ("notify",), ("notify.targets",), ("--yaml",), ("--json",), ("--changed",)])
def test_config_show_masks(arguments: tuple[str, ...], tmp_path) -> None:
    path = tmp_path / "fmslurm.yaml"
    path.write_text(f"notify:\n  targets:\n  - {HOOK}\n")
    shown = CliRunner().invoke(fmslurm, ["config", "show", *arguments], env={"FMSLURM_CONFIG": str(path)})
    assert shown.exit_code == 0
    assert "hooks.slack.com" in shown.output
    assert SECRET not in shown.output
    assert parse(path.read_bytes()).settings.notify.targets[0].webhook == HOOK


def test_a_masked_target_is_refused_as_such() -> None:
    again = masked(Target(webhook=HOOK)).webhook
    assert again == f"https://hooks.slack.com/{MASK}"
    assert "whole URL" in parse_url(again)[1]

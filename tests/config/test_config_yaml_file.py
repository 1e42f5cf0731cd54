"""fmslurm.yaml: what is right loads, what is wrong is said with line, key, expectation and the nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ext.config import meanings, model, render, yaml_file
from slurm_ext.config.model import Settings, Target, Tier
from slurm_ext.config.rules import ITEMS, SECTIONS, check_together, keys
from slurm_ext.config.targets import name_of
from slurm_ext.config.yaml_file import InvalidSettingsError, load, origins, parse
from slurm_ext.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "etc" / "fmslurm.yaml"


def problems(text: str) -> list[tuple[int, str, str]]:
    return [tuple(problem) for problem in parse(text.encode()).problems]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "gate:\n", "{}\n", "gate: {}\n", "null\n"])
def test_nothing_said_means_defaults(text: str) -> None:
    parsed = parse(text.encode())
    assert parsed.problems == ()
    assert parsed.settings._replace(source_hash="") == Settings()


@pytest.mark.parametrize("word", ["off", '"off"', "'off'"])
def test_off_is_the_word_and_not_false(word: str) -> None:
    assert parse(f"mode: {{gate: {word}}}\n".encode()).settings.mode.gate == "off"


#: text -> line, key, and a piece of what is said.
WRONG = [
    ("gat: {}\n", 1, "gat", "Did you mean gate?"),
    ("mode:\n  burnn: off\n", 2, "mode.burnn", "Did you mean burnin?"),
    ("deadline_s: 3\n", 1, "deadline_s", "belongs in gate or burnin"),
    ("resume:\n  max_per_hour: 3\n", 2, "resume.max_per_hour", "belongs in drain"),
    ("mode: {gate: on}\n", 1, "mode.gate", "one of off, shadow, warn, enforce"),
    ("mode: {gate: false}\n", 1, "mode.gate", "one of off"),
    ("mode: {gate: Enforce}\n", 1, "mode.gate", "Did you mean enforce?"),
    ("gate:\n  deadline_s: 10s\n", 2, "gate.deadline_s", "deadline_s: 10"),
    ("gate: {deadline_s: 2min}\n", 1, "gate.deadline_s", "deadline_s: 120"),
    ("burnin: {reuse_pass_h: 90 min}\n", 1, "burnin.reuse_pass_h", "reuse_pass_h: 1.5"),
    ("burnin: {min_time_limit_min: 1h}\n", 1, "burnin.min_time_limit_min", "min_time_limit_min: 60"),
    ("burnin: {min_time_limit_min: 10s}\n", 1, "burnin.min_time_limit_min", "without a unit"),
    ("burnin: {message_bytes: 1GiB}\n", 1, "burnin.message_bytes", "message_bytes: 1073741824"),
    ("resume: {exclude_max_percent: 5%}\n", 1, "resume.exclude_max_percent", "exclude_max_percent: 5"),
    ("gate: {deadline_s: 1:30}\n", 1, "gate.deadline_s", "a number of seconds"),
    ("gate: {deadline_s: '10'}\n", 1, "gate.deadline_s", "in quotes"),
    ("gate: {deadline_s: -1}\n", 1, "gate.deadline_s", "outside 0.5 to 600"),
    ("gate: {deadline_s: .nan}\n", 1, "gate.deadline_s", "a number of seconds"),
    ("gate: {deadline_s: 1e999}\n", 1, "gate.deadline_s", "a number"),
    ("gate: {deadline_s: true}\n", 1, "gate.deadline_s", "found true"),
    ("gate: {deadline_s: }\n", 1, "gate.deadline_s", "found nothing"),
    ("gate: {deadline_s: [10]}\n", 1, "gate.deadline_s", "found a list"),
    ("burnin: {min_nodes: 2.5}\n", 1, "burnin.min_nodes", "a whole number"),
    ("burnin: {min_nodes: 010}\n", 1, "burnin.min_nodes", "a whole number"),
    ("burnin: {min_nodes: 0x10}\n", 1, "burnin.min_nodes", "a whole number"),
    ("burnin: {batch_only: yes}\n", 1, "burnin.batch_only", "true or false"),
    ("burnin: {batch_only: 1}\n", 1, "burnin.batch_only", "true or false"),
    ("burnin: {batch_only: 'true'}\n", 1, "burnin.batch_only", "true or false"),
    ("burnin: {user_may: strict}\n", 1, "burnin.user_may", "write [strict]"),
    ("burnin: {user_may: [strict, skp]}\n", 1, "burnin.user_may[1]", "Did you mean skip?"),
    ("burnin: {port_range: [9000]}\n", 1, "burnin.port_range", "two ports"),
    ("burnin: {port_range: [9001, 9000]}\n", 1, "burnin.port_range", "lower one first"),
    ("burnin: {port_range: [1, 9000]}\n", 1, "burnin.port_range[0]", "outside 1024"),
    ("burnin:\n  deadline_s: 6\n  rendezvous_s: 100\n", 3, "burnin.rendezvous_s", "below deadline_s (6)"),
    ("burnin: {deadline_s: 30}\n", 1, "burnin.deadline_s", "rendezvous_s (30) must be below"),
    *((f"burnin: {{message_bytes: {n}}}\n", 1, "burnin.message_bytes", "outside 1024") for n in (0, 1, 3, 1023)),
    ("site: {cluster: 12}\n", 1, "site.cluster", 'write it in quotes: "12"'),
    ("site: {cluster: off}\n", 1, "site.cluster", "in quotes"),
    ("site: {cluster: }\n", 1, "site.cluster", 'write ""'),
    ('site: {cluster: "a\\nb"}\n', 1, "site.cluster", "cannot be printed"),
    ("site: {share: shared}\n", 1, "site.share", "an absolute path"),
    ("site: {share: /a/../b}\n", 1, "site.share", "an absolute path"),
    ('site: {state_dir: ""}\n', 1, "site.state_dir", "a path is needed"),
    ("gate: {nvme_dirs: [/a, b]}\n", 1, "gate.nvme_dirs[1]", "an absolute path"),
    ("mode: {canary: 'n[1-'}\n", 1, "mode.canary", "not a hostlist"),
    ("mode: []\n", 1, "mode", "found a list"),
    ("mode: off\n", 1, "mode", "expected keys and values"),
    ("- gate\n", 1, "", "expected sections"),
    ("gate\n", 1, "", "expected sections"),
    ("gate: {}\ngate: {}\n", 2, "gate", "set twice, first in line 1"),
    ("gate:\n  deadline_s: 5\n  deadline_s: 6\n", 3, "gate.deadline_s", "set twice, first in line 2"),
    ("gate:\n\tdeadline_s: 5\n", 2, "", "a tab"),
    ("gate: {deadline_s: 5\n", 2, "", "not YAML"),
    ("gate: {}\n---\nmode: {}\n", 2, "", "not YAML"),
    ("gate: !!python/object:os.system {}\n", 1, "", ""),
    ("gate: {deadline_s: !unit 5}\n", 1, "gate.deadline_s", "tag"),
    ("? [a]\n: 1\n", 1, "", "a key is a word"),
    ("x: &a {b: *a}\n", 1, "x", "no such section"),
    ("gate: {<<: {deadline_s: 5}}\n", 1, "gate.<<", "no such key"),
    ("staging:\n  tiers:\n    - {name: a, kind: nvm, url: /a}\n", 3, "staging.tiers[0].kind", "Did you mean nvme?"),
    ("staging: {tiers: [5]}\n", 1, "staging.tiers[0]", "expected keys and values"),
    ("staging: {tiers: [{name: a, url: /a}]}\n", 1, "staging.tiers[0].kind", "missing"),
    ("staging: {tiers: [{name: a, kind: s3, url: /a}]}\n", 1, "staging.tiers[0].url", "s3://bucket"),
    ("staging: {tiers: [{name: a, kind: nvme, url: a}]}\n", 1, "staging.tiers[0].url", "absolute path"),
    ("staging: {tiers: [{kind: nvme, url: /a}]}\n", 1, "staging.tiers[0].name", "is no name"),
    (
        "staging:\n  tiers:\n  - {name: a, kind: nvme, url: /a}\n  - {name: a, kind: lustre, url: /b}\n",
        4,
        "staging.tiers[1].name",
        "two tiers",
    ),
]


@pytest.mark.parametrize(("text", "line", "key", "piece"), WRONG)
def test_what_is_wrong_is_said(text: str, line: int, key: str, piece: str) -> None:
    found = problems(text)
    if text.startswith("gate: !!python"):  # a tag on a section means nothing and harms nothing
        assert found == []
        return
    assert [(at, name) for at, name, _ in found] == [(line, key)]
    assert piece in found[0][2]


def test_all_mistakes_are_said_in_order_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("mode:\n  gate: on\ngate:\n  deadline_s: 10s\nnotfy: {}\n")
    with pytest.raises(InvalidSettingsError) as caught:
        load(str(path))
    assert [problem.line for problem in caught.value.problems] == [2, 4, 5]
    assert str(caught.value).splitlines()[0].startswith(f"{path}:2: mode.gate: ")
    with pytest.raises(ConfigError):
        origins(str(path))


def test_bytes_that_are_no_text_are_named_by_line() -> None:
    (problem,) = parse(b"gate: {}\nmode: {gate: \xff}\n").problems
    assert (problem.line, problem.what) == (2, "byte 0xff is no UTF-8 text")


@pytest.mark.parametrize("make", ["missing", "folder", "huge"])
def test_a_file_that_cannot_be_read_is_a_config_error(make: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    if make == "folder":
        path.mkdir()
    elif make == "huge":
        path.write_bytes(b"#" * (yaml_file.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=str(path)):
        load(str(path))


def test_origins_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("gate:\n  # why\n  deadline_s: 5\n")
    where = origins(str(path))
    assert where["gate.deadline_s"] == f"{path}:3"
    assert where["gate.on_unknown"] == "default"
    assert set(where) == {f"{section}.{name}" for section in SECTIONS for name in keys(section)}


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("gate: {}\n")
    first = load(str(path)).source_hash
    path.write_text("gate: {} # changed\n")
    assert len(first) == 64
    assert load(str(path)).source_hash != first


def test_the_shipped_file_is_every_key_at_its_default() -> None:
    parsed = parse(SHIPPED.read_bytes())
    assert parsed.problems == ()
    assert parsed.settings._replace(source_hash="") == Settings()
    assert {key for key in parsed.lines if key not in SECTIONS} == {f"{s}.{n}" for s in SECTIONS for n in keys(s)}
    assert SHIPPED.read_text() == render.explained(), "run: python -m slurm_ext.config.render >etc/fmslurm.yaml"


def test_every_key_has_a_meaning_and_no_meaning_is_left_over() -> None:
    known = {*SECTIONS, *(f"{s}.{n}" for s in (*SECTIONS, *ITEMS) for n in keys(s))}
    assert set(meanings.MEANINGS) == known


def test_every_choice_belongs_to_a_key_and_every_default_is_allowed() -> None:
    for section, name in model.CHOICES:
        assert name in keys(section)
    assert len(SECTIONS) == 12
    for section in SECTIONS:
        for name, key in keys(section).items():
            text = f"{section}: {{{name}: {render.value_text(getattr(getattr(Settings(), section), name), key)}}}\n"
            assert problems(text) == [], text


WORDS = st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), max_size=12)
PATHS = st.from_regex(r"/[a-z][a-z0-9 %#:-]{0,10}", fullmatch=True)


def some(section: str, name: str) -> st.SearchStrategy[object]:
    """Values that the rules allow for one key."""
    key = keys(section)[name]
    if name == "port_range":
        return st.tuples(st.integers(1024, 30000), st.integers(30001, 65535))
    if name == "canary":
        return st.sampled_from(["", "n1", "n[1-3,7],m[001-100]"])
    if key.kind == "tier":
        tier = st.builds(
            Tier,
            name=st.from_regex(r"[a-z]{3}[0-9]{6}", fullmatch=True),
            kind=st.sampled_from(["nvme", "lustre"]),
            url=PATHS,
            endpoint=WORDS,
            credentials_file=PATHS,
        )
        return st.lists(tier, max_size=3, unique_by=lambda t: t.name).map(tuple)
    if key.kind == "target":
        target = st.one_of(
            st.builds(Target, mail=st.from_regex(r"[a-z]{1,9}@[a-z]{1,9}\.example", fullmatch=True)),
            st.builds(Target, webhook=st.from_regex(r"https://[a-z]{1,9}/[A-Za-z0-9._~:/?&=-]{0,9}", fullmatch=True)),
            st.builds(
                Target, command=st.from_regex(r"/[a-z]{1,9}", fullmatch=True), severity=st.sampled_from(["page"])
            ),
        )
        return st.lists(target, max_size=3, unique_by=name_of).map(tuple)
    if key.choices:
        one: st.SearchStrategy[object] = st.sampled_from(key.choices)
    elif key.kind == "bool":
        one = st.booleans()
    elif key.kind == "int":
        one = st.integers(int(key.low), int(min(key.high, 1e9)))
    elif key.kind == "float":
        one = st.floats(key.low, key.high, allow_nan=False)
    else:
        one = PATHS if key.path else WORDS
    return st.lists(one, max_size=3).map(tuple) if key.many else one


ANY_SETTINGS = st.builds(
    Settings,
    source_hash=st.just(""),
    generation=st.just(0),
    **{s: st.builds(kind, **{n: some(s, n) for n in keys(s)}) for s, kind in SECTIONS.items()},
).filter(lambda made: not check_together(made))


@settings(max_examples=60, deadline=None)
@given(ANY_SETTINGS)
def test_what_is_rendered_is_read_back_the_same(wanted: Settings) -> None:
    parsed = parse(render.explained(wanted).encode())
    assert parsed.problems == ()
    assert parsed.settings._replace(source_hash="") == wanted


YAML_BITS = st.sampled_from(
    [
        *SECTIONS,
        "deadline_s",
        "tiers",
        ": ",
        ":",
        "\n",
        "  ",
        "\t",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "- ",
        "'",
        '"',
        "&a ",
        "*a",
        "!!int ",
        "|",
        ">",
        "%",
        "@",
        "---",
        "...",
        "?",
        "\\U00FFFFFF",
        "<<",
        "1e5",
        "0o7",
        "~",
        "off",
        "#",
        "\x00",
        "é",
        "\ufeff",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(YAML_BITS, max_size=30).map("".join) | st.text(max_size=60))
def test_no_text_raises_anything_but_problems(text: str) -> None:
    parsed = parse(text.encode("utf-8", "surrogatepass"))
    assert parsed.problems or isinstance(parsed.settings, Settings)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_problems(content: bytes) -> None:
    parse(content)


def test_depth_is_no_crash() -> None:
    assert parse(b"[" * 100_000).problems
    assert parse(b"a: " + b"{b: " * 5_000).problems

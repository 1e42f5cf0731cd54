"""The table of releases that do not go together: every row fires on its bad pair, and none on a good set or on the unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from efa_live_tree import write
from hypothesis import given
from hypothesis import strategies as st

from slurm_ext.config.model import Settings
from slurm_ext.gate import compatibility, compatibility_read
from slurm_ext.gate.compatibility import TABLE
from slurm_ext.verdict import PASS, WARN

GOOD = {
    "nccl": "2.31.2",
    "plugin": "1.21.1",
    "libfabric": "2.6.0amzn1.0",
    "libfabric-build": "amazon",
    "installer": "1.50.0",
    "driver": "3.3.0g",
    "nvidia": "580.126.09",
    "nvidia-module": "open",
    "cuda": "13.0.1",
    "kernel": "6.8.0-1031-aws",
    "peer-memory": "NVIDIA",
}
TYPES = (
    *("p4d.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p5.4xlarge"),
    *("p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "g6e.48xlarge", "c5.large"),
)


def ids(told):
    return [item.finding.id.removeprefix("compat.") for item in compatibility.judge(told)]


@pytest.mark.parametrize("kind", TYPES)
def test_a_current_set_says_nothing_on_any_type(kind):
    assert ids({**GOOD, "type": kind}) == []


def just_below(words):
    numbers = list(compatibility.version(words))
    for at in range(len(numbers) - 1, -1, -1):
        if numbers[at]:
            return ".".join(map(str, [*numbers[:at], numbers[at] - 1, *[99] * (len(numbers) - at - 1)]))
    raise AssertionError(words)


def worst(row):
    """Return releases on which every condition of a row holds, at its edges."""
    told: dict[str, str] = {}
    for part, sign, words in row.when:
        if sign == "<" and part not in told:
            told[part] = just_below(words)
        elif sign == ">=":
            told[part] = words
        elif sign in ("=", "in"):
            told[part] = words.split()[0]
    return told


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_each_row_fires_at_its_edge_and_not_beyond(row):
    told = worst(row)
    items = {item.finding.id: item for item in compatibility.judge(told)}
    item = items[f"compat.{row.id}"]
    assert (item.verdict, item.finding.action) == ((PASS, "none") if row.advice else (WARN, "warn"))
    assert item.finding.target == "node"
    assert row.source in item.finding.evidence
    for part, sign, words in row.when:
        assert row.id not in ids({key: value for key, value in told.items() if key != part}), "unknown says nothing"
        good = words if sign == "<" else just_below(words) if sign == ">=" and words != "0" else "other"
        assert row.id not in ids({**told, part: good})


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_each_row_has_a_source_and_words(row):
    assert row.source.startswith("https://")
    assert row.consequence
    assert row.remedy
    assert all(part in compatibility.PARTS and sign in ("<", ">=", "=", "in") for part, sign, _ in row.when)


def test_the_guide_has_every_row_with_its_source():
    guide = (Path(__file__).parents[2] / "docs/guide/gate-efa.md").read_text()
    assert [row.id for row in TABLE if f"| `{row.id}` |" not in guide or f"| {row.source} |" not in guide] == []


def test_the_table_is_long_enough_and_its_ids_are_its_own():
    assert len(TABLE) >= 12
    assert len({row.id for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.17.3g", (2, 17, 3)),
        ("v2.31.2-1", (2, 31, 2)),
        ("2.1.0amzn5.0", (2, 1, 0)),
        ("570.133.20", (570, 133, 20)),
        ("6.8.0-1031-aws", (6, 8, 0)),
        ("1", (1,)),
        ("", None),
        ("unknown", None),
        ("v", None),
        ("1" * 99, None),
    ],
)
def test_releases(text, expected):
    assert compatibility.version(text) == expected


@given(st.dictionaries(st.sampled_from(sorted(compatibility.PARTS)), st.text(max_size=20)))
def test_any_words_are_judged_and_no_row_convicts(told):
    assert all(item.verdict in (PASS, WARN) for item in compatibility.judge(told))


@given(st.text(max_size=60))
def test_no_word_makes_the_reader_of_releases_raise(text):
    found = compatibility.version(text)
    assert found is None or all(number >= 0 for number in found)


DEB = "# EFA installer version: 1.44.0\n# Packages installed:\nefa_2.17.2-1 libfabric1-aws_2.3.1amzn1.0 libfabric-aws-bin_2.3.1amzn1.0"
RPM = "# EFA installer version: 1.30.0\n# Packages installed:\nefa-2.6.0-1.amzn2.noarch libfabric-aws-1.19.0-1.amzn2.x86_64"


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (DEB, {"installer": "1.44.0", "libfabric": "2.3.1amzn1", "libfabric-build": "amazon"}),
        (DEB + " libnccl-ofi_1.16.3-1", {"installer": "1.44.0", "plugin": "1.16.3"}),
        (DEB + " libnccl-ofi-ngc-v3_1.17.1-1", {"plugin": "1.17.1"}),
        (RPM, {"installer": "1.30.0", "libfabric": "1.19.0"}),
        (RPM + " libnccl-ofi-1.14.2-1.amzn2.x86_64", {"plugin": "1.14.2"}),
        ("", {}),
        ("# EFA installer version: latest", {}),
    ],
)
def test_what_the_installer_wrote_down(tmp_path, packages, expected):
    write(tmp_path / compatibility_read.PACKAGES, packages)
    found = compatibility_read.versions(str(tmp_path), str(tmp_path / "opt/fmslurm"), Settings())
    for part, told in expected.items():
        assert compatibility.version(found[part]) == compatibility.version(told) or found[part] == told
    assert ("installer" in found) is ("installer" in expected or "1.44.0" in packages or "1.30.0" in packages)


def test_releases_are_read_from_small_files_and_names(tmp_path):
    write(tmp_path / "sys/module/efa/version", "2.17.3g\n")
    (tmp_path / "sys/module/kefalnd").mkdir(parents=True)
    write(tmp_path / "opt/amazon/efa/lib64/pkgconfig/libfabric.pc", "Name: libfabric\nVersion: 1.22.0\n")
    write(
        tmp_path / "opt/amazon/ofi-nccl/lib/libnccl-net.so", "\x7fELF\0NET/OFI\0Initializing aws-ofi-nccl 1.13.2-aws\0x"
    )
    version = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (x)\nGCC version: 12\n"
    )
    write(tmp_path / "proc/driver/nvidia/version", version)
    write(tmp_path / "usr/local/cuda/version.json", '{"cuda" : {"name" : "CUDA SDK", "version" : "12.8.1"}}')
    write(tmp_path / "proc/sys/kernel/osrelease", "5.15.0-1051-aws\n")
    write(tmp_path / "usr/lib64/libnccl.so.2.26.2", "")
    assert compatibility_read.versions(str(tmp_path), str(tmp_path / "opt/fmslurm"), Settings()) == {
        "libfabric": "1.22.0",
        "libfabric-build": "upstream",
        "plugin": "1.13.2-aws",
        "driver": "2.17.3g",
        "kefalnd": "0",
        "nvidia": "570.133.20",
        "nvidia-module": "open",
        "cuda": "12.8.1",
        "kernel": "5.15.0-1051-aws",
        "nccl": "2.26.2",
    }


def test_the_nccl_of_a_wheel_is_known_by_the_folder_beside_it(tmp_path):
    library = tmp_path / "venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
    write(library, "")
    (library.parents[3] / "nvidia_nccl_cu12-2.27.3.dist-info").mkdir()
    settings = Settings()
    told = settings._replace(burnin=settings.burnin._replace(nccl_library=str(library)))
    assert compatibility_read.versions(str(tmp_path), "/nonexistent", told)["nccl"] == "2.27.3"


@given(st.binary(max_size=200))
def test_noise_in_the_files_never_raises(tmp_path_factory, noise):
    root = tmp_path_factory.mktemp("noise")
    for name in (
        "sys/module/efa/version",
        "proc/driver/nvidia/version",
        compatibility_read.PACKAGES,
        "usr/local/cuda/version.json",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise)
    told = compatibility_read.versions(str(root), str(root), Settings())
    assert all(item.verdict in (PASS, WARN) for item in compatibility.judge(told))

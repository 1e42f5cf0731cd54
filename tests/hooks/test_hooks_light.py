"""What keeps a hook cheap: nothing large is imported on its way, and what is done late is right all the same."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import ForwardRef, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slurm_ext
from slurm_ext.config import model, rules
from slurm_ext.digest import sha256_hex
from slurm_ext.patterns import _Lazy, pattern

#: Each costs a hook a millisecond or more.
LARGE = (
    "hashlib",
    "_hashlib",
    "ssl",
    "urllib",
    "difflib",
    "ipaddress",
    "ctypes",
    "glob",
    "socket",
    "dataclasses",
    "inspect",
)


def test_a_prolog_imports_nothing_large() -> None:
    root = str(Path(slurm_ext.__file__).parent.parent)
    said = (
        f"import sys; sys.path.insert(0, {root!r}); from slurm_ext.hooks import run, supervise, prolog, partners, words, "
        f"nccl_check; from slurm_ext.burnin import gate, surroundings; print([n for n in {LARGE!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-IS", "-c", said], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_an_agent_imports_nothing_large() -> None:
    root = str(Path(slurm_ext.__file__).parent.parent)
    large = ("shutil", "traceback", "ssl", "urllib", "dataclasses", "inspect", "hashlib", "tempfile")
    said = (
        f"import sys; sys.path.insert(0, {root!r}); import slurm_ext.burnin.agent; "
        f"print([n for n in {large!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-IS", "-c", said], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["config.model", "gate.model", "hooks.environment", "events", "burnin.nccl_log"])
def test_records_of_many_fields_have_no_annotation_as_text(name: str) -> None:
    """Each that is text is compiled when its class is made: with `from __future__ import annotations`, ten of them a tenth of
    a millisecond in every hook."""
    module = importlib.import_module(f"slurm_ext.{name}")
    records = [
        kind for kind in vars(module).values() if hasattr(kind, "_fields") and kind.__module__ == module.__name__
    ]
    assert not [
        f"{kind.__name__}.{field}"
        for kind in records
        for field, hint in kind.__annotations__.items()
        if isinstance(hint, (str, ForwardRef))
    ]


def lazy_patterns() -> list[tuple[str, _Lazy]]:
    found = []
    for package in ("config", "gate", "hooks", "slurm", "burnin", ""):
        folder = Path(slurm_ext.__file__).parent / package
        prefix = f"slurm_ext.{package}." if package else "slurm_ext."
        for module in pkgutil.iter_modules([str(folder)], prefix):
            if module.name.endswith("pyslurm_backend") or module.ispkg:
                continue
            items = vars(importlib.import_module(module.name)).items()
            found += [(f"{module.name}.{name}", item) for name, item in items if isinstance(item, _Lazy)]
    return found


def test_every_pattern_compiles() -> None:
    found = lazy_patterns()
    assert len(found) > 40
    for name, item in found:
        assert re.compile(item.pattern, item._flags), name


@given(st.text("ab:x1", max_size=12))
def test_a_late_pattern_finds_what_an_early_one_does(text: str) -> None:
    early, late = re.compile(r"(a+):(x?)"), pattern(r"(a+):(x?)", needs=":")
    for how in ("match", "search", "fullmatch"):
        one, other = getattr(early, how)(text), getattr(late, how)(text)
        assert (one and one.groups()) == (other and other.groups())
    assert [m.span() for m in early.finditer(text)] == [m.span() for m in late.finditer(text)]
    assert early.sub("-", text) == late.sub("-", text)


@given(st.binary(max_size=300))
def test_the_digest_is_sha_256(content: bytes) -> None:
    assert sha256_hex(content) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "shape", [*rules.SECTIONS.values(), model.Tier, model.Settings], ids=lambda kind: kind.__name__
)
def test_annotations_mean_what_typing_says(shape: type) -> None:
    assert rules._hints(shape) == get_type_hints(shape)

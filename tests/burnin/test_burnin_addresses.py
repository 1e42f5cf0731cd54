"""Where nodes are found: the pushed table first, the resolver for what it does not tell or where it cannot be believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_ext.burnin.surroundings import addresses
from slurm_ext.errors import LackingError


@pytest.mark.parametrize("table", ["missing", "empty", "writable", "untold"])
def test_without_a_table_the_resolver_knows(tmp_path: Path, table: str) -> None:
    path = tmp_path / "addresses"
    if table != "missing":
        path.write_text({"empty": "", "writable": "localhost 192.0.2.1\n", "untold": "other 192.0.2.1\n"}[table])
        path.chmod(0o666 if table == "writable" else 0o644)
    assert addresses(("localhost",), str(path))["localhost"] in ("127.0.0.1", "::1")


def test_the_table_comes_first_and_who_is_nowhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "addresses"
    path.write_text("localhost 192.0.2.1\n")
    assert addresses(("localhost",), str(path)) == {"localhost": "192.0.2.1"}
    with pytest.raises(LackingError, match=r"nowhere\.invalid"):
        addresses(("nowhere.invalid",), str(path))

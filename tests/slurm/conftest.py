"""What holds for the tests of this folder."""

from __future__ import annotations

import pytest

from slurm_ext import shared
from slurm_ext.slurm import acks, drain_record, ledger, suppressed

#: Calls of the share that fsync, and what reads it back.
_CALLS = tuple(
    call
    for module in (shared, acks, drain_record, ledger, suppressed)
    for call in vars(module).values()
    if getattr(call, "__module__", "") == module.__name__
    and (getattr(call, "__kwdefaults__", None) or {}).get("timeout_s") == shared.TIMEOUT_S
)


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a disk that is busy with other tests take its time: two seconds are for hooks, and tried where something hangs."""
    assert len(_CALLS) > 10
    if "hang" not in request.node.name and "silent" not in request.node.name:
        for call in _CALLS:
            monkeypatch.setitem(call.__kwdefaults__, "timeout_s", 60.0)

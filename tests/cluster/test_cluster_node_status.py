"""`fmslurm node` and `fmslurm status` as a person runs them, on a real Slurm."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from slurm_ext.lab.cluster import Lab


def fm(lab: Lab, *arguments: str) -> tuple[int | None, str, str]:
    """Run a command of ours in the lab."""
    result = lab.run([sys.executable, "-m", "slurm_ext.cli", *arguments])
    return result.returncode, result.stdout, result.stderr


def data(text: str) -> Any:
    """Return the one JSON object that was printed."""
    found = json.loads(text)
    assert found["schema"] == 1
    return found


def test_drain_by_hand_and_back(lab: Lab) -> None:
    node, other = lab.nodes[0], lab.nodes[1]
    try:
        code, out, _ = fm(lab, "node", "drain", node, "--reason", 'fan\'s "loud"', "--dry-run", "--json")
        assert (code, data(out)["nodes"][0]["result"]) == (0, "dry-run")
        assert fm(lab, "node", "drain", node, "--reason", 'fan\'s "loud"')[0] == 0
        shown = data(fm(lab, "node", "show", node, "--json")[1])["nodes"][0]
        assert shown["reason"].startswith("fmslurm: node.manual node: fans loud (by ")
        assert (shown["drained"], shown["reason_by"], shown["finding"]) == (True, "fmslurm", "node.manual")
        lab.run(["scontrol", "update", f"nodename={other}", "state=drain", "reason=theirs"])
        code, out, err = fm(lab, "node", "resume", node, other, "--reason", "quiet")
        assert code == 4, err
        assert f"{other}: foreign" in out
        listed = data(fm(lab, "node", "list", "--drained", "--json")[1])["nodes"]
        assert [one["node"] for one in listed] == [other]
        assert fm(lab, "node", "drain", other, "--reason", "x")[0] == 1
        state = data(fm(lab, "status", "--json")[1])
        assert state["nodes"]["total"] == len(lab.nodes)
        assert [one["reason"] for one in state["drained"]] == ["theirs"]
        assert lab.slurm_version == state["slurm"]
        assert "theirs" in fm(lab, "status")[1]
    finally:
        for name in (node, other):
            lab.run(["scontrol", "update", f"nodename={name}", "state=resume"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("node", "show"), 2),
        (("node", "show", "nope"), 2),
        (("node", "drain", "--reason", "x"), 2),
        (("node", "drain", "x;y", "--reason", "x"), 2),
        (("node", "drain", "nope", "--reason", "x"), 1),
    ],
)
def test_wrong_use(lab: Lab, arguments: tuple[str, ...], code: int) -> None:
    assert fm(lab, *arguments)[0] == code

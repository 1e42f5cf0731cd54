"""Finding, Verdict and drain-reason text: the words every room uses to say what is wrong and with what.

Standard library only, NamedTuples for their import cost: hooks import this.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

PASS, WARN, FAIL, UNKNOWN = "pass", "warn", "fail", "unknown"
VERDICTS = (PASS, WARN, FAIL, UNKNOWN)

#: Advice of a finding, weakest first; whether anything acts on it is policy's business.
ACTIONS = ("none", "warn", "drain", "reset-gpu", "reboot", "replace")

#: Every drain reason of ours starts so; a reason that does not is somebody else's and is never overwritten or cleared.
REASON_PREFIX = "fmslurm: "

#: Slurm keeps long reasons, but sinfo and people read the first line: stay short, printable and on one line.
REASON_MAX = 240


class Finding(NamedTuple):
    """One thing that is wrong: what (`id`), with what (`target`), what to do (`action`, one of ACTIONS), and why we say so."""

    id: str
    target: str
    action: str = "none"
    evidence: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """What a check concludes: `verdict` is one of VERDICTS, `reason` one sentence in words, `rule` the id of what decided."""

    verdict: str
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    rule: str = ""


def strength(action: str) -> int:
    """Return the rank of an action in ACTIONS; an unknown word ranks as `warn`, never as something that acts."""
    return ACTIONS.index(action) if action in ACTIONS else ACTIONS.index("warn")


def strongest(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding with the strongest action, the first of equals, or None where there is none."""
    best: Finding | None = None
    for finding in findings:
        if best is None or strength(finding.action) > strength(best.action):
            best = finding
    return best


def from_findings(findings: Iterable[Finding], *, rule: str = "findings") -> Verdict:
    """Return the verdict that a list of findings means: anything from `drain` up fails, `warn` warns, else pass."""
    found = tuple(findings)
    worst = strongest(found)
    if worst is None or worst.action == "none":
        return Verdict(PASS, found, "nothing speaks against starting a job", rule)
    sentence = f"{worst.id} on {worst.target}" + (f": {worst.evidence[0]}" if worst.evidence else "")
    return Verdict(FAIL if strength(worst.action) >= strength("drain") else WARN, found, sentence, rule)


_UNPRINTABLE = pattern(r"[^\x20-\x7e]+")


def one_line(text: str, limit: int = REASON_MAX) -> str:
    """Return text as one printable ASCII line of at most `limit` characters; hostile text becomes harmless here."""
    if not (text.isascii() and text.isprintable()):
        text = _UNPRINTABLE.sub(" ", text)
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def drain_reason(finding: Finding) -> str:
    """Return the reason we set on a node we drain: `fmslurm: <finding id> <target>: <evidence in short>`.

    Quotes are dropped, since Slurm's own tools print reasons unquoted and sites parse them.
    """
    evidence = finding.evidence[0] if finding.evidence else "no further evidence"
    return one_line(f"{REASON_PREFIX}{finding.id} {finding.target}: {evidence}".replace('"', "").replace("'", ""))


def is_ours(reason: str) -> bool:
    """Say whether a node's reason was set by fmslurm."""
    return reason.startswith(REASON_PREFIX)


def to_json(verdict: Verdict) -> dict[str, object]:
    """Return the verdict as plain data: `verdict`, `reason`, `rule`, `findings` (id, target, action, evidence list)."""
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "rule": verdict.rule,
        "findings": [
            {"id": f.id, "target": f.target, "action": f.action, "evidence": list(f.evidence)} for f in verdict.findings
        ],
    }


def from_json(data: dict[str, object]) -> Verdict:
    """Return the Verdict that `to_json` wrote. Raise ValueError where the shape is another one."""
    try:
        listed = data.get("findings", [])
        if not isinstance(listed, list) or not all(isinstance(f["evidence"], list) for f in listed):
            raise TypeError("findings and evidence are lists")
        findings = tuple(
            Finding(str(f["id"]), str(f["target"]), str(f["action"]), tuple(str(e) for e in f["evidence"]))
            for f in listed
        )
        word = str(data["verdict"])
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a verdict: {exc!r}") from exc
    if word not in VERDICTS:
        raise ValueError(f"not a verdict: {word!r}")
    return Verdict(word, findings, str(data.get("reason", "")), str(data.get("rule", "")))

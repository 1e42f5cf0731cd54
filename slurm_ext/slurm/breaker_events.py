"""What is written where the breaker holds a drain back: the node's own event, the list on the share, and the page.

Standard library only: hooks import this.
"""

from __future__ import annotations

from slurm_ext.config.model import Settings
from slurm_ext.events import Event
from slurm_ext.slurm import suppressed
from slurm_ext.slurm.breaker import Ruling
from slurm_ext.slurm.journal import Journal
from slurm_ext.slurm.outcome import Outcome
from slurm_ext.slurm.suppressed import Noted, Suppressed
from slurm_ext.verdict import Finding, one_line

#: The event that a page is made of, once for each time the breaker opens; and how it goes on to grow.
OPEN, MORE = "breaker.open", "breaker.more"

#: The rule of such an event where there is no ledger to count in.
NO_LEDGER = "breaker.no-ledger"


def hold_back(
    settings: Settings, journal: Journal, event: Event, finding: Finding, ruling: Ruling, *, now: float
) -> Outcome:
    """Write down that `event`'s node is not drained, and return that as an outcome. `now`: seconds since the epoch."""
    journal.write(event._replace(phase="fact", decision="suppressed", reason=ruling.reason))
    evidence = one_line(finding.evidence[0]) if finding.evidence else ""
    one = Suppressed(
        event.node,
        finding.id,
        finding.target,
        finding.action,
        evidence,
        one_line(ruling.reason),
        now,
        job=event.job,
        allowed=max(ruling.limit, 0),
    )
    noted = suppressed.note(settings.site.share, one)
    if noted is not None and noted.step:
        journal.write(page(event, ruling, noted))
    return Outcome(False, "breaker-open" if ruling.limit >= 0 else "no-ledger", ruling.reason)


def page(event: Event, ruling: Ruling, noted: Noted) -> Event:
    """Return the event that says that the breaker is open, and for whom. Pure."""
    names = ", ".join(noted.nodes[:10]) + (f" and {noted.total - 10} more" if noted.total > 10 else "")
    return event._replace(
        event=OPEN if noted.first else MORE,
        rule=OPEN if ruling.limit >= 0 else NO_LEDGER,
        reason=one_line(f"not drained though convicted: {names}; {ruling.reason}", 400),
        decision="page",
        phase="fact",
        time="",
        data={"nodes": list(noted.nodes), "count": noted.total, "opening": noted.opening, "allowed": ruling.limit},
    )

"""Where rules put what they find, and hostlists as the linter reads them: never an exception, whatever the text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_ext.slurm.hostlist import HostlistError, fold
from slurm_ext.topology.lint_hosts import hosts
from slurm_ext.topology.lint_model import SEVERITIES, Finding, Given
from slurm_ext.topology.lint_rules import RULES
from slurm_ext.topology.naming import comment, natural

#: Names that all hostlists of one file may have together: more than any cluster, and still quick.
MAX_NAMES = 400_000
#: Findings of one rule in one file; the last of them says how many more there are.
MAX_EACH = 20
#: Rules of what is missing: it may stand in a file that an Include names and nobody has read.
_MISSING = frozenset(
    (
        *(
            "conf.empty",
            "tree.unknown-child",
            "tree.unknown-node",
            "tree.orphans",
            "block.unknown-node",
            "block.orphans",
        ),
        *("block.nothing", "block.base-guessed", "slurm.topology-unknown", "slurm.plugin-unset"),
    )
)


class Report:
    """Findings of one run for one release."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.found: list[Finding] = []
        #: A file that is included was not read.
        self.partial = False
        #: The file at hand is one that slurmctld does not open: what is wrong there stops nothing yet.
        self.unread = False
        self._counts: dict[tuple[str, str], int] = {}
        self._left = MAX_NAMES

    def add(self, rule: str, file: str, line: int, *, severity: str = "", **words: object) -> None:
        """Report a finding, unless the rule says that it is none in this release."""
        entry = RULES[rule]
        how = severity or entry.severity(self.given.release.feature)
        if not how:
            return
        if self.partial and rule in _MISSING:
            how = "note"
        if self.unread and how == "fatal":
            how = "error"
        self._counts[file, rule] = self._counts.get((file, rule), 0) + 1
        if self._counts[file, rule] > MAX_EACH:
            return
        clean = {key: comment(str(word))[:200] for key, word in words.items()}
        self.found.append(
            Finding(file, line, rule, how, _fill(entry.reason, clean), _fill(entry.remedy, clean), entry.source)
        )

    def sorted(self) -> list[Finding]:
        """Return all findings by file, line and severity; rules that fired too often end in one line that says so."""
        more = [
            Finding(file, 0, rule, "note", f"{count - MAX_EACH} more of {rule}", "Correct the first ones", "")
            for (file, rule), count in self._counts.items()
            if count > MAX_EACH
        ]
        return sorted(self.found + more, key=lambda f: (f.file, f.line, SEVERITIES.index(f.severity), f.rule))

    def names(self, text: str, file: str, line: int) -> list[str]:
        """Return the names of a hostlist; what is wrong with it is reported, and it then has none."""
        found = hosts(text, self._left, closes=self.given.release.feature < (23, 2))
        if found.suffix:
            self.add("hostlist.suffix", file, line, what=short(text))
        if found.problem:
            self.add(f"hostlist.{found.problem}", file, line, what=short(text))
        self._left -= len(found.names)
        return found.names


def _fill(template: str, words: dict[str, str]) -> str:
    return re.sub(
        r"\{(\w+)(!r)?\}", lambda found: f"`{words[found[1]]}`" if found[2] else words.get(found[1], ""), template
    )


def short(text: str) -> str:
    """Return text cut to what fits a message."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def folded(names: Iterable[str]) -> str:
    """Return names as one hostlist, cut to what fits a message."""
    chosen = sorted(set(names), key=natural)[:2000]
    try:
        return short(fold(chosen))
    except HostlistError:
        return short(",".join(chosen))

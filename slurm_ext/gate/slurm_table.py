"""sinfo's and squeue's text: any separator, any header or none, any -o or -O format. Pure.

Which column holds what is read from the header, else from the format in the command, else from the cells themselves.
Names, comments and reasons may hold the separator: a row with too many pieces gives them to its one free-text column.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from slurm_ext.gate.slurm_views import NOTHING
from slurm_ext.typed import NamedTuple

#: One row: column name in sinfo's or squeue's own capitals -> cell.
Row = Mapping[str, str]


class Table(NamedTuple):
    """The rows of one answer; `unread` are lines that fit no column; `narrow` where columns may have cut their cells."""

    rows: tuple[Row, ...] = ()
    unread: tuple[str, ...] = ()
    narrow: bool = False
    names: tuple[str, ...] = ()  # of the header, where there is one


_SQUEUE_SPECS: Mapping[str, str] = {
    **{"A": "JOBID", "i": "JOBID", "T": "STATE", "t": "ST", "N": "NODELIST", "R": "NODELIST(REASON)", "r": "REASON"},
    **{
        "e": "END_TIME",
        "S": "START_TIME",
        "M": "TIME",
        "j": "NAME",
        "k": "COMMENT",
        "u": "USER",
        "P": "PARTITION",
        "o": "COMMAND",
    },
    **{"B": "EXEC_HOST", "n": "REQ_NODES", "x": "EXC_NODES", "Y": "SCHEDNODES", "Z": "WORK_DIR", "F": "ARRAY_JOB_ID"},
}
_SINFO_SPECS: Mapping[str, str] = {
    **{"N": "NODELIST", "n": "HOSTNAMES", "t": "STATE", "T": "STATE", "E": "REASON", "u": "USER", "U": "USER"},
    **{"H": "TIMESTAMP", "P": "PARTITION", "R": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES"},
}
#: -O/--Format fields that have another name in the header.
_LONG: Mapping[str, str] = {
    **{"STATECOMPACT": "ST", "STATELONG": "STATE", "STATECOMPLETE": "STATE", "REASONLIST": "NODELIST(REASON)"},
    **{
        "NODEHOST": "HOSTNAMES",
        "ENDTIME": "END_TIME",
        "STARTTIME": "START_TIME",
        "TIMEUSED": "TIME",
        "JOBARRAYID": "JOBID",
    },
    **{"RESTARTCNT": "RESTARTS", "USERLONG": "USER"},
}
#: `%all` gives some hundred columns; a line of more words is no row.
_COLUMNS_MAX = 256
#: The most columns of sinfo and squeue where nothing else is asked for (`squeue -l`).
_WORDS_MAX = 9
#: Columns of free text, the likeliest first.
_FREE = ("REASON", "NODELIST(REASON)", "NAME", "COMMENT", "COMMAND", "WORK_DIR", "EXTRA")
_HEADER_KEYS = frozenset(("NODELIST", "HOSTNAMES", "STATE", "ST", "JOBID", "NODELIST(REASON)", "REASON"))
#: squeue -l and sinfo -l begin with a date, -M with the cluster's name.
_BANNER = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d|CLUSTER: ")
#: Reasons by which a column without a header is known.
_REASONS = frozenset(
    (
        *("none", "resources", "priority", "dependency", "dependencyneversatisfied", "jobarraytasklimit", "begintime"),
        *("jobheldadmin", "jobhelduser", "prolog", "timelimit", "nonzeroexitcode", "nodedown"),
    )
)
#: A cell that is a state as Slurm prints it: in capitals or without any, in one word.
_STATE = re.compile(r"(?:[A-Z_+]{1,80}|[a-z_+]{1,80})[*~#!%$@^-]{0,4}(?: by \d{1,10})?")
_NAMES = re.compile(r"S:C:T|[A-Z][A-Z_]*(?:\([A-Z/]+\))?|%[A-Za-z]")


def read(text: str, *, command: str = "", is_state: Callable[[str], bool]) -> Table:
    """Return the table in an answer. `is_state` tells the words of the state column."""
    # squeue -l and sinfo -l begin with a date.
    lines = [
        line for line in text.splitlines() if line.strip() and not re.match(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d", line)
    ]
    if not lines:
        return Table()
    header = _header(lines[0])
    if header is not None:
        names, separator = header
        spans = [(found.start(), found.end()) for found in _NAMES.finditer(lines[0])]
        return _by_columns(lines[1:], names, separator, is_state, spans)._replace(names=tuple(names))
    names, separator = _format(command)
    if names:
        return _by_columns(lines, names, separator, is_state, [])
    return _guess(lines, is_state)


def _header(line: str) -> tuple[list[str], str] | None:
    """Return (column names, separator) where the line is a header; the separator is empty where it is blanks."""
    found = list(_NAMES.finditer(line))
    names = [match[0] for match in found]
    if not _HEADER_KEYS & {*names} or re.search(r"[a-z]", re.sub(r"%[A-Za-z]", "", line)):
        return None
    separator = _between(line, found) or ""
    if separator:
        names = [cell.strip() for cell in line.strip().split(separator)]
    if not separator and len(names) == 1:
        return names, "\0"  # one column: a blank does not end a cell
    return names, separator


def _format(command: str) -> tuple[list[str], str]:
    """Return (column names, separator) of the format in a command, no names where it has none."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    specs = _SQUEUE_SPECS if any("squeue" in word for word in words[:3]) else _SINFO_SPECS
    for number, word in enumerate(words):
        value = words[number + 1] if number + 1 < len(words) else ""
        if word in ("-O", "--Format") or word.startswith("--Format="):
            listed = word.partition("=")[2] or value
            names = [part.split(":")[0].strip().upper() for part in listed.split(",") if part.strip()]
            return [_LONG.get(name, name) for name in names], ""
        if word in ("-o", "--format"):
            return _specs(value, specs)
        if word.startswith("--format="):
            return _specs(word.partition("=")[2], specs)
        if re.match(r"-[a-zA-Z]*o.", word) and "%" in word:
            return _specs(word[word.index("o") + 1 :], specs)
        if re.fullmatch(r"-[a-zA-Z]*o", word):
            return _specs(value, specs)
    return _default(words), ""


def _default(words: Sequence[str]) -> list[str]:
    """Return the columns that sinfo or squeue gives where it is asked for none (sinfo(1), squeue(1): -N, -R, -l)."""
    tool = next((word for word in ("squeue", "sinfo") if any(word in given for given in words[:3])), "")
    if not tool:
        return []
    flags = "".join(word[1:] for word in words if re.fullmatch(r"-[a-zA-Z]+", word))
    long = "l" in flags or "--long" in words
    if tool == "squeue":
        limit = ["TIME_LIMIT"] if long else []
        return ["JOBID", "PARTITION", "NAME", "USER", "STATE", "TIME", *limit, "NODES", "NODELIST(REASON)"]
    if "R" in flags or "--list-reasons" in words:
        return ["REASON", "USER", "TIMESTAMP", *(["STATE"] if long else []), "NODELIST"]
    if "N" in flags or "--Node" in words:
        sizes = ["CPUS", "S:C:T", "MEMORY", "TMP_DISK", "WEIGHT", "AVAIL_FE", "REASON"]
        return ["NODELIST", "NODES", "PARTITION", "STATE", *(sizes if long else [])]
    more = ["JOB_SIZE", "ROOT", "OVERSUBS", "GROUPS"]
    return ["PARTITION", "AVAIL", "TIMELIMIT", *(more if long else []), "NODES", "STATE", "NODELIST"]


def _blanks(line: str) -> list[str]:
    """Return the words of a line; what stands in parentheses is one, as in squeue's `(launch failed requeued held)`."""
    return re.findall(r"(?<!\S)\([^()]*(?:\([^()]*\)[^()]*)*\)(?!\S)|\S+", line)


def _specs(text: str, specs: Mapping[str, str]) -> tuple[list[str], str]:
    found = list(re.finditer(r"%\.?\d*([A-Za-z])", text))
    separator = _between(text, found)
    return [specs.get(match[1], f"%{match[1]}") for match in found], "\0" if separator is None else separator


def _between(text: str, found: Sequence[re.Match[str]]) -> str | None:
    """Return what stands most often between two columns: nothing for blanks, None where there is one column."""
    marks = Counter(text[one.end() : two.start()] for one, two in pairwise(found))
    likeliest = Counter({mark: count for mark, count in marks.items() if mark.strip() or "\t" in mark}) or marks
    if not likeliest:
        return None
    mark = likeliest.most_common(1)[0][0]
    return mark.strip() or ("\t" if mark == "\t" else "")


def _by_columns(
    lines: Sequence[str],
    names: Sequence[str],
    separator: str,
    is_state: Callable[[str], bool],
    spans: Sequence[tuple[int, int]],
) -> Table:
    rows, unread = [], []
    state = next((number for number, name in enumerate(names) if name in ("STATE", "ST")), None)
    for line in lines:
        ways = [cells for cells in _cells(line, names, separator, spans) if len(cells) == len(names)]
        sure = [cells for cells in ways if state is None or is_state(cells[state])]
        # A state that nobody knows is told as such, where the cells leave no doubt.
        whole = ways[:1] if ways and line.count(separator or " ") >= len(names) - 1 else []
        # A name may hold the separator and a state behind it: two ways to read a line are none.
        agreed = state is None or len({cells[state].upper() for cells in sure}) <= 1
        if agreed and (chosen := sure[:1] or whole):
            rows.append(dict(zip(names, chosen[0], strict=True)))
        else:
            unread.append(line)
    return Table(tuple(rows), tuple(unread), narrow=not separator)


def _cells(line: str, names: Sequence[str], separator: str, spans: Sequence[tuple[int, int]]) -> list[list[str]]:
    """Return the ways to cut a line into cells, the likeliest first."""
    pieces = line.split(separator) if separator else _blanks(line)
    glue = separator or " "
    pieces = [piece.strip() for piece in pieces]
    if len(pieces) == len(names):
        return [pieces]
    if separator and len(pieces) == len(names) + 1 and not pieces[-1]:
        return [pieces[:-1]]  # the separator ends the line, too
    ways = []
    if spans and not separator and (placed := _placed(line, spans)):
        ways.append(placed)
    surplus = len(pieces) - len(names)
    for name in _FREE:
        if name in names and surplus > 0:
            at = names.index(name)
            ways.append([*pieces[:at], glue.join(pieces[at : at + surplus + 1]), *pieces[at + surplus + 1 :]])
    if surplus < 0 and not separator and len(pieces) == len(names) - 1:
        # An empty cell leaves no trace between blanks: a pending job has no node list.
        ways += [[*pieces[:at], "", *pieces[at:]] for at, name in enumerate(names) if name in ("NODELIST", "REASON")]
    return ways


def _placed(line: str, spans: Sequence[tuple[int, int]]) -> list[str] | None:
    """Return the cells by their place: each word goes to the header that stands over it, the last header has the rest."""
    cells: list[list[str]] = [[] for _ in spans]
    at = 0
    for found in re.finditer(r"\S+", line):
        over = [n for n, (start, end) in enumerate(spans) if found.start() < end and start < found.end()]
        if not over:
            # Between two headers: what a left-aligned cell has more than its header belongs to it.
            over = [max((n for n, (start, _) in enumerate(spans) if start <= found.start()), default=0)]
        at = max(at, over[0])
        cells[at].append(found[0])
    joined = [" ".join(words) for words in cells]
    return joined if any(joined) else None


def _guess(lines: Sequence[str], is_state: Callable[[str], bool]) -> Table:
    """Return the rows of lines that nothing describes: the state column is the one whose every cell is a state."""
    best: Table | None = None
    for separator in _separators(lines):
        split = [[cell.strip() for cell in (line.split(separator) if separator else _blanks(line))] for line in lines]
        width = Counter(map(len, split)).most_common(1)[0][0]
        whole = [cells for cells in split if len(cells) == width]
        unread = tuple(line for line, cells in zip(lines, split, strict=True) if len(cells) != width)
        state = next(
            (
                at
                for at in range(min(width, _COLUMNS_MAX))
                if all(_STATE.fullmatch(cells[at]) and is_state(cells[at]) for cells in whole)
            ),
            None,
        )
        if not 2 <= width <= _COLUMNS_MAX or state is None or (best is not None and len(unread) >= len(best.unread)):
            continue
        if len(unread) > 1 and len(unread) * 4 > len(lines):
            continue  # what mostly fits no column is no table
        if not separator and width > 3 and not _counts(whole):
            continue  # prose: sinfo and squeue give a count or a time in each row
        names = _guess_names(whole, state)
        best = Table(tuple(dict(zip(names, cells, strict=True)) for cells in whole), unread)
    return best or Table(unread=tuple(lines))


def _counts(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether one column of all rows holds numbers or times, and the rows are no longer than those of the tools."""
    return len(rows[0]) <= _WORDS_MAX and any(
        all(re.fullmatch(r"[\d:-]*\d[\d:-]*", row[at]) for row in rows) for at in range(len(rows[0]))
    )


def _separators(lines: Sequence[str]) -> list[str]:
    """Return what may separate the cells, likeliest first: punctuation that every line has, longest first, then blanks."""
    seen = Counter(re.findall(r"[^\w\s()\[\]./:+*-]{1,3}|[;,:]", lines[0]))
    shared = [mark for mark, _ in seen.most_common(8) if all(mark in line for line in lines)]
    return [*sorted(shared, key=lambda mark: (-len(mark), -seen[mark])), "\t", ""]


def _guess_names(rows: Sequence[Sequence[str]], state: int) -> list[str]:
    names = [f"%{at}" for at in range(len(rows[0]))]
    names[state] = "STATE"
    columns = [[row[at] for row in rows] for at in range(len(names))]
    ids = [at for at, cells in enumerate(columns) if all(re.fullmatch(r"\d+(?:[_+][\d\[].*)?", cell) for cell in cells)]
    if ids:
        names[max(ids, key=lambda at: (min(map(len, columns[at])) > 2, len({*columns[at]}), -at))] = "JOBID"
    free = [at for at, name in enumerate(names) if name.startswith("%")]
    listed = [at for at in free if _lists_nodes(columns[at])]
    if listed:
        # A partition looks like a node, too; only a node list has brackets, and only squeue's has a reason in its place.
        best = max(listed, key=lambda at: (_has(columns[at], "("), _has(columns[at], "["), len({*columns[at]}), -at))
        names[best] = "NODELIST(REASON)" if _has(columns[best], "(") else "NODELIST"
    for at in free:
        known = sum(cell.lower() in _REASONS for cell in columns[at])
        if names[at].startswith("%") and known * 2 > len(columns[at]) and "REASON" not in names:
            names[at] = "REASON"
    return names


def _has(cells: Sequence[str], begin: str) -> bool:
    return any(cell.startswith("(") if begin == "(" else begin in cell for cell in cells)


def _lists_nodes(cells: Sequence[str]) -> bool:
    """Say whether a column may list nodes: names with a digit, hostlists, a reason in parentheses, or nothing."""
    name = r"[A-Za-z][\w.-]*\d[\w.-]*(?:\[.*)?(?:,.*)?|[\w.-]+\[[\d,-]+\].*"
    told = [cell for cell in cells if cell and cell not in NOTHING]
    return any(re.fullmatch(name, cell) for cell in told) and all(
        cell.startswith("(") or re.fullmatch(name, cell) for cell in told
    )

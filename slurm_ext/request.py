"""What `fmslurm submit` tells hooks and daemon: one token behind the user's own `--comment`, parsed purely.

`fm:1;r=5;n=run-name;c=/lustre/runs/a;b=strict` - version, resume budget (`r`; `r=` alone means the site's budget), run
name, checkpoint folder (percent-encoded), burn-in wish, `o=1` for off. The comment is hostile text: what does not parse
is no token, and nothing in it is ever executed or followed by root. Standard library only: hooks import this.
"""

from __future__ import annotations

from slurm_ext.patterns import pattern
from slurm_ext.typed import NamedTuple

#: Slurm refuses a comment of more than 1024 bytes (seen on 22.05.8, 24.11.5, 26.05.5), and ours stands behind the user's own.
TOKEN_MAX = 1024

#: A budget above this is a typing error.
RESUME_MAX = 999

_TOKEN = pattern(r"(?:^|(?<=\s))fm:1((?:;[a-z]=[A-Za-z0-9._/%+-]*)*)(?=\s|$)", needs="fm:1")
_RUN = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
BURNIN_WISHES = ("", "normal", "strict", "skip")


class Request(NamedTuple):
    """One job's wishes. `resume` is None where the job did not opt in, -1 for the site's own budget, else a count."""

    resume: int | None = None
    run: str = ""
    checkpoint_dir: str = ""
    burnin: str = ""
    off: bool = False


def is_run_name(text: str) -> bool:
    """Say whether text may name a run: letters, digits, dot, dash, underscore, at most 64, no leading dot or dash."""
    return _RUN.fullmatch(text) is not None


def is_checkpoint_dir(text: str) -> bool:
    """Say whether text may be a checkpoint folder: absolute, no `..`, no control characters."""
    parts = text.split("/")
    return text.startswith("/") and ".." not in parts and text.isprintable() and len(text) <= 512


def render(request: Request) -> str:
    """Return the token of a request. Raise ValueError where a field is not allowed or the token grows too long."""
    parts = ["fm:1"]
    if request.resume is not None:
        if request.resume > RESUME_MAX:
            raise ValueError(f"{request.resume} requeues asked for, at most {RESUME_MAX} are allowed")
        parts.append("r=" if request.resume < 0 else f"r={request.resume}")
    if request.run:
        if not is_run_name(request.run):
            raise ValueError(f"not a run name: {request.run!r}")
        parts.append(f"n={request.run}")
    if request.checkpoint_dir:
        if not is_checkpoint_dir(request.checkpoint_dir):
            raise ValueError(f"not an absolute checkpoint folder: {request.checkpoint_dir!r}")
        from urllib.parse import quote

        parts.append(f"c={quote(request.checkpoint_dir, safe='/')}".replace("~", "%7E"))
    if request.burnin:
        if request.burnin not in BURNIN_WISHES:
            raise ValueError(f"not a burn-in wish: {request.burnin!r}")
        parts.append(f"b={request.burnin}")
    if request.off:
        parts.append("o=1")
    token = ";".join(parts)
    if len(token) > TOKEN_MAX:
        raise ValueError(f"the options are {len(token)} characters long, {TOKEN_MAX} are allowed")
    return token


def parse(comment: str) -> Request | None:
    """Return the request in a job's comment, or None where there is no token or it is not one we would have written."""
    tokens = list(_TOKEN.finditer(comment))
    if not tokens or len(tokens[-1].group(0)) > TOKEN_MAX:
        return None
    found = tokens[-1]  # ours stands behind the user's own text
    fields = dict(part.split("=", 1) for part in found.group(1).split(";") if part)
    resume: int | None = None
    if "r" in fields:
        if fields["r"] and (not fields["r"].isdigit() or len(fields["r"]) > len(str(RESUME_MAX))):
            return None
        resume = int(fields["r"]) if fields["r"] else -1
    run, folder, wish = fields.get("n", ""), fields.get("c", ""), fields.get("b", "")
    if "%" in folder:
        from urllib.parse import unquote  # here: it is larger than this module, and few folders need it

        folder = unquote(folder)
    if (run and not is_run_name(run)) or (folder and not is_checkpoint_dir(folder)) or wish not in BURNIN_WISHES:
        return None
    return Request(resume, run, folder, wish, fields.get("o") == "1")


def strip(comment: str) -> str:
    """Return the user's own comment without our token."""
    return _TOKEN.sub("", comment).rstrip()

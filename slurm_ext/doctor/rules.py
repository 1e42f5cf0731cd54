"""Facts -> results, pure. Each rule answers one question and says what to do; what nobody could look at is `unknown`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slurm_ext.burnin.gate import longest_s
from slurm_ext.config.model import ROOMS
from slurm_ext.config.modes import HEARTBEAT_FRESH_S
from slurm_ext.doctor import notify, topology
from slurm_ext.doctor.model import FAIL, OK, UNKNOWN, WARN, Facts, Result
from slurm_ext.slurm.hostlist import fold
from slurm_ext.verdict import is_ours

#: Releases that the test suite runs on or whose behaviour was read; outside of it we say so instead of guessing.
SUPPORTED = ((22, 5), (26, 5))

#: What a prolog may take besides gate and burn-in (seconds) before it gives itself up: hooks.prolog.REST_S and
#: hooks.supervise.MARGIN_S.
HOOK_REST_S = 30.0

#: What the last of those who may stop a job gives the ones before it (seconds): hooks.decide.TAKE_OVER_S, twice.
HOOK_TAKE_OVER_S = 10.0

#: A key is old after so many days, and should be replaced while it still lives so long.
KEY_OLD_D, KEY_SHORT_D = 365.0, 90.0

#: Days that two keys may be valid at once before doctor asks whether the older one was forgotten.
KEY_OVERLAP_D = 30.0

#: Seconds that fmslurm-controller needs to see a requeued job and to exclude its node; seen: 1 s was too short.
SHORT_DELAY_S = 10


def examine(facts: Facts) -> list[Result]:
    """Return one result for each rule, in a fixed order."""
    return [result for rule in RULES for result in rule(facts)]


def _slurm_answers(facts: Facts) -> Iterator[Result]:
    if facts.version is None or facts.slurm_config is None:
        why = facts.errors.get("slurm", "no answer")
        yield Result(
            "slurm.answers", FAIL, f"slurmctld does not answer: {why}", "Start slurmctld, or set site.slurm_conf"
        )
        return
    yield Result("slurm.answers", OK, f"Slurm {facts.version.text} answers, backend {facts.backend}")
    if not SUPPORTED[0] <= (facts.version.major, facts.version.minor) <= SUPPORTED[1]:
        yield Result(
            "slurm.version",
            WARN,
            f"Slurm {facts.version.text} is outside of what fmslurm was tried on (22.05 to 26.05)",
        )


def _prolog_flags(facts: Facts) -> Iterator[Result]:
    if facts.slurm_config is None:
        yield Result("slurm.prolog-flags", UNKNOWN, "PrologFlags cannot be read")
        return
    flags = {word.strip().lower() for word in facts.slurm_config.get("PrologFlags", "").split(",")}
    missing = [word for word in ("Alloc", "DeferBatch") if word.lower() not in flags]
    if not missing:
        yield Result(
            "slurm.prolog-flags", OK, "PrologFlags has Alloc and DeferBatch: every node passes before the script runs"
        )
        return
    wanted = facts.settings.mode.burnin != "off"
    yield Result(
        "slurm.prolog-flags",
        FAIL if wanted else WARN,
        f"PrologFlags lacks {' and '.join(missing)}: the batch script may start before other nodes are gated",
        "Set PrologFlags=Alloc,DeferBatch in slurm.conf and restart; until then the multi-node burn-in cannot gate",
    )


def _hooks(facts: Facts) -> Iterator[Result]:
    if facts.hooks is None:
        yield Result("hooks.installed", UNKNOWN, "the hook folders cannot be read")
        return
    for kind in ("Prolog", "Epilog"):
        files = facts.hooks.get(kind, ())
        ours = any(name.endswith("fmslurm") for name in files)
        if ours:
            yield Result(f"hooks.{kind.lower()}", OK, f"{kind} runs fmslurm")
        else:
            remedy = "Run `fmslurm install` and include its fragment in slurm.conf"
            yield Result(f"hooks.{kind.lower()}", FAIL, f"{kind} does not run fmslurm: jobs are not gated", remedy)


def _requeue_settings(facts: Facts) -> Iterator[Result]:
    if facts.slurm_config is None:
        return
    parameters = facts.slurm_config.get("SchedulerParameters", "").lower()
    if "nohold_on_prolog_fail" not in parameters:
        yield Result(
            "slurm.nohold",
            WARN,
            "a job whose prolog fails is held until somebody releases it",
            "Add nohold_on_prolog_fail to SchedulerParameters",
        )
    else:
        yield Result("slurm.nohold", OK, "a job whose prolog fails goes back to the queue by itself")
    delay = re.search(r"requeue_delay=(\d+)", parameters)
    if delay is not None and int(delay.group(1)) < SHORT_DELAY_S and facts.settings.mode.resume == "enforce":
        yield Result(
            "slurm.requeue-delay",
            WARN,
            f"requeue_delay={delay.group(1)}: Slurm may start a job again before its bad node is excluded",
            f"Set requeue_delay to {SHORT_DELAY_S} or more; fmslurm starts what it brings back at once all the same",
        )
    limit = facts.slurm_config.get("MaxBatchRequeue", "")
    if limit.isdigit() and int(limit) < 10:
        yield Result(
            "slurm.max-batch-requeue",
            WARN,
            f"MaxBatchRequeue is {limit}: a few bad nodes in a row hold a job for good",
            "Set MaxBatchRequeue=10 or more",
        )
    timeout = facts.slurm_config.get("PrologTimeout", "") or facts.slurm_config.get("PrologEpilogTimeout", "")
    digits = timeout.split()[0] if timeout else ""
    needed = HOOK_REST_S + facts.settings.gate.deadline_s
    rules = facts.settings.burnin
    if facts.settings.mode.burnin != "off":
        strict = "strict" in rules.user_may or bool(rules.strict_partitions)
        largest = max(len(facts.nodes or ()), 2)  # a job may take them all
        needed += longest_s(facts.settings, nodes=largest, strict=strict) + HOOK_TAKE_OVER_S
    if digits.isdigit() and 0 < int(digits) < needed:
        yield Result(
            "slurm.prolog-timeout",
            FAIL,
            f"slurmd kills a prolog after {digits} s, ours may take {needed:.0f} s: healthy nodes would drain",
            "Raise PrologTimeout (PrologEpilogTimeout before 25.05), or lower burnin.deadline_s, late_s or strict_sustain_s",
        )


def _configuration(facts: Facts) -> Iterator[Result]:
    if not facts.config_path:
        yield Result("config.file", WARN, "no fmslurm.yaml: defaults are in force", "Copy etc/fmslurm.yaml and edit it")
    else:
        yield Result("config.file", OK, f"{facts.config_path} is valid")
    if not facts.settings.site.share:
        yield Result(
            "config.share", WARN, "no shared folder: nodes keep their own settings and evidence", "Set site.share"
        )
    elif facts.share_problem:
        yield Result("config.share", FAIL, facts.share_problem, "The shared folder is root's, mode 0755")
    elif facts.snapshot_hash is None:
        yield Result("config.pushed", FAIL, "no usable snapshot: hooks pass every job", "Run `fmslurm config push`")
    elif facts.snapshot_hash != facts.settings.source_hash:
        yield Result(
            "config.pushed", WARN, "nodes run an older fmslurm.yaml than this one", "Run `fmslurm config push`"
        )
    else:
        yield Result("config.pushed", OK, "nodes run this fmslurm.yaml")


def _drains(facts: Facts) -> Iterator[Result]:
    if not facts.settings.site.share or facts.share_problem:
        return
    if not facts.ledger:
        text = "the ledger of drains on the share cannot be read, so nothing is drained"
        acts = "enforce" in (facts.settings.mode.gate, facts.settings.mode.burnin)
        yield Result(
            "drains.ledger", FAIL if acts else WARN, text, "`fmslurm install` makes it; it is root's, mode 0755"
        )
    elif facts.held_back:
        text = f"the breaker is open: convicted and still in use: {fold(facts.held_back)}"
        yield Result("drains.breaker", WARN, text, "`fmslurm status` says for what; are the nodes bad, or are we?")
    else:
        yield Result("drains.ledger", OK, "the ledger of drains can be read, and the breaker is closed")


def _modes(facts: Facts) -> Iterator[Result]:
    ladder = ", ".join(f"{room} {getattr(facts.settings.mode, room)}" for room in ROOMS)
    yield Result("mode.ladder", OK, ladder)
    for room, why in (facts.off or {}).items():
        yield Result(
            "mode.switched-off", WARN, f"{room} is switched off: {why}", f"`fmslurm on {room}` when it may work again"
        )


def _daemons(facts: Facts) -> Iterator[Result]:
    if facts.settings.mode.resume == "off":
        return
    if facts.heartbeat_age_s is None:
        yield Result(
            "controller.heartbeat", FAIL, "fmslurm-controller has left no sign of life", "Start fmslurm-controller"
        )
    elif facts.heartbeat_age_s > HEARTBEAT_FRESH_S:
        text = f"fmslurm-controller was last seen {facts.heartbeat_age_s:.0f} s ago"
        yield Result("controller.heartbeat", FAIL, text, "Start fmslurm-controller and read its log")
    else:
        yield Result("controller.heartbeat", OK, f"fmslurm-controller was seen {facts.heartbeat_age_s:.0f} s ago")


def _munge(facts: Facts) -> Iterator[Result]:
    """By munge or by keys: one of them must let nodes prove themselves to one another."""
    if facts.munge is None:
        yield Result("munge.answers", UNKNOWN, f"munge cannot be asked: {facts.errors.get('munge', 'no library')}")
    elif facts.munge:
        yield Result("munge.answers", OK, "munge makes and reads credentials")
    elif facts.keys and (facts.slurm_config or {}).get("AuthType", "") != "auth/munge":
        yield Result("munge.answers", OK, "there is no munge here: nodes prove themselves by the site's key")
    elif facts.keys or facts.settings.mode.burnin == "off":
        text = "munge does not answer" + (
            "" if facts.keys else ", and there is no key: nodes cannot prove who they are"
        )
        uses = (facts.slurm_config or {}).get("AuthType", "auth/munge") == "auth/munge"
        yield Result("munge.answers", FAIL if uses else WARN, text, "Start munged" if uses else "`fmslurm key create`")
    else:
        text = "munge does not answer and there is no key: nodes cannot prove who they are"
        remedy = "Start munged, or make a key and bring it to the nodes: `fmslurm key create`"
        yield Result("munge.answers", FAIL, text, remedy)
    if facts.munge and not facts.openssl and facts.settings.mode.burnin != "off":
        text = "there is no openssl program: a node that leads a burn-in makes its certificate with it"
        yield Result("channel.openssl", FAIL, text, "Install the package openssl, here and on the nodes")


def _keys(facts: Facts) -> Iterator[Result]:
    if facts.keys is None:
        text = f"the site's keys cannot be used: {facts.errors.get('keys', 'not looked at')}"
        # Where munge answers nobody uses them.
        yield Result("channel.key", UNKNOWN if facts.munge or facts.settings.mode.burnin == "off" else FAIL, text)
        return
    if not facts.keys:
        return
    newest, *others = facts.keys
    if newest.left_d <= 0:
        yield Result(
            "channel.key", FAIL, f"key {newest.id} has expired", "`fmslurm key rotate`, and bring it to the nodes"
        )
    elif newest.age_d > KEY_OLD_D or newest.left_d < KEY_SHORT_D:
        text = f"key {newest.id} is {newest.age_d:.0f} days old and expires in {newest.left_d:.0f}"
        yield Result("channel.key", WARN, text, "`fmslurm key rotate`, and bring it to the nodes")
    elif others and newest.age_d > KEY_OVERLAP_D:
        text = f"key {others[0].id} is still valid, {newest.age_d:.0f} days after {newest.id} was made to replace it"
        yield Result(
            "channel.key", WARN, text, "See that every node has the new one, then `fmslurm key rotate --finish`"
        )
    else:
        yield Result("channel.key", OK, f"key {newest.id} is {newest.age_d:.0f} days old")


def _nccl(facts: Facts) -> Iterator[Result]:
    mode = facts.settings.mode.burnin
    if mode == "off":
        return
    # Where the burn-in enforces, a missing library makes every verdict unknown, and on_unknown sends the jobs back.
    state = FAIL if mode == "enforce" else WARN
    remedy = "Run `fmslurm install --nccl` on each node, or set burnin.nccl_library"
    missing = [node for node, why in facts.nccl_nodes.items() if why]
    if facts.nccl:
        yield Result("burnin.library", state, facts.nccl, remedy)
    if missing:
        text = f"no NCCL on {fold(missing)}, by the last burn-in there: {facts.nccl_nodes[missing[0]]}"
        yield Result("burnin.library", state, text, f"{remedy}; then `fmslurm burnin run {fold(missing)}`")
    elif facts.nccl == "":
        yield Result("burnin.library", OK, "NCCL's library loads")
    elif facts.nccl is None and facts.nccl_nodes:
        yield Result(
            "burnin.library", OK, f"NCCL's library loaded on {len(facts.nccl_nodes)} nodes, by their last burn-in"
        )
    elif facts.nccl is None:
        text = "NCCL's library is not on this machine, and no node's burn-in has told of one yet"
        remedy += "; `fmslurm burnin run NODES` then says that it loads, as does doctor on a node"
        yield Result("burnin.library", FAIL if mode == "enforce" else UNKNOWN, text, remedy)


def _nodes(facts: Facts) -> Iterator[Result]:
    if facts.nodes is None:
        yield Result("nodes.state", UNKNOWN, "nodes cannot be listed")
        return
    drained = [node for node in facts.nodes if node.drained]
    down = [node.name for node in facts.nodes if node.state == "DOWN"]
    mine = [node.name for node in drained if is_ours(node.reason)]
    if mine:
        yield Result(
            "nodes.drained-by-us", WARN, f"drained by fmslurm: {', '.join(mine)}", "`fmslurm node show NODE` says why"
        )
    if down:
        yield Result("nodes.down", WARN, f"down: {', '.join(down)}", "Read slurmd's log there")
    if not mine and not down:
        others = f", {len(drained)} drained by others" if drained else ""
        yield Result("nodes.state", OK, f"{len(facts.nodes)} nodes, none down, none drained by fmslurm{others}")


def _notices(facts: Facts) -> Iterator[Result]:
    if facts.notices is not None:
        yield from notify.rule(facts.settings, facts.notices)


def _topology(facts: Facts) -> Iterator[Result]:
    if facts.watched is not None:
        yield from topology.rule(facts.settings, facts.watched)


RULES: tuple[Callable[[Facts], Iterator[Result]], ...] = (
    _slurm_answers,
    _prolog_flags,
    _requeue_settings,
    _hooks,
    _configuration,
    _drains,
    _modes,
    _daemons,
    _munge,
    _keys,
    _nccl,
    _notices,
    _topology,
    _nodes,
)

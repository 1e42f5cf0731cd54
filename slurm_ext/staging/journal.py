"""What the agent writes down: notes of what is done (a cache; the tiers are the truth), its status file, and events."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping

from slurm_ext import events, shared
from slurm_ext.config.model import Settings, at_node
from slurm_ext.events import Event
from slurm_ext.files import write_atomic
from slurm_ext.staging.model import COMPLETE, COPIED, REFUSED, Shard
from slurm_ext.staging.plan import ASSEMBLE, Action, Progress
from slurm_ext.staging.worker import Outcome

SCHEMA = 1
_JOB = re.compile(r"[^/]+/([0-9]+(?:_[0-9]+)?)-[0-9]+")


class Journal:
    """The agent's notes of one node. One file per shard under `state_dir/staging`, root's own."""

    def __init__(self, settings: Settings, node: str) -> None:
        self.node = node
        self.folder = os.path.join(at_node(settings.site.state_dir, node), "staging")
        self.status_path = os.path.join(at_node(settings.site.run_dir, node), "staging.json")
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        self.down: dict[str, str] = {}
        self._last_status = b""

    def _note(self, key: str) -> str:
        """Return the path of a shard's note."""
        return os.path.join(self.folder, key.replace("/", "~") + ".json")

    def load(self) -> dict[tuple[str, str], Progress]:
        """Return what was noted: (kind, Shard.key) -> Progress. A note that cannot be read is as good as none."""
        known: dict[tuple[str, str], Progress] = {}
        for name in os.listdir(self.folder):
            if not name.endswith(".json") or name.startswith("."):
                continue
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
                with open(os.path.join(self.folder, name), encoding="utf-8") as stream:
                    note = json.load(stream)
                for kind, fields in note["tiers"].items():
                    known[str(kind), name[: -len(".json")].replace("~", "/")] = Progress(
                        str(fields["state"]), words=str(fields["words"])
                    )
        return known

    def keep(self, key: str, known: Mapping[tuple[str, str], Progress]) -> None:
        """Note what is done of a shard; what only waits is found out again after a crash."""
        tiers = {
            kind: {"state": one.state, "words": one.words}
            for (kind, owner), one in known.items()
            if owner == key and one.state in (COMPLETE, REFUSED, COPIED)
        }
        if tiers:
            with contextlib.suppress(OSError):  # a full disk: the tiers are looked at again after a restart
                write_atomic(self._note(key), json.dumps({"schema": SCHEMA, "tiers": tiers}) + "\n")

    def forget(self, keys: Iterable[str], known: dict[tuple[str, str], Progress]) -> None:
        """Drop the notes of shards that are no longer on NVMe."""
        gone = set(keys)
        for pair in [pair for pair in known if pair[1] in gone]:
            del known[pair]
        for key in gone:
            with contextlib.suppress(OSError):
                os.unlink(self._note(key))

    def status(
        self,
        settings: Settings,
        shards: Iterable[Shard],
        known: Mapping[tuple[str, str], Progress],
        running: Iterable[Action],
        now: float,
    ) -> None:
        """Write the status file, whole or not at all, where anything but the time has changed."""
        busy = {(action.kind, action.shard.key) for action in running}
        listed = [
            {
                "uid": shard.uid,
                "run": shard.run,
                "step": shard.step,
                "attempt": shard.attempt,
                "shard": shard.shard,
                "world": shard.world,
                "bytes": shard.size,
                "tiers": {
                    kind: {
                        "state": one.state,
                        "running": (kind, shard.key) in busy,
                        "failures": one.failures,
                        "words": one.words,
                    }
                    for (kind, key), one in {**{pair: Progress() for pair in busy}, **known}.items()
                    if key == shard.key
                },
            }
            for shard in sorted(shards, key=lambda shard: (-shard.step, shard.run, shard.shard))
        ]
        data = {
            "schema": SCHEMA,
            "node": self.node,
            "pid": os.getpid(),
            "mode": settings.mode.staging,
            "config": settings.source_hash[:12],
            "down": self.down,
            "shards": listed,
        }
        content = json.dumps(data).encode()
        if content == self._last_status and os.path.exists(self.status_path):
            return
        with contextlib.suppress(OSError):
            write_atomic(self.status_path, json.dumps({"time": events.stamp(now), **data}) + "\n")
            self._last_status = content

    def tell(
        self,
        settings: Settings,
        name: str,
        action: Action,
        phase: str,
        *,
        reason: str = "",
        dry_run: bool = False,
        data: Mapping[str, object] | None = None,
        widely: bool = False,
    ) -> None:
        """Append an event about a shard to the node's trail; `widely` puts it on the share, too."""
        shard = action.shard
        job = _JOB.fullmatch(shard.attempt)
        event = Event(
            name,
            room="staging",
            node=self.node,
            job=job.group(1) if job else "",
            attempt=shard.attempt,
            rule=action.rule,
            reason=reason or action.reason,
            phase=phase,
            dry_run=dry_run,
            config=settings.source_hash[:12],
            data={
                "tier": action.kind,
                "run": shard.run,
                "step": shard.step,
                "shard": shard.shard,
                "world": shard.world,
                "bytes": shard.size,
                **(data or {}),
            },
        )
        path = os.path.join(at_node(settings.site.log_dir, self.node), "events.jsonl")
        with contextlib.suppress(OSError):  # a full disk must not keep checkpoints from leaving it
            event = events.append(path, event)
        if widely:
            shared.append_event(settings.site.share, self.node, event)

    def failed(self, settings: Settings, action: Action, outcome: Outcome) -> None:
        """Write down a try that failed; once per tier where that tier is down, not once per try."""
        first = action.kind not in self.down
        self.down[action.kind] = outcome.error[:300]
        self.tell(settings, "ckpt.move", action, "failed", reason=outcome.error)
        if first:
            self.tell(settings, "ckpt.tier-down", action, "fact", reason=outcome.error, widely=True)

    def answered(self, settings: Settings, action: Action, outcome: Outcome) -> None:
        """Write down how a task ended: moved, complete, or refused."""
        state = outcome.state
        assert state is not None
        if self.down.pop(action.kind, None) is not None:
            self.tell(settings, "ckpt.tier-back", action, "fact", reason=f"{action.kind} works again", widely=True)
        data = {"state": state.state, "moved_bytes": outcome.moved_bytes, "seconds": round(outcome.seconds, 3)}
        if action.rule != "look-again":
            self.tell(settings, "ckpt.move", action, "done", reason=state.words, data=data)
        if state.state == REFUSED:
            self.tell(settings, "ckpt.refused", action, "fact", reason=state.words, data=data, widely=True)
        elif state.state == COMPLETE and action.kind != ASSEMBLE and action.shard.shard == 0:
            self.tell(settings, "ckpt.complete", action, "fact", reason=state.words, data=data, widely=True)

"""One AWS service, asked through boto3 (imported on use): retries with jitter, several calls at once, a bound over all.

botocore's own retries are off: they know nothing of our bucket, nor of the time that is left.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

from slurm_ext.aws import imds, trouble
from slurm_ext.aws.bucket import TokenBucket
from slurm_ext.aws.trouble import Said
from slurm_ext.errors import LackingError

#: Seconds for all calls of one question, tries for each call, calls under way at once.
DEADLINE_S, TRIES, AT_ONCE = 180.0, 6, 8

#: Seconds to connect and to wait for an answer: EC2 answers in well under one.
CONNECT_S, READ_S = 5.0, 20.0

#: The first pause before a retry lasts up to so many seconds, each next one up to twice that, none longer than the second.
PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0

#: Pages that one question may have: a thousand of a thousand instances are more than any account has.
MOST_PAGES = 1000

Key = TypeVar("Key")


class Refused(Exception):
    """AWS gave no good answer to one call, however often it was asked. `said` is its last word."""

    def __init__(self, call: str, said: Said) -> None:
        super().__init__(f"{call}: {said.code}: {said.words}")
        self.call, self.said = call, said


class Service:
    """A service in one region. Thread-safe. `calls` counts requests by operation, retries included."""

    def __init__(
        self,
        name: str,
        *,
        region: str = "",
        endpoint: str = "",
        deadline_s: float = DEADLINE_S,
        read_s: float = READ_S,
        bucket: TokenBucket | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
        client: Any = None,
    ) -> None:
        """Nothing is sent yet. The deadline (seconds) starts with the first question; `chance` gives numbers from 0 to 1."""
        self.name, self._region, self._endpoint = name, region, endpoint
        self._deadline_s, self._read_s = deadline_s, read_s
        self.clock, self.sleep, self._chance = clock, sleep, chance
        self._bucket = bucket or TokenBucket(clock=clock, sleep=sleep)
        self._client = client
        self._until: float | None = None
        self.calls: dict[str, int] = {}

    def until(self) -> float:
        """Return when the time for all calls is over, on the clock."""
        if self._until is None:
            self._until = self.clock() + self._deadline_s
        return self._until

    def ask(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one call, again where that may help. Raise Refused with AWS's last word."""
        until, client = self.until(), self.client()
        last = Said("", "no time was left to ask", True)
        for attempt in range(TRIES):
            if not self._bucket.take(until=until):
                raise Refused(operation, last)
            self.calls[operation] = self.calls.get(operation, 0) + 1
            try:
                return self._answer(getattr(client, operation), arguments)
            except Exception as exc:  # noqa: BLE001 - said() raises again what is not botocore's
                last = trouble.said(exc)
            if not last.again:
                break
            if last.code in trouble.THROTTLED:
                self._bucket.drain()
            pause_s = self._chance() * min(LONGEST_PAUSE_S, PAUSE_S * 2**attempt)
            if attempt == TRIES - 1 or self.clock() + pause_s > until:
                break
            self.sleep(pause_s)
        raise Refused(operation, last)

    def _answer(self, call: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a call answers. Raise TimeoutError where a server lets it drip: a timeout of a socket holds for one read."""
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(dict(call(**arguments)))
            except BaseException as exc:  # noqa: BLE001 - handed on to who waits
                outcome.append(exc)

        # A daemon: one that never ends must not keep the process.
        thread = threading.Thread(target=work, daemon=True, name="aws-call")
        thread.start()
        thread.join(CONNECT_S + 2 * self._read_s)
        if not outcome:
            raise TimeoutError
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        answer: Mapping[str, Any] = outcome[0]
        return answer

    def ask_all(
        self, questions: Mapping[Key, Callable[[], Any]], *, stop: Callable[[Said], bool] = trouble.concerns_all
    ) -> Iterator[tuple[Key, Any]]:
        """Yield (key, answer or Refused) of each question as they come, several at once. Raise Refused where `stop` says so."""
        self.client()  # here and not in every thread
        over = threading.Event()
        why: list[Refused] = []  # the refusal that stopped the others: theirs say nothing, and may be heard of first

        def one(question: Callable[[], Any]) -> Any:
            if over.is_set():
                raise why[0] if why else Refused("none", Said("", "not asked any more", False))
            try:
                return question()
            except Refused as refused:
                if stop(refused.said):
                    why.append(refused)
                    over.set()
                raise

        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="aws") as pool:
            waiting = {pool.submit(one, question): key for key, question in questions.items()}
            try:
                for done in as_completed(waiting):
                    try:
                        yield waiting[done], done.result()
                    except Refused as refused:
                        if stop(refused.said):
                            raise
                        yield waiting[done], refused
            finally:
                over.set()
                for future in waiting:
                    future.cancel()

    def pages(self, operation: str, *, most: int = MOST_PAGES, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the answers to one question, page by page, by hand: some calls have no paginator in boto3.

        Raise Refused where the server hands out a page again, or more than `most`: it would cost others their calls, too.
        """
        token, seen = "", set[str]()
        while True:
            answer = self.ask(operation, **arguments, **({"NextToken": token} if token else {}))
            yield answer
            token = str(answer.get("NextToken") or "")
            if not token:
                return
            if token in seen:
                raise Refused(operation, Said("", "the server hands out the same page for ever", False))
            seen.add(token)
            if len(seen) >= most:
                raise Refused(operation, Said("", f"the server hands out more than {most} pages", False))

    def client(self) -> Any:
        """Return boto3's client. Raise Refused where there is no region or no usable configuration."""
        if self._client is None:
            self._client = self._made()
        return self._client

    def _made(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as exc:
            raise LackingError(f"boto3 is not installed: {exc}", remedy="Install fmslurm's dependencies") from exc
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=self._read_s,
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=AT_ONCE,
            user_agent_extra="fmslurm",
        )
        try:
            session = boto3.session.Session()
            region = self._region or session.region_name or imds.region()
            return session.client(
                self.name, region_name=region or None, endpoint_url=self._endpoint or None, config=config
            )
        except Exception as exc:
            if isinstance(exc, ValueError):
                raise LackingError(f"{self.name}: {exc}", remedy="Correct aws.region and the endpoints") from exc
            raise Refused("connect", trouble.said(exc)) from exc


def batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of at most `size` items, in order."""
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch

"""Send requests to a timer topic and wait for their receipts, which say what the bridge did.

    read the end offsets of timer.receipts -> send requests, wait for acknowledgements -> read the receipts after them

The bridge commits a receipt together with the request's effect, usually within a second. A request without a receipt in
time counts as `unanswered`; it was sent all the same.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from fastapi import Query
from pydantic import ValidationError

from bridge.errors import BridgeError
from bridge.page.api.kafka import ConfluentKafkaPort, in_thread
from bridge.page.api.requests import Named, OutcomesAsked
from bridge.page.api.responses import LatestReceipts
from bridge.redrive.rules import TopicReader
from kafka_timer import Sent, TimerOperator
from kafka_timer.origin import TimerPartition
from schemas.receipts import Mode, Receipt, printable

SendRequests: TypeAlias = Callable[[TimerOperator], "Iterable[Future[Sent]]"]

log = logging.getLogger(__name__)

_ACKNOWLEDGED_TIMEOUT_S = 30.0
_RECEIPTS_TIMEOUT_S = 15.0
_POLL_S = 0.05
_RECEIPTS_PER_S = 1000
"""Requests for each further second of waiting."""
_UNACKNOWLEDGED = "no broker has acknowledged it in time: check whether it was sent, then repeat it"
_LATEST_RECEIPTS = 10_000
"""Offsets of each partition in which the receipts of one timer are searched: about 2 MB."""
_OUTCOME_OFFSETS = 1000
"""Offsets of each partition that the latest outcomes are read from."""


@dataclass
class SendProgress:
    """How far `send` is, which writes it, also if a request fails. Any thread may read it.

    sent: topic/partition/offset of each acknowledged request. outcomes: receipts by kind. answered: requests with one.
    timers: number of timers of a selection to act on; 0 until they are found.
    """

    sent: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    timers: int = 0

    def result(self) -> dict[str, Any]:
        """Return the fields of `Acted`."""
        return {"sent": self.sent, "outcomes": self.outcomes, "unanswered": len(self.sent) - self.answered}


@dataclass(frozen=True)
class RequestSender:
    """`_mode`: which receipts the bridge sends. Thread-safe."""

    _kafka: ConfluentKafkaPort
    _receipts_topic: str
    _mode: Mode
    timeout_s: float = _RECEIPTS_TIMEOUT_S
    sleep: Callable[[float], None] = time.sleep

    def send(self, requests: Mapping[str, SendRequests], progress: SendProgress, *, has_receipts: bool = True) -> None:
        """Send requests, by timer topic. Raises BridgeError if one is not acknowledged, ValueError if one is wrong."""
        ends: dict[TimerPartition, int] = {}
        if has_receipts and self._mode != "none":
            with self._kafka.reader() as reader:
                ends = {place: end for place, (_, end) in self._bounds(reader).items()}
        for topic, send in requests.items():
            _await_acknowledged(send(self._kafka.producer(topic)), progress.sent)
        self._await_receipts(ends, progress)

    def _bounds(self, reader: TopicReader) -> dict[TimerPartition, tuple[int, int]]:
        places = [TimerPartition(self._receipts_topic, n) for n in range(reader.partitions(self._receipts_topic) or 0)]
        return {place: reader.bounds(place) for place in places}

    @in_thread
    def receipts(self, asked: Annotated[Named, Query()]) -> LatestReceipts:
        name = asked.name()
        if isinstance(name, bytes):
            return self._latest(lambda each: each.id == printable(name), _LATEST_RECEIPTS)
        origin = "/".join(map(str, name))
        return self._latest(lambda each: origin in (each.origin, each.request), _LATEST_RECEIPTS)

    @in_thread
    def outcomes(self, asked: Annotated[OutcomesAsked, Query()]) -> LatestReceipts:
        kind = asked.kind
        found = self._latest(lambda each: each.kind == kind if kind else each.kind != "accepted", _OUTCOME_OFFSETS)
        return LatestReceipts(receipts=found.receipts[: -asked.limit - 1 : -1], has_older=found.has_older)

    def _latest(self, is_wanted: Callable[[Receipt], bool], offsets: int) -> LatestReceipts:
        """Return receipts by time, from the last `offsets` of each partition."""
        with self._kafka.reader() as reader:
            bounds = self._bounds(reader)
            begins = {place: max(first, end - offsets) for place, (first, end) in bounds.items()}
            has_older = any(begins[place] > first for place, (first, _) in bounds.items())
            found = filter(is_wanted, self._new_receipts(reader, begins))
            return LatestReceipts(receipts=sorted(found, key=lambda each: each.at_ms), has_older=has_older)

    def _await_receipts(self, ends: dict[TimerPartition, int], progress: SendProgress) -> None:
        """Wait for the receipts. The requests are already sent, so a broker error only means fewer receipts."""
        asked, waiting = frozenset(progress.sent), set(progress.sent)
        end_s = time.monotonic() + self.timeout_s + len(asked) / _RECEIPTS_PER_S
        while waiting and ends:
            try:
                with self._kafka.reader() as reader:  # released between polls, so that others can read too
                    for receipt in self._new_receipts(reader, ends):
                        if receipt.request in asked:
                            progress.outcomes[receipt.kind] += 1
                            waiting.discard(receipt.request)
                            progress.answered = len(asked) - len(waiting)
            except BridgeError as error:
                log.warning("receipts are not read: %s", error)
            if time.monotonic() >= end_s:
                break
            if waiting:
                self.sleep(_POLL_S)

    def _new_receipts(self, reader: TopicReader, ends: dict[TimerPartition, int]) -> Iterator[Receipt]:
        """Yield the receipts after `ends`, and advance `ends`."""
        for place, begin in ends.items():
            end = max(begin, reader.bounds(place)[1])
            for records in reader.requests(place, begin, end):
                ends[place] = records[-1].offset + 1
                for record in records:
                    with suppress(ValidationError):  # not written by a bridge
                        yield Receipt.model_validate_json(record.value or b"")
            ends[place] = end


def _await_acknowledged(futures: "Iterable[Future[Sent]]", sent: list[str]) -> None:
    """Wait for all requests that were sent, and add them to `sent`. Raises the first failure."""
    out: list[Future[Sent]] = []
    failures: list[Exception] = []
    try:
        out.extend(futures)
    except (BridgeError, ValueError) as error:
        failures.append(error)
    timeout_s = _ACKNOWLEDGED_TIMEOUT_S
    for future in out:
        try:
            sent.append("/".join(map(str, future.result(timeout_s))))
        except TimeoutError:
            timeout_s = 0.0
            failures.append(BridgeError(_UNACKNOWLEDGED))
        except BridgeError as error:
            failures.append(error)
    if failures:
        raise failures[0]

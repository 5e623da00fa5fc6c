"""Requests are sent, and their receipts waited for: what truly came of them.

    ends of timer.receipts -> requests are sent, acknowledged -> receipts behind those ends that answer them

A receipt comes when the bridge has committed what it did, so within a second where nothing is in its way. Where none is
seen in time, the request is `unanswered`: it stands all the same.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from pydantic import ValidationError

from bridge.client import Sent, TimerProducer
from bridge.errors import BridgeError
from bridge.http.api.ports import KafkaSide, TopicReader
from schemas.origin import Shard
from schemas.receipts import Mode, Receipt

log = logging.getLogger(__name__)

_ACKNOWLEDGED_WITHIN_S = 30.0
_RECEIPTS_WITHIN_S = 15.0
_NAP_S = 0.05
_PER_S = 1000
"""Many take longer."""


class Came(NamedTuple):
    """`sent`: topic/partition/offset of each request. `outcomes`: receipts by kind."""

    sent: list[str]
    outcomes: Counter[str]
    unanswered: int


class Requests:
    """`receipts`: which are sent by the bridge. Blocks; any thread."""

    def __init__(
        self,
        kafka: KafkaSide,
        receipts_topic: str,
        receipts: Mode,
        within_s: float = _RECEIPTS_WITHIN_S,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self._kafka = kafka
        self._receipts_topic = receipts_topic
        self._receipts = receipts
        self._within_s = within_s
        self._nap = nap

    def send(
        self,
        timer_topic: str,
        requests: "Callable[[TimerProducer], Iterable[Future[Sent]]]",
        on_sent: Callable[[str], None],
        *,
        has_receipts: bool = True,
    ) -> Came:
        """Raises BridgeError where one is not acknowledged, ValueError where one is not a request.

        `on_sent` is told of each that was acknowledged, also where another was not.
        """
        producer = self._kafka.producer(timer_topic)
        if not has_receipts or self._receipts == "none":
            sent = _acknowledged(requests(producer), on_sent)
            return Came(sent, Counter(), len(sent))
        with self._kafka.reader() as reader:
            places = [Shard(self._receipts_topic, n) for n in range(reader.partitions(self._receipts_topic) or 0)]
            ends = {place: reader.bounds(place)[1] for place in places}
        return self._answered(ends, _acknowledged(requests(producer), on_sent))

    def _answered(self, ends: dict[Shard, int], sent: list[str]) -> Came:
        """What was sent stands by now: a broker in trouble only means that fewer answers are seen."""
        asked, waiting, outcomes = frozenset(sent), set(sent), Counter[str]()
        end_s = time.monotonic() + self._within_s + len(sent) / _PER_S
        while waiting and ends:
            try:
                with self._kafka.reader() as reader:  # anew: each has a few seconds, and others get a turn
                    for told in self._new_receipts(reader, ends):
                        if told.request in asked:
                            outcomes[told.kind] += 1
                            waiting.discard(told.request)
            except BridgeError as wrong:
                log.warning("receipts are not read: %s", wrong)
            if time.monotonic() >= end_s:
                break
            if waiting:
                self._nap(_NAP_S)
        return Came(sent, outcomes, len(waiting))

    def _new_receipts(self, reader: TopicReader, ends: dict[Shard, int]) -> Iterator[Receipt]:
        """Those behind `ends`, which move on with them."""
        for place, begin in ends.items():
            end = max(begin, reader.bounds(place)[1])
            for records in reader.requests(place, begin, end):
                ends[place] = records[-1].offset + 1
                yield from filter(None, (_receipt(record.value) for record in records))
            ends[place] = end


def _acknowledged(futures: "Iterable[Future[Sent]]", on_sent: Callable[[str], None]) -> list[str]:
    """All that went out are waited for. Raises the first failure."""
    out: list[Future[Sent]] = []
    failures: list[Exception] = []
    try:
        out.extend(futures)
    except (BridgeError, ValueError) as wrong:
        failures.append(wrong)
    sent: list[str] = []
    within_s = _ACKNOWLEDGED_WITHIN_S
    for future in out:
        try:
            place = "/".join(map(str, future.result(within_s)))
        except TimeoutError:
            within_s = 0.0
            failures.append(
                BridgeError("no broker has acknowledged it in time: look whether it was sent, then do it again")
            )
        except BridgeError as wrong:
            failures.append(wrong)
        else:
            sent.append(place)
            on_sent(place)
    if failures:
        raise failures[0]
    return sent


def _receipt(value: bytes | None) -> Receipt | None:
    try:
        return Receipt.model_validate_json(value or b"")
    except ValidationError:  # somebody else's
        return None

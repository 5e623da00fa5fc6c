"""Figures of deliveries: counts by origin against the requests, and lateness.

requests  timer.requests/0 [0, 4)        expected origins 0 1 2 3
delivered               0 1 1 3          lost 1 (2), duplicates 1 (1)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scripts.common.kafka_io import Delivery, OffsetRange

Ints = npt.NDArray[np.int64]


class Lateness(NamedTuple):
    """Lateness in ms, nearest rank: each is the lateness of some message."""

    p50_ms: int
    p99_ms: int
    max_ms: int


class Account(NamedTuple):
    """Counts of `requested` origins; `strangers`: deliveries whose origin was not requested."""

    requested: int
    lost: int
    duplicates: int
    early: int
    strangers: int


def lateness(late_ms: Ints) -> Lateness:
    if not len(late_ms):
        return Lateness(0, 0, 0)
    p50, p99 = np.percentile(late_ms, [50, 99], method="inverted_cdf")
    return Lateness(int(p50), int(p99), int(late_ms.max()))


def late_ms(deliveries: Sequence[Delivery]) -> Ints:
    """Return lateness by the broker's clock: append time on the target topic minus due time."""
    return np.array([d.appended_ms - d.due_ms for d in deliveries], np.int64)


class DeliveryAccount:
    """Counts the deliveries of each expected origin, and keeps how late they were."""

    def __init__(self, spans: Sequence[OffsetRange], deliveries: Sequence[Delivery] = ()) -> None:
        """spans: every offset is a request that must be delivered once."""
        self._spans = {b"%s/%d" % (span.topic.encode(), span.partition): span for span in spans}
        self._times = {name: np.zeros(len(span), np.int32) for name, span in self._spans.items()}
        self._late_ms: list[Ints] = []
        self._strangers = 0
        self.note(deliveries)

    def note(self, deliveries: Sequence[Delivery]) -> None:
        self._late_ms.append(late_ms(deliveries))
        for delivery in deliveries:
            place, _, offset = delivery.origin.rpartition(b"/")
            span = self._spans.get(place)
            if span is not None and span.begin <= int(offset) < span.end:
                self._times[place][int(offset) - span.begin] += 1
            else:
                self._strangers += 1

    @property
    def lost(self) -> int:
        return sum(int((times == 0).sum()) for times in self._times.values())

    @property
    def late_ms(self) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *self._late_ms])

    def counts(self) -> Account:
        duplicates = sum(int(np.maximum(times - 1, 0).sum()) for times in self._times.values())
        requested, early = sum(map(len, self._spans.values())), int((self.late_ms < 0).sum())
        return Account(requested, self.lost, duplicates, early, self._strangers)

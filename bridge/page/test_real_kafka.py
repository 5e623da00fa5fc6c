"""RealKafka with what stands for a broker."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event

import pytest

from bridge import confluent
from bridge.confluent import ConfluentRedrive, Patience
from bridge.confluent.producer import Batch
from bridge.confluent.redriving import Sent
from bridge.errors import BrokerUnavailableError
from bridge.page import real_kafka
from bridge.page.real_kafka import RealKafka
from bridge.ports import Outgoing
from bridge.redrive import Found, Parked, Selection
from bridge.settings import Settings, load
from schemas.origin import Shard


def settings() -> Settings:
    return load({"bootstrap_servers": "127.0.0.1:1", "topics": {"timer.payments": {}}}, {}, None)


def lying(offset: int, topic: str) -> Parked:
    place = Shard("timer.rejected", 0)
    return Parked(place, offset, 1_000, "unknown-topic", Shard(topic, 0), offset, "orders", None, 10)


class Work:
    """Stands for a redrive of what lies there."""

    def __init__(self, *records: Parked) -> None:
        self._records = records
        self.sent: list[Parked] = []

    def begin(self, copies: int) -> None:
        del copies

    def look(self, selection: Selection) -> Found:
        found = Found(selection, ())
        for record in self._records:
            found.add(record)
        return found

    def apply(self, selected: Sequence[Parked], note: Callable[[Sequence[Parked]], None]) -> Sent:
        self.sent += selected
        note(selected)
        return Sent(count=len(selected))


def test_a_redrive_sends_to_the_timer_topics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own, of_table, foreign = lying(0, "timer.requests"), lying(1, "timer.payments"), lying(2, "bills")
    work = Work(own, of_table, foreign)
    monkeypatch.setattr(real_kafka, "redriving", lambda *_: nullcontext(work))
    kafka = RealKafka(settings())
    assert kafka.redrive([own, of_table, foreign], lambda _: None).sent == 2
    assert work.sent == [of_table, own]


class Unfilled:
    """A producer to which no broker answers, until it is over."""

    is_broken = False

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.is_asked, self.is_over = Event(), Event()

    def fill(self, batch: Batch) -> None:
        del batch
        while not self.is_over.is_set():
            self.is_asked.set()
            self._patience.wait("publishing", "nobody answers", 0)

    def settle(self, batch: Batch) -> None:
        del batch

    def close(self) -> None:
        """Nothing is open."""


def test_a_redrive_that_waits_for_a_broker_ends_with_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    record = lying(0, "timer.requests")
    made: list[Unfilled] = []

    class Waiting(ConfluentRedrive):
        def begin(self, replication_factor: int) -> None:
            made.append(Unfilled(self._patience))
            self._producer = made[0]  # type: ignore[assignment]
            begun.set()

        def look(self, selection: Selection) -> Found:
            found = Found(selection, ())
            found.add(record)
            return found

        def _requests(self, chunk: Sequence[Parked]) -> list[tuple[Parked, Outgoing]]:
            return [(each, Outgoing(*each.shard, None, b"v", [], 0)) for each in chunk]

    begun = Event()
    monkeypatch.setattr(confluent, "ConfluentRedrive", Waiting)
    kafka = RealKafka(settings())
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(kafka.redrive, [record], lambda _: None)
        assert begun.wait(30)
        try:
            assert made[0].is_asked.wait(30)
            kafka.close()
            with pytest.raises(BrokerUnavailableError, match="publishing"):
                sending.result(5)
        finally:
            made[0].is_over.set()

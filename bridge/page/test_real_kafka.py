"""RealKafka with what stands for a broker."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest

from bridge.confluent.redriving import Sent
from bridge.page import real_kafka
from bridge.page.real_kafka import RealKafka
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

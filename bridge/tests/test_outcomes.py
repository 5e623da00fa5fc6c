"""Outcomes of requests in the client: histories with a bridge and no broker."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from bridge.tests.test_client import Place, consumed
from kafka_timer import BridgeError, Outcome, Outcomes, Sent, SettingsError, TimerProducer, outcomes
from kafka_timer.aio import AsyncTimerProducer

SOON_S = 10.0
FOLLOWED = ("timer.receipts", "timer.rejected", "orders")


class Consumer:
    """Reads what `Following` hands on."""

    def __init__(self) -> None:
        self.records: SimpleQueue[Any] = SimpleQueue()
        self.is_closed = False

    def poll(self, timeout_s: float) -> Any:
        try:
            return self.records.get(timeout=timeout_s)
        except Empty:
            return None

    def close(self) -> None:
        self.is_closed = True


class Following:
    """A place whose producer follows outcomes."""

    def __init__(self) -> None:
        self.place, self.consumer = Place(), Consumer()
        self.outcomes = Outcomes({}, targets=["orders"], consumer=self.consumer)
        self.timers = TimerProducer({}, outbox=self.place.outbox, outcomes=self.outcomes)
        self._read = dict.fromkeys(FOLLOWED, 0)

    def run(self, ms: int) -> None:
        self.place.bridge.run(ms)
        for topic in FOLLOWED:
            entries = self.place.delivered(topic)
            for entry in entries[self._read[topic] :]:
                self.consumer.records.put(consumed(entry, topic))
            self._read[topic] = len(entries)


def result(future: "Future[Outcome]") -> Outcome:
    return future.result(SOON_S)


def text(sent: Sent) -> str:
    return "/".join(map(str, sent))


def test_how_timers_end_and_what_requests_did() -> None:
    here = Following()
    with here.timers as timers:
        sent = {
            name: timers.schedule(topic, b"v", delay=delay, id=name).result(0)
            for name, topic, delay in (
                ("a", "orders", "2s"),
                ("b", "orders", "1h"),
                ("c", "orders", "1h"),
                ("d", "no", "1s"),
            )
        }
        far = timers.schedule("orders", b"v", delay="400d").result(0)
        here.run(1000)
        ends = {name: timers.outcome(each) for name, each in sent.items()}
        cancelled, missed = timers.cancel("b").result(0), timers.cancel("nothing").result(0)
        moved = timers.move("c", delay="2h").result(0)
        replaced = timers.replace("c", "orders", b"w", delay="3h").result(0)
        paused, resumed = timers.pause_timer("c").result(0), timers.resume_timer("c").result(0)
        answers = [timers.answer(each) for each in (cancelled, missed, moved, replaced, far)]
        here.run(4000)
        assert {name: result(end).state for name, end in ends.items()} == {
            "a": "delivered", "b": "cancelled", "c": "replaced", "d": "rejected"
        }  # fmt: skip
        assert [result(each).state for each in answers] == ["cancelled", "not-found", "moved", "replaced", "rejected"]
        delivered, rejected = result(ends["a"]), result(ends["d"])
        assert delivered.due_ms is not None
        assert 0 <= delivered.at_ms - delivered.due_ms < 1000
        assert (rejected.code, "topic no does not take it" in (rejected.detail or "")) == ("unknown-topic", True)
        assert result(timers.outcome(far)).code == "too-far", "known before it was asked about"
        states = [result(timers.outcome(each)).state for each in (cancelled, missed, moved, paused, resumed)]
        assert states == ["cancelled", "not-found", "moved", "paused", "resumed"]
        assert result(answers[0]).origin == text(sent["b"])
        waiting = timers.outcome(replaced)
    with pytest.raises(BridgeError, match="closed; make new ones"):
        waiting.result(SOON_S)
    assert here.consumer.is_closed
    with pytest.raises(BridgeError, match="closed; make new ones"):
        timers.outcome(far)


def test_the_oldest_waits_and_outcomes_leave_at_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_MOST_KNOWN", 2)
    monkeypatch.setattr(outcomes, "_MOST_WAITING", 2)
    here = Following()
    waits = [here.outcomes.outcome(Sent("timer.requests", 0, number)) for number in range(10, 13)]
    with pytest.raises(BridgeError, match="more than 2 wait"):
        waits[0].result(0)
    assert here.outcomes.outcome(Sent("timer.requests", 0, 11)) is waits[1]
    assert not waits[1].cancel(), "others may wait for it"
    sent = [here.timers.schedule("orders", b"v", delay="0", id=str(number)).result(0) for number in range(3)]
    last = here.outcomes.outcome(sent[2])
    assert waits[1].done(), "the oldest again"
    here.run(1000)
    assert result(last).state == "delivered"
    assert [here.outcomes.outcome(each).done() for each in sent] == [False, True, True]
    here.timers.close()
    with pytest.raises(BridgeError, match="closed; make new ones"):
        waits[2].result(SOON_S)


def test_records_that_no_bridge_has_written_are_passed_over() -> None:
    here = Following()
    sent = here.timers.schedule("orders", b"v", delay="0").result(0)
    for topic, value in (
        ("timer.receipts", b"5"),
        ("timer.receipts", b"{}"),
        ("timer.receipts", b'{"kind":"cancelled","at_ms":1,"request":[1],"origin":[2]}'),
        ("timer.rejected", b"v"),
        ("orders", None),
    ):
        entry = replace(here.place.kafka.produce(topic, value, headers=[("timer-origin", b"\xff")]), offset=0)
        here.consumer.records.put(consumed(entry, topic))
    waiting = here.timers.outcome(sent)
    here.run(1000)
    assert result(waiting).state == "delivered"
    here.timers.close()


def test_outcomes_with_asyncio() -> None:
    here = Following()

    async def main() -> list[str]:
        async with AsyncTimerProducer(here.timers) as timers:
            sent = await timers.schedule("orders", b"v", delay="1h", id="a")
            end = asyncio.create_task(timers.outcome(sent))
            cancel = await timers.cancel("a")
            answer = asyncio.create_task(timers.answer(cancel))
            here.run(1000)
            return [outcome.state for outcome in await asyncio.gather(end, answer)]

    assert asyncio.run(main()) == ["cancelled", "cancelled"]


def test_outcomes_have_to_be_followed_from_the_start() -> None:
    with pytest.raises(SettingsError, match=r"outcomes=Outcomes\(config\)"):
        TimerProducer({}, outbox=Place().outbox).outcome(Sent("timer.requests", 0, 0))
    with pytest.raises(SettingsError, match=r"bootstrap\.servers"):
        Outcomes({})

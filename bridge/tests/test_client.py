"""The client: histories with a bridge and no broker."""

import asyncio
import importlib
import json
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.errors import BridgeError
from bridge.kafka.tests.fake_clients import message
from bridge.partition.options import StoreOptions, TurnOptions
from bridge.testing import Entry, FakeGroup, FakeInstance, FakeKafka, Timeline
from bridge.tests.simulation.http_fakes import MemoryOutbox
from kafka_timer import (
    Headers,
    RetryPolicy,
    Sent,
    TimerOperator,
    TimerProducer,
    belongs_to,
    headers_for,
    partition_for,
    retry_of,
)
from kafka_timer.aio import AsyncTimerProducer
from kafka_timer.headers import TRACE_ID
from kafka_timer.levels import DEFAULT, parse_levels
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules


class FakeOutbox(MemoryOutbox):
    """An outbox that refuses unknown topics and large records, as a broker does."""

    MOST_BYTES = 2000

    def __init__(self, kafka: FakeKafka) -> None:
        super().__init__(kafka)
        self.kafka = kafka
        self.flushes = 0
        self.is_closed = False

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        error = None
        if topic not in self.kafka.topics:
            error = f"{topic}: there is no such topic"
        elif len(value or b"") > self.MOST_BYTES:
            error = f"{topic}: Broker: Message size too large"
        if error is None:
            return super().send(topic, partition, key, value, headers)
        future: Future[Sent] = Future()
        future.set_exception(BridgeError(error))
        return future

    def flush(self, timeout_s: float | None) -> None:
        self.flushes += 1

    def close(self, timeout_s: float | None = None) -> None:
        self.is_closed = True


def consumed(entry: Entry, of: str = "orders") -> Any:
    """Return a message as a consumer does."""
    place = {"topic": of, "partition": 0, "offset": entry.offset, "timestamp": (2, entry.timestamp_ms)}
    return message(**place, key=entry.key, value=entry.value, headers=list(entry.headers) or None, error=None)


# -- Requests


class Place:
    """A timer topic of four partitions, one bridge over it, and a client."""

    def __init__(self) -> None:
        self.kafka = FakeKafka(Timeline(1_700_000_000_000))
        for topic in ("timer.requests", "timer.journal"):
            self.kafka.create(topic, 4)
        for topic in ("timer.rejected", "timer.receipts", "orders"):
            self.kafka.create(topic)
        rules = Rules(max_delay_ms=10**9, roll_window_ms=20_000_000, levels_ms=parse_levels(DEFAULT))
        group = FakeGroup("timers", [TimerPartition("timer.requests", number) for number in range(4)])
        self.bridge = FakeInstance(
            self.kafka, group, TurnOptions(rules=rules, store=StoreOptions(slots=1 << 16), max_wait_ms=3_600_000)
        )
        self.bridge.run(0)
        self.outbox = FakeOutbox(self.kafka)
        self.timers = TimerOperator({}, outbox=self.outbox)

    def delivered(self, topic: str = "orders") -> list[Entry]:
        return self.kafka.read(topic)

    def values(self) -> list[bytes | None]:
        return [entry.value for entry in self.delivered()]


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_message_arrives_as_it_was_given(place: Place) -> None:
    place.timers.schedule("orders", "hällo", key="k", headers=[("trace", "1")], delay="5s").result(0)
    place.timers.schedule("orders", None, delay=timedelta(seconds=6))
    place.bridge.run(4999)
    assert place.values() == []
    place.bridge.run(1001)
    hello, tombstone = place.delivered()
    assert (hello.key, hello.value, hello.headers[0]) == (b"k", "hällo".encode(), ("trace", b"1"))
    assert (tombstone.key, tombstone.value) == (None, None)


def test_refusals_are_logged_once_a_second_by_code(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    bad = [("timer-topic", b"orders"), ("timer-delay-ms", b"soon")]
    place.bridge.run(1000)
    for _ in range(30):
        place.kafka.produce("timer.requests", b"v", headers=bad, partition=1)
        place.bridge.run(100)
    place.timers.schedule("nowhere", b"v", delay="0")
    place.bridge.run(1000)
    lines = [line for line in caplog.messages if "rejected as" in line]
    assert lines[0].startswith("timer.requests/1/0: rejected as bad-header: timer-delay-ms is ")
    assert [line.rpartition(" (")[2] for line in lines[1:3]] == ["11 times so far)", "21 times so far)"]
    assert sum("bad-header" in line for line in lines) in (3, 4)
    assert "rejected as unknown-topic: topic nowhere does not take it" in lines[-1]
    for _ in range(5):
        place.kafka.produce("timer.requests", b"v", headers=bad[:1], partition=1)
    place.bridge.run(100)
    assert ": rejected as missing-time: " in caplog.messages[-1]
    assert caplog.messages[-1].endswith(" (5 times so far)"), "those of one transaction"


def test_a_trace_id_is_delivered_unless_the_message_has_one(place: Place) -> None:
    place.timers = TimerOperator({}, outbox=place.outbox, trace_header=TRACE_ID)
    place.timers.schedule("orders", b"a", delay="0")
    place.timers.replace("x", "orders", b"b", delay="0")
    place.timers.schedule("orders", b"c", delay="0", headers=[(TRACE_ID, "mine")])
    place.bridge.run(1000)
    first, second, third = (dict(entry.headers)[TRACE_ID] for entry in place.delivered())
    assert len({first, second}) == 2
    assert third == b"mine"


@pytest.mark.parametrize("number", range(4))
def test_requests_with_an_id_go_to_one_partition_whatever_their_keys_are(place: Place, number: int) -> None:
    id_ = f"id-{number}"
    scheduled = place.timers.schedule("orders", b"gone", key=b"%d" % number, delay="500ms", id=id_).result(0)
    replaced = place.timers.replace(id_, "orders", b"here", key=b"k", delay="900ms").result(0)
    assert scheduled.partition == replaced.partition == partition_for(id_, 4)
    place.bridge.run(600)
    assert place.values() == []
    if number % 2:
        assert place.timers.cancel(id_).result(0).partition == scheduled.partition
    place.bridge.run(600)
    assert place.values() == ([] if number % 2 else [b"here"])


EVERYWHERE = ["--all-partitions", "--bootstrap-servers", "nowhere:1"]


def in_each_partition(place: Place) -> None:
    """Send a request with the id x to each partition, which is its value."""
    headers = headers_for("orders", delay="500ms", id="x")
    for partition in range(4):
        place.kafka.produce("timer.requests", b"%d" % partition, headers=headers, partition=partition)


@pytest.mark.parametrize(
    "asked",
    [
        ("orders", "new", "--in", "soon"),
        ("a b", "new", "--in", "5s"),
        ("orders", "new", "--in", "5s", "-H", "timer-id=y"),
        ("orders", "x" * (FakeOutbox.MOST_BYTES + 1), "--in", "5s"),
    ],
    ids=["no time", "no topic", "a header of ours", "too large"],
)
def test_an_invalid_replacement_cancels_nothing(
    place: Place, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_each_partition(place)
    monkeypatch.setattr("kafka_timer.kafka_client.ConfluentOutbox", lambda _: place.outbox)
    assert isinstance(CliRunner().invoke(app, ["replace", "x", *asked, *EVERYWHERE]).exception, BridgeError)
    place.bridge.run(1000)
    assert len(place.values()) == 4


def test_a_replacement_cancels_timers_not_placed_by_their_id(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    in_each_partition(place)
    monkeypatch.setattr("kafka_timer.kafka_client.ConfluentOutbox", lambda _: place.outbox)
    output = CliRunner().invoke(app, ["replace", "x", "orders", "new", "--in", "5s", *EVERYWHERE]).output
    assert output == f"replacement of x sent to timer.requests/{partition_for('x', 4)}\n"
    place.bridge.run(10_000)
    assert place.values() == [b"new"]
    kinds = [json.loads(entry.value or b"")["kind"] for entry in place.delivered("timer.receipts")]
    assert sorted(kinds) == ["cancelled"] * 3 + ["replaced"]


@pytest.mark.parametrize("partitions", [[1, 3], [0, 1, 2, 3]])
def test_a_cancel_goes_to_its_partition_or_to_all(place: Place, partitions: list[int]) -> None:
    in_each_partition(place)
    place.bridge.run(100)
    growing = TimerProducer({}, outbox=place.outbox, partitions=2, other_partitions=4)
    if len(partitions) == 4:
        cancels = growing.cancel_everywhere("x")
    else:
        cancels = [growing.cancel("x", partition=partition) for partition in partitions]
    assert [sent.result(0).partition for sent in cancels] == partitions
    place.bridge.run(1000)
    assert {int(value or b"") for value in place.values()} == {0, 1, 2, 3} - set(partitions)


@pytest.mark.parametrize("has_ids", [True, False])
def test_timers_are_changed_by_their_ids_or_the_positions_of_their_requests(place: Place, *, has_ids: bool) -> None:
    def made(value: str) -> str | Sent:
        sent = place.timers.schedule("orders", value, delay="1h", id=value if has_ids else None).result(0)
        return value if has_ids else sent

    gone, later, now, held = map(made, ("gone", "later", "now", "held"))
    place.bridge.run(1000)
    place.timers.cancel(gone)
    place.timers.move(later, delay="2h")
    place.timers.release(now)
    place.timers.pause_timer(held)
    for ms, expected in ((1000, [b"now"]), (7_198_000, [b"now"]), (1000, [b"now", b"later"])):
        place.bridge.run(ms)
        assert place.values() == expected
    partition = held.partition if isinstance(held, Sent) else partition_for(held, 4)
    place.timers.resume_timer(held, partition=partition)
    place.bridge.run(20)
    assert place.values() == [b"now", b"later", b"held"]
    with pytest.raises(ValueError, match="use a producer for other"):
        place.timers.cancel(Sent("other", 0, 1))
    with pytest.raises(ValueError, match="bad-header: timer-id"):
        place.timers.pause_timer("")


def test_the_context_manager_flushes_unless_an_error_leaves_it_and_closes(place: Place) -> None:
    with place.timers as timers:
        timers.schedule("orders", b"v", delay="0")
    assert (place.outbox.flushes, place.outbox.is_closed) == (1, True)
    place.outbox.is_closed = False
    with pytest.raises(ZeroDivisionError), place.timers:
        raise ZeroDivisionError
    assert (place.outbox.flushes, place.outbox.is_closed) == (1, True)


# -- Retry


def fails(place: Place, entry: Entry, **where: Any) -> "Future[Sent]":
    return place.timers.retry_later(consumed(entry), group="billing", **where)


def test_case_9_a_message_comes_back_16_times_and_the_17th_goes_to_the_dead_letters(place: Place) -> None:
    entry = place.kafka.produce("orders", b"v", key=b"k", headers=[("trace", b"1"), ("trace", b"1")])
    place.bridge.run(1)
    for number, delay_ms in enumerate(parse_levels(DEFAULT)[2:], 1):
        sent_ms = place.kafka.timeline.now_ms
        assert fails(place, entry).result(0).topic == "timer.requests"
        place.bridge.run(delay_ms)
        entry = place.delivered()[-1]
        assert len(place.delivered()) == number + 1
        headers = dict(entry.headers)
        assert int(headers["timer-deliver-ms"] or b"") - sent_ms == delay_ms
        assert headers["timer-retries"] == b"%d" % number
    assert number == 16
    with pytest.raises(BridgeError, match=r"DLQ\.billing"):
        fails(place, entry).result(0)
    place.kafka.create("DLQ.billing")
    assert fails(place, entry).result(0).topic == "DLQ.billing"
    (dead,) = place.delivered("DLQ.billing")
    assert (dead.key, dead.value) == (b"k", b"v")
    counted = [("timer-retries", b"16"), ("timer-retry-group", b"billing"), ("timer-retry-of", b"orders/0/0")]
    assert dead.headers == [("trace", b"1"), ("trace", b"1"), *counted]


def test_a_second_retry_after_a_crash_replaces_the_first(place: Place) -> None:
    """The consumer died between the retry and the commit of its offset."""
    entry = place.kafka.produce("orders", b"v")
    fails(place, entry)
    place.bridge.run(5000)
    fails(place, entry)
    place.bridge.run(20_000)
    assert len(place.delivered()) == 2


def retry_id(entry: Entry, group: str = "billing", secret: bytes | str = b"") -> bytes:
    id_ = retry_of(consumed(entry), group=group, secret=secret).id
    assert id_ is not None
    return id_


def test_the_id_of_a_retry_depends_on_the_whole_message(place: Place) -> None:
    entry = place.kafka.produce("orders", b"v", key=b"k", headers=[("a", b"bc"), ("d", None)])
    others = [
        *(replace(entry, value=None), replace(entry, value=b""), replace(entry, key=b"kv", value=b"")),
        *(replace(entry, offset=1), replace(entry, headers=[("ab", b"c"), ("d", None)])),
        *(replace(entry, headers=[("a", b"bc"), ("d", b"")]), replace(entry, headers=())),
    ]
    ids = [retry_id(entry), retry_id(entry, secret="s"), retry_id(entry, "other"), *map(retry_id, others)]
    assert len(set(ids)) == len(ids)
    assert ids[:2] == [retry_id(entry), retry_id(entry, secret=b"s")]
    assert all(id_.startswith(b"retry/billing/orders/0/") for id_ in ids[:2])


def test_each_group_counts_its_own(place: Place) -> None:
    entry = place.kafka.produce("orders", b"v")
    fails(place, entry)
    place.bridge.run(10_000)
    back = consumed(place.delivered()[-1])
    mine, theirs = retry_of(back, group="billing"), retry_of(back, group="mailing")
    assert [dict(retry.headers)["timer-retries"] for retry in (mine, theirs)] == [b"2", b"1"]
    assert dict(mine.headers)["timer-retry-of"] == b"orders/0/0"
    assert dict(theirs.headers)["timer-retry-of"] == b"orders/0/1"


def test_a_group_may_have_a_topic_for_its_retries(place: Place) -> None:
    place.kafka.create("RETRY.billing")
    fails(place, place.kafka.produce("orders", b"v"), topic="RETRY.billing")
    place.bridge.run(10_000)
    assert [entry.value for entry in place.delivered("RETRY.billing")] == [b"v"]


def charge(message: Any) -> None:
    raise RuntimeError("the bank is closed")


def test_a_retry_is_handled_by_the_group_that_asked_for_it_alone(place: Place) -> None:
    handled: list[bytes | None] = []
    place.kafka.produce("orders", b"v")
    assert place.timers.handle(consumed(place.delivered()[0]), charge, group="billing") is not None
    place.bridge.run(10_000)
    _, back = map(consumed, place.delivered())
    for group in ("shipping", "billing"):
        assert place.timers.handle(back, lambda message: handled.append(message.value()), group=group) is None
        assert belongs_to(back, group) == (group == "billing")
    assert handled == [b"v"]


def test_a_retry_is_handled_by_its_group_alone_with_asyncio(place: Place) -> None:
    handled: list[bytes | None] = []

    async def work(message: Any) -> None:
        await asyncio.sleep(0)
        handled.append(message.value())
        if dict(message.headers() or ()).get("timer-retries") is None:
            charge(message)

    async def main() -> None:
        async with AsyncTimerProducer(place.timers) as timers:
            place.kafka.produce("orders", b"v")
            assert await timers.handle(consumed(place.delivered()[0]), work, group="billing", policy=POLICY) is not None
            place.bridge.run(3000)
            _, back = map(consumed, place.delivered())
            for group in ("shipping", "billing"):
                assert await timers.handle(back, work, group=group) is None

    asyncio.run(main())
    assert handled == [b"v", b"v"]


POLICY = RetryPolicy(delays=("2s", timedelta(seconds=4)), dead_letters="lost", jitter=0.5, spring_headers=True)


def test_a_policy_sets_delays_jitter_number_and_dlq_whose_record_has_springs_headers(place: Place) -> None:
    place.kafka.create("lost")
    place.bridge.run(1000)
    place.kafka.produce("orders", b"v", headers=[("trace", b"1")])
    first_ms = place.delivered()[0].timestamp_ms
    for least_ms in (2000, 4000):
        sent_ms = place.kafka.timeline.now_ms
        place.timers.handle(consumed(place.delivered()[-1]), charge, group="billing", policy=POLICY)
        place.bridge.run(least_ms * 3 // 2)
        assert least_ms < int(dict(place.delivered()[-1].headers)["timer-deliver-ms"] or b"") - sent_ms < least_ms * 1.5
    assert len(place.delivered()) == 3
    place.timers.handle(consumed(place.delivered()[-1]), charge, group="billing", policy=POLICY)
    (dead,) = place.delivered("lost")
    headers = dict(dead.headers)
    assert {name: value for name, value in headers.items() if name.startswith("kafka_dlt-")} == {
        "kafka_dlt-exception-fqcn": b"builtins.RuntimeError",
        "kafka_dlt-exception-message": b"the bank is closed",
        "kafka_dlt-original-topic": b"orders",
        "kafka_dlt-original-partition": (0).to_bytes(4, "big"),
        "kafka_dlt-original-offset": (0).to_bytes(8, "big"),
        "kafka_dlt-original-timestamp": first_ms.to_bytes(8, "big"),
    }
    assert (headers["timer-retries"], headers["trace"]) == (b"2", b"1")


def test_a_retry_is_the_same_for_aiokafkas_records(place: Place) -> None:
    own = consumed(place.kafka.produce("orders", b"v", key=b"k", headers=[("trace", b"1")]))
    fields = ("topic", "partition", "offset", "key", "value")
    read = {name: getattr(own, name)() for name in fields}
    record = SimpleNamespace(**read, timestamp=own.timestamp()[1], headers=(("trace", b"1"),))
    assert retry_of(record, group="billing", policy=POLICY) == retry_of(own, group="billing", policy=POLICY)


def test_the_message_of_any_error_fits_into_the_dlqs_record(place: Place) -> None:
    own = consumed(place.kafka.produce("orders", b"v"))
    policy = RetryPolicy(most=0, spring_headers=True)
    dead = retry_of(own, group="billing", policy=policy, error=ValueError("\udce4" * 2**20))
    assert dict(dead.headers)["kafka_dlt-exception-message"] == rb"\udce4" * 1000


@pytest.mark.parametrize("of", [b"orders", b"a/9999999999/1", b"\xff"])
@pytest.mark.parametrize("group", [b"billing", b"shipping"])
def test_a_senders_own_headers_of_failures_stop_no_retry(place: Place, group: bytes, of: bytes) -> None:
    counted = [("timer-retries", b"2"), ("timer-retry-group", group), ("timer-retry-of", of)]
    old = [] if group == b"billing" else [("kafka_dlt-original-topic", b"old"), ("kafka_dlt-exception-fqcn", b"Old")]
    own = consumed(place.kafka.produce("orders", b"v", headers=[*counted, *old]))
    dead = retry_of(own, group="billing", policy=replace(POLICY, most=0))
    springs = [pair for pair in dead.headers if pair[0].startswith("kafka_dlt-")]
    assert (dead.topic, len(springs), springs[0]) == ("lost", 4, ("kafka_dlt-original-topic", b"orders"))


DELAYS = [{"delays": ("soon",)}, {"delays": (5,)}, {"delays": (timedelta(-1),)}]


@pytest.mark.parametrize("wrong", [{"jitter": 0.1}, {"jitter": 2, "delays": ("1s",)}, {"most": -1}, *DELAYS])
def test_a_policy_that_is_wrong_raises_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"jitter|duration"):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("count", [b"", b"x", b"-1", None, b"9" * 40])
def test_an_invalid_retry_count_is_zero(place: Place, count: bytes | None) -> None:
    entry = place.kafka.produce("orders", b"v", headers=[("timer-retries", count), ("timer-retry-group", b"billing")])
    assert dict(retry_of(consumed(entry), group="billing").headers)["timer-retries"] == b"1"


@pytest.mark.parametrize("group", ["", "a b", "é", "x" * 246])
def test_a_group_without_a_legal_dead_letter_topic_raises_at_once(place: Place, group: str) -> None:
    with pytest.raises(ValueError, match="legal topic"):
        retry_of(consumed(place.kafka.produce("orders", b"v")), group=group)


@pytest.mark.parametrize("former", ["client", "fake_kafka", "timer_world"])
def test_a_former_import_path_is_refused_with_the_new_one(former: str) -> None:
    with pytest.raises(ImportError, match=f"bridge.{former}: removed; import "):
        importlib.import_module(f"bridge.{former}")

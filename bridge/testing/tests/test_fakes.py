"""The fakes behave like Kafka: an example, and cases that test_ports_contract.py does not cover."""

from dataclasses import replace
from random import Random

import pytest

from bridge.config.loop_options import StoreOptions, TurnOptions
from bridge.errors import OutcomeUnknownError
from bridge.ports import Aborted, Committed, Outgoing, Transaction
from bridge.testing.fake_kafka import murmur2
from bridge.testing.fakes import (
    Crash,
    FakeClock,
    FakeGroup,
    FakeInstance,
    FakeKafka,
    FakeSink,
    FakeSource,
    Fuse,
    Timeline,
)
from schemas.headers import Headers, Rules
from schemas.origin import Shard
from schemas.progress import NOTHING_SETTLED, Progress

TIMERS = "timer.requests"
FIRST, SECOND = Shard(TIMERS, 0), Shard(TIMERS, 1)
OPTIONS = TurnOptions(
    rules=Rules(max_delay_ms=60_000, roll_window_ms=60_000, own_topics=frozenset({TIMERS})),
    store=StoreOptions(tick_ms=100, slots=4096),
)


@pytest.fixture
def kafka() -> FakeKafka:
    kafka = FakeKafka(Timeline())
    for topic in (TIMERS, "timer.journal"):
        kafka.create(topic, 2)
    for topic in ("timer.rejected", "orders"):
        kafka.create(topic)
    return kafka


@pytest.fixture
def group() -> FakeGroup:
    return FakeGroup("timers", [FIRST, SECOND])


def values(kafka: FakeKafka, topic: str) -> list[bytes | None]:
    return [entry.value for entry in kafka.read(topic)]


def progress_of(kafka: FakeKafka) -> Progress | None:
    found = kafka.stable_offset("timers", FIRST)
    return None if found is None else Progress.committed(*found)


def ask(kafka: FakeKafka, value: bytes, delay_ms: int) -> None:
    headers: Headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"%d" % delay_ms), ("trace", b"t1")]
    kafka.produce(TIMERS, value, headers=headers, partition=0)


class TestExample:
    """A test as users write it."""

    def test_a_message_comes_when_it_is_due_and_once(self, kafka: FakeKafka, group: FakeGroup) -> None:
        bridge = FakeInstance(kafka, group, OPTIONS)
        ask(kafka, b"hello", delay_ms=500)
        bridge.run(499)
        assert values(kafka, "orders") == []
        bridge.run(1)
        assert values(kafka, "orders") == [b"hello"]
        assert ("trace", b"t1") in kafka.read("orders")[0].headers
        bridge.lose_power()
        bridge.start()
        bridge.run(5000)
        assert values(kafka, "orders") == [b"hello"]

    def test_a_request_sent_while_the_bridge_is_down_is_delivered_late(
        self, kafka: FakeKafka, group: FakeGroup
    ) -> None:
        bridge = FakeInstance(kafka, group, OPTIONS)
        bridge.run(10)
        bridge.stop()
        ask(kafka, b"late", delay_ms=10)
        kafka.timeline.advance(1000)
        bridge.start()
        bridge.run(10)
        assert values(kafka, "orders") == [b"late"]

    def test_two_instances_share_the_partitions_and_one_takes_over(self, kafka: FakeKafka, group: FakeGroup) -> None:
        one, two = (FakeInstance(kafka, group, OPTIONS, name=name) for name in ("one", "two"))
        for _ in range(3):
            one.turn()
            two.turn()
        ask(kafka, b"hello", delay_ms=500)
        one.run(100)
        one.kill()
        two.run(1000)
        assert values(kafka, "orders") == [b"hello"]


class TestTimeline:
    def test_waiting_ends_at_the_event_that_ends_it_or_at_the_time_out(self) -> None:
        timeline = Timeline(0)
        seen: list[int] = []
        timeline.at(7, lambda: seen.append(7))
        timeline.at(3, lambda: seen.append(3))
        timeline.wait(100, lambda: bool(seen))
        assert (timeline.now_ms, seen) == (3, [3])
        timeline.wait(2, lambda: False)
        assert (timeline.now_ms, seen) == (5, [3])
        timeline.advance(10)
        assert (timeline.now_ms, seen) == (15, [3, 7])

    def test_a_clock_may_be_wrong(self) -> None:
        clock = FakeClock(Timeline(1000), error_ms=-200)
        assert clock.now_ms() == 800


class TestTransactions:
    def test_an_open_transaction_holds_what_stands_behind_it(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", b"a")
        open_one = kafka.begin("somebody")
        kafka.produce("orders", b"b", transaction=open_one)
        kafka.produce("orders", b"c")
        assert values(kafka, "orders") == [b"a"]
        kafka.commit(open_one)
        assert values(kafka, "orders") == [b"a", b"b", b"c"]
        assert kafka.produce("orders", b"d").offset == 4  # the marker is at 3

    def test_an_aborted_one_leaves_a_gap(self, kafka: FakeKafka) -> None:
        gone = kafka.begin("somebody")
        kafka.produce("orders", b"x", transaction=gone)
        kafka.abort(gone)
        kafka.produce("orders", b"a")
        assert [(e.offset, e.value) for e in kafka.read("orders")] == [(2, b"a")]

    def test_a_hanging_one_ends_with_its_time_out(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", b"x", transaction=kafka.begin("somebody"))
        kafka.produce("orders", b"a")
        kafka.timeline.advance(9_999)
        assert values(kafka, "orders") == []
        kafka.timeline.advance(1)
        assert values(kafka, "orders") == [b"a"]

    def test_a_producer_ends_the_open_transaction_of_its_predecessor(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", b"x", transaction=kafka.begin("bridge", kafka.init("bridge")))
        kafka.init("bridge")
        assert kafka.partition(Shard("orders", 0)).last_stable == 2

    def test_offsets_take_effect_in_the_order_of_sending(self, kafka: FakeKafka) -> None:
        first, second = kafka.begin("one"), kafka.begin("two")
        kafka.send_offsets(first, "timers", {FIRST: Progress(1, NOTHING_SETTLED, 0)})
        kafka.send_offsets(second, "timers", {FIRST: Progress(2, NOTHING_SETTLED, 0)})
        kafka.commit(second)
        kafka.commit(first)
        assert progress_of(kafka) == Progress(2, NOTHING_SETTLED, 0)

    def test_a_dead_clients_commit_arrives_or_not_before_progress_is_read(self) -> None:
        found = set()
        for seed in range(40):
            kafka = FakeKafka(Timeline(), Random(seed))
            kafka.create("orders")
            asked = kafka.begin("bridge")
            kafka.send_offsets(asked, "timers", {FIRST: Progress(7, NOTHING_SETTLED, 0)})
            kafka.leave_in_flight(asked)
            found.add(progress_of(kafka))
        assert found == {None, Progress(7, NOTHING_SETTLED, 0)}

    def test_a_key_chooses_its_partition_as_in_java(self) -> None:
        """Values of Kafka's own UtilsTest.testMurmur2."""
        known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
        assert {key: murmur2(key) - (1 << 32) for key in known} == known


def transaction(progress: dict[Shard, Progress], group_metadata: object, *outgoing: Outgoing) -> Transaction:
    return Transaction(list(outgoing), dict.fromkeys(progress, b"decided"), progress, group_metadata)


def order(value: bytes, topic: str = "orders", partition: int = -1) -> Outgoing:
    return Outgoing(topic, partition, None, value, [("timer-origin", b"timer.requests/0/0")], 5)


READ = {FIRST: Progress(1, NOTHING_SETTLED, 1)}


def polled_by(source: FakeSource) -> object:
    """Let the source poll, and return its group metadata."""
    source.poll(0, 1)
    return source.membership.group_metadata


class TestSink:
    @pytest.fixture
    def group_metadata(self, kafka: FakeKafka, group: FakeGroup) -> object:
        return polled_by(FakeSource(kafka, group, "bridge"))

    @pytest.fixture
    def sink(self, kafka: FakeKafka, group: FakeGroup) -> FakeSink:
        return FakeSink(kafka, group, "bridge", "timer.journal")

    def test_refused_records_are_named_and_no_record_is_committed(
        self, kafka: FakeKafka, sink: FakeSink, group_metadata: object
    ) -> None:
        kafka.create("small", max_bytes=100)
        kafka.create("secret", denied=True)
        records = [
            order(b"good"),
            order(b"a", "nowhere"),
            order(b"b" * 100, "small"),
            order(b"c", "secret"),
            order(b"d", partition=1),
        ]
        codes = {1: "unknown-topic", 2: "too-large", 3: "not-authorized", 4: "unknown-partition"}
        assert sink.submit(transaction(READ, group_metadata, *records)).wait() == Aborted(codes)
        assert values(kafka, "orders") == []

    def test_a_transaction_beyond_its_timeout_is_aborted(
        self, kafka: FakeKafka, group: FakeGroup, group_metadata: object
    ) -> None:
        def sleep(where: str) -> None:
            kafka.timeline.advance(20_000 if where == "sink.commit" else 0)

        sink = FakeSink(kafka, group, "bridge", "timer.journal", meanwhile=sleep)
        assert sink.submit(transaction(READ, group_metadata, order(b"a"))).wait() == Aborted({})
        assert values(kafka, "orders") == []

    def test_an_unknown_outcome_is_also_that_of_the_later_transaction(
        self, kafka: FakeKafka, group: FakeGroup, group_metadata: object
    ) -> None:
        kafka._rng = Random(0)  # by which a dead client's commit may arrive
        outcomes = set()
        for seed in range(20):
            sink = FakeSink(kafka, group, "bridge", "timer.journal", rng=Random(seed))
            sink.unknown_chance, before = 1.0, len(values(kafka, "orders"))
            reached = Progress(seed, NOTHING_SETTLED, seed)
            ways = [sink.submit(transaction({FIRST: reached}, group_metadata, order(b"a"))) for _ in range(2)]
            for way in (*ways, ways[0]):
                with pytest.raises(OutcomeUnknownError):
                    way.wait()
            FakeSink(kafka, group, "bridge", "timer.journal")  # the next life
            stands = len(values(kafka, "orders")) > before
            assert stands == (progress_of(kafka) == reached)
            outcomes.add(stands)
            kafka.timeline.advance(1)
        assert outcomes == {False, True}

    def test_a_part_of_an_at_least_once_batch_may_stand(
        self, kafka: FakeKafka, group: FakeGroup, group_metadata: object
    ) -> None:
        sink = FakeSink(kafka, group, "bridge", "timer.journal", own_topics=frozenset({TIMERS}), rng=Random(0))
        sink.fault_chance = 0.9
        carried = transaction(READ, group_metadata, *(order(b"%d" % number) for number in range(9)))
        fate = sink.submit(carried).wait()
        assert isinstance(fate, Aborted)
        assert 0 < len(fate.acknowledged) < 9
        assert {b"%d" % index for index in fate.acknowledged} < set(values(kafka, "orders"))
        sink.fault_chance = 0.0
        assert sink.submit(replace(carried, acknowledged=fate.acknowledged)).wait() == Committed()
        assert set(values(kafka, "orders")) == {b"%d" % number for number in range(9)}

    def test_a_crash_at_any_step_leaves_all_or_nothing(self) -> None:
        found, places = set(), set[str]()
        for step in range(1, 40):
            kafka = FakeKafka(Timeline(), Random(step))
            kafka.create("orders")
            kafka.create("timer.journal", 2)
            group, fuse = FakeGroup("timers", [FIRST, SECOND]), Fuse()
            group_metadata = polled_by(FakeSource(kafka, group, "bridge"))
            sink = FakeSink(kafka, group, "bridge", "timer.journal", fuse=fuse)
            fuse.arm(step % 10 + 1, "sink.")
            with pytest.raises(Crash):
                sink.submit(transaction(READ, group_metadata, order(b"a"), order(b"b"))).wait()
            places.add(fuse.where)
            kafka.timeline.advance(20_000)
            found.add((len(kafka.read("orders")), progress_of(kafka) is not None))
        assert found == {(0, False), (2, True)}
        at_end = {
            "sink.end",
            "sink.offsets",
            "sink.offsets done",
            "sink.commit",
            "sink.commit asked",
            "sink.commit done",
        }
        assert places == {"sink.submit", "sink.produce", "sink.journal"} | at_end


class TestSource:
    def test_a_poll_waits_for_a_record_that_comes(self, kafka: FakeKafka, group: FakeGroup) -> None:
        source = FakeSource(kafka, group, "bridge")
        assert source.poll(100, 10).ownership.assigned == [FIRST, SECOND]
        source.start(FIRST, 0)
        kafka.timeline.at(kafka.timeline.now_ms + 30, lambda: ask(kafka, b"a", 0))
        before_ms = kafka.timeline.now_ms
        polled = source.poll(100, 10)
        assert [record.value for record in polled.records[FIRST]] == [b"a"]
        assert kafka.timeline.now_ms - before_ms == 30
        assert source.poll(100, 10).records == {}
        assert kafka.timeline.now_ms - before_ms == 130

    def test_a_shard_is_revoked_before_another_gets_it(self, kafka: FakeKafka, group: FakeGroup) -> None:
        one = FakeSource(kafka, group, "one")
        one.poll(0, 1)
        two = FakeSource(kafka, group, "two")
        assert not two.poll(0, 1).ownership
        assert one.poll(0, 1).ownership.revoked == [SECOND]
        assert two.poll(0, 1).ownership.assigned == [SECOND]

    def test_an_expired_member_sees_its_loss_late_and_returns_with_a_new_id(
        self, kafka: FakeKafka, group: FakeGroup
    ) -> None:
        one = FakeSource(kafka, group, "one")
        group_metadata = polled_by(one)
        two = FakeSource(kafka, group, "two")
        group.expire("one")
        assert two.poll(0, 1).ownership.assigned == [FIRST, SECOND]
        assert not group.accepts(group_metadata)
        assert one.serve_rebalance().ownership.lost == [FIRST, SECOND]
        assert two.serve_rebalance().ownership.revoked
        assert one.poll(0, 1).ownership.assigned

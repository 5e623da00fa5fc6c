"""The fakes behave like Kafka: an example, and cases that test_ports_contract.py does not cover."""

from random import Random

import pytest

from bridge.errors import OutcomeUnknownError
from bridge.partition.options import StoreOptions, TurnOptions
from bridge.ports import Aborted, Outgoing, Transaction
from bridge.testing import Crash, FakeClock, FakeGroup, FakeKafka, FakeSink, FakeSource, Fuse, Timeline
from kafka_timer.origin import TimerPartition
from schemas.progress import NOTHING_SETTLED, Progress
from schemas.rules import Rules

TIMERS = "timer.requests"
FIRST, SECOND = TimerPartition(TIMERS, 0), TimerPartition(TIMERS, 1)
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

    def test_a_hanging_one_ends_with_its_time_out(self, kafka: FakeKafka) -> None:
        kafka.produce("orders", b"x", transaction=kafka.begin("somebody"))
        kafka.produce("orders", b"a")
        kafka.timeline.advance(9_999)
        assert values(kafka, "orders") == []
        kafka.timeline.advance(1)
        assert values(kafka, "orders") == [b"a"]

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


def transaction(progress: dict[TimerPartition, Progress], group_metadata: object, *outgoing: Outgoing) -> Transaction:
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

    def test_a_transaction_beyond_its_timeout_is_aborted(
        self, kafka: FakeKafka, group: FakeGroup, group_metadata: object
    ) -> None:
        def sleep(where: str) -> None:
            kafka.timeline.advance(20_000 if where == "sink.commit" else 0)

        sink = FakeSink(kafka, group, "bridge", "timer.journal", meanwhile=sleep)
        assert sink.submit(transaction(READ, group_metadata, order(b"a"))).wait() == Aborted({})
        assert values(kafka, "orders") == []

    def test_after_an_unknown_outcome_the_transaction_stands_as_a_whole_or_not_at_all(self, group: FakeGroup) -> None:
        kafka = FakeKafka(Timeline(), Random(0))  # by which a dead client's commit may arrive
        for topic in (TIMERS, "timer.journal", "orders"):
            kafka.create(topic, 2)
        source = FakeSource(kafka, group, "bridge")
        source.poll(0, 0)
        group_metadata = source.membership.group_metadata
        outcomes = set()
        for seed in range(20):
            sink = FakeSink(kafka, group, "bridge", "timer.journal", rng=Random(seed))
            sink.unknown_chance, before = 1.0, len(values(kafka, "orders"))
            reached = Progress(seed, NOTHING_SETTLED, seed)
            submitted = sink.submit(transaction({FIRST: reached}, group_metadata, order(b"a")))
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    submitted.wait()
            FakeSink(kafka, group, "bridge", "timer.journal")  # the next life
            stands = len(values(kafka, "orders")) > before
            assert stands == (progress_of(kafka) == reached)
            outcomes.add(stands)
            kafka.timeline.advance(1)
        assert outcomes == {False, True}

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
    def test_a_partition_is_revoked_before_another_gets_it(self, kafka: FakeKafka, group: FakeGroup) -> None:
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
        assert one.poll(0, 0).ownership.lost == [FIRST, SECOND]
        assert two.poll(0, 0).ownership.revoked
        assert one.poll(0, 1).ownership.assigned

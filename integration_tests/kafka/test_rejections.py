"""Records that a real broker never accepts are named; the rest is committed; no reader sees an aborted transaction."""

import random
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from bridge.kafka import ConfluentSink
from bridge.ports import Aborted, Outgoing, Transaction
from integration_tests.conftest import Broker, started
from integration_tests.support.patience import PATIENCE_S
from integration_tests.support.ports import World, group_metadata_of, out, progress, publish_without_refused
from kafka_timer import TimerProducer

pytestmark = pytest.mark.broker


@pytest.fixture
def world(kafka: Broker) -> Iterator[World]:
    with closing(World(kafka.bootstrap_servers)) as world:
        yield world


@pytest.fixture(scope="module")
def strict_kafka() -> Iterator[EmbeddedKafka]:
    """A broker with ACLs that creates any topic that a client asks for, which is Kafka's default."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "auto.create.topics.enable": "true",
    }
    with started("rejections", properties) as broker:
        yield broker


class TestRejections:
    def run(self, world: World, sink: ConfluentSink, outgoing: list[Outgoing]) -> tuple[dict[int, str], int]:
        self.group_metadata = getattr(self, "group_metadata", None) or group_metadata_of(world)
        return publish_without_refused(
            sink, Transaction(outgoing, {}, {world.partition(): progress(1)}, self.group_metadata)
        )

    def test_case_25_and_32_an_unknown_topic_and_an_unknown_partition_until_they_are_made(self, world: World) -> None:
        good, missing, sink = world.cluster.topic("good", 2), f"missing-{uuid4().hex[:8]}", world.sink()
        outgoing = [out(good, b"1", partition=0), out(missing), out(good, b"2", partition=2)]
        outgoing += [out(missing), out(good, b"3", partition=1)]
        for _ in range(2):
            codes = {1: "unknown-topic", 2: "unknown-partition", 3: "unknown-topic"}
            assert self.run(world, sink, outgoing) == (codes, 1)
        assert world.cluster.values(good) == [b"1"] * 2 + [b"3"] * 2
        world.cluster.create(missing)
        world.cluster.grow(good, 3)
        assert self.run(world, sink, outgoing)[0] == {}
        assert world.cluster.values(missing) == [b"v", b"v"]
        assert sorted(filter(None, world.cluster.values(good))) == [b"1", b"1", b"1", b"2", b"3", b"3", b"3"]

    def test_a_topic_is_not_created_by_asking_for_it(self, strict_kafka: EmbeddedKafka) -> None:
        """A misspelt topic would accept records that no program reads."""
        misspelt = f"ordrs-{uuid4().hex}"
        with closing(World(strict_kafka.bootstrap_servers)) as world:
            assert self.run(world, world.sink(), [out(misspelt)])[0] == {0: "unknown-topic"}
            client = TimerProducer({"bootstrap.servers": strict_kafka.bootstrap_servers}, timer_topic=misspelt)
            with pytest.raises(BridgeError, match="there is no such topic: make it"), client:
                client.schedule("orders", "v", delay="1ms")
            assert misspelt not in world.cluster.admin.list_topics(timeout=PATIENCE_S).topics

    def test_case_25_what_compresses_is_taken_beside_a_smaller_one_that_does_not(self, world: World) -> None:
        small = world.cluster.topic("small", max_message_bytes="2000")
        text, noise = b"a" * 5000, random.Random(1).randbytes(3000)
        sink = world.sink(compression="lz4")
        outgoing = [out(small, b"1"), out(small, text), out(small, noise), out(small, b"2")]
        for _ in range(2):
            assert self.run(world, sink, outgoing)[0] == {2: "too-large"}
        assert sorted(filter(None, world.cluster.values(small))) == sorted([b"1", b"2", text] * 2)

    def test_the_largest_that_fits_is_found_among_many(self, world: World) -> None:
        small = world.cluster.topic("small", max_message_bytes="1000")
        outgoing = [out(small, b"x" * (1 + (7919 * n) % 2000)) for n in range(100)]
        codes, aborted = self.run(world, world.sink(), outgoing)
        sent = [len(value or b"") for value in world.cluster.values(small)]
        assert set(codes.values()) == {"too-large"}
        assert sorted(sent) == sorted(len(r.value or b"") for i, r in enumerate(outgoing) if i not in codes)
        assert max(sent) > 900
        assert min(len(outgoing[i].value or b"") for i in codes) > max(sent)
        assert aborted <= 3

    def test_a_topic_that_takes_only_small_batches_is_unavailable_for_many_records(self, world: World) -> None:
        """Each batch is waited for, so the records of all other topics would be late."""
        good, small = world.cluster.topic("good"), world.cluster.topic("small", max_message_bytes="1000")
        group_metadata, sink = group_metadata_of(world), world.sink()
        outgoing = [out(good), *(out(small, b"x" * 500) for _ in range(1000))]
        contents = Transaction(outgoing, {}, {world.partition(): progress(1)}, group_metadata)
        fates = [sink.submit(contents).wait() for _ in range(2)]
        assert [fate.unavailable if isinstance(fate, Aborted) else None for fate in fates] == [frozenset(), {small}]

    def test_a_record_without_key_on_a_compacted_topic(self, world: World) -> None:
        good, compacted = world.cluster.topic("good"), world.cluster.topic("compacted", cleanup_policy="compact")
        outgoing = [out(good), out(compacted, b"1", b"k"), out(compacted, b"2"), out(compacted, b"3", b"k")]
        codes, aborted = self.run(world, world.sink(), outgoing)
        assert (codes, aborted) == ({2: "bad-target"}, 1)
        assert world.cluster.values(compacted) == [b"1", b"3"]

    def test_a_single_invalid_record_of_a_batch_is_found_without_a_right_to_see_why(
        self, strict_kafka: EmbeddedKafka
    ) -> None:
        with closing(World(strict_kafka.bootstrap_servers)) as world:
            compacted = world.cluster.topic("compacted", cleanup_policy="compact")
            world.cluster.hide_settings(compacted)
            outgoing = [out(compacted, b"%d" % n, None if n == 7 else b"k") for n in range(20)]
            codes, aborted = self.run(world, world.sink(), outgoing)
            assert codes == {7: "bad-target"}
            assert aborted <= 4
            assert world.cluster.values(compacted) == [b"%d" % n for n in range(20) if n != 7]

    @pytest.mark.parametrize("is_first", [True, False])
    @pytest.mark.parametrize("may_describe", [True, False])
    def test_case_25_a_denied_topic(self, strict_kafka: EmbeddedKafka, *, is_first: bool, may_describe: bool) -> None:
        with closing(World(strict_kafka.bootstrap_servers)) as world:
            good, other, denied = (world.cluster.topic(name) for name in ("good", "other", "denied"))
            world.cluster.deny(denied, may_describe=may_describe)
            sink = world.sink()
            if not is_first:
                self.run(world, sink, [out(good, b"before")])
            outgoing = [out(good, b"1"), out(denied), out(other, b"2"), out(denied), out(good, b"3")]
            codes, aborted = self.run(world, sink, outgoing)
            assert codes == {1: "not-authorized", 3: "not-authorized"}
            assert aborted <= 2
            assert world.cluster.values(other) == [b"2"]
            assert self.run(world, sink, outgoing) == (codes, 1)
            assert [v for v in world.cluster.values(good) if v != b"before"] == [b"1", b"3"] * 2

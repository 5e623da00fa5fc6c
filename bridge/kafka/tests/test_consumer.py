"""Errors that librdkafka returns instead of a record, by a fake consumer."""

import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, FencedError, InstanceIdInUseError, MembershipLostError
from bridge.kafka.consumer import UNREADABLE_HEADERS, ConfluentSource, headers_of
from bridge.kafka.retry import CALL_S, Retrier
from bridge.ports import Polled
from schemas.origin import Shard

GONE, FATAL, TOO_LONG, PASSING = (
    KafkaError(KafkaError.OFFSET_OUT_OF_RANGE),
    KafkaError(KafkaError._FATAL, KafkaError(KafkaError.FENCED_INSTANCE_ID).str()),
    KafkaError(KafkaError._MAX_POLL_EXCEEDED),
    KafkaError(KafkaError._TRANSPORT),
)


class Said:
    """An error instead of a record."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def error(self) -> KafkaError:
        return self._error

    def topic(self) -> str:
        return "timer.requests"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


class Saying:
    """A fake consumer that returns the errors `said`."""

    def __init__(self, group_metadata: object, said: tuple[KafkaError, ...]) -> None:
        self._fence = group_metadata
        self._said = [Said(error) for error in said]
        self.bounds: tuple[int, int] | None = (0, 9)

    def poll(self, timeout_s: float) -> Said | None:
        del timeout_s
        return self._said.pop(0) if self._said else None

    def consume(self, count: int, timeout_s: float) -> list[Said]:
        del timeout_s
        told, self._said = self._said[:count], self._said[count:]
        return told

    def consumer_group_metadata(self) -> object:
        return self._fence

    def be(self, generation: int, member: bytes) -> None:
        """Set generation and member id in the group metadata."""
        self._fence = b"CGMDv2:" + struct.pack("=i", generation) + b"group\0" + member + b"\0\1"

    def incremental_assign(self, places: list[TopicPartition]) -> None: ...

    def incremental_unassign(self, places: list[TopicPartition]) -> None: ...

    def seek(self, place: TopicPartition) -> None: ...

    def resume(self, places: list[TopicPartition]) -> None: ...

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert (place.topic, place.partition, timeout) == ("timer.requests", 0, CALL_S)
        if self.bounds is None:
            raise KafkaException(PASSING)
        return self.bounds


def source(*said: KafkaError) -> Any:
    made: Any = ConfluentSource(Connection("127.0.0.1:1"), ["timer.requests"], Retrier())
    real, group_metadata = made._consumer, made._consumer.consumer_group_metadata()
    real.close()
    made._consumer = Saying(group_metadata, said)
    return made


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (GONE, BridgeError, r"timer\.requests/0: requests from offset 7 on are not there.*: start again"),
        (KafkaError(KafkaError.FENCED_INSTANCE_ID), FencedError, "another process runs with this instance's id"),
        (FATAL, FencedError, "another process runs with this instance's id"),
        (KafkaError(KafkaError.UNRELEASED_INSTANCE_ID), InstanceIdInUseError, "waiting for its session's end"),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), BridgeError, "reading the timer topic"),
    ],
)
def test_an_error_instead_of_a_record_ends_a_poll_and_a_check(
    error: KafkaError, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        source(error).poll(0, 10)
    with pytest.raises(kind, match=told):
        source(error).serve_rebalance()


@pytest.mark.parametrize("look", [lambda member: member.poll(0, 10), lambda member: member.serve_rebalance()])
def test_all_partitions_are_lost_if_the_group_gave_a_new_member_id(look: Callable[[Any], Polled]) -> None:
    """librdkafka 2.16 may do this without a callback to a static member that was suspended past its session."""
    member = source()
    group, mine = member._consumer, [TopicPartition("timer.requests", number) for number in range(2)]
    group.be(4, b"old")
    member._assigned(group, mine)
    assert [shard.partition for shard in look(member).ownership.assigned] == [0, 1]
    group.be(5, b"old")  # a rebalance
    look(member)
    assert member.membership.is_member
    group.be(5, b"")  # before it joins again
    look(member)
    group.be(-1, b"new")
    look(member)
    assert not member.membership.is_member
    group.be(7, b"new")
    with pytest.raises(MembershipLostError, match=r"may have owned timer\.requests/0, timer\.requests/1"):
        look(member)


def test_a_new_member_id_after_a_reported_loss_is_no_error() -> None:
    member = source()
    group, mine = member._consumer, [TopicPartition("timer.requests", 0)]
    group.be(4, b"old")
    member._assigned(group, mine)
    member.poll(0, 10)
    group.be(4, b"new")
    member._lost(group, mine)
    assert [shard.partition for shard in member.poll(0, 10).ownership.lost] == [0]
    group.be(7, b"new")
    member._assigned(group, mine)
    assert [shard.partition for shard in member.poll(0, 10).ownership.assigned] == [0]


TRUNCATED = KafkaError(KafkaError._AUTO_OFFSET_RESET, f"x: {KafkaError(KafkaError._LOG_TRUNCATION).str()} (broker 1)")
TAKEN = r"timer\.requests/0: requests 7 to 8 .* gone.* start again: the bridge goes on with what is left"
CUT = r"timer\.requests/0 has lost its end below offset 7, .* ends at {} now.*--delete-offsets .*--adopt-progress"


@pytest.mark.parametrize(
    ("error", "bounds", "told"),
    [
        (GONE, (9, 12), TAKEN),
        (KafkaError(KafkaError._AUTO_OFFSET_RESET), (9, 12), TAKEN),
        (GONE, (0, 5), CUT.format(5)),
        (TRUNCATED, (0, 50), CUT.format(50)),
        (GONE, None, r"timer\.requests/0: requests from offset 7 on are not there.*: start again"),
    ],
)
def test_deleted_requests_raise_with_the_remedy(error: KafkaError, bounds: tuple[int, int] | None, told: str) -> None:
    member = source(error)
    member._consumer.bounds = bounds
    with pytest.raises(BridgeError, match=told):
        member.poll(0, 10)


def test_a_passing_error_is_logged_and_is_no_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        polled = source(PASSING, TOO_LONG, PASSING).poll(0, 10)
    assert (polled.records, bool(polled.ownership)) == ({}, False)
    assert "a turn took longer than max.poll.interval.ms" in caplog.text
    assert source(PASSING).serve_rebalance().records == {}


@pytest.mark.parametrize("wrong", [SystemError("utf-8"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")])
def test_headers_with_unreadable_names_are_malformed(wrong: Exception) -> None:
    class Record:
        def headers(self) -> None:
            raise wrong

    assert headers_of(Record()) == UNREADABLE_HEADERS


UNREADABLE_RECORD = KafkaError(KafkaError._BAD_COMPRESSION, "Decompression (codec 0x4) of message at 7 failed")


def test_a_record_that_cannot_be_decoded_is_returned_until_the_partition_moves_on() -> None:
    member = source(UNREADABLE_RECORD, UNREADABLE_RECORD, UNREADABLE_RECORD)
    shard = Shard("timer.requests", 0)
    assert member.poll(0, 1).undecodable == {}, "of a shard that was not started nothing is told"
    member._owned.add(shard)
    member.start(shard, 5)
    assert member.serve_rebalance().undecodable == {shard: 7}
    assert member.poll(0, 1).undecodable == {shard: 7}, "markers lie between 5 and 7"
    member._consumer._said = [Said(UNREADABLE_RECORD)]
    member.rewind(shard, 8)
    assert member.poll(0, 1).undecodable == {shard: 8}, "a batch is told by its first offset"
    member.rewind(shard, 9)
    assert member.poll(0, 1).undecodable == {}
    member._consumer._said = [Said(UNREADABLE_RECORD)]
    assert member.poll(0, 1).undecodable == {shard: 9}
    member._lost(member._consumer, [TopicPartition(*shard)])
    assert member.serve_rebalance().undecodable == {}

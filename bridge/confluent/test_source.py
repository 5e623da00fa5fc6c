"""What librdkafka says in the place of a record, by a consumer that says what a test gives it."""

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from bridge.confluent.source import UNREADABLE, ConfluentSource, headers_of
from bridge.confluent.waiting import CALL_S, Patience
from bridge.connection import Connection
from bridge.errors import BridgeError, FencedError, NameTakenError

GONE, FATAL, TOO_LONG, PASSING = (
    KafkaError(KafkaError.OFFSET_OUT_OF_RANGE),
    KafkaError(KafkaError._FATAL, KafkaError(KafkaError.FENCED_INSTANCE_ID).str()),
    KafkaError(KafkaError._MAX_POLL_EXCEEDED),
    KafkaError(KafkaError._TRANSPORT),
)


class Said:
    """An error in the place of a record."""

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
    """A consumer; `first` comes by poll, the rest together."""

    def __init__(self, fence: object, said: tuple[KafkaError, ...]) -> None:
        self._fence = fence
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

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert (place.topic, place.partition, timeout) == ("timer.requests", 0, CALL_S)
        if self.bounds is None:
            raise KafkaException(PASSING)
        return self.bounds


def source(*said: KafkaError) -> Any:
    made: Any = ConfluentSource(Connection("127.0.0.1:1"), ["timer.requests"], Patience())
    real, fence = made._consumer, made._consumer.consumer_group_metadata()
    real.close()
    made._consumer = Saying(fence, said)
    return made


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (GONE, BridgeError, r"timer\.requests/0: requests from offset 7 on are not there.*: start again"),
        (KafkaError(KafkaError.FENCED_INSTANCE_ID), FencedError, "another process is this member of the group"),
        (FATAL, FencedError, "another process is this member of the group"),
        (KafkaError(KafkaError.UNRELEASED_INSTANCE_ID), NameTakenError, "waiting for its session's end"),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), BridgeError, "reading the timer topic"),
    ],
)
def test_what_is_said_in_the_place_of_a_record_ends_a_poll_and_a_check(
    error: KafkaError, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        source(error).poll(0, 10)
    with pytest.raises(kind, match=told):
        source(error).check()


TRUNCATED = KafkaError(KafkaError._AUTO_OFFSET_RESET, f"x: {KafkaError(KafkaError._LOG_TRUNCATION).str()} (broker 1)")
TAKEN = r"timer\.requests/0: requests 7 to 8 .* gone.* start again: it goes on with what is left"
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
def test_requests_that_are_gone_are_told_with_the_way_to_go_on(
    error: KafkaError, bounds: tuple[int, int] | None, told: str
) -> None:
    member = source(error)
    member._consumer.bounds = bounds
    with pytest.raises(BridgeError, match=told):
        member.poll(0, 10)


def test_what_passes_is_heard_and_no_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        polled = source(PASSING, TOO_LONG, PASSING).poll(0, 10)
    assert (polled.records, bool(polled.ownership)) == ({}, False)
    assert "a turn took longer than max.poll.interval.ms" in caplog.text
    assert source(PASSING).check().records == {}


@pytest.mark.parametrize("wrong", [SystemError("utf-8"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")])
def test_headers_whose_names_nobody_can_read_are_bad_ones(wrong: Exception) -> None:
    class Record:
        def headers(self) -> None:
            raise wrong

    assert headers_of(Record()) == UNREADABLE

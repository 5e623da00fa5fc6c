"""What a job reads of a partition, whatever stands between the records."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import pytest

from spark_jobs.errors import JobFailedError
from spark_jobs.kafka import admin, resend
from spark_jobs.kafka.admin import FOREVER_MS, Cluster, Span
from spark_jobs.kafka.security import KafkaAccess

END_OF_PARTITION, NOT_IN_TOPIC, NOT_IN_GROUP = -191, 29, 30


class Error:
    def __init__(self, code: int) -> None:
        self._code = code

    def code(self) -> int:
        return self._code

    def str(self) -> str:
        return f"code {self._code}"


class Message:
    """As confluent_kafka has it: without an offset where an error is about no place."""

    def __init__(self, offset: int | None, error: int | None = None) -> None:
        self._offset, self._error = offset, None if error is None else Error(error)

    def error(self) -> Error | None:
        return self._error

    def offset(self) -> int | None:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def key(self) -> bytes:
        return b"%d" % (self._offset or 0)

    def value(self) -> bytes:
        return b"v"


def kept(monkeypatch: pytest.MonkeyPatch, span: Span, messages: list[Message]) -> Iterator[bytes | None]:
    """Keys of the records that are read of `span`, where a consumer is told these."""
    told = iter(messages)

    class Consumer:
        def __init__(self, settings: dict[str, Any]) -> None:
            pass

        def assign(self, places: list[Any]) -> None:
            pass

        def poll(self, timeout_s: float) -> Message:
            return next(told)

        def close(self) -> None:
            pass

    class Ended:
        access = KafkaAccess("localhost:9092")

        def stable_spans(self, topics: list[str], *, from_ms: int | None = None) -> list[Span]:
            return [span]

    monkeypatch.setattr(resend, "Consumer", Consumer)
    cluster = cast("Cluster", Ended())
    return (record.key for record in resend.read_committed(cluster, span.topic, span.partition))


@pytest.mark.parametrize(
    ("messages", "keys"),
    [
        ([Message(None, NOT_IN_GROUP), Message(3), Message(4)], [b"3", b"4"]),
        ([Message(3), Message(5, END_OF_PARTITION)], [b"3"]),  # the mark of a transaction has an offset too
    ],
)
def test_all_is_read_without_access_to_the_group_or_records_at_the_end(
    messages: list[Message], keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*kept(monkeypatch, Span("journal", 0, 3, 5), messages)] == keys


def test_another_error_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobFailedError, match="journal/0"):
        [*kept(monkeypatch, Span("journal", 0, 3, 5), [Message(None, NOT_IN_TOPIC)])]


HOUR_MS = 3_600_000
DELETED = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": str(HOUR_MS)}
BY_SENDERS = DELETED | {"message.timestamp.type": "CreateTime"}


class Answer:
    """Of the admin client, at once."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def result(self, timeout_s: float = 0) -> Any:
        if isinstance(self._told, Exception):
            raise self._told
        return self._told


class Offset(NamedTuple):
    offset: int
    timestamp: int


def told(settings: dict[str, str] | None, start: int, first_ms: int | None) -> Cluster:
    """A topic with one partition, whose first record is at `start` and has this time; None: it is empty."""

    class Admin:
        def __init__(self, _: object) -> None: ...

        def list_topics(self, timeout: float) -> Any:
            return SimpleNamespace(topics={"orders": SimpleNamespace(partitions=[0])})

        def describe_configs(self, resources: list[Any]) -> dict[Any, Answer]:
            entries = {name: SimpleNamespace(value=value) for name, value in (settings or {}).items()}
            return {resource: Answer(TimeoutError() if settings is None else entries) for resource in resources}

        def list_offsets(self, asked: dict[Any, Any], **_: object) -> dict[Any, Answer]:
            """Starts are asked for without a timestamp, first records with one."""
            by_time = all(hasattr(spec, "timestamp") for spec in asked.values())
            first = (
                Offset(start, -1) if not by_time else Offset(-1, -1) if first_ms is None else Offset(start, first_ms)
            )
            return dict.fromkeys(asked, Answer(first))

    with mock.patch.object(admin, "AdminClient", Admin):
        return Cluster(KafkaAccess("b:1"))


def remembered_ms(settings: dict[str, str] | None, start: int, first_ms: int) -> int | None:
    """None: nothing is gone."""
    return told(settings, start, first_ms).complete_since_ms(["orders"]).get("orders")


@pytest.mark.parametrize(
    ("settings", "start", "first_ms", "wanted_ms"),
    [
        (BY_SENDERS, 0, None, 0),
        (BY_SENDERS, 7, 5, 5),
        (BY_SENDERS | {"retention.ms": "-1"}, 7, None, FOREVER_MS),
        (BY_SENDERS | {"cleanup.policy": "compact"}, 0, None, FOREVER_MS),
        (None, 0, None, 0),
        (None, 7, 5, 5),
        (None, 7, None, FOREVER_MS),
    ],
)
def test_since_when_the_rejected_topic_is_complete(
    settings: dict[str, str] | None, start: int, first_ms: int | None, wanted_ms: int
) -> None:
    assert told(settings, start, first_ms).rejected_complete_since_ms("orders") == wanted_ms


@pytest.mark.parametrize(
    ("settings", "first_ms", "wanted_ms"),
    [
        (DELETED | {"message.timestamp.type": "LogAppendTime"}, 5, 5),
        (BY_SENDERS | {"retention.bytes": "1000"}, 5, FOREVER_MS),
        (BY_SENDERS | {"retention.ms": "-1"}, 5, FOREVER_MS),
        (BY_SENDERS | {"cleanup.policy": "compact,delete"}, 5, FOREVER_MS),
        (None, 5, FOREVER_MS),
    ],
)
def test_since_when_a_topic_is_complete(settings: dict[str, str] | None, first_ms: int, wanted_ms: int) -> None:
    assert remembered_ms(settings, 7, first_ms) == wanted_ms


def test_a_senders_timestamp_does_not_prove_completeness_nor_does_an_empty_topic() -> None:
    """Its first record may say it is old, and what the bridge delivered before it, an hour ago, is gone."""
    before_ms = int(time.time() * 1000)
    empty_ms = told(BY_SENDERS, 7, None).rejected_complete_since_ms("orders")
    for found_ms in (remembered_ms(BY_SENDERS, 7, first_ms=5), empty_ms):
        assert found_ms is not None
        assert before_ms - HOUR_MS <= found_ms <= int(time.time() * 1000) - HOUR_MS
    assert remembered_ms(BY_SENDERS, 7, first_ms=before_ms + HOUR_MS) == before_ms + HOUR_MS
    assert remembered_ms(BY_SENDERS, 0, first_ms=5) is None

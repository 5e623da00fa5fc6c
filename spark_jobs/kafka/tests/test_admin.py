"""What a job reads of a partition, whatever stands between the records, and which offsets it takes."""

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_jobs.errors import JobFailedError
from spark_jobs.kafka import admin, resend
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.kafka.security import KafkaAccess

END_OF_PARTITION, NOT_IN_TOPIC, NOT_IN_GROUP = -191, 29, 30
NO_OFFSET = -1001


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


def test_an_answer_without_an_offset_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka answers so about a leader that it cannot reach. As an offset it would be an empty log."""
    offsets = iter([NO_OFFSET, 9, 7])

    class Client:
        def __init__(self, settings: dict[str, Any]) -> None:
            pass

        def list_topics(self, timeout: float) -> Any:
            return SimpleNamespace(topics={"timers": SimpleNamespace(partitions={0: None})})

        def list_offsets(self, asked: dict[Any, Any], **options: Any) -> dict[Any, Any]:
            answer: Future[Any] = Future()
            answer.set_result(SimpleNamespace(offset=next(offsets)))
            return dict.fromkeys(asked, answer)

    monkeypatch.setattr(admin, "AdminClient", Client)
    monkeypatch.setattr(admin, "_RETRY_INTERVAL_S", 0.0)
    assert admin.Cluster(KafkaAccess("localhost:9092")).spans(["timers"]) == [Span("timers", 0, 7, 9)]


@pytest.mark.parametrize(("if_unknown", "found"), [(False, ["log"]), (True, ["log", "denied"])])
def test_a_topic_is_not_known_to_be_compacted_only_if_its_settings_are_denied(
    if_unknown: object, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"denied": KafkaError.TOPIC_AUTHORIZATION_FAILED, "broken": KafkaError.NOT_CONTROLLER}
    policies = {"log": "compact,delete", "plain": "delete"}

    class Client:
        def __init__(self, settings: dict[str, Any]) -> None:
            pass

        def list_topics(self, timeout: float) -> Any:
            return SimpleNamespace(topics={})

        def describe_configs(self, asked: list[Any], **options: Any) -> dict[Any, Any]:
            answers = {}
            for resource in asked:
                answers[resource] = answer = Future[Any]()
                if resource.name in codes:
                    answer.set_exception(KafkaException(KafkaError(codes[resource.name])))
                else:
                    answer.set_result({"cleanup.policy": SimpleNamespace(value=policies[resource.name])})
            return answers

    monkeypatch.setattr(admin, "AdminClient", Client)
    cluster = admin.Cluster(KafkaAccess("localhost:9092"))
    assert cluster.compacted(["log", "plain", "denied"], if_unknown=bool(if_unknown)) == found
    with pytest.raises(JobFailedError, match="broken: its settings could not be read: "):
        cluster.compacted(["broken"], if_unknown=bool(if_unknown))

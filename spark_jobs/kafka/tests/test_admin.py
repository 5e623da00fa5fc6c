"""What a job reads of a partition, whatever stands between the records, and which offsets it takes."""

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_jobs.errors import JobFailedError
from spark_jobs.kafka import admin, resend
from spark_jobs.kafka.admin import Span
from spark_jobs.kafka.security import KafkaAccess

END_OF_PARTITION, NOT_IN_TOPIC, NOT_IN_GROUP = -191, 29, 30
NO_OFFSET = -1001


def message(offset: int | None, error: int | None = None) -> Any:
    """Return a message as confluent_kafka has it: without an offset where an error is about no place."""
    wrong = None if error is None else SimpleNamespace(code=lambda: error, str=lambda: f"code {error}")
    told: dict[str, object] = {"error": wrong, "offset": offset, "timestamp": (1, 1_000)}
    told |= {"key": b"%d" % (offset or 0), "value": b"v"}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in told.items()})


def kept(monkeypatch: pytest.MonkeyPatch, span: Span, messages: list[Any]) -> Iterator[bytes | None]:
    """Keys of the records that are read of `span`, where a consumer is told these."""
    told = iter(messages)
    consumer = SimpleNamespace(assign=lambda _: None, poll=lambda _: next(told), close=lambda: None)
    monkeypatch.setattr(resend, "Consumer", lambda _: consumer)
    cluster: Any = SimpleNamespace(access=KafkaAccess("localhost:9092"), stable_spans=lambda *_, **__: [span])
    return (record.key for record in resend.read_committed(cluster, span.topic, span.partition))


@pytest.mark.parametrize(
    ("messages", "keys"),
    [
        ([message(None, NOT_IN_GROUP), message(3), message(4)], [b"3", b"4"]),
        ([message(3), message(5, END_OF_PARTITION)], [b"3"]),  # the mark of a transaction has an offset too
    ],
)
def test_all_is_read_without_access_to_the_group_or_records_at_the_end(
    messages: list[Any], keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*kept(monkeypatch, Span("journal", 0, 3, 5), messages)] == keys


def test_another_error_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobFailedError, match="journal/0"):
        [*kept(monkeypatch, Span("journal", 0, 3, 5), [message(None, NOT_IN_TOPIC)])]


def answered(value: object) -> Future[Any]:
    answer = Future[Any]()
    if isinstance(value, Exception):
        answer.set_exception(value)
    else:
        answer.set_result(value)
    return answer


def cluster_of(monkeypatch: pytest.MonkeyPatch, topics: dict[str, Any], **calls: Any) -> admin.Cluster:
    """Return a cluster with these topics, whose admin client answers these calls."""
    client = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=topics), **calls)
    monkeypatch.setattr(admin, "AdminClient", lambda _: client)
    return admin.Cluster(KafkaAccess("localhost:9092"))


def test_an_answer_without_an_offset_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka answers so about a leader that it cannot reach. As an offset it would be an empty log."""
    offsets = iter([NO_OFFSET, 9, 7])

    def list_offsets(asked: dict[Any, Any], **_: Any) -> dict[Any, Any]:
        return dict.fromkeys(asked, answered(SimpleNamespace(offset=next(offsets))))

    monkeypatch.setattr(admin, "_RETRY_INTERVAL_S", 0.0)
    timers = {"timers": SimpleNamespace(partitions={0: None})}
    cluster = cluster_of(monkeypatch, timers, list_offsets=list_offsets)
    assert cluster.spans(["timers"]) == [Span("timers", 0, 7, 9)]


@pytest.mark.parametrize(("if_unknown", "found"), [(False, ["log"]), (True, ["log", "denied"])])
def test_a_topic_is_not_known_to_be_compacted_only_if_its_settings_are_denied(
    if_unknown: object, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"denied": KafkaError.TOPIC_AUTHORIZATION_FAILED, "broken": KafkaError.NOT_CONTROLLER}
    answers: dict[str, object] = {name: KafkaException(KafkaError(code)) for name, code in codes.items()}
    for name, policy in (("log", "compact,delete"), ("plain", "delete")):
        answers[name] = {"cleanup.policy": SimpleNamespace(value=policy)}

    def describe_configs(asked: list[Any], **_: Any) -> dict[Any, Any]:
        return {resource: answered(answers[resource.name]) for resource in asked}

    cluster = cluster_of(monkeypatch, {}, describe_configs=describe_configs)
    assert cluster.compacted(["log", "plain", "denied"], if_unknown=bool(if_unknown)) == found
    with pytest.raises(JobFailedError, match="broken: its settings could not be read: "):
        cluster.compacted(["broken"], if_unknown=bool(if_unknown))

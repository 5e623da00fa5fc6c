"""Records that made a transaction fail are found, with fake answers of the cluster and a fake clock."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config
from bridge.kafka.retry import Retrier
from bridge.kafka.tests.fake_clients import TIMED_OUT, future_of
from bridge.kafka.transactions import rejection_finder as culprits
from bridge.kafka.transactions.record_sender import SendFailure, size_of
from bridge.kafka.transactions.rejection_finder import (
    MEMORY_S,
    MOST_CHUNKS,
    FoundTopic,
    RejectionFinder,
    TopicProbe,
    TopicSettings,
)
from bridge.ports import Outgoing

UNKNOWN = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
TOO_LARGE, INVALID = KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD
BESIDE_INVALID = KafkaError._INVALID_DIFFERENT_RECORD  # noqa: SLF001


def out(topic: str, size: int = 10, partition: int = -1) -> Outgoing:
    return Outgoing(topic, partition, None, b"v" * size, [], 0)


class Cluster:
    """Fake answers. `topics`: successive ones by topic, None for no answer; by default it has 4 partitions."""

    def __init__(self) -> None:
        self.topics: dict[str, list[FoundTopic | KafkaError | None]] = {}
        self.limits: dict[str, int] = {}
        self.strict: set[str] = set()
        self.compacted: set[str] = set()
        self.asked: list[set[str]] = []
        self.slept_s: list[float] = []
        self.now_s = 1000.0
        probe: Any = self
        self.culprits = RejectionFinder(probe)

    def describe(self, topics: Collection[str]) -> dict[str, FoundTopic | KafkaError]:
        if topics:
            self.asked.append({*topics})
        return {topic: answer for topic in topics if (answer := self._next(topic)) is not None}

    def _next(self, topic: str) -> FoundTopic | KafkaError | None:
        told = self.topics.get(topic, [FoundTopic(4, topic)])
        return told.pop(0) if len(told) > 1 else told[0]

    def settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        seen = self.limits.keys() | self.strict | self.compacted
        return {
            topic: TopicSettings(self.limits.get(topic, 10**6), topic in self.compacted, topic in self.strict)
            for topic in seen & {*topics}
        }

    def unavailable(self, topics: Collection[str]) -> frozenset[str]:
        return frozenset(topics) & {"without leader"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(culprits, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=made.slept_s.append))
    return made


def places(refused: Mapping[Outgoing, str], records: Sequence[Outgoing]) -> dict[int, str]:
    """Return the codes by the places of the records."""
    assert refused.keys() <= set(records)
    return {place: refused[record] for place, record in enumerate(records) if record in refused}


class TestMetadata:
    def test_a_topic_in_the_making_is_asked_again_and_not_refused(self, cluster: Cluster) -> None:
        cluster.topics["new"] = [UNKNOWN, UNKNOWN, FoundTopic(3, "new")]
        assert cluster.culprits.known([out("new")]) == {}
        assert len(cluster.slept_s) == 2
        assert not cluster.culprits.needs_check([out("new", partition=2)])

    def test_unknown_topics_delay_others_once_a_second(self, cluster: Cluster) -> None:
        cluster.topics |= {"one": [UNKNOWN], "two": [UNKNOWN]}
        unknown, other = out("one"), out("two")
        assert cluster.culprits.known([unknown, out("known")]) == {unknown: "unknown-topic"}
        waited = len(cluster.slept_s)
        assert cluster.culprits.known([other]) == {other: "unknown-topic"}
        assert len(cluster.slept_s) == waited > 0

    def test_the_names_of_a_transaction_are_looked_up_together(self, cluster: Cluster) -> None:
        names = {f"missing-{number}" for number in range(1000)}
        cluster.topics = {name: [UNKNOWN] for name in names}
        assert len(cluster.culprits.known([out(name) for name in names])) == 1000
        assert cluster.asked == [names]

    def test_metadata_of_a_denied_topic_is_proof_and_no_answer_is_not(self, cluster: Cluster) -> None:
        cluster.topics |= {"denied": [DENIED], "down": [None], "odd": [KafkaError(KafkaError.LEADER_NOT_AVAILABLE)]}
        denied = out("denied")
        assert cluster.culprits.known([denied]) == {denied: "not-authorized"}
        assert cluster.culprits.known([out("down")]) == {}
        assert cluster.culprits.known([out("odd")]) == {}

    def test_a_denial_that_names_no_record_is_found_by_metadata(self, cluster: Cluster) -> None:
        records = [out(topic) for topic in "abcdb"]
        assert cluster.culprits.known(records) == {}
        cluster.topics |= {topic: [DENIED] for topic in "bd"}
        denied = SendFailure(cause=DENIED)
        assert places(cluster.culprits.find(records, denied), records) == dict.fromkeys((1, 3, 4), "not-authorized")
        again = out("b")
        assert cluster.culprits.known([again, out("a")]) == {again: "not-authorized"}
        cluster.topics.clear()
        assert cluster.culprits.known(records) == {}

    def test_a_topic_that_may_refuse_the_end_of_a_transaction_gets_no_record(self, cluster: Cluster) -> None:
        cluster.strict = {"strict"}
        record = out("strict")
        assert cluster.culprits.known([record, out("good")]) == {record: "bad-target"}
        cluster.strict = set()
        assert cluster.culprits.known([record]) == {}

    def test_a_topic_that_was_created_again_is_gone_at_once_and_others_after_a_longer_wait(
        self, cluster: Cluster
    ) -> None:
        cluster.culprits.known([out("again"), out("good"), out("without leader")])
        cluster.topics["again"] = [FoundTopic(4, "another id")]
        names = ["again", "good", "without leader"]
        assert cluster.culprits.unavailable(names, is_early=True) == {"again"}
        assert cluster.culprits.unavailable(names, is_early=True) == frozenset()
        assert cluster.culprits.unavailable(names, is_early=False) == {"without leader"}


class TestSizes:
    def test_records_beyond_a_limit_that_can_be_read_are_refused_and_then_tried_again(self, cluster: Cluster) -> None:
        records = [out("small", size) for size in (10, 60, 90)]
        assert cluster.culprits.known(records) == {}
        cluster.limits = {"small": size_of(records[0])}
        too_large = dict.fromkeys(records[1:], "too-large")
        named = SendFailure(dict.fromkeys(records, TOO_LARGE))
        assert cluster.culprits.find(records, named) == cluster.culprits.known(records) == too_large
        cluster.now_s += MEMORY_S
        assert cluster.culprits.known(records) == {}
        assert not cluster.culprits.needs_check(records)

    def test_without_that_right_a_record_alone_in_its_batch_is_refused_with_larger_ones(self, cluster: Cluster) -> None:
        records = [out("small", size) for size in (10, 60, 90)]
        assert cluster.culprits.find(records, SendFailure(dict.fromkeys(records, TOO_LARGE))) == {}
        assert cluster.culprits.max_batch_bytes["small"] == sum(map(size_of, records)) // 2
        alone = SendFailure({records[1]: TOO_LARGE})
        assert cluster.culprits.find(records, alone) == dict.fromkeys(records[1:], "too-large")

    def test_what_compresses_is_judged_record_by_record(self, cluster: Cluster) -> None:
        probe: Any = cluster
        compressing = RejectionFinder(probe, compresses=True)
        cluster.limits = {"small": 100}
        records = [out("small", size) for size in (60, 90)]
        assert compressing.find(records, SendFailure({records[0]: TOO_LARGE})) == {records[0]: "too-large"}

    def test_a_batch_of_records_that_fit_alone_gets_smaller_and_then_any_size_is_tried_again(
        self, cluster: Cluster
    ) -> None:
        records = [out("small", 40), out("small", 40)]
        cluster.culprits.known(records)
        assert cluster.culprits.find(records, SendFailure(dict.fromkeys(records, TOO_LARGE))) == {}
        first = cluster.culprits.max_batch_bytes["small"]
        cluster.culprits.find(records, SendFailure(dict.fromkeys(records, TOO_LARGE)))
        assert cluster.culprits.max_batch_bytes["small"] == first // 2
        cluster.now_s += MEMORY_S
        cluster.culprits.known(records)
        assert not cluster.culprits.needs_check(records)

    def test_a_topic_of_many_small_batches_is_crowded(self, cluster: Cluster) -> None:
        cluster.culprits.max_batch_bytes["small"] = 1
        records = [out("small") for _ in range(MOST_CHUNKS)] + [out("good")] * 1000
        assert cluster.culprits.crowded(records, cluster.culprits.max_batch_bytes) == frozenset()
        assert cluster.culprits.crowded([*records, out("small")], cluster.culprits.max_batch_bytes) == {"small"}

    def test_sizes_are_compared_as_kafka_counts_headers(self, cluster: Cluster) -> None:
        """Kafka counts 2 bytes more for each small header, so sizes must be compared as Kafka counts them."""
        one = Outgoing("small", -1, None, b"v" * 20_100, [("h", b"")], 0)
        many = Outgoing("small", -1, None, b"v" * 16_000, [(f"{n:03d}", b"") for n in range(700)], 0)
        longer_name = Outgoing("small", -1, None, b"v" * 14_000, [("\u20ac" * 2_200, b"")], 0)
        assert [size_of(each) for each in (one, many, longer_name)] == [20_175, 19_573, 20_675]
        cluster.limits = {"small": 20_000}
        records = [many, one]
        assert cluster.culprits.find(records, SendFailure({one: TOO_LARGE})) == {one: "too-large"}


class TestValidity:
    def test_a_record_without_key_for_a_compacted_topic_is_not_sent(self, cluster: Cluster) -> None:
        cluster.compacted = {"compacted"}
        without, with_key = out("compacted"), replace(out("compacted"), key=b"k")
        assert cluster.culprits.known([without, with_key]) == {without: "bad-target"}
        assert not cluster.culprits.needs_check([with_key])
        assert cluster.culprits.needs_check([without])

    def test_records_that_the_broker_names_are_refused_and_not_those_beside_them(self, cluster: Cluster) -> None:
        records = [out("odd") for _ in range(4)]
        codes = (BESIDE_INVALID, INVALID, BESIDE_INVALID, INVALID)
        named = SendFailure(dict(zip(records, codes, strict=True)))
        assert cluster.culprits.find(records, named) == dict.fromkeys((records[1], records[3]), "bad-target")

    def test_if_a_single_one_of_a_batch_is_invalid_each_is_sent_alone(self, cluster: Cluster) -> None:
        """librdkafka then gives all of them its code."""
        records = [out("odd") for _ in range(3)]
        assert cluster.culprits.find(records, SendFailure(dict.fromkeys(records, INVALID))) == {}
        assert cluster.culprits.max_batch_bytes == {"odd": 1}
        assert cluster.culprits.find(records, SendFailure({records[1]: INVALID})) == {records[1]: "bad-target"}

    def test_of_a_topic_that_has_become_compacted_all_records_without_key_are_refused(self, cluster: Cluster) -> None:
        records = [replace(out("compacted"), key=key) for key in (b"k", None, b"k", None)]
        cluster.culprits.known(records)
        cluster.compacted = {"compacted"}
        named = SendFailure(dict.fromkeys(records[:2], INVALID))
        refused = dict.fromkeys((records[1], records[3]), "bad-target")
        assert cluster.culprits.find(records, named) == refused

    def test_an_error_that_passes_is_no_proof(self, cluster: Cluster) -> None:
        records = [out("a"), out("b")]
        assert cluster.culprits.find(records, SendFailure({records[0]: KafkaError.NOT_ENOUGH_REPLICAS})) == {}


def test_look_ups_of_many_topics_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders name topics. Those of the present transaction are kept, with what is known of their batches."""
    monkeypatch.setattr(culprits, "MOST_TOPICS", 2)
    cluster = Cluster()
    finder = cluster.culprits
    for topic in ("a", "b", "c"):
        finder.known([out(topic)])
    finder.find([out("c"), out("c")], SendFailure({out("c"): TOO_LARGE, out("c", 11): TOO_LARGE}, None))
    finder.known([out("c"), out("d")])
    assert [finder.needs_check([out(topic)]) for topic in ("a", "b", "d")] == [True, True, False]
    assert finder.max_batch_bytes.keys() == {"c"}


# -- unavailable topics, by the answers of an admin client

REFUSED = KafkaException(DENIED)


Make = Callable[..., tuple[TopicProbe, list[Mock]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a probe, and the list of the clients that it makes.

    in_sync: of three replicas, or an error. min_in_sync: min.insync.replicas, or an error.
    """

    def make(in_sync: int | Exception, min_in_sync: int | Exception = 2) -> tuple[TopicProbe, list[Mock]]:
        topics: object = in_sync
        if isinstance(in_sync, int):
            partition = SimpleNamespace(isr=range(in_sync), replicas=range(3), leader=SimpleNamespace(id=1))
            topics = SimpleNamespace(partitions=[partition])
        configs = entries(min_insync_replicas=str(min_in_sync)) if isinstance(min_in_sync, int) else min_in_sync
        made: list[Mock] = []

        def client(*_: object) -> Mock:
            made.append(Mock())
            made[-1].describe_topics.return_value = {"bills": future_of(topics)}
            made[-1].describe_configs = lambda asked, **_: dict.fromkeys(asked, future_of(configs))
            return made[-1]

        monkeypatch.setattr(client_config, "make", client)
        return TopicProbe(Connection("127.0.0.1:1"), Retrier()), made

    return make


@pytest.mark.parametrize(
    ("in_sync", "min_in_sync", "is_unavailable"),
    [(3, 2, False), (2, 2, False), (1, 2, True), (3, REFUSED, False), (2, REFUSED, True)],
    ids=["all", "enough", "too few", "all, limit unknown", "not all, limit unknown"],
)
def test_a_topic_with_too_few_in_sync_replicas_is_unavailable(
    in_sync: int, min_in_sync: int | Exception, make: Make, *, is_unavailable: bool
) -> None:
    assert (make(in_sync, min_in_sync)[0].unavailable(["bills"]) == {"bills"}) is is_unavailable


def test_an_unanswered_topic_is_unavailable_only_if_asked_so_and_the_client_is_made_again(make: Make) -> None:
    asked, made = make(KafkaException(TIMED_OUT))
    assert [asked.unavailable(["bills"]) for _ in range(2)] == [frozenset()] * 2
    assert len(made) == 2
    assert asked.unavailable(["bills"], include_unanswered=True) == {"bills"}


def entries(**settings: str) -> dict[str, Any]:
    return {name.replace("_", "."): SimpleNamespace(value=value) for name, value in settings.items()}


def test_settings_that_a_broker_does_not_know_refuse_nothing() -> None:
    nothing = TopicSettings(None, needs_key=False, is_strict=False)
    assert TopicSettings.of({}) == nothing
    limited = entries(max_message_bytes="100", cleanup_policy="compact,delete")
    for clock, found in (
        ("CreateTime", TopicSettings(100, needs_key=True, is_strict=True)),
        ("LogAppendTime", TopicSettings(100, needs_key=True, is_strict=False)),
    ):
        own = entries(message_timestamp_type=clock, message_timestamp_before_max_ms="0")
        assert TopicSettings.of(limited | own) == found

"""Records that made a transaction fail are found, with a fake broker and clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.tests.fake_clients import PASSING
from bridge.kafka.transactions import rejection_finder as culprits
from bridge.kafka.transactions.contents import SendFailure
from bridge.kafka.transactions.record_sender import size_of
from bridge.kafka.transactions.rejection_finder import MEMORY_S, RejectionFinder
from bridge.ports import Outgoing

Rule = Callable[[Outgoing], int | None]


def out(topic: str, size: int = 10, partition: int = -1) -> Outgoing:
    return Outgoing(topic, partition, None, b"v" * size, [], 0)


class Broker:
    """A fake broker. `rule`: the code by which a record fails. `codes`: successive answers to metadata requests."""

    def __init__(self, rule: Rule = lambda record: None) -> None:
        self.rule = rule
        self.codes: dict[str, list[int | KafkaError]] = {}
        self.probes = 0
        self.slept_s: list[float] = []
        self.now_s = 1000.0
        self.culprits = RejectionFinder(self.probe, self.partitions_of)

    def probe(self, records: Sequence[Outgoing]) -> SendFailure | None:
        self.probes += 1
        named = {record: code for record in records if (code := self.rule(record)) is not None}
        return SendFailure(named) if named else None

    def partitions_of(self, topic: str) -> int | KafkaError:
        told = self.codes.get(topic, [4])
        found = told.pop(0) if len(told) > 1 else told[0]
        if isinstance(found, KafkaError) and found.code() == PASSING.code():
            raise KafkaException(found)
        return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(culprits, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=made.slept_s.append))
    return made


def places(refused: Mapping[Outgoing, str], records: Sequence[Outgoing]) -> dict[int, str]:
    """Return the codes by the places of the records."""
    assert refused.keys() <= set(records)
    return {place: refused[record] for place, record in enumerate(records) if record in refused}


UNKNOWN = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE


def test_a_topic_in_the_making_is_asked_again_and_not_refused(broker: Broker) -> None:
    broker.codes["new"] = [UNKNOWN, UNKNOWN, 3]
    assert broker.culprits.known([out("new")]) == {}
    assert len(broker.slept_s) == 2
    assert not broker.culprits.needs_check([out("new", partition=2)])


def test_unknown_topics_delay_others_once_a_second(broker: Broker) -> None:
    broker.codes |= {"one": [UNKNOWN], "two": [UNKNOWN]}
    unknown, other = out("one"), out("two")
    assert broker.culprits.known([unknown, out("known")]) == {unknown: "unknown-topic"}
    waited = len(broker.slept_s)
    assert broker.culprits.known([other]) == {other: "unknown-topic"}
    assert len(broker.slept_s) == waited > 0


def test_metadata_of_a_denied_topic_is_proof_and_no_answer_is_not(broker: Broker) -> None:
    broker.codes |= {
        "denied": [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)],
        "down": [PASSING],
        "odd": [KafkaError(KafkaError.LEADER_NOT_AVAILABLE)],
    }
    denied = out("denied")
    assert broker.culprits.known([denied]) == {denied: "not-authorized"}
    assert broker.culprits.known([out("down")]) == {}
    assert broker.culprits.known([out("odd")]) == {}


def test_too_large_records_are_refused_for_a_while_and_then_tried_again(broker: Broker) -> None:
    broker.rule = lambda record: TOO_LARGE if len(record.value or b"") > 50 else None
    sizes = [10, 60, 90]
    records = [out("small", size) for size in sizes]
    assert broker.culprits.known(records) == {}
    too_large = dict.fromkeys(records[1:], "too-large")
    assert broker.culprits.find(records, SendFailure({records[2]: TOO_LARGE})) == too_large
    asked = broker.probes
    assert broker.culprits.known(records) == too_large
    assert broker.culprits.known([out("small", 10)]) == {}
    assert broker.probes == asked
    broker.now_s += MEMORY_S
    large = out("small", 70)
    assert broker.culprits.known([large, out("small", 10)]) == {large: "too-large"}
    assert broker.probes == asked + 1
    broker.now_s += MEMORY_S
    broker.rule = lambda record: None
    assert broker.culprits.known([out("small", 70)]) == {}
    assert not broker.culprits.needs_check([out("small", 70)])


def test_sizes_are_compared_as_kafka_counts_headers(broker: Broker) -> None:
    """Kafka counts 2 bytes more for each small header, so sizes must be compared as Kafka counts them."""
    one = Outgoing("small", -1, None, b"v" * 20_100, [("h", b"")], 0)
    many = Outgoing("small", -1, None, b"v" * 16_000, [(f"{n:03d}", b"") for n in range(700)], 0)
    longer_name = Outgoing("small", -1, None, b"v" * 14_000, [("\u20ac" * 2_200, b"")], 0)
    sizes = [size_of(each) for each in (one, many, longer_name)]
    assert sizes == [20_175, 19_573, 20_675]
    broker.rule = lambda r: TOO_LARGE if size_of(r) > 20_000 else None
    records = [many, one]
    broker.culprits.known(records)
    assert broker.culprits.find(records, SendFailure({one: TOO_LARGE})) == {one: "too-large"}
    assert broker.culprits.known(records) == {one: "too-large"}


def test_after_each_was_sent_alone_a_named_record_is_probed_by_itself(broker: Broker) -> None:
    """Whatever the broker's rule is: a transaction that always fails would hold up all partitions."""
    records = [out("odd", 10), out("odd", 60), out("odd", 90)]
    broker.rule = lambda record: TOO_LARGE if record is records[1] else None
    broker.culprits.known(records)
    refused: Mapping[Outgoing, str] = {}
    for _ in range(20):
        refused = broker.culprits.find(records, SendFailure({records[1]: TOO_LARGE}))
        if refused:
            break
    assert refused == {records[1]: "too-large"}


def test_a_batch_of_records_that_fit_alone_is_halved(broker: Broker) -> None:
    records = [out("small", 40), out("small", 40)]
    broker.culprits.known(records)
    assert broker.culprits.find(records, SendFailure(dict.fromkeys(records, TOO_LARGE))) == {}
    first = broker.culprits.max_batch_bytes["small"]
    broker.culprits.find(records, SendFailure({records[0]: TOO_LARGE}))
    assert broker.culprits.max_batch_bytes["small"] == first // 2


def test_a_probe_that_fails_for_another_reason_proves_nothing(broker: Broker) -> None:
    broker.rule = lambda record: KafkaError.NOT_ENOUGH_REPLICAS
    records = [out("a"), out("b")]
    broker.culprits.known(records)
    assert broker.culprits.find(records, SendFailure({records[0]: TOO_LARGE})) == {}
    assert broker.culprits.find(records, SendFailure({records[0]: KafkaError.INVALID_RECORD})) == {}
    denied = SendFailure(cause=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert broker.culprits.find(records, denied) == {}


def test_a_denial_that_names_no_record_is_found_by_metadata(broker: Broker) -> None:
    records = [out(topic) for topic in "abcdb"]
    assert broker.culprits.known(records) == {}
    broker.codes |= {topic: [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)] for topic in "bd"}
    denied = SendFailure(cause=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert places(broker.culprits.find(records, denied), records) == dict.fromkeys((1, 3, 4), "not-authorized")
    again = out("b")
    assert broker.culprits.known([again, out("a")]) == {again: "not-authorized"}
    assert broker.probes == 0
    broker.codes.clear()
    assert broker.culprits.known(records) == {}


def test_a_denial_is_found_by_sending_if_metadata_does_not_report_rights(broker: Broker) -> None:
    broker.rule = lambda record: KafkaError.TOPIC_AUTHORIZATION_FAILED if record.topic in ("b", "d") else None
    records = [out(topic) for topic in "abcdb"]
    denied = SendFailure(cause=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert places(broker.culprits.find(records, denied), records) == dict.fromkeys((1, 3, 4), "not-authorized")


def test_named_records_are_refused_only_if_they_fail_alone(broker: Broker) -> None:
    broker.rule = lambda record: KafkaError.INVALID_RECORD if record.key is None else None
    records = [replace(out("compacted"), key=key) for key in (b"k", None, b"k")]
    named = dict.fromkeys(records, KafkaError.INVALID_RECORD)
    assert broker.culprits.find(records, SendFailure(named)) == {records[1]: "bad-target"}

"""The bridge's own topics on a fake cluster: which are created, and which faults are reported."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from bridge.config.settings import load
from bridge.config.topic_requirements import REASON_BYTES, fetch_limits, journal_bytes, timer_topic
from bridge.errors import BridgeError, BrokerUnavailableError, SettingsError
from bridge.kafka import ConfluentTopics
from bridge.kafka.topics import OwnTopics
from bridge.observe.metrics import Metrics
from bridge.partition.copies import id_hash
from bridge.partition.limits import MOST_LIMITED, MOST_PAUSED
from bridge.watch_thread import BackgroundChecks, PartitionGrowth
from kafka_timer.headers import MAX_INT64
from schemas.journal import END, CopyInFlight, JournalRecord, Wait
from schemas.progress import Key
from schemas.rules import Rules

TOPICS = ("timer.requests", "timer.journal", "timer.rejected", "timer.receipts", "timer.control")


class Cluster:
    """rights: of the bridge's user, by topic; a topic that is missing there tells none."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, dict[str, str]]] = {}
        self.rights: dict[str, frozenset[str]] = {}
        self.is_down = False

    def partitions(self, topic: str) -> int | None:
        return self.topics[topic][0] if topic in self.topics else None

    def create(self, topic: str, partitions: int, copies: int, config: dict[str, str]) -> None:
        self.topics[topic] = partitions, {"max.message.bytes": "1048588", **config}

    def set_config(self, topic: str, key: str, value: str) -> None:
        self.topics[topic][1][key] = value

    def grow(self, topic: str, partitions: int) -> None:
        self.topics[topic] = partitions, self.topics[topic][1]

    def counts(self, names: Collection[str]) -> dict[str, int]:
        return {} if self.is_down else {name: self.topics[name][0] for name in names}

    def config(self, topic: str, *, once: bool = False) -> dict[str, str]:
        if self.is_down:
            assert once, "a running bridge must not wait for brokers"
            raise BrokerUnavailableError("no broker answers")
        return self.topics[topic][1]

    def allowed(self, topic: str) -> frozenset[str] | None:
        return self.rights.get(topic)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def own(cluster: Cluster, config: Path | None = None, **flags: str) -> OwnTopics:
    flags = {"bootstrap_servers": "here:1", "partitions": "3", "allow_targets": "orders*", **flags}
    return OwnTopics(load(flags, {}, config), cast(ConfluentTopics, cluster), Metrics())


def test_missing_topics_are_created(cluster: Cluster) -> None:
    own(cluster, receipts="none").prepare()
    assert cluster.topics.keys() == {*TOPICS} - {"timer.receipts"}
    own(cluster).prepare()
    assert {name: count for name, (count, _) in cluster.topics.items()} == {**dict.fromkeys(TOPICS, 3), TOPICS[-1]: 1}
    assert {config["message.timestamp.type"] for _, config in cluster.topics.values()} == {"LogAppendTime"}
    assert cluster.topics["timer.control"][1]["cleanup.policy"] == "compact"
    assert cluster.topics["timer.rejected"][1]["max.message.bytes"] == str(1_048_588 + REASON_BYTES)


@pytest.mark.parametrize(
    ("topic", "key", "value", "told"),
    [
        ("timer.requests", "cleanup.policy", "compact", "cleanup.policy is compact: set it to delete"),
        ("timer.requests", "message.timestamp.type", "CreateTime", "is CreateTime: set it to LogAppendTime"),
        ("timer.requests", "retention.bytes", "5", "retention.bytes is 5: set it to -1"),
        ("timer.requests", "retention.ms", "1000", "retention.ms is 1000, but a roll window of 172800000 ms needs"),
        (
            "timer.requests",
            "compression.type",
            "producer",
            "so a record of 3 KB may become 100 MB when it is read; run"
            " kafka-configs.sh --bootstrap-server here:1 --alter --entity-type topics --entity-name timer.requests"
            " --add-config compression.type=uncompressed; if your brokers do not allow that, set compressed_requests",
        ),
        ("timer.journal", "max.message.bytes", "1048588", "max.message.bytes is 1048588, but one transaction may need"),
    ],
)
def test_a_topic_that_may_lose_timers_stops_a_start_but_not_a_running_bridge(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, topic: str, key: str, value: str, told: str
) -> None:
    topics = own(cluster)
    topics.prepare()
    topics.complain()
    assert caplog.text == ""
    cluster.set_config(topic, key, value)
    with pytest.raises(SettingsError) as refused:
        topics.prepare()
    assert str(refused.value).startswith(f"{topic}: {key} is {value}")
    assert told in str(refused.value)
    cluster.grow("timer.requests", 5)
    assert topics.prepare(is_running=True)["timer.requests"].partitions == 5
    assert f"timers may be lost: {refused.value}" in caplog.text
    assert cluster.topics["timer.journal"][0] == 5
    cluster.is_down = True
    topics.complain()
    assert "topics could not be checked: no broker answers" in caplog.text


@pytest.mark.parametrize(("of_topic", "of_journal"), [("2592000000", "2592000000"), ("-1", "-1"), ("1", "604800000")])
def test_a_journal_is_created_with_the_retention_of_its_timer_topic(
    cluster: Cluster, of_topic: str, of_journal: str
) -> None:
    cluster.create("timer.requests", 3, 1, timer_topic(172_800_000) | {"retention.ms": of_topic})
    with suppress(SettingsError):
        own(cluster).prepare()
    assert cluster.topics["timer.journal"][1]["retention.ms"] == of_journal


def test_compressed_requests_are_allowed_by_a_setting(cluster: Cluster) -> None:
    own(cluster, compressed_requests="allow").prepare()
    assert "compression.type" not in cluster.topics["timer.requests"][1], "brokers may not let it be set"
    for topic in ("timer.requests", "timer.journal"):
        cluster.set_config(topic, "compression.type", "producer")
    own(cluster, compressed_requests="allow").prepare()
    cluster.set_config("timer.requests", "compression.type", "uncompressed")
    own(cluster).prepare()
    assert cluster.topics["timer.journal"][1]["compression.type"] == "producer", "only bridges write to it"


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("timer.rejected", "max.message.bytes", "1000"),
        ("timer.rejected", "message.timestamp.type", "CreateTime"),
        ("timer.receipts", "message.timestamp.type", "CreateTime"),
    ],
)
def test_faults_of_a_topic_that_is_only_written_are_warnings(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, topic: str, key: str, value: str
) -> None:
    own(cluster).prepare()
    cluster.set_config(topic, key, value)
    cluster.rights[topic] = frozenset({"WRITE"})
    own(cluster).prepare()
    assert caplog.text == "", "its configuration may not be read"
    cluster.rights[topic] = frozenset({"WRITE", "DESCRIBE_CONFIGS"})
    own(cluster).prepare()
    assert f"{topic}: {key} is {value}" in caplog.text


@pytest.mark.parametrize(
    ("topic", "rights", "missing", "acl"),
    [
        ("timer.control", {"WRITE", "DESCRIBE"}, "READ", "--operation Read"),
        ("timer.journal", {"READ", "WRITE"}, "DESCRIBE_CONFIGS", "--operation DescribeConfigs"),
        ("timer.requests", {"DESCRIBE_CONFIGS"}, "READ and WRITE", "--operation Read --operation Write"),
    ],
)
def test_a_missing_right_stops_the_start_and_the_acl_is_told(
    cluster: Cluster, topic: str, rights: set[str], missing: str, acl: str
) -> None:
    cluster.rights[topic] = frozenset(rights)
    told = rf"{topic}: the bridge's user may not {missing}: give it the right.* {acl} --topic {topic}"
    with pytest.raises(BridgeError, match=told):
        own(cluster).prepare()


def test_a_control_topic_with_several_partitions_stops_the_start(cluster: Cluster) -> None:
    cluster.create("timer.control", 2, 1, {})
    with pytest.raises(SettingsError, match=r"timer\.control: 2 partitions, control_topic needs 1; name another"):
        own(cluster).prepare()


def test_new_partitions_get_journals_and_a_share_of_the_limits(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load({"bootstrap_servers": "here:1", "partitions": 3, "max_pending": 6}, {}, None)
    topics = OwnTopics(settings, cast(ConfluentTopics, cluster), Metrics())
    before = settings.turn_options(topics.prepare())
    growth = PartitionGrowth(topics, settings.turn_options, before)
    growth.check()
    assert growth.options is before
    cluster.grow("timer.requests", 6)
    cluster.is_down = True
    growth.check()
    assert growth.options is before
    cluster.is_down = False
    growth.check()
    assert (before.max_pending, growth.options.max_pending, growth.options.partitions) == (2, 1, 6)
    assert cluster.topics["timer.journal"][0] == 6
    cluster.grow("timer.requests", 7)
    checks = BackgroundChecks(growth.check)
    checks.close()
    checks.check()
    assert "new partitions of a timer topic: not prepared as they should be: max_pending = 6" in caplog.text
    assert growth.options.partitions == 6


def test_a_policy_that_allows_every_topic_is_a_warning_at_start(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text('[topics.payments]\n[topics.bills]\nallow = ["orders"]\n[topics.mails]\ndeny = ["orders"]\n')
    topics = own(cluster, config, allow_targets="*")
    topics.prepare()
    told = "its senders may send to every topic that the bridge may write to; set"
    assert caplog.messages == [
        f"timer.requests: {told} allow_targets to their targets",
        f'payments: {told} topics."payments".allow to their targets',
    ]
    caplog.clear()
    topics.prepare(is_running=True)
    assert caplog.messages == []


@pytest.mark.parametrize("waits", [MOST_PAUSED, MOST_PAUSED + MOST_LIMITED])
def test_a_journal_record_of_the_largest_transaction_fits(waits: int) -> None:
    flight = CopyInFlight(MAX_INT64, 2**31 - 1, MAX_INT64, "x" * 249, id_hash(b"i" * 1024), "f" * 32)
    largest = JournalRecord(
        from_offset=0,
        next_offset=MAX_INT64,
        rules=Rules(max_delay_ms=1, roll_window_ms=1, own_topics=frozenset(["x" * 249, "y" * 249])),
        refused=(MAX_INT64,) * 2000,
        ended=(MAX_INT64,) * 4000,
        rolled=(flight,) * 4000,
        waits=(Wait("x" * 249, True, ((Key(MAX_INT64, MAX_INT64), END),)),) * waits,
    )
    room = journal_bytes(waits)
    assert 1_500_000 < len(largest.to_bytes()) < room < 8 << 20, "the size of a journal that the bridge creates"


def test_a_reader_holds_at_least_one_batch_and_at_most_four_times_the_largest_record() -> None:
    usual = fetch_limits(1 << 20, is_compressed=False)
    assert usual == {"fetch.max.bytes": str(16 << 20), "receive.message.max.bytes": str(17 << 20)}
    large = fetch_limits(10 << 20, is_compressed=True)
    assert large == {
        "fetch.max.bytes": str(40 << 20),
        "receive.message.max.bytes": str(41 << 20),
        "fetch.message.max.bytes": "1",
        "fetch.min.bytes": "1",
    }

"""The bridge's own topics on a cluster that is a dictionary: what is made, and what is said of what stands."""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from bridge.config.settings import load
from bridge.config.topic_setup import OwnTopics
from bridge.errors import BridgeError, BrokerUnavailableError, SettingsError
from bridge.kafka import ConfluentTopics
from bridge.observe.metrics import Metrics
from bridge.watch_thread import BackgroundChecks, PartitionGrowth


class Cluster:
    """`rights`: of the bridge's user, by topic; none told where a topic is not among them."""

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
            assert once, "it is waited for, without end"
            raise BrokerUnavailableError("no broker answers")
        return self.topics[topic][1]

    def allowed(self, topic: str) -> frozenset[str] | None:
        return self.rights.get(topic)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_partitions_that_were_added_get_journals_and_the_limits_are_shared_out_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load({"bootstrap_servers": "127.0.0.1:1", "partitions": 3, "max_pending": 6}, {}, None)
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
    watch = BackgroundChecks(growth.check)
    watch.close()
    watch.check()
    assert "new partitions of a timer topic: not prepared as they should be: max_pending = 6" in caplog.text
    assert growth.options.partitions == 6


def own(cluster: Cluster, **flags: str) -> OwnTopics:
    flags = {"allow_targets": "orders*", **flags}
    settings = load({"bootstrap_servers": "127.0.0.1:1", "partitions": 3, **flags}, {}, None)
    return OwnTopics(settings, cast(ConfluentTopics, cluster), Metrics())


def test_what_is_missing_is_made_and_no_receipts_where_none_are_told(cluster: Cluster) -> None:
    own(cluster, receipts="none").prepare()
    assert cluster.topics.keys() == {"timer.requests", "timer.journal", "timer.rejected", "timer.control"}
    own(cluster).prepare()
    made = dict.fromkeys(("timer.requests", "timer.journal", "timer.rejected", "timer.receipts"), 3)
    assert {name: partitions for name, (partitions, _) in cluster.topics.items()} == made | {"timer.control": 1}
    _, control = cluster.topics["timer.control"]
    assert (control["cleanup.policy"], control["message.timestamp.type"]) == ("compact", "LogAppendTime")


def test_a_control_topic_that_cannot_be_followed_ends_the_start(cluster: Cluster) -> None:
    cluster.create("timer.control", 2, 1, {})
    with pytest.raises(SettingsError, match=r"timer\.control: 2 partitions, control_topic needs 1; name another"):
        own(cluster).prepare()
    cluster.topics["timer.control"] = 1, {}
    cluster.rights["timer.control"] = frozenset({"WRITE", "DESCRIBE"})
    with pytest.raises(BridgeError, match=r"timer\.control: the bridge's user may not READ: give it the right"):
        own(cluster).prepare()


def test_what_is_made_has_the_brokers_time_as_the_audit_compares_it(cluster: Cluster) -> None:
    own(cluster).prepare()
    assert {config["message.timestamp.type"] for _, config in cluster.topics.values()} == {"LogAppendTime"}


def test_a_retention_that_loses_timers_ends_a_start_but_no_running_bridge_whose_topic_grows(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    own(cluster).prepare()
    cluster.topics["timer.requests"] = 5, {**cluster.topics["timer.requests"][1], "retention.ms": "1000"}
    with pytest.raises(SettingsError, match=r"timer\.requests: retention\.ms is 1000"):
        own(cluster).prepare()
    with caplog.at_level(logging.WARNING):
        assert own(cluster).prepare(is_running=True)["timer.requests"].partitions == 5
    assert "timers may be lost: timer.requests: retention.ms is 1000" in caplog.text
    assert cluster.topics["timer.journal"][0] == 5


def test_a_missing_right_ends_the_start(cluster: Cluster) -> None:
    cluster.rights["timer.journal"] = frozenset({"READ", "DESCRIBE_CONFIGS"})
    with pytest.raises(BridgeError, match=r"timer\.journal: the bridge's user may not WRITE"):
        own(cluster).prepare()


def test_a_rejected_topic_with_little_room_is_told_where_it_may_be_looked_at(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    own(cluster).prepare()
    cluster.topics["timer.rejected"][1]["max.message.bytes"] = "1000"
    with caplog.at_level(logging.WARNING):
        own(cluster).prepare()
        assert "timer.rejected: max.message.bytes is 1000" in caplog.text
        caplog.clear()
        cluster.rights["timer.rejected"] = frozenset({"WRITE"})
        own(cluster).prepare()
    assert caplog.text == ""


@pytest.mark.parametrize("topic", ["timer.rejected", "timer.receipts"])
def test_a_topic_with_the_bridges_own_time_is_told(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    own(cluster).prepare()
    assert caplog.text == ""
    cluster.topics[topic][1]["message.timestamp.type"] = "CreateTime"
    own(cluster).prepare()
    assert f"{topic}: message.timestamp.type is CreateTime: set it to LogAppendTime" in caplog.text


def test_a_topic_that_would_lose_timers_ends_a_start_and_is_told_while_it_runs(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topics = own(cluster)
    topics.prepare()
    topics.complain()
    assert caplog.text == ""
    cluster.topics["timer.requests"][1]["cleanup.policy"] = "compact"
    with pytest.raises(SettingsError, match=r"cleanup\.policy is compact"):
        topics.prepare()
    topics.complain()
    assert "timers may be lost: timer.requests: cleanup.policy is compact" in caplog.text
    cluster.is_down = True
    topics.complain()
    assert "topics could not be checked: no broker answers" in caplog.text


def test_compressed_requests_end_a_start_unless_they_are_fixed_or_allowed(cluster: Cluster) -> None:
    own(cluster, compressed_requests="allow").prepare()
    assert "compression.type" not in cluster.topics["timer.requests"][1], "brokers may not let it be set"
    for topic in ("timer.requests", "timer.journal"):
        cluster.topics[topic][1]["compression.type"] = "producer"
    with pytest.raises(SettingsError, match=r"timer\.requests: compression\.type is producer.*--fix-topics true"):
        own(cluster).prepare()
    own(cluster, compressed_requests="allow", fix_topics="true").prepare()
    assert cluster.topics["timer.requests"][1]["compression.type"] == "producer", "allowed, so there is nothing to fix"
    own(cluster, fix_topics="true").prepare()
    own(cluster).prepare()
    assert cluster.topics["timer.requests"][1]["compression.type"] == "uncompressed"
    assert cluster.topics["timer.journal"][1]["compression.type"] == "producer", "only bridges write there"


def test_a_policy_that_lets_every_topic_through_is_told_at_start_with_its_setting(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text('[topics.payments]\n[topics.bills]\nallow = ["orders"]\n[topics.mails]\ndeny = ["orders"]\n')
    settings = load({"bootstrap_servers": "127.0.0.1:1"}, {}, config)
    topics = OwnTopics(settings, cast(ConfluentTopics, cluster), Metrics())
    topics.prepare()
    told = "its senders may send to every topic that the bridge may write to; set"
    assert caplog.messages == [
        f"timer.requests: {told} allow_targets to their targets",
        f'payments: {told} topics."payments".allow to their targets',
    ]
    caplog.clear()
    topics.prepare(is_running=True)
    assert caplog.messages == []

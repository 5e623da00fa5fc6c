"""The bridge's own topics on a cluster that is a dictionary: what is made, and what is said of what stands."""

import logging
from typing import cast

import pytest

from bridge.confluent import ConfluentTopics
from bridge.errors import BridgeError, BrokerUnavailableError, SettingsError
from bridge.metrics import Metrics
from bridge.own_topics import OwnTopics
from bridge.settings import load


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

    def grow(self, topic: str, partitions: int) -> None:
        self.topics[topic] = partitions, self.topics[topic][1]

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


def own(cluster: Cluster, **flags: str) -> OwnTopics:
    settings = load({"bootstrap_servers": "127.0.0.1:1", "partitions": 3, **flags}, {}, None)
    return OwnTopics(settings, cast(ConfluentTopics, cluster), Metrics())


def test_what_is_missing_is_made_and_no_receipts_where_none_are_told(cluster: Cluster) -> None:
    own(cluster, receipts="none").prepare()
    assert cluster.topics.keys() == {"timer.requests", "timer.journal", "timer.rejected"}
    own(cluster).prepare()
    assert {name: partitions for name, (partitions, _) in cluster.topics.items()} == dict.fromkeys(
        ("timer.requests", "timer.journal", "timer.rejected", "timer.receipts"), 3
    )


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

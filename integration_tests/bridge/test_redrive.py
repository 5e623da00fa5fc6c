"""`timer-bridge redrive` against a real broker: parked records are sent again, each once, also after a crash."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge.config.settings import Settings
from bridge.errors import BridgeError, FencedError
from bridge.kafka.transactions.producer import TransactionalProducer
from bridge.page.api.kafka import ConfluentKafkaPort
from bridge.redrive.rules import Parked, RedriveFilter, marker_of
from bridge.redrive.sender import ConfluentRedrive, RedriveResult
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import SOON, Names, command, read, send
from integration_tests.support.cluster import Cluster
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from scripts.common.processes import BridgeProcess

pytestmark = pytest.mark.broker


class Place:
    """A timer topic, a rejected topic with records, and redrives of them."""

    def __init__(self, broker: Broker) -> None:
        self.cluster = Cluster(broker.bootstrap_servers)
        self.timers = self.cluster.topic("timers", 2, max_message_bytes="5000")
        self.rejected = self.cluster.topic("rejected", 2)
        topics = {"timer_topic": self.timers, "rejected_topic": self.rejected, "resent_topic": f"resent-{self.timers}"}
        own = topics | {"redriven_topic": f"redriven-{self.timers}", "group": f"group-{self.timers}"}
        self.settings = Settings(bootstrap_servers=broker.bootstrap_servers, **own)
        self.marks = self.settings.redrive_marks
        self.closing = ExitStack()

    def park(self, value: bytes, number: int, code: bytes = b"unknown-topic", partition: int = 0) -> None:
        origin = f"{self.timers}/1/{number}".encode()
        headers: Headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"5"), ("trace", None)]
        reason: Headers = [("timer-error", code), ("timer-error-detail", b""), ("timer-origin", origin)]
        self.cluster.send(self.rejected, value, key=b"k", headers=[*headers, *reason], partition=partition)

    def redrive(self, *, begun: bool = True) -> ConfluentRedrive:
        self.cluster.flush()
        made = ConfluentRedrive(self.settings)
        self.closing.callback(made.close)
        if begun:
            made.begin()
        return made

    def looked(self) -> tuple[ConfluentRedrive, list[Parked]]:
        """Return a redrive and the records that it has selected: all."""
        redrive = self.redrive()
        found = redrive.look(self.everything)
        found.limit_to(None)
        return redrive, found.selected

    def all_of_it(self) -> int:
        """Run one `redrive --apply`; return the number of sent records."""
        redrive, selected = self.looked()
        return redrive.apply(selected).count

    @property
    def everything(self) -> RedriveFilter:
        return RedriveFilter(frozenset({self.timers}))

    def sent(self) -> list[Any]:
        return self.cluster.read(self.timers)


@pytest.fixture
def place(kafka: Broker) -> Iterator[Place]:
    made = Place(kafka)
    with made.closing:
        yield made


def test_what_was_parked_by_a_bridge_is_delivered_once_its_topic_is_there(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    resent = ["--resent-topic", f"resent-{names.timers}"]
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--group", names.group, "--timer-topic", names.timers]

    def redrive(*options: str) -> dict[str, Any]:
        ended = command("redrive", "--json", *where, "--rejected-topic", names.rejected, *resent, *options)
        assert ended.returncode == 0, ended.stderr
        told: dict[str, Any] = json.loads(ended.stdout)
        return told

    to = ("timer-topic", names.target.encode())
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, [*names.arguments, *resent]):
        for number in range(3):
            send(kafka, names, b"%d" % number, to, SOON, ("trace", b"x"), ("timer-id", b"%d" % number))
        send(kafka, names, b"bad", to, ("timer-delay-ms", b"-1"))
        read(kafka, names.rejected, 4)
        names.create_target(kafka)
        looked = redrive()
        assert looked["records"] == [
            {"code": "bad-header", "topic": names.target, "parked": 1, "redriven": 0, "selected": 0},
            {"code": "unknown-topic", "topic": names.target, "parked": 3, "redriven": 0, "selected": 3},
        ]
        assert (looked["selected"], looked["sent"]) == (3, None)
        assert redrive("--apply", "--limit", "2")["sent"] == 2
        assert redrive("--apply")["sent"] == 1
        assert redrive("--apply")["sent"] == 0
        delivered = read(kafka, names.target, 3)
    assert sorted(record.value() for record in delivered) == [b"0", b"1", b"2"]
    assert all((record.key(), record.headers()[0]) == (b"key", ("trace", b"x")) for record in delivered)
    assert len(Cluster(kafka.bootstrap_servers).read(names.target)) == 3


def test_a_record_goes_back_as_it_was_to_its_partition_unless_a_former_version_has_marked_it(place: Place) -> None:
    place.park(b"one", 4)
    place.park(b"two", 5)
    first, _ = place.redrive(begun=False).look(place.everything).selected
    place.cluster.create(place.marks.former, 2, cleanup_policy="compact")
    place.cluster.send(place.marks.former, marker_of(first), key=b"%b/0/0" % place.rejected.encode(), partition=1)
    assert [place.all_of_it(), place.all_of_it()] == [1, 0]
    (record,) = place.sent()
    assert (record.partition(), record.key(), record.value()) == (1, b"k", b"two")
    assert record.headers() == [("timer-topic", b"orders"), ("timer-delay-ms", b"5"), ("trace", None)]


def test_a_redrive_that_another_one_overtakes_sends_nothing_more(place: Place) -> None:
    for number in range(600):
        place.park(b"%d" % number, number, partition=number % 2)
    first, selected = place.looked()
    stands: list[Parked] = []
    assert first.apply(selected[:100], stands.extend).count == 100
    assert place.all_of_it() == 500
    with pytest.raises(FencedError, match="another `timer-bridge redrive"):
        first.apply(selected[100:], stands.extend)
    assert stands == selected[:100]
    assert place.all_of_it() == 0
    assert sorted(int(record.value()) for record in place.sent()) == list(range(600))


def test_a_redrive_sends_the_records_that_a_dead_one_left_uncommitted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        place.park(b"%d" % number, number)
    dead, selected = place.looked()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            dead.apply(selected)
    assert place.all_of_it() == 5
    assert sorted(int(record.value()) for record in place.sent()) == list(range(5))


def test_a_record_that_the_timer_topic_refuses_delays_no_other(place: Place) -> None:
    place.park(b"x" * 6000, 0)
    for number in range(1, 4):
        place.park(b"%d" % number, number)
    redrive, selected = place.looked()
    sent = redrive.apply(selected)
    assert (sent.count, [(record.origin, code) for record, code in sent.refused]) == (3, [(0, "too-large")])
    assert [record.value() for record in place.sent()] == [b"1", b"2", b"3"]
    assert len(place.cluster.read(place.marks.topic)) == 3


def test_without_the_timer_topic_it_says_what_to_do(place: Place) -> None:
    place.park(b"one", 0)
    place.cluster.flush()
    place.cluster.delete(place.timers)
    redrive = place.redrive(begun=False)
    with pytest.raises(BridgeError, match="does not exist: start `timer-bridge run`, which makes it"):
        redrive.look(place.everything)


def test_marks_that_would_expire_are_refused(place: Place) -> None:
    place.cluster.create(place.marks.topic, cleanup_policy="delete")
    redrive = place.redrive(begun=False)
    with pytest.raises(BridgeError, match=r"cleanup\.policy is delete: set it to compact"):
        redrive.begin()


def test_a_redrive_by_the_page_that_has_nothing_to_send_ends_no_other_one(place: Place) -> None:
    place.park(b"one", 4)
    assert place.all_of_it() == 1
    place.park(b"two", 5)
    running = place.redrive()
    page = ConfluentKafkaPort(place.settings)
    place.closing.callback(page.close)
    chosen = {(TimerPartition(place.rejected, 0), 0)}
    assert page.redrive(chosen, lambda _: None) == RedriveResult()
    assert running.apply(running.look(place.everything).selected).count == 1
    assert page.redrive({(TimerPartition(place.rejected, 0), 1)}, lambda _: None) == RedriveResult()

"""Several instances on one timer topic start, stop, sleep and die: each timer is delivered once."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from bridge.dev.embedded_kafka import EmbeddedKafka
from integration_tests.conftest import FAST_RESTART, Broker, started
from integration_tests.support.instances import BEGUN_ANEW, BridgeInstance, Field, partition_of
from scripts.common.kafka_io import Delivery

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

SHORT_SESSIONS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "4000",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}
SESSION = ("--kafka", "session.timeout.ms=8000", "--kafka", "heartbeat.interval.ms=500")
CONSUMER = ("--group-protocol", "consumer")
DYNAMIC = ("--no-static-membership",)
MakeField = Callable[..., Field]
BUSY_MACHINE_MS = 1000
"""A process may get no CPU for so long: a shorter pause of all its partitions does not show that a move causes it."""


@pytest.fixture(scope="module")
def impatient_kafka() -> Iterator[EmbeddedKafka]:
    """A broker that lets sessions be short."""
    with started("ownership", FAST_RESTART | SHORT_SESSIONS) as broker:
        yield broker


@pytest.fixture
def make_field(impatient_kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[MakeField]:
    made: list[Field] = []

    def make(partitions: int, *arguments: str) -> Field:
        made.append(Field(impatient_kafka.bootstrap_servers, tmp_path, partitions, *arguments))
        return made[-1]

    yield make
    for field in made:
        field.close()


def longest_pause(deliveries: list[Delivery], partition: int) -> tuple[Delivery, Delivery]:
    """Return the two successive deliveries that are furthest apart by the broker's clock."""
    own = [delivery for delivery in deliveries if partition_of(delivery) == partition]
    return max(pairwise(own), key=lambda pair: pair[1].appended_ms - pair[0].appended_ms)


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(SESSION, id="classic"),
        pytest.param((*SESSION, "--standby"), id="standby"),
        pytest.param(CONSUMER, id="consumer", marks=pytest.mark.slow),
    ],
)
def test_case_30_one_instance_then_three_then_one_under_load(make_field: MakeField, protocol: tuple[str, ...]) -> None:
    field = make_field(6, *protocol, *DYNAMIC)  # so that a stop hands over at once
    (first,) = field.start("first")
    field.send_far()
    field.until(lambda: len(first.checkpoints()) == 6, "checkpoints")
    with field.load():
        field.until_delivered(300)
        others = field.start("second", "third")
        field.until_delivered(600)
        grown, kept = len(field.seen), first.owned()
        for instance in others:
            instance.stop()
        field.until_owned(first)
        field.until_delivered(300)
    seen = field.demand_each_once()
    moved = set(range(6)) - kept
    assert kept
    assert moved
    for partition in moved:
        before, after = longest_pause(seen[:grown], partition)
        meanwhile = {partition_of(delivery) for delivery in seen[seen.index(before) : seen.index(after)]}
        pause_ms = after.appended_ms - before.appended_ms
        assert meanwhile & kept or pause_ms < BUSY_MACHINE_MS, f"all paused for {pause_ms} ms while {partition} moved"
    back = [each for each in first.recovered()[6:] if each.partition in moved]
    assert {each.partition for each in back} == moved
    assert {each.how for each in back} == {"from its directory"}
    assert all(each.offset > 0 for each in back)


def test_case_29_an_instance_suspended_past_its_session_publishes_nothing(make_field: MakeField) -> None:
    field = make_field(4, *SESSION)
    sleeper, other = field.start("sleeper", "other")
    with field.load():
        field.until_delivered(300)
        os.kill(sleeper.pid, signal.SIGSTOP)
        try:
            field.until_owned(other)
            field.until_delivered(300)
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        # If it was suspended during a commit, it does not know the outcome and starts a new life.
        field.until(lambda: "has removed us" in sleeper.log or BEGUN_ANEW in sleeper.log, "its waking")
        field.until(lambda: bool(sleeper.owned()), "its coming back into the group")
        field.until_owned(sleeper, other)
        field.until_delivered(300)
    field.demand_each_once()


@pytest.mark.slow
def test_a_group_changes_its_protocol_after_a_stop_of_all(make_field: MakeField) -> None:
    field = make_field(2)
    for arguments in ((), CONSUMER, ()):
        (instance,) = field.start("only", arguments=arguments)
        for partition in range(2):
            field.send(partition, 0)
        field.until_delivered(2)
        instance.stop()
    field.demand_each_once()


def test_an_instance_waits_for_a_name_that_is_still_in_use(make_field: MakeField) -> None:
    """Under the consumer protocol a killed static member keeps its name. A classic group replaces it at once."""
    name = {"group.protocol": "consumer", "group.instance.id": "pod-1"}
    field = make_field(2, *(word for pair in name.items() for word in ("--kafka", "=".join(pair))))
    former: Any = Consumer({"bootstrap.servers": field.cluster.bootstrap_servers, "group.id": field.group, **name})
    former.subscribe([field.target])
    while not former.assignment():
        former.poll(0.1)
    only = field.launch("only")
    field.until(lambda: "joining the group: a member of our instance id was killed" in only.log, "waiting")
    former.close()
    only.await_ready()
    field.send(0, 0)
    field.demand_each_once()


def test_a_fenced_member_joins_again_and_ends_if_it_is_fenced_repeatedly(make_field: MakeField) -> None:
    """A late join request of the member itself fences it once. A rival fences it again and again."""
    field = make_field(2, "--kafka", "group.instance.id=pod-1", *SESSION)
    (only,) = field.start("only")
    ended = "another process runs with this instance's id"

    def fence() -> None:
        """Join under its name until the log shows that it was fenced."""
        told = only.log.count("joining again")
        rival: Any = Consumer(
            {
                "bootstrap.servers": field.cluster.bootstrap_servers,
                "group.id": field.group,
                "group.instance.id": "pod-1",
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        rival.subscribe([field.timers])

        def is_noticed() -> bool:
            rival.poll(0.1)
            return only.log.count("joining again") > told or ended in only.log

        field.until(is_noticed, "a fence")
        rival.close()

    fence()
    field.until(lambda: only.log.count("recovered to") == 4, "its partitions again")
    field.send(0, 0)
    field.until_delivered(1)
    while ended not in only.log:
        fence()
    only.kill()
    field.start("only")
    field.demand_each_once()


@pytest.mark.parametrize(
    ("arguments", "end", "is_moved"),
    [
        (("--group-protocol", "classic", "--kafka", "session.timeout.ms=45000"), BridgeInstance.kill, False),
        (("--group-protocol", "consumer"), BridgeInstance.stop, False),
        (("--kafka", "session.timeout.ms=300000"), BridgeInstance.stop, True),
    ],
    ids=["classic", "consumer", "new-volume"],
)
def test_a_restart_moves_no_partition(
    kafka: Broker, tmp_path: Path, arguments: tuple[str, ...], end: Callable[[BridgeInstance], None], *, is_moved: bool
) -> None:
    """Static membership, in a classic group after a kill too. In the consumer protocol that member keeps its name.

    is_moved: a pod of charts/timer-bridge on a new volume has a name of its own, and has lost its directory.
    """
    names = ("timers-0", "timers-1")
    with closing(Field(kafka.bootstrap_servers, tmp_path, 4, *arguments)) as field:
        own = {name: ("--kafka", f"group.instance.id={name}") if is_moved else () for name in names}
        restarted, other = [field.launch(name, own[name]) for name in names]
        for instance in (restarted, other):
            instance.await_ready()
        field.until_owned(restarted, other)
        assert restarted.owned()
        assert other.owned()
        field.send_far()
        owned, moves = restarted.owned(), other.log.count("recovered to")
        with field.load():
            field.until_delivered(100)
            end(restarted)
            if is_moved:
                shutil.rmtree(tmp_path / "timers-0" / "timer-data")
            restarted.launch()
            restarted.await_ready()
            field.until(lambda: restarted.owned() == owned, "its partitions again")
            field.until_delivered(100)
        assert not is_moved or {each.how for each in restarted.recovered()} == {"from Kafka alone"}
        assert other.log.count("recovered to") == moves
        field.demand_each_once()

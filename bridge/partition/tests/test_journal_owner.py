"""Two groups on one timer topic and one journal: only the group that owns the journal delivers."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bridge.errors import ForeignJournalError, ProgressLostError
from bridge.loop.tests.test_histories import kafka_with, send, values
from bridge.partition.journal import JournalOwnerCheck, owners
from bridge.testing import FakeGroup, FakeHistory, FakeInstance
from bridge.testing.timeline import nothing_happens
from bridge.testing.timer_world import TIMERS, usual_options
from bridge.watch_thread import BackgroundChecks
from kafka_timer.origin import TimerPartition

PARTITION, JOURNAL = TimerPartition(TIMERS, 0), TimerPartition("timer.journal", 0)
REFUSED = r"timer\.requests/0: the journal timer\.journal belongs to 'one timer\.requests' .*this bridge is 'two timer"


class World:
    """A timer topic of one partition and bridges of several groups."""

    def __init__(self) -> None:
        self.kafka = kafka_with()
        self.kafka.create("other.journal")

    def bridge(
        self,
        group: str,
        journal: str = "timer.journal",
        prepare_from: int = 100_000,
        meanwhile: Callable[[str], None] = nothing_happens,
    ) -> FakeInstance:
        options = replace(usual_options(), journal_topic=journal, prepare_from=prepare_from)
        return FakeInstance(
            self.kafka, FakeGroup(group, [PARTITION]), options, name=f"bridge-{group}", meanwhile=meanwhile
        )

    def send(self, value: str, delay_ms: int = 100) -> None:
        send(self.kafka, PARTITION, value, delay_ms)

    def delivered(self) -> list[str]:
        return values(self.kafka)

    def keys(self) -> list[bytes | None]:
        return [entry.key for entry in self.kafka.read("timer.journal")]

    def forget_keys(self) -> None:
        """Make the journal look as if an older bridge had written it."""
        for entry in self.kafka.partition(JOURNAL).everything():
            entry.key = None


def test_a_claim_is_written_again_if_retention_deletes_it_before_it_is_read_back() -> None:
    world = World()
    world.send("one")
    bridge = world.bridge("one")
    while not world.kafka.commits:
        bridge.turn()
    journal = world.kafka.partition(JOURNAL)
    journal.delete_before(journal.end)
    bridge.run(10_000)
    assert world.delivered() == ["one"]


@pytest.mark.parametrize("prepare_from", [0, 100_000], ids=["prepared in a process", "opened at once"])
@pytest.mark.parametrize("sent", [0, 3])
def test_a_second_group_refuses_to_start_and_no_message_is_delivered_twice(sent: int, prepare_from: int) -> None:
    world = World()
    first = world.bridge("one")
    for number in range(sent):
        world.send(f"{number}")
    first.run(200)
    second = world.bridge("two", prepare_from=prepare_from)
    with pytest.raises(ForeignJournalError, match=REFUSED):
        second.run(1000)
    second.kill()
    world.send("last")
    first.run(200)
    assert world.delivered() == [*map(str, range(sent)), "last"]
    first.stop()
    first.start()
    world.send("again")
    first.run(200)
    assert world.delivered()[-1] == "again"


def test_with_another_journal_both_groups_deliver_every_message() -> None:
    world = World()
    first, second = world.bridge("one"), world.bridge("two", "other.journal")
    world.send("m")
    first.run(200)
    second.run(200)
    assert world.delivered() == ["m", "m"]


@pytest.mark.parametrize("slow", [None, "one", "two"])
@pytest.mark.parametrize("late", [True, False])
def test_only_one_group_delivers_if_two_start_at_once_on_an_empty_journal(slow: str | None, *, late: bool) -> None:
    """The first claim decides, also if the answer to one of the groups is late."""
    world = World()
    bridges = {name: world.bridge(name) for name in ("one", "two")}
    for number in range(3):
        world.send(f"{number}", 0 if late else 100)
    refused: set[str] = set()
    for step in range(40):
        for name, bridge in bridges.items():
            if name not in refused:
                bridge.sink.slow_turns = int(name == slow and step < 20)
                try:
                    bridge.run(20)
                except ForeignJournalError:
                    refused.add(name)
                    bridge.kill()
    assert len(refused) == 1
    assert world.delivered() == ["0", "1", "2"]


def test_the_claim_of_a_refused_group_does_not_stop_the_owner() -> None:
    """Both claims are committed; the owner has decided nothing yet, or retention has deleted its claim."""
    world = World()
    one = world.bridge("one")

    def claim_before(where: str) -> None:
        if where == "sink.submit" and not world.keys():
            one.turn()

    two = world.bridge("two", meanwhile=claim_before)
    with pytest.raises(ForeignJournalError):
        two.run(100)
    two.kill()
    assert world.keys() == [b"one timer.requests", b"two timer.requests"]
    one.stop()
    one.start()
    world.send("m")
    one.run(200)
    assert world.delivered() == ["m"]
    world.kafka.partition(JOURNAL).delete_before(2)
    one.stop()
    one.start()
    one.run(200)
    with pytest.raises(ForeignJournalError):
        world.bridge("two").run(100)


@pytest.mark.parametrize("end", [FakeInstance.stop, FakeInstance.kill, FakeInstance.lose_disks])
def test_an_old_journal_is_adopted_by_the_group_that_has_progress(end: Callable[[FakeInstance], None]) -> None:
    world = World()
    first = world.bridge("one")
    world.send("pending", 5000)
    first.run(1000)
    end(first)
    world.forget_keys()
    with pytest.raises(ProgressLostError, match="if by another group: use that --group"):
        world.bridge("two").run(100)
    first.start()
    first.run(5000)
    assert world.delivered() == ["pending"]
    assert world.keys()[-1] == b"one timer.requests"


def test_the_first_group_to_claim_an_old_journal_goes_on_if_two_groups_shared_it() -> None:
    world = World()
    one, two = world.bridge("one"), world.bridge("two", "other.journal")
    one.run(100)
    two.run(100)
    for bridge in (one, two):
        bridge.stop()
    world.forget_keys()
    one.start()
    one.run(100)
    two.options = one.options
    two.start()
    with pytest.raises(ForeignJournalError):
        two.run(100)
    world.send("m")
    one.run(200)
    assert world.delivered() == ["m"]


def test_a_timer_topic_with_the_journal_of_another_one_is_refused() -> None:
    world = World()
    world.bridge("one").run(0)
    world.kafka.create("timer.payments")
    other = FakeGroup("one", [TimerPartition("timer.payments", 0)])
    with pytest.raises(ForeignJournalError, match=r"belongs to 'one timer\.requests'"):
        FakeInstance(world.kafka, other, usual_options(), name="other").run(0)


def test_a_foreign_decision_in_the_journal_is_found_while_the_bridge_runs() -> None:
    world = World()
    first = world.bridge("one")
    first.run(0)
    history = FakeHistory(world.kafka, FakeGroup("one", [PARTITION]), "timer.journal")
    watch = BackgroundChecks(JournalOwnerCheck(history, {TIMERS: "timer.journal"}, first.status.partitions).check)
    watch.close()
    watch.check()
    assert watch.error is None
    world.send("m")
    first.run(200)
    value = world.kafka.read("timer.journal")[-1].value
    watch.check()
    assert watch.error is None
    world.kafka.produce("timer.journal", value, key=b"two timer.requests", partition=0)
    watch.check()
    assert "belongs to 'two timer.requests'" in str(watch.error)


def test_a_foreign_key_that_is_no_text_is_named() -> None:
    world = World()
    world.bridge("one").run(0)
    world.send("m")
    world.bridge("one").run(200)
    value = world.kafka.read("timer.journal")[-1].value
    world.kafka.produce("timer.journal", value, key=b"\xff", partition=0)
    with pytest.raises(ForeignJournalError, match="belongs to '\ufffd'"):
        world.bridge("one").run(0)


def test_a_journal_record_of_a_newer_bridge_counts_as_a_decision() -> None:
    """Otherwise the refused claim beside it would make its group the owner."""
    world = World()
    world.bridge("one").run(0)
    claim = world.kafka.read("timer.journal")[0].value
    world.kafka.partition(JOURNAL).cut(0)
    world.kafka.produce("timer.journal", claim, key=b"two timer.requests", partition=0)
    world.kafka.produce("timer.journal", b'{"v":2}', key=b"one timer.requests", partition=0)
    history = FakeHistory(world.kafka, FakeGroup("two", [PARTITION]), "timer.journal")
    assert owners([PARTITION], history) == {PARTITION: b"one timer.requests"}

"""Histories of timers that do not leave at their due time: expired, limited, paused, moved, rolled."""

import json
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from bridge.errors import BridgeError
from bridge.loop import control_state as control
from bridge.loop.control_state import ControlState
from bridge.loop.tests.test_histories import TROUBLE, Trouble, World, ask, go_on, hang, noted, schedule
from bridge.partition import limits
from bridge.partition import partition as open_partition
from bridge.partition import partition as timer_partition
from bridge.partition import request as request_module
from bridge.partition.copies import CopiesInFlight
from bridge.partition.decide import BatchIntake
from bridge.partition.draft import FrozenDraft
from bridge.partition.options import StoreOptions, TurnOptions
from bridge.partition.partition import Partition
from bridge.partition.request import MAX_HEADERS
from bridge.ports import Record
from bridge.testing import FakeControl, FakeInstance, FakeKafka, Timeline
from bridge.testing.timer_world import TIMERS, TimerWorld
from kafka_timer.control import DEFAULT_TOPIC as CONTROL
from kafka_timer.control import Paused, Skipped, control_record
from kafka_timer.headers import Asked, Headers, Pause
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules
from timer.schedule.blocked_targets import BacklogReader
from timer.schedule.release_queue import ReleaseQueue


def until(world: World, ms: int) -> Headers:
    """Return the header of an expiry in `ms`."""
    return [("timer-expire-ms", b"%d" % (world.now_ms + ms))]


# -- expiry


@pytest.mark.parametrize("delay_ms", [500, 2500], ids=["due within the window", "rolled twice"])
@TROUBLE
def test_a_timer_that_expires_before_its_release_is_rejected_once(trouble: Trouble, delay_ms: int) -> None:
    world = World()
    world.send("too late", delay_ms, id_="a", extra=until(world, delay_ms + 1))
    world.send("in time", delay_ms, id_="b", extra=[*until(world, delay_ms + 400), ("trace", b"1")])
    world.bridge.run(delay_ms - 300)
    world.bridge.kill()
    world.kafka.timeline.advance(350)
    world.bridge.start()
    trouble(world)
    world.bridge.run(1000)
    assert world.delivered() == ["in time"]
    assert "timer-expire-ms" not in world.deliveries()[0]
    assert world.rejected() == [(b"expired", b"too late")]
    assert world.receipts("accepted") == [("rejected", 0), ("delivered", 1)]
    assert [(each["id"], each["code"]) for each in world.told() if each["kind"] == "rejected"] == [("a", "expired")]


def test_a_timer_that_expires_before_its_retry_is_rejected() -> None:
    """Its first transaction was aborted, and 400 ms passed before the retry."""
    passed: list[int] = []

    def meanwhile(where: str) -> None:
        if where == "sink.abort":
            passed.append(world.now_ms)
            world.kafka.timeline.advance(400)

    world = World(meanwhile=meanwhile)
    world.send("m", 500, extra=until(world, 700))
    world.send("other", 500)
    world.bridge.run(400)
    world.bridge.sink.faults = 1
    world.bridge.run(1000)
    assert passed
    assert (world.delivered(), world.rejected()) == (["other"], [(b"expired", b"m")])
    assert int(world.deliveries()[0]["timer-released-ms"]) >= passed[0] + 400


def test_a_timer_that_expires_while_earlier_transactions_commit_is_rejected() -> None:
    waits: list[int] = []

    def meanwhile(where: str) -> None:
        if where == "sink.commit" and waits:
            world.kafka.timeline.advance(waits.pop())

    world = World(meanwhile=meanwhile)
    world.bridge.run(100)
    world.bridge.sink.slow_turns = 1
    for value in ("a", "b"):
        world.send(value, 0)
        world.bridge.turn()
    waits.append(30_000)
    world.send("m", 0, extra=until(world, 10_000))
    world.bridge.turn()
    world.bridge.stop()
    assert (world.delivered(), world.rejected()) == (["a", "b"], [(b"expired", b"m")])


# -- limits


def limited(limit: float, window_ms: int = 20_000, **changes: Any) -> TimerWorld:
    """Return a world in which the target `limited` has the limit, and `other` has none."""
    own = frozenset({TIMERS, "timer.journal", "timer.rejected", "timer.receipts"})
    rules = Rules(max_delay_ms=10**9, roll_window_ms=window_ms, own_topics=own)
    store = StoreOptions(tick_ms=10, slots=window_ms // 4, segment_bytes=100_000, checkpoint_interval_ms=500)
    options = TurnOptions(rules=rules, store=store, targets={"limited": limit}, commit_interval_ms=10)
    return TimerWorld("limited", "other", options=replace(options, **changes))


def send(world: TimerWorld, topic: str, value: str, delay_ms: int, *headers: tuple[str, bytes]) -> None:
    world.producer.produce(TIMERS, value.encode(), headers=schedule(delay_ms, topic, None, *headers))


def values(world: TimerWorld, topic: str) -> list[str]:
    return [(entry.value or b"").decode() for entry in world.read(topic)]


def move_all(world: TimerWorld, count: int, delay_ms: int) -> None:
    """Move the timers with the ids 0 to `count` - 1."""
    for number in range(count):
        id_, delay = ("timer-id", b"%d" % number), ("timer-delay-ms", b"%d" % delay_ms)
        world.producer.produce(TIMERS, headers=[("timer-action", b"move"), id_, delay])


def by_turn(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[list[Any]]:
    """Note the argument of each call of the method `name` of `owner`, by turn."""
    found: list[list[Any]] = [[]]
    taking, right = ReleaseQueue.take_due, getattr(owner, name)

    def taken(self: ReleaseQueue, *given: Any) -> Any:
        found.append([])
        return taking(self, *given)

    def called(self: Any, given: Any) -> Any:
        found[-1].append(given)
        return right(self, given)

    monkeypatch.setattr(ReleaseQueue, "take_due", taken)
    monkeypatch.setattr(owner, name, called)
    return found


def told(world: TimerWorld, topic: str, header: str) -> list[int]:
    return [int(dict(entry.headers)[header] or b"") for entry in world.read(topic)]


@pytest.mark.thorough
@TROUBLE
def test_case_35_a_limited_target_keeps_its_rate_and_delays_no_other(trouble: Trouble) -> None:
    """3,000 overdue timers at 30/s take 100 s, longer than the window of 20 s, so most of them are rolled."""
    world = limited(30)
    for number in range(3000):
        send(world, "limited", str(number), number % 1000)
    for number in range(300):
        send(world, "other", str(number), 2000 + 100 * number)
    world.pass_time(ms=10)
    world.bridge.kill()
    world.kafka.timeline.advance(1500)
    world.bridge.start()
    world.pass_time(ms=5_000)
    trouble(world)
    world.pass_time(ms=15_000)
    assert 570 < len(values(world, "limited")) < 750
    trouble(world)
    world.pass_time(ms=20_000)
    late = zip(told(world, "other", "timer-released-ms"), told(world, "other", "timer-deliver-ms"), strict=True)
    assert max(released - due for released, due in late) <= 20
    assert sorted(values(world, "other"), key=int) == [str(number) for number in range(300)]
    world.pass_time(ms=70_000)
    assert sorted(values(world, "limited"), key=int) == [str(number) for number in range(3000)]
    released_ms = told(world, "limited", "timer-released-ms")
    assert max(bisect_left(released_ms, at_ms + 1000) - at for at, at_ms in enumerate(released_ms)) <= 60, "in a second"
    assert max(told(world, "limited", "timer-rolls")) > 0


def test_no_number_of_crashes_exceeds_the_rate() -> None:
    world = limited(100)
    for number in range(1000):
        send(world, "limited", str(number), 0)
    for _ in range(5):
        world.pass_time(ms=150)
        world.restart()
    assert 20 < len(values(world, "limited")) <= 75


@pytest.mark.timeout(60)
def test_a_backlog_is_read_on_although_a_loaded_tick_holds_timers_of_a_paused_target() -> None:
    world = limited(2)
    ask(world, b"pause", b"other")
    for number in range(6):
        send(world, "other", "waits", 100)
        send(world, "limited", str(number), 100)
    send(world, "limited", "6", 2_000)
    world.pass_time(ms=10_000)
    assert values(world, "limited") == [str(number) for number in range(7)]
    assert values(world, "other") == []


def test_a_timer_added_to_the_last_millisecond_of_a_loaded_tick_leaves() -> None:
    world = limited(1)
    for number in range(3):
        send(world, "limited", str(number), 0)
    for number in range(3, 33):
        send(world, "limited", str(number), 9 - world.now_ms % 10)
        world.pass_time(ms=1)
    world.pass_time(ms=40_000)
    assert sorted(values(world, "limited"), key=int) == [str(number) for number in range(33)]


@pytest.mark.parametrize("is_late", [False, True])
def test_expired_timers_use_none_of_the_rate(is_late: bool) -> None:  # noqa: FBT001
    """Otherwise valid timers would expire while expired ones use the rate."""
    world = limited(10)
    start_ms = world.now_ms
    expire = ("timer-expire-ms", b"%d" % (start_ms + 1_100))
    if not is_late:
        for number in range(200):
            send(world, "limited", f"dead {number}", 1_000, expire)
        world.bridge.run(500)
        world.bridge.kill()
        world.kafka.timeline.advance(5_000)
        world.bridge.start()
    else:
        world.bridge.run(2_000)
        for number in range(200):
            headers = [("timer-topic", b"limited"), ("timer-deliver-ms", b"%d" % start_ms), expire]
            world.kafka.produce(TIMERS, b"dead %d" % number, headers=headers)
    for number in range(10):
        send(world, "limited", str(number), 0)
    world.bridge.run(3_000)
    assert sorted(values(world, "limited")) == [str(number) for number in range(10)]
    assert len(world.kafka.read("timer.rejected")) == 200


def test_overdue_requests_that_a_full_disk_refuses_use_none_of_the_rate() -> None:
    world = limited(5)
    (disk,) = world.bridge.disks.values()
    for number in range(20):
        send(world, "other", str(number), 100 * number)
    world.pass_time(ms=50)
    disk.fail_append(0)
    for number in range(5):
        send(world, "limited", str(number), 0)
    send(world, "other", "later", 5_000)
    world.pass_time(ms=1_000)
    assert values(world, "limited") == []
    disk.mend()
    world.pass_time(ms=20)
    assert values(world, "limited") == [str(number) for number in range(5)]


def test_a_rate_holds_for_more_targets_than_the_limit_of_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket dropped while in use would start again with a full second of the rate."""
    monkeypatch.setattr(limits, "MOST_BUCKETS", 3)
    world = limited(1, targets={"*": 1})
    for number in range(10):
        world.kafka.create(f"t{number}")
        for _ in range(5):
            send(world, f"t{number}", "m", 10)
    world.pass_time(ms=3_500)
    assert [len(values(world, f"t{number}")) for number in range(10)] == [3] * 10


def test_a_rate_that_is_full_again_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_BUCKETS", 3)
    kept = limits.TargetRateLimits({"*": 1})
    for number in range(10):
        kept.spend(str(number), 1, 10_000 * number)
    assert list(kept._buckets) == ["7", "8", "9"]


def test_without_its_limit_a_target_gets_its_backlog_at_once() -> None:
    world = limited(1)
    for number in range(100):
        send(world, "limited", str(number), number)
    world.pass_time(ms=1000)
    assert len(values(world, "limited")) < 4
    world.bridge.options = replace(world.bridge.options, targets={})
    world.restart()
    world.pass_time(ms=10)
    assert values(world, "limited") == [str(number) for number in range(100)]


@pytest.mark.thorough
def test_a_backlog_of_any_size_takes_bounded_memory_and_journal() -> None:
    """All timers are in one tick, which is read in parts."""
    world = limited(1000, window_ms=200_000)
    at_ms = b"%d" % (world.now_ms + 500)
    for number in range(20_000):
        headers = [("timer-topic", b"limited"), ("timer-deliver-ms", at_ms)]
        world.producer.produce(TIMERS, b"%d" % number, headers=headers)
    world.pass_time(ms=5_000)
    (owned,) = world.bridge.bridge.partitions.values()
    waiting = owned.store.release_queue.blocked.named("limited")
    assert waiting is not None
    assert owned.store.pending > 10_000
    assert len(owned.store.release_queue.out_of_order) == 0
    assert len(waiting.rows) <= 4096
    assert max(len(entry.value or b"") for entry in world.read("timer.journal")) < 1000
    world.pass_time(ms=20_000)
    assert values(world, "limited") == [str(number) for number in range(20_000)]


@pytest.mark.thorough
@TROUBLE
@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "limited"])
def test_intake_goes_on_with_any_number_of_timers_out_of_order(
    monkeypatch: pytest.MonkeyPatch, trouble: Trouble, *, is_paused: bool
) -> None:
    """Intake lags, so K has passed the keys of what it reads. A cancel and a timer of another target come after it."""
    monkeypatch.setattr(open_partition, "_MOST_HELD", 10)
    world = limited(10**6 if is_paused else 2, max_requests_per_s=20, window_ms=200_000)
    for number in range(200):
        send(world, "other", str(number), 100 * number)
    world.pass_time(ms=1)
    for number in range(60):
        send(world, "limited", str(number), 0, ("timer-id", b"%d" % number))
    world.producer.produce(TIMERS, headers=[("timer-action", b"cancel"), ("timer-id", b"59")])
    send(world, "other", "innocent", 0)
    world.pass_time(ms=5_000)
    if is_paused:
        ask(world, b"pause", b"limited")
    world.pass_time(ms=6_000)
    trouble(world)
    world.pass_time(ms=9_000)
    assert "innocent" in values(world, "other")
    if is_paused:
        assert values(world, "limited") == []
        ask(world, b"resume", b"limited")
    world.pass_time(ms=40_000)
    assert sorted(values(world, "limited"), key=int) == [str(number) for number in range(59)]
    assert 0 < max(told(world, "limited", "timer-rolls")) < 8  # copies wait for the rate, as requests do
    (owned,) = world.bridge.bridge.partitions.values()
    assert (len(owned.store.release_queue.out_of_order), owned.store.pending) == (0, 0)


def test_timers_out_of_order_are_rolled_within_the_bytes_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_partition, "_MOST_HELD", 10)
    world = limited(10**6, max_requests_per_s=20, max_due_bytes=5000, window_ms=200_000)
    for number in range(200):
        send(world, "other", str(number), 100 * number)
    world.pass_time(ms=1)
    for number in range(60):
        send(world, "limited", f"{number:01000d}", 0)
    world.pass_time(ms=5_000)
    ask(world, b"pause", b"limited")
    end_ms = world.now_ms + 12_000
    copies, most = 0, 0
    (owned,) = world.bridge.bridge.partitions.values()
    held_ms = []
    while world.now_ms < end_ms:
        world.bridge.bridge.turn()
        backlogs = owned.store.release_queue.backlogs(world.now_ms) if owned.store.release_queue.out_of_order else []
        held_ms += [each.since_ms for each in backlogs if each.is_paused]
        before, copies = copies, sum("timer-rolls" in dict(entry.headers) for entry in world.read(TIMERS))
        most = max(most, copies - before)
    assert copies > 40
    assert 2 <= most < 5
    assert any(since_ms is not None for since_ms in held_ms), "they are reported as a backlog"
    ask(world, b"resume", b"limited")
    world.pass_time(ms=40_000)
    assert len(values(world, "limited")) == 60


# -- pause


def test_a_paused_timer_too_large_for_a_copy_is_rejected_after_its_longest_wait() -> None:
    world = limited(10**6, window_ms=2_000, targets={}, max_message_bytes=2_000)
    ask(world, b"pause", b"limited")
    send(world, "limited", "x" * 1_800, 100)
    send(world, "limited", "small", 100)
    world.pass_time(ms=10_000)
    assert values(world, "limited") == []
    (rejected,) = world.read("timer.rejected")
    assert (rejected.value, dict(rejected.headers)["timer-error"]) == (b"x" * 1_800, b"too-large")
    ask(world, b"resume", b"limited")
    world.pass_time(ms=100)
    assert values(world, "limited") == ["small"]


@TROUBLE
def test_case_35_a_paused_target_waits_and_delays_no_other(trouble: Trouble) -> None:
    """The pause lasts longer than a window, so the waiting timers are rolled."""
    world = limited(10**6, window_ms=2_000, targets={})
    ask(world, b"pause", b"limited")
    for number in range(40):
        send(world, "limited", str(number), 100 + 25 * number, ("timer-id", b"%d" % number))
        send(world, "other", str(number), 100 + 25 * number)
    send(world, "limited", "expires", 100, ("timer-expire-ms", b"%d" % (world.now_ms + 2000)))
    world.pass_time(ms=500)
    trouble(world)
    world.pass_time(ms=1000)
    assert len(values(world, "other")) == 40
    world.producer.produce(TIMERS, headers=[("timer-action", b"cancel"), ("timer-id", b"7")])
    world.pass_time(ms=3_000)
    trouble(world)
    world.pass_time(ms=1_000)
    assert values(world, "limited") == []
    ask(world, b"resume", b"limited")
    world.pass_time(ms=100)
    assert sorted(values(world, "limited"), key=int) == [str(number) for number in range(40) if number != 7]
    assert min(told(world, "limited", "timer-rolls")) > 0
    assert [entry.value for entry in world.read("timer.rejected")] == [b"expires"]
    send(world, "limited", "later", 50)
    world.pass_time(ms=50)
    assert values(world, "limited")[-1] == "later"


@TROUBLE
def test_a_pause_outlasts_an_idle_target_and_old_journal_records(trouble: Trouble) -> None:
    world = limited(10**6, window_ms=2_000, targets={})
    ask(world, b"pause", b"limited")
    for _ in range(20):
        world.pass_time(ms=1_000)
        journal = world.kafka.topics["timer.journal"].partitions[0]
        old = [entry.offset for entry in journal.everything() if entry.append_ms < world.now_ms - 6_000]
        journal.delete_before(old[-1] + 1 if old else 0)
    world.bridge.kill()
    send(world, "limited", "m", 0)
    trouble(world)
    world.bridge.start()
    world.pass_time(ms=500)
    assert values(world, "limited") == []
    ask(world, b"resume", b"limited")
    world.pass_time(ms=10)
    assert values(world, "limited") == ["m"]


def test_the_journal_repeats_a_pause_in_each_half_window_without_other_changes() -> None:
    """Retention deletes old journal records, and a rebuild reads the last one."""
    world = limited(1, window_ms=20_000)
    ask(world, b"pause", b"limited")
    world.pass_time(ms=100_000)
    told_ms = [entry.append_ms for entry in world.read("timer.journal") if b"limited" in (entry.value or b"")]
    assert max(later - earlier for earlier, later in pairwise([*told_ms, world.now_ms])) <= 10_500
    assert len(told_ms) <= 25, "and not in each turn"


@pytest.mark.parametrize("delay_ms", [100, 30_000], ids=["something waits", "nothing is due yet"])
def test_a_turn_looks_at_a_few_of_the_paused_targets(delay_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, names = limited(10**6, window_ms=200_000, targets={}), [f"t{number}" for number in range(130)]
    for name in names:
        world.kafka.create(name)
        ask(world, b"pause", name.encode())
        send(world, name, "m", delay_ms)
    world.pass_time(ms=1000)
    looked = by_turn(monkeypatch, BacklogReader, "load_ahead")
    for number in range(20):
        send(world, "other", str(number), 10)
        world.pass_time(ms=20)
    assert max(len({waiting.target for waiting in turn}) for turn in looked) <= 64
    assert len(values(world, "other")) == 20
    for name in names:
        ask(world, b"resume", name.encode())
    world.pass_time(ms=delay_ms)
    assert [values(world, name) for name in names] == [["m"]] * len(names)


@pytest.mark.parametrize("action", [b"pause", b"resume"])
def test_a_sender_cannot_pause_or_resume(action: bytes) -> None:
    """No policy allows it: only operators pause targets, on the control topic."""
    world = limited(10**6, targets={})
    if action == b"resume":
        ask(world, b"pause", b"limited")
    world.producer.produce(TIMERS, headers=[("timer-action", action), ("timer-topic", b"limited")])
    send(world, "limited", "m", 10)
    world.pass_time(ms=100)
    (refused,) = world.read("timer.rejected")
    assert dict(refused.headers)["timer-error"] == b"denied-action"
    assert b"timer-bridge pause" in (dict(refused.headers)["timer-error-detail"] or b"")
    assert values(world, "limited") == ([] if action == b"resume" else ["m"])


@TROUBLE
def test_a_senders_pause_from_before_the_upgrade_lasts_until_an_operator_resumes(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an older version the pause was a request below C, without a timer, and a journal entry."""

    def decide_as_before(self: Any, record: Any, ask: Any) -> None:
        if isinstance(ask, Pause):
            (owned,) = world.bridge.bridge.partitions.values()
            owned.store.release_queue.pause("limited", is_paused=True)
        else:
            decide(self, record, ask)

    world = limited(10**6, targets={})
    decide = BatchIntake.decide_one
    with monkeypatch.context() as patched:
        patched.setattr(BatchIntake, "decide_one", decide_as_before)
        send(world, "limited", "m", 200)
        world.producer.produce(TIMERS, headers=[("timer-action", b"pause"), ("timer-topic", b"limited")])
        world.pass_time(ms=100)
    trouble(world)
    world.pass_time(ms=1000)
    world.restart(lose_disk=True)
    world.pass_time(ms=1000)
    assert (values(world, "limited"), world.read("timer.rejected")) == ([], [])
    ask(world, b"resume", b"limited")
    world.pass_time(ms=100)
    assert values(world, "limited") == ["m"]


# -- the control topic


def test_the_newest_control_record_applies_to_its_timer_topic_and_malformed_ones_are_ignored(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MOST_KEYS", 2)
    world = limited(10**6, targets={})
    key, value = control_record(Paused(TIMERS, "limited"), on=True)
    bad: list[tuple[bytes | None, bytes | None]] = [
        *((None, value), (b"", value), (b"pause", value), (b"stop/timer.requests/other", value)),
        *((b"pause/timer.requests/a b", value), (b"skip/timer.requests/0/-1", value)),
        (b"pause/timer.requests/other/0", value),
        *((b"pause/timer.requests/other", each) for each in (b"{}", b'{"v":2,"on":true}', b'{"v":1,"on":"yes"}')),
        *((b"pause/timer.elsewhere/other", value), (b"skip/timer.requests/0/99999999999999999999", value)),
    ]
    for each in (*bad, (key, value), control_record(Paused(TIMERS, "more"), on=True)):
        world.kafka.produce(CONTROL, each[1], key=each[0])
    ask(world, b"pause", b"other")
    for target in ("limited", "other"):
        send(world, target, "m", 10)
    world.pass_time(ms=100)
    assert (values(world, "limited"), values(world, "other")) == ([], ["m"])
    told = [message for message in caplog.messages if message.startswith("control topic, offset ")]
    assert [int(message.split()[3].strip(":")) for message in told] == [*range(len(bad)), len(bad) + 2]
    assert told[-1].endswith("ignored: 2 keys are the limit; delete some (write a null value)")
    world.kafka.produce(CONTROL, None, key=key)
    world.pass_time(ms=100)
    world.restart(lose_disk=True)
    world.pass_time(ms=100)
    assert values(world, "limited") == [], "a deleted key changes nothing"
    ask(world, b"resume", b"limited")
    world.pass_time(ms=100)
    assert values(world, "limited") == ["m"]


def test_an_instance_reads_the_control_topic_before_it_opens_a_partition() -> None:
    """The new owner has not read the newest control record, by which the former owner paused a target."""
    world = limited(10**6, targets={})
    send(world, "limited", "m", 1000)
    ask(world, b"pause", b"limited")
    ask(world, b"resume", b"limited")
    world.pass_time(ms=100)
    second = FakeInstance(world.kafka, world.group, world.options, name="second")
    second.run(1)
    second.control.poll = list  # type: ignore[method-assign]
    ask(world, b"pause", b"limited")
    world.pass_time(ms=100)
    world.bridge.stop()
    second.run(2000)
    assert second.bridge.ready
    assert values(world, "limited") == []


def test_a_skip_applies_to_its_partition_and_offset_alone() -> None:
    kafka = FakeKafka(Timeline())
    desired = ControlState(FakeControl(kafka), {TIMERS})
    place = TimerPartition(TIMERS, 3)
    assert not desired.is_skipped(place, 4711)
    for on in (True, False, True):
        key, value = control_record(Skipped(place, 4711), on=on)
        kafka.produce(CONTROL, value, key=key)
        assert desired.poll()
        assert desired.is_skipped(place, 4711) == on
    assert not any(
        desired.is_skipped(*each)
        for each in ((place, 4710), (TimerPartition(TIMERS, 2), 4711), (TimerPartition("t", 3), 4711))
    )
    assert (desired.poll(), desired.pauses(TIMERS)) == (False, {})


def test_a_partition_waits_alone_while_the_control_topic_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    world = limited(10**6, targets={})
    world.pass_time(ms=100)
    for topic in (TIMERS, "timer.journal"):
        world.kafka.grow(topic, 2)
    world.bridge.control.is_silent = True
    ask(world, b"pause", b"limited")
    world.group.add([TimerPartition(TIMERS, 1)])
    for partition in (0, 1):
        world.kafka.produce(TIMERS, b"%d" % partition, headers=schedule(10, "other"), partition=partition)
    world.kafka.produce(TIMERS, b"m", headers=schedule(10, "limited"), partition=1)
    world.pass_time(ms=20_000)
    assert values(world, "other") == ["0"]
    assert sum(each.startswith("control topic: not read") for each in caplog.messages) in (4, 5)
    world.bridge.control.is_silent = False
    world.pass_time(ms=6_000)
    assert values(world, "other") == ["0", "1"]
    assert values(world, "limited") == []


def test_paused_targets_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each journal record names all paused targets, and its size is limited."""
    monkeypatch.setattr(timer_partition, "MOST_PAUSED", 3)
    world = limited(10**6, targets={})
    for name in (b"a", b"b"):
        ask(world, b"pause", name)
    world.pass_time(ms=100)
    for name in (b"c", b"limited", b"a"):
        ask(world, b"pause", name)
    send(world, "limited", "m", 10)
    world.pass_time(ms=100)
    assert f"{TIMERS}/0: limited is not paused: " in caplog.text
    assert values(world, "limited") == ["m"]
    ask(world, b"resume", b"b")
    send(world, "limited", "n", 10)
    world.pass_time(ms=100)
    assert values(world, "limited") == ["m"]


def test_limited_targets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders choose target names, and the journal must have room for the backlog of each."""
    monkeypatch.setattr("bridge.partition.decide.MOST_LIMITED", 3)
    world = limited(1, targets={"t*": 1})
    for name in ("t1", "t2", "t3", "t4"):
        world.kafka.create(name)

    def ask(name: str, delay_ms: int = 500) -> None:
        send(world, name, name, delay_ms, ("timer-id", name.encode()))

    for name in ("t1", "t2", "t1", "t3", "t4", "other"):
        ask(name)
    world.pass_time(ms=100)
    ask("t4")
    ask("t3")
    world.pass_time(ms=1000)
    rejected = [(entry.value, dict(entry.headers)["timer-error"]) for entry in world.read("timer.rejected")]
    assert rejected == [(b"t4", b"quota-exceeded")] * 2
    assert [values(world, name) for name in ("t1", "t2", "t3", "other")] == [["t1"], ["t2"], ["t3"], ["other"]]
    world.restart()
    ask("t4")
    world.pass_time(ms=1000)
    assert values(world, "t4") == ["t4"]


def test_a_bridge_reads_the_journal_of_another_version_or_ends_with_the_remedy() -> None:
    """Instances of an older version can read it as long as no target is paused or limited."""
    world = limited(10**6, targets={})
    send(world, "other", "m", 10)
    world.pass_time(ms=100)
    assert not any(b"waits" in (entry.value or b"") for entry in world.read("timer.journal"))
    ask(world, b"pause", b"limited")
    world.pass_time(ms=100)
    newest = world.read("timer.journal")[-1].value or b""
    assert b"waits" in newest
    world.bridge.kill()
    world.kafka.produce("timer.journal", json.dumps({**json.loads(newest), "news": 1}).encode())
    world.restart(lose_disk=True)
    with pytest.raises(BridgeError, match="written by a newer bridge, or by none: upgrade this one"):
        world.pass_time(ms=100)


# -- move


BY_ID_OR_ORIGIN = pytest.mark.parametrize("is_by_id", [True, False], ids=["by id", "by origin"])


def named(id_: str, offset: int, *, is_by_id: bool) -> tuple[str, bytes]:
    return ("timer-id", id_.encode()) if is_by_id else ("timer-of", b"timer.requests/0/%d" % offset)


@pytest.mark.parametrize("late_ms", [-1000, 0, 50, 250, 400, 2500])
@BY_ID_OR_ORIGIN
@TROUBLE
def test_a_moved_timer_leaves_once_at_its_new_time(trouble: Trouble, is_by_id: bool, late_ms: int) -> None:  # noqa: FBT001
    """The new time is earlier, later or past, also before the old time."""
    world = World()
    world.send("m", 300, id_="a" if is_by_id else None, extra=[("trace", b"1")])
    world.send("stays", 300)
    world.bridge.run(100)
    due_ms = max(0, world.now_ms + late_ms)
    world.act("move", named("a", 0, is_by_id=is_by_id), ("timer-deliver-ms", b"%d" % due_ms))
    world.bridge.run(20)
    trouble(world)
    world.bridge.run(3500)
    assert sorted(world.delivered()) == ["m", "stays"]
    (headers,) = [headers for headers in world.deliveries() if "trace" in headers]
    assert headers["timer-origin"] == "timer.requests/0/0"
    assert int(headers["timer-deliver-ms"]) == due_ms
    assert int(headers["timer-released-ms"]) >= due_ms
    assert world.receipts("accepted", "delivered") == [("moved", 2)]


@BY_ID_OR_ORIGIN
@TROUBLE
def test_a_timer_moved_several_times_can_still_be_cancelled(trouble: Trouble, is_by_id: bool) -> None:  # noqa: FBT001
    """All moves are in one poll: the second and the third find a copy in flight."""
    world = World()
    world.send("m", 300, id_="a" if is_by_id else None)
    world.send("n", 300, id_="b" if is_by_id else None)
    world.bridge.run(100)
    a, b = named("a", 0, is_by_id=is_by_id), named("b", 1, is_by_id=is_by_id)
    for timer, delay_ms in ((a, 400), (a, 0), (a, 700), (b, 500)):
        world.act("move", timer, ("timer-delay-ms", b"%d" % delay_ms))
    world.act("cancel", b)
    world.bridge.run(50)
    trouble(world)
    world.bridge.run(500)
    assert world.delivered() == []
    world.bridge.run(500)
    assert world.delivered() == ["m"]
    if trouble is go_on:
        copies = sum("timer-rolls" in dict(entry.headers) for entry in world.read(TIMERS))
        value = world.bridge.metrics.registry.get_sample_value
        assert value("timer_bridge_rolled_total") == value("timer_bridge_landed_total") == copies
        assert value("timer_bridge_requests_total", {"topic": TIMERS}) == 7
    world.act("move", a, ("timer-delay-ms", b"1"))
    world.bridge.run(1000)
    assert world.delivered() == ["m"]
    kinds = [kind for kind, _ in world.receipts("accepted", "delivered")]
    assert kinds[:-1] == ["moved"] * 4 + ["cancelled"]
    assert kinds[-1] in ("too-late", "not-found")


# -- pause of a timer


def outcomes(world: World) -> list[tuple[str, int | None]]:
    """Return kind and due time of the receipts that are not routine."""
    routine = ("accepted", "delivered")
    return [(each["kind"], each.get("due_ms")) for each in world.told() if each["kind"] not in routine]


@pytest.mark.parametrize("action", ["cancel", "pause", "resume"])
def test_a_request_read_with_the_copy_of_a_moved_timer_tells_the_new_time(action: str) -> None:
    """In one poll: the move, the copy of a roll from before it, the request."""
    world = World()
    world.send("m", 3000, id_="a")
    world.bridge.run(100)
    hung = hang(world)
    due_ms = world.now_ms + 2000
    world.move_to("a", due_ms)
    world.bridge.run(1000)
    world.act(action, "a")
    world.kafka.abort(hung)
    world.bridge.run(50)
    kinds = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}
    assert outcomes(world) == [("moved", due_ms), (kinds[action], due_ms)]


@pytest.mark.parametrize("then", ["cancel", "release", "replace"])
@TROUBLE
def test_a_paused_timer_is_cancelled_moved_or_replaced(trouble: Trouble, then: str) -> None:
    """A move or a replacement ends its pause. Receipts tell the due time that it had."""
    world = World()
    due_ms = world.send("m", 300, id_="a").append_ms + 300
    world.bridge.run(100)
    world.act("pause", "a")
    if then != "cancel":
        world.bridge.run(20)
        trouble(world)
        world.bridge.run(1000)
    sent_ms = world.now_ms
    match then:
        case "cancel":  # in the same poll, so that it finds a copy in flight
            world.cancel("a")
        case "replace":
            world.send("other", 100, id_="a")
        case _:
            world.move("a", 0)
    world.bridge.run(20)
    trouble(world)
    world.bridge.run(2000)
    assert world.delivered() == {"cancel": [], "release": ["m"], "replace": ["other"]}[then]
    told = {"cancel": ("cancelled", due_ms), "release": ("moved", sent_ms), "replace": ("replaced", None)}
    assert outcomes(world) == [("paused", due_ms), told[then]]


def test_what_is_not_pending_is_not_paused() -> None:
    world = World()
    for action in ("pause", "resume"):
        world.act(action, "a")
        world.act(action, ("timer-of", b"timer.requests/0/9"))
    world.send("m", 100, id_="a")
    world.bridge.run(100)
    world.act("pause", "a")
    world.bridge.run(1000)
    assert outcomes(world) == [("not-found", None)] * 4 + [("too-late", None)]
    assert world.delivered() == ["m"]


@pytest.mark.parametrize("is_resumed", [True, False])
@TROUBLE
def test_a_timer_that_expires_while_paused_is_rejected_when_resumed(trouble: Trouble, *, is_resumed: bool) -> None:
    world = World()
    world.send("m", 300, id_="a", extra=until(world, 600))
    world.bridge.run(100)
    world.act("pause", "a")
    world.bridge.run(100 if is_resumed else 2000)
    trouble(world)
    world.act("resume", "a")
    world.bridge.run(2000)
    assert world.delivered() == (["m"] if is_resumed else [])
    assert world.rejected() == ([] if is_resumed else [(b"expired", b"m")])


@TROUBLE
def test_a_due_timer_of_a_paused_target_is_paused(trouble: Trouble) -> None:
    """After its target goes on, it still waits."""
    world = World()
    world.send("m", 100, id_="a")
    world.send("n", 100)
    ask(world, b"pause", b"orders")
    world.bridge.run(500)
    world.act("pause", "a")
    world.bridge.run(20)
    trouble(world)
    ask(world, b"resume", b"orders")
    world.bridge.run(2000)
    assert world.delivered() == ["n"]
    world.act("resume", "a")
    world.bridge.run(20)
    assert world.delivered() == ["n", "m"]


@pytest.mark.parametrize("delay_ms", [600, 2500], ids=["near", "far"])
@pytest.mark.parametrize("waits_ms", [200, 4000], ids=["resumed before it is due", "resumed later"])
@BY_ID_OR_ORIGIN
@TROUBLE
def test_a_paused_timer_leaves_once_when_it_is_resumed(
    trouble: Trouble, waits_ms: int, delay_ms: int, *, is_by_id: bool
) -> None:
    """It rolls meanwhile. A second pause or resume changes nothing."""
    world = World()
    due_ms = world.send("m", delay_ms, id_="a" if is_by_id else None).append_ms + delay_ms
    name = named("a", 0, is_by_id=is_by_id)
    world.bridge.run(100)
    world.act("pause", name)
    world.bridge.run(20)
    trouble(world)
    world.act("pause", name)
    world.bridge.run(waits_ms)
    trouble(world)
    assert world.delivered() == []
    world.act("resume", name)
    world.act("resume", name)
    world.bridge.run(20)
    trouble(world)
    resumed_ms = world.now_ms
    world.bridge.run(3000)
    assert world.delivered() == ["m"]
    (told,) = world.deliveries()
    assert int(told["timer-deliver-ms"]) == due_ms
    assert due_ms <= int(told["timer-released-ms"]) <= max(due_ms, resumed_ms)
    assert outcomes(world) == [("paused", due_ms)] * 2 + [("resumed", due_ms)] * 2
    copies = sum("timer-rolls" in dict(entry.headers) for entry in world.read(TIMERS))
    assert int(told["timer-rolls"]) == copies
    assert copies == 2 or waits_ms + delay_ms > 1000


# -- size of a transaction


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, set[str]]]:
    """Return, for each transaction, the number of deliveries and copies, the bytes of their values, and its targets."""
    found: list[tuple[int, int, set[str]]] = []
    freeze = Partition.freeze

    def sealed(self: Partition, now_ms: int, at_ms: int, *, is_all: bool, is_caught_up: bool) -> FrozenDraft:
        part = freeze(self, now_ms, at_ms, is_all=is_all, is_caught_up=is_caught_up)
        bodies, copies = part.draft.bodies, part.draft.copies
        out = [body.value or b"" for body in bodies] + [copy.value or b"" for copy in copies]
        found.append((len(out), sum(map(len, out)), {body.target for body in bodies}))
        return part

    monkeypatch.setattr(Partition, "freeze", sealed)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("most", "most_bytes"), [(4, 4000), (1, 4000), (100, 4000)])
@pytest.mark.parametrize("kind", ["resumed", "rolled", "held", "held and rolled"])
def test_a_transaction_is_bounded_with_any_number_of_waiting_targets(
    transactions: list[tuple[int, int, set[str]]], kind: str, most: int, most_bytes: int
) -> None:
    """The last record may exceed the bytes."""
    world = limited(10**6, max_due_records=most, max_due_bytes=most_bytes)
    topics = [f"t{number}" for number in range(20)]
    for topic in topics:
        world.kafka.create(topic)
        ask(world, b"pause", topic.encode())
    if kind.startswith("held"):
        send(world, "other", "moves K", 200)
        world.pass_time(ms=1000)
    for topic in topics:
        for number in range(6):
            headers = [("timer-topic", topic.encode()), ("timer-deliver-ms", b"%d" % (world.now_ms - 900))]
            world.producer.produce(TIMERS, b"%d" % number + b"x" * 899, headers=headers)
    send(world, "other", "in between", 1000)
    world.pass_time(ms=17_000 if kind.endswith("rolled") else 1000)
    for topic in topics:
        ask(world, b"resume", topic.encode())
    world.pass_time(ms=10)
    timers, size_bytes, _ = zip(*transactions, strict=True)
    assert max(timers) <= most
    assert max(size_bytes) < most_bytes + 900
    assert [len(values(world, topic)) for topic in topics] == [6] * len(topics)
    assert (max(told(world, "t0", "timer-rolls")) > 0) == kind.endswith("rolled")


@pytest.mark.parametrize("most", [4, 1])
def test_targets_take_turns_in_small_transactions(transactions: list[tuple[int, int, set[str]]], most: int) -> None:
    """The timers that leave in order count as one target."""
    world = limited(1, targets={}, max_due_records=most)
    world.kafka.create("third")
    for topic in (b"limited", b"other"):
        ask(world, b"pause", topic)
    for number in range(100):
        send(world, "limited", str(number), number)
        send(world, "other", str(number), number)
        send(world, "third", str(number), 1000)
    world.pass_time(ms=990)
    ask(world, b"resume", b"limited")
    ask(world, b"resume", b"other")
    del transactions[:]
    world.bridge.kill()
    world.kafka.timeline.advance(100)
    world.bridge.start()
    world.pass_time(ms=100)
    assert [len(values(world, topic)) for topic in ("limited", "other", "third")] == [100] * 3
    served = [targets for _, _, targets in transactions if targets]
    for start in range(30):
        assert set.union(*served[start : start + 8]) == {"limited", "other", "third"}


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"max_requests_per_s": 2000}, {"max_pending": 1000}], ids=str)
@TROUBLE
def test_moves_are_bounded_in_a_transaction_and_hold_up_no_due_timer(
    transactions: list[tuple[int, int, set[str]]], trouble: Trouble, options: dict[str, Any]
) -> None:
    """A cancel after them, sent during downtime, still takes effect before its timer leaves."""
    world = limited(10**6, window_ms=200_000, max_due_bytes=20_000, **options)
    for number in range(200):
        send(world, "limited", "x" * 1000, 100_000, ("timer-id", b"%d" % number))
    send(world, "other", "cancelled", 500, ("timer-id", b"c"))
    send(world, "other", "m", 500)
    world.pass_time(ms=400)
    trouble(world)
    world.bridge.kill()
    world.kafka.timeline.advance(1000)
    del transactions[:]
    move_all(world, 200, 1000)
    world.producer.produce(TIMERS, headers=[("timer-action", b"cancel"), ("timer-id", b"c")])
    world.bridge.start()
    world.pass_time(ms=1000)
    trouble(world)
    world.pass_time(ms=2000)
    assert values(world, "other") == ["m"]
    assert len(values(world, "limited")) == 200
    assert max(size_bytes for _, size_bytes, _ in transactions) <= 20_000


def test_a_partition_has_a_limited_time_in_a_turn_and_timers_leave_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes 5 ms here: for example a costly rule of a recurring timer."""
    world = TimerWorld("orders")
    send(world, "orders", "due", 300)
    world.pass_time(ms=100)
    parse = request_module.ask_of

    def slowly(record: Record, rules: Rules) -> Asked:
        world.kafka.timeline.advance(5)
        return parse(record, rules)

    monkeypatch.setattr(request_module, "ask_of", slowly)
    for n in range(500):
        send(world, "orders", str(n), 3_600_000)
    world.pass_time(ms=4000)
    (entry,) = world.read("orders")
    told = dict(entry.headers)
    assert int(told["timer-released-ms"] or 0) - int(told["timer-deliver-ms"] or 0) <= 200
    assert sum(world.bridge.bridge.pending.values()) == 500


@pytest.mark.parametrize("is_forged", [False, True])
def test_a_request_with_too_many_headers_is_rejected_without_them(is_forged: bool) -> None:  # noqa: FBT001
    world = TimerWorld("orders")
    last = [("timer-origin", b"timer.requests/0/0"), ("timer-rolls", b"1")] if is_forged else []
    for count in (MAX_HEADERS, MAX_HEADERS + 1):
        headers = schedule(10)
        fill = [("a", b"")] * (count - len(headers) - len(last))
        world.kafka.produce(TIMERS, b"%d" % count, key=b"k", headers=[*headers, *fill, *last])
    world.pass_time(ms=100)
    assert [entry.value for entry in world.read("orders")] == ([] if is_forged else [b"%d" % MAX_HEADERS])
    rejected = world.read("timer.rejected")[-1]
    assert (rejected.key, rejected.value, len(rejected.headers)) == (b"k", b"%d" % (MAX_HEADERS + 1), 3)
    told = dict(rejected.headers)
    assert told["timer-error"] == (b"not-ours" if is_forged else b"too-many-headers")
    assert (told["timer-error-detail"] or b"").endswith(b"its headers are left at timer-origin")


def test_at_most_one_poll_is_in_memory_while_moves_fill_transactions() -> None:
    """The other requests wait in Kafka, not in memory."""
    world = limited(10**6, window_ms=200_000, max_due_records=4, max_poll_records=10)
    for number in range(200):
        send(world, "other", str(number), 100_000, ("timer-id", b"%d" % number))
    world.pass_time(ms=400)
    move_all(world, 200, 1000)
    (owned,) = world.bridge.bridge.partitions.values()
    waiting = []
    while not values(world, "other"):
        world.bridge.turn()
        waiting.append(len(owned.backlog))
    assert 0 < max(waiting) <= 10
    world.pass_time(ms=1000)
    assert len(values(world, "other")) == 200


def test_status_and_metrics_agree_when_moves_fill_transactions_after_a_full_disk() -> None:
    world = limited(10**6, window_ms=200_000, max_due_records=4)
    for number in range(20):
        send(world, "other", str(number), 100_000, ("timer-id", b"%d" % number))
    world.pass_time(ms=400)
    bridge, timer_partition = world.bridge, TimerPartition(TIMERS, 0)
    bridge.disks[timer_partition].free = 1
    send(world, "other", "new", 100_000)
    move_all(world, 20, 1000)
    world.pass_time(ms=400)
    assert bridge.status.partitions()[timer_partition].phase == "paused"
    assert bridge.status.pauses.counted() == {timer_partition: "disk"}
    bridge.disks[timer_partition].free = 1 << 40
    bridge.turn()
    assert (bridge.status.partitions()[timer_partition].phase, bridge.status.pauses.counted()) == ("running", {})


def test_a_move_does_not_search_all_copies_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    world = limited(10**6, window_ms=200_000, max_pending=1000)
    for number in range(200):
        send(world, "limited", "m", 100_000, ("timer-id", b"%d" % number))
    world.pass_time(ms=100)
    looks = noted(monkeypatch, CopiesInFlight, "alive")
    move_all(world, 200, 0)
    world.pass_time(ms=100)
    assert len(values(world, "limited")) == 200
    assert len(looks) < 20


# -- many targets


def test_a_turn_loads_a_bounded_number_of_ticks_and_each_once_for_all_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    world = limited(1, window_ms=100_000, targets={"t*": 0.5})
    topics = [f"t{number}" for number in range(30)]
    for number, topic in enumerate(topics):
        world.kafka.create(topic)
        ask(world, b"pause", topic.encode())
        for each in range(10):
            send(world, topic, "m", 1000 + 10 * number + 300 * each)
    world.pass_time(ms=500)
    world.bridge.kill()
    world.kafka.timeline.advance(5_000)
    turns = by_turn(monkeypatch, ReleaseQueue, "load_tick")
    world.bridge.start()
    for topic in topics:
        ask(world, b"resume", topic.encode())
    world.pass_time(ms=30_000)
    assert [len(values(world, topic)) for topic in topics] == [10] * 30
    opened = 300
    assert max(len(ticks) - len(set(ticks)) for ticks in turns) <= 64
    assert max(len(ticks) for ticks in turns) <= opened + 64


# -- rolls


@pytest.mark.parametrize("paused", [False, True], ids=["limited", "paused"])
@TROUBLE
def test_rolls_use_none_of_the_rate_and_hold_up_no_due_timer(trouble: Trouble, *, paused: bool) -> None:
    world = limited(2)
    for number in range(200):
        send(world, "limited", f"far {number}", 35_000 + number)
    world.pass_time(ms=1000)
    if paused:
        ask(world, b"pause", b"limited")
    trouble(world)
    send(world, "limited", "urgent", 19_900)
    world.pass_time(ms=20_000)
    copies = [entry for entry in world.read(TIMERS) if ("timer-rolls", b"1") in entry.headers]
    assert len(copies) == 200
    if paused:
        ask(world, b"resume", b"limited")
    world.pass_time(ms=3_000)
    assert values(world, "limited") == ["urgent"]
    if not paused:
        assert told(world, "limited", "timer-released-ms") == told(world, "limited", "timer-deliver-ms")

"""The whole bridge in a hostile world: one seed, one history, checked from outside (oracle.py).

Requests come in crowds, with and without ids, cancels among them, some malformed, some of another sender's open
transaction; most lie several roll windows ahead, and somebody forges copies. There may be a second timer topic, and
each may deny targets, hold few timers, take few requests or let few timers out a second. Instances crash at a drawn
call and come back on their disk as it was, torn, emptied or as it was long ago, often with other settings; partitions
move, politely or not, also in the middle of a transaction; clocks jump; transactions end in passing faults; disks are
full for a while, or nearly.
In some worlds senders send what no Kafka client can decode, and an operator skips it some time later.
Then the world is mended, and everything runs out: each request must have its one outcome, also after one more life from
nothing. In some worlds, strangers send what harms then, and a target fails: all other timers leave on time.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from bridge.errors import OutcomeUnknownError
from bridge.loop.assigned_partition import Phase
from bridge.partition.options import TurnOptions
from bridge.partition.recover import read_checkpoint
from bridge.testing import FakeClock, FakeInstance
from bridge.testing.fake_kafka import Entry, FakeGroup, FakeKafka, FakeTransaction, Timeline
from bridge.tests.simulation.option_generator import MIN_FREE_BYTES, SKEW_MS, draw_options, with_engine
from bridge.tests.simulation.oracle import JOURNALS, RECEIPTS, REJECTED, Note, Oracle, Violation
from bridge.tests.simulation.request_generator import (
    BILLS,
    CANCEL,
    MORE_TIMERS,
    MOVE,
    NOWHERE,
    ORDERS,
    ORDERS_PARTITIONS,
    PAUSE,
    RESUME,
    SECRET,
    SMALL,
    SMALL_BYTES,
    TIMERS,
    Header,
    Wish,
    Wishes,
)
from bridge.tests.simulation.timeliness import InstancePace, Opening
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.control import Paused, control_record
from kafka_timer.headers import MAX_INT64
from kafka_timer.origin import TimerPartition
from schemas.journal import JournalRecord
from schemas.rules import Rules
from timer.format.unit import Rows, joined
from timer.options import Engine
from timer.store import Store
from timer.testing import Crash, SimDisk

STANDBY_SEEDS = 9
"""One seed in as many has instances with standbys."""
MOST_TURNS = 3000
"""Most turns of a mended world until all is settled, counted from the last occurrence of a recurring timer."""
TRANSACTION_TIMEOUT_MS = 800
PARTS = ("", "", "", "sink.", "sink.commit", "history.", "disk.append", "disk.start", "disk.", "source.")
"""Where a crash is drawn: after so many calls of one kind, or of any."""

ROCKSDB_SHARE = 0.1
ROLLS = "timer-rolls"
STRANGERS_MS, EACH_MS, FAILURE_MS = 1_500, 50, 100
"""Strangers: how long they send, how often; how long a transaction takes that fails for a target."""
STRANGERS_SHARE = 0.25
MOST_FAILURES = 2
"""Transactions in flight when a target fails first. Then its breaker is open for longer than STRANGERS_MS."""
ALTERED = frozenset({"timer-topic", "timer-deliver-ms", "timer-id", "timer-key", "timer-origin", ROLLS, "tenant"})


class World:
    """Brokers, instances, senders and what befalls them, all from one seed."""

    def __init__(self, seed: int, *, only_outputs: bool = False, engines: tuple[Engine, ...] = ()) -> None:
        """engines: one is drawn at each start. Without any, one seed in ten uses both."""
        self.rng = rng = Random(seed)
        self._engine_rng = Random(f"engines {seed}")
        both: tuple[Engine, ...] = ("wheel", "rocksdb") if self._engine_rng.random() < ROCKSDB_SHARE else ("wheel",)
        self._engines = engines or both
        self._told: list[tuple[int, str, tuple[object, ...]]] = []
        self.counts: Counter[str] = Counter()
        self.timeline = Timeline()
        self.kafka = FakeKafka(self.timeline, rng, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        self.partitions = [TimerPartition(TIMERS, number) for number in range(rng.choice((1, 1, 2, 3)))]
        if rng.random() < 0.3:
            self.partitions.append(TimerPartition(MORE_TIMERS, 0))
        self._create_topics()
        reach_ms = rng.choice((200, 1000, 3000))
        self.reach_ms = reach_ms
        self.oracle = Oracle(self.kafka, self.partitions, only_outputs=only_outputs)
        self.wishes = Wishes(rng, reach_ms)
        self.schedules: list[tuple[TimerPartition, Wish, Entry]] = []
        """What may be forged."""
        self.has_forger = rng.random() < 0.6
        self.group = FakeGroup("timers", self.partitions)
        self.planned = 0
        """Requests that are to be sent at a time to come."""
        self.olds: list[dict[TimerPartition, SimDisk]] = []
        self.nested = False
        self.is_mended = self.is_pending_deleted = False
        self.kept: dict[TimerPartition, int] = {}
        """The end of what the last checkpoint of a partition holds, since retention took it."""
        self.is_limited = rng.random() < 0.4
        self.apart = Random(f"apart {seed}")
        """For what was added later, so that seeds keep the histories that they had."""
        self.poisoning = Random(f"undecodable {seed}")
        self.is_poisoned = self.poisoning.random() < 0.2
        """Somebody sends records that no client can decode; each is skipped some time later."""
        self.poison: list[tuple[TimerPartition, int]] = []
        self.more = Random(f"more {seed}")
        self.has_more = self.more.random() < 0.5
        self.more_wishes = Wishes(self.more, reach_ms)
        self.clocks = Random(f"clocks {seed}")
        self.has_moving_clocks = self.clocks.random() < 0.3
        self.origins = Random(f"origins {seed}")
        self.origin_chance = self.origins.choice((0.0, 0.0, 0.05, 0.2))
        self.origin_wishes = Wishes(self.origins, reach_ms)
        self.series = Random(f"series {seed}")
        self.series_chance = self.series.choice((0.0, 0.1, 0.4))
        self.series_wishes = Wishes(self.series, reach_ms)
        self.strangers = Random(f"strangers {seed}")
        self.has_strangers = False
        self.apart.random()  # unused; old seeds keep their histories
        options = self.draw_options()
        count = rng.choice((1, 1, 2, 3))
        self.standby_interval_ms = rng.choice((0, 20, 100)) if seed % STANDBY_SEEDS == STANDBY_SEEDS - 1 else None
        if self.standby_interval_ms is not None:
            count = max(2, count)
        names = [f"bridge-{number}" for number in range(count)]
        self.instances = [InstanceRuns(self, name, options) for name in names]

    def draw_options(self) -> TurnOptions:
        """Draw the settings of a start."""
        options = draw_options(self.rng, self.reach_ms, limited=self.is_limited)
        engine = self._engine_rng.choice(self._engines)
        self.counts[engine] += 1
        topics = {name: with_engine(each, engine) for name, each in options.topics.items()}
        return replace(with_engine(options, engine), topics=topics)

    def _create_topics(self) -> None:
        for timer_topic, journal in JOURNALS.items():
            count = sum(partition.topic == timer_topic for partition in self.partitions)
            for name in (timer_topic, journal):
                self.kafka.create(name, max(1, count))
        self.kafka.create(ORDERS, ORDERS_PARTITIONS)
        for name in (REJECTED, RECEIPTS, BILLS, CONTROL_TOPIC):
            self.kafka.create(name)
        self.kafka.create(SECRET, denied=True)
        self.kafka.create(SMALL, max_bytes=SMALL_BYTES)
        for topic in self.kafka.topics.values():
            for log in topic.partitions:
                log.skew_ms = self.rng.randint(-SKEW_MS, SKEW_MS)

    def tell(self, what: str, *told: object) -> None:
        self._told.append((self.timeline.now_ms, what, told))

    def story(self) -> list[str]:
        """Written only now: most stories are read by nobody."""
        return [f"{at_ms} {what % told if told else what}" for at_ms, what, told in self._told]

    def run(self) -> None:
        """Raises what is wrong."""
        kinds, weights = zip(*EVENTS, strict=True)
        for _ in range(self.rng.choice((20, 40, 60))):
            self.rng.choices(kinds, weights)[0](self)
            if self.has_moving_clocks:
                self.move_a_broker_clock()
            if self.has_more and self.more.random() < 0.05:
                self.more.choice((self.cancel_in_time, self.hold))()
        self.mend()
        self.run_out()
        self.live_once_more()
        if self.strangers.random() < STRANGERS_SHARE:
            self.live_beside_strangers()
        self.counts.update(self.oracle.counts)

    # -- what happens

    def move_a_broker_clock(self) -> None:
        """Move the clock of a partition's leader: another broker may lead it from now on."""
        topic = self.kafka.topics[self.clocks.choice(sorted(self.kafka.topics))]
        self.clocks.choice(topic.partitions).skew_ms = self.clocks.randint(-SKEW_MS, SKEW_MS)

    def send(self) -> None:
        """Requests, now or while a bridge waits."""
        for _ in range(self.rng.choice((1, 1, 3, 6))):
            delay_ms = self.rng.choice((0, 0, self.rng.randint(0, 200)))
            self.planned += 1
            self.timeline.at(self.timeline.now_ms + delay_ms, self.send_planned)
        self.timeline.advance(0)
        if self.is_poisoned and self.poisoning.random() < 0.3:
            self.send_undecodable()

    def send_undecodable(self) -> None:
        """Nothing behind it is read before an operator skips it."""
        partition = self.poisoning.choice(self.partitions)
        entry = self.kafka.produce(partition.topic, b"zeros", partition=partition.partition, is_undecodable=True)
        self.oracle.undecodable(partition, entry)
        self.poison.append((partition, entry.offset))
        self.tell("undecodable %s/%d", partition, entry.offset)
        place, in_ms = self.poison[-1], self.poisoning.choice((0, 20, 300, self.reach_ms))
        self.timeline.at(self.timeline.now_ms + in_ms, lambda: self.kafka.skip(*place))

    def send_planned(self) -> None:
        self.planned -= 1
        self.send_one()

    def send_one(self, transaction: FakeTransaction | None = None, partition: TimerPartition | None = None) -> None:
        self.ask(partition or self.rng.choice(self.partitions), self.wishes.draw(self.timeline.now_ms), transaction)

        if self.origins.random() < self.origin_chance:
            self.ask_by_origin(self.origins.choice(self.partitions))
        if self.series.random() < self.series_chance:
            self.ask_again_and_again(self.series.choice(self.partitions))

    def ask_again_and_again(self, partition: TimerPartition) -> None:
        """Ask for a recurring timer, and now and then meddle with it just as an occurrence is due."""
        rng, now_ms = self.series, self.timeline.now_ms
        wish = self.series_wishes.recurring(now_ms, self.reach_ms)
        self.ask(partition, wish)
        if wish.series is None or rng.random() < 0.5:
            return
        due_ms = wish.due_ms(now_ms, self.rules_of(partition).levels_ms)
        if due_ms - now_ms > 2 * self.reach_ms:
            return
        at_ms = max(now_ms, due_ms + rng.randint(0, 2) * wish.series.step_ms + rng.choice((-1, 0, 1, 5, 20)))
        self.planned += 1
        self.timeline.at(at_ms, lambda: self._meddle(partition, wish))

    def _meddle(self, partition: TimerPartition, wish: Wish) -> None:
        """Cancel or move a recurring timer, or let its target take nothing for a while."""
        self.planned -= 1
        if wish.target in (ORDERS, BILLS) and not self.is_mended and self.series.random() < 0.2:
            self.take_away(wish.target, self.series)
        elif wish.id is not None:
            self.ask(partition, self.series_wishes.end_of(wish.id, self.timeline.now_ms))

    def ask_by_origin(self, partition: TimerPartition) -> None:
        """Cancel or move a timer by its origin: one that lives, or whatever an offset holds."""
        live = self.oracle.live_origins(partition)
        offset = self.origins.choice(live) if live and self.origins.random() < 0.7 else self.origins.randint(0, 60)
        self.ask(partition, self.origin_wishes.by_origin(*partition, offset, self.timeline.now_ms))

    def ask(self, partition: TimerPartition, wish: Wish, transaction: FakeTransaction | None = None) -> None:
        """Sends a request, or what an operator wants."""
        if wish.action in (PAUSE, RESUME):
            self.control(Paused(partition.topic, wish.target), on=wish.action == PAUSE)
            return
        entry = self._produce(partition, wish, transaction)
        self.oracle.ask(partition, wish, entry)
        if wish.target and wish.action not in (CANCEL, MOVE):
            self.schedules.append((partition, wish, entry))
        self.tell(
            "request %s/%d at %d: %s %s", partition, entry.offset, entry.append_ms, sorted(wish.may), wish.control
        )

    def _produce(
        self, partition: TimerPartition, asked: Wish | Entry, transaction: FakeTransaction | None = None
    ) -> Entry:
        topic, number = partition
        return self.kafka.produce(
            topic, asked.value, key=asked.key, headers=asked.headers, partition=number, transaction=transaction
        )

    def control(self, key: Paused, *, on: bool) -> None:
        """Some keys are deleted later: what has been journalled by then stays so."""
        raw, value = control_record(key, on=on)
        self.oracle.control(key, self.kafka.produce(CONTROL_TOPIC, value, key=raw), on=on)
        self.tell("control %s: %s", key, on)
        if self.apart.random() < 0.5:
            self.timeline.at(self.timeline.now_ms + self.apart.randint(0, 600), lambda: self.delete(raw))

    def delete(self, key: bytes) -> None:
        self.kafka.produce(CONTROL_TOPIC, None, key=key)

    def forge(self) -> None:
        """Somebody sends what says that it is a copy: a true one again, one that is altered, one made in advance."""
        if not self.has_forger:
            return
        for _ in range(self.rng.choice((1, 1, 3))):
            partition, found = self._forged()
            if found is None:
                return
            entry = self._produce(partition, found)
            self.oracle.forged(partition, entry)
            self.tell("forged %s/%d at %d: %s", partition, entry.offset, entry.append_ms, entry.headers)

    def _forged(self) -> tuple[TimerPartition, Entry | None]:
        rng, drawn = self.rng, self.rng.random()
        far = [asked for asked in self.schedules if self._due_ms(asked) > self.timeline.now_ms]
        if drawn < 0.6 and far:
            partition, wish, entry = asked = rng.choice(far[-8:])
            headers = wish.copy_headers(self._due_ms(asked), f"{partition}/{entry.offset}", rng.choice((1, 1, 1, 2)))
            made = replace(entry, headers=headers)
            return partition, made if drawn < 0.3 else self._altered(made)
        partition = rng.choice(self.partitions)
        copies = [e for e in self.kafka.partition(partition).everything() if ROLLS in dict(e.headers)][-6:]
        if not copies:
            return partition, None
        copy = rng.choice(copies)
        return partition, copy if drawn < 0.8 else self._altered(copy)

    def _due_ms(self, asked: tuple[TimerPartition, Wish, Entry]) -> int:
        partition, wish, entry = asked
        return wish.due_ms(entry.append_ms, self.rules_of(partition).levels_ms)

    def rules_of(self, partition: TimerPartition) -> Rules:
        """Of one of the instances, by now."""
        return self.instances[0].instance.options.of(partition.topic).rules

    def _altered(self, copy: Entry) -> Entry:
        rng = self.rng
        match rng.choice(("value", "key", "header", "header", "more")):
            case "value":
                return replace(copy, value=(copy.value or b"") + b"!")
            case "key":
                return replace(copy, key=b"another")
            case "more":
                return replace(copy, headers=[("more", None), *copy.headers])
        headers: list[Header] = [*copy.headers]
        at = rng.choice([at for at, (name, _) in enumerate(headers) if name in ALTERED])
        name, value = headers[at]
        altered = (value or b"") + b"1"
        if name == ROLLS and altered[:-1].isdigit():
            altered = b"%d" % (int(altered[:-1]) + 1)
        headers[at] = (name, b"bills" if name == "timer-topic" else altered)
        return replace(copy, headers=headers)

    def send_behind_a_hung_one(self) -> None:
        """Nothing of a partition can be read for a while: copies and cancels pile up behind each other."""
        transaction = self.kafka.begin("sender")
        self.send_one(transaction)
        end = self.rng.choice((self.kafka.commit, self.kafka.abort))
        self.timeline.at(self.timeline.now_ms + self.rng.randint(0, self.reach_ms), lambda: end(transaction))
        for _ in range(self.rng.choice((2, 5))):
            self.send()
            self.forge()
            self.turns()
            self.forge()

    def send_in_transaction(self) -> None:
        """A sender's transaction that ends well, badly, or with its time-out."""
        transaction = self.kafka.begin("sender")
        for _ in range(self.rng.choice((1, 2))):
            self.send_one(transaction)
        end, delay_ms = self.rng.choice((self.kafka.commit, self.kafka.abort, None)), self.rng.randint(0, 200)
        if end is not None:
            self.timeline.at(self.timeline.now_ms + delay_ms, lambda: end(transaction))

    def turns(self) -> None:
        """One instance goes on for a while, or all in turn."""
        for _ in range(self.rng.choice((1, 2, 4))):
            self.rng.choice(self.instances).turn()

    def crash_soon(self) -> None:
        part = self.rng.choice(PARTS)
        steps = self.rng.choice((1, 2, 5)) if part else self.rng.randint(1, self.rng.choice((5, 40, 200)))
        life = self.rng.choice(self.instances)
        life.instance.fuse.arm(steps, part)
        for _ in range(self.rng.choice((0, 3, 6))):
            life.turn()

    def start_one(self) -> None:
        for life in self.instances:
            if not life.is_up:
                life.start()

    def stop_one(self) -> None:
        life = self.rng.choice(self.instances)
        life.stop()
        if self.rng.random() < 0.7:
            life.start()

    def cancel_in_time(self) -> None:
        """Let two timers be due in the same ms, and a cancel of the first be read just then."""
        partition, in_ms = self.more.choice(self.partitions), self.more.choice((90, 250, 550))
        owner = next((life for life in self.instances if life.member == self.group.owner[partition]), self.instances[0])
        wishes = [self.more_wishes.far(owner.clock.now_ms() + in_ms, has_id=has_id) for has_id in (True, False)]
        for wish in wishes:
            self.ask(partition, wish)
        id_, at_ms = wishes[0].id or b"", self.timeline.now_ms + in_ms
        self.timeline.at(at_ms, lambda: self.ask(partition, self.more_wishes.cancel_of(id_)))
        self._turn_until(at_ms + 1)

    def hold(self) -> None:
        """Let a timer be held as the clock goes back behind K, let it leave, then kill the instance."""
        partition, life = self.more.choice(self.partitions), self.more.choice(self.instances)
        for in_ms in (100, 50):
            self.ask(partition, self.more_wishes.far(life.clock.now_ms() + in_ms))
            self._turn_until(self.timeline.now_ms + 1)
            if in_ms == 100:
                for ms in (100, -100):
                    life.jump(ms)
                    self._turn_until(self.timeline.now_ms + 1)
        self._turn_until(self.timeline.now_ms + 60)
        life.stop(in_order=False)
        life.start()

    def _turn_until(self, at_ms: int) -> None:
        """Let all instances turn until then, and once more."""
        is_over = False
        while not is_over:
            is_over = self.timeline.now_ms >= at_ms
            for life in self.instances:
                life.turn()
            self.timeline.advance(1)

    def _turn_alone(self, life: "InstanceRuns", until_ms: int) -> None:
        """Let one instance turn until then; its polls let time pass."""
        while (now_ms := self.timeline.now_ms) < until_ms:
            life.turn()
            self.timeline.advance(0 if self.timeline.now_ms > now_ms else 1)

    def keep_a_copy(self) -> None:
        """Directories as they are now; they may come back much later."""
        life = self.rng.choice(self.instances)
        self.olds.append({partition: disk.copy() for partition, disk in life.instance.disks.items()})

    def come_back(self) -> None:
        """A directory from long ago, behind a retention that took what it would need to catch up.

        Meanwhile others do the work, so that what lived then may have ended by now.
        """
        self.keep_a_copy()
        for _ in range(self.rng.choice((0, 2, 4))):
            self.send()
            self._all_turn()
        self._bring_back(self.rng.choice(self.olds[-3:]))

    def _bring_back(self, old: dict[TimerPartition, SimDisk]) -> None:
        self.retain()
        life = self.rng.choice(self.instances)
        self.tell(f"{life.name} gets an old directory")
        self.counts["come back"] += 1
        life.instance.kill()
        life.instance.disks |= {partition: disk.copy() for partition, disk in old.items()}
        life.start()

    def cross(self) -> None:
        """A timer is rolled while its cancel waits to be read before the copy; then somebody dies between the two."""
        partition, wish = self.rng.choice(self.partitions), self.wishes.far(self.timeline.now_ms + self.reach_ms)
        assert wish.id is not None
        self.ask(partition, wish)
        self._all_turn()
        hung = [self.kafka.begin("sender") for _ in range(2)]
        self.send_one(hung[0], partition)
        self.ask(partition, self.wishes.cancel_of(wish.id))
        self.send_one(hung[1], partition)
        self.timeline.advance(self.rules_of(partition).roll_window_ms)
        self._all_turn()
        for transaction in hung:  # there may be a checkpoint between the cancel and the copy
            self.rng.choice((self.kafka.commit, self.kafka.abort))(transaction)
            self._all_turn()
        self.crash_soon()

    def be_away(self) -> None:
        """A directory comes back: what it held has ended or moved, L too, and retention took that time away."""
        life = self.rng.choice(self.instances)
        for partition in self.partitions:
            self.ask(partition, self.wishes.far(self.timeline.now_ms + self.reach_ms))
        self._all_turn()
        old = {partition: disk.copy() for partition, disk in life.instance.disks.items()}
        for partition in self.partitions:
            for id_ in self.oracle.live_ids(partition):
                self.ask(partition, self.wishes.end_of(id_, self.timeline.now_ms))
        self._all_turn()
        self.send()
        self.turns()
        self._bring_back(old)

    def _all_turn(self) -> None:
        for _ in range(self.rng.choice((1, 3))):
            self.timeline.advance(self.rng.choice((10, 50, 300)))
            for life in self.instances:
                life.turn()

    def move(self) -> None:
        partition, life = self.rng.choice(self.partitions), self.rng.choice(self.instances)
        if life.is_up:
            self.tell(f"{partition} is to move to {life.name}")
            self.counts["moves"] += 1
            self.group.move(partition, life.member)

    def put_out(self) -> None:
        """A session times out; the instance does not know."""
        life = self.rng.choice(self.instances)
        if life.is_up:
            self.tell(f"{life.name} is put out of the group")
            self.counts["zombies"] += 1
            self.group.expire(life.member)

    def jump(self) -> None:
        life = self.rng.choice(self.instances)
        life.jump(self.rng.choice((-500, -50, -5, 5, 50, 500, self.rng.randint(-9000, 9000), -life.clock.error_ms)))

    def swing(self) -> None:
        """A clock that was ahead for a while: K stands further than the time, so what comes now is held or late."""
        life, ahead_ms = self.rng.choice(self.instances), self.rng.choice((100, 500, 2000))
        for ms in (ahead_ms, -ahead_ms):
            life.jump(ms)
            self.send()
            for _ in range(self.rng.choice((1, 3))):
                life.turn()

    def retain(self) -> None:
        """Retention takes what lies below L, and the journal of that time, unless all in it was aborted.

        An expired journal without progress means lost progress: the bridge refuses to start.
        """
        for partition in self.partitions:
            low = self.oracle.progress(partition).low_offset
            log = self.kafka.partition(partition)
            journal = self.kafka.partition(TimerPartition(JOURNALS[partition.topic], partition.partition))
            low_ms = next((entry.append_ms for entry in log.everything() if entry.offset >= low), self.timeline.now_ms)
            log.delete_before(min(low, log.last_stable))
            decided_ms = low_ms - 2 * SKEW_MS
            kept = [entry.offset for entry in journal.everything() if entry.append_ms >= decided_ms]
            told = list(journal.committed(journal.first, journal.last_stable))[-1:]
            waits = [entry.offset for entry in told if JournalRecord.from_bytes(entry.value or b"").waits]
            if told:
                journal.delete_before(min(*kept[:1], *waits, journal.end, journal.last_stable))

    def pass_time(self) -> None:
        self.timeline.advance(self.rng.choice((1, 10, 100, 1000)))

    def vex_sinks(self) -> None:
        chance, unknown = self.rng.choice((0.0, 0.0, 0.2, 0.5)), self.apart.choice((0.0, 0.0, 0.1))
        for life in self.instances:
            life.instance.set_faults(chance, unknown)

    def vex_disks(self) -> None:
        disks = [disk for life in self.instances for disk in life.instance.disks.values()]
        for disk in disks:
            match self.rng.choice(("mend", "mend", "full", "nearly full", "sync", "sync", "sync")):
                case "mend":
                    mend(disk)
                case "full":
                    self.tell("a disk is full")
                    self.counts["full"] += 1
                    disk.fail_append(self.rng.randint(0, 5), share=self.rng.random())
                case "nearly full":
                    self.tell("a disk is nearly full")
                    self.counts["nearly full"] += 1
                    disk.free = MIN_FREE_BYTES - 1
                case _:
                    self.counts["sync fails"] += 1
                    disk.fail_sync()

    def change_topics(self) -> None:
        if self.rng.random() < 0.5:
            if NOWHERE not in self.kafka.topics:
                self.kafka.create(NOWHERE)
        else:
            self.kafka.topics[SECRET].denied = not self.kafka.topics[SECRET].denied
        if self.apart.random() < 0.3:
            self.take_away_a_target()

    def take_away_a_target(self) -> None:
        """A target topic has no leader or too few in-sync replicas for a while."""
        self.take_away(self.apart.choice((ORDERS, BILLS)), self.apart)

    def take_away(self, target: str, rng: Random) -> None:
        topic = self.kafka.topics[target]
        topic.unavailable = True
        self.oracle.failed_targets.add(target)
        self.counts["targets taken away"] += 1
        self.tell(f"{target} takes no records")

        def give_back() -> None:
            topic.unavailable = False

        self.timeline.at(self.timeline.now_ms + rng.randint(1, self.reach_ms), give_back)

    def meanwhile(self, life: "InstanceRuns", where: str) -> None:
        """At a call of `life`, others may act; it may even be another's turn to own its partitions."""
        if where in ("sink.abort", "recovery.give_up"):  # the latter took time of another process
            life.own_turns.clear()
        if where == "recovery.give_up" or self.has_strangers or self.nested:
            return
        if self.rng.random() > (0.05 if where.startswith("history.") else 0.01):
            return
        others = [other for other in self.instances if other is not life and other.is_up]
        life.own_turns.clear()
        self.nested = True
        if others and self.rng.random() < 0.7:
            self.tell(f"{life.name} sleeps at {where}")
            self.group.expire(life.member)
            for _ in range(self.rng.choice((1, 3, 6, 20))):
                self.rng.choice(others).turn()
        else:
            self.timeline.advance(self.rng.choice((1, 5, 2 * TRANSACTION_TIMEOUT_MS)))
        self.nested = False

    # -- the end

    def mend(self) -> None:
        self.tell("the world is mended")
        self.is_mended = True
        for place in self.poison:
            self.kafka.skip(*place)
        for life in self.instances:
            life.mend()
        if self.apart.random() < 0.3:
            self.take_away_a_target()

    def run_out(self) -> None:
        deletes_at = self.apart.choice((1, 5, 20, None))
        occurrences, ends_at = 0, MOST_TURNS
        for turn_ in itertools.count():
            if self.oracle.counts["next occurrences"] > occurrences:  # each is checked, and a rule has an end
                occurrences, ends_at = self.oracle.counts["next occurrences"], turn_ + MOST_TURNS
            if turn_ == ends_at:
                raise Violation(f"lost: {self.oracle.describe_unsettled()}")
            if turn_ == deletes_at and len(self.instances) == 1:
                self.delete_pending()
            if not self.planned and turn_ % 20 == 0:
                self.resume_all()
            if not self.oracle.unsettled() and not self.planned:
                return
            for life in self.instances:
                life.turn()

    def resume_all(self) -> None:
        for partition, target in self.oracle.paused():
            self.control(Paused(partition.topic, target), on=False)
        for partition in self.partitions:
            for offset in self.oracle.paused_origins(partition):
                self.ask(partition, self.origin_wishes.resume_of(*partition, offset))

    def delete_pending(self) -> None:
        """Delete what was read, as retention does, also if it is pending: only the stores know it from now on.

        A store that stays open delivers all of it. One that is opened again knows what its last checkpoint holds. With
        several instances one could lose it and another not, so the caller leaves those out.
        """
        self.tell("retention takes what is pending")
        self.counts["pending deleted"] += 1
        self.is_pending_deleted = True
        (life,) = self.instances
        for partition, phase in life.instance.bridge.phases.items() if life.instance.is_running else ():
            log = self.kafka.partition(partition)
            if phase is Phase.OPEN:
                log.delete_before(min(self.oracle.progress(partition).next_offset, log.last_stable))
        if self.apart.random() < 0.5:
            life.stop()
            checkpoints = {place: read_checkpoint(disk) for place, disk in life.instance.disks.items()}
            self.kept = {place: each.progress.next_offset for place, each in checkpoints.items() if each is not None}
            life.start()

    def live_once_more(self) -> None:
        """From nothing but Kafka: everything is known to be settled."""
        for life in self.instances:
            life.turn()
            life.instance.lose_disks()
            life.start()
        for _ in range(6):
            for life in self.instances:
                life.turn()
        for life in self.instances:
            pending = life.pending()
            if any(pending.values()):
                raise Violation(f"{life.name} counts {pending} pending, but all is settled")

    def live_beside_strangers(self) -> None:
        """Let a hostile sender and the owner of BILLS act for a while, beside timers to ORDERS; then run out.

        One instance is left, without limits of its own, so that the strangers alone can delay a timer.
        """
        self.has_strangers = True
        for other in self.instances[1:]:
            other.stop(in_order=False)
        del self.instances[1:]
        (life,) = self.instances
        life.instance.lose_disks()
        life.instance.options = without_limits(life.instance.options)
        life.clock.error_ms = 0
        life.begin()
        self.resume_all()
        self._turn_alone(life, self.timeline.now_ms + TRANSACTION_TIMEOUT_MS)
        life.instance.sink.failure_ms = FAILURE_MS
        for name, topic in self.kafka.topics.items():
            topic.unavailable = name == BILLS
        self.oracle.failed_targets.add(BILLS)
        innocents, hostile = Wishes(self.strangers, self.reach_ms), Wishes(self.strangers, self.reach_ms)
        due_ms = dict[str, int]()

        def send() -> None:
            now_ms = self.timeline.now_ms
            for partition in self.partitions:
                self.ask(partition, hostile.far(now_ms + self.strangers.randint(0, 100), BILLS))
                drawn = hostile.draw(now_ms)
                if drawn.action not in (PAUSE, RESUME):
                    self.ask(partition, drawn)
                self.ask(partition, innocents.far(now_ms + EACH_MS, has_id=False))
                due_ms[f"{partition}/{self.schedules[-1][2].offset}"] = now_ms + EACH_MS

        began_ms = self.timeline.now_ms
        for at_ms in range(began_ms, began_ms + STRANGERS_MS, EACH_MS):
            self.timeline.at(at_ms, send)
        end_ms = began_ms + STRANGERS_MS + EACH_MS
        self.timeline.at(end_ms, lambda: setattr(self.kafka.topics[BILLS], "unavailable", False))
        self._turn_alone(life, end_ms)
        self.run_out()
        if not self.oracle.only_outputs:
            self.oracle.check_innocents(due_ms, MOST_FAILURES * FAILURE_MS)


def without_limits(options: TurnOptions) -> TurnOptions:
    """Return the options with the default limits of a turn, none of an operator, and a window beyond STRANGERS_MS."""
    rules = options.rules.model_copy(update={"roll_window_ms": 4 * STRANGERS_MS})
    usual = TurnOptions(rules)
    names = ("max_poll_records", "max_due_records", "max_due_bytes", "max_message_bytes", "policy", "targets")
    limits: dict[str, Any] = {name: getattr(usual, name) for name in (*names, "max_pending", "max_requests_per_s")}
    store = replace(options.store, tick_ms=10, slots=STRANGERS_MS, segment_bytes=1 << 16)
    topics = {name: without_limits(each) for name, each in options.topics.items()}
    return replace(options, rules=rules, store=store, **limits, topics=topics)


def mend(disk: SimDisk) -> None:
    disk.mend()
    disk.free = 1 << 40


class InstanceRuns:
    """One instance, life after life."""

    def __init__(self, world: World, name: str, options: TurnOptions) -> None:
        self.world = world
        self.name = name
        self.clock = FakeClock(world.timeline, world.rng.choice((0, 0, -200, 200)))
        self.openings: dict[TimerPartition, Opening] = {}
        self.own_turns: list[list[int]] = []
        """See bridge.tests.simulation.timeliness.InstancePace."""
        self._passed_ms, self._last_ms = 0, self.clock.now_ms()
        self._turn_ms = self._last_ms
        self.instance = FakeInstance(
            world.kafka,
            world.group,
            options,
            name=name,
            clock=self.clock,
            rng=world.rng,
            meanwhile=lambda where: world.meanwhile(self, where),
            note=self._note,
            on_start=self._check_opened,
            standby_interval_ms=world.standby_interval_ms,
        )
        self._lowest_ms = self._highest_ms = self.clock.now_ms()
        self._paused: frozenset[TimerPartition] = frozenset()
        self._checked: tuple[object, ...] = ()

    @property
    def is_up(self) -> bool:
        return self.instance.is_running

    @property
    def member(self) -> str:
        return self.instance.source.member if self.instance.is_running else self.name

    def pending(self) -> dict[TimerPartition, Counter[str]]:
        owned = self.instance.bridge.partitions if self.instance.is_running else {}
        hours = {timer_partition: each.due_hours() for timer_partition, each in owned.items()}
        return {at: Counter({topic: due.total() for topic, due in each.items()}) for at, each in hours.items()}

    def jump(self, ms: int) -> None:
        self.world.tell(f"the clock of {self.name} jumps by {ms} ms")
        self.world.counts["jumps"] += 1
        self._see_clock()
        self.clock.error_ms += ms
        self._see_clock()

    def _see_clock(self) -> None:
        now_ms = self.clock.now_ms()
        self._passed_ms += max(0, now_ms - self._last_ms)
        self._last_ms = now_ms
        self._lowest_ms, self._highest_ms = min(self._lowest_ms, now_ms), max(self._highest_ms, now_ms)

    def _see_paused(self) -> None:
        """What was staged while intake was paused may leave in a later turn."""
        pauses = self.instance.status.pauses
        self._paused |= pauses.unfetched.difference(pauses.of("recovering"))

    def _look_anew(self) -> None:
        """Nothing is staged or on its way: what comes next begins here."""
        self._lowest_ms = self._highest_ms = self.clock.now_ms()
        self._paused = frozenset()

    def turn(self) -> None:
        """One turn, and what an onlooker can say of it."""
        if not self.is_up:
            return
        self.world.counts["turns"] += 1
        self._see_clock()
        self._begin_turn()
        self._turn_ms = self.clock.now_ms()
        try:
            self.instance.turn()
        except Crash as crash:
            self._die(str(crash))
        except OutcomeUnknownError:
            self._end_life()
            self.start()
        self._end_turn()
        self.world.oracle.observe()
        self._see_paused()
        if self.instance.is_running and self.instance.bridge.is_idle:
            self._look_anew()
        self._check_pending()

    def _begin_turn(self) -> None:
        now_ms = self.world.timeline.now_ms
        if not self.world.is_mended:
            return
        if not self.own_turns or self.own_turns[-1][1] != now_ms:
            self.own_turns.append([now_ms, now_ms])
        self.own_turns[-1][1] = MAX_INT64

    def _end_turn(self) -> None:
        phases = self.instance.bridge.phases.values() if self.instance.is_running else ()
        if any(phase in (Phase.CLAIMING, Phase.CATCHING_UP) for phase in phases):
            self.own_turns.clear()
        if self.own_turns:
            self.own_turns[-1][1] = self.world.timeline.now_ms

    def _die(self, where: str) -> None:
        world, rng = self.world, self.world.rng
        world.counts["crashes"] += 1
        member, noticed = self.member, rng.random() < 0.6
        self.instance.kill(noticed=noticed)
        if not noticed:
            world.timeline.at(world.timeline.now_ms + rng.randint(0, 300), lambda: world.group.expire(member))
        power = 50 if any(disk.has_given_up for disk in self.instance.disks.values()) else 3
        fate = rng.choices(("kill", "power", "deleted", "old"), (4, power, 2, 2))[0]
        world.tell(f"{self.name} dies at {where}: {fate}")
        world.counts[fate] += 1
        if fate == "power":
            self.instance.lose_power()
        elif fate == "deleted":
            self.instance.lose_disks()
        elif fate == "old" and world.olds:
            self.instance.disks |= {partition: disk.copy() for partition, disk in rng.choice(world.olds).items()}
        if rng.random() < 0.6:
            self.start()

    def start(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.5 and not self.world.is_pending_deleted:  # another tick_ms would be refused
            self.instance.options = self.world.draw_options()
        self.begin()

    def begin(self) -> None:
        """Start with the options that it has."""
        self.world.tell(f"{self.name} starts")
        self._look_anew()
        self.own_turns.clear()
        self.instance.start()

    def stop(self, *, in_order: bool = True) -> None:
        if not self.is_up:
            return
        self.world.tell(f"{self.name} stops")
        try:
            self._turn_ms = self.clock.now_ms()
            if in_order:
                self.instance.stop()
            self.instance.kill()
        except Crash as crash:
            self._die(str(crash))
        except OutcomeUnknownError:
            self._end_life()
        self.world.oracle.observe()

    def _end_life(self) -> None:
        """End this life in order after an unknown outcome; the next one asks Kafka."""
        self.world.tell(f"{self.name} does not know the outcome of a transaction")
        self.world.counts["unknown outcomes"] += 1
        try:
            if self.instance.is_running:
                self.instance.bridge.stop()
        except Crash as crash:
            self._die(str(crash))
        except OutcomeUnknownError:
            pass  # of the transaction behind it
        self.instance.kill()

    def mend(self) -> None:
        self.instance.set_faults(0.0)
        self.instance.fuse.disarm()
        for disk in self.instance.disks.values():
            mend(disk)
        if not self.is_up:
            self.start()

    def _note(self) -> Note:
        source = self.instance.source
        self._see_clock()
        self._see_paused()
        control = self.instance.control
        opened = dict(source.opened)
        told = self.instance.options, opened, self._paused, control.position
        pace = InstancePace(dict(self.openings), self._passed_ms, self.own_turns, self.clock.error_ms)
        return Note(self._highest_ms, self._lowest_ms, *told, self._turn_ms, pace)

    def _check_opened(self, partition: TimerPartition) -> None:
        """A partition that was just opened holds what its requests say."""
        world = self.world
        self._see_clock()
        self.openings[partition] = Opening(self._passed_ms, world.kafka.partition(partition).last_stable)
        self.own_turns.clear()
        if world.oracle.only_outputs or world.group.owner[partition] != self.member:
            return
        world.oracle.observe()
        if world.kafka.partition(partition).first > world.oracle.progress(partition).low_offset:
            store = self.instance.bridge.partitions[partition].store
            world.oracle.forget_deleted(partition, set(_live(store)["origin"].tolist()), world.kept.get(partition, 0))
        pending, expected = self.pending()[partition], world.oracle.pending(partition)
        if pending != expected:
            raise Violation(f"{self.name} rebuilt {partition} with {pending} timers, {expected} live")

    def _check_pending(self) -> None:
        """When nothing is on its way, a partition holds as many timers as its requests say: after commits, openings."""
        if not self.instance.is_running:
            return
        bridge = self.instance.bridge
        if not bridge.is_idle or self.world.oracle.only_outputs:
            return
        state = (self.world.oracle.commits, *bridge.partitions.values())
        if state == self._checked:
            return
        if any(self.world.group.owner[partition] != self.member for partition in bridge.partitions):
            return
        for partition, pending in self.pending().items():
            expected = self.world.oracle.pending(partition)
            if pending != expected:
                raise Violation(f"{self.name} counts {pending} timers of {partition}, {expected} live")
            store = bridge.partitions[partition].store
            if store.queries.pending_bytes != (live_bytes := int(_live(store)["body_size"].sum())):
                raise Violation(
                    f"{self.name} counts {store.queries.pending_bytes} bytes of {partition}, {live_bytes} live"
                )
        ranges, expected_ranges = bridge.due_ranges(), self.world.oracle.due_ranges(bridge.partitions)
        if ranges != expected_ranges:
            raise Violation(f"{self.name} says {ranges} are due, where {expected_ranges} live")
        self._checked = state


def _live(store: Store) -> Rows:
    """Return the rows of live timers, from the log alone."""
    found: list[Rows] = []
    following: int | None = 0
    while following is not None:
        rows, following = store.queries.list_pending(following)
        found.append(rows)
    return joined(found)


EVENTS: tuple[tuple[Callable[[World], None], float], ...] = (
    (World.turns, 12),
    (World.send, 8),
    (World.forge, 2),
    (World.crash_soon, 4),
    (World.pass_time, 1),
    (World.start_one, 2),
    (World.move, 1.5),
    (World.jump, 1),
    (World.send_in_transaction, 1),
    (World.send_behind_a_hung_one, 1.5),
    (World.swing, 2),
    (World.keep_a_copy, 1),
    (World.retain, 1),
    (World.come_back, 2),
    (World.be_away, 2),
    (World.cross, 3),
    (World.put_out, 0.7),
    (World.stop_one, 0.7),
    (World.vex_sinks, 0.7),
    (World.vex_disks, 1),
    (World.change_topics, 0.5),
)

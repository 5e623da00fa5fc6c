"""A bridge's life on a fake Kafka, and all that it leaves as files.

    kafka.jsonl    topics, committed offsets and their metadata
    killed/        the data directory as kill -9 leaves it: the checkpoint is older than the committed progress
    closed/        the data directory after a clean end

`leave` plays the life and returns the files. `load` makes a Kafka of a `kafka.jsonl`, as the next version finds it.
Times count from START_MS; the life ends at LEFT_MS. What must become of each timer: test_upgrade.py.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from bridge.partition.options import StoreOptions, TurnOptions
from bridge.testing import FakeInstance
from bridge.testing.fake_kafka import Entry, FakeGroup, FakeKafka, FakeTransaction, Timeline
from bridge.testing.timer_world import TIMERS
from integration_tests.golden.records import contents, lines, objects, raw
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.control import Paused, control_record
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules

START_MS = 1_700_000_000_000
LEFT_MS = 8_500
PARTITION, OTHER = TimerPartition(TIMERS, 0), TimerPartition(TIMERS, 1)
GROUP = "timers"
INSTANCE_ID = "0123456789abcdef" * 2
TOPICS = {TIMERS: 2, "timer.journal": 2, "timer.rejected": 1, "timer.receipts": 1, "orders": 1, "bills": 1}
OPTIONS = TurnOptions(
    rules=Rules(
        max_delay_ms=100_000,
        roll_window_ms=5_000,
        levels_ms=(0, 1_000),
        profiles=("native", "rocketmq"),
        own_topics=frozenset({TIMERS}),
    ),
    store=StoreOptions(tick_ms=100, slots=128, segment_bytes=1000, checkpoint_interval_ms=700),
    commit_interval_ms=10,
    era_ms=START_MS,
)
"""A lap of 12.8 s, and small files."""


class Life:
    """A bridge with both partitions, and its senders."""

    def __init__(self) -> None:
        self.kafka = FakeKafka(Timeline(START_MS))
        for topic, partitions in TOPICS.items():
            self.kafka.create(topic, partitions)
        self._meanwhile: list[Callable[[], object]] = []
        group = FakeGroup(GROUP, [PARTITION, OTHER])
        self.bridge = FakeInstance(self.kafka, group, OPTIONS, meanwhile=self._step)
        self.bridge.run(0)

    def _step(self, where: str) -> None:
        while where == "sink.produce" and self._meanwhile:
            self._meanwhile.pop(0)()

    def before_the_next_record(self, *actions: Callable[[], object]) -> None:
        """Call `actions` in the bridge's next transaction, before it sends its first record."""
        self._meanwhile += actions

    def run_until(self, at_ms: int) -> None:
        self.bridge.run(START_MS + at_ms - self.kafka.timeline.now_ms)

    def ask(self, name: str | None, *headers: tuple[str, str], key: str | None = None, partition: int = 0) -> Entry:
        encoded: Headers = [(header, text.encode()) for header, text in headers]
        return self.kafka.produce(TIMERS, raw(name), key=raw(key), headers=encoded, partition=partition)

    def send(
        self, name: str, due_ms: int, *more: tuple[str, str], id_: str = "", target: str = "orders", partition: int = 0
    ) -> None:
        headers = [("timer-topic", target), ("timer-deliver-ms", f"{START_MS + due_ms}"), *more]
        self.ask(name, *headers, *([("timer-id", id_)] if id_ else []), partition=partition)

    def cancel(self, id_: str) -> None:
        self.ask(None, ("timer-action", "cancel"), ("timer-id", id_))

    def move(self, id_: str, due_ms: int) -> None:
        self.ask(None, ("timer-action", "move"), ("timer-id", id_), ("timer-deliver-ms", f"{START_MS + due_ms}"))

    def undecodable(self) -> None:
        """Send a record that no client can decode, and skip it."""
        self.kafka.skip(PARTITION, self.kafka.produce(TIMERS, None, partition=0, is_undecodable=True).offset)

    def pause(self, target: str, *, on: bool) -> None:
        key, value = control_record(Paused(TIMERS, target), on=on)
        self.kafka.produce(CONTROL_TOPIC, value, key=key)

    def hide_the_rest(self, timer_partition: TimerPartition) -> FakeTransaction:
        """Open a transaction: records of `partition` from here on are not read. A dump takes it for aborted."""
        hung = self.kafka.begin(f"hung-{timer_partition.partition}")
        self.kafka.produce(TIMERS, b"hung", partition=timer_partition.partition, transaction=hung)
        return hung


def leave() -> dict[str, bytes]:
    """Play the life. Return the files that it leaves, by their path."""
    life = Life()
    _begin(life)
    life.run_until(2_000)
    _change(life)
    life.run_until(7_900)
    _set_the_clock_back(life)
    life.run_until(LEFT_MS - 100)
    _copies_in_flight(life)
    life.run_until(LEFT_MS)
    life.cancel("unread")
    life.undecodable()
    life.send("unread", 12_000)
    killed = _data("killed", life.bridge)
    life.bridge.stop()
    return {"kafka.jsonl": _dump(life.kafka), **killed, **_data("closed", life.bridge)}


def _begin(life: Life) -> None:
    life.pause("bills", on=True)
    life.pause("orders", on=True)
    life.pause("orders", on=False)
    life.send("delivered", 400)
    life.send("delivered with id", 600, id_="delivered")
    life.send("far", 60_000)
    life.send("far with id", 61_000, id_="far")
    life.send("cancelled", 30_000, id_="cancelled")
    life.send("cancelled copy", 31_000, id_="cancelled copy")
    life.send("dropped copy", 34_000, id_="dropped copy")
    life.send("replaced", 7_000, id_="replaced")
    life.send("moved", 32_000, id_="moved")
    life.send("bill", 1_000, target="bills")
    life.send("bill with id", 2_500, id_="bill", target="bills")
    life.send("cancelled bill", 2_600, id_="cancelled bill", target="bills")
    life.send("expired bill", 2_700, ("timer-expire-ms", f"{START_MS + 9_000}"), target="bills")
    life.send("far bill", 70_000, target="bills")
    life.send("refused", -START_MS - 5)
    life.ask("without topic", ("timer-delay-ms", "5"))
    life.ask("rocketmq", ("REAL_TOPIC", "orders"), ("TIMER_DELIVER_MS", f"{START_MS + 33_000}"), ("UNIQ_KEY", "r"))
    life.ask(None, ("timer-topic", "orders"), ("timer-deliver-ms", f"{START_MS + 13_100}"), key="tombstone")
    for number in range(4):
        life.send(f"other {number}", 11_000 + 2_000 * number, partition=1)
    life.send("other far", 40_000, id_="other far", partition=1)


def _change(life: Life) -> None:
    life.cancel("cancelled")
    life.cancel("cancelled bill")
    life.cancel("never seen")
    life.send("replacement", 42_000, id_="replaced")
    life.move("moved", 45_000)
    life.run_until(5_500)  # far timers have been rolled
    life.cancel("cancelled copy")
    life.send("ahead", 10_400)
    for name in ("flying", "flying cancelled", "flying moved"):
        life.send(name, 35_000, id_=name)
    life.send("unread cancelled", 20_000, id_="unread")


def _set_the_clock_back(life: Life) -> None:
    """Deliver `ahead` by a clock that is 2.6 s ahead, so that K is above all requests of the next 2 s."""
    life.hide_the_rest(OTHER)  # copies stay in flight there
    life.before_the_next_record(lambda: life.cancel("dropped copy"))
    life.bridge.clock.error_ms = 2_600
    life.run_until(7_950)
    life.bridge.clock.error_ms = 0
    life.send("held and delivered", 8_300)
    life.send("held", 9_400)
    life.send("held with id", 9_900, id_="held")
    life.send("cancelled while held", 9_700, id_="cancelled while held")
    life.send("near", 12_600)
    life.send("near with id", 12_700, ("trace", "1"), ("timer-key", "near key"), id_="near")
    life.send("refused late", -START_MS - 5)
    life.undecodable()
    life.run_until(8_200)
    life.cancel("cancelled while held")


def _copies_in_flight(life: Life) -> None:
    """Move three timers. Their copies come after a cancel, another move and a transaction that hides later records."""
    life.before_the_next_record(
        lambda: life.cancel("flying cancelled"),
        lambda: life.move("flying moved", 54_000),
        lambda: life.hide_the_rest(PARTITION),
    )
    life.move("flying", 51_000)
    life.move("flying cancelled", 52_000)
    life.move("flying moved", 53_000)


# -- as files


def _dump(kafka: FakeKafka) -> bytes:
    """Topics and committed offsets: a line for all, then a line for each record. A missing offset is a marker."""
    offsets = [[*each, *(kafka.stable_offset(GROUP, each) or ())] for each in (PARTITION, OTHER)]
    logs = [log for topic in kafka.topics.values() for log in topic.partitions]
    ends = [[log.topic, log.number, log.end] for log in logs]
    head = {"group": GROUP, "now_ms": kafka.timeline.now_ms, "offsets": offsets, "ends": ends}
    records = ((log, entry) for log in logs for entry in log.committed(log.first, log.end))
    return lines([head, *({"topic": log.topic, "partition": log.number, **_told(entry)} for log, entry in records)])


def _told(entry: Entry) -> dict[str, object]:
    told: dict[str, object] = {"offset": entry.offset, "append_ms": entry.append_ms, "timestamp_ms": entry.timestamp_ms}
    return told | ({"undecodable": True} if entry.is_undecodable else contents(entry))


def _data(folder: str, bridge: FakeInstance) -> dict[str, bytes]:
    found = {f"{folder}/lock": b"", f"{folder}/instance-id": INSTANCE_ID.encode()}
    for timer_partition, disk in bridge.disks.items():
        found |= {f"{folder}/{timer_partition}/{name}": data for name, data in disk.contents().items()}
    return found


def load(data: bytes) -> FakeKafka:
    """Return a Kafka as `kafka.jsonl` tells it; its time is that of the end."""
    head, *records = objects(data)
    kafka = FakeKafka(Timeline(head["now_ms"]))
    for topic, partitions in Counter(topic for topic, _, _ in head["ends"]).items():
        kafka.create(topic, partitions)
    for told in records:
        _append(kafka, TimerPartition(told["topic"], told["partition"]), told)
    for topic, partition, end in head["ends"]:
        _fill(kafka, TimerPartition(topic, partition), end)
    for topic, partition, offset, metadata in head["offsets"]:
        kafka.commit_offset(head["group"], TimerPartition(topic, partition), offset, metadata)
    return kafka


def _append(kafka: FakeKafka, timer_partition: TimerPartition, told: dict[str, Any]) -> None:
    _fill(kafka, timer_partition, told["offset"])
    headers = [(name, raw(value)) for name, value in told.get("headers", ())]
    key, value = raw(told.get("key")), raw(told.get("value"))
    entry = Entry(-1, told["append_ms"], told["timestamp_ms"], key, value, headers)
    entry.is_undecodable = told.get("undecodable", False)
    kafka.partition(timer_partition).append(entry)


def _fill(kafka: FakeKafka, timer_partition: TimerPartition, end: int) -> None:
    """Markers up to `end`, with the time of the record before them."""
    log = kafka.partition(timer_partition)
    at_ms = log.everything()[-1].append_ms if log.everything() else START_MS
    while log.end < end:
        log.append(Entry(-1, at_ms, at_ms, None, None, (), is_marker=True))

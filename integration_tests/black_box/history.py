"""One timer topic, the bridges of its group, and the check that each timer came once, none early.

history = History(servers, folder, 2, "--roll-window", "2s")
bridge = history.bridge("a")
bridge.start()
timers = history.schedule(20, 0, 3000, ids=True)      # 20 timers, due in 0 to 3 s
history.cancel(timers[:5])
bridge.kill()
bridge.start()
history.demand_each_once()                            # read from the topics by a read_committed consumer
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from .processes import PATIENCE_S, Bridge, until

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True)
class Timer:
    value: bytes
    due_ms: int
    id: str | None = None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def headers_of(message: Any) -> dict[str, bytes]:
    return dict(message.headers() or [])


def place_of(message: Any) -> str:
    """Return where it is, as timer-origin and receipts write it."""
    return f"{message.topic()}/{message.partition()}/{message.offset()}"


def read_committed(servers: str, topic: str) -> list[Any]:
    """Return what a read_committed consumer reads from the topic's first record to its end at the time of the call."""
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 20}
    consumer: Any = Consumer({**_client(servers), "group.id": "unused", "enable.auto.commit": False, **settings})
    try:
        numbers = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        partitions = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers]
        ends = {each.partition: consumer.get_watermark_offsets(each, timeout=PATIENCE_S)[1] for each in partitions}
        consumer.assign(partitions)
        found, unread, end_s = [], set(ends), time.monotonic() + PATIENCE_S
        while unread:
            assert time.monotonic() < end_s, f"{topic}: no end of partitions {unread}"
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            # Under a load, the end-of-partition event hardly ever comes.
            if error is not None or message.offset() >= ends[message.partition()] - 1:
                assert error is None or error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001
                unread.discard(message.partition())
        return found
    finally:
        consumer.close()


def _client(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "log_level": 0}


class History:
    """Topics of its own. The target topic has one partition and the broker's timestamps (LogAppendTime)."""

    def __init__(self, servers: str, folder: Path, partitions: int, *options: str) -> None:
        mark = uuid4().hex[:8]
        self.servers = servers
        self.partitions = partitions
        self.requests, self.target, self.rejected = f"requests-{mark}", f"orders-{mark}", f"rejected-{mark}"
        self._receipts, self.group = f"receipts-{mark}", f"group-{mark}"
        topics = {"timer": self.requests, "rejected": self.rejected, "receipts": self._receipts}
        topics |= {"journal": f"journal-{mark}", "control": f"control-{mark}"}
        self._arguments = ["--bootstrap-servers", servers, "--group", self.group, "--partitions", str(partitions)]
        for kind, topic in topics.items():
            self._arguments += [f"--{kind}-topic", topic]
        self._arguments += options
        self._folder = folder
        self._bridges: list[Bridge] = []
        self.admin: Any = AdminClient(_client(servers))
        settings = {"message.timestamp.type": "LogAppendTime"}
        (made,) = self.admin.create_topics([NewTopic(self.target, 1, 1, config=settings)]).values()
        made.result(PATIENCE_S)
        self._producer = self._new_producer()
        self.timers: list[Timer] = []
        self.cancels: dict[str, str] = {}
        """The place of the cancel of each id that was cancelled by `cancel`."""
        self.ended: set[bytes] = set()
        """Values of timers that were ended otherwise, and must not be delivered."""

    def _new_producer(self) -> Any:
        """Return a producer that places keys by murmur2: an id is sent as the record's key, docs/headers.md."""
        settings = {"partitioner": "murmur2_random", "enable.idempotence": True, "linger.ms": 5}
        return Producer({**_client(self.servers), **settings})

    def grow(self, partitions: int) -> None:
        (grown,) = self.admin.create_partitions([NewPartitions(self.requests, partitions)]).values()
        grown.result(PATIENCE_S)
        self.partitions = partitions

        def is_visible() -> bool:
            there = self.admin.list_topics(self.requests, timeout=PATIENCE_S).topics[self.requests].partitions
            return len(there) == partitions

        until(is_visible, f"{partitions} partitions")
        self._producer = self._new_producer()  # the old one knows the old partitions

    def bridge(self, name: str) -> Bridge:
        """Return a static member of the group: after a kill and a lost disk it gets its partitions again at once."""
        bridge = Bridge(name, self._folder, [*self._arguments, "--kafka", f"group.instance.id={name}"])
        self._bridges.append(bridge)
        return bridge

    def send(
        self, value: bytes | None, headers: Headers, *, key: bytes | None = None, partition: int = -1
    ) -> list[str]:
        """Send a request. Return a list that gets its place when the broker acknowledges it (`flush`)."""
        place: list[str] = []

        def told(error: Any, message: Any) -> None:
            assert error is None, error
            place.append(place_of(message))

        options = {} if partition < 0 else {"partition": partition}
        self._producer.produce(self.requests, value, key, headers=headers, on_delivery=told, **options)
        self._producer.poll(0)
        return place

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    @contextmanager
    def load(self) -> Iterator[None]:
        """Send 20 timers each 100 ms, due in 0 to 2 s, and cancel two of them."""
        over, failed = threading.Event(), []

        def run() -> None:
            try:
                while not over.wait(0.1):
                    self.schedule(18, 0, 2000)
                    self.cancel(self.schedule(2, 1500, 2000, ids=True))
            except BaseException as error:  # noqa: BLE001
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert failed == []

    def schedule(self, count: int, first_ms: int, last_ms: int, *, ids: bool = False) -> list[Timer]:
        """Send `count` timers, due evenly from `first_ms` to `last_ms` after now. Return when all are acknowledged."""
        begin_ms, mark = now_ms(), uuid4().hex[:6]
        step_ms = (last_ms - first_ms) / max(count - 1, 1)
        new = []
        for number in range(count):
            name = f"{mark}-{number}"
            due_ms = begin_ms + first_ms + int(number * step_ms)
            new.append(Timer(name.encode(), due_ms, name if ids else None))
            headers: Headers = [("timer-topic", self.target.encode()), ("timer-deliver-ms", b"%d" % due_ms)]
            headers += [("timer-id", name.encode())] if ids else []
            self.send(name.encode(), headers, key=name.encode())
        self.flush()
        self.timers += new
        return new

    def cancel(self, timers: Iterable[Timer]) -> list[str]:
        """Send a cancel of each id, and return the ids."""
        sent = {}
        for timer in timers:
            assert timer.id is not None
            headers: Headers = [("timer-action", b"cancel"), ("timer-id", timer.id.encode())]
            sent[timer.id] = self.send(None, headers, key=timer.id.encode())
        self.flush()
        self.cancels |= {id_: place for id_, (place,) in sent.items()}
        return list(sent)

    def move(self, timers: Sequence[Timer], due_ms: int) -> None:
        """Move the pending timers of these ids to `due_ms`. Cancelled ones must not come back."""
        for timer in timers:
            assert timer.id is not None
            id_ = timer.id.encode()
            headers: Headers = [("timer-action", b"move"), ("timer-id", id_), ("timer-deliver-ms", b"%d" % due_ms)]
            self.send(None, headers, key=id_)
        self.flush()
        self.note_moved(timers, due_ms)

    def note_moved(self, timers: Sequence[Timer], due_ms: int) -> None:
        self.timers = [replace(timer, due_ms=due_ms) if timer in timers else timer for timer in self.timers]

    def read(self, topic: str) -> list[Any]:
        return read_committed(self.servers, topic)

    def delivered(self) -> list[Any]:
        return self.read(self.target)

    def until_delivered(self, timers: Sequence[Timer]) -> None:
        """Wait until these timers have been delivered."""
        wanted = {timer.value for timer in timers}
        until(lambda: wanted <= {each.value() for each in self.delivered()}, f"{len(wanted)} deliveries")

    def pending(self) -> list[Timer]:
        """Return the timers that are neither cancelled nor delivered so far."""
        there = {each.value() for each in self.delivered()}
        return [timer for timer in self._kept() if timer.value not in there]

    def _kept(self) -> list[Timer]:
        return [timer for timer in self.timers if timer.id not in self.cancels and timer.value not in self.ended]

    def receipts(self) -> list[dict[str, Any]]:
        return [json.loads(each.value()) for each in self.read(self._receipts)]

    def outcomes(self) -> dict[str, list[str]]:
        """Return the kinds of the receipts of each cancel, by its id."""
        kinds = self._kinds()
        return {id_: kinds.get(place, []) for id_, place in self.cancels.items()}

    def _kinds(self) -> dict[str, list[str]]:
        """Return the kinds of the receipts of each request, by its place."""
        told: dict[str, list[str]] = {}
        for receipt in self.receipts():
            told.setdefault(receipt["request"], []).append(receipt["kind"])
        return told

    def until_answered(self, ids: Iterable[str]) -> None:
        """Wait until each of these cancels has a receipt."""
        wanted = list(ids)

        def are_answered() -> bool:
            told = self.outcomes()
            return all(told[id_] for id_ in wanted)

        until(are_answered, f"receipts of {len(wanted)} cancels")

    def until_read(self) -> None:
        """Wait until the bridges have read all requests so far.

        Send to each partition a timer that is due in an hour, and its cancel, and wait for the receipts.
        """
        cancels = []
        for number in range(self.partitions):
            id_ = f"read-{uuid4().hex}".encode()
            due: Headers = [("timer-topic", self.target.encode()), ("timer-delay-ms", b"3600000"), ("timer-id", id_)]
            self.send(b"never", due, key=id_, partition=number)
            cancels.append(self.send(None, [("timer-action", b"cancel"), ("timer-id", id_)], key=id_, partition=number))
        self.flush()
        places = [place for (place,) in cancels]

        def are_cancelled() -> bool:
            kinds = self._kinds()
            return all(kinds.get(place) == ["cancelled"] for place in places)

        until(are_cancelled, "requests are read")

    def rejected_codes(self) -> Counter[str]:
        return Counter(headers_of(each)["timer-error"].decode() for each in self.read(self.rejected))

    def demand_each_once(self) -> None:
        """Fail unless each timer is delivered once, none early, and each cancel had the outcome of its receipt.

        A last timer on each partition is due after all others: once it is delivered, no other is pending.
        """
        self.until_delivered(self._kept())
        self.until_answered(self.cancels)
        last = self.deliver_last(max(timer.due_ms for timer in self.timers))
        for bridge in self._bridges:
            if bridge.is_up:
                bridge.stop()
        found = self.delivered()
        counts = Counter(each.value() for each in found)
        wanted = self._wanted() | {timer.value: 1 for timer in last}
        assert {value: count for value, count in counts.items() if count != wanted.get(value)} == {}
        assert [value for value, count in wanted.items() if counts[value] != count] == []
        due_ms = {timer.value: timer.due_ms for timer in [*self.timers, *last]}
        for each in found:
            kind, appended_ms = each.timestamp()
            assert kind == TIMESTAMP_LOG_APPEND_TIME
            assert appended_ms >= due_ms[each.value()]
            assert int(headers_of(each)["timer-deliver-ms"]) == due_ms[each.value()]

    def _wanted(self) -> dict[bytes, int]:
        """Return how often each value must have been delivered, by the receipts of the cancels."""
        counts, outcomes = {"cancelled": 0, "too-late": 1}, self.outcomes()
        assert {id_: kinds for id_, kinds in outcomes.items() if len(kinds) != 1 or kinds[0] not in counts} == {}
        wanted = {timer.value: 1 for timer in self.timers}
        wanted |= {timer.value: counts[outcomes[timer.id][0]] for timer in self.timers if timer.id in outcomes}
        return wanted | dict.fromkeys(self.ended, 0)

    def deliver_last(self, after_ms: int) -> list[Timer]:
        """Send one timer to each partition, due after `after_ms`, and wait until they are delivered."""
        due_ms = max(now_ms(), after_ms) + 1
        last = [Timer(b"last-%d" % number, due_ms) for number in range(self.partitions)]
        for number, timer in enumerate(last):
            headers: Headers = [("timer-topic", self.target.encode()), ("timer-deliver-ms", b"%d" % due_ms)]
            self.send(timer.value, headers, partition=number)
        self.flush()
        self.until_delivered(last)
        return last

    def close(self) -> None:
        """Kill the bridges that a failed test left running."""
        for bridge in self._bridges:
            bridge.kill_if_up()
